//! Prepares free pages of a file for small syncs.
//!
//! A sync of a file writes more than the stored bytes, for two reasons that a log can avoid:
//!
//! - The kernel keeps the file in *folios*. A range that was read ahead, or written in one piece, is a folio of up to
//!   a huge page, and one byte stored through a mapping makes all of it dirty: each sync of 64 bytes then writes 2
//!   MiB. If the file is written 4 KiB at a time, the folios are that small.
//! - A block that was allocated and never written is marked as such in the file system's tree. The
//!   first sync after a store to it has to write this change, too: one or two further blocks, one
//!   after the other.
//!
//! So a page is filled with zeroes in the background before it is used: on ext4 that halves the time
//! of a sync, and reduces it to a third for large batches (`docs/measurements/server`). The bytes of
//! a free page are not used, so that a crash at any moment loses nothing; and nothing here is needed
//! for durability.
//!
//! After this the blocks of the page stay written, but its folios may change: when memory is short
//! the kernel drops them, and a later read of a record reads ahead into large ones. There is no way
//! to find out which folios are large. So before the page is filled again all its folios are
//! dropped, and it is read in folios of 4 KiB by `posix_fadvise`, which does not use the kernel's
//! own read-ahead.
//!
//! A page of less than 4 KiB shares its folio with others, which may be in use. So such pages are
//! not prepared: the kernel never keeps or writes less than a folio.
//!
//! # Write errors
//!
//! When the kernel cannot write stored bytes it reports the error once to each *open file
//! description*, for any part of the file, in the first call that waits for writing: `fdatasync`,
//! but also `sync_file_range`. If that were called on the description that fences sync, it would
//! consume the error, and the next fence would wrongly report that all is durable. So pages are
//! prepared through a separate description; if it cannot be opened, they are not prepared. An error that it gets
//! leaves the mark of a failed sync, since the process may be killed before the next fence.

use super::Space;
use super::map::system_pages;
use crate::media::Behaviour;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// The desired size of a folio.
const FOLIO: usize = 4096;
/// Bytes written before they are sent to the disk: a sync by another thread in between has that
/// much more to write.
const CHUNK: u64 = 256 << 10;
/// Bytes of one read request: of a longer request than the device takes at once, or the system
/// reads ahead, the kernel silently omits the rest.
const ASKED: u64 = 64 << 10;
/// The most pages of words for which the kernel is told not to read ahead. Each may add two ranges to the address
/// space, of which a process can have 65,530; with pages of usual size only a few are needed.
const TOLD_MAX: u32 = 1024;

/// The history of a page to be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Unknown: its blocks may never have been written.
    First,
    /// It was prepared before, and was in use since.
    Again,
}

impl Space {
    /// True where [`Space::prepare`] is of use.
    pub fn is_preparable(&self) -> bool {
        if self.shares_folios() {
            return false;
        }
        match &self.behaviour {
            Behaviour::File => true,
            Behaviour::Traced(trace) => !trace.fences_at_once(),
            _ => false,
        }
    }

    /// True if a page is less than a folio.
    pub(super) fn shares_folios(&self) -> bool {
        self.page_size() < FOLIO as u32
    }

    /// Prepares a free page so that later syncs of it write little; false if it is not free. The
    /// first time it is filled with zeroes. This may take milliseconds, during which the page cannot
    /// be claimed. Nothing is guaranteed to be durable when it returns. A page that the process may
    /// not write by a system call (`RLIMIT_FSIZE`, which kills the process) is left unchanged, and so
    /// is one of less than 4 KiB.
    ///
    /// # Errors
    /// If the file cannot be written. The page is free in this case, too.
    pub fn prepare(&self, page: u32, preparation: Preparation) -> io::Result<bool> {
        // Nothing is written to the file of a lost pool.
        self.check_lost()?;
        if page >= self.pages() || !self.roles.claim(page) {
            return Ok(false);
        }
        let result = match (&self.behaviour, preparation, self.preparing()) {
            _ if self.shares_folios() => Ok(()),
            (Behaviour::File, Preparation::First, Some(file)) => {
                self.write_small_folios(file, page)
            }
            (Behaviour::File, Preparation::Again, Some(file)) => {
                self.read_small_folios(file, page);
                // A store to a part of an unreadable page would have to read it.
                match self.probe(page) {
                    Ok(()) => Ok(()),
                    Err(_) => self.write_small_folios(file, page),
                }
            }
            (Behaviour::Traced(_), Preparation::First, _) => {
                self.zero(page);
                Ok(())
            }
            _ => Ok(()),
        };
        self.roles.release(page);
        result.map(|()| true)
    }

    /// The mapped file, opened again: see "Write errors" in the module docs. The lock on the file
    /// belongs to the other description, and is not affected.
    pub(super) fn preparing(&self) -> Option<&File> {
        let open = || {
            let fd = self.backing.as_ref()?.as_raw_fd();
            File::options().write(true).open(format!("/proc/self/fd/{fd}")).ok()
        };
        self.preparing.get_or_init(open).as_ref()
    }

    /// Tells the kernel not to read ahead in a page of words: a table has stores in random places
    /// for as long as the pool is open. Best effort, and for at most [`TOLD_MAX`] pages.
    pub(super) fn keep_folios_small(&self, page: u32) {
        if !matches!(self.behaviour, Behaviour::File)
            || self.told.fetch_add(1, Ordering::Relaxed) >= TOLD_MAX
        {
            return;
        }
        // This also affects pages that share a system page with it.
        let (start, len) = system_pages(self.start_of(page), u64::from(self.page_size()));
        let at = self.mapping.at(start).cast();
        // SAFETY: the system pages are mapped in full, and the advice changes no byte of them.
        let _best_effort =
            unsafe { rustix::mm::madvise(at, len as usize, rustix::mm::Advice::Random) };
    }

    fn write_small_folios(&self, file: &File, page: u32) -> io::Result<()> {
        let (start, len) = (self.start_of(page), u64::from(self.page_size()));
        if start + len > len_max() {
            return Ok(());
        }
        if !has_length(file, start + len) {
            // The write would give a truncated file its length back, which would hide the loss.
            return Err(io::Error::other("the file was truncated"));
        }
        self.forget_folios(file, start, len);
        let zeroes = [0; FOLIO];
        let end = start + len;
        let mut at = start;
        while at < end {
            let chunk = CHUNK.min(end - at);
            for folio in (at..at + chunk).step_by(FOLIO) {
                file.write_all_at(&zeroes, folio)?;
            }
            if has_write_error(file, at, chunk) {
                self.syncer.as_ref().inspect(|syncer| syncer.tell_failure());
            }
            at += chunk;
        }
        Ok(())
    }

    /// Best effort: durability does not depend on it.
    fn read_small_folios(&self, file: &File, page: u32) {
        let (start, len) = (self.start_of(page), u64::from(self.page_size()));
        self.forget_folios(file, start, len);
        for at in (start..start + len).step_by(ASKED as usize) {
            let len = std::num::NonZeroU64::new(ASKED.min(start + len - at));
            let _best_effort =
                rustix::fs::fadvise(file, at, len, rustix::fs::Advice::WillNeed).is_ok();
        }
    }

    /// Drops the clean folios of the range from the kernel's cache; best effort.
    fn forget_folios(&self, file: &File, start: u64, len: u64) {
        // SAFETY: the range is part of a shared mapping of `file`, in a page that this call has
        // claimed. Stored bytes stay in the file, where the next access finds them.
        let unmapped = unsafe {
            rustix::mm::madvise(
                self.mapping.at(start).cast(),
                len as usize,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        if unmapped.is_ok() {
            let len = std::num::NonZeroU64::new(len);
            let _best_effort =
                rustix::fs::fadvise(file, start, len, rustix::fs::Advice::DontNeed).is_ok();
        }
    }
}

/// The length up to which the process may write to a file, or allocate it: beyond `RLIMIT_FSIZE` a signal ends the
/// process.
pub(crate) fn len_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current.unwrap_or(u64::MAX)
}

/// Writes all bytes to a file.
///
/// # Errors
/// If the file cannot be written; behind the limit of the process.
pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    if at.saturating_add(bytes.len() as u64) > len_max() {
        return Err(rustix::io::Errno::FBIG.into());
    }
    file.write_all_at(bytes, at)
}

/// True if a file is at least this long.
pub(super) fn has_length(file: &File, len: u64) -> bool {
    // Only the length is requested: to report times, some file systems first write out dirty pages.
    let (flags, size) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::SIZE);
    statx(file, "", flags, size).is_ok_and(|it| it.stx_size >= len)
}

/// Writes out the range, and waits until the device has it: where this is not supported, a later sync does it. True if
/// the kernel reports that it could not write something to the file.
fn has_write_error(file: &File, start: u64, len: u64) -> bool {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no memory of ours.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start as i64, len as i64, flags) };
    let errors = [libc::EIO, libc::ENOSPC, libc::EDQUOT];
    result != 0
        && io::Error::last_os_error().raw_os_error().is_some_and(|error| errors.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::Preparation;
    use crate::{CreateOptions, MediaChoice, Pool};
    use std::io::Seek;

    /// Without a failing disk the test cannot show that each description receives its own errors;
    /// but their positions show that there are two.
    #[test]
    fn pages_are_not_prepared_through_what_the_fences_sync() {
        let directory = tempfile::tempdir().unwrap();
        let options = CreateOptions {
            size: 1 << 20,
            media: MediaChoice::File,
            page_size: 64 << 10,
            kind: "test".to_owned(),
            parameters: [0; 8],
        };
        let pool = Pool::create(&directory.path().join("pool"), &options).unwrap();
        let space = pool.space();
        assert!(space.prepare(1, Preparation::First).unwrap());
        let (synced, prepared) = (space.backing().unwrap(), space.preparing().unwrap());
        (&*synced).seek(std::io::SeekFrom::Start(7)).unwrap();
        assert_eq!({ prepared }.stream_position().unwrap(), 0);
        // The second description does not open the pool again: it is locked by the first.
        let again = Pool::open(&directory.path().join("pool"), &crate::OpenOptions::default());
        assert!(matches!(again, Err(crate::PoolError::Locked { .. })));
    }
}
