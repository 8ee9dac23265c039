//! The reference engine: a sorted map in DRAM that does what the trait says and nothing else.
//!
//! # What it is for
//!
//! The conformance suite judges every engine by this one, and code that holds a `dyn StorageEngine` can be tested on
//! it. So it is written to be obviously right, not fast: one lock around one map, every call one step under that
//! lock.
//!
//! # The picture
//!
//! ```text
//!  cells    key -> Cell { value or tombstone, sequence, expiry, log position }   (sorted)
//!  order    (hash of key, key)                                 the order of `iterate`
//!  log      1 2 3 4 5 6 7
//!                 ^     ^
//!           durable     appended       equal, unless commits are manual
//!  undo     (position, key, cell before)                  for writes that are not durable yet
//! ```
//!
//! There is one log, so a ticket is a position in it, and making a position durable makes every earlier one durable.
//! With [`ModelEngine::with_manual_commit`] writes that are completed [`Early`](coreplane_engine::Completion::Early)
//! stay undurable until [`ModelEngine::make_durable`] (or a write that waits, `sync`, `clear`, `close`), so that a
//! test decides when a ticket becomes durable. [`ModelEngine::after_power_cut`] gives the store as a power cut would
//! leave it.
//!
//! # Invariants
//!
//! - `durable <= appended`; `undo` holds exactly the positions above `durable`.
//! - Every key of `cells` is in `order` and the other way round, tombstones included.
//! - The sequence of a key only grows, and `State::sequence` is at least that of every cell.
//! - `now` never goes back: an expired record stays gone, even if the clock is set back.
//! - A tombstone is dropped only if it is durable and not held, and `dropped` is at least its
//!   sequence afterwards.

mod clock;
mod interface;
mod places;
mod state;
mod views;

pub use clock::{Clock, ManualClock};

use coreplane_engine::{DurableListener, Error, Horizon, Limits, Result, UnixMillis};
use parking_lot::{Condvar, Mutex, MutexGuard};
use state::State;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The default bounds of a [`ModelEngine`].
pub const LIMITS: Limits = Limits {
    key_len_max: coreplane_engine::KEY_LEN_MAX,
    value_len_max: coreplane_engine::VALUE_LEN_MAX,
    batch_len_max: 64 << 10,
    batch_bytes_max: usize::MAX,
};

/// Sequences given by callers must be below this, so that there is always a next one.
pub const SEQUENCE_END: u64 = 1 << 63;

/// A call of a test between two steps of a caller.
type Interruption = Box<dyn FnOnce(&ModelEngine) + Send>;

/// The reference implementation of [`Engine`](coreplane_engine::Engine), in memory. It has
/// [`Ordered`](coreplane_engine::Ordered) access and [`Snapshots`](coreplane_engine::Snapshots).
///
/// Everything is durable at once, unless it was made [`with_manual_commit`](Self::with_manual_commit).
/// `Relaxed` writes get [`Ticket::DURABLE`](coreplane_engine::Ticket::DURABLE), meaning that no wait is needed; with
/// manual commit a power cut still loses them.
pub struct ModelEngine {
    state: Mutex<State>,
    durable_grew: Condvar,
    listeners: Mutex<Vec<DurableListener>>,
    clock: Clock,
    limits: Limits,
    /// `try_len` reports that the records are not counted yet.
    is_counting: AtomicBool,
    is_miscounted: AtomicBool,
    /// Every second read that shows several records finds the store busy.
    is_busy: AtomicBool,
    is_settling: AtomicBool,
    reads: AtomicU64,
    interruption: Mutex<Option<Interruption>>,
    sync_interruption: Mutex<Option<Interruption>>,
    leaderships: AtomicU64,
    /// The logarithm of the number of places, if it has no order.
    places: Option<u32>,
    looked_at: AtomicU64,
}

impl std::fmt::Debug for ModelEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Default for ModelEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelEngine {
    /// An empty store on the system's clock; every write is durable at once.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(UnixMillis::now))
    }

    /// An empty store that asks `clock` for the time (a [`ManualClock`], for one).
    pub fn with_clock(clock: Clock) -> Self {
        Self::from_state(State::default(), clock, LIMITS)
    }

    /// An empty store on the system's clock in which `Early` writes become durable only on
    /// [`make_durable`](Self::make_durable), or together with a write that waits, or by `sync`,
    /// `clear` or `close`.
    pub fn with_manual_commit() -> Self {
        Self::new().manual_commit()
    }

    /// Switches a new store to manual commit: see [`with_manual_commit`](Self::with_manual_commit).
    #[must_use]
    pub fn manual_commit(self) -> Self {
        self.state.lock().manual = true;
        self
    }

    /// Sets the bounds of a new store.
    #[must_use]
    pub fn bounded_by(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets a new store hold at most `bytes` of keys and values of live records; a write beyond is
    /// [`Error::NoSpace`].
    #[must_use]
    pub fn with_capacity(self, bytes: u64) -> Self {
        self.state.lock().capacity = Some(bytes);
        self
    }

    /// Lets a new store have its records in `2^bits` places instead of an order, as a hash table has: an iteration
    /// looks at one after the other.
    ///
    /// # Panics
    /// Unless `bits` is from 1 to 31.
    #[must_use]
    pub fn with_places(mut self, bits: u32) -> Self {
        assert!((1..32).contains(&bits));
        self.places = Some(bits);
        self
    }

    /// The number of places that iterations have looked at so far.
    pub fn places_looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
    }

    fn from_state(state: State, clock: Clock, limits: Limits) -> Self {
        Self {
            state: Mutex::new(state),
            durable_grew: Condvar::new(),
            listeners: Mutex::new(Vec::new()),
            clock,
            limits,
            is_counting: AtomicBool::new(false),
            is_miscounted: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            is_settling: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            interruption: Mutex::new(None),
            sync_interruption: Mutex::new(None),
            leaderships: AtomicU64::new(0),
            places: None,
            looked_at: AtomicU64::new(0),
        }
    }

    /// Makes all writes durable, wakes the waiting threads and calls the listeners of
    /// [`on_durable`](coreplane_engine::Deferred::on_durable). True if anything became durable.
    pub fn make_durable(&self) -> bool {
        let mut state = self.state.lock();
        let grew = state.harden();
        drop(state);
        self.announce(grew);
        grew
    }

    /// Sets whether the records are still being counted, for callers that cannot wait: as after an open.
    pub fn set_counting(&self, is_counting: bool) {
        self.is_counting.store(is_counting, Ordering::Release);
    }

    /// From now on `len` fails, as that of a store whose index is damaged does; or no longer.
    pub fn set_miscounted(&self, is_miscounted: bool) {
        self.is_miscounted.store(is_miscounted, Ordering::Release);
    }

    /// From now on every second call that shows several records fails with [`Error::Busy`] after it has shown them;
    /// or no longer.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    /// From now on it says that early writes settle by themselves, as those of a node of a cluster do; or no longer.
    pub fn set_settling(&self, is_settling: bool) {
        self.is_settling.store(is_settling, Ordering::Release);
    }

    /// Counts a call that shows several records.
    fn count_read(&self) -> Result<()> {
        let is_busy = self.is_busy.load(Ordering::Acquire);
        match is_busy && self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            true => Err(Error::Busy),
            false => Ok(()),
        }
    }

    /// Runs `interruption` once, at the end of the next call that shows records by their keys.
    pub fn after_next_read(&self, interruption: impl FnOnce(&Self) + Send + 'static) {
        *self.interruption.lock() = Some(Box::new(interruption));
    }

    /// Runs `interruption` once, at the beginning of the next `sync`.
    pub fn at_next_sync(&self, interruption: impl FnOnce(&Self) + Send + 'static) {
        *self.sync_interruption.lock() = Some(Box::new(interruption));
    }

    fn interrupt(&self, interruption: &Mutex<Option<Interruption>>) {
        let interruption = interruption.lock().take();
        if let Some(run) = interruption {
            run(self);
        }
    }

    /// Another writer may have written, as in a cluster between two leaderships of a node.
    pub fn end_leadership(&self) {
        self.leaderships.fetch_add(1, Ordering::SeqCst);
    }

    /// True if there are writes that are not durable yet.
    pub fn has_undurable(&self) -> bool {
        let state = self.state.lock();
        state.durable < state.appended
    }

    /// From now on every write and every wait for an undurable write fails with [`Error::SyncFailed`], as after a
    /// failed sync of the medium.
    pub fn break_medium(&self, reason: &str) {
        self.state.lock().broken = Some(reason.to_owned());
        self.announce(true);
    }

    /// The store as the next open finds it after the process was killed now: nothing is lost.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.reopen();
        let reopened = Self::from_state(state, Arc::clone(&self.clock), self.limits);
        Self { places: self.places, ..reopened }
    }

    /// The store as the next open finds it after a power failure now: undurable writes are lost.
    #[must_use]
    pub fn after_power_cut(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.lose_undurable();
        state.reopen();
        let reopened = Self::from_state(state, Arc::clone(&self.clock), self.limits);
        Self { places: self.places, ..reopened }
    }

    /// The state, with the time brought up to the clock's.
    fn lock(&self) -> MutexGuard<'_, State> {
        let now = (self.clock)();
        let mut state = self.state.lock();
        state.now = state.now.max(now);
        state
    }

    /// Tells waiters and listeners that more is durable. Never called under the lock.
    fn announce(&self, grew: bool) {
        if !grew {
            return;
        }
        self.durable_grew.notify_all();
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            listener();
        }
    }

    /// Waits until position `position` is durable.
    fn wait_position(&self, state: &mut MutexGuard<'_, State>, position: u64) -> Result<()> {
        while !state.is_durable_at(position)? {
            self.durable_grew.wait(state);
        }
        Ok(())
    }

    fn check_lengths(&self, key: &[u8], value_len: usize) -> Result<()> {
        if key.len() > self.limits.key_len_max {
            return Err(Error::KeyTooLong { len: key.len(), max: self.limits.key_len_max });
        }
        if value_len > self.limits.value_len_max {
            return Err(Error::ValueTooLong { len: value_len, max: self.limits.value_len_max });
        }
        Ok(())
    }
}

/// The position up to which the log must be durable for all of `horizon` to be.
fn position_of(horizon: &Horizon) -> u64 {
    horizon.tickets().iter().map(|ticket| ticket.position()).max().unwrap_or(0)
}
