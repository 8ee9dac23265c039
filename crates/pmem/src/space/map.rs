//! Reserved address space, part of it mapped.
//!
//! The whole reserve is mapped once, without access; growth maps more of it in place, so that no
//! offset, slice or handle ever moves.

use super::{Access, Space, SpaceOptions};
use crate::media::Behaviour;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    reserved: u64,
    len: AtomicU64,
    growing: Mutex<()>,
    /// The length for which it may be reused after it is dropped: [`Mapping::holding`].
    spare_at: Option<u64>,
}

/// Mappings of the crash simulator that were dropped, the oldest first, for reuse by any thread: mapping, faulting in
/// and unmapping costs more than a whole simulated recovery.
static SPARE: Mutex<VecDeque<Mapping>> = Mutex::new(VecDeque::new());

/// The number of mappings that are kept, and the bytes of all.
const SPARES_MAX: usize = 64;
const SPARE_BYTES_MAX: u64 = 64 << 20;

// SAFETY: the mapping is plain memory that lives until drop; every access to its bytes goes through
// `Space`, which decides which accesses are allowed.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The size of a huge page, to which reserves are aligned.
const HUGE: u64 = 2 << 20;

/// Bytes of a system page: mappings and advice to the kernel cover whole system pages.
fn system_page() -> u64 {
    rustix::param::page_size() as u64
}

/// The whole system pages that contain a range: their offset and their length.
pub(super) fn system_pages(offset: u64, len: u64) -> (u64, u64) {
    let start = offset / system_page() * system_page();
    (start, (offset + len).next_multiple_of(system_page()) - start)
}

impl Mapping {
    fn reserve(reserve: u64) -> io::Result<Self> {
        let reserved = reserve.checked_next_multiple_of(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let with_slack = usize::try_from(reserved + HUGE).map_err(io::Error::other)?;
        // SAFETY: a fresh private mapping without access disturbs nothing.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                with_slack,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let raw = raw.cast::<u8>();
        let slack = raw.align_offset(HUGE as usize);
        let tail = HUGE as usize - slack;
        // SAFETY: both ends lie within the mapping just made, which no other code knows.
        unsafe {
            if slack > 0 {
                rustix::mm::munmap(raw.cast(), slack)?;
            }
            if tail > 0 {
                rustix::mm::munmap(raw.add(slack + reserved as usize).cast(), tail)?;
            }
        }
        // SAFETY: within the mapping, as above.
        let base = NonNull::new(unsafe { raw.add(slack) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, reserved, len: AtomicU64::new(0), growing: Mutex::new(()), spare_at: None })
    }

    /// `len` bytes of DRAM.
    pub(super) fn anonymous(len: u64, reserve: u64, huge: bool) -> io::Result<Self> {
        let mapping = Self::reserve(reserve.max(len))?;
        if huge {
            // SAFETY: advice on our own reserve. A kernel without huge pages refuses it, which only
            // costs speed.
            let _best_effort = unsafe {
                rustix::mm::madvise(
                    mapping.base.as_ptr().cast(),
                    mapping.reserved as usize,
                    Advice::LinuxHugepage,
                )
            };
        }
        mapping.grow(len, None, false)?;
        Ok(mapping)
    }

    /// DRAM with the contents `bytes`; growth, up to `reserve`, adds zeroes.
    pub(super) fn holding(bytes: &[u8], reserve: u64) -> io::Result<Self> {
        let len = bytes.len() as u64;
        let mapping = match Self::spare(len, reserve) {
            Some(mapping) => mapping,
            None => {
                let mut mapping = Self::anonymous(len, reserve, false)?;
                mapping.spare_at = Some(len);
                mapping
            }
        };
        // SAFETY: the mapping is that long, and no other code knows it: it is new, or its owner was
        // dropped, which every reference into it had borrowed.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.at(0), bytes.len());
        }
        Ok(mapping)
    }

    /// The first `len` bytes of `file`, shared.
    pub(super) fn file(file: &File, len: u64, reserve: u64, sync: bool) -> io::Result<Self> {
        let mapping = Self::reserve(reserve.max(len))?;
        mapping.grow(len, Some(file), sync)?;
        Ok(mapping)
    }

    /// A private mapping of the first `len` bytes of `file`: a page is copied at the first store,
    /// and no store reaches the file.
    pub(super) fn copy(file: &File, len: u64) -> io::Result<Self> {
        let mapping = Self::reserve(len)?;
        let bytes = usize::try_from(len).map_err(io::Error::other)?;
        // SAFETY: `len <= reserved`: the range is ours, without access so far, and no other code
        // knows it.
        unsafe {
            rustix::mm::mmap(
                mapping.base.as_ptr().cast(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                file,
                0,
            )?;
        }
        mapping.len.store(len, Ordering::Release);
        Ok(mapping)
    }

    /// Maps up to `len` bytes. A file must be that long already.
    pub(super) fn grow(&self, len: u64, file: Option<&File>, sync: bool) -> io::Result<()> {
        let _growing = self.growing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let old = self.len();
        if len <= old {
            return Ok(());
        }
        if len > self.reserved {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("{len} bytes are over the reserve of {}", self.reserved),
            ));
        }
        // The rest of the last system page was mapped with what lies before it.
        let mapped = old.next_multiple_of(system_page());
        if len <= mapped {
            self.len.store(len, Ordering::Release);
            return Ok(());
        }
        let more = usize::try_from(len - mapped).map_err(io::Error::other)?;
        // SAFETY: `mapped < len <= reserved`: the range is ours, without access so far, and no
        // reference into it can exist, since `self.len` has never been above `old <= mapped`.
        unsafe {
            let at = self.base.as_ptr().add(mapped as usize);
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            match file {
                None => rustix::mm::mprotect(
                    at.cast(),
                    more,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )?,
                Some(file) => {
                    let kind = if sync {
                        MapFlags::SHARED_VALIDATE | MapFlags::SYNC
                    } else {
                        MapFlags::SHARED
                    };
                    rustix::mm::mmap(
                        at.cast(),
                        more,
                        protection,
                        kind | MapFlags::FIXED,
                        file,
                        mapped,
                    )?;
                }
            }
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The address of `offset`, which must be within the reserve.
    #[inline]
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.reserved);
        self.base.as_ptr().wrapping_add(offset as usize)
    }

    #[inline]
    pub(super) fn prefetch(&self, offset: u64) {
        crate::arch::prefetch_address(self.at(offset));
    }

    #[inline]
    pub(super) fn prefetch_to_write(&self, offset: u64) {
        crate::arch::prefetch_address_to_write(self.at(offset));
    }

    /// Faults in the range, where the kernel can (Linux 5.14); best effort.
    pub(super) fn populate(&self, offset: u64, len: u64, access: Access) {
        let len = len.min(self.len().saturating_sub(offset));
        if len == 0 {
            return;
        }
        let (offset, len) = system_pages(offset, len);
        let advice = match access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range is mapped, to the end of its last system page; populating changes no
        // byte.
        let _best_effort =
            unsafe { rustix::mm::madvise(self.at(offset).cast(), len as usize, advice) };
    }
}

impl Space {
    /// A copy of a file: no store reaches the file, and it cannot grow.
    ///
    /// # Errors
    /// If it cannot be mapped in this way.
    pub(crate) fn copy(file: Arc<File>, len: u64, page_size: u32) -> io::Result<Self> {
        let options = SpaceOptions { page_size, reserve: len, own_epochs: false };
        let mapping = Mapping::copy(&file, len)?;
        // Pages without a store are still those of the file, which can be probed.
        Self::new(mapping, &options, Behaviour::Dram, Some(file))
    }
}

impl Mapping {
    /// The spare mappings; none while another thread has them: a thread of the simulator must not sleep.
    fn spares() -> Option<MutexGuard<'static, VecDeque<Self>>> {
        match SPARE.try_lock() {
            Ok(spares) => Some(spares),
            Err(TryLockError::Poisoned(spares)) => Some(spares.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A spare mapping of `len` bytes with this `reserve`.
    fn spare(len: u64, reserve: u64) -> Option<Self> {
        // Engines size their tables by the reserve.
        let reserved = reserve.max(len).checked_next_multiple_of(HUGE)?;
        let fits = |it: &Self| it.spare_at == Some(len) && it.reserved == reserved;
        let mut spare = Self::spares()?;
        // The one dropped last may be in the processor's caches.
        let at = spare.iter().rposition(fits)?;
        spare.remove(at)
    }

    /// Keeps the memory for the next [`Mapping::holding`]; false if it cannot.
    fn is_spared(&self) -> bool {
        // A mapping that has grown is dirty beyond its first length.
        if self.len() > SPARE_BYTES_MAX || self.spare_at != Some(self.len()) {
            return false;
        }
        // Dropped, and so unmapped, after the lock.
        let mut unused = Vec::new();
        let Some(mut spare) = Self::spares() else { return false };
        spare.push_back(Self {
            base: self.base,
            reserved: self.reserved,
            len: AtomicU64::new(self.len()),
            growing: Mutex::new(()),
            spare_at: self.spare_at,
        });
        let mut bytes: u64 = spare.iter().map(Self::len).sum();
        while bytes > SPARE_BYTES_MAX || spare.len() > SPARES_MAX {
            let Some(mut oldest) = spare.pop_front() else { break };
            bytes -= oldest.len();
            // So its drop unmaps it.
            oldest.spare_at = None;
            unused.push(oldest);
        }
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_spared() {
            return;
        }
        // SAFETY: no references are left: they all borrow the `Space` that owns this.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserved as usize) };
        debug_assert!(unmapped.is_ok());
    }
}
