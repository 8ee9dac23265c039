//! The store: all queue sets together.

mod administration;
mod open;
mod retention;
mod scrub;
#[cfg(test)]
mod tests;
mod upkeep;
mod verify;
mod write;

use crate::catalogue::{Series, SeriesId};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::read::Reader;
use crate::set::Set;
use coreplane_pmem::{MediaChoice, Medium, mutant, spin};
use coreplane_tio::Policy;
use parking_lot::{Condvar, Mutex};
pub use scrub::Scrub;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
pub use upkeep::{Patience, Stats};
pub use verify::Findings;
pub use write::Outcome;

/// The options with which a store is made and opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Queue sets, each with a pool of its own: `q0`, `q1`, …; an existing store keeps its own number.
    pub sets: u32,
    /// Bytes of each pool, when pools are made.
    pub size: u64,
    /// The medium.
    pub media: MediaChoice,
    /// The policy that binds devices to sets.
    pub policy: Policy,
    /// The tag whose value states the sampling interval of a device, as `10ms`. Without it the interval is taken
    /// from the points with which a device first arrives.
    pub interval_tag: Option<String>,
    /// The maximum number of series.
    pub series_max: u64,
    /// The maximum of bytes of DRAM for all names, as [`Stats::names_bytes`] counts them. An opening does not look at it.
    pub names_bytes: u64,
    /// The points in the log of a set are sealed from so many bytes on, to which each field of a series in a shard adds
    /// 38: it takes more of DRAM than of the log.
    pub head_bytes: u64,
    /// Bytes of DRAM for the cache of last values of sealed points, of all sets together. Values that were asked
    /// for are cached; each counts as 112 bytes and takes from about half of that to all of it. Once the cache is
    /// full it begins anew. 0: no cache.
    pub last_bytes: u64,
    /// Bytes of a page, when pools are made: a power of two; no string can be longer.
    pub page_len: u32,
    /// Points are sealed, merged and dropped when they are over, in the background. Without it a store can be read as it
    /// is, whatever its policies say; the thread of a writer seals.
    pub upkeep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sets: 4,
            size: 1 << 30,
            media: MediaChoice::Auto,
            policy: Policy::default(),
            interval_tag: None,
            series_max: 1_000_000,
            names_bytes: 1 << 30,
            head_bytes: 32 << 20,
            last_bytes: 128 << 20,
            page_len: 128 << 10,
            upkeep: true,
        }
    }
}

/// Signals to the background thread.
#[derive(Debug, Default)]
struct Due {
    /// There is work to do.
    is_due: bool,
    /// The thread is to end.
    is_over: bool,
}

/// The signals between the background thread, which seals, merges and drops, and the writers.
#[derive(Debug, Default)]
struct Bell {
    state: Mutex<Due>,
    /// Why the last round failed.
    trouble: Mutex<Option<String>>,
    /// Why the background thread has ended early, for good.
    failure: OnceLock<String>,
    changed: Condvar,
    /// In tests: the next round panics.
    is_to_panic: AtomicBool,
}

/// The state that all threads of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    names: Names,
    sets: Vec<Set>,
    options: Options,
    bell: Bell,
    scrubbed: scrub::Counts,
    /// Shards were dropped, so that there may be series without points.
    may_have_empty_series: AtomicBool,
    /// Held by the thread that drops series without points. After a failure: the time before which it is not tried
    /// again.
    series_drop: Mutex<Option<Instant>>,
    /// The current time, in tests; 0: that of the system.
    clock: AtomicI64,
}

/// A store.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    upkeep: Option<JoinHandle<()>>,
}

impl Drop for Store {
    fn drop(&mut self) {
        spin::lock(&self.shared.bell.state).is_over = true;
        self.shared.bell.changed.notify_all();
        if let Some(upkeep) = self.upkeep.take() {
            // All panics of the thread are caught inside it.
            drop(upkeep.join());
        }
        // After a panic the state is unknown: the logs are left as if the process had been killed.
        if self.failure().is_none() && !mutant!("tsdb.close.open") {
            if let Some(first) = self.shared.sets.first() {
                self.shared.names.end(&first.pages);
            }
            self.shared.sets.iter().for_each(Set::end);
        }
    }
}

impl Shared {
    fn now(&self) -> i64 {
        match self.clock.load(Ordering::Relaxed) {
            0 => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
            }
            set => set,
        }
    }
}

impl Store {
    /// A series by its number.
    #[must_use]
    pub fn series(&self, id: SeriesId) -> Option<Arc<Series>> {
        self.shared.names.read().series(id).cloned()
    }

    /// A reader of the points of a policy of a database; none: the default policy.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn reader(&self, database: &str, policy: Option<&str>) -> Result<Reader<'_>> {
        let names = self.shared.names.read();
        let (database, policy) = place_of(&names, database, policy)?;
        let shards = names.shards(policy).map(|it| (it.id, it.start, it.end)).collect();
        drop(names);
        Ok(Reader::new(&self.shared.sets, (&self.shared.names, database), shards))
    }

    /// A reader of the names of a database, without points: it needs no default policy.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn names(&self, database: &str) -> Result<Reader<'_>> {
        let id = database_of(&self.shared.names.read(), database)?;
        Ok(Reader::new(&self.shared.sets, (&self.shared.names, id), Vec::new()))
    }

    /// The medium of the store.
    #[must_use]
    pub fn medium(&self) -> Option<Medium> {
        self.shared.sets.first().map(|set| set.pages.pool().medium())
    }

    /// True if a write is durable after an instruction, and does not wait for a sync.
    #[must_use]
    pub fn is_durable_at_once(&self) -> bool {
        self.shared.sets.iter().all(|set| set.pages.space().fences_at_once())
    }

    /// The paper's table of queue sets.
    #[must_use]
    pub fn loads(&self) -> Vec<coreplane_tio::Load> {
        self.shared.names.loads()
    }

    /// Durable data that was found to be damaged when the store was opened.
    pub fn damage(&self) -> impl Iterator<Item = &str> {
        let of_sets = self.shared.sets.iter().flat_map(|set| &set.damage);
        self.shared.names.refused().iter().chain(of_sets).map(String::as_str)
    }
}

/// The number of a database.
fn database_of(names: &crate::catalogue::Catalogue, database: &str) -> Result<u32> {
    let missing = || Error::NotFound(format!("database not found: {database:?}"));
    names.database(database).ok_or_else(missing)
}

/// The numbers of a database and of one of its policies, the default one if none is named.
fn place_of(
    names: &crate::catalogue::Catalogue,
    database: &str,
    policy: Option<&str>,
) -> Result<(u32, u32)> {
    let id = database_of(names, database)?;
    let missing = || {
        let policy = policy.unwrap_or_default();
        Error::NotFound(format!("retention policy not found: {policy}"))
    };
    Ok((id, names.policy(id, policy).ok_or_else(missing)?.0))
}
