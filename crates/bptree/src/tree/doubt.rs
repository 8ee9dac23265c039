//! Leaves of which records were lost: the knowledge of that, for as long as it is true.
//!
//! A leaf knows its range of keys. So when some of its records are damaged, their keys are unknown, but not the
//! range that they are in. From then on the leaf is *in doubt*:
//!
//! | the leaf's record of a key | the answer of a read |
//! |---|---|
//! | a record that was written behind the damage, or since | the record |
//! | an older one, marked as doubtful | it may not be the newest |
//! | none | it may be lost |
//!
//! A put or a delete over a key ends the doubt about that key; a write that depends on the old record is refused. A
//! peer that has all records of the leaf puts them, and then [settles](crate::upkeep::Store::settle) it: keys that
//! are still doubtful were deleted.
//!
//! On the medium the head of the leaf states that records were lost, and doubtful records are marked; both go over
//! to its successors. A leaf in which damage is found is rewritten at once to record that. Where there is no page
//! for it, it stays as it is, and nothing is appended to it: the damage itself is the sign.

use crate::leaf::{Directory, Head, LeafLoad};
use crate::tree::Tree;
use crate::volume::pages::Patience;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use coreplane_pmem::epoch::Guard;
use std::sync::atomic::Ordering;

impl Tree {
    /// Records of a leaf were lost, or the key of one is damaged, and the answer may depend on them.
    #[cold]
    pub(crate) fn in_doubt(&self, guard: &Guard, page: u32) -> Error {
        if self.leaves.get(page as usize).doubt() == 0 {
            let what = "a damaged key, which may be the one that is looked for".to_owned();
            return Error::Corrupt { offset: self.space.start_of(page), what };
        }
        let (least, bound) = self.bounds(guard, page).unwrap_or_default();
        let least = least.escape_ascii();
        let bound = bound.map_or(String::new(), |it| format!(" to \"{}\"", it.escape_ascii()));
        let what = format!("records of keys from \"{least}\"{bound} were lost: none can be told");
        Error::Corrupt { offset: self.space.start_of(page), what }
    }

    /// As [`Tree::make_lost_leaf`]. Waits for pages that a reader may still use: not to be called with a guard or a
    /// lock.
    ///
    /// # Errors
    /// As [`Tree::make_lost_leaf`].
    pub(crate) fn make_lost_leaf_in_time(&self, least: &[u8], bound: Option<&[u8]>) -> Result<u32> {
        self.pages.in_time(&mut Patience::default(), || self.make_lost_leaf(least, bound))
    }

    /// Makes a leaf in the place of a lost one; durable when it returns. Returns its page.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn make_lost_leaf(&self, least: &[u8], bound: Option<&[u8]>) -> Result<u32> {
        // The rests that its neighbours name, if the bounds are long keys, belong to them.
        let least = self.edge(least.into(), 0)?;
        let bound = bound.map(|bound| self.edge(bound.into(), 0)).transpose()?;
        let page = self.pages.take(1, 0)?[0];
        let head = Head {
            // Every lost record has a smaller version: for that an open raises the base.
            version: self.version_base.load(Ordering::Acquire),
            bound: bound.as_ref().map(|bound| bound.field.clone()),
            is_lost: true,
            ..Head::default()
        };
        self.write_first(page, (head, least))?;
        if let Some(rest) = bound.and_then(|bound| bound.rest) {
            rest.own();
        }
        Ok(page)
    }

    /// As [`Tree::keep_doubt`], for several leaves. Waits for pages that a reader may still use; leaves for which
    /// there is none stay as they are.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn keep_doubts(&self, keys: &[Box<[u8]>]) -> Result<()> {
        for key in keys {
            match self.pages.in_time(&mut Patience::default(), || self.keep_doubt(key)) {
                Err(Error::NoSpace { .. }) => {}
                kept => kept?,
            }
        }
        Ok(())
    }

    /// Rewrites the leaf that serves `key`, if it is in doubt and the medium does not state that.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn keep_doubt(&self, key: &[u8]) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_leaf(key)?;
        let head = self.head_of(&guard, locked.page)?;
        let is_told = head.is_lost && locked.leaf.doubt() <= head.len() as u32;
        if locked.held.is_shut() || locked.leaf.doubt() == 0 || is_told {
            return Ok(());
        }
        self.rewrite(&guard, locked, (key, 0), 0)
    }

    /// Replaces a leaf whose head is damaged by one without records. No thread has read the leaf since the open,
    /// and the caller alone has access to it. Its page is given back.
    ///
    /// # Errors
    /// As [`Tree::make_lost_leaf`]; and if the leaf is not in the tree.
    pub(crate) fn replace_lost(&self, page: u32, load: LeafLoad<'_>) -> Result<()> {
        let (least, bound) = self.inner.bounds_of(page).ok_or_else(|| self.not_a_leaf(page))?;
        let successor = self.make_lost_leaf(&least, bound.as_deref())?;
        self.counters.be_unsure();
        self.note_loaded(&load);
        load.kill();
        self.inner.replace(&least, successor);
        self.retire(page)
    }
}

/// True if a record of a leaf is doubtful: no answer may depend on it.
#[inline]
pub(crate) fn is_doubtful(leaf: &Directory, is_marked: bool, within: u32) -> bool {
    let doubt = leaf.doubt();
    doubt > 0 && (is_marked || within < doubt)
}
