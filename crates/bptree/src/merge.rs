//! Two leaves made one, where deletes have left little.
//!
//! None of it is needed: it saves pages and steps. So it is never a reason to refuse what was asked
//! for, and comes behind that.

use crate::counters::Count;
use crate::image::Item;
use crate::keys::Edge;
use crate::leaf::{Head, PLACES};
use crate::lock::Locked;
use crate::rewrite::Contents;
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use coreplane_pmem::mutant;

impl Store {
    /// Makes one leaf of the one that serves `key` and one beside it, behind a write that has been made. That
    /// counts, whatever comes of this: where the other leaf is damaged both stay as they are, and
    /// whoever comes to it, the scrub and `verify` tell of it. If the medium fails the next write is told so.
    pub(crate) fn merge_after(&self, key: &[u8]) {
        let _merged = self.merge_at(key).is_ok();
    }

    /// Makes one leaf of the one that serves `key` and one beside it, if they are small enough and
    /// nobody else is about to. None of it is needed now: where there is no page for it, it is left.
    ///
    /// # Errors
    /// If the medium fails.
    fn merge_at(&self, key: &[u8]) -> Result<()> {
        let guard = epoch::pin();
        let Some((left, separator, right)) = self.inner.pair_of(key) else { return Ok(()) };
        // The left one first, whoever comes: so that no two wait for each other.
        let Some(left) = self.lock_page(left)? else { return Ok(()) };
        let Some(right) = self.lock_page(right)? else { return Ok(()) };
        // Both are locked, so that what the tree says of them now stays so.
        let is_pair = self.inner.descend(&separator).leaf == right.page
            && self.inner.descend_before(Some(&separator)).leaf == left.page;
        let live = left.leaf.live() + right.leaf.live();
        let is_in_doubt = left.leaf.doubt() > 0 || right.leaf.doubt() > 0;
        if !is_pair || is_in_doubt || live > self.space.page_size() / 2 {
            return Ok(());
        }
        self.ask_for_records(&left);
        self.ask_for_records(&right);
        let contents = self.records_of(&guard, &left)?;
        let others = self.records_of(&guard, &right)?;
        if !contents.hurt.is_empty() || !others.hurt.is_empty() {
            return Ok(());
        }
        let Contents { mut kept, mut expired, mut dropped, .. } = contents;
        kept.extend(others.kept);
        if kept.iter().any(|item| self.is_long(item.key)) {
            // One that is damaged is before all that begin alike, those of the left one too.
            self.sort_items(&guard, &mut kept)?;
        }
        expired.extend(others.expired);
        dropped.extend(others.dropped);
        // Tombstones that are held take room too, and do not count as living.
        let len: usize = kept.iter().map(Item::len).sum();
        if kept.len() > PLACES / 2 || len > self.space.page_size() as usize / 2 {
            return Ok(());
        }
        let (lower, upper) = (self.head_of(&guard, left.page)?, self.head_of(&guard, right.page)?);
        let version = left.held.given().max(right.held.given());
        // The bound between the two is none from now on.
        let between = upper.least.clone();
        dropped.push(&between);
        let head =
            Head { version, predecessor: Some(left.life()), bound: upper.bound.clone(), ..upper };
        let whole = self.whole_key(&guard, &lower.least)?.into();
        let edge = Edge { whole, field: lower.least, rest: None };
        let page = match self.pages.take(1, 0) {
            Ok(pages) => pages[0],
            Err(_) => return Ok(()),
        };
        let image = self.write_image(page, (head, edge), &kept)?;
        if !mutant!("bptree.merge.fence") {
            self.fence()?;
        }
        self.say_farewell(&[&left, &right], version)?;
        self.cover();
        let old = [left.page, right.page];
        self.begin(image);
        self.count_out(&expired, &[]);
        left.held.bury();
        right.held.bury();
        self.inner.merge(&separator, page);
        self.counters.add(Count::Merges, 1);
        let retired = self.retire_all(old).and(self.retire_values(&guard, &expired));
        retired.and(self.retire_rests(&guard, &dropped))
    }

    /// Locks a leaf to write to it; none if it is dead, or written to no more.
    fn lock_page(&self, page: u32) -> Result<Option<Locked<'_>>> {
        let leaf = self.leaves.get(page as usize);
        self.wake(page)?;
        let held = leaf.lock().filter(|held| !held.is_shut());
        Ok(held.map(|held| Locked { page, leaf, held }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{Options, create_options};
    use coreplane_engine::{Batch, Outcome, WriteOptions};
    use coreplane_pmem::{MediaChoice, Pool};
    use std::os::unix::fs::FileExt as _;

    const PAGE: u32 = 4096;

    fn key(number: u32) -> Vec<u8> {
        format!("key {number:03}").into_bytes()
    }

    /// A store of two leaves or more, of which the second has little, and all that it has is damaged; and the
    /// keys of the first.
    fn beside_damage() -> (tempfile::TempDir, Store, Vec<Vec<u8>>) {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let create = create_options(1 << 20, PAGE, MediaChoice::Auto);
        let pool = Pool::create(&path, &create).expect("a pool");
        let options = Options { background: false, ..Options::default() };
        let store = Store::format(pool, &options).expect("a store");
        let write = WriteOptions::default();
        for number in 0..60 {
            let _outcome = store.put(&key(number), &[7; 100], &write).expect("put");
        }
        let leaves = store.inner.leaves();
        let (from, to) = (&leaves[1].0, &leaves[2].0);
        let is_in = |key: &[u8]| *key >= **from && *key < **to;
        for key in (0..60).map(key).filter(|key| is_in(key)).skip(10) {
            let _outcome = remove(&store, &key).expect("delete");
        }
        let page = store.inner.leaves()[1].1;
        assert_eq!(leaves.len(), store.inner.leaves().len(), "none is one with another yet");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        let (start, end) = (store.space.start_of(page), store.space.start_of(page + 1));
        let wrong = vec![0xff; (end - start) as usize - 64];
        file.write_all_at(&wrong, start + 64).expect("write");
        let first = (0..60).map(key).take_while(|key| **key < **from).collect();
        (directory, store, first)
    }

    fn remove(store: &Store, key: &[u8]) -> Result<Outcome> {
        use crate::put::{Plan, RestsOn};
        let options = WriteOptions::default();
        store.write(key, (&options, RestsOn::Old), &mut |live| {
            Ok(if live.is_some() { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
        })
    }

    /// It is durable, and the leaf beside it is nobody's business.
    #[test]
    fn a_delete_beside_a_damaged_leaf_is_answered_as_made() {
        let (_directory, store, first) = beside_damage();
        assert!(first.len() > 8, "{} keys", first.len());
        for key in &first {
            let outcome = remove(&store, key).expect("delete");
            assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
        }
        assert_eq!(store.counters.get(Count::Merges), 0);
        assert!(!store.verify(&mut |_| {}).expect("verify").is_sound(), "it is told of");

        let (_directory, store, first) = beside_damage();
        let mut batch = Batch::new();
        for key in &first {
            batch.delete(key);
        }
        store.apply(&batch, &WriteOptions::default()).expect("a batch");
        assert!(first.iter().all(|key| remove(&store, key).is_ok_and(|it| it.written().is_none())));
    }
}
