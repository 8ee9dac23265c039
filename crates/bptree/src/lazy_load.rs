//! Leaves that are not loaded: after an open with a checkpoint nothing is known of a leaf but where it
//! is and where its records end. Whoever is led to one reads it first.

use crate::hurt::is_damage;
use crate::leaf::LeafLoad;
use crate::store::Store;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

impl Store {
    /// Reads the leaf in `page`, if nobody has since the open.
    ///
    /// # Errors
    /// If it is damaged; [`Error::NoSpace`] if there is no page for what is to be said of that. Whoever
    /// calls has a guard, or a lock, so that it waits for none.
    #[cold]
    pub(crate) fn load_leaf(&self, page: u32) -> Result<()> {
        let Some(load) = self.leaves.get(page as usize).begin_load() else { return Ok(()) };
        let guard = epoch::pin();
        self.check_readable(page)?;
        // The checkpoint has said where its records end.
        let (end, _) = self.space.watermarks(page).ok_or_else(|| self.not_a_leaf(page))?;
        let head = match self.head_of(&guard, page) {
            // The close, or the clear, has to know all leaves.
            Err(error) if !is_damage(&error) || load.is_shut() => return Err(error),
            Err(_) => return self.replace_lost(page, load),
            Ok(head) => head,
        };
        let (found, latest) = self.read_leaf_page(&guard, page, head, (end, end))?;
        if found.is_dead {
            let offset = self.space.start_of(page) + u64::from(found.end);
            let what = format!("the records of page {page} end here, and should not");
            return Err(Error::Corrupt { offset, what });
        }
        let begun = latest.begun(&found, self.opened.sealed_births);
        self.note_loaded(&load);
        load.begin(begun, latest.records(self.space.start_of(page)));
        if !found.is_to_be_told() {
            return Ok(());
        }
        match self.whole_key(&guard, &found.head.least) {
            Ok(least) => match self.keep_doubt(&least) {
                // It stays as it is.
                Err(Error::NoSpace { .. }) => Ok(()),
                kept => kept,
            },
            Err(_) => Ok(()),
        }
    }

    /// As [`Store::load_leaf`], for a read: it needs no page, and is told of the damage that one is lacking for.
    ///
    /// # Errors
    /// If it is damaged.
    #[cold]
    pub(crate) fn load_leaf_to_read(&self, page: u32) -> Result<()> {
        match self.load_leaf(page) {
            Err(Error::NoSpace { .. }) => Err(self.not_a_leaf(page)),
            loaded => loaded,
        }
    }

    /// Of the leaves that nobody has come to there is one fewer. Before it is seen to be loaded, or dead: who
    /// empties the store waits for that, and then there are none.
    pub(crate) fn note_loaded(&self, _load: &LeafLoad<'_>) {
        self.opened.unloaded.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{Options, create_options};
    use coreplane_engine::{Visibility, WriteOptions};
    use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
    use std::os::unix::fs::FileExt as _;

    /// It is damaged, and there is no page for another in its place: whoever reads it is told of the damage,
    /// and it is not loaded all the while; whoever writes to it is told what is lacking.
    #[test]
    fn a_lost_leaf_for_which_there_is_no_page_stays_unloaded() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let create = create_options(1 << 20, 4096, MediaChoice::Auto);
        let options = Options { background: false, ..Options::default() };
        let pool = Pool::create(&path, &create).expect("a pool");
        let store = Store::format(pool, &options).expect("a store");
        let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
        let page = store.inner.leaves()[0].1;
        let head = store.space.start_of(page);
        store.close().expect("close");
        drop(store);
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(&[0xff], head + 20).expect("write");
        let pool = Pool::open(&path, &OpenOptions::default()).expect("a pool");
        let store = Store::open(pool, &options, &|_| {}).expect("open");
        let mut taken = Vec::new();
        while let Ok(pages) = store.pages.take(1, 0) {
            taken.extend(pages);
        }
        let unloaded = || store.opened.unloaded.load(Ordering::Relaxed);
        for _ in 0..3 {
            let read = store.get_with(b"key", Visibility::Durable, &mut |_| {});
            assert!(read.as_ref().is_err_and(is_damage), "{read:?}");
            let put = store.put(b"key", b"new", &WriteOptions::default());
            assert!(matches!(put, Err(Error::NoSpace { .. })), "{put:?}");
            assert_eq!(unloaded(), 1);
        }
        taken.into_iter().for_each(|page| store.pages.leave(page));
        let _outcome = store.put(b"key", b"new", &WriteOptions::default()).expect("put");
        assert_eq!(unloaded(), 0);
        store.clear().expect("clear");
        assert_eq!(unloaded(), 0);
    }
}
