//! Skips leaves that have nothing newer than a sequence.
//!
//! No sequence in a leaf is above the greatest version that the leaf has given out, which is in its directory in
//! DRAM. So in a mostly old tree most leaves are skipped without a look at their pages.

use crate::read::Reader;

/// The decision about a leaf without its page.
pub(crate) enum Passed {
    /// Nothing in it is newer, or in doubt: the next one begins here; none if it is the last.
    Old(Option<Box<[u8]>>),
    /// Its page must be read.
    Perhaps,
}

impl Reader {
    /// Decides whether the leaf that serves `key` may have something newer than `sequence`, or lost records.
    pub(crate) fn pass(&self, key: &[u8], sequence: u64) -> Passed {
        let descent = self.inner.descend(key);
        let leaf = self.leaves.get(descent.leaf as usize);
        let Some(version) = self.begin_at(&descent, leaf) else { return Passed::Perhaps };
        if leaf.given() > sequence || leaf.doubt() > 0 {
            return Passed::Perhaps;
        }
        let bound = self.inner.bound_of(key);
        // A leaf that is split has another bound afterwards.
        if leaf.is_at(version) { Passed::Old(bound) } else { Passed::Perhaps }
    }
}
