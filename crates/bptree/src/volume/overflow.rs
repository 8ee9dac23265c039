//! Overflow pages: a large value is in pages of its own, which the record names. The rests of long
//! [keys](crate::volume::keys) are in such pages too.
//!
//! ```text
//!   record ─▶ length, first page, its birth
//!                     │
//!                     ▼ page: crc | kind | birth | next page | bytes in this one | the bytes
//!                       page: …
//! ```
//!
//! The pages are durable before the record is written, so that a sound record has its value. Only the record shows
//! on the medium that a page of this kind is in use: a page that no record leads to is free after a crash.
//!
//! A [`checkpoint`](crate::recovery::checkpoint) lies in pages of the same form, which the root names.

use crate::leaf::Life;
use crate::volume::Volume;
use coreplane_engine::{Error, Result};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::isolation::Publishing;
use coreplane_pmem::{Recovery, WriteMode, mutant};
use coreplane_record::View;

// media-format: begin pool
const HEAD: usize = 32;

/// Bytes of the name of a row of pages.
pub(crate) const NAME: usize = 24;
const VALUE: u32 = 0x50;
const KEY: u32 = 0x4b;
const CHECKPOINT: u32 = 0x43;
const LAST: u32 = u32::MAX;

// media-format: end

/// The content of a row of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Row {
    Value = VALUE,
    /// The rest of a long key.
    Key = KEY,
    Checkpoint = CHECKPOINT,
}

/// The pages of a value that no record names yet. They are given back unless a record comes to name them.
pub(crate) struct Overflow<'s> {
    volume: &'s Volume,
    pages: Vec<u32>,
    /// The first page; the others have the same birth.
    first: Life,
    /// The name, which the record has instead of the value.
    name: [u8; NAME],
    _unnamed: Publishing<'s>,
}

impl Overflow<'_> {
    /// The name, which the record has instead of the value.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// The first page, for the root to name a checkpoint.
    pub(crate) fn first(&self) -> Life {
        self.first
    }

    /// A record, or the root, names the pages durably.
    pub(crate) fn own(mut self) {
        self.pages.clear();
    }
}

impl Drop for Overflow<'_> {
    fn drop(&mut self) {
        for page in self.pages.drain(..) {
            // If it is not given back now, the next open does so.
            let _given_back = self.volume.retire(page).is_ok();
        }
    }
}

impl Volume {
    /// Bytes of a value in one page.
    pub(crate) fn overflow_page_max(&self) -> usize {
        self.space.page_size() as usize - HEAD
    }

    /// The number of pages of a row.
    fn row_len(&self, bytes: &[u8]) -> usize {
        bytes.len().div_ceil(self.overflow_page_max())
    }

    /// Writes each value to pages of its own; durable when it returns. If there is no space for all of them, none is
    /// written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn write_overflow(
        &self,
        values: &[&[u8]],
        reserve: u32,
    ) -> Result<Vec<Overflow<'_>>> {
        let count = values.iter().map(|value| self.row_len(value)).sum();
        let pages = self.pages.take(count, reserve)?;
        let mut left = pages.as_slice();
        let mut written = Vec::with_capacity(values.len());
        for value in values {
            let (mine, others) = left.split_at(self.row_len(value));
            written.push(self.write_row_to(mine, Row::Value, value)?);
            left = others;
        }
        if !mutant!("bptree.overflow.fence") {
            self.fence()?;
        }
        Ok(written)
    }

    /// Writes at least one byte to a row of pages; durable after a fence.
    ///
    /// # Errors
    /// As [`Volume::write_overflow`].
    pub(crate) fn write_row(&self, row: Row, bytes: &[u8], reserve: u32) -> Result<Overflow<'_>> {
        self.write_row_to(&self.pages.take(self.row_len(bytes), reserve)?, row, bytes)
    }

    /// As [`Volume::write_row`], to these pages.
    fn write_row_to(&self, pages: &[u32], row: Row, bytes: &[u8]) -> Result<Overflow<'_>> {
        let overflow: Vec<&[u8]> = bytes.chunks(self.overflow_page_max()).collect();
        let mut first = Life { page: LAST, birth: self.birth()? };
        let _unnamed = self.unnamed_rows.begin();
        let mut written =
            Overflow { volume: self, pages: Vec::new(), first, name: [0; NAME], _unnamed };
        for (page, overflow_page) in pages.iter().zip(overflow).rev() {
            self.write_overflow_page(row, (*page, first), overflow_page)?;
            written.pages.push(*page);
            first.page = *page;
        }
        written.first = first;
        written.name[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        written.name[8..16].copy_from_slice(&first.birth.to_le_bytes());
        written.name[16..20].copy_from_slice(&first.page.to_le_bytes());
        Ok(written)
    }

    // media-format: begin pool
    fn write_overflow_page(&self, row: Row, (page, next): (u32, Life), bytes: &[u8]) -> Result<()> {
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&(row as u32).to_le_bytes());
        head[8..16].copy_from_slice(&next.birth.to_le_bytes());
        head[16..20].copy_from_slice(&next.page.to_le_bytes());
        head[20..24].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        let crc = crc32c_append(self.overflow_seed(row, page), &head[4..]);
        let crc = crc32c_append(crc, bytes);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        let mut writer = self.space.claim_log(page).ok_or_else(|| self.not_a_leaf(page))?;
        let start = writer.next_offset();
        let parts = [head.as_slice(), bytes];
        if self.space.append_mode() == WriteMode::NonTemporal {
            writer.append_nt(&parts).ok_or_else(|| self.not_a_leaf(page))?;
        } else {
            writer.append(&parts).ok_or_else(|| self.not_a_leaf(page))?;
            writer.flush_from(start);
        }
        writer.publish_early();
        Ok(())
    }

    // media-format: end

    fn overflow_seed(&self, row: Row, page: u32) -> u32 {
        self.seed.rotate_left(5) ^ page.wrapping_mul(0x85eb_ca6b) ^ row as u32
    }

    /// The pages of a large value and the bytes in each. Checked against their checksums if
    /// `checked`.
    ///
    /// # Errors
    /// If a page is not the one that was written.
    pub(crate) fn overflow_of<'g>(
        &'g self,
        guard: &'g Guard,
        view: &View<'_>,
        checked: bool,
    ) -> Result<Vec<(u32, &'g [u8])>> {
        if view.value().len() < NAME {
            let what = "a large value without a name".to_owned();
            return Err(Error::Corrupt { offset: view.offset, what });
        }
        self.row(guard, Row::Value, view.value(), checked)
    }

    /// The pages that a name leads to and the bytes in each. Checked against their checksums if
    /// `checked`.
    ///
    /// # Errors
    /// If a page is not the one that was written.
    pub(crate) fn row<'g>(
        &'g self,
        guard: &'g Guard,
        row: Row,
        name: &[u8],
        checked: bool,
    ) -> Result<Vec<(u32, &'g [u8])>> {
        let word = |at: usize| {
            name.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
        };
        let (len, first) = (word(0), word(8));
        let (mut page, mut left) = (word(16) as u32, len);
        let count = len.div_ceil(self.overflow_page_max() as u64);
        // No row is empty.
        if count == 0 || count >= u64::from(self.space.pages()) {
            let offset = self.space.start_of(page);
            let what = format!("{len} bytes, which begin in page {page}, are none, or too many");
            return Err(Error::Corrupt { offset, what });
        }
        let mut overflow = Vec::with_capacity(count as usize);
        while left > 0 {
            let overflow_page = self.overflow_page(guard, row, page, checked)?;
            // All pages but the last are full, so that a chain with a cycle comes to an end.
            if overflow_page.birth != first
                || overflow_page.bytes.len() as u64 != left.min(self.overflow_page_max() as u64)
            {
                let offset = self.space.start_of(page);
                let what = format!("page {page} is a part of something else");
                return Err(Error::Corrupt { offset, what });
            }
            left -= overflow_page.bytes.len() as u64;
            overflow.push((page, overflow_page.bytes));
            page = overflow_page.next;
        }
        Ok(overflow)
    }

    /// True if the page, which is in use, holds a part of a large value or of a long key.
    pub(crate) fn is_overflow(&self, guard: &Guard, page: u32) -> bool {
        let head = self.space.bytes(guard, self.space.start_of(page), 8);
        let is_kind = |kind: u32| head.is_some_and(|head| head[4..8] == kind.to_le_bytes());
        is_kind(VALUE) || is_kind(KEY)
    }

    /// The checkpoint that begins in a page, and its pages, which are adopted; no checkpoint if its pages do not
    /// all match.
    pub(crate) fn read_checkpoint(
        &self,
        recovery: &Recovery,
        first: Life,
    ) -> (Vec<u32>, Option<Vec<u8>>) {
        let guard = recovery.pin();
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        let mut next = first.page;
        while next != LAST {
            if !recovery.adopt(next, self.space.page_size()) {
                return (pages, None);
            }
            pages.push(next);
            let overflow_page = self.overflow_page(&guard, Row::Checkpoint, next, true);
            let Some(overflow_page) =
                overflow_page.ok().filter(|overflow_page| overflow_page.birth == first.birth)
            else {
                return (pages, None);
            };
            bytes.extend_from_slice(overflow_page.bytes);
            next = overflow_page.next;
        }
        (pages, Some(bytes))
    }

    fn overflow_page<'g>(
        &'g self,
        guard: &'g Guard,
        row: Row,
        page: u32,
        checked: bool,
    ) -> Result<OverflowPage<'g>> {
        let offset = self.space.start_of(page);
        let corrupt =
            || Error::Corrupt { offset, what: format!("page {page} is no part of what names it") };
        let head = self.space.bytes(guard, offset, HEAD as u64).ok_or_else(corrupt)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = word(20) as usize;
        if word(4) != row as u32 || len == 0 || len > self.overflow_page_max() {
            return Err(corrupt());
        }
        let bytes =
            self.space.bytes(guard, offset + HEAD as u64, len as u64).ok_or_else(corrupt)?;
        if checked {
            let computed = crc32c_append(self.overflow_seed(row, page), &head[4..]);
            let computed = crc32c_append(computed, bytes);
            if computed != word(0) {
                return Err(Error::ChecksumMismatch { offset, stored: word(0), computed });
            }
        }
        let birth = u64::from(word(8)) | u64::from(word(12)) << 32;
        Ok(OverflowPage { birth, next: word(16), bytes })
    }

    /// Gives back the pages of a large value whose record is gone, as far as they are [known](Volume::known).
    pub(crate) fn retire_overflow(&self, guard: &Guard, view: &View<'_>) -> Result<()> {
        self.retire_all(self.known(self.pages_of(guard, view)?))
    }

    /// The pages of a row whose name goes. If the row is damaged, there are none: its pages are unknown, and would be
    /// in use in a checkpoint; the next open is a recovery, which finds them.
    pub(crate) fn known(&self, pages: Vec<u32>) -> Vec<u32> {
        // No row is empty.
        if pages.is_empty() {
            self.counters.be_unsure();
        }
        pages
    }

    /// As [`Volume::retire_overflow`], behind the write that has replaced the record: that write counts, even if
    /// this fails. The next recovery finds a page that is not given back.
    pub(crate) fn retire_overflow_after(&self, guard: &Guard, view: &View<'_>) {
        let _retired = self.retire_overflow(guard, view).is_ok();
    }

    /// The pages of a large value; none if it is damaged, which reads of it report.
    pub(crate) fn pages_of(&self, guard: &Guard, view: &View<'_>) -> Result<Vec<u32>> {
        match self.overflow_of(guard, view, false) {
            Err(Error::Corrupt { .. }) => Ok(Vec::new()),
            overflow => Ok(overflow?.into_iter().map(|(page, _)| page).collect()),
        }
    }
}

struct OverflowPage<'g> {
    birth: u64,
    next: u32,
    bytes: &'g [u8],
}
