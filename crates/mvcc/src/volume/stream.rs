//! The stream: records in the order of their pages' births, written by one writer and committed in groups.
//!
//! ```text
//!   births      7              8              9
//!   pages   [a b c D e f ■] [g H i J k l ■] [M n …            capitals: the last record of a group
//!                                              └ tail         ■ the end mark of a page
//! ```
//!
//! This is the thesis's list of used pages: its free pointer is the tail of a page writer, its pointer to the
//! next page the order of births. Nothing is allocated by a transaction, and nothing is flushed when it is
//! appended: a commit flushes what is new, the words of the pages it is in, and makes one fence. So records of
//! many writes share one, and what of a group a power cut has left is told by the last record of it.
//!
//! A record *follows* if all before it was durable when it was written. So bytes that are no sound record are
//! damage if a record behind them follows, and what a cut has left if none does.
//!
//! # What readers see
//!
//! Where a fence is an instruction, nothing is published before it is durable: who comes to such a record has
//! the stream committed first ([`Stream::commit`]), by whichever thread; it flushes all lines itself, since a
//! fence is about its own thread's flushes alone. Where a fence is a sync, records are published when they are
//! appended, and a *mark* says which sync covers the stream up to where ([`Stream::covering`]).

use crate::volume::Volume;
use crate::volume::pages::Pages;
use crate::volume::table::Life;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, Recovery, mutant};
use coreplane_record::{HEADER, Header, sealed, sync_failed};
use std::collections::VecDeque;
use std::sync::Arc;

// media-format: begin pool
/// What the end mark of a page says, below the low bits of its birth.
const END: u64 = 0x0065_6e64;
const END_BITS: u32 = 24;
// media-format: end

/// A place in the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) birth: u64,
    pub(crate) within: u32,
}

/// What a sync covers.
#[derive(Debug, Clone, Copy)]
struct Mark {
    generation: u64,
    end: Position,
}

/// The one writer of a pool.
pub(crate) struct Stream {
    pub(crate) volume: Arc<Volume>,
    pub(crate) pages: Pages,
    tail: Option<PageWriter>,
    next_birth: u64,
    /// Pages that are full and not published yet, where a fence is an instruction.
    filled: Vec<PageWriter>,
    /// What was stored and not flushed: offset and length.
    dirty: Vec<(u64, u64)>,
    /// Up to here it was appended, and up to here it is durable.
    end: Position,
    durable: Position,
    /// Where a fence is a sync: up to here the last generation covers it.
    covered: Position,
    /// Where a fence is a sync: what covers what is not durable yet, as far as anybody waits for it.
    marks: VecDeque<Mark>,
    /// The last generation that was drawn.
    generation: u64,
    /// Where a fence is a sync: up to where the syncs cover the stream that have not ended, and where those do
    /// that have.
    covers: VecDeque<Mark>,
    proven: Position,
    /// Pages of which nothing lives, and the generation that must have ended before they are free.
    waiting: VecDeque<(u64, u32)>,
    pub(crate) bytes_appended: u64,
    pub(crate) commits: u64,
}

/// The end mark of a page at `offset`.
pub(crate) fn end_mark(birth: u64, offset: u64) -> u64 {
    sealed::seal((END | birth << END_BITS) & sealed::CONTENT_MAX, offset)
}

impl Stream {
    /// A stream that goes on in pages of its own, with births from `next_birth` on.
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
            bytes_appended: 0,
            commits: 0,
        }
    }

    /// True where a fence is an instruction.
    pub(crate) fn fences_at_once(&self) -> bool {
        self.volume.space.fences_at_once()
    }

    /// Pages that records of these lengths take at most, beside the one that is open.
    pub(crate) fn pages_for(&self, lengths: impl Iterator<Item = usize>) -> u32 {
        let size = self.volume.space.page_size() as usize;
        let mut room = self.tail.as_ref().map_or(0, |tail| tail.remaining() as usize);
        let mut pages = 0;
        for len in lengths {
            if len > room {
                pages += 1;
                room = size;
            }
            room -= len.min(room);
        }
        pages
    }

    /// The birth of the page that a record of `len` bytes would be in.
    pub(crate) fn birth_for(&self, len: usize) -> u64 {
        match &self.tail {
            Some(tail) if tail.remaining() as usize >= len => self.end.birth,
            _ => self.next_birth,
        }
    }

    /// Appends a record; the offset where it is. Neither durable nor, where a fence is an instruction, visible
    /// before a commit. It says by itself whether it follows.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it is longer than a page, or no page is free; if the medium fails.
    pub(crate) fn append(&mut self, header: Header, key: &[u8], value: &[&[u8]]) -> Result<u64> {
        let len = header.record_len(key, value.iter().map(|part| part.len()).sum());
        self.make_room(len)?;
        // Asked when the page before has its end mark, which is not durable then.
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

    /// Sees to it that a record of `len` bytes fits the tail.
    fn make_room(&mut self, len: usize) -> Result<()> {
        if self.tail.as_ref().is_some_and(|tail| tail.remaining() as usize >= len) {
            return Ok(());
        }
        let no_space = Error::NoSpace { needed: len as u64, reclaimable: 0 };
        if len > self.volume.space.page_size() as usize {
            return Err(no_space);
        }
        self.volume.allow_birth(self.next_birth)?;
        let page = self.pages.take().ok_or(no_space)?;
        self.close_tail()?;
        let birth = self.next_birth;
        self.tail = Some(self.begin(page, Life { birth, is_chain: false })?);
        self.pages.begin(page, birth, true);
        self.next_birth += 1;
        self.end = Position { birth, within: 0 };
        Ok(())
    }

    /// A writer of a free page, which has this life from now on.
    fn begin(&mut self, page: u32, life: Life) -> Result<PageWriter> {
        let in_use = || Error::Unusable(format!("page {page} is in use, and should be free"));
        let writer = self.volume.space.claim_log(page).ok_or_else(in_use)?;
        let word = self.volume.table.set_life(page, Some(life)).ok_or_else(in_use)?;
        self.note_dirty(word, 8);
        Ok(writer)
    }

    /// Takes a page for a part of a large value: it and its birth. What is written to it, and the word of the
    /// page, is flushed by whoever writes it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn begin_apart(&mut self) -> Result<(PageWriter, u64)> {
        let page_size = u64::from(self.volume.space.page_size());
        self.volume.allow_birth(self.next_birth)?;
        let page = self.pages.take();
        let page = page.ok_or(Error::NoSpace { needed: page_size, reclaimable: 0 })?;
        let birth = self.next_birth;
        self.next_birth += 1;
        let writer = self.begin(page, Life { birth, is_chain: true })?;
        self.pages.begin(page, birth, false);
        Ok((writer, birth))
    }

    /// Ends the open page: what comes next begins another.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn close_tail(&mut self) -> Result<()> {
        let Some(mut tail) = self.tail.take() else { return Ok(()) };
        if tail.remaining() >= 8 {
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

    fn note_dirty(&mut self, offset: u64, len: u64) {
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
        if self.fences_at_once() {
            return self.end == self.durable;
        }
        self.end == self.covered && self.pending().is_none()
    }

    /// True if something was appended that is not durable yet.
    pub(crate) fn is_undurable(&self) -> bool {
        if self.fences_at_once() {
            return self.end != self.durable || !self.dirty.is_empty();
        }
        self.generation > 0 && !matches!(self.volume.space.sync_is_done(self.generation), Ok(true))
            || !self.dirty.is_empty()
    }

    /// Where a fence is an instruction: makes all that was appended durable, and then visible. One fence, none
    /// if there is nothing.
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    pub(crate) fn commit(&mut self) -> Result<()> {
        if !self.fences_at_once() || !self.is_undurable() {
            return Ok(());
        }
        if mutant!("mvcc.stream.publish_first") {
            self.publish();
        }
        self.flush_dirty();
        if !mutant!("mvcc.stream.fence") {
            self.volume.space.fence().map_err(sync_failed)?;
        }
        self.publish();
        self.commits += 1;
        self.durable = self.end;
        self.free_emptied();
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

    /// Where a fence is a sync: the generation that covers all that was appended. Who `waits` for it is noted,
    /// so that readers of what was appended wait for it, too.
    pub(crate) fn cover(&mut self, waits: bool) -> u64 {
        self.flush_dirty();
        self.generation = self.volume.space.sync_generation();
        self.covered = self.end;
        match self.covers.back_mut() {
            Some(mark) if mark.generation == self.generation => mark.end = self.end,
            _ => self.covers.push_back(Mark { generation: self.generation, end: self.end }),
        }
        self.forget_marks();
        if waits && !mutant!("mvcc.stream.mark") {
            match self.marks.back_mut() {
                Some(mark) if mark.generation == self.generation => mark.end = self.end,
                _ => self.marks.push_back(Mark { generation: self.generation, end: self.end }),
            }
        }
        self.free_emptied();
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

    /// Where the stream ends.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// Up to where all of it is known to be durable.
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

    /// Pages of which nothing lives are free as soon as what has superseded it is durable.
    pub(crate) fn free_emptied(&mut self) {
        for page in self.pages.take_emptied() {
            self.waiting.push_back((self.generation, page));
        }
        let is_all_durable = self.fences_at_once() && self.end == self.durable;
        while let Some((generation, page)) = self.waiting.front().copied() {
            let is_due = if self.fences_at_once() {
                is_all_durable
            } else {
                matches!(self.volume.space.sync_is_done(generation), Ok(true))
            };
            if !is_due && !mutant!("mvcc.stream.free_early") {
                return;
            }
            self.waiting.pop_front();
            self.free(page);
        }
    }

    /// Nobody needs the page any more, and whoever has superseded what was in it is durable.
    fn free(&mut self, page: u32) {
        if let Some(word) = self.volume.table.set_life(page, None) {
            self.note_dirty(word, 8);
        }
        self.pages.end(page);
        let is_retired = self.volume.space.retire(page);
        debug_assert!(is_retired, "page {page} has a writer");
    }

    /// Pages that are free, or will be as soon as what was superseded is durable and nobody reads it.
    pub(crate) fn coming(&self) -> u32 {
        (self.waiting.len() + self.volume.space.retired_len()) as u32
    }

    /// The generation that the first page which waits to be free waits for.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        self.waiting.front().map(|(generation, _)| *generation)
    }

    /// Where a record is in the stream.
    #[inline]
    pub(crate) fn position(&self, offset: u64) -> Position {
        let page = self.volume.space.page_of(offset);
        let within = (offset - self.volume.space.start_of(page)) as u32;
        Position { birth: self.pages.birth(page), within }
    }

    /// Where a fence is an instruction: true if the record is not durable, and so not visible.
    #[inline]
    pub(crate) fn is_hidden(&self, offset: u64) -> bool {
        self.fences_at_once() && self.end != self.durable && self.position(offset) >= self.durable
    }

    /// Where a fence is an instruction: true if the end of a full page is not visible.
    pub(crate) fn is_partly_hidden(&self, page: u32) -> bool {
        self.fences_at_once()
            && self.end != self.durable
            && self.pages.birth(page) >= self.durable.birth
    }

    /// Where a fence is a sync: the generation that has to end before the record is durable; none if it is, or
    /// if nobody is to wait for it.
    pub(crate) fn covering(&self, offset: u64) -> Option<u64> {
        let last = self.marks.back()?;
        let position = self.position(offset);
        if position < self.durable || position >= last.end {
            return None;
        }
        let mark = self.marks.iter().find(|mark| position < mark.end)?;
        let is_done = matches!(self.volume.space.sync_is_done(mark.generation), Ok(true));
        (!is_done).then_some(mark.generation)
    }

    /// The last generation that was drawn, if it has not ended.
    pub(crate) fn pending(&self) -> Option<u64> {
        let is_done = self.generation == 0
            || matches!(self.volume.space.sync_is_done(self.generation), Ok(true));
        (!is_done).then_some(self.generation)
    }

    /// A record is superseded: it lives no more.
    pub(crate) fn supersede(&mut self, offset: u64, len: u32) {
        self.pages.remove_live(self.volume.space.page_of(offset), len);
    }
}

/// What a page of the stream was found to hold.
#[derive(Debug)]
pub(crate) struct Found {
    /// Where its sound records begin, in order.
    pub(crate) records: Vec<u64>,
    /// Where what is no sound record begins, unless the page ends well.
    pub(crate) broken: Option<u64>,
    /// A sound record behind that follows.
    pub(crate) follows_behind: bool,
}

impl Volume {
    /// Looks at all of a page that a recovery has adopted.
    pub(crate) fn look_at_page(&self, recovery: &Recovery, page: u32, birth: u64) -> Found {
        let guard = recovery.pin();
        let mut found = Found { records: Vec::new(), broken: None, follows_behind: false };
        let (start, size) = (self.space.start_of(page), u64::from(self.space.page_size()));
        let mut at = start;
        while at + 8 <= start + size {
            let word = self.space.bytes(&guard, at, 8).and_then(|it| it.first_chunk().copied());
            if found.broken.is_none()
                && word.is_some_and(|word| u64::from_le_bytes(word) == end_mark(birth, at))
            {
                return found;
            }
            let view = (at + HEADER as u64 <= start + size)
                .then(|| coreplane_record::Reader { space: &self.space }.view(&guard, at))
                .flatten()
                .filter(|view| view.check(self.seed_at(birth, at)).is_ok());
            match view {
                Some(view) if found.broken.is_none() => {
                    found.records.push(at);
                    at += u64::from(view.len());
                }
                Some(view) => {
                    found.follows_behind |= view.header.follows;
                    at += u64::from(view.len());
                }
                None => {
                    found.broken = found.broken.or(Some(at));
                    at += 8;
                }
            }
        }
        found
    }
}
