//! Logs: records that are appended to pages, and found again.
//!
//! ```text
//!   page 3: │ start: after 2 │ record │ record │ … │ end │      page 4: │ start: after 3 │ record │ …
//!
//!   record: │ crc of these words │ kind, length │ durable │ crc of the bytes │ bytes, padded to words │
//! ```
//!
//! # Lost records and unacknowledged records
//!
//! A power cut leaves the last records in any state, and a flipped bit also makes a record unsound. Later records
//! tell the two apart: each record states up to where the log was durable when it was appended. An unsound place
//! below that is damage, and is reported. The first unsound place above it is where the log ends. Bytes behind that
//! place were never acknowledged and are not looked at: otherwise an old value could win over a newer one that was
//! written after the cut. So an opening ends the page there for good, and goes on in a new page, whose number no
//! page had.
//!
//! # Checkpoints
//!
//! The log of a state's changes is written anew when most of it is history: a page that starts a checkpoint, the
//! complete live state, an end of the checkpoint. If the end is there the log begins at the checkpoint, otherwise
//! the pages of the checkpoint do not count. Older pages are given back only behind that end: if they are gone and
//! the end is missing, the end is damaged.

use crate::error::{Error, Result};
use crate::pages::{Pages, Role, Use};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::{PageWriter, WriteMode, mutant};
use std::collections::VecDeque;

mod recovery;
#[cfg(test)]
mod tests;

pub(crate) use recovery::Recovered;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Start,
    StartOfCheckpoint,
    Data,
    EndOfCheckpoint,
    End,
    /// States up to where the log is durable, and nothing else.
    Mark,
}

// media-format: begin pool
const KINDS: [Kind; 6] = [
    Kind::Start,
    Kind::StartOfCheckpoint,
    Kind::Data,
    Kind::EndOfCheckpoint,
    Kind::End,
    Kind::Mark,
];
/// Bytes of the header of a record, and of the record that ends a page.
const HEADER: usize = 24;
const END: usize = HEADER;
/// Bits of a place within a page.
const PLACE_BITS: u32 = 24;

impl Kind {
    fn code(self) -> u64 {
        KINDS.iter().zip(1..).find(|(kind, _)| **kind == self).map_or(0, |(_, code)| code)
    }

    fn of_code(code: u64) -> Option<Self> {
        KINDS.get(usize::try_from(code).ok()?.checked_sub(1)?).copied()
    }
}

/// A place in a log: the number of the page, and bytes within it.
fn position(number: u64, within: u32) -> u64 {
    number << PLACE_BITS | u64::from(within)
}

/// The header of a record at this place.
fn header(
    seed: u32,
    (role, at): (Role, u64),
    kind: Kind,
    durable: u64,
    bytes: &[u8],
) -> [u8; HEADER] {
    let words = [kind.code() << 32 | bytes.len() as u64, durable].map(u64::to_le_bytes);
    let place = position_seed(seed, role, at);
    let crc_of_bytes = crc32c_append(place, bytes);
    let crc = words.iter().fold(place, |crc, word| crc32c_append(crc, word));
    let crc = crc32c_append(crc, &crc_of_bytes.to_le_bytes());
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&(u64::from(crc_of_bytes) << 32 | u64::from(crc)).to_le_bytes());
    header[8..16].copy_from_slice(&words[0]);
    header[16..].copy_from_slice(&words[1]);
    header
}

fn position_seed(seed: u32, role: Role, at: u64) -> u32 {
    crc32c_append(crc32c_append(seed, &role.code().to_le_bytes()), &at.to_le_bytes())
}
// media-format: end

/// A record that was found.
struct Found<'p> {
    kind: Kind,
    durable: u64,
    bytes: &'p [u8],
}

/// The record at this place of a page, if it is sound.
fn record_at<'p>(
    page: &'p [u8],
    seed: u32,
    role: Role,
    number: u64,
    within: u32,
) -> Option<Found<'p>> {
    let rest = page.get(within as usize..)?;
    let (head, rest) = rest.split_at_checked(HEADER)?;
    let word = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (crcs, what, durable) = (word(0)?, word(8)?, word(16)?);
    let kind = Kind::of_code(what >> 32)?;
    let place = position_seed(seed, role, position(number, within));
    let crc = crc32c_append(place, head.get(8..)?);
    let crc = crc32c_append(crc, &((crcs >> 32) as u32).to_le_bytes());
    if crc != crcs as u32 {
        return None;
    }
    let bytes = rest.get(..(what & 0xffff_ffff) as usize)?;
    let is_sound = crc32c_append(place, bytes) == (crcs >> 32) as u32;
    is_sound.then_some(Found { kind, durable, bytes })
}

/// A log of a pool.
#[derive(Debug)]
pub(crate) struct Log {
    role: Role,
    /// Numbers and pages, ascending; the last one is being written, if there is a writer.
    pages: VecDeque<(u64, u32)>,
    writer: Option<PageWriter>,
    /// Full pages, with records that are not durable yet.
    full: VecDeque<(u64, PageWriter)>,
    /// The number of the next page.
    next: u64,
    /// The place of a record that a thread has flushed without a fence since.
    loose: Option<u64>,
    /// All records before this place are durable.
    durable: u64,
    /// Bytes of records, page ends included, since the beginning of the log or of its checkpoint.
    pub(crate) bytes: u64,
    pub(crate) checkpoint_bytes: u64,
}

impl Log {
    /// An empty one.
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            pages: VecDeque::new(),
            writer: None,
            full: VecDeque::new(),
            next: 0,
            loose: None,
            durable: 0,
            bytes: 0,
            checkpoint_bytes: 0,
        }
    }

    /// Bytes that a record can have at most.
    pub(crate) fn record_max(pages: &Pages) -> usize {
        // The start of a page, a header, and the end.
        pages.page_len() as usize - (HEADER + 8) - HEADER - END
    }

    /// Pages that it has.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Its pages.
    pub(crate) fn page_list(&self) -> impl Iterator<Item = u32> {
        self.pages.iter().map(|(_, page)| *page)
    }

    /// Appends a record, and leaves at least `reserve` free pages. The record is durable after a fence of this
    /// thread; [`Log::note_durable`] is called after that.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Input`] if the record is longer than a page. After an error nothing was appended.
    pub(crate) fn append(&mut self, pages: &Pages, bytes: &[u8], reserve: usize) -> Result<()> {
        if bytes.len() > Self::record_max(pages) {
            return Err(Error::Input("a name is longer than a page of a log".to_owned()));
        }
        if !self.has_room(bytes.len()) {
            pages.set_aside(self.next)?;
            let writer = pages.take(1, reserve).and_then(|mut taken| taken.pop());
            let full = || Error::Full("no page is free".to_owned());
            self.turn_page(pages, Kind::Start, writer.ok_or_else(full)?)?;
        }
        self.put(pages, Kind::Data, bytes)
    }

    /// True if the page has room for a record of so many bytes, and for its end.
    fn has_room(&self, len: usize) -> bool {
        let need = HEADER + len.next_multiple_of(8) + END;
        self.writer.as_ref().is_some_and(|writer| writer.remaining() as usize >= need)
    }

    fn put(&mut self, pages: &Pages, kind: Kind, bytes: &[u8]) -> Result<()> {
        if let Some(loose) = self.loose.take()
            && !mutant!("tsdb.log.cut")
        {
            // Another thread may have written the record: its flush is not covered by a fence of this thread.
            pages.space().flush(loose, HEADER as u64);
        }
        let full = || Error::Full("a record is larger than a page of a log".to_owned());
        let number = self.pages.back().map_or(0, |(number, _)| *number);
        let writer = self.writer.as_mut().ok_or_else(full)?;
        let at = position(number, writer.tail());
        let header = header(pages.seed(), (self.role, at), kind, self.durable, bytes);
        let (from, parts) = (writer.next_offset(), [&header[..], bytes]);
        match pages.space().fill_mode() {
            WriteMode::NonTemporal => writer.append_nt(&parts).ok_or_else(full)?,
            WriteMode::Cached => {
                let offset = writer.append(&parts).ok_or_else(full)?;
                if !mutant!("tsdb.log.flush") {
                    writer.flush_from(from);
                }
                offset
            }
        };
        self.bytes += writer.next_offset() - from;
        Ok(())
    }

    /// Ends the page, and begins this one, whose number is set aside.
    fn turn_page(&mut self, pages: &Pages, kind: Kind, writer: PageWriter) -> Result<()> {
        let number = self.next;
        pages.put_to_use(&writer, Use { role: self.role, number });
        if self.writer.is_some() {
            self.put(pages, Kind::End, &[])?;
        }
        self.set_aside();
        let before = self.pages.back().map_or(u64::MAX, |(number, _)| *number);
        self.next += 1;
        self.pages.push_back((number, writer.page()));
        self.writer = Some(writer);
        self.put(pages, kind, &before.to_le_bytes())
    }

    /// Ends the page, so that the next record is in another page; returns the number of that page.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn cut(&mut self, pages: &Pages) -> Result<u64> {
        if let Some(writer) = &self.writer {
            let place = writer.next_offset();
            self.put(pages, Kind::End, &[])?;
            self.loose = Some(place);
        }
        self.set_aside();
        Ok(self.next)
    }

    /// Ends the page, if possible. Durable when it returns.
    pub(crate) fn end(&mut self, pages: &Pages) {
        // If it fails, the log is left as by a killed process.
        let _is_ended =
            self.writer.is_none() || self.cut(pages).and_then(|_| self.fence(pages)).is_ok();
    }

    /// True if it has many pages for its few records: each opening begins a page.
    pub(crate) fn is_sparse(&self, pages: &Pages) -> bool {
        self.pages.len() as u64 > 4 + 2 * self.bytes / u64::from(pages.page_len())
    }

    /// Puts the current page, which is full or ended, aside.
    fn set_aside(&mut self) {
        if let (Some(writer), Some((number, _))) = (self.writer.take(), self.pages.back()) {
            self.full.push_back((*number, writer));
        }
    }

    /// The place of the next record, or a place before it.
    pub(crate) fn tail(&self) -> u64 {
        match (&self.writer, self.pages.back()) {
            (Some(writer), Some((number, _))) => position(*number, writer.tail()),
            _ => position(self.next, 0),
        }
    }

    /// Notes that all records before this place are durable.
    pub(crate) fn note_durable(&mut self, place: u64) {
        if place > self.durable {
            self.durable = place;
        }
        while let Some((_, writer)) = self.full.pop_front_if(|it| position(it.0 + 1, 0) <= place) {
            // No other page is written by this writer.
            drop(writer.finish());
        }
    }

    /// Appends a record and makes it durable.
    ///
    /// # Errors
    /// [`Error::Full`], after which nothing was appended; [`Error::Sync`].
    pub(crate) fn commit(&mut self, pages: &Pages, bytes: &[u8], reserve: usize) -> Result<()> {
        self.append(pages, bytes, reserve)?;
        self.fence(pages)?;
        self.mark(pages);
        Ok(())
    }

    /// Appends a mark: all that was appended is durable. So damage to the last record can be told from a record
    /// that was never finished. It is for a log whose records change a state. The mark need not be durable, and is
    /// left out if the page has no room for it.
    pub(crate) fn mark(&mut self, pages: &Pages) {
        let need = HEADER + END;
        let writer = self.writer.as_ref().filter(|it| it.remaining() as usize >= need);
        let Some(place) = writer.map(PageWriter::next_offset) else { return };
        if !mutant!("tsdb.log.mark") && self.put(pages, Kind::Mark, &[]).is_ok() {
            self.loose = Some(place);
        }
    }

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// [`Error::Sync`].
    pub(crate) fn fence(&mut self, pages: &Pages) -> Result<()> {
        if !mutant!("tsdb.log.fence") {
            pages.space().fence()?;
        }
        self.note_durable(self.tail());
        Ok(())
    }

    /// Gives back the pages before the one with this number.
    pub(crate) fn trim(&mut self, pages: &Pages, number: u64) {
        let mut left = Vec::new();
        while self.full.pop_front_if(|(it, _)| *it < number).is_some() {}
        while let Some((_, page)) = self.pages.pop_front_if(|(it, _)| *it < number) {
            left.push(page);
        }
        pages.give_back(&left);
    }

    /// Writes the log anew, with these records alone, and leaves at least `reserve` free pages. Durable when it returns.
    /// False if there is no room for that: the log is as it was, with all its pages.
    ///
    /// # Errors
    /// [`Error::Sync`].
    pub(crate) fn checkpoint<I: Iterator<Item = Vec<u8>>>(
        &mut self,
        pages: &Pages,
        records: impl Fn() -> I,
        reserve: usize,
    ) -> Result<bool> {
        let first = self.next;
        // No page is begun before all are there: what is written must get its end.
        let Some(count) = pages_of(pages, records()) else { return Ok(false) };
        pages.set_aside(first + count as u64)?;
        let Some(taken) = pages.take(count, reserve) else { return Ok(false) };
        let written = self.write_anew(pages, records(), taken);
        if written.is_ok() {
            self.checkpoint_bytes = self.bytes;
            self.trim(pages, first);
        } else if mutant!("tsdb.log.abandon") {
            // The end may be written, and may need all pages of the checkpoint.
            let its = self.pages.iter().filter(|(number, _)| *number >= first);
            pages.give_back(&its.map(|(_, page)| *page).collect::<Vec<_>>());
        }
        written.map(|()| true)
    }

    fn write_anew(
        &mut self,
        pages: &Pages,
        records: impl Iterator<Item = Vec<u8>>,
        taken: Vec<PageWriter>,
    ) -> Result<()> {
        let mut taken = taken.into_iter();
        let mut next = || taken.next().ok_or_else(|| Error::Full("too few pages".to_owned()));
        self.bytes = 0;
        self.turn_page(pages, Kind::StartOfCheckpoint, next()?)?;
        for record in records {
            if !self.has_room(record.len()) {
                self.turn_page(pages, Kind::Start, next()?)?;
            }
            self.put(pages, Kind::Data, &record)?;
        }
        if !self.has_room(0) {
            self.turn_page(pages, Kind::Start, next()?)?;
        }
        debug_assert!(next().is_err(), "all pages are needed");
        // The end of the checkpoint must state that all records before it are durable.
        self.fence(pages)?;
        self.put(pages, Kind::EndOfCheckpoint, &[])?;
        self.fence(pages)
    }
}

/// The number of pages of a checkpoint of these records; none if fewer are free.
fn pages_of(pages: &Pages, records: impl Iterator<Item = Vec<u8>>) -> Option<usize> {
    let (most, page) = (pages.free_count(), pages.page_len() as usize - (HEADER + 8));
    let (mut count, mut left) = (1, page);
    for len in records.map(|record| record.len()).chain([0]) {
        let len = HEADER + len.next_multiple_of(8);
        if left < len + END {
            (count, left) = (count + 1, page);
        }
        if count > most {
            return mutant!("tsdb.log.few_pages").then_some(count);
        }
        left = left.saturating_sub(len);
    }
    Some(count)
}
