//! The interface of the engine.

use crate::read::get::Whole;
use crate::recovery::open;
use crate::tree::rewrite::Doubtful;
use crate::upkeep::Store;
use crate::volume::KIND;
use crate::volume::counters::Count;
use crate::write::plan::{Plan, RestsOn};
use coreplane_engine::{
    Backing, Batch, Beside, Brief, DamagedKey, Deferred, DurableListener, Engine, Entry, Error,
    Expected, Found, Horizon, KeyRange, Limits, Mutation, Ordered, Outcome, Progress, Record,
    Repairable, Replicated, Result, ScrubReport, Stats, Ticket, UnixMillis, VerifyReport,
    Visibility, WriteOptions, Written,
};
use coreplane_pmem::background;
use coreplane_pmem::{MediaChoice, Medium, OpenOptions, Pool, Space};
use coreplane_record::{Options, backing_of, lost, outlive};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The maximum number of changes in a batch.
const BATCH_LEN_MAX: usize = 1 << 20;

/// An open B+-tree. Dropping it without [`Engine::close`] is a crash: no acknowledged write is lost, and the next
/// open recovers.
pub struct Bptree {
    store: Arc<Store>,
    /// The background threads.
    background: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Bptree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bptree").field("pool", &self.store.pool.path()).finish_non_exhaustive()
    }
}

impl Bptree {
    /// Creates a pool of `size` bytes with leaves of `page_size` bytes at `path`, where no file may exist yet, and
    /// opens it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn create(
        path: &Path,
        size: u64,
        page_size: u32,
        media: MediaChoice,
        options: &Options,
    ) -> Result<Self> {
        open::check_page_size(page_size)?;
        let create = open::create_options(size, page_size, media);
        let pool = Pool::create(path, &create).map_err(open::pool_error)?;
        let made =
            outlive(&pool, options.outlives_medium).and_then(|()| Store::format(pool, options));
        if made.is_err() {
            // The pool holds no store yet. If it cannot be removed, a later open reports that.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        Self::start(made?, options)
    }

    /// Opens the pool at `path`; recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Unusable`], [`Error::Corrupt`], [`Error::ChecksumMismatch`], [`Error::Io`].
    pub fn open(
        path: &Path,
        media: MediaChoice,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let open = match options.is_repair {
            true => Pool::open_repaired,
            false if options.is_copy => Pool::open_copy,
            false => Pool::open,
        };
        let pool = open(path, &OpenOptions { media }).map_err(open::pool_error)?;
        outlive(&pool, options.outlives_medium)?;
        let store = Store::open(pool, options, progress)?;
        store.pool.fault_in();
        Self::start(store, options)
    }

    /// Creates a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`Bptree::create`].
    pub fn simulated_create(space: Arc<Space>, options: &Options) -> Result<Self> {
        let create = open::create_options(space.len(), space.page_size(), MediaChoice::Auto);
        let pool = Pool::simulated_create(space, &create).map_err(open::pool_error)?;
        Self::start(Store::format(pool, options)?, options)
    }

    /// Opens a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`Bptree::open`].
    pub fn simulated_open(space: Arc<Space>, options: &Options) -> Result<Self> {
        let pool = Pool::simulated_open(space).map_err(open::pool_error)?;
        Self::start(Store::open(pool, options, &|_| {})?, options)
    }

    fn start(store: Store, options: &Options) -> Result<Self> {
        let this = Self { store: Arc::new(store), background: Mutex::default() };
        let is_real = this.store.pool.path().is_some();
        if options.background && (is_real || this.store.early.is_some()) {
            let store = Arc::clone(&this.store);
            this.keep(background::spawn_in_time("coreplane-windows", move || {
                let is_closed = || store.closed.load(Ordering::Acquire);
                // If the medium has failed, writers get the error.
                store.windows.end_in_time(is_closed, || store.end_windows().is_ok());
            }))?;
        }
        // Tests examine a simulated store themselves.
        if options.background && is_real {
            let store = Arc::clone(&this.store);
            this.keep(background::spawn("coreplane-scrub", move || store.scrub_on()))?;
        }
        Ok(this)
    }

    fn keep(&self, started: std::io::Result<JoinHandle<()>>) -> Result<()> {
        let context = "a background thread".to_owned();
        let thread = started.map_err(|source| Error::Io { context, source })?;
        self.background.lock().push(thread);
        Ok(())
    }

    fn stop_background(&self) {
        self.store.windows.wake();
        for thread in self.background.lock().drain(..) {
            thread.thread().unpark();
            // A panicked thread has reported its panic; durable writes stay durable anyway.
            let _ended = thread.join().is_ok();
        }
    }

    /// Grows the pool to `size` bytes while it is in use; durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn grow(&self, size: u64) -> Result<()> {
        self.store.grow(size)
    }

    /// The medium of the pool.
    pub fn medium(&self) -> Medium {
        self.store.pool.medium()
    }
}

impl Drop for Bptree {
    fn drop(&mut self) {
        self.store.closed.store(true, Ordering::SeqCst);
        self.stop_background();
    }
}

impl Engine for Bptree {
    fn name(&self) -> &'static str {
        KIND
    }

    fn limits(&self) -> Limits {
        Limits {
            key_len_max: coreplane_engine::KEY_LEN_MAX,
            value_len_max: coreplane_engine::VALUE_LEN_MAX,
            batch_len_max: BATCH_LEN_MAX,
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
        self.store.write(key, (options, RestsOn::Old), &mut |live| {
            Ok(match live {
                Some(_) => Plan::Refuse(Outcome::Exists),
                None => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        })
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        self.store.write(key, (options, RestsOn::Old), &mut |live| {
            Ok(match live {
                None => Plan::Refuse(Outcome::Missing),
                Some(_) => Plan::Put { value: Cow::Borrowed(value), expires_at },
            })
        })
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let given = options.sequence.is_some();
        let rests_on = if given { RestsOn::Nothing } else { RestsOn::Old };
        self.store.write(key, (options, rests_on), &mut |live| {
            Ok(if live.is_some() || given { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
        })
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let rests_on = if self.store.check_reads && expected != Expected::Absent {
            RestsOn::Value
        } else {
            RestsOn::Old
        };
        self.store.write(key, (options, rests_on), &mut |live| {
            let as_expected = match (expected, live) {
                (Expected::Absent, None) => true,
                (Expected::Sequence(sequence), Some(whole)) => whole.view.sequence() == sequence,
                (Expected::Value(bytes), Some(whole)) => whole.record().value.equals(bytes),
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
        let mut decided = None;
        self.store.write(key, (options, RestsOn::Value), &mut |live| {
            // Decided once, though the write may find no room at first, unless the key was written in between.
            let version = live.map(|whole| whole.view.header.version);
            let mutation = match decided.take() {
                Some((seen, mutation)) if seen == version => mutation,
                _ => decide(live.map(Whole::record)),
            };
            if let Mutation::Put { value, .. } = &mutation {
                self.store.check_value(value.len())?;
            }
            decided = Some((version, mutation.clone()));
            Ok(match (mutation, live) {
                (Mutation::Put { value, expires_at }, _) => {
                    Plan::Put { value: Cow::Owned(value), expires_at }
                }
                (Mutation::Keep, _) | (_, None) => Plan::Refuse(Outcome::Kept),
                (Mutation::Delete, Some(_)) => Plan::Delete,
                (Mutation::Expire(expires_at), Some(whole)) => {
                    Plan::Put { value: Cow::Owned(whole.record().value.to_vec()), expires_at }
                }
            })
        })
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        let (len, max) = (batch.len(), BATCH_LEN_MAX);
        if len > max {
            return Err(Error::BatchTooLarge { len, max });
        }
        self.store.apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.store.iterate(cursor, count, visit)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.store.len())
    }

    fn clear(&self) -> Result<()> {
        self.store.clear()
    }

    fn clears_at_once(&self) -> bool {
        true
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.store.sweep_expired()
    }

    fn now(&self) -> UnixMillis {
        self.store.now()
    }

    fn sync(&self) -> Result<()> {
        self.store.fence()
    }

    fn stats(&self) -> Stats {
        let store = &self.store;
        let (flushes, fences) = store.space.flushes_and_fences();
        let page_size = u64::from(store.space.page_size());
        let mut stats = Stats::default();
        (stats.flushes, stats.fences) = (flushes, fences);
        let count = |count| store.counters.get(count).max(0) as u64;
        stats.hits = count(Count::Hits);
        stats.misses = count(Count::Misses);
        stats.puts = count(Count::Puts);
        stats.deletes = count(Count::Deletes);
        stats.batches = count(Count::Batches);
        stats.expired = count(Count::Expired);
        stats.user_bytes_written = count(Count::UserBytes);
        stats.log_bytes_written = count(Count::LogBytes);
        stats.cleaner_bytes_copied = count(Count::CopiedBytes);
        stats.records = store.len();
        stats.more = vec![
            ("leaves_split", count(Count::Splits)),
            ("leaves_rewritten", count(Count::Rewrites)),
            ("leaves_merged", count(Count::Merges)),
            ("leaves_unloaded", store.opened.unloaded.load(Ordering::Relaxed)),
            ("opened_with_checkpoint", u64::from(store.opened.with_checkpoint)),
            ("checkpoints_damaged", u64::from(store.opened.checkpoint_is_damaged)),
            ("scrubbed_pages", count(Count::ScrubbedPages)),
            ("damaged_pages", count(Count::DamagedPages)),
        ];
        stats.live_bytes = count(Count::LiveBytes);
        stats.pool_bytes = store.space.len();
        stats.free_bytes = u64::from(store.pages.free_len()) * page_size;
        stats.dram_bytes =
            store.inner.dram_bytes() + store.leaves.bytes() + store.space.dram_bytes();
        stats
    }

    fn close(&self) -> Result<()> {
        let closed = self.store.close();
        self.stop_background();
        closed
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }
}

impl Deferred for Bptree {
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

impl Replicated for Bptree {
    fn prefetch_to_write(&self, key: &[u8], len: usize) {
        self.store.prefetch_to_write(key, len);
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
        self.store.raise_version_base(0)
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.store.changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.store.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.store.forgotten_tombstones.load(Ordering::Acquire)
    }
}

impl Repairable for Bptree {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.store.verify(progress)
    }

    fn scrub(&self, progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        self.store.scrub(progress)
    }

    fn check(&self, key: &[u8]) -> Result<bool> {
        self.store.check_record_of(key)
    }

    fn lost_ranges(&self) -> Result<Vec<KeyRange>> {
        self.store.lost_ranges()
    }

    fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        self.store.damaged_keys_since(sequence)
    }

    fn settle(&self, doubt: &KeyRange) -> Result<()> {
        self.store.settle(doubt, Doubtful::Dropped)
    }

    fn accept(&self, doubt: &KeyRange) -> Result<()> {
        self.store.settle(doubt, Doubtful::Kept)
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

impl Ordered for Bptree {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        if reverse {
            self.store.scan_back(start, end, limit, visit)
        } else {
            self.store.scan(start, end, limit, visit)
        }
    }
}
