//! The hook through which a simulator sees all accesses.

use crate::SyncError;
use std::io;

/// Sees every access of a traced [`Space`](crate::Space), in the thread that makes it, before the
/// memory changes (except for [`Trace::swapped`]). Each call except that one may be a scheduling
/// point: the access itself immediately follows the call.
pub trait Trace: Send + Sync + std::fmt::Debug {
    /// Plain stores of `bytes` at `offset`, in ascending order of address; an aligned 8-byte
    /// store is one atomic store. `durable` if the stored bytes are meant to survive a restart.
    fn store(&self, offset: u64, bytes: &[u8], durable: bool);

    /// Non-temporal stores of `bytes` at `offset`.
    fn store_nt(&self, offset: u64, bytes: &[u8]);

    /// A compare-and-swap has just stored `value` in the word at `offset`. A [`Trace::load`] of
    /// the word came before. Not a scheduling point: no thread may see the value before the trace does.
    fn swapped(&self, offset: u64, value: u64, durable: bool);

    /// The lines of `offset .. offset + len` (line-aligned) are written back.
    fn flush(&self, offset: u64, len: u64);

    /// A fence of the calling thread.
    ///
    /// # Errors
    /// If the simulated medium fails its sync.
    fn fence(&self) -> Result<(), SyncError>;

    /// A fence instruction of the calling thread in another space has covered its flushes in this
    /// space, too.
    fn fenced_elsewhere(&self);

    /// True if a fence is an instruction, not a wait for a device.
    fn fences_at_once(&self) -> bool;

    /// The generation of the sync that covers the flushes of this thread, where a fence is a wait;
    /// this call begins no sync.
    fn sync_generation(&self) -> u64;

    /// Requests the syncs up to `generation`: they are made some time later.
    fn sync_request(&self, generation: u64);

    /// True once everything that `generation` covers is durable.
    ///
    /// # Errors
    /// If it can no longer become durable.
    fn sync_is_done(&self, generation: u64) -> Result<bool, SyncError>;

    /// True if appends go past the caches.
    fn appends_past_caches(&self) -> bool;

    /// The error of the sync that failed, if one did.
    ///
    /// # Errors
    /// That error.
    fn check_sync(&self) -> Result<(), SyncError>;

    /// A load; `durable` if the loaded bytes are meant to survive a restart.
    fn load(&self, offset: u64, len: u64, durable: bool);

    /// The first unreadable offset in `offset .. offset + len`, if there is one.
    fn unreadable(&self, offset: u64, len: u64) -> Option<u64>;

    /// The space is about to grow to `len` bytes.
    ///
    /// # Errors
    /// If the simulated medium has no room for them.
    fn grow(&self, len: u64) -> io::Result<()>;
}
