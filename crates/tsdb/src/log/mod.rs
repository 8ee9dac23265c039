//! Logs: records that are appended to pages, and found again.
//!
//! ```text
//!   page 3: │ start: after 2 │ record │ record │ … │ end │      page 4: │ start: after 3 │ record │ …
//!
//!   record: │ crc of these words │ kind, length │ durable │ crc of the bytes │ bytes, padded to words │
//! ```
//!
//! # What is lost, and what was never there
//!
//! A power cut leaves the last records in any state, and so does a flipped bit. They are told apart by what comes later: each
//! record says up to where the log was durable when it was appended. So a place that is unsound below that is damage, and is
//! reported; the first one above it is where the log ends. What lies behind was never acknowledged, and is not looked at: if
//! it were, an old value could win over a newer one that was written after the cut. An opening therefore ends the page there
//! for good, and goes on in a new one, whose number no page had.
//!
//! # Checkpoints
//!
//! A log of a state's changes is written anew when most of it is history: a page that starts a checkpoint, all that lives,
//! an end of the checkpoint. If that end is there the log begins there, otherwise those pages were never written. What was
//! before is given back behind that end alone: where it is gone, and the end is not there, that end is damaged.

use crate::error::{Error, Result};
use crate::pages::{Pages, Role, Use};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::{PageWriter, WriteMode, mutant};
use std::collections::VecDeque;

mod recovery;
#[cfg(test)]
mod tests;

pub(crate) use recovery::Recovered;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Start,
    StartOfCheckpoint,
    Data,
    EndOfCheckpoint,
    End,
    /// Says up to where the log is durable, and nothing else.
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
/// Bytes of what comes before the bytes of a record, and of a record that ends a page.
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

/// A place in a log: the number of the page, and bytes within.
fn position(number: u64, within: u32) -> u64 {
    number << PLACE_BITS | u64::from(within)
}

/// What comes before the bytes of a record at this place.
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
    /// Those that are full, with records that are not durable yet.
    full: VecDeque<(u64, PageWriter)>,
    /// The number of the next page.
    next: u64,
    /// Where a record is that its thread has flushed, and made no fence since.
    loose: Option<u64>,
    /// Up to where all is durable.
    durable: u64,
    /// Bytes of records, those of a page's ends included, since the log or its checkpoint began.
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

    /// Appends a record; it is durable after a fence of this thread, and [`Log::note_durable`] behind that. With `reserve` free
    /// pages left at least.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Input`] of one that is longer than a page; after which nothing was appended.
    pub(crate) fn append(&mut self, pages: &Pages, bytes: &[u8], reserve: usize) -> Result<()> {
        if bytes.len() > Self::record_max(pages) {
            return Err(Error::Input("a name is longer than a page of a log".to_owned()));
        }
        let need = HEADER + bytes.len().next_multiple_of(8) + END;
        if self.writer.as_ref().is_none_or(|writer| (writer.remaining() as usize) < need) {
            self.turn_page(pages, Kind::Start, reserve)?;
        }
        self.put(pages, Kind::Data, bytes)
    }

    fn put(&mut self, pages: &Pages, kind: Kind, bytes: &[u8]) -> Result<()> {
        if let Some(loose) = self.loose.take()
            && !mutant!("tsdb.log.cut")
        {
            // Another thread may have made it, whose flush is not this one's.
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

    /// Ends the page, and begins another.
    fn turn_page(&mut self, pages: &Pages, kind: Kind, reserve: usize) -> Result<()> {
        let number = self.next;
        pages.set_aside(number)?;
        let use_of = Use { role: self.role, number };
        let Some(writer) = pages.begin(use_of, reserve) else {
            return Err(Error::Full("no page is free".to_owned()));
        };
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

    /// Ends the page, so that what comes next is in another: the number of that.
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

    /// Ends the page, as far as that can be. Durable when it returns.
    pub(crate) fn end(&mut self, pages: &Pages) {
        // If it cannot be it is as if the process had been killed.
        let _is_ended =
            self.writer.is_none() || self.cut(pages).and_then(|_| self.fence(pages)).is_ok();
    }

    /// True if it has many pages for what is in them: each opening begins one.
    pub(crate) fn is_sparse(&self, pages: &Pages) -> bool {
        self.pages.len() as u64 > 4 + 2 * self.bytes / u64::from(pages.page_len())
    }

    /// The page is full, or ended.
    fn set_aside(&mut self) {
        if let (Some(writer), Some((number, _))) = (self.writer.take(), self.pages.back()) {
            self.full.push_back((*number, writer));
        }
    }

    /// Where the next record will be, or behind.
    pub(crate) fn tail(&self) -> u64 {
        match (&self.writer, self.pages.back()) {
            (Some(writer), Some((number, _))) => position(*number, writer.tail()),
            _ => position(self.next, 0),
        }
    }

    /// What was appended before this place is durable.
    pub(crate) fn note_durable(&mut self, place: u64) {
        if place > self.durable {
            self.durable = place;
        }
        while let Some((_, writer)) = self.full.pop_front_if(|it| position(it.0 + 1, 0) <= place) {
            // Nobody writes another page with it.
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

    /// Says that all that was appended is durable, so that the last record can be told from one that was never finished: of a
    /// log in which each record is a state. It need not be durable itself, and is not if the page has no room for it.
    pub(crate) fn mark(&mut self, pages: &Pages) {
        let need = HEADER + END;
        let writer = self.writer.as_ref().filter(|it| it.remaining() as usize >= need);
        let Some(place) = writer.map(PageWriter::next_offset) else { return };
        if !mutant!("tsdb.log.mark") && self.put(pages, Kind::Mark, &[]).is_ok() {
            self.loose = Some(place);
        }
    }

    /// Makes durable what was appended.
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

    /// Gives back the pages before this one.
    pub(crate) fn trim(&mut self, pages: &Pages, number: u64) {
        let mut left = Vec::new();
        while self.full.pop_front_if(|(it, _)| *it < number).is_some() {}
        while let Some((_, page)) = self.pages.pop_front_if(|(it, _)| *it < number) {
            left.push(page);
        }
        pages.give_back(&left);
    }

    /// Writes the log anew, with these records alone. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Full`], after which the log is as it was; [`Error::Sync`].
    pub(crate) fn checkpoint(
        &mut self,
        pages: &Pages,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        let (first, bytes) = (self.next, self.bytes);
        self.bytes = 0;
        let write = || {
            self.turn_page(pages, Kind::StartOfCheckpoint, 0)?;
            for record in records {
                self.append(pages, &record, 0)?;
            }
            let need = HEADER + END;
            if self.writer.as_ref().is_none_or(|it| (it.remaining() as usize) < need) {
                self.turn_page(pages, Kind::Start, 0)?;
            }
            // So that the end says that all before it is durable.
            self.fence(pages)?;
            self.put(pages, Kind::EndOfCheckpoint, &[])?;
            self.fence(pages)
        };
        match write() {
            Ok(()) => {
                self.checkpoint_bytes = self.bytes;
                self.trim(pages, first);
                Ok(())
            }
            // Not begun: the page before goes on.
            Err(error) if self.next == first => {
                self.bytes = bytes;
                Err(error)
            }
            Err(error) => {
                // Nothing behind the checkpoint's start counts without its end.
                self.full.clear();
                self.writer = None;
                self.bytes = bytes;
                let at = self.pages.partition_point(|(number, _)| *number < first);
                let left: Vec<u32> = self.pages.drain(at..).map(|(_, page)| page).collect();
                pages.give_back(&left);
                pages.space().fence()?;
                Err(error)
            }
        }
    }
}
