//! What a copy of a store needs beyond reads and writes: sequences, changes since a sequence, tombstones.

use crate::{Beside, Brief, Engine, Entry, Result, WriteOptions};

/// An engine that can be one of several copies: a device of a matrix.
///
/// # Errors
/// As [`Engine`].
pub trait Replicated: Engine {
    /// A hint as [`Engine::prefetch`], given a little after it: the caller is about to write `key` with a value of
    /// `len` bytes. The engine may prefetch the lock and the place of the new record.
    fn prefetch_to_write(&self, _key: &[u8], _len: usize) {}

    /// The same hint for the record that the write replaces, given when the memory prefetched by
    /// [`Engine::prefetch`] has arrived: it may be loaded. For a caller that prefetches in several engines side by
    /// side; with a single engine the wait only moves here from the write.
    fn prefetch_replaced(&self, _key: &[u8]) {}

    /// As [`Engine::put`] with a given sequence; the outcome fits two words. With `beside`, only a put
    /// that needs no more than an append, and a fence that is an instruction, is made.
    fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        match beside {
            None => Brief::of(self.put(key, value, options)),
            Some(_) => Brief::Declined,
        }
    }

    /// Draws a sequence: no write that has returned has a greater one, and each later write has.
    ///
    /// # Errors
    /// As the trait's.
    fn advance_sequence(&self) -> Result<u64>;

    /// Shows every record and tombstone with a sequence above `sequence`, in any order, and possibly
    /// some older ones. Complete only from [`Replicated::tombstone_horizon`] on.
    ///
    /// # Errors
    /// [`Error::HistoryGone`](crate::Error::HistoryGone) if `sequence` is below the tombstone horizon: either before
    /// anything was shown, or afterwards, if tombstones were dropped meanwhile. In the latter case all other changes
    /// have been shown.
    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()>;

    /// Keeps every tombstone with a sequence above `sequence` until the next call, across restarts.
    /// The initial value is `u64::MAX`: no tombstone is kept for the caller.
    ///
    /// # Errors
    /// As the trait's.
    fn hold_tombstones(&self, sequence: u64) -> Result<()>;

    /// The sequence above which no tombstone has been dropped yet.
    fn tombstone_horizon(&self) -> u64;
}
