//! The most that a commit will write.

use super::fresh::{Limits, LinkRef};
use super::look::Look;
use super::node::{HEAD, PER_ENTRY};
use crate::volume::Volume;
use coreplane_engine::Result;
use coreplane_record::HEADER;
use std::collections::HashSet;

/// Bytes of a node beside its entries.
const NODE: usize = HEADER + HEAD + 8;

/// Nodes that are fresh, and nodes that will be.
#[derive(Debug, Default)]
pub(super) struct Need {
    bytes: usize,
    nodes: usize,
    longest: usize,
    /// Sealed nodes that are counted already.
    seen: HashSet<u64>,
}

impl Need {
    /// The need of so many nodes, none of which is longer.
    pub(super) fn most(nodes: usize, len: usize) -> Self {
        Self { bytes: nodes * len, nodes, longest: len, seen: HashSet::new() }
    }

    pub(super) fn add(&mut self, len: usize) {
        (self.bytes, self.nodes) = (self.bytes + len, self.nodes + 1);
        self.longest = self.longest.max(len);
    }

    /// Adds the sealed nodes on the path to a key, which will be fresh.
    pub(super) fn add_path(
        &mut self,
        look: Look<'_>,
        root: Option<LinkRef<'_>>,
        key: &[u8],
    ) -> Result<()> {
        let Some(root) = root else { return Ok(()) };
        look.path(root, key, |link, node| {
            if let (LinkRef::Sealed(offset), super::look::NodeRef::Sealed(node)) = (link, node)
                && self.seen.insert(offset)
            {
                self.add(node.record_len() as usize);
            }
            true
        })
    }

    /// Adds the effects of putting these keys. Each key adds an entry, and may become the least key of each node on
    /// its path. Each counted node may be split, and new nodes at most as often as there are keys; a split puts a key
    /// of the node into the node above, or into a new root.
    pub(super) fn grow(&mut self, keys: &[&[u8]], longest_key: usize, limits: Limits) {
        if keys.is_empty() {
            return;
        }
        let given = keys.iter().map(|key| key.len());
        let longest_given = given.clone().max().unwrap_or(0);
        let longest_key = longest_given.max(longest_key);
        let separators = (self.nodes * longest_key).min(self.bytes);
        self.bytes += separators + given.map(|len| PER_ENTRY + len).sum::<usize>();
        self.bytes += (self.nodes + keys.len() + 1) * (NODE + PER_ENTRY + longest_given);
        self.bytes += (keys.len() + 1) * longest_key;
        let node = NODE + limits.fan_out * (PER_ENTRY + longest_key);
        self.longest = self.longest.max(node).min(limits.bytes);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Pages for these nodes and a commit record of `commit` bytes. In each page but the last there is no space for
    /// one more record, and the records of two successive pages exceed one page.
    pub(super) fn pages(&self, volume: &Volume, commit: usize) -> u32 {
        let size = volume.space.page_size() as usize;
        let bytes = self.bytes + commit;
        let longest = self.longest.max(commit).min(size);
        (bytes / (size - longest + 8)).min(2 * bytes / size) as u32 + 1
    }
}
