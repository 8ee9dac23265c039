//! Neighbouring leaves, for the code that merges them.

use super::{Content, Inner};
use coreplane_pmem::spin;
use smallvec::SmallVec;

/// Two neighbouring leaves, and the separator between them.
pub(crate) type Pair = (u32, Box<[u8]>, u32);

/// Leaves below one node.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    /// In the order of keys.
    pub(crate) leaves: Vec<u32>,
    /// The least key of each but the first.
    pub(crate) separators: Vec<Box<[u8]>>,
    /// The place of the leaf that was asked for.
    pub(crate) at: usize,
    /// The least key of the next leaf; none if there is none.
    pub(crate) bound: Option<Box<[u8]>>,
}

impl Inner {
    /// The leaves below the node of the one that serves `key`, as they are at one moment.
    pub(crate) fn siblings_of(&self, key: &[u8]) -> Siblings {
        let _spare = spin::lock(&self.spare);
        let mut path = self.path(key);
        let Some((number, at)) = path.pop() else { return Siblings::default() };
        let Content { separators, children: leaves, .. } = self.node(number).content();
        let bound = self.end_of(&path);
        Siblings { leaves, separators, at, bound }
    }

    /// The leaf that serves `key` with its right neighbour, and with its left one, as far as they are below the same
    /// node: of each pair the left one, the separator and the right one.
    pub(crate) fn pairs_of(&self, key: &[u8]) -> SmallVec<[Pair; 2]> {
        let _spare = spin::lock(&self.spare);
        let Some((number, at)) = self.path(key).pop() else { return SmallVec::new() };
        let node = self.node(number);
        let pair = |left: usize| {
            let mut pair = node.children().1.skip(left);
            Some((pair.next()?, node.separator(left)?, pair.next()?))
        };
        [Some(at), at.checked_sub(1)].into_iter().flatten().filter_map(pair).collect()
    }
}
