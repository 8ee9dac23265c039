//! The bounds of a leaf as the tree knows them, for callers that cannot read them in the leaf.

use super::{Inner, Path};
use coreplane_pmem::spin;
use std::sync::atomic::Ordering;

/// The least key of a leaf, and its bound.
type Ends = (Box<[u8]>, Option<Box<[u8]>>);

impl Inner {
    /// The least key of the leaf behind the one that serves `key`; none if that is the last.
    pub(crate) fn bound_of(&self, key: &[u8]) -> Option<Box<[u8]>> {
        let _spare = spin::lock(&self.spare);
        self.end_of(&self.path(key))
    }

    /// The least key of the leaf in `page` and its bound; none if the tree does not lead to it. Searches the
    /// children of all nodes.
    pub(crate) fn bounds_of(&self, page: u32) -> Option<Ends> {
        let _spare = spin::lock(&self.spare);
        let mut path = Path::new();
        if !self.find(self.root.load(Ordering::Acquire), page, &mut path) {
            return None;
        }
        let mut ways = path.iter().rev();
        let least = ways.find_map(|(node, at)| self.node(*node).separator(at.checked_sub(1)?));
        Some((least.unwrap_or_default(), self.end_of(&path)))
    }

    pub(super) fn end_of(&self, path: &Path) -> Option<Box<[u8]>> {
        path.iter().rev().find_map(|(node, at)| self.node(*node).separator(*at))
    }

    /// Finds the path to a leaf below a node.
    fn find(&self, number: u32, page: u32, path: &mut Path) -> bool {
        let (level, children) = self.node(number).children();
        for (at, child) in children.enumerate() {
            path.push((number, at));
            if if level > 0 { self.find(child, page, path) } else { child == page } {
                return true;
            }
            path.pop();
        }
        false
    }
}
