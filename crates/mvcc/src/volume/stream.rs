//! The stream: records in the order of their pages' births, written by one writer and committed in groups.
//!
//! ```text
//!   births      7              8              9
//!   pages   [a b c D e f ■] [g H i J k l ■] [M n …            capitals: the last record of a group
//!                                              └ tail         ■ the end mark of a page
//! ```
//!
//! This is the thesis's list of used pages: its free pointer is the tail of a page writer, and its pointers to the
//! next page are the order of births. No transaction allocates memory, and no append flushes: a commit flushes the
//! new records and the words of their pages, and makes one fence. So records of many writes share a fence, and the
//! last record of a group tells whether a power cut has left the group whole.
//!
//! A record *follows* if all records before it were durable when it was written. So bytes that are no sound record
//! are damage if a record behind them follows, and a torn end if none does.
//!
//! The limits of that test: a closed pool ends well, so all damage in it is detected. After a kill or a cut, damage
//! is detected before the last record that follows. Damage in that record or behind it looks like a torn end, and all
//! behind it is dropped with it: that is the last group; with early completion, the groups that shared its commit;
//! where a fence is a sync, the records since the last one appended while no sync was owed. The first record of a
//! page does not follow, since the end mark before it is not durable yet: if it is the last of the pool, the group
//! before it is not vouched for either. Nor do records follow that the cleaner moved since the last commit. To close
//! this gap, a page would have to begin with the end of the one before it, or a put to have a second fence.
//!
//! # What readers see
//!
//! Where a fence is an instruction, no record is published before it is durable: any thread that reaches such a
//! record commits the stream first ([`Stream::commit`]). The commit flushes all lines itself, since a fence orders
//! the flushes of its own thread alone. Where a fence is a sync, records are published when they are appended, and a
//! *mark* states up to which position a sync covers the stream ([`Stream::covering`]).

use crate::volume::ahead::Ahead;
use crate::volume::cold::Cold;
use crate::volume::pages::Pages;
use crate::volume::release::Stage;
use crate::volume::table::Life;
use crate::volume::{Volume, fold};
use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, mutant};
use coreplane_record::{Header, View, sealed, sync_failed};
use std::collections::VecDeque;
use std::sync::Arc;

// media-format: begin pool
/// The upper bits of the end mark of a page; its folded birth is below them.
const END: u64 = 0x656e;
// media-format: end

/// A place in the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) birth: u64,
    pub(crate) within: u32,
}

impl Position {
    /// Behind all others.
    pub(crate) const MAX: Self = Self { birth: u64::MAX, within: u32::MAX };
}

/// The position up to which a sync covers the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) generation: u64,
    pub(super) end: Position,
}

/// The one writer of a pool.
pub(crate) struct Stream {
    pub(crate) volume: Arc<Volume>,
    pub(crate) pages: Pages,
    pub(super) tail: Option<PageWriter>,
    pub(super) next_birth: u64,
    /// Pages that are full and not published yet, where a fence is an instruction.
    filled: Vec<PageWriter>,
    /// Bytes that were stored and not flushed: offset and length.
    dirty: Vec<(u64, u64)>,
    /// The end of the appended records, and the end of the durable ones.
    pub(super) end: Position,
    pub(super) durable: Position,
    /// Where a fence is a sync: the position up to which the last generation covers the stream.
    covered: Position,
    /// Where a fence is a sync: syncs that cover records not yet durable, as far as a writer waits for them.
    pub(super) marks: VecDeque<Mark>,
    /// The last generation that was drawn.
    pub(super) generation: u64,
    /// Where a fence is a sync: the positions up to which unfinished syncs cover the stream, and up to which finished
    /// ones do.
    covers: VecDeque<Mark>,
    proven: Position,
    /// Where a fence is a sync: pages without live records, and the generation that has to end before their next
    /// stage.
    pub(super) waiting: VecDeque<(u64, u32, Stage)>,
    /// Pages whose word was set to 0 by a store that is not flushed yet.
    pub(super) ended: Vec<u32>,
    /// Pages that have a life and no records yet.
    pub(super) ahead: VecDeque<Ahead>,
    pub(super) cold: Cold,
    /// No page is begun before its life is durable: a power cut leaves a prefix of the stream.
    pub(crate) is_ordered: bool,
    /// Where a fence is a sync: records that were moved since the last cover may not have been durable.
    carries: bool,
    /// All pages were ended, so that no more records are appended.
    pub(crate) is_closed: bool,
    /// A group was cut short: no record may end it.
    pub(crate) is_broken: bool,
    /// The records that a recovery found not to count are durably gone.
    pub(crate) is_settled: bool,
    pub(crate) bytes_appended: u64,
    pub(crate) commits: u64,
}

/// The end mark of a page at `offset`.
pub(crate) fn end_mark(birth: u64, offset: u64) -> u64 {
    sealed::seal(END << 32 | u64::from(fold(birth)), offset)
}

impl Stream {
    /// A stream that continues in new pages, with births from `next_birth` on.
    pub(crate) fn new(volume: &Arc<Volume>, pages: Pages, next_birth: u64) -> Self {
        let before = Position { birth: next_birth, within: 0 };
        Self {
            volume: Arc::clone(volume),
            pages,
            tail: None,
            next_birth,
            filled: Vec::new(),
            dirty: Vec::new(),
            end: before,
            durable: before,
            covered: before,
            marks: VecDeque::new(),
            generation: 0,
            covers: VecDeque::new(),
            proven: before,
            waiting: VecDeque::new(),
            ended: Vec::new(),
            ahead: VecDeque::new(),
            cold: Cold::default(),
            is_ordered: false,
            carries: false,
            is_closed: false,
            is_broken: false,
            is_settled: true,
            bytes_appended: 0,
            commits: 0,
        }
    }

    /// True where a fence is an instruction.
    pub(crate) fn fences_at_once(&self) -> bool {
        self.volume.space.fences_at_once()
    }

    /// The most free pages that records of these lengths take, beside the open page and those ahead.
    pub(crate) fn pages_for(&self, lengths: impl Iterator<Item = usize>) -> u32 {
        let size = self.volume.space.page_size() as usize;
        let mut room = self.tail.as_ref().map_or(0, |tail| tail.remaining() as usize);
        let mut pages: u32 = 0;
        for len in lengths {
            if len > room {
                pages += 1;
                room = size;
            }
            room -= len.min(room);
        }
        pages.saturating_sub(self.pages_ahead())
    }

    /// The place of a record of `len` bytes if it is appended next.
    pub(crate) fn place_for(&self, len: usize) -> Position {
        match &self.tail {
            Some(tail) if tail.remaining() as usize >= len => self.end,
            _ => Position { birth: self.birth_ahead(), within: 0 },
        }
    }

    /// The birth of the page in which it would be.
    pub(crate) fn birth_for(&self, len: usize) -> u64 {
        self.place_for(len).birth
    }

    /// Appends a record; returns its offset. Before a commit the record is neither durable nor, where a fence is an
    /// instruction, visible. Whether it follows is determined here.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it is longer than a page, or no page is free; if the medium fails.
    pub(crate) fn append(&mut self, header: Header, key: &[u8], value: &[&[u8]]) -> Result<u64> {
        if self.is_closed {
            return Err(Error::Closed);
        }
        let len = header.record_len(key, value.iter().map(|part| part.len()).sum());
        self.make_room(len)?;
        // After `make_room`, which may have written an end mark that is not durable yet.
        let follows = self.is_proven() || mutant!("mvcc.stream.follows");
        let no_space = Error::NoSpace { needed: len as u64, reclaimable: 0 };
        let birth = self.end.birth;
        let Some(tail) = &mut self.tail else { return Err(no_space) };
        let offset = tail.next_offset();
        let header = Header { follows, ..header };
        let encoded = header.encode(self.volume.seed_at(birth, offset), key, value);
        let mut parts: [&[u8]; 4] = [encoded.bytes(), key, &[], &[]];
        let (_, values) = parts.split_at_mut(2);
        values[..value.len()].copy_from_slice(value);
        tail.append(&parts).ok_or(no_space)?;
        let (page, within) = (tail.page(), tail.tail());
        if !self.volume.space.fences_at_once() {
            tail.publish_early();
        }
        self.end = Position { birth, within };
        self.note_dirty(offset, len as u64);
        self.pages.add_live(page, len as u32);
        self.bytes_appended += len as u64;
        Ok(offset)
    }

    /// Ensures that a record of `len` bytes fits the tail.
    fn make_room(&mut self, len: usize) -> Result<()> {
        if self.tail.as_ref().is_some_and(|tail| tail.remaining() as usize >= len) {
            return Ok(());
        }
        let no_space = Error::NoSpace { needed: len as u64, reclaimable: 0 };
        if len > self.volume.space.page_size() as usize {
            return Err(no_space);
        }
        self.see_to_next().map_err(|error| match error {
            Error::NoSpace { .. } => no_space,
            error => error,
        })?;
        self.close_tail()?;
        self.open_ahead();
        Ok(())
    }

    /// A writer for a free page, which has this life from now on.
    pub(super) fn begin(&mut self, page: u32, life: Life) -> Result<PageWriter> {
        let in_use = || Error::Unusable(format!("page {page} is in use, and should be free"));
        let writer = self.volume.space.claim_log(page).ok_or_else(in_use)?;
        let word = self.volume.table.set_life(page, Some(life)).ok_or_else(in_use)?;
        self.note_dirty(word, 8);
        Ok(writer)
    }

    /// Takes a page for a part of a large value; returns its writer and its birth. The caller flushes the part and
    /// the word of the page.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn begin_apart(&mut self) -> Result<(PageWriter, u64)> {
        let (writer, birth) = self.begin_cold()?;
        // Its one record fills it.
        self.pages.fill(writer.page());
        Ok((writer, birth))
    }

    /// Takes a page apart, which the caller writes and flushes; returns its writer and birth.
    ///
    /// # Errors
    /// As [`Stream::begin_apart`].
    pub(super) fn begin_cold(&mut self) -> Result<(PageWriter, u64)> {
        let page_size = u64::from(self.volume.space.page_size());
        self.volume.allow_birth(self.next_birth)?;
        let no_space = Error::NoSpace { needed: page_size, reclaimable: 0 };
        let (page, birth) = (self.pages.take().ok_or(no_space)?, self.next_birth);
        self.next_birth += 1;
        let writer = self.begin(page, Life { birth, is_apart: true })?;
        let is_late = mutant!("mvcc.cold.since");
        self.pages.begin_apart(page, birth, if is_late { birth } else { self.end.birth });
        Ok((writer, birth))
    }

    /// Ends the open page: the next record begins another.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn close_tail(&mut self) -> Result<()> {
        let Some(mut tail) = self.tail.take() else { return Ok(()) };
        if tail.remaining() >= 8 && !mutant!("mvcc.stream.end_mark") {
            let offset = tail.next_offset();
            tail.append(&[&end_mark(self.end.birth, offset).to_le_bytes()]);
            self.note_dirty(offset, 8);
        }
        let page = tail.page();
        if self.fences_at_once() {
            self.filled.push(tail);
        } else {
            let _pen = tail.finish_early();
        }
        self.pages.close(page);
        Ok(())
    }

    pub(super) fn note_dirty(&mut self, offset: u64, len: u64) {
        match self.dirty.last_mut() {
            Some((from, held)) if *from + *held == offset => *held += len,
            _ => self.dirty.push((offset, len)),
        }
    }

    fn flush_dirty(&mut self) {
        for (offset, len) in self.dirty.drain(..) {
            if !mutant!("mvcc.stream.flush") {
                self.volume.space.flush(offset, len);
            }
        }
    }

    /// True if all records are durable, and the end marks of all pages but the open one.
    fn is_proven(&self) -> bool {
        if !self.is_settled && !mutant!("mvcc.recover.follows") {
            return false;
        }
        if self.fences_at_once() {
            return self.end == self.durable;
        }
        self.end == self.covered && self.pending().is_none()
    }

    /// True if all records are durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.end == self.durable
    }

    /// Where a fence is a sync: something was stored that the last generation does not cover.
    pub(super) fn is_uncovered_itself(&self) -> bool {
        self.end != self.covered || !self.dirty.is_empty()
    }

    /// Where a fence is a sync: a record was moved, maybe before it was durable. If so the next cover sets a mark, so
    /// that readers which would wait for the old copy wait for the new one.
    pub(crate) fn note_moved(&mut self) {
        self.forget_marks();
        self.carries |= !self.marks.is_empty() && !mutant!("mvcc.stream.carry");
    }

    /// True if something was stored that is not durable yet.
    pub(crate) fn is_undurable(&self) -> bool {
        if self.fences_at_once() {
            return self.end != self.durable || !self.dirty.is_empty();
        }
        self.generation > 0 && !matches!(self.volume.space.sync_is_done(self.generation), Ok(true))
            || !self.dirty.is_empty()
    }

    /// Where a fence is an instruction: makes all appended records durable, and then visible. Takes one fence, or
    /// none if nothing is new.
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    pub(crate) fn commit(&mut self) -> Result<()> {
        if !self.fences_at_once() {
            return Ok(());
        }
        if !self.is_undurable() {
            self.advance();
            return Ok(());
        }
        self.stock_up();
        self.flush_dirty();
        let ended = std::mem::take(&mut self.ended);
        if !mutant!("mvcc.stream.fence") {
            self.volume.space.fence().map_err(sync_failed)?;
        }
        self.publish();
        self.commits += 1;
        self.durable = self.end;
        self.note_covered(0);
        self.retire_ended(ended);
        self.advance();
        Ok(())
    }

    fn publish(&mut self) {
        for writer in self.filled.drain(..) {
            let _pen = writer.finish();
        }
        if let Some(tail) = &mut self.tail {
            tail.publish();
        }
    }

    /// Where a fence is a sync: draws the generation that covers all appended records. If the caller `waits` for it,
    /// that is marked, so that readers of these records wait for it, too.
    pub(crate) fn cover(&mut self, waits: bool) -> u64 {
        self.stock_up();
        self.flush_dirty();
        self.generation = self.volume.space.sync_generation();
        self.covered = self.end;
        self.note_covered(self.generation);
        match self.covers.back_mut() {
            Some(mark) if mark.generation == self.generation => mark.end = self.end,
            _ => self.covers.push_back(Mark { generation: self.generation, end: self.end }),
        }
        // Both lists are cut here: a list asks for neither.
        self.proven();
        self.forget_marks();
        self.wait_for_generation();
        let waits = std::mem::take(&mut self.carries) || waits;
        if waits && !mutant!("mvcc.stream.mark") {
            match self.marks.back_mut() {
                Some(mark) if mark.generation == self.generation => mark.end = self.end,
                _ => self.marks.push_back(Mark { generation: self.generation, end: self.end }),
            }
        }
        self.advance();
        self.generation
    }

    fn forget_marks(&mut self) {
        while let Some(mark) = self.marks.front()
            && matches!(self.volume.space.sync_is_done(mark.generation), Ok(true))
        {
            self.durable = mark.end;
            self.marks.pop_front();
        }
    }

    /// The number of generations that are known, and not known to have ended.
    #[cfg(test)]
    pub(crate) fn covers_count(&self) -> usize {
        self.covers.len()
    }

    /// The end of the stream.
    pub(crate) fn end_position(&self) -> Position {
        self.end
    }

    /// The position up to which the whole stream is known to be durable.
    pub(crate) fn proven(&mut self) -> Position {
        if self.fences_at_once() {
            return self.durable;
        }
        while let Some(mark) = self.covers.front()
            && matches!(self.volume.space.sync_is_done(mark.generation), Ok(true))
        {
            self.proven = mark.end;
            self.covers.pop_front();
        }
        self.proven
    }

    /// True if a record matches its checksum, given the birth of its page in DRAM.
    #[inline]
    pub(crate) fn is_sound(&self, view: &View<'_>) -> bool {
        let birth = self.pages.birth(self.volume.space.page_of(view.offset));
        view.check(self.volume.seed_at(birth, view.offset)).is_ok()
            || mutant!("mvcc.stream.unsound")
    }

    /// The position of a record in the stream; of a record apart, one before the whole stream.
    #[inline]
    pub(crate) fn position(&self, offset: u64) -> Position {
        let page = self.volume.space.page_of(offset);
        if self.pages.is_apart(page) {
            return Position::default();
        }
        let within = (offset - self.volume.space.start_of(page)) as u32;
        Position { birth: self.pages.birth(page), within }
    }

    /// The last generation that was drawn, if it has not ended.
    pub(crate) fn pending(&self) -> Option<u64> {
        let is_done = self.generation == 0
            || matches!(self.volume.space.sync_is_done(self.generation), Ok(true));
        (!is_done).then_some(self.generation)
    }

    /// A record is superseded: its bytes are no longer live.
    pub(crate) fn supersede(&mut self, offset: u64, len: u32) {
        self.pages.remove_live(self.volume.space.page_of(offset), len);
    }
}
