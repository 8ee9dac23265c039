//! Leaves that are being loaded.

use super::{Begun, DEAD, Directory, LOCKED, SHUT, UNLOADED, VERSION};
use std::sync::atomic::Ordering;

/// A leaf that was not loaded and is being filled by whoever has this; not loaded again if it is dropped.
#[derive(Debug)]
pub(crate) struct LeafLoad<'a> {
    pub(super) leaf: Option<&'a Directory>,
}

impl LeafLoad<'_> {
    /// The leaf is loaded, of these records.
    pub(crate) fn begin(mut self, begun: Begun, records: impl Iterator<Item = (u8, u32, u32)>) {
        if let Some(leaf) = self.leaf.take() {
            leaf.begin(begun, records);
        }
    }

    /// True while the store is being closed or emptied: whoever does that knows this leaf.
    pub(crate) fn is_shut(&self) -> bool {
        self.leaf.is_some_and(|leaf| leaf.word.load(Ordering::Relaxed) & SHUT != 0)
    }

    /// The leaf is dead, and nobody has read it.
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
