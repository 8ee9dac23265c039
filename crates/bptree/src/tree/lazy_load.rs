//! Leaves that are not loaded: after an open with a checkpoint only the page of a leaf and the end of its records
//! are known. The first thread that descends to a leaf reads it.

use crate::leaf::LeafLoad;
use crate::tree::Tree;
use crate::volume::hurt::is_damage;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

impl Tree {
    /// Reads the leaf in `page`, if no thread has since the open.
    ///
    /// # Errors
    /// If it is damaged; [`Error::NoSpace`] if there is no page in which to record the damage. The caller has a
    /// guard, or a lock, so that this does not wait for a page.
    #[cold]
    pub(crate) fn load_leaf(&self, page: u32) -> Result<()> {
        let Some(load) = self.leaves.get(page as usize).begin_load() else { return Ok(()) };
        let guard = epoch::pin();
        self.check_readable(page)?;
        // The checkpoint has stated where its records end.
        let (end, _) = self.space.watermarks(page).ok_or_else(|| self.not_a_leaf(page))?;
        let head = match self.head_of(&guard, page) {
            // A close, or a clear, must know all leaves.
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
        if found.is_to_be_told() {
            // The checkpoint has counted the lost records.
            self.counters.be_unsure();
        }
        let begun = latest.begun(&found, self.opened.sealed_births);
        self.note_loaded(&load);
        load.begin(begun, latest.records(self.space.start_of(page)));
        if !found.is_to_be_told() {
            return Ok(());
        }
        match self.bound(&guard, &found.head.least) {
            Ok(least) => match self.keep_doubt(&least) {
                // The leaf stays as it is.
                Err(Error::NoSpace { .. }) => Ok(()),
                kept => kept,
            },
            Err(_) => Ok(()),
        }
    }

    /// As [`Tree::load_leaf`], for a read, which needs no page: it reports the damage for which a page is lacking.
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

    /// Lowers by one the count of leaves that are not loaded. Called before the leaf is seen to be loaded, or dead: a
    /// thread that empties the store waits for that, and then no leaf is counted any more.
    pub(crate) fn note_loaded(&self, _load: &LeafLoad<'_>) {
        self.opened.unloaded.fetch_sub(1, Ordering::Relaxed);
    }
}
