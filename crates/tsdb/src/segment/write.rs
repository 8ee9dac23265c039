//! Writes a segment.

use super::entry::Entry;
use super::window::{chunk_len, windows};
use super::{Info, PAGES_MAX, chunk_seed, seed_of, use_of};
use crate::catalogue::{FieldId, SeriesId};
use crate::codec;
use crate::error::{Error, Result};
use crate::pages::{FOR_DROPS, Pages};
use crate::rows::ShardId;
use crate::value::Block;
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::{PageWriter, WriteMode, mutant};

/// The maximum number of points of a chunk.
pub(crate) const POINTS_MAX: usize = 2048;

/// Writes one segment, chunk after chunk.
#[derive(Debug)]
pub(crate) struct SegmentWriter<'p> {
    pages: &'p Pages,
    number: u32,
    shard: ShardId,
    seed: u32,
    written: Vec<PageWriter>,
    entries: Vec<Entry>,
    points: u64,
    bytes: u64,
    scratch: Vec<u8>,
}

/// A written segment that the manifest does not name yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) info: Info,
    written: Vec<PageWriter>,
}

impl Fresh {
    /// Ends the writing of its pages, whose bytes are durable; returns them in their order.
    pub(crate) fn finish(self) -> Vec<u32> {
        let pages = self.written.iter().map(PageWriter::page).collect();
        self.written.into_iter().for_each(|writer| drop(writer.finish()));
        pages
    }

    /// Gives its pages back.
    pub(crate) fn abandon(self, pages: &Pages) {
        give_back(self.written, pages);
    }
}

fn give_back(written: Vec<PageWriter>, pages: &Pages) {
    let all: Vec<u32> = written.iter().map(PageWriter::page).collect();
    drop(written);
    pages.give_back(&all);
}

impl<'p> SegmentWriter<'p> {
    pub(crate) fn new(pages: &'p Pages, number: u32, shard: ShardId) -> Self {
        Self {
            pages,
            number,
            shard,
            seed: seed_of(pages, number),
            written: Vec::new(),
            entries: Vec::new(),
            points: 0,
            bytes: 0,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Chunks that will be written, about: their entries are in memory until the end.
    pub(crate) fn expect(&mut self, entries: usize) {
        self.entries.reserve_exact(entries);
    }

    /// Appends bytes in one piece; returns the page of the segment, and bytes within it.
    fn put(&mut self, bytes: &[u8]) -> Result<(u32, u32)> {
        let has_room = |it: &PageWriter| it.remaining() as usize >= bytes.len().next_multiple_of(8);
        if !self.written.last().is_some_and(has_room) {
            let ordinal = self.written.len() as u32;
            let full = || Error::Full("no page is free for sealed points".to_owned());
            let use_of = (ordinal < PAGES_MAX).then(|| use_of(self.number, ordinal));
            let writer = use_of.and_then(|it| self.pages.begin(it, FOR_DROPS));
            self.written.push(writer.ok_or_else(full)?);
        }
        let page = self.written.len() as u32 - 1;
        let too_long = || Error::Full("a chunk is larger than a page".to_owned());
        let writer = self.written.last_mut().ok_or_else(too_long)?;
        let within = writer.tail();
        match self.pages.space().fill_mode() {
            WriteMode::NonTemporal => writer.append_nt(&[bytes]).ok_or_else(too_long)?,
            WriteMode::Cached => {
                let offset = writer.append(&[bytes]).ok_or_else(too_long)?;
                if !mutant!("tsdb.chunk.flush") {
                    writer.flush_from(offset);
                }
                offset
            }
        };
        Ok((page, within))
    }

    /// Appends points as chunks. Series, fields and times ascend from call to call.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn push(&mut self, series: SeriesId, field: FieldId, block: &Block) -> Result<()> {
        let (Some(first), Some(last)) = (block.times.first(), block.times.last()) else {
            return Ok(());
        };
        let windows = windows(block.len(), *first, *last);
        let mut from = 0;
        while let Some(rest) = block.times.get(from..).filter(|rest| !rest.is_empty()) {
            let to = from + chunk_len(rest, windows, POINTS_MAX).max(1);
            if (from, to) == (0, block.len()) {
                return self.push_chunk(series, field, block);
            }
            self.push_chunk(series, field, &block.part(from..to))?;
            from = to;
        }
        Ok(())
    }

    fn push_chunk(&mut self, series: SeriesId, field: FieldId, block: &Block) -> Result<()> {
        let Some(entry) = Entry::of(series, field, block) else { return Ok(()) };
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        codec::encode(&block.times, &block.values, &mut bytes);
        if bytes.len() > self.pages.page_len() as usize && block.len() > 1 {
            // The block has long strings: halve it.
            self.scratch = bytes;
            for half in [0..block.len() / 2, block.len() / 2..block.len()] {
                self.push_chunk(series, field, &block.part(half))?;
            }
            return Ok(());
        }
        let done = self.push_encoded(entry, &bytes);
        self.scratch = bytes;
        done
    }

    /// Appends a chunk of another segment as it is.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn push_encoded(&mut self, entry: Entry, bytes: &[u8]) -> Result<()> {
        let (page, within) = self.put(bytes)?;
        let crc = crc32c_append(chunk_seed(self.seed, page, within), bytes);
        self.points += u64::from(entry.count);
        self.bytes += bytes.len() as u64;
        self.entries.push(entry.placed((page, within), bytes.len() as u32, crc));
        Ok(())
    }

    /// Writes the entries. Durable with the next fence of this thread. None if there is no chunk.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn finish(mut self, age: u64) -> Result<Option<Fresh>> {
        match self.write_entries() {
            Ok(Some((index_page, index_within))) => Ok(Some(Fresh {
                info: Info {
                    number: self.number,
                    shard: self.shard,
                    age,
                    pages: self.written.len() as u32,
                    index_page,
                    index_within,
                    entries: self.entries.len() as u32,
                    points: self.points,
                    bytes: self.bytes,
                },
                written: self.written,
            })),
            Ok(None) => Ok(None),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    fn write_entries(&mut self) -> Result<Option<(u32, u32)>> {
        let entries = std::mem::take(&mut self.entries);
        let mut first = None;
        for entry in &entries {
            let place = self.put(&entry.encode(self.seed))?;
            first = first.or(Some(place));
        }
        self.entries = entries;
        Ok(first)
    }

    /// Gives back the pages that the writer has taken.
    pub(crate) fn abandon(self) {
        give_back(self.written, self.pages);
    }
}
