//! Appends a block that is written as a whole, and read later if at all.
//!
//! On a file a store through the mapping makes a whole folio dirty, which may be as large as a huge page
//! ([`prepare`](super::prepare)), after a fault that allows the store. A system call makes only the written blocks
//! dirty, and takes no fault: the next sync writes just those. The mapping shows the bytes at once, since both use
//! the same page cache.

use super::prepare::{has_length, write_at};
use super::{PageWriter, Space};
use crate::WriteMode;
use crate::media::Behaviour;
use crate::mutant;

impl PageWriter {
    /// As [`PageWriter::append`] of one part, in the best way for many whole lines that are not read soon: durable
    /// after a fence of this thread, without a flush.
    pub fn append_block(&mut self, bytes: &[u8]) -> Option<u64> {
        if self.space.fill_mode() == WriteMode::NonTemporal {
            return self.append_nt(&[bytes]);
        }
        let offset = self.next_offset();
        let len = u32::try_from(bytes.len()).ok().filter(|len| len.is_multiple_of(8));
        if let Some(len) = len.filter(|len| *len <= self.remaining())
            && self.space.write_by_call(offset, bytes)
        {
            self.advance(len);
            if !mutant!("pmem.block.dirty") {
                self.space.note_nt(offset, u64::from(len));
            }
            return Some(offset);
        }
        self.append(&[bytes])?;
        self.flush_from(offset);
        Some(offset)
    }
}

impl Space {
    /// Writes bytes to the mapped file, to a place that no other thread uses. False if they must be stored instead:
    /// there is no mapped file; it was lost; it is shorter now (a store detects that, and the call would extend it);
    /// the process may not write there by a call (`RLIMIT_FSIZE` kills the process); or a page is smaller than the
    /// smallest folio (4 KiB). A change of the file between the check and the call is not noticed.
    ///
    /// It uses the file description for preparing pages: some file systems report an error to the caller of a write
    /// that the sync should receive.
    fn write_by_call(&self, offset: u64, bytes: &[u8]) -> bool {
        if !matches!(self.behaviour, Behaviour::File) || self.shares_folios() {
            return false;
        }
        let Some(file) = self.preparing() else { return false };
        let end = offset + bytes.len() as u64;
        let may_write = has_length(file, end) && self.check_lost().is_ok();
        // After a partial write the caller stores the whole.
        may_write && write_at(file, bytes, offset).is_ok()
    }
}
