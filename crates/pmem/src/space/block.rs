//! A block that is written at once, and read later if at all.
//!
//! On a file a store through the mapping makes the whole of a folio dirty, which may be as large as a huge page
//! ([`prepare`](super::prepare)), after a fault that allows the store. A system call makes dirty what it writes, block by
//! block, and takes no fault: the next sync writes just that. The mapping shows it at once, since both are one page cache.

use super::{PageWriter, Space};
use crate::WriteMode;
use crate::media::Behaviour;
use crate::mutant;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::os::unix::fs::FileExt;

impl PageWriter {
    /// As [`PageWriter::append`] of one part, in the way that is best for many whole lines which nobody reads soon: durable
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
    /// Writes bytes that nobody else has to the file that is mapped; false if they are to be stored instead: there is no such
    /// file, it was lost, or is shorter by now (a store finds that out, and the call would make it longer), the process may
    /// not write there by a call (`RLIMIT_FSIZE` kills who tries), or a page is less than what the kernel keeps together. What
    /// happens to the file between the look and the call is not seen.
    ///
    /// It is written through the description that pages are prepared by: some file systems tell the caller of a write of an
    /// error that they owe to the sync.
    fn write_by_call(&self, offset: u64, bytes: &[u8]) -> bool {
        if !matches!(self.behaviour, Behaviour::File) || self.shares_folios() {
            return false;
        }
        let Some(file) = self.preparing() else { return false };
        let end = offset + bytes.len() as u64;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let is_allowed = limit.is_none_or(|limit| limit >= end);
        // Nothing but the length: for times some file systems write out first what is dirty.
        let (flags, size) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::SIZE);
        let is_whole = statx(file, "", flags, size).is_ok_and(|it| it.stx_size >= end);
        let may_write = is_allowed && is_whole && self.check_lost().is_ok();
        // What was written in part is stored as a whole.
        may_write && file.write_all_at(bytes, offset).is_ok()
    }
}
