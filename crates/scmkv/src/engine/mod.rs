//! The engine: the implementation of the engine's traits.

mod repair;

use crate::recovery::open::{self, Options, Placement};
use crate::store::Store;
use crate::table::KIND;
use crate::table::geometry::Geometry;
use crate::upkeep::background;
use crate::write::Plan;
use coreplane_engine::{
    Backing, Batch, Beside, Brief, Deferred, DurableListener, Engine, Entry, Error, Expected,
    Found, Horizon, Limits, Mutation, Outcome, Progress, Record, Repairable, Replicated, Result,
    ScrubReport, Stats, Ticket, UnixMillis, VerifyReport, Visibility, WriteOptions, Written,
};
use coreplane_pmem::{MediaChoice, Medium, OpenOptions, Pool, Space, spin};
use coreplane_record::{backing_of, lost, outlive};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// An open SCMKV store. Dropping it without [`Engine::close`] is a crash: nothing that was
/// acknowledged is lost, and the next open recovers.
pub struct Scmkv {
    store: Arc<Store>,
    background: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Scmkv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scmkv").field("pool", &self.store.pool.path()).finish_non_exhaustive()
    }
}

impl Scmkv {
    /// Creates a pool of `size` bytes at `path`, where nothing may exist yet, and opens it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn create(
        path: &Path,
        size: u64,
        media: MediaChoice,
        placement: Placement,
        options: Options,
    ) -> Result<Self> {
        let geometry = Geometry::default().sized_for(size);
        Self::create_with(path, size, geometry, media, placement, options)
    }

    /// As [`Scmkv::create`], with a geometry of the caller's choice.
    ///
    /// # Errors
    /// As [`Scmkv::create`].
    pub fn create_with(
        path: &Path,
        size: u64,
        geometry: Geometry,
        media: MediaChoice,
        placement: Placement,
        options: Options,
    ) -> Result<Self> {
        geometry.check()?;
        let create = open::create_options(size, geometry, media);
        let pool = Pool::create(path, &create).map_err(open::pool_error)?;
        let made = outlive(&pool, options.outlives_medium)
            .and_then(|()| Store::format(pool, placement, &options))
            .and_then(|store| Self::start(store, &options));
        if made.is_err() {
            // The pool is not a store yet. If it cannot be removed, an open says so.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        made
    }

    /// Opens the pool at `path`; recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Unusable`], [`Error::Corrupt`], [`Error::ChecksumMismatch`], [`Error::Io`].
    pub fn open(path: &Path, media: MediaChoice, options: Options) -> Result<Self> {
        Self::open_with(path, media, options, &|_| {})
    }

    /// As [`Scmkv::open`], reporting the progress of recovery.
    ///
    /// # Errors
    /// As [`Scmkv::open`].
    pub fn open_with(
        path: &Path,
        media: MediaChoice,
        options: Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let open = if options.is_copy { Pool::open_copy } else { Pool::open };
        let pool = open(path, &OpenOptions { media }).map_err(open::pool_error)?;
        outlive(&pool, options.outlives_medium)?;
        let store = Store::open(pool, &options, progress)?;
        store.pool.fault_in();
        Self::start(store, &options)
    }

    /// Creates a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`Scmkv::create`].
    pub fn simulated_create(
        space: Arc<Space>,
        geometry: Geometry,
        placement: Placement,
        options: Options,
    ) -> Result<Self> {
        let create = open::create_options(space.len(), geometry, MediaChoice::Auto);
        let pool = Pool::simulated_create(space, &create).map_err(open::pool_error)?;
        Self::start(Store::format(pool, placement, &options)?, &options)
    }

    /// Opens a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`Scmkv::open`].
    pub fn simulated_open(space: Arc<Space>, options: Options) -> Result<Self> {
        let pool = Pool::simulated_open(space).map_err(open::pool_error)?;
        Self::start(Store::open(pool, &options, &|_| {})?, &options)
    }

    pub(crate) fn start(store: Store, options: &Options) -> Result<Self> {
        let store = Arc::new(store);
        let weak = Arc::downgrade(&store);
        store.index.waiting.call(move || {
            if let Some(store) = weak.upgrade() {
                store.help();
            }
        });
        let background = if options.background {
            let started = background::start(&store);
            let context = "a background thread".to_owned();
            started.map_err(|source| Error::Io { context, source })?
        } else {
            Vec::new()
        };
        Ok(Self { store, background: Mutex::new(background) })
    }

    /// The medium of the pool.
    pub fn medium(&self) -> Medium {
        self.store.pool.medium()
    }

    /// Where the index is: `Pool` or `Dram`.
    pub fn placement(&self) -> Placement {
        if self.store.index.in_pool() { Placement::Pool } else { Placement::Dram }
    }

    /// Grows the pool to `size` bytes while it is in use.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Io`].
    pub fn grow(&self, size: u64) -> Result<()> {
        self.store.grow(size)
    }

    /// Cleans one page, if any has dead records; false if none has.
    ///
    /// # Errors
    /// [`Error::Closed`], and as [`Engine`]'s.
    pub fn clean(&self) -> Result<bool> {
        let mut state = spin::lock(&self.store.cleaner_state);
        self.store.check_writable()?;
        self.store.take_census()?;
        Ok(self.store.clean_one(&mut state, 1)?.is_some())
    }

    /// Takes a checkpoint of the index in DRAM, durable when it returns: an open then reads only
    /// the log from here on. False if none was taken, which affects only the time of an open: the
    /// index is in the pool, or too few pages are free, or a writer that lacks pages or a close has
    /// ended it.
    ///
    /// Writers go on meanwhile. Checkpoints are taken at a close and in the background anyway.
    ///
    /// # Errors
    /// As [`Engine`]'s.
    pub fn checkpoint(&self) -> Result<bool> {
        self.store.check_writable()?;
        self.store.take_checkpoint()
    }

    /// Writes the free pages that will be filled next, so that syncs of them write little, where a
    /// fence is a sync; returns how many were not ready. A background thread does so anyway.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Io`].
    pub fn prepare_pages(&self) -> Result<u64> {
        self.store.check_writable()?;
        self.store.prepare_free()
    }

    fn stop_background(&self) {
        self.store.wake();
        for thread in self.background.lock().drain(..) {
            // A panic there has been reported by its thread; durable writes are durable all the
            // same.
            let _ended = thread.join().is_ok();
        }
    }
}

impl Drop for Scmkv {
    fn drop(&mut self) {
        self.store.closed.store(true, Ordering::SeqCst);
        self.stop_background();
    }
}

impl Engine for Scmkv {
    fn name(&self) -> &'static str {
        KIND
    }

    fn limits(&self) -> Limits {
        Limits {
            key_len_max: self.store.geometry.key_max(),
            value_len_max: self.store.value_max(),
            batch_len_max: 1 << 20,
            batch_bytes_max: usize::MAX,
        }
    }

    fn prefetch(&self, key: &[u8]) {
        self.store.prefetch(key);
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.store.get_with(key, visibility, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.store.multi_get(keys, visibility, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.store.put(key, value, options)
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.store.write(key, options, &mut |_, _, live| {
            Ok(match live {
                Some(_) => Plan::Refuse(Outcome::Exists),
                None => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        })
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.store.write(key, options, &mut |_, _, live| {
            Ok(match live {
                None => Plan::Refuse(Outcome::Missing),
                Some(_) => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        })
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.store.erase(key, options)
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.store.write(key, options, &mut |store, guard, live| {
            let as_expected = match (expected, live) {
                (Expected::Absent, None) => true,
                (Expected::Sequence(sequence), Some(view)) => view.sequence() == sequence,
                (Expected::Value(bytes), Some(view)) => {
                    store.show(guard, view, Ticket::DURABLE, |record| record.value.equals(bytes))?
                }
                _ => false,
            };
            Ok(if as_expected {
                Plan::Put { value: Cow::Borrowed(value), expires_at }
            } else {
                Plan::Refuse(Outcome::Mismatch)
            })
        })
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.store.write(key, options, &mut |store, guard, live| {
            let Some(view) = live else {
                return Ok(match decide(None) {
                    Mutation::Put { value, expires_at } => {
                        Plan::Put { value: Cow::Owned(value), expires_at }
                    }
                    _ => Plan::Refuse(Outcome::Kept),
                });
            };
            store.show(guard, view, Ticket::DURABLE, |record| match decide(Some(record)) {
                Mutation::Keep => Plan::Refuse(Outcome::Kept),
                Mutation::Delete => Plan::Delete,
                Mutation::Put { value, expires_at } => {
                    Plan::Put { value: Cow::Owned(value), expires_at }
                }
                Mutation::Expire(expires_at) => {
                    Plan::Put { value: Cow::Owned(record.value.to_vec()), expires_at }
                }
            })
        })
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        let max = self.limits().batch_len_max;
        if batch.len() > max {
            return Err(Error::BatchTooLarge { len: batch.len(), max });
        }
        self.store.apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.store.iterate(cursor, count, visit)
    }

    fn len(&self) -> Result<u64> {
        self.store.len()
    }

    fn try_len(&self) -> Result<Option<u64>> {
        self.store.try_len()
    }

    fn count(&self) -> Result<()> {
        self.store.count()
    }

    fn clear(&self) -> Result<()> {
        self.store.clear()
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.store.check_writable()?;
        self.store.sweep_all()
    }

    fn now(&self) -> UnixMillis {
        self.store.clock.now()
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn close(&self) -> Result<()> {
        self.store.close()?;
        self.stop_background();
        Ok(())
    }
}

impl Deferred for Scmkv {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.store.commit(horizon)
    }

    fn visible_ticket(&self) -> Ticket {
        self.store.visible_ticket()
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.store.is_durable(horizon)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.store.wait_durable(horizon)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.store.space.on_synced(listener);
    }
}

impl Replicated for Scmkv {
    fn prefetch_to_write(&self, key: &[u8], _len: usize) {
        self.store.prefetch_to_write(key);
    }

    fn prefetch_replaced(&self, key: &[u8]) {
        self.store.prefetch_replaced(key);
    }

    fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        self.store.put_briefly(key, value, options, beside)
    }

    fn advance_sequence(&self) -> Result<u64> {
        self.store.advance_sequence()
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.store.changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.store.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.store.dropped_tombstones.load(Ordering::Acquire)
    }
}

impl Repairable for Scmkv {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.store.verify(progress)
    }

    fn check(&self, key: &[u8]) -> Result<bool> {
        self.store.check_record_of(key)
    }

    fn scrub(&self, progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        self.store.scrub(progress)
    }

    fn proves_absence(&self) -> bool {
        !self.store.index.in_pool()
    }

    fn check_medium(&self) -> Result<()> {
        self.store.space.check_lost().map_err(|at| lost(&self.store.pool, at))
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.store.grow(size)
    }

    fn backing(&self) -> Backing {
        backing_of(&self.store.pool)
    }
}
