//! The hook through which a simulator sees everything.

use crate::SyncError;

/// Sees every access of a traced [`Space`](crate::Space), in the thread that makes it, before the
/// memory changes. Each call may be a scheduling point.
pub trait Trace: Send + Sync + std::fmt::Debug {
    /// Plain stores of `bytes` at `offset`, in ascending order of address; an aligned 8-byte
    /// store is one atomic store.
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Non-temporal stores of `bytes` at `offset`.
    fn store_nt(&self, offset: u64, bytes: &[u8]);

    /// The lines of `offset .. offset + len` (line-aligned) are written back.
    fn flush(&self, offset: u64, len: u64);

    /// A fence of the calling thread.
    ///
    /// # Errors
    /// If the simulated medium fails its sync.
    fn fence(&self) -> Result<(), SyncError>;

    /// A load; `durable` if what is read is meant to outlive a restart.
    fn load(&self, offset: u64, len: u64, durable: bool);

    /// The space now has `len` bytes.
    fn grow(&self, len: u64);
}
