//! The store: all queue sets together.

mod administration;
mod open;
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
use std::time::{SystemTime, UNIX_EPOCH};
pub use upkeep::{Patience, Stats};
pub use verify::Findings;
pub use write::Outcome;

/// How a store is made and opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Queue sets, each with a pool of its own: `q0`, `q1`, …; of a store that is there its own number counts.
    pub sets: u32,
    /// Bytes of each pool that is made.
    pub size: u64,
    /// The medium.
    pub media: MediaChoice,
    /// Which set a device's series are bound to.
    pub policy: Policy,
    /// The tag whose value states the sampling interval of a device, as `10ms`. Without it the interval is what the points
    /// that a device comes with have.
    pub interval_tag: Option<String>,
    /// Series that there may be.
    pub series_max: u64,
    /// Bytes of points in the log of a set from which they are sealed.
    pub head_bytes: u64,
    /// Bytes of DRAM that last values of sealed points may take, of all sets together. Those that were asked for are kept, each
    /// of which counts as 112 bytes and takes about half of it to all of it; once they are too many they begin anew. 0: none is.
    pub last_bytes: u64,
    /// Bytes of a page, of pools that are made: a power of two; no string can be longer.
    pub page_len: u32,
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
            head_bytes: 32 << 20,
            last_bytes: 128 << 20,
            page_len: 128 << 10,
        }
    }
}

/// What the background has been told.
#[derive(Debug, Default)]
struct Due {
    /// There is something to do.
    is_due: bool,
    /// It is to end.
    is_over: bool,
}

/// Who seals, merges and drops in the background, and how it is told to.
#[derive(Debug, Default)]
struct Bell {
    state: Mutex<Due>,
    /// Why it could not, the last time.
    trouble: Mutex<Option<String>>,
    /// Why it has ended before its time, for good.
    failure: OnceLock<String>,
    changed: Condvar,
    /// In tests: the next round panics.
    is_to_panic: AtomicBool,
}

/// What all threads of a store have.
#[derive(Debug)]
pub(crate) struct Shared {
    names: Names,
    sets: Vec<Set>,
    options: Options,
    bell: Bell,
    scrubbed: scrub::Counts,
    /// What time it is, in tests; 0: that of the system.
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
            // It panics nowhere but where that is caught.
            drop(upkeep.join());
        }
        // What has panicked left nobody knows what behind: it is as if the process had been killed then.
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

    /// What a query of a policy of a database (none: the default one) reads.
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

    /// A reader of the names of a database, which has no points: they are there without a default policy, too.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn names(&self, database: &str) -> Result<Reader<'_>> {
        let id = database_of(&self.shared.names.read(), database)?;
        Ok(Reader::new(&self.shared.sets, (&self.shared.names, id), Vec::new()))
    }

    /// What it rests on.
    #[must_use]
    pub fn medium(&self) -> Option<Medium> {
        self.shared.sets.first().map(|set| set.pages.pool().medium())
    }

    /// True if a write is durable after an instruction, and waits for no sync.
    #[must_use]
    pub fn is_durable_at_once(&self) -> bool {
        self.shared.sets.iter().all(|set| set.pages.space().fences_at_once())
    }

    /// The paper's table of queue sets.
    #[must_use]
    pub fn loads(&self) -> Vec<coreplane_tio::Load> {
        self.shared.names.loads()
    }

    /// What was durable once and was found to be damaged when the store was opened.
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
