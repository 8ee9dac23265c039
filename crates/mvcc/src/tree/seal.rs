//! Sealing: the fresh nodes are written from the bottom to the top, and then the record that names the root.
//!
//! ```text
//!   DRAM      root' ── inner' ── leaf'
//!   stream    [… put put │ leaf' inner' root' C]        C is the one record of the group that ends it
//! ```
//!
//! All of it becomes durable with one fence, so C may be on the medium while a node is not. A recovery has to know
//! which records C rests on without reading older ones. So C states the place up to which the stream was durable when
//! C was written, and how many pages were begun since: C counts if everything from there to C is whole. That does not
//! include records that the cleaner has moved to pages [apart](crate::volume::cold): a commit that comes with such
//! moves has a fence before it, and two in all.
//!
//! # When replaced records are dead
//!
//! A record that a commit replaces lives until
//!
//! - no pin is left that was set before that commit and after the record was written,
//! - two commits were written which state that its place was durable: no recovery then checks the stream from that
//!   place on, where it would miss the page; and if the newest is damaged, everything that the one before leads to is
//!   there.
//!
//! Its page is free when the later of the two is durable itself, for which the stream waits.

use super::Tree;
use super::fresh::{Link, Spare};
use super::look::{Look, NodeRef, is_damage};
use crate::control::Control;
use crate::volume::stream::{Position, Stream};
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::Arc;

/// Kept records that are examined at a time when a pin has gone: other threads get the map in between.
const RELEASED: usize = 128;

/// The contents of a commit record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Commit {
    /// Offset of the root; 0 if there are no records.
    pub(super) root: u64,
    pub(super) records: u64,
    /// No tombstone above this was dropped.
    pub(super) horizon: u64,
    /// Everything before this place was durable when it was written.
    pub(super) proven: Position,
    /// Pages of the stream that were begun behind that place, without the commit's own.
    pub(super) pages: u32,
    /// At least the length of the longest key, and at least the number of levels.
    pub(super) longest_key: u32,
    pub(super) height: u32,
}

impl Commit {
    // media-format: begin pool
    /// Bytes of the value.
    const LEN: usize = 48;

    fn encode(&self) -> [u8; Self::LEN] {
        let Self { root, records, horizon, proven, pages, longest_key, height } = self;
        let places = u64::from(proven.within) | u64::from(*pages) << 32;
        let sizes = u64::from(*longest_key) | u64::from(*height) << 32;
        let mut bytes = [0; Self::LEN];
        let words = [*root, *records, *horizon, proven.birth, places, sizes];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    // media-format: end

    /// None if the record is no commit.
    pub(super) fn of(view: &View<'_>) -> Option<Self> {
        let (places, sizes) = (view.value_word(4)?, view.value_word(5)?);
        let is_commit = view.header.kind == Kind::Commit && !view.header.batched;
        let said = Self::said(view)?;
        (is_commit && (said.is_empty() || Control::of_said(said).is_some())).then_some(())?;
        Some(Self {
            root: view.value_word(0)?,
            records: view.value_word(1)?,
            horizon: view.value_word(2)?,
            proven: Position { birth: view.value_word(3)?, within: places as u32 },
            pages: (places >> 32) as u32,
            longest_key: sizes as u32,
            height: (sizes >> 32) as u32,
        })
    }

    /// The state of the log in the record, if the tree is one.
    pub(super) fn said<'g>(view: &View<'g>) -> Option<&'g [u8]> {
        view.value().get(Self::LEN..)
    }

    /// Bytes of the record, with so many bytes for a log.
    pub(super) fn record_len(said: usize) -> usize {
        Header::put(0).record_len(&[], Self::LEN + said)
    }
}

/// A record that the tree no longer leads to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) offset: u64,
    pub(super) len: u32,
    /// The pages of its value are freed with it.
    pub(super) is_large: bool,
}

/// The same, once the commit that replaces it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    pub(super) gone: Gone,
    pub(super) at: Position,
    /// The end of that commit.
    until: Position,
    /// It is the record of a commit, of which there is always another.
    is_commit: bool,
}

/// A pinned version: the tree as it was sealed last before the pin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    pub(super) count: u32,
    pub(super) root: Option<u64>,
    pub(super) end: Position,
}

/// The state that was sealed last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last {
    pub(super) root: Option<u64>,
    /// The commit record: its offset and length.
    pub(super) commit: Option<(u64, u32)>,
    pub(super) end: Position,
    /// The places up to which that record, and the one before, state that everything was durable.
    proven: Position,
    proven_before: Position,
}

impl Tree {
    /// Writes the fresh nodes, and the record that names the root; nothing if nothing has changed, or if a change has
    /// failed in between. Before a commit of the stream the records are neither durable nor, where a fence is an
    /// instruction, visible.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace) if there are not enough pages, and if the medium fails.
    pub(super) fn seal_all(&mut self) -> Result<()> {
        if self.stream.is_closed || self.stream.is_broken {
            return Ok(());
        }
        let is_fresh = matches!(self.root, Some(Link::Fresh(_)));
        let is_same = self.gone.is_empty() || mutant!("mvcc.pending.rolled_back");
        if !is_fresh && is_same && !self.is_due {
            return Ok(());
        }
        self.stream.fence_cold()?;
        let proven = proven(&mut self.stream);
        if let Some(link) = &mut self.root {
            let (stream, value, spare) = (&mut self.stream, &mut self.value, &mut self.spare);
            Sealing { stream, version: self.version, value, spare }.seal(link)?;
        }
        let root = match self.root {
            Some(Link::Sealed(offset)) => Some(offset),
            _ => None,
        };
        let said = self.said();
        let len = Commit::record_len(said.len());
        let pages = self.stream.pages.count_between(proven.birth, self.stream.birth_for(len));
        let (records, horizon) = (self.records, self.horizon);
        let root_offset = root.unwrap_or(0);
        let (longest_key, height) = (self.longest_key as u32, self.height);
        let commit =
            Commit { root: root_offset, records, horizon, proven, pages, longest_key, height };
        let header = Header { kind: Kind::Commit, ..Header::put(self.version) };
        let offset = self.stream.append(header, &[], &[&commit.encode(), &said])?;
        let replaced = self.last.commit.map(|(offset, len)| Gone { offset, len, is_large: false });
        let (end, commit) = (self.stream.end_position(), Some((offset, len as u32)));
        let (before, earlier) = (self.last.proven, self.last.proven_before);
        self.last = Last { root, commit, end, proven, proven_before: before };
        (self.is_due, self.is_unborn, self.fresh_max) = (false, false, 0);
        let gone = std::mem::take(&mut self.gone).into_iter().map(|gone| (gone, false));
        for (gone, is_commit) in gone.chain(replaced.map(|gone| (gone, true))) {
            let at = self.stream.position(gone.offset);
            self.late.push(Late { gone, at, until: end, is_commit });
        }
        if before != earlier || mutant!("mvcc.tree.unproven") {
            self.release(&epoch::pin());
        }
        Ok(())
    }

    /// True if a replaced record waits for a commit which states that everything up to this place was durable.
    pub(super) fn is_late_before(&self, place: Position) -> bool {
        self.late.iter().any(|it| !it.is_commit && it.at < place)
    }

    /// Supersedes replaced records that lie before the place which the last commit but one states, and that were
    /// noted since; false if there are none. They need no further commit, and none would help the others before more
    /// is durable.
    pub(super) fn release_said(&mut self) -> bool {
        let is_any = self.is_late_before(self.last.proven_before);
        if is_any {
            self.release(&epoch::pin());
        }
        is_any
    }

    /// Supersedes the replaced records that are no longer needed.
    fn release(&mut self, guard: &Guard) {
        for it in std::mem::take(&mut self.late) {
            if it.at >= self.last.proven_before && !mutant!("mvcc.tree.unproven") {
                self.late.push(it);
            } else {
                self.supersede(guard, it);
            }
        }
        self.part.drain(..).for_each(|page| self.stream.pages.close(page));
    }

    fn supersede(&mut self, guard: &Guard, it: Late) {
        let written = self.written(it.gone.offset);
        let sees = |pin: &Pin| it.at < pin.end && pin.end < it.until && written < pin.end;
        if self.pins.values().any(sees) && !mutant!("mvcc.tree.pin") {
            self.kept.push_back(it);
            return;
        }
        let Gone { offset, len, is_large } = it.gone;
        if is_large {
            let volume = Arc::clone(&self.stream.volume);
            // The pages of a damaged value are found by the next open.
            if let Ok(view) = volume.view(guard, offset)
                && let Ok(chain) = volume.chain(guard, view.value(), false)
            {
                let pages: Vec<u32> = chain.into_iter().map(|(page, _)| page).collect();
                self.stream.end_chain(&pages);
            }
        }
        self.stream.supersede(offset, len);
    }

    /// The place where a record was written in the stream. For a page of copies it is the earliest place at which the
    /// stream was then: no version pinned before leads there. The birth of such a page does not tell: pages ahead of
    /// the stream were born before it, and are written after it.
    pub(super) fn written(&self, offset: u64) -> Position {
        let page = self.stream.volume.space.page_of(offset);
        match self.stream.pages.is_apart(page) {
            true => Position { birth: self.stream.pages.since(page), within: 0 },
            false => self.stream.position(offset),
        }
    }

    /// All records that the root leads to, nodes too. Of a damaged node it is not known what it leads to: the pages
    /// of these records stay until the next open, and so does the page of a damaged record.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn all_records(&self, guard: &Guard) -> Result<Vec<Gone>> {
        let (volume, mut all) = (&*self.stream.volume, Vec::new());
        let Some(root) = self.root() else { return Ok(all) };
        let look = Look { volume, guard, is_checked: true };
        look.nodes(root, &mut |node| {
            let node = match node {
                Err(error) if is_damage(&error) && !mutant!("mvcc.tree.clear_damaged") => {
                    return Ok(());
                }
                node => node?,
            };
            if let NodeRef::Sealed(node) = &node {
                all.push(Gone { offset: node.offset, len: node.record_len(), is_large: false });
            }
            for at in 0..if node.level() == 0 { node.len() } else { 0 } {
                let Ok(view) = volume.view(guard, node.record(at)) else { continue };
                let (offset, len, is_large) = (view.offset, view.len(), view.header.large);
                all.push(Gone { offset, len, is_large });
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Of the records that pins have kept, examines some that are due since a pin has gone, and supersedes those that
    /// no pin sees; false if none are left.
    pub(super) fn release_kept(&mut self, guard: &Guard) -> bool {
        if self.kept_due == 0 {
            return false;
        }
        for _ in 0..RELEASED.min(self.kept_due) {
            self.kept_due -= 1;
            // One that another pin sees is kept again, behind those that are due.
            if let Some(it) = self.kept.pop_front() {
                self.supersede(guard, it);
            }
        }
        if self.kept_due == 0 {
            // Pages that the cleaner has set aside meanwhile, for records that were due.
            self.stream.pages.release();
        }
        self.kept_due > 0
    }
}

/// The place up to which everything is durable. Never the beginning of a page, which may not exist.
fn proven(stream: &mut Stream) -> Position {
    match stream.proven() {
        Position { birth, within: 0 } => {
            Position { birth: birth.saturating_sub(1), within: u32::MAX }
        }
        proven => proven,
    }
}

/// The most nodes that are kept for reuse.
const SPARE: usize = 256;

/// The writer of the fresh nodes.
struct Sealing<'s> {
    stream: &'s mut Stream,
    version: u64,
    /// A buffer for the values of nodes.
    value: &'s mut Vec<u8>,
    /// Nodes that were written, for reuse.
    spare: &'s mut Spare,
}

impl Sealing<'_> {
    /// Writes a fresh node behind those below it; the link then leads to its record.
    fn seal(&mut self, link: &mut Link) -> Result<()> {
        let Link::Fresh(node) = link else { return Ok(()) };
        for entry in &mut node.entries {
            self.seal(&mut entry.to)?;
        }
        let header = Header { kind: Kind::Node, batched: true, ..Header::put(self.version) };
        node.encode(self.value);
        let offset = self.stream.append(header, node.least(), &[&*self.value])?;
        if let Link::Fresh(mut node) = std::mem::replace(link, Link::Sealed(offset))
            && self.spare.len() < SPARE
        {
            node.entries.clear();
            self.spare.push(node);
        }
        Ok(())
    }
}
