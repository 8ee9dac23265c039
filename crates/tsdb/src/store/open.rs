//! Makes a store, and finds it again.
//!
//! The pools name their store by a number drawn at random, their place, and the number of pools: so pools of
//! different stores are not mixed up. An opening reads the catalogue first, then the queue sets, side by side. It
//! reads the catalogue, the manifests and the heads, and no segments.

use super::scrub::Counts;
use super::{Bell, Options, Shared, Store};
use crate::catalogue::Limits;
use crate::error::{Error, Result};
use crate::names::Names;
use crate::pages::{Pages, Role};
use crate::set::{Opening, Set};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool, PoolError, Space, mutant};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The maximum number of queue sets.
const SETS_MAX: u32 = 64;

fn path_of(directory: &Path, set: u32) -> PathBuf {
    directory.join(format!("q{set}"))
}

/// The mark of pools that are being made: it is durable before the first of them, and gone before any is used.
fn mark_of(directory: &Path) -> PathBuf {
    directory.join("incomplete")
}

/// True if a marked pool was never used, or its making was cut off. A link leads to a place that somebody has chosen,
/// whatever is there.
fn is_unused(path: &Path, media: &MediaChoice) -> Result<bool> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    match Pool::open(path, &OpenOptions { media: media.clone() }) {
        Ok(pool) => {
            let (pages, used) = Pages::open(pool, false)?;
            Ok(used.is_empty() && pages.unknown.is_empty())
        }
        Err(PoolError::NotAPool(_)) => Ok(true),
        // Somebody else may be making it.
        Err(error) => Err(error.into()),
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let is_possible = (1..=SETS_MAX).contains(&self.sets)
            && self.page_len.is_power_of_two()
            && (1 << 10..=1 << 20).contains(&self.page_len);
        let what =
            || format!("{} queue sets with pages of {} bytes cannot be", self.sets, self.page_len);
        if is_possible { Ok(()) } else { Err(Error::Input(what())) }
    }
}

impl Store {
    /// True if there is a store in a directory. The remains of a making that was cut off are none: an opening makes the
    /// store anew.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Pool`].
    pub fn is_there(directory: &Path, media: &MediaChoice) -> Result<bool> {
        let first = path_of(directory, 0);
        let is_marked = mark_of(directory).exists();
        Ok(first.symlink_metadata().is_ok() && !(is_marked && is_unused(&first, media)?))
    }

    /// Opens the store in a directory, or makes one there if there is none. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Pools`], [`Error::Pool`], [`Error::Damage`], [`Error::Sync`].
    pub fn open(directory: &Path, options: &Options) -> Result<Self> {
        options.check()?;
        let openings = match Self::is_there(directory, &options.media)? {
            false => Self::make(directory, options)?,
            true => Self::find(directory, options)?,
        };
        let mark = mark_of(directory);
        if mark.exists() {
            std::fs::remove_file(&mark)?;
            coreplane_pmem::pool::sync_directory(&mark)?;
        }
        let mut store = Self::over(openings, options)?;
        if options.upkeep {
            store.begin_upkeep()?;
        }
        Ok(store)
    }

    fn make(directory: &Path, options: &Options) -> Result<Vec<Opening>> {
        if !directory.exists() {
            std::fs::create_dir(directory)?;
            coreplane_pmem::pool::sync_directory(directory)?;
        }
        let store = RandomState::new().hash_one(directory).max(1);
        Self::remove_left(directory, options)?;
        let mark = mark_of(directory);
        std::fs::write(&mark, "")?;
        coreplane_pmem::pool::sync_directory(&mark)?;
        let mut openings = Vec::new();
        // The first pool is made last: a store whose making was cut off does not have it.
        for set in (0..options.sets).rev() {
            let path = path_of(directory, set);
            let identity = (store, set, options.sets);
            let made =
                Pages::options(identity, options.size, options.page_len, options.media.clone());
            openings.push(Opening::new(Pool::create(&path, &made)?, true)?);
        }
        openings.reverse();
        Ok(openings)
    }

    /// Removes the pools of a making that was cut off: they never held data. Without its mark nothing is removed: the
    /// first pool is missing for another reason, and has all names.
    fn remove_left(directory: &Path, options: &Options) -> Result<()> {
        let paths = (0..SETS_MAX).map(|set| path_of(directory, set));
        let left: Vec<PathBuf> = paths.filter(|path| path.symlink_metadata().is_ok()).collect();
        let is_marked = mark_of(directory).exists() || mutant!("tsdb.open.mark");
        for path in &left {
            if !is_marked || !is_unused(path, &options.media)? {
                let (path, first) = (path.display(), path_of(directory, 0));
                let what = format!("{path} is there, and {} is missing or blank", first.display());
                return Err(Error::Pools(what));
            }
        }
        left.iter().try_for_each(|path| Ok(std::fs::remove_file(path)?))
    }

    fn find(directory: &Path, options: &Options) -> Result<Vec<Opening>> {
        let open = |set: u32| -> Result<Pool> {
            let media = options.media.clone();
            Ok(Pool::open(&path_of(directory, set), &OpenOptions { media })?)
        };
        let first = open(0)?;
        let (store, _, sets) = Pages::identity(&first)?;
        let mut pools = vec![first];
        for set in 1..sets.min(SETS_MAX) {
            pools.push(open(set)?);
        }
        Self::openings(pools, (store, sets))
    }

    fn openings(pools: Vec<Pool>, (store, sets): (u64, u32)) -> Result<Vec<Opening>> {
        for (set, pool) in (0..).zip(&pools) {
            if Pages::identity(pool)? != (store, set, sets) {
                return Err(Error::Pools(format!("q{set} is not that pool of this store")));
            }
        }
        pools.into_iter().map(|pool| Opening::new(pool, false)).collect()
    }

    /// Finds catalogue and queue sets in pools.
    fn over(mut openings: Vec<Opening>, options: &Options) -> Result<Self> {
        let sets = openings.len();
        let bytes_max = usize::try_from(options.names_bytes).unwrap_or(usize::MAX);
        let limits = Limits { series_max: options.series_max, bytes_max, ..Limits::default() };
        let mut names = Names::new(limits, options.policy, sets);
        let first = openings.first_mut();
        let first = first.ok_or_else(|| Error::Pools("the store has no queue set".to_owned()))?;
        names.recover(|visit| first.log(Role::Catalogue, 0, visit))?;
        let catalogue = names.read();
        let (next, is_older) = (catalogue.next(), AtomicBool::new(false));
        let is_live = |shard, series| {
            if shard >= next.shard || series >= next.series {
                is_older.store(true, Ordering::Relaxed);
            }
            catalogue.is_shard_live(shard) && catalogue.is_series_live(series)
        };
        let last_bytes = options.last_bytes / sets.max(1) as u64;
        let found: Result<Vec<Set>> = std::thread::scope(|scope| {
            let rest = openings.split_off(1);
            let others: Vec<_> = rest
                .into_iter()
                .map(|opening| scope.spawn(|| opening.finish(&is_live, last_bytes)))
                .collect();
            let first = openings.into_iter().map(|opening| opening.finish(&is_live, last_bytes));
            let first: Vec<Result<Set>> = first.collect();
            let ended = others.into_iter().map(|thread| {
                let panicked = |_| Err(Error::Damage("a queue set could not be read".to_owned()));
                thread.join().unwrap_or_else(panicked)
            });
            first.into_iter().chain(ended).collect()
        });
        let found = found?;
        let shards = found.iter().filter_map(|set| set.view().segments.keys().max().copied());
        if is_older.load(Ordering::Relaxed) || shards.max().is_some_and(|it| it >= next.shard) {
            let what = "the catalogue in q0 is older than another pool: they are not of one time";
            return Err(Error::Pools(what.to_owned()));
        }
        // Series may have lost their last points before the store was closed.
        let may_have_empty_series = AtomicBool::new(catalogue.has_dropped_shards());
        // Their points may still be there.
        let has_dropped_series = catalogue.has_dropped_series() && !mutant!("tsdb.garbage.start");
        drop(catalogue);
        if has_dropped_series {
            found.iter().for_each(Set::note_dropped_series);
        }
        let shared = Shared {
            names,
            sets: found,
            options: options.clone(),
            bell: Bell::default(),
            scrubbed: Counts::default(),
            may_have_empty_series,
            series_drop: Mutex::default(),
            clock: AtomicI64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), upkeep: None })
    }

    /// Makes a store in the simulator's memory: a queue set in each space. It has no background thread: writes do
    /// its work.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[doc(hidden)]
    pub fn simulated_create(spaces: &[Arc<Space>], options: &Options) -> Result<Self> {
        let sets = spaces.len() as u32;
        let mut openings = Vec::new();
        for (set, space) in (0..sets).zip(spaces).rev() {
            let media = options.media.clone();
            let made = Pages::options((1, set, sets), space.len(), space.page_size(), media);
            openings.push(Opening::new(Pool::simulated_create(Arc::clone(space), &made)?, true)?);
        }
        openings.reverse();
        Self::over(openings, options)
    }

    /// Opens the store in the simulator's memory.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[doc(hidden)]
    pub fn simulated_open(spaces: &[Arc<Space>], options: &Options) -> Result<Self> {
        let open =
            |space: &Arc<Space>| -> Result<Pool> { Ok(Pool::simulated_open(Arc::clone(space))?) };
        let pools = spaces.iter().map(open).collect::<Result<Vec<Pool>>>()?;
        Self::over(Self::openings(pools, (1, spaces.len() as u32))?, options)
    }
}
