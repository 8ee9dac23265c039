//! Sealing: the fresh nodes are written, from the bottom to the top, and then the record that names the root.
//!
//! ```text
//!   DRAM      root' ── inner' ── leaf'
//!   stream    [… put put │ leaf' inner' root' C]        C is the one record of the group that ends it
//! ```
//!
//! All of it becomes durable with one fence, so C may be on the medium while a node is not. A recovery has to
//! know which records C rests on without reading what is older. So C names the place up to which the stream was
//! durable when C was written, and how many pages were begun since: C counts if all from there to C is whole.
//! Records that the cleaner has moved to pages [apart](crate::volume::cold) are not looked for there: a commit that
//! shares its time with such moves has a fence before it, and two in all.
//!
//! # When what was replaced is dead
//!
//! What a commit replaces lives until
//!
//! - no pin from before that commit is left that was set after it was written,
//! - two commits were written that say of its place that it was durable: nobody will look from there on for what is
//!   whole, and miss the page; and if the newest is damaged, the one before has all that it leads to.
//!
//! Its page is free when the later of them is durable itself, for which the stream waits.

use super::Tree;
use super::fresh::{Link, Spare};
use crate::control::Control;
use crate::volume::stream::{Position, Stream};
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::Arc;

/// What a commit record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Commit {
    /// Offset of the root; 0 if there are no records.
    pub(super) root: u64,
    pub(super) records: u64,
    /// No tombstone above this was dropped.
    pub(super) horizon: u64,
    /// Before this all was durable when it was written.
    pub(super) proven: Position,
    /// Pages of the stream that were begun behind that, without the commit's own.
    pub(super) pages: u32,
    /// At least as long as the longest key, and as many as the levels.
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

    /// What it says of the log that the tree is.
    pub(super) fn said<'g>(view: &View<'g>) -> Option<&'g [u8]> {
        view.value().get(Self::LEN..)
    }

    /// Bytes of the record, with so many of a log.
    pub(super) fn record_len(said: usize) -> usize {
        Header::put(0).record_len(&[], Self::LEN + said)
    }
}

/// A record that the tree does not lead to any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) offset: u64,
    pub(super) len: u32,
    /// The pages of its value go with it.
    pub(super) is_large: bool,
}

/// The same, when the commit that replaces it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    pub(super) gone: Gone,
    pub(super) at: Position,
    /// The end of that commit.
    until: Position,
    /// The record of a commit, of which there is always another.
    is_commit: bool,
}

/// A version that is pinned: the tree as it was sealed last then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    pub(super) count: u32,
    pub(super) root: Option<u64>,
    pub(super) end: Position,
}

/// What was sealed last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last {
    pub(super) root: Option<u64>,
    /// The commit record: its offset and length.
    pub(super) commit: Option<(u64, u32)>,
    pub(super) end: Position,
    /// What that record, and the one before, say was durable before.
    proven: Position,
    proven_before: Position,
}

impl Tree {
    /// Writes what is fresh, and the record that names the root; nothing if nothing has changed, or a change has failed
    /// in between. Neither durable nor, where a fence is an instruction, visible before a commit of the stream.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace) if pages were not seen to, and if the medium fails.
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

    /// True if something waits for a commit that says that all up to here was durable.
    pub(super) fn is_late_before(&self, place: Position) -> bool {
        self.late.iter().any(|it| !it.is_commit && it.at < place)
    }

    /// Supersedes what came since the last commit but one and lies before what that one says, if there is anything: no further
    /// commit is needed for it, and none would help before more is durable.
    pub(super) fn release_said(&mut self) -> bool {
        let is_any = self.is_late_before(self.last.proven_before);
        if is_any {
            self.release(&epoch::pin());
        }
        is_any
    }

    /// Supersedes what nobody needs.
    fn release(&mut self, guard: &Guard) {
        for it in std::mem::take(&mut self.late) {
            if it.at >= self.last.proven_before && !mutant!("mvcc.tree.unproven") {
                self.late.push(it);
            } else {
                self.supersede(guard, it);
            }
        }
        self.part.drain(..).for_each(|page| self.stream.pages.close(page));
        let pages = &mut self.stream.pages;
        self.aside.retain(|page| {
            let lives = pages.live_of(*page) > 0;
            if !lives {
                pages.close(*page);
            }
            lives
        });
    }

    fn supersede(&mut self, guard: &Guard, it: Late) {
        let written = self.written(it.gone.offset);
        let sees = |pin: &Pin| it.at < pin.end && pin.end < it.until && written < pin.end;
        if self.pins.values().any(sees) && !mutant!("mvcc.tree.pin") {
            self.kept.push(it);
            return;
        }
        let Gone { offset, len, is_large } = it.gone;
        if is_large {
            let volume = Arc::clone(&self.stream.volume);
            // The pages of a value that is damaged are found by the next opening.
            if let Ok(view) = volume.view(guard, offset)
                && let Ok(chain) = volume.chain(guard, view.value(), false)
            {
                let pages: Vec<u32> = chain.into_iter().map(|(page, _)| page).collect();
                self.stream.end_chain(&pages);
            }
        }
        self.stream.supersede(offset, len);
    }

    /// Where in the stream a record was written, or, in a page of copies, where the stream was then at the earliest: none
    /// that is pinned before that leads there. The birth of a page of copies says nothing of that: pages ahead of the
    /// stream were born before it, and are written behind it.
    pub(super) fn written(&self, offset: u64) -> Position {
        let page = self.stream.volume.space.page_of(offset);
        match self.stream.pages.is_apart(page) {
            true => Position { birth: self.stream.pages.since(page), within: 0 },
            false => self.stream.position(offset),
        }
    }

    /// A pin has gone.
    pub(super) fn release_kept(&mut self, guard: &Guard) {
        for it in std::mem::take(&mut self.kept) {
            self.supersede(guard, it);
        }
        // What was not moved for the pin may be moved now.
        self.aside.drain(..).for_each(|page| self.stream.pages.close(page));
    }
}

/// Up to where all is durable. Never the beginning of a page, of which it is not known that it is one.
fn proven(stream: &mut Stream) -> Position {
    match stream.proven() {
        Position { birth, within: 0 } => {
            Position { birth: birth.saturating_sub(1), within: u32::MAX }
        }
        proven => proven,
    }
}

/// So many nodes are kept to be used again.
const SPARE: usize = 256;

/// Who writes what is fresh.
struct Sealing<'s> {
    stream: &'s mut Stream,
    version: u64,
    /// Where the values of nodes are put together.
    value: &'s mut Vec<u8>,
    /// Nodes that were written.
    spare: &'s mut Spare,
}

impl Sealing<'_> {
    /// Writes a fresh node behind those below it; the link leads to where it is.
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
