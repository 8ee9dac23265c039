//! Reads without a lock, over the [tree](crate::tree).

pub(crate) mod cursor;
pub(crate) mod damage;
pub(crate) mod get;
pub(crate) mod newer;
mod scan;
mod snapshot;

use crate::tree::Tree;
use coreplane_engine::Cursors;
use coreplane_pmem::isolation::Isolation;
use coreplane_record::Options;
use cursor::Place;
use parking_lot::Mutex;
use std::ops::Deref;

/// The reading layer.
pub(crate) struct Reader {
    tree: Tree,
    /// The positions of iterations.
    cursors: Mutex<Cursors<Place>>,
    /// Isolation from batches, which are seen as a whole.
    pub(crate) isolation: Isolation,
    pub(crate) check_reads: bool,
}

impl Reader {
    pub(crate) fn new(tree: Tree, options: &Options) -> Self {
        Self {
            tree,
            cursors: Mutex::default(),
            isolation: Isolation::default(),
            check_reads: options.check_reads,
        }
    }
}

impl Deref for Reader {
    type Target = Tree;

    #[inline(always)]
    fn deref(&self) -> &Tree {
        &self.tree
    }
}
