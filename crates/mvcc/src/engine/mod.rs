//! An engine over a map.
//!
//! One writer at a time holds the map; readers share it. A write looks, decides, appends, makes the map lead to the
//! record, and is durable by a fence of its own, or by one that it shares with later writes ([`durable`]).

mod batch;
mod damage;
pub(crate) mod durable;
mod expiry;
mod face;
pub(crate) mod open;
pub(crate) mod patience;
mod read;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;
mod upkeep;
mod walk;
pub(crate) mod write;

use crate::map::Map;
use crate::volume::Volume;
use crate::volume::geometry::{Geometry, Use};
use coreplane_engine::{Cursors, Durability, Error, Progress, Result};
use coreplane_pmem::background;
use coreplane_pmem::spin;
use coreplane_pmem::stripes::Stripes;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{MediaChoice, Medium, OpenOptions, Pool, Space};
use coreplane_record::{Expiries, Options, outlive, pool_error, sync_failed};
use durable::{Reading, Writing};
use parking_lot::{Mutex, RwLock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use walk::Reached;

/// The map that an engine is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// The persistent list, with its index in DRAM.
    List,
    /// The persistent tree; only its uncommitted part is in DRAM.
    CowTree,
}

impl MapKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::List, Self::CowTree];

    /// The name of the kind, of its engine, and of its pools.
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::CowTree => "cow-tree",
        }
    }
}

/// The events that are counted.
#[derive(Debug, Clone, Copy)]
enum Count {
    Hits,
    Misses,
    Puts,
    Deletes,
    Batches,
    Expired,
    UserBytes,
}

const COUNTS: usize = Count::UserBytes as usize + 1;

/// The map, held by one thread for writing, or by several for reading. As a rule it is held for a few microseconds at
/// most, which is less than it takes to put a thread to sleep: so other threads spin for a while before they sleep.
pub(crate) struct MapLock(RwLock<Box<dyn Map>>);

impl MapLock {
    pub(crate) fn new(map: Box<dyn Map>) -> Self {
        Self(RwLock::new(map))
    }

    pub(crate) fn read(&self) -> Reading<'_> {
        spin::read(&self.0)
    }

    pub(crate) fn write(&self) -> Writing<'_> {
        spin::write(&self.0)
    }
}

/// State that an engine shares with its snapshots.
pub(crate) struct Store {
    pub(crate) kind: MapKind,
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: MapLock,
    /// No work that an open has deferred is left.
    is_whole: AtomicBool,
    making_whole: Mutex<()>,
    /// Held while the tombstones that are kept change, and by a clear, which keeps none: both change the root and the
    /// map.
    holding: Mutex<()>,
    /// Held while the pool grows, by nothing else.
    growing: Mutex<()>,
    /// The next version; of a log, the one behind the applied timestamp. Changed only by the thread that holds the
    /// map for writing.
    pub(crate) next_version: AtomicU64,
    /// Where a fence is an instruction: the number of groups that were appended, and of those that are durable.
    appended: AtomicU64,
    durable: AtomicU64,
    /// Where a fence is a sync: the generation that covers all visible records, and that of the last clear.
    visible: AtomicU64,
    cleared: AtomicU64,
    /// Where a fence is a sync: bytes that were written `relaxed` since a sync was last requested.
    relaxed_bytes: AtomicU64,
    counts: Stripes<COUNTS>,
    cursors: Mutex<Cursors<Reached>>,
    windows: Windows,
    expiries: Expiries,
    durability: Durability,
    check_reads: bool,
    /// The most bytes of a key.
    key_len_max: usize,
}

impl Store {
    fn add(&self, count: Count, by: i64) {
        self.counts.add(count as usize, by);
    }

    fn get(&self, count: Count) -> u64 {
        self.counts.get(count as usize).max(0) as u64
    }

    /// # Errors
    /// If writes have stopped.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.volume.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.volume.space.check_sync().map_err(sync_failed)
    }
}

/// An open store. Dropping it without closing it is a crash: nothing that was acknowledged is lost.
pub struct MapEngine {
    store: Arc<Store>,
    background: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for MapEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapEngine")
            .field("kind", &self.store.kind)
            .field("pool", &self.store.volume.pool.path())
            .finish_non_exhaustive()
    }
}

impl MapEngine {
    /// Creates a pool of `size` bytes with this geometry at `path`, where nothing may exist yet, and opens it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn create(
        kind: MapKind,
        path: &Path,
        size: u64,
        geometry: Geometry,
        media: MediaChoice,
        options: &Options,
    ) -> Result<Self> {
        let create = open::create_options(kind, size, geometry, media, Use::Engine)?;
        let pool = Pool::create(path, &create).map_err(pool_error)?;
        let made = outlive(&pool, options.outlives_medium)
            .and_then(|()| Store::format(kind, pool, options));
        if made.is_err() {
            // A pool that is no store yet. If it cannot be removed, a later open reports that.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        Self::start(made?, options)
    }

    /// Opens the pool at `path`; recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Unusable`], [`Error::Corrupt`], [`Error::ChecksumMismatch`], [`Error::Io`].
    pub fn open(
        kind: MapKind,
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
        let pool = open(path, &OpenOptions { media }).map_err(pool_error)?;
        outlive(&pool, options.outlives_medium)?;
        let store = Store::open(kind, Use::Engine, pool, options, progress)?;
        store.volume.pool.fault_in();
        Self::start(store, options)
    }

    /// Creates a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`MapEngine::create`].
    pub fn simulated_create(kind: MapKind, space: Arc<Space>, options: &Options) -> Result<Self> {
        let geometry = Geometry { page_size: space.page_size(), ..Geometry::default() };
        let (len, media) = (space.len(), MediaChoice::Auto);
        let create = open::create_options(kind, len, geometry, media, Use::Engine)?;
        let pool = Pool::simulated_create(space, &create).map_err(pool_error)?;
        Self::start(Store::format(kind, pool, options)?, options)
    }

    /// Opens a store in the simulator's memory.
    ///
    /// # Errors
    /// As [`MapEngine::open`].
    pub fn simulated_open(kind: MapKind, space: Arc<Space>, options: &Options) -> Result<Self> {
        let pool = Pool::simulated_open(space).map_err(pool_error)?;
        Self::start(Store::open(kind, Use::Engine, pool, options, &|_| {})?, options)
    }

    fn start(store: Store, options: &Options) -> Result<Self> {
        let store = Arc::new(store);
        let this = Self { store: Arc::clone(&store), background: Mutex::default() };
        if options.background && store.volume.pool.path().is_some() {
            let of_windows = Arc::clone(&store);
            this.keep(background::spawn_in_time("coreplane-windows", move || {
                let is_closed = || of_windows.volume.closed.load(Ordering::Acquire);
                // If the medium has failed, writers get the error.
                of_windows.windows.end_in_time(is_closed, || of_windows.end_windows().is_ok());
            }))?;
            if !options.is_copy {
                this.start_sweep()?;
            }
            if !store.is_whole.load(Ordering::Acquire) {
                this.keep(background::spawn("coreplane-count", move || store.count_all()))?;
            }
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
        let threads = std::mem::take(&mut *self.background.lock());
        for thread in threads {
            thread.thread().unpark();
            // A panic there has been reported by its thread; durable records stay durable.
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

    /// For tests: counts all live bytes again. Returns the bytes of live records without tombstones.
    ///
    /// # Errors
    /// The difference, if the counts that are kept have drifted.
    #[doc(hidden)]
    pub fn audit(&self) -> std::result::Result<u64, String> {
        self.store.count_all();
        let map = self.store.exposed().map_err(|error| error.to_string())?;
        map.audit(&coreplane_pmem::epoch::pin())
    }

    /// The medium of the pool.
    pub fn medium(&self) -> Medium {
        self.store.volume.pool.medium()
    }
}

impl Drop for MapEngine {
    fn drop(&mut self) {
        self.store.volume.closed.store(true, Ordering::SeqCst);
        self.stop_background();
    }
}
