//! Leaves that have nothing newer than a sequence, for whoever looks for what is.
//!
//! No sequence in a leaf is above the greatest version that the leaf has given out, which its directory in
//! DRAM has. So of a tree most of which is old most leaves are passed by without a look at their pages.

use crate::read::Reader;

/// What is known of a leaf without its page.
pub(crate) enum Passed {
    /// Nothing in it is newer, or in doubt: the next one begins here; none if it is the last.
    Old(Option<Box<[u8]>>),
    /// Its page is to be looked at.
    Perhaps,
}

impl Reader {
    /// Whether the leaf that serves `key` may have something newer than `sequence`, or lost records.
    pub(crate) fn pass(&self, key: &[u8], sequence: u64) -> Passed {
        let descent = self.inner.descend(key);
        let leaf = self.leaves.get(descent.leaf as usize);
        let Some(version) = self.begin_at(&descent, leaf) else { return Passed::Perhaps };
        if leaf.given() > sequence || leaf.doubt() > 0 {
            return Passed::Perhaps;
        }
        let bound = self.inner.bound_of(key);
        // A leaf that is split is another afterwards.
        if leaf.is_at(version) { Passed::Old(bound) } else { Passed::Perhaps }
    }
}
