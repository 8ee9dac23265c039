//! Values that do not fit a page beside other records: each is a chain of pages of its own.
//!
//! ```text
//!   record: key, [length, offset of the first, chain]
//!                              └─▶ [offset of the next, bytes …] ─▶ [0, bytes …]
//! ```
//!
//! A chain is written from its end to its beginning and is durable before the record that names it is
//! appended. Each page holds one record, whose version is the number of the chain. The pages live as long as
//! that record; they are never moved.

use crate::volume::Volume;
use crate::volume::stream::Stream;
use coreplane_engine::{Error, Result};
use coreplane_pmem::PageWriter;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{HEADER, Header, Kind};

// media-format: begin pool
/// Bytes of the name of a chain, which a record has in place of the value.
pub(crate) const NAME: usize = 24;
/// Bytes of a page before its part of the value.
const HEAD: usize = HEADER + 8;
// media-format: end

/// A chain whose pages were taken, and that no record names yet.
pub(crate) struct Chain {
    pages: Vec<(PageWriter, u64)>,
    len: usize,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}

impl Volume {
    /// The most bytes of a value in one page.
    fn part_max(&self) -> usize {
        self.space.page_size() as usize - HEAD
    }

    /// Pages of a value of `len` bytes.
    pub(crate) fn chain_pages(&self, len: usize) -> u32 {
        len.div_ceil(self.part_max()) as u32
    }

    /// Writes a value to the pages that were taken for it; returns the name that a record has in its place. The pages
    /// are flushed, and durable after a fence.
    ///
    /// # Errors
    /// If the medium fails.
    // media-format: begin pool
    pub(crate) fn write_chain(&self, chain: Chain, value: &[u8]) -> Result<([u8; NAME], Vec<u32>)> {
        let number = chain.pages.first().map_or(0, |(_, birth)| *birth);
        let (mut next, mut pages) = (0, Vec::new());
        let parts = value.chunks(self.part_max()).rev();
        for ((mut writer, birth), part) in chain.pages.into_iter().zip(parts) {
            let offset = writer.next_offset();
            let header = Header { kind: Kind::Overflow, ..Header::put(number) };
            let next_bytes = u64::to_le_bytes(next);
            let encoded = header.encode(self.seed_at(birth, offset), &[], &[&next_bytes, part]);
            let parts = [encoded.bytes(), &next_bytes, part];
            let full = || Error::NoSpace { needed: part.len() as u64, reclaimable: 0 };
            writer.append(&parts).ok_or_else(full)?;
            writer.flush_from(offset);
            self.table.flush_life(writer.page());
            pages.push(writer.page());
            let _pen = writer.finish_early();
            next = offset;
        }
        let mut name = [0; NAME];
        name[..8].copy_from_slice(&(chain.len as u64).to_le_bytes());
        name[8..16].copy_from_slice(&next.to_le_bytes());
        name[16..].copy_from_slice(&number.to_le_bytes());
        Ok((name, pages))
    }
    // media-format: end

    /// The pages of a large value, and the part of it in each.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::ChecksumMismatch`] if a page does not belong to the value or is damaged.
    pub(crate) fn chain<'g>(
        &'g self,
        guard: &'g Guard,
        name: &[u8],
        is_checked: bool,
    ) -> Result<Vec<(u32, &'g [u8])>> {
        let (mut left, mut offset, number) = (word(name, 0), word(name, 8), word(name, 16));
        let corrupt = |offset| {
            let what = "no part of the large value that names it".to_owned();
            Error::Corrupt { offset, what }
        };
        if name.len() != NAME || left / self.part_max() as u64 > u64::from(self.space.pages()) {
            return Err(corrupt(offset));
        }
        let mut parts = Vec::with_capacity(left.div_ceil(self.part_max() as u64) as usize);
        while left > 0 {
            let view = self.view(guard, offset)?;
            let is_part = view.header.kind == Kind::Overflow && view.header.version == number;
            let part = view.value().get(8..).filter(|part| is_part && part.len() as u64 <= left);
            let part = part.filter(|part| !part.is_empty()).ok_or_else(|| corrupt(offset))?;
            if is_checked {
                self.check(&view)?;
            }
            parts.push((self.space.page_of(offset), part));
            left -= part.len() as u64;
            offset = word(view.value(), 0);
        }
        Ok(parts)
    }
}

impl Stream {
    /// Takes the pages for a value of `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn take_chain(&mut self, len: usize) -> Result<Chain> {
        let mut chain = Chain { pages: Vec::new(), len };
        for _ in 0..self.volume.chain_pages(len) {
            match self.begin_apart() {
                Ok(page) => chain.pages.push(page),
                Err(error) => {
                    for (writer, _) in chain.pages {
                        let page = writer.page();
                        writer.abandon();
                        self.pages.end(page);
                        self.pages.give_back(page);
                    }
                    return Err(error);
                }
            }
        }
        Ok(chain)
    }

    /// Counts the pages of a chain as live: a record names them now.
    pub(crate) fn adopt_chain(&mut self, pages: &[u32]) {
        let size = self.volume.space.page_size();
        pages.iter().for_each(|page| self.pages.add_live(*page, size));
    }

    /// The record that named the chain is superseded.
    pub(crate) fn end_chain(&mut self, pages: &[u32]) {
        let size = self.volume.space.page_size();
        pages.iter().for_each(|page| self.pages.remove_live(*page, size));
    }

    /// No record will ever name the chain.
    pub(crate) fn drop_chain(&mut self, pages: &[u32]) {
        self.adopt_chain(pages);
        self.end_chain(pages);
    }
}
