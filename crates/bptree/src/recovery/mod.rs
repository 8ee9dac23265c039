//! Opens a pool: builds the layers over it, and repairs what a crash has left.

pub(crate) mod checkpoint;
mod coverage;
pub(crate) mod open;
pub(crate) mod prove;
mod recover;

use crate::tree::Tree;
use std::ops::Deref;

/// The recovery of a tree that no other thread uses yet.
pub(crate) struct Recovery<'t> {
    tree: &'t Tree,
}

impl Deref for Recovery<'_> {
    type Target = Tree;

    #[inline(always)]
    fn deref(&self) -> &Tree {
        self.tree
    }
}
