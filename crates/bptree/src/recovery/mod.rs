//! Opening a pool: the layers are built over it, and what a crash has left is put in order.

pub(crate) mod checkpoint;
mod coverage;
pub(crate) mod open;
pub(crate) mod prove;
mod recover;

use crate::tree::Tree;
use std::ops::Deref;

/// The recovery of a tree that nobody else has yet.
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
