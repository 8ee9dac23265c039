//! Leaves that are being loaded.

use super::{Begun, DEAD, Directory, LOCKED, SHUT, UNLOADED, VERSION};
use std::sync::atomic::Ordering;

/// The right to fill a leaf that is not loaded; if it is dropped unused, the leaf stays not loaded.
#[derive(Debug)]
pub(crate) struct LeafLoad<'a> {
    pub(super) leaf: Option<&'a Directory>,
}

impl LeafLoad<'_> {
    /// Loads the leaf with these records.
    pub(crate) fn begin(mut self, begun: Begun, records: impl Iterator<Item = (u8, u32, u32)>) {
        if let Some(leaf) = self.leaf.take() {
            leaf.begin(begun, records);
        }
    }

    /// True while the store is being closed or emptied, in which case the thread that does that knows this leaf.
    pub(crate) fn is_shut(&self) -> bool {
        self.leaf.is_some_and(|leaf| leaf.word.load(Ordering::Relaxed) & SHUT != 0)
    }

    /// Declares the leaf dead; no thread has read it.
    pub(crate) fn kill(mut self) {
        if let Some(leaf) = self.leaf.take() {
            let word = leaf.word.load(Ordering::Relaxed) & !(UNLOADED | LOCKED | SHUT);
            leaf.word.store((word + VERSION) | DEAD, Ordering::Release);
        }
    }
}

impl Drop for LeafLoad<'_> {
    fn drop(&mut self) {
        if let Some(leaf) = self.leaf {
            leaf.word.fetch_and(!LOCKED, Ordering::Release);
        }
    }
}
