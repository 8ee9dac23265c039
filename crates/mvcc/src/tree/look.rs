//! Reading a tree, whether its nodes are sealed or fresh.

use super::fresh::{LinkRef, Node};
use super::node::Sealed;
use crate::map::{Gap, Slice, Way};
use crate::volume::Volume;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{LINE, PageBytes};
use coreplane_record::Kind;
use std::ops::ControlFlow;

/// A node.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodeRef<'a> {
    Sealed(Sealed<'a>),
    Fresh(&'a Node),
}

impl<'a> NodeRef<'a> {
    #[inline(always)]
    pub(super) fn level(&self) -> u32 {
        match self {
            Self::Sealed(node) => node.level,
            Self::Fresh(node) => node.level,
        }
    }

    /// True of a record that was written after `other`, in the place of an earlier record.
    #[inline(always)]
    fn is_younger_than(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Sealed(this), Self::Sealed(other))
            if this.version() > other.version())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Sealed(node) => node.len(),
            Self::Fresh(node) => node.entries.len(),
        }
    }

    #[inline(always)]
    pub(super) fn key(&self, at: usize) -> &'a [u8] {
        match self {
            Self::Sealed(node) => node.key(at),
            Self::Fresh(node) => node.entries.get(at).map_or(&[], |entry| &entry.key),
        }
    }

    #[inline(always)]
    pub(super) fn link(&self, at: usize) -> LinkRef<'a> {
        match self {
            Self::Sealed(node) => LinkRef::Sealed(node.offset_of(at)),
            Self::Fresh(node) => {
                node.entries.get(at).map_or(LinkRef::Sealed(0), |entry| entry.to.as_ref())
            }
        }
    }

    /// The number of entries whose keys are not above `key`.
    #[inline(always)]
    fn not_above(&self, key: &[u8]) -> usize {
        match self {
            Self::Sealed(node) => node.not_above(key),
            Self::Fresh(node) => node.not_above(key),
        }
    }

    /// The entry under which a key belongs.
    #[inline(always)]
    fn child_for(&self, key: &[u8]) -> usize {
        self.not_above(key).saturating_sub(1)
    }

    /// The record that a leaf's entry leads to.
    pub(super) fn record(&self, at: usize) -> u64 {
        match self.link(at) {
            LinkRef::Sealed(offset) => offset,
            LinkRef::Fresh(_) => 0,
        }
    }
}

/// Called by a walk with a key and its record, or with the first of the keys below a damaged node.
type Visit<'v> = &'v mut dyn FnMut(&[u8], Record<'_>) -> Result<bool>;

/// The offset of a record.
pub(super) type Record<'a> = std::result::Result<u64, Gap<'a>>;

/// Called with each node, or with the error for one that cannot be read.
type VisitNode<'v, 'a> = &'v mut dyn FnMut(Result<NodeRef<'a>>) -> Result<()>;

/// A reader of a tree.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) volume: &'a Volume,
    pub(super) guard: &'a Guard,
    /// The checksums of nodes are verified.
    pub(super) is_checked: bool,
}

/// Lines of a node that are prefetched together: a node with short keys has as many.
const LINES: u32 = 4;

impl<'a> Look<'a> {
    /// The node that is sealed at `offset`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none.
    #[inline(always)]
    pub(super) fn sealed(&self, offset: u64) -> Result<Sealed<'a>> {
        if self.is_checked {
            self.volume.check(&self.volume.view(self.guard, offset)?)?;
        }
        self.unchecked(offset).ok_or_else(|| no_node(offset))
    }

    /// The same without verification, if there is a node.
    #[inline(always)]
    pub(super) fn unchecked(&self, offset: u64) -> Option<Sealed<'a>> {
        let page = match self.volume.space.page_at(self.guard, offset) {
            Some(page) => page,
            None => self.late(offset)?,
        };
        let within = (offset - page.start()) as u32;
        (1..LINES).for_each(|line| page.prefetch(within + line * LINE as u32));
        Sealed::at(&page, offset)
    }

    #[cold]
    fn late(&self, offset: u64) -> Option<PageBytes<'a>> {
        let Self { volume, guard, .. } = self;
        volume.adopt_late(guard, offset).then(|| volume.space.page_at(guard, offset))?
    }

    #[inline(always)]
    pub(super) fn node(&self, link: LinkRef<'a>) -> Result<NodeRef<'a>> {
        Ok(match link {
            LinkRef::Sealed(offset) => NodeRef::Sealed(self.sealed(offset)?),
            LinkRef::Fresh(node) => NodeRef::Fresh(node),
        })
    }

    /// Shows the nodes from the root to the leaf that a key is in, or would be, until `visit` returns false.
    pub(super) fn path(
        &self,
        root: LinkRef<'a>,
        key: &[u8],
        mut visit: impl FnMut(LinkRef<'a>, &NodeRef<'a>) -> bool,
    ) -> Result<()> {
        let (mut link, mut node) = (root, self.node(root)?);
        while visit(link, &node) && node.level() > 0 {
            (link, node) = self.below(&node, node.child_for(key))?;
        }
        Ok(())
    }

    /// The target of an entry, which has to be of the next level: so a search terminates.
    #[inline(always)]
    fn below(&self, node: &NodeRef<'a>, at: usize) -> Result<(LinkRef<'a>, NodeRef<'a>)> {
        let link = node.link(at);
        let below = self.node(link)?;
        match link {
            LinkRef::Sealed(offset)
                if below.level() + 1 != node.level() || below.is_younger_than(node) =>
            {
                Err(wrong_node(offset))
            }
            _ => Ok((link, below)),
        }
    }

    /// The record of a key.
    pub(super) fn find(&self, root: Option<LinkRef<'a>>, key: &[u8]) -> Result<Option<u64>> {
        let Some(root) = root else { return Ok(None) };
        let mut node = self.node(root)?;
        loop {
            let at = node.child_for(key);
            if node.level() == 0 {
                return Ok((node.key(at) == key).then(|| node.record(at)));
            }
            node = self.below(&node, at)?.1;
        }
    }

    /// True if the path to `key` has, at this level, the node that is sealed at `offset`.
    pub(super) fn meets(
        &self,
        root: Option<LinkRef<'a>>,
        key: &[u8],
        (level, offset): (u32, u64),
    ) -> Result<bool> {
        let (Some(root), mut is_met) = (root, false) else { return Ok(false) };
        self.path(root, key, |link, node| {
            is_met |= node.level() == level && matches!(link, LinkRef::Sealed(it) if it == offset);
            node.level() > level
        })?;
        Ok(is_met)
    }

    /// Shows records in order, until `visit` returns false; then returns false. What is below a damaged node is shown
    /// as a gap.
    ///
    /// # Errors
    /// If the root is damaged, and the error of `visit`.
    pub(super) fn walk(&self, root: LinkRef<'a>, way: Way<'_>, visit: Visit<'_>) -> Result<bool> {
        self.walk_node(&self.node(root)?, (way, None), visit)
    }

    /// The same for a node whose keys are below `end`.
    fn walk_node(
        &self,
        node: &NodeRef<'a>,
        (way, end): (Way<'_>, Option<&[u8]>),
        visit: Visit<'_>,
    ) -> Result<bool> {
        let is_leaf = node.level() == 0;
        if node.level() == 1 {
            self.prefetch_below(node);
        }
        let mut step = |at: usize, way: Way<'_>| {
            let key = node.key(at);
            if is_leaf {
                return visit(key, Ok(node.record(at)));
            }
            let end = if at + 1 < node.len() { Some(node.key(at + 1)) } else { end };
            match (self.below(node, at), way) {
                (Ok((_, below)), _) => self.walk_node(&below, (way, end), visit),
                // No key below it is within the bound.
                (Err(_), Way::Down(Some(bound))) if bound <= key => Ok(true),
                (Err(error), Way::Up(from)) if is_damage(&error) => {
                    visit(key.max(from), Err(Gap { error, end }))
                }
                (Err(error), _) if is_damage(&error) => visit(key, Err(Gap { error, end })),
                (Err(error), _) => Err(error),
            }
        };
        match way {
            Way::Up(key) => {
                let mut from = node.child_for(key);
                if is_leaf && node.key(from) < key {
                    from += 1;
                }
                for at in from..node.len() {
                    let way = if at == from { way } else { Way::Up(&[]) };
                    if !step(at, way)? {
                        return Ok(false);
                    }
                }
            }
            Way::Down(below) => {
                // The entry under which the bound itself belongs may have lesser keys, except in a leaf.
                let mut to = below.map_or(node.len(), |key| node.not_above(key));
                if is_leaf && to > 0 && below == Some(node.key(to - 1)) {
                    to -= 1;
                }
                for at in (0..to).rev() {
                    let way = if at + 1 == to { way } else { Way::Down(None) };
                    if !step(at, way)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Prefetches the nodes below a node, all at once.
    fn prefetch_below(&self, node: &NodeRef<'_>) {
        for at in 0..node.len() {
            if let LinkRef::Sealed(offset) = node.link(at) {
                let lines = (0..u64::from(LINES)).map(|line| offset + line * LINE as u64);
                lines.for_each(|offset| self.volume.space.prefetch(offset));
            }
        }
    }

    /// Shows all nodes, each before those below it; for one that cannot be read the error.
    ///
    /// # Errors
    /// The error of `visit`.
    pub(super) fn nodes(&self, root: LinkRef<'a>, visit: VisitNode<'_, 'a>) -> Result<()> {
        self.nodes_from(self.node(root), visit)
    }

    fn nodes_from(&self, node: Result<NodeRef<'a>>, visit: VisitNode<'_, 'a>) -> Result<()> {
        let node = match node {
            Ok(node) => node,
            Err(error) => return visit(Err(error)),
        };
        visit(Ok(node))?;
        for at in 0..if node.level() > 0 { node.len() } else { 0 } {
            self.nodes_from(self.below(&node, at).map(|(_, below)| below), visit)?;
        }
        Ok(())
    }

    /// Verifies all records below a node whose keys are above `from`; breaks off where the slice ends.
    pub(super) fn verify(
        &self,
        link: LinkRef<'a>,
        from: Option<&[u8]>,
        slice: &mut Slice<'_>,
    ) -> ControlFlow<()> {
        let checked = self.node(link).and_then(|node| {
            if let NodeRef::Sealed(node) = &node {
                self.volume.check(&self.volume.view(self.guard, node.offset)?)?;
                // A node on the path to the place where it continues was counted before.
                slice.bytes += from.map_or(u64::from(node.record_len()), |_| 0);
            }
            Ok(node)
        });
        let node = match checked {
            Ok(node) => node,
            Err(error) => {
                (slice.damaged)(error, None);
                return ControlFlow::Continue(());
            }
        };
        if node.level() == 0 {
            return self.verify_leaf(&node, from, slice);
        }
        let first = from.map_or(0, |from| node.child_for(from));
        for at in first..node.len() {
            match self.below(&node, at) {
                Ok((below, _)) => self.verify(below, from.filter(|_| at == first), slice)?,
                Err(error) => (slice.damaged)(error, None),
            }
        }
        ControlFlow::Continue(())
    }

    fn verify_leaf(
        &self,
        node: &NodeRef<'a>,
        from: Option<&[u8]>,
        slice: &mut Slice<'_>,
    ) -> ControlFlow<()> {
        let mut last = None;
        for at in 0..node.len() {
            let key = node.key(at);
            if from.is_some_and(|from| key <= from) {
                continue;
            }
            if let Err(error) = self.verify_record(key, node.record(at), slice) {
                (slice.damaged)(error, Some(key));
            }
            slice.left = slice.left.saturating_sub(1);
            last = Some(key);
        }
        if slice.left > 0 || last.is_none() {
            return ControlFlow::Continue(());
        }
        slice.after = last.map(<[u8]>::to_vec);
        ControlFlow::Break(())
    }

    fn verify_record(&self, key: &[u8], offset: u64, slice: &mut Slice<'_>) -> Result<()> {
        let view = self.volume.view(self.guard, offset)?;
        self.volume.check(&view)?;
        if view.key() != key {
            let what = "a record of another key is where one should be".to_owned();
            return Err(Error::Corrupt { offset, what });
        }
        if view.header.large {
            self.volume.chain(self.guard, view.value(), true)?;
        }
        slice.records += u64::from(view.header.kind == Kind::Put);
        slice.bytes += u64::from(view.len());
        Ok(())
    }
}

/// True of the errors of a node that is not as it was written.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
}

#[cold]
fn no_node(offset: u64) -> Error {
    Error::Corrupt { offset, what: "no node is where one should be".to_owned() }
}

#[cold]
fn wrong_node(offset: u64) -> Error {
    let what = "a node of another level or age is where one should be".to_owned();
    Error::Corrupt { offset, what }
}
