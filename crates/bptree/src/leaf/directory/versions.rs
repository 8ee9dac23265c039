//! The versions that a leaf has given out.

use super::{Directory, Held};
use std::sync::atomic::Ordering;

impl Directory {
    /// The greatest version that any key of the leaf was given. A caller without the lock may miss concurrent
    /// writes.
    #[inline]
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }
}

impl Held<'_> {
    /// The greatest version that any key of the leaf was given.
    #[inline]
    pub(crate) fn given(&self) -> u64 {
        self.leaf.given()
    }

    /// A version greater than that, and than `floor`.
    #[inline]
    pub(crate) fn give(&self, floor: u64) -> u64 {
        let version = self.given().max(floor) + 1;
        self.leaf.given.store(version, Ordering::Relaxed);
        version
    }
}
