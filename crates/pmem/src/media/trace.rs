//! The hook through which a simulator sees everything.

use crate::SyncError;
use std::io;

/// Sees every access of a traced [`Space`](crate::Space), in the thread that makes it, before the
/// memory changes (but for [`Trace::swapped`]). Each call but that one may be a scheduling point:
/// the access itself follows the call at once.
pub trait Trace: Send + Sync + std::fmt::Debug {
    /// Plain stores of `bytes` at `offset`, in ascending order of address; an aligned 8-byte
    /// store is one atomic store. `durable` if what is stored is meant to outlive a restart.
    fn store(&self, offset: u64, bytes: &[u8], durable: bool);

    /// Non-temporal stores of `bytes` at `offset`.
    fn store_nt(&self, offset: u64, bytes: &[u8]);

    /// A compare-and-swap has just stored `value` in the word at `offset`. A [`Trace::load`] of
    /// the word came before. No scheduling point: nobody may see the value sooner than the trace.
    fn swapped(&self, offset: u64, value: u64, durable: bool);

    /// The lines of `offset .. offset + len` (line-aligned) are written back.
    fn flush(&self, offset: u64, len: u64);

    /// A fence of the calling thread.
    ///
    /// # Errors
    /// If the simulated medium fails its sync.
    fn fence(&self) -> Result<(), SyncError>;

    /// A fence of the calling thread, an instruction, has covered what it flushed here too, though
    /// it was made in another space.
    fn fenced_elsewhere(&self);

    /// True if a fence is an instruction, not a wait for a device.
    fn fences_at_once(&self) -> bool;

    /// The generation of the sync that covers what this thread flushed, where a fence is a wait;
    /// none is begun for it.
    fn sync_generation(&self) -> u64;

    /// The syncs up to `generation` are asked for: they are made some time later.
    fn sync_request(&self, generation: u64);

    /// True once everything that `generation` covers is durable.
    ///
    /// # Errors
    /// If that can no longer happen.
    fn sync_is_done(&self, generation: u64) -> Result<bool, SyncError>;

    /// True if appends go past the caches.
    fn appends_past_caches(&self) -> bool;

    /// The error of the sync that failed, if one did.
    ///
    /// # Errors
    /// That error.
    fn check_sync(&self) -> Result<(), SyncError>;

    /// A load; `durable` if what is read is meant to outlive a restart.
    fn load(&self, offset: u64, len: u64, durable: bool);

    /// The first place of `offset .. offset + len` that cannot be loaded from, if there is one.
    fn unreadable(&self, offset: u64, len: u64) -> Option<u64>;

    /// The space is about to have `len` bytes.
    ///
    /// # Errors
    /// If the simulated medium has no room for them.
    fn grow(&self, len: u64) -> io::Result<()>;
}
