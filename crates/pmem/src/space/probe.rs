//! Reading a page without the risk of a signal.

use super::Space;
use super::map::system_pages;
use super::prepare::len_max;
use super::roles::Role;
use crate::media::Behaviour;
use crate::mutant;
use crate::poison::PoisonedAt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The medium loses whole system pages. Some systems have 64 KiB pages, but 4 KiB is always correct.
const SYSTEM_PAGE: u64 = 4096;

impl Space {
    /// Lets the kernel read `page` on the caller's behalf: a lost page is an error here and not a
    /// SIGBUS. On DAX every byte is read through the file, which knows the device's bad blocks;
    /// elsewhere a byte of every system page, since only whole ones can be lost.
    ///
    /// # Errors
    /// [`PoisonedAt`] for the first place that cannot be read.
    pub fn probe(&self, page: u32) -> Result<(), PoisonedAt> {
        let start = self.start_of(page);
        let end = start + u64::from(self.page_size());
        if end > self.len() {
            return Err(PoisonedAt { offset: start.max(self.len()) });
        }
        // A copy (`Dram`) may be of a file on DAX.
        if matches!(self.behaviour, Behaviour::Dax { .. } | Behaviour::Dram) {
            self.probe_file(start, end)?;
        }
        self.probe_mapping(start, end)
    }

    /// As [`Space::probe`], but finds only places where a load would fail: the device's own list of
    /// bad blocks is not consulted, so that this is cheap on DAX, too.
    ///
    /// # Errors
    /// [`PoisonedAt`] for the first place that cannot be loaded from.
    pub fn probe_loads(&self, page: u32) -> Result<(), PoisonedAt> {
        let (start, len) = (self.start_of(page), u64::from(self.page_size()));
        if let Behaviour::Traced(trace) = &self.behaviour {
            return trace
                .unreadable(start, len)
                .map_or(Ok(()), |offset| Err(PoisonedAt { offset }));
        }
        if self.backing.is_none() {
            // Anonymous memory cannot lose a page.
            return Ok(());
        }
        self.probe_mapping(start, start + len)
    }

    /// True if [`Space::probe_loads`] would succeed for each of these pages: with one system call, which also
    /// prepares their page tables. False if one cannot be loaded from, or if this cannot be determined.
    pub fn can_load(&self, pages: Range<u32>) -> bool {
        if pages.is_empty() {
            return true;
        }
        let (start, end) = (self.start_of(pages.start), self.start_of(pages.end));
        if end > self.len() {
            return false;
        }
        if let Behaviour::Traced(trace) = &self.behaviour {
            return trace.unreadable(start, end - start).is_none();
        }
        if self.backing.is_none() {
            return true;
        }
        let (start, len) = system_pages(start, end - start);
        let at = self.mapping.at(start).cast();
        // SAFETY: the range lies within the mapping, which lives as long as the space. Faulting its
        // pages in for reading does not change their contents.
        let populated = unsafe { libc::madvise(at, len as usize, libc::MADV_POPULATE_READ) };
        populated == 0
    }

    /// Makes the unreadable parts of `page` readable again, as zeroes, through the file: a device
    /// clears a bad block that is written, and a memory file system a page that is punched out. The
    /// old contents are lost. Returns the offsets that were filled, each a system page long. A log
    /// page is not filled: a reader may have a slice of it. Smaller pages are filled together with all
    /// others in their system page, which are also lost.
    ///
    /// A file that was truncated gets its length back as far as the page; a caller that must not hide the loss of the
    /// rest looks at the length first ([`Pool::file_state`](crate::Pool::file_state)).
    ///
    /// # Errors
    /// If a place stays unreadable, if one of the pages is neither free nor a word page, or if the pool was lost and is
    /// outlived. An error of the sync is also that of every later fence.
    pub fn heal(&self, page: u32) -> io::Result<Vec<u64>> {
        // Nothing is written to the file of a lost pool.
        self.check_lost()?;
        if self.probe(page).is_ok() {
            return Ok(Vec::new());
        }
        if page >= self.pages() {
            return Err(io::Error::other(format!("there is no page {page}")));
        }
        let (mut claimed, mut in_use) = (Vec::new(), None);
        for page in self.pages_beside(page) {
            if self.roles.claim(page) {
                claimed.push(page);
            } else if self.roles.role(page) != Role::Words {
                in_use = Some(page);
            }
        }
        let healed = match in_use {
            None => self.fill_unreadable(page),
            Some(page) => Err(io::Error::other(format!("page {page} is in use"))),
        };
        claimed.iter().for_each(|page| self.roles.release(*page));
        healed
    }

    /// The page and the pages that share a system page with it.
    fn pages_beside(&self, page: u32) -> Range<u32> {
        let in_one = (SYSTEM_PAGE >> self.page_shift).max(1) as u32;
        let first = page / in_one * in_one;
        first..(first + in_one).min(self.pages())
    }

    fn fill_unreadable(&self, page: u32) -> io::Result<Vec<u64>> {
        let mut healed: Vec<u64> = Vec::new();
        while let Err(PoisonedAt { offset }) = self.probe(page) {
            let at = offset / SYSTEM_PAGE * SYSTEM_PAGE;
            let Some(file) = self.file_to_write().filter(|_| healed.last() != Some(&at)) else {
                let what = format!("offset {offset:#x} stays unreadable");
                return Err(io::Error::other(what));
            };
            // The file must not become longer than the pool, whose last page may end within a system page.
            let zeroes = &[0; SYSTEM_PAGE as usize][..SYSTEM_PAGE.min(self.len() - at) as usize];
            // Punched out, it would stay a hole.
            if at + zeroes.len() as u64 > len_max() {
                return Err(rustix::io::Errno::FBIG.into());
            }
            let written = file.write_all_at(zeroes, at);
            if written.is_err() || self.probe_mapping(at, at + SYSTEM_PAGE).is_err() {
                let cut =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, cut, at, SYSTEM_PAGE)?;
                file.write_all_at(zeroes, at)?;
            }
            match &self.syncer {
                Some(syncer) if !mutant!("pmem.heal.round") => {
                    syncer.dirty();
                    syncer.sync().map_err(io::Error::other)?;
                }
                _ => file.sync_data()?,
            }
            healed.push(at);
        }
        Ok(healed)
    }

    /// The description to write to: not the one that fences sync, which has to get every error of a write
    /// ([`prepare`](super::prepare)).
    pub(crate) fn file_to_write(&self) -> Option<&File> {
        match self.syncer {
            Some(_) => self.preparing(),
            None => self.backing.as_deref(),
        }
    }

    fn probe_file(&self, start: u64, end: u64) -> Result<(), PoisonedAt> {
        const SECTOR: usize = 4096;
        let Some(file) = &self.backing else {
            return Ok(());
        };
        let mut sector = [0; SECTOR];
        for offset in (start..end).step_by(SECTOR) {
            let len = SECTOR.min((end - offset) as usize);
            file.read_exact_at(&mut sector[..len], offset).map_err(|_| PoisonedAt { offset })?;
        }
        Ok(())
    }

    fn probe_mapping(&self, start: u64, end: u64) -> Result<(), PoisonedAt> {
        /// At most 1024 ranges a call.
        const BATCH: u64 = 512;
        // Pages may be smaller.
        let mut offset = start / SYSTEM_PAGE * SYSTEM_PAGE;
        while offset < end {
            let count = BATCH.min((end - offset).div_ceil(SYSTEM_PAGE));
            let read = self.read_one_byte_each(offset, count as usize, SYSTEM_PAGE as usize) as u64;
            if read < count {
                return Err(PoisonedAt { offset: offset + read * SYSTEM_PAGE });
            }
            offset += count * SYSTEM_PAGE;
        }
        Ok(())
    }

    /// All bytes of the space. The kernel copies them: a thread that stores meanwhile does no harm, but its stores may be
    /// there in part.
    ///
    /// # Errors
    /// If the kernel does not offer the call.
    pub(crate) fn all_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len() as usize];
        let mut at = 0;
        while at < bytes.len() {
            let (start, len) = (self.mapping.at(at as u64).cast(), bytes.len() - at);
            let remote = [libc::iovec { iov_base: start, iov_len: len }];
            match usize::try_from(Self::read_by_kernel(&mut bytes[at..], &remote)) {
                Ok(read) if read > 0 => at += read,
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(bytes)
    }

    /// Reads the bytes at `offset`, `offset + step`, …; returns how many could be read. All, if
    /// the kernel does not offer the call.
    fn read_one_byte_each(&self, offset: u64, count: usize, step: usize) -> usize {
        let mut bytes = vec![0_u8; count];
        let remote: Vec<_> = (0..count)
            .map(|at| libc::iovec {
                iov_base: self.mapping.at(offset + (at * step) as u64).cast(),
                iov_len: 1,
            })
            .collect();
        let read = Self::read_by_kernel(&mut bytes, &remote);
        match usize::try_from(read) {
            Ok(read) => read,
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => 0,
            Err(_) => count,
        }
    }

    /// Lets the kernel copy ranges of the mapping; returns the number of bytes, or -1.
    fn read_by_kernel(into: &mut [u8], from: &[libc::iovec]) -> isize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: the local range is `into`. The remote ones are in this process's mapping; the
        // kernel copies them and reports what it cannot read. Concurrent stores by other threads do
        // not matter: no code of ours reads there.
        unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &raw const local,
                1,
                from.as_ptr(),
                from.len() as libc::c_ulong,
                0,
            )
        }
    }
}
