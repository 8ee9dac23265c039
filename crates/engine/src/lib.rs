//! The contract between storage engines and their callers.
//!
//! An [`Engine`] maps keys to [`Record`]s: reads, writes, batches, iteration. Further traits add capabilities that
//! some callers need:
//!
//! | trait | adds | used by |
//! |---|---|---|
//! | [`Ordered`], [`Snapshots`] | access in key order; a view of one moment (some engines) | `SCAN` by range, backups |
//! | [`Deferred`] | tickets, with which a caller waits for durability later | an event loop |
//! | [`Replicated`] | sequences, changes since a sequence, tombstones | a matrix of devices |
//! | [`Repairable`] | verify, scrub, damaged keys, loss of the medium | administration, a matrix |
//! | [`StorageEngine`] | all of them together | a store |
//!
//! All are object-safe, so that a server, a matrix of devices or a benchmark need not know which engine it holds.
//! The crate also contains the errors, sorted by what the caller must do ([`Remedy`]). The requirements for every
//! engine on every medium are code: the test suite of `coreplane-conformance`, with its reference model.
//!
//! # Durability and visibility
//!
//! A write is *appended*, then *durable* (no power cut takes it back), and *visible* (readers see
//! it). [`Durability`] says when the call returns; [`Completion`] says whether the caller waits:
//!
//! | level | `Completion::Wait` | `Completion::Early` |
//! |---|---|---|
//! | `Strict`, `Group` | durable, then visible, then return | visible, return a [`Ticket`]; durable once committed |
//! | `Relaxed` | visible, return; durable within the window | the same |
//!
//! A caller that writes `Early`, or reads with [`Visibility::Early`], must let no answer leave the process
//! before [`Deferred::is_durable`] holds for every ticket it was given; it calls [`Deferred::commit`] to
//! make them durable. In this way an event loop shares one fence or one sync among all commands that arrived
//! together and never blocks on it.
//!
//! # Sequences
//!
//! Every write has a 64-bit sequence, greater than that of every earlier write of the same key (by
//! any thread; deletes count, and restarts do not reset it). Sequences of different keys are
//! ordered only across [`Replicated::advance_sequence`]. A matrix supplies its own sequence in
//! [`WriteOptions::sequence`]; "put if newer" and "delete if newer" decide by it.

mod batch;
mod cursors;
mod durability;
mod error;
mod ordered;
mod outcome;
mod pool_file;
mod record;
mod repair;
mod repairable;
mod replica;
mod scrub;
mod snapshots;
mod stats;
mod tickets;

pub use batch::{Batch, Change, ChangeRef};
pub use cursors::Cursors;
pub use durability::{Completion, Durability, Horizon, Ticket, Visibility};
pub use error::{Error, Remedy, Result, Vacancy};
pub use ordered::{Ordered, end_of_prefix};
pub use outcome::{Beside, Brief, Outcome, Written};
pub use pool_file::Backing;
pub use record::{Record, TimeSource, UnixMillis, Value};
pub use repair::{Fate, Finding, Repair, Tell};
pub use repairable::Repairable;
pub use replica::Replicated;
pub use scrub::{SCRUB_BYTES, SCRUB_PACE, Scrub, Scrubbed, scrub_rest};
pub use snapshots::{Snapshot, Snapshots};
pub use stats::{
    Damage, DamagedKey, DeviceStats, GroupStats, KeyRange, Latency, Progress, ScrubReport, Stats,
    VerifyReport,
};
pub use tickets::{Clear, Deferred};

use std::sync::Arc;

/// The longest key, in bytes (64 KiB), unless an engine's own [`Limits`] are narrower.
pub const KEY_LEN_MAX: usize = 64 << 10;

/// The longest value, in bytes (512 MiB, Redis's limit), unless [`Limits`] are narrower.
pub const VALUE_LEN_MAX: usize = 512 << 20;

/// The options of one write. `WriteOptions::default()` is a write at the store's own durability,
/// without expiry; the call waits until it is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The time at which the record ceases to exist; none: never.
    pub expires_at: Option<UnixMillis>,
    /// Overrides the store's durability for this write; none: the store's durability.
    pub durability: Option<Durability>,
    /// Whether the call waits for durability.
    pub completion: Completion,
    /// A sequence given by the caller (a matrix). The write is then made only if this is newer than
    /// the sequence of the record (or its tombstone); else the answer is [`Outcome::NotNewer`].
    /// None: the engine assigns the next sequence. It must be below 2^61, and below 2^60 for a matrix.
    pub sequence: Option<u64>,
    /// The write may use the reserve (pages that are kept for deletes), so that it succeeds in a full pool
    /// as a delete does. For small records that now and then replace others of their kind.
    pub use_reserve: bool,
}

/// The state that [`Engine::compare_and_set`] expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// The key must be absent.
    Absent,
    /// The record's value must equal these bytes.
    Value(&'a [u8]),
    /// The record's sequence must equal this.
    Sequence(u64),
}

impl<'a> From<&'a [u8]> for Expected<'a> {
    fn from(value: &'a [u8]) -> Self {
        Self::Value(value)
    }
}

impl<'a, const LEN: usize> From<&'a [u8; LEN]> for Expected<'a> {
    fn from(value: &'a [u8; LEN]) -> Self {
        Self::Value(value)
    }
}

impl<'a> From<&'a Vec<u8>> for Expected<'a> {
    fn from(value: &'a Vec<u8>) -> Self {
        Self::Value(value)
    }
}

impl<'a> From<&'a str> for Expected<'a> {
    fn from(value: &'a str) -> Self {
        Self::Value(value.as_bytes())
    }
}

/// The answer of a read: a value, or none.
impl<'a> From<Option<&'a [u8]>> for Expected<'a> {
    fn from(value: Option<&'a [u8]>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }
}

/// The change that [`Engine::modify`] makes to the record that it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Change nothing.
    Keep,
    /// Delete the record (as `Keep` if there is none).
    Delete,
    /// Write this value.
    Put {
        /// The new value.
        value: Vec<u8>,
        /// Its expiry, in place of that of [`WriteOptions`].
        expires_at: Option<UnixMillis>,
    },
    /// Keep the value, change its expiry (as `Keep` if there is no record).
    Expire(Option<UnixMillis>),
}

/// The bounds of an engine; by default those of one that takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// The longest key, in bytes.
    pub key_len_max: usize,
    /// The longest value, in bytes.
    pub value_len_max: usize,
    /// The most changes in one batch.
    pub batch_len_max: usize,
    /// The most bytes of keys and values in one batch.
    pub batch_bytes_max: usize,
}

impl Limits {
    /// The bounds of what two engines take both.
    pub fn both(self, other: Self) -> Self {
        Self {
            key_len_max: self.key_len_max.min(other.key_len_max),
            value_len_max: self.value_len_max.min(other.value_len_max),
            batch_len_max: self.batch_len_max.min(other.batch_len_max),
            batch_bytes_max: self.batch_bytes_max.min(other.batch_bytes_max),
        }
    }
}

/// A record met by [`Engine::iterate`] or [`Replicated::changes_since`].
#[derive(Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The record; none for a tombstone (of `changes_since`), and where a scan says so.
    pub record: Option<Record<'a>>,
    /// The sequence of the record or tombstone.
    pub sequence: u64,
}

/// Called by the engine whenever more became durable; must be quick and must not call back.
pub type DurableListener = Arc<dyn Fn() + Send + Sync>;

/// A key-value store.
///
/// All methods may be called from any thread. A record handed to a closure is valid only inside
/// it; the closure must not call the engine (a `modify` closure runs under the key's lock).
///
/// # Errors
///
/// Every method may return [`Error::Io`], [`Error::SyncFailed`] or [`Error::Corrupt`]; further errors are named at
/// each method. A write that failed is not visible, with one exception: after [`Error::Indeterminate`] it may be
/// visible, now or later.
pub trait Engine: Send + Sync {
    /// The engine's name, as in `--engine`.
    fn name(&self) -> &'static str;

    /// The bounds that hold here.
    fn limits(&self) -> Limits;

    /// The caller is about to read or to write `key`: the memory that is needed first may be prefetched
    /// while the caller does something else. A hint: nothing changes, and no lock is waited for. It does
    /// not panic, even if the medium returns wrong bytes or cannot be read.
    fn prefetch(&self, _key: &[u8]) {}

    /// Shows the record of `key` to `visit`; false if there is none. With
    /// [`Visibility::Durable`] the record is durable before `visit` sees it; with
    /// [`Visibility::Early`] see [`Record::ticket`]. An absence, too, may depend on a delete that
    /// is not durable: the returned ticket covers it.
    ///
    /// # Errors
    /// As the trait's.
    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found>;

    /// Copies the value of `key`. Reads only durable records.
    ///
    /// # Errors
    /// As [`Engine::get_with`].
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        self.get_with(key, Visibility::Durable, &mut |record| {
            value = Some(record.value.to_vec());
        })?;
        Ok(value)
    }

    /// Shows the records of `keys`, each with its index, in any order; `None` for an absent key. No batch
    /// is seen in part. The ticket covers all that was read.
    ///
    /// # Errors
    /// As [`Engine::get_with`].
    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon>;

    /// Writes `value` for `key`, whether or not the key is present.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::ReadOnly`].
    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Writes only if `key` is absent, else [`Outcome::Exists`].
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Writes only if `key` is present, else [`Outcome::Missing`].
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Deletes the record of `key`; [`Outcome::Missing`] if there is none. With a caller's
    /// [`WriteOptions::sequence`] the tombstone is written anyway: an older put may still arrive.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Writes `value` if the record is as `expected`, else [`Outcome::Mismatch`].
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome>;

    /// Reads the record, lets `decide` choose, and writes: no other write of `key` comes between.
    /// `decide` may run more than once; the last answer counts.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome>;

    /// Makes all changes of `batch` or none, with one fence where they fit a page; readers see
    /// all or none. Later changes of the same key win. The expiry of `options` is not used (each
    /// change has its own).
    ///
    /// # Errors
    /// As [`Engine::put`], [`Error::BatchTooLarge`], and [`Error::BatchTooLong`].
    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written>;

    /// Iterates over the live records in an order of the engine's own, at least `count` in a call
    /// while there are more (and at most a small factor more). Expired records may count without
    /// being shown, and so may places without a record: a call passes at most some hundred of them,
    /// or as many as `count`. So it may show fewer records, or none. With a `count` of 0 an engine
    /// that has places looks at only one; others show a record, as with 1. Start with cursor 0; the
    /// answer is the next cursor, 0 at the end. A record that exists from the first call to the last
    /// is shown at least once; one that is written or removed in between may or may not be shown. A
    /// cursor keeps nothing open, and any number is a valid cursor. Cursors whose lowest 38 bits are 0
    /// are left to servers: no answer is one, except 0 itself, and each is taken for the beginning.
    ///
    /// # Errors
    /// As the trait's.
    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64>;

    /// The number of live records; an expired one counts until it is removed.
    ///
    /// # Errors
    /// As the trait's.
    fn len(&self) -> Result<u64>;

    /// As [`Engine::len`], for callers that cannot wait: none if not all records of the opened
    /// store are counted yet. Each call counts some of them, so that a later call gets an answer.
    ///
    /// # Errors
    /// As the trait's.
    fn try_len(&self) -> Result<Option<u64>> {
        self.len().map(Some)
    }

    /// Completes the counts of records, and of the bytes they take, that [`Engine::stats`] reports, as far as this
    /// was not done since the store was opened: it may take as long as a look at every record.
    ///
    /// # Errors
    /// As the trait's.
    fn count(&self) -> Result<()> {
        self.len().map(drop)
    }

    /// True if there is no record.
    ///
    /// # Errors
    /// As the trait's.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes every record, durably when it returns. Concurrent writes come before or after it.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn clear(&self) -> Result<()>;

    /// True if a crash during [`Engine::clear`] leaves all records or none.
    fn clears_at_once(&self) -> bool {
        false
    }

    /// Removes every record that has expired by now, so that it is no longer counted; returns their
    /// number. Readers see no difference, and what remains of a record keeps its sequence. Engines
    /// also do this by themselves, sooner or later.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn sweep_expired(&self) -> Result<u64>;

    /// The time that expiries are compared with: the clock's, but never below an expiry that
    /// readers have already seen as passed, even if the clock was set back since. Relative expiries
    /// are computed from it, so that a record is not already expired when it is written.
    fn now(&self) -> UnixMillis {
        UnixMillis::now()
    }

    /// Makes all writes before the call durable.
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    fn sync(&self) -> Result<()>;

    /// The counters.
    fn stats(&self) -> Stats;

    /// Stops background work and leaves a clean store behind, from which the next open is
    /// immediate. Writes after it fail with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    fn close(&self) -> Result<()>;

    /// Ordered access, if the engine has it.
    fn ordered(&self) -> Option<&dyn Ordered> {
        None
    }

    /// Snapshots, if the engine has them.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
}

/// All traits of an engine that can be served, be a device of a matrix, and be repaired.
pub trait StorageEngine: Deferred + Replicated + Repairable {}

impl<T: Deferred + Replicated + Repairable> StorageEngine for T {}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// True if there was a record, and `visit` saw it.
    pub hit: bool,
    /// The ticket that the answer depends on; [`Ticket::DURABLE`] after [`Visibility::Durable`].
    pub ticket: Ticket,
}
