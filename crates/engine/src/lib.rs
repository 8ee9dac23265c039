//! The contract between whoever stores records and whoever asks for them.
//!
//! An [`Engine`] maps keys to [`Record`]s: reads, writes, batches, iteration. Beside it stand traits for those who
//! ask for more:
//!
//! | trait | what it adds | asked by |
//! |---|---|---|
//! | [`Ordered`], [`Snapshots`] | keys in their order; a state that stays (some engines) | `SCAN` by range, backups |
//! | [`Deferred`] | tickets: durability that is waited for later | an event loop |
//! | [`Replicated`] | sequences, changes since one, tombstones | a matrix of devices |
//! | [`Repairable`] | verify, scrub, damaged keys, a medium that goes | administration, a matrix |
//! | [`StorageEngine`] | all of it | a store |
//!
//! All are object-safe, so that a server, a matrix of devices or a benchmark never learns which engine it holds. The
//! crate also holds the errors, sorted by what the caller must do ([`Remedy`]). What every engine must do on every
//! medium is code: the suite of `coreplane-conformance`, with its reference model.
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
//! A caller that writes `Early`, or reads with [`Visibility::Early`], takes over the duty that
//! nothing leaves the process before [`Deferred::is_durable`] holds for every ticket it was given,
//! for which it calls [`Deferred::commit`]. That is how an event loop shares one fence or one sync among all
//! commands that arrived together and never blocks on it.
//!
//! # Sequences
//!
//! Every write has a 64-bit sequence, greater than that of every earlier write of the same key
//! (whichever thread wrote it, deletes and restarts included). Two keys' sequences are ordered
//! only across [`Replicated::advance_sequence`]. A matrix supplies its own by
//! [`WriteOptions::sequence`], with which "put if newer" and "delete if newer" decide.

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

/// What one write asks for beyond key and value. `WriteOptions::default()` is a write at the
/// store's own durability, waited for, without expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The time at which the record ceases to exist; none: never.
    pub expires_at: Option<UnixMillis>,
    /// Overrides the store's durability for this write; none: the store's.
    pub durability: Option<Durability>,
    /// Whether the call waits for durability.
    pub completion: Completion,
    /// A sequence given by the caller (a matrix). The write then happens only if it is newer than
    /// the record's (or its tombstone's) sequence; else the answer is
    /// [`Outcome::NotNewer`]. None: the engine gives the next one.
    pub sequence: Option<u64>,
    /// The write may use the reserve, the pages that are kept for deletes, so that it succeeds in a full
    /// pool as a delete does. For small records that take the place of others of their kind, now and then.
    pub use_reserve: bool,
}

/// What [`Engine::compare_and_set`] compares with.
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

/// What a read has answered: a value, or that there is none.
impl<'a> From<Option<&'a [u8]>> for Expected<'a> {
    fn from(value: Option<&'a [u8]>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }
}

/// What [`Engine::modify`] does with the record that it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Leave all as it is.
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

/// The bounds of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A record met by [`Engine::iterate`] or [`Replicated::changes_since`].
#[derive(Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The record; none for a tombstone (only `changes_since` shows them).
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
/// Every method may return [`Error::Io`], [`Error::SyncFailed`] or [`Error::Corrupt`]; further
/// errors are named at each. After any error of a write nothing of it is visible, but after [`Error::Indeterminate`]: then
/// it may be, now or later.
pub trait Engine: Send + Sync {
    /// The engine's name, as in `--engine`.
    fn name(&self) -> &'static str;

    /// The bounds that hold here.
    fn limits(&self) -> Limits;

    /// The caller is about to read or to write `key`: what is looked at first may be asked for while
    /// the caller does something else. A hint; nothing changes, no lock is waited for. It does not panic,
    /// whatever bytes the medium reads as, or none.
    fn prefetch(&self, _key: &[u8]) {}

    /// Shows the record of `key` to `visit`; false if there is none. With
    /// [`Visibility::Durable`] the record is durable before `visit` sees it; with
    /// [`Visibility::Early`] see [`Record::ticket`]. An absence, too, may rest on an undurable
    /// delete: the returned ticket covers it.
    ///
    /// # Errors
    /// As the trait's.
    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found>;

    /// Copies the value of `key`. Reads only what is durable.
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

    /// Shows the records of `keys`, each with its index, in any order; absent ones as `None`. No batch is
    /// seen in part. The ticket covers all that was read.
    ///
    /// # Errors
    /// As [`Engine::get_with`].
    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon>;

    /// Writes `value` for `key`, whether or not it is there.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::ReadOnly`].
    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Writes only if `key` is absent, else [`Outcome::Exists`].
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome>;

    /// Writes only if `key` is there, else [`Outcome::Missing`].
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

    /// Reads, decides, writes: no other write of `key` comes between. `decide` may run more than
    /// once; the last answer counts.
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

    /// Iterates over the live records in an order of the engine's own, at least `count` at a call
    /// while there are more (no more than a small factor beyond), where one that has expired may
    /// count as if it were shown: so a call may show none. Start with cursor 0; the answer
    /// is the next cursor, 0 at the end. A record that is there from the first call to the last
    /// is shown at least once; one that comes or goes between may or may not be. A cursor holds
    /// nothing open, and any number is a valid cursor.
    ///
    /// # Errors
    /// As the trait's.
    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64>;

    /// The number of live records; an expired one counts until it is removed.
    ///
    /// # Errors
    /// As the trait's.
    fn len(&self) -> Result<u64>;

    /// As [`Engine::len`], for who cannot wait: none if the records of a store that was opened are
    /// not all counted yet. A call counts some of them, so that who asks again gets an answer.
    ///
    /// # Errors
    /// As the trait's.
    fn try_len(&self) -> Result<Option<u64>> {
        self.len().map(Some)
    }

    /// Counts what [`Engine::stats`] tells of records and of what they take, as far as that was not
    /// done since the store was opened: it may take as long as to look at every record.
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

    /// Removes every record, durably when it returns. Writes that run beside it come before or
    /// after it.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn clear(&self) -> Result<()>;

    /// Removes every record that has expired by now, so that it is counted no more; how many it
    /// was. Readers see no difference, and what stays of a record has its sequence. Engines do
    /// it by themselves too, sooner or later.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn sweep_expired(&self) -> Result<u64>;

    /// The time that expiries are held against: the clock's, but never less than any expiry that
    /// a reader was told has passed, whatever became of the clock since. Relative expiries are
    /// computed from it, lest a record be gone when it is written.
    fn now(&self) -> UnixMillis {
        UnixMillis::now()
    }

    /// Makes everything durable that was written before the call.
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

/// All of it: what a store is held as that may be served, be a device of a matrix, and be mended.
pub trait StorageEngine: Deferred + Replicated + Repairable {}

impl<T: Deferred + Replicated + Repairable> StorageEngine for T {}

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// True if there was a record, and `visit` saw it.
    pub hit: bool,
    /// What the answer rests on; [`Ticket::DURABLE`] after [`Visibility::Durable`].
    pub ticket: Ticket,
}
