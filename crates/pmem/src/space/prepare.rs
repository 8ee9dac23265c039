//! Free pages of a file made ready for small syncs.
//!
//! A sync of a file writes more than was stored, for two reasons that a log can do without:
//!
//! - The kernel keeps the file in *folios*. What it has read ahead, or written in one piece, is a
//!   folio of up to a huge page, and one byte stored through a mapping makes all of it dirty: each
//!   sync of 64 bytes then writes 2 MiB. Written 4 KiB at a time the folios are that small.
//! - A block that was allocated and never written is so marked in the file system's tree. The
//!   first sync after a store to it has to write that too, one or two blocks more, each behind the
//!   other.
//!
//! So whoever is about to fill a page has it written with zeroes first, in the background: on ext4
//! that halves the time of a sync, and makes those of large batches a third as long
//! (`docs/measurements/server`). The bytes of a free page are nobody's, so that a crash at any moment
//! loses nothing; and nothing here is ever needed for durability.
//!
//! A page that was filled so once has its blocks written for good, but not its folios: memory may
//! run short, so that the kernel drops them, and whoever reads a record then has it read ahead in
//! large ones. Nothing says which they are. So before it is filled again they are all dropped, and
//! the page is read, which for once is done in folios of 4 KiB: by `posix_fadvise`, whose
//! read-ahead is not of the kernel's own making.
//!
//! A page of less than 4 KiB is one of several in its folio, of which the others may be in use. So
//! such pages are not prepared: what the kernel keeps and writes is never less than the folio.
//!
//! # Whose errors
//!
//! When the kernel cannot write what was stored it says so once to each *open file description*,
//! whatever part of the file it was, by the first call that waits for writing: `fdatasync`, but
//! `sync_file_range` just as well. Were that called on the description that fences sync, it would
//! take the error away from the fence behind it, which would then say that all is durable. So pages
//! are prepared through a description of their own; where none is to be had, they are not.

use super::Space;
use super::map::system_pages;
use crate::media::Behaviour;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// What one folio is to be.
const FOLIO: usize = 4096;
/// What is written before it is sent to the disk: a sync of others' that comes meanwhile has so
/// much more to write.
const CHUNK: u64 = 256 << 10;
/// What is asked for to be read at a time: of more than the device takes in one request, or the
/// system reads ahead, the kernel leaves out the rest and does not say so.
const ASKED: u64 = 64 << 10;
/// For so many pages of words the kernel is told not to read ahead. Each may be two ranges of the
/// address space more, of which a process has 65,530; pages of a usual size need a few.
const TOLD_MAX: u32 = 1024;

/// What is known of a page that is to be made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing: its blocks may never have been written.
    First,
    /// It was made ready before, and was in use since.
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

    /// Has a free page kept in such a way that later syncs of it write little; false if it is not
    /// free. The first time it is filled with zeroes. It may take milliseconds; nobody can claim
    /// the page meanwhile. Nothing need be durable when it returns. A page that the process may
    /// not write by a system call (`RLIMIT_FSIZE`, which kills who tries) is left as it is, and so is
    /// one of less than 4 KiB.
    ///
    /// # Errors
    /// If the file cannot be written. The page is free all the same.
    pub fn prepare(&self, page: u32, preparation: Preparation) -> io::Result<bool> {
        // Nothing is written to the file of a pool that was lost.
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
                // What cannot be read must not be read by whoever stores to a part of it.
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

    /// The mapped file, opened once more: see the module's "Whose errors". The lock on the file is
    /// that of the other description, and stays as it is.
    pub(super) fn preparing(&self) -> Option<&File> {
        let open = || {
            let fd = self.backing.as_ref()?.as_raw_fd();
            File::options().write(true).open(format!("/proc/self/fd/{fd}")).ok()
        };
        self.preparing.get_or_init(open).as_ref()
    }

    /// Has the kernel read no more of a page of words than is asked for: of a table, words are
    /// stored here and there for as long as the pool is open. Best effort, and for [`TOLD_MAX`].
    pub(super) fn keep_folios_small(&self, page: u32) {
        if !matches!(self.behaviour, Behaviour::File)
            || self.told.fetch_add(1, Ordering::Relaxed) >= TOLD_MAX
        {
            return;
        }
        // Of pages that share a system page the others are read so, too.
        let (start, len) = system_pages(self.start_of(page), u64::from(self.page_size()));
        let at = self.mapping.at(start).cast();
        // SAFETY: the system pages are mapped in full, and the advice changes no byte of them.
        let _best_effort =
            unsafe { rustix::mm::madvise(at, len as usize, rustix::mm::Advice::Random) };
    }

    fn write_small_folios(&self, file: &File, page: u32) -> io::Result<()> {
        let (start, len) = (self.start_of(page), u64::from(self.page_size()));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < start + len) {
            return Ok(());
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
            write_out(file, at, chunk);
            at += chunk;
        }
        Ok(())
    }

    /// Best effort: a page of which it was not done is as durable.
    fn read_small_folios(&self, file: &File, page: u32) {
        let (start, len) = (self.start_of(page), u64::from(self.page_size()));
        self.forget_folios(file, start, len);
        for at in (start..start + len).step_by(ASKED as usize) {
            let len = std::num::NonZeroU64::new(ASKED.min(start + len - at));
            let _best_effort =
                rustix::fs::fadvise(file, at, len, rustix::fs::Advice::WillNeed).is_ok();
        }
    }

    /// Drops what the kernel keeps of the range, as far as it is clean; best effort.
    fn forget_folios(&self, file: &File, start: u64, len: u64) {
        // SAFETY: the range is part of a shared mapping of `file`, in a page that this call has
        // claimed. What was stored stays in the file: the next access finds it there.
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

/// Has the range written, and waits until the device has it: where that cannot be had, a later
/// sync does it.
fn write_out(file: &File, start: u64, len: u64) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no memory of ours.
    let _best_effort =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start as i64, len as i64, flags) };
}

#[cfg(test)]
mod tests {
    use super::Preparation;
    use crate::{CreateOptions, MediaChoice, Pool};
    use std::io::Seek;

    /// That one has seen an error of the other's is not to be had without a disk that fails; that
    /// they are two shows in their positions.
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
        // The other is no second opener either: the pool is locked by the first.
        let again = Pool::open(&directory.path().join("pool"), &crate::OpenOptions::default());
        assert!(matches!(again, Err(crate::PoolError::Locked { .. })));
    }
}
