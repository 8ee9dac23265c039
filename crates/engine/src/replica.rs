//! What a copy of a store needs beyond reads and writes: sequences, changes since one of them, tombstones.

use crate::{Beside, Brief, Engine, Entry, Result, WriteOptions};

/// An engine that can be one of several copies: a device of a matrix.
///
/// # Errors
/// As [`Engine`].
pub trait Replicated: Engine {
    /// A hint as [`Engine::prefetch`], a little after it: the caller is about to write `key` with a value of `len`
    /// bytes. The lock may be asked for, and where the record will be.
    fn prefetch_to_write(&self, _key: &[u8], _len: usize) {}

    /// Likewise of the record that the write replaces, when what [`Engine::prefetch`] has asked for has come: it may
    /// be loaded. For a caller who has several engines look side by side; one alone waits here for what
    /// the write would wait for.
    fn prefetch_replaced(&self, _key: &[u8]) {}

    /// As [`Engine::put`], with the sequence given, and told in two words what came of it. With `beside`
    /// only if it takes no more than an append and a fence that is an instruction.
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

    /// Draws a sequence: that of no write that has returned is greater, that of each later write is.
    ///
    /// # Errors
    /// As the trait's.
    fn advance_sequence(&self) -> Result<u64>;

    /// Shows every record and tombstone whose sequence is greater than `sequence`, in any order, perhaps
    /// some older ones too. Complete only from [`Replicated::tombstone_horizon`] on.
    ///
    /// # Errors
    /// [`Error::HistoryGone`](crate::Error::HistoryGone) if `sequence` is below the tombstone horizon: before
    /// anything was shown, or afterwards, if tombstones were dropped meanwhile. Then all others have been shown.
    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()>;

    /// Keep every tombstone with a sequence above `sequence`, until called again, restarts
    /// included. It starts at `u64::MAX`: none is kept for the caller's sake.
    ///
    /// # Errors
    /// As the trait's.
    fn hold_tombstones(&self, sequence: u64) -> Result<()>;

    /// The sequence above which no tombstone has been dropped yet.
    fn tombstone_horizon(&self) -> u64;

    /// True if a crash during [`Engine::clear`] leaves all records or none.
    fn clears_at_once(&self) -> bool {
        false
    }
}
