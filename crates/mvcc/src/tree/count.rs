//! Counting live bytes, after the first answers.
//!
//! ```text
//!   opened      pages of earlier lives stay as they are: none is free, none is cleaned
//!   counted     all records that the root led to then were added, those replaced since were removed
//!               ─▶ a page without live bytes is free
//! ```
//!
//! An open needs only the root. The live bytes of a page have to be known before it can be free, so the pages of
//! earlier lives are kept until the tree was walked as it was at the open. The walk takes steps of some nodes,
//! between which other threads have the map; it is done at once only where no page is free for the first commit.
//! Records that are replaced meanwhile are subtracted from counts that they were not added to yet; the sum is the
//! same.
//!
//! The walk verifies the checksum of each node, and until it has reached all nodes, readers do so, too. If a node is
//! damaged, it is not known what it leads to: then the pages of earlier lives stay for good, and everything else can
//! be read.

use super::Tree;
use super::look::Look;
use super::node::Sealed;
use crate::volume::Volume;
use crate::volume::overflow::NAME;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::Kind;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Nodes in a step.
pub(super) const STEP: usize = 256;

/// The progress of the count.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// Nodes that are still to be counted, and their levels where they are known; the next is at the end.
    nodes: Vec<(u64, Option<u32>)>,
    /// Pages of earlier lives, in the order in which they were found.
    pages: Vec<u32>,
    is_damaged: bool,
}

impl Count {
    /// A count of the tree below a root, whose records are in these pages.
    pub(super) fn new(root: Option<u64>, pages: Vec<u32>) -> Self {
        let nodes = root.map(|offset| (offset, None)).into_iter().collect();
        Self { nodes, pages, is_damaged: false }
    }
}

impl Tree {
    /// Counts the records below some nodes; false if none are left.
    pub(super) fn count_nodes(&mut self, nodes: usize) -> bool {
        let Some(mut count) = self.count.take() else { return false };
        if self.take_nodes(&mut count, nodes) {
            self.count = Some(count);
            return true;
        }
        if count.is_damaged {
            return false;
        }
        self.is_doubtful = false;
        if self.is_unborn && self.seal_all().is_err() {
            // Without a commit of this life, the pages that the open has found are still needed.
            self.count = Some(count);
            return false;
        }
        count.pages.into_iter().for_each(|page| self.close_counted(page));
        false
    }

    /// Closes a page of an earlier life: its bytes that are not live count as dead.
    fn close_counted(&mut self, page: u32) {
        self.stream.pages.set_used(page, self.stream.volume.space.page_size());
        self.stream.pages.close(page);
    }

    /// Counts everything at once, so that there are free pages before the first commit. Pages with `needed` births,
    /// which an open still needs, do not become free.
    pub(super) fn count_all_but(&mut self, needed: &RangeInclusive<u64>) {
        let Some(mut count) = self.count.take() else { return };
        while self.take_nodes(&mut count, usize::MAX) {}
        if !count.is_damaged {
            let is_needed = |page: &u32| needed.contains(&self.stream.pages.birth(*page));
            let (kept, done): (Vec<u32>, Vec<u32>) = count.pages.into_iter().partition(is_needed);
            done.into_iter().for_each(|page| self.close_counted(page));
            count.pages = kept;
        }
        self.count = Some(count);
    }

    /// False if all is counted.
    fn take_nodes(&mut self, count: &mut Count, nodes: usize) -> bool {
        let volume = Arc::clone(&self.stream.volume);
        let guard = epoch::pin();
        for _ in 0..nodes {
            let Some(node) = count.nodes.pop() else { return false };
            if self.count_node(&volume, &guard, count, node).is_err() {
                // `verify` reports it.
                count.is_damaged = true;
            }
        }
        true
    }

    fn count_node(
        &mut self,
        volume: &Volume,
        guard: &Guard,
        count: &mut Count,
        (offset, level): (u64, Option<u32>),
    ) -> Result<()> {
        let wrong = |what: &str| Error::Corrupt { offset, what: what.to_owned() };
        let node: Sealed<'_> = Look { volume, guard, is_checked: true }.sealed(offset)?;
        if level.is_some_and(|level| level != node.level) {
            return Err(wrong("no node of this level is where one should be"));
        }
        self.stream.pages.add_live(volume.space.page_of(offset), node.record_len());
        if node.level > 0 {
            let below = (0..node.len()).map(|at| (node.offset_of(at), Some(node.level - 1)));
            count.nodes.extend(below.rev());
            return Ok(());
        }
        for at in 0..node.len() {
            let view = volume.view(guard, node.offset_of(at))?;
            // A record whose header decides what else is live is verified first.
            let says_more = view.header.large || view.value().len() == NAME;
            if says_more || view.header.kind != Kind::Put {
                volume.check(&view)?;
            }
            if view.header.version > node.version() {
                return Err(wrong("a record that is younger than its leaf"));
            }
            match view.header.kind {
                Kind::Put => {}
                Kind::Delete => {
                    self.graves.dig(node.key(at), view.header.version, view.sequence());
                }
                _ => return Err(wrong("no record of a key is where one should be")),
            }
            self.stream.pages.add_live(volume.space.page_of(view.offset), view.len());
            if view.header.large {
                let chain = volume.chain(guard, view.value(), false)?;
                let pages: Vec<u32> = chain.into_iter().map(|(page, _)| page).collect();
                self.stream.adopt_chain(&pages);
            }
        }
        Ok(())
    }
}
