//! The filter of a group, over the kernel.

use super::kernel::{Gate, Phase, Place, Stay, Switch, Table};
use super::stripe::stripe_number;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Published};
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that have a stripe of the gate to themselves, and the stripes of all other threads.
const OWN_STRIPES: usize = 64;
const SHARED_STRIPES: usize = 32;

/// Turns for which a finished rebuild waits for the last probes of the old table.
const PATIENCE: usize = 250;

/// Keys of a rebuild whose lines are prefetched before they are added.
const AHEAD: usize = 16;

type Word = AtomicU64;

impl<T> Place<T> for Published<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline]
    fn look<R>(&self, with: impl FnOnce(&T) -> R) -> R {
        let guard = epoch::pin();
        with(self.get(&guard))
    }

    fn replace(&self, value: T) {
        self.replace(value);
    }
}

/// The hash by which a key is filtered: XXH3, 64 bits. If outsiders choose the keys, a seeded hash can be used
/// instead, as long as it is always the same.
#[inline]
pub fn hash_of(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Which keys a group may have.
#[derive(Debug)]
pub struct Filter {
    switch: Switch<Word, Published<Phase<Word>>>,
    /// Held while the filter is made anew.
    turn: Mutex<()>,
    /// Bytes of all tables, including a table that is being filled, and an old one that still has probes in it.
    footprint: Arc<AtomicU64>,
}

impl Filter {
    /// An empty filter with room for `keys` keys.
    ///
    /// # Errors
    /// If the system does not give the memory. A key takes 6.4 bytes.
    pub fn with_capacity(keys: u64) -> Result<Self> {
        let footprint = Arc::new(AtomicU64::new(0));
        let table = Arc::new(table(keys, &footprint)?);
        let switch = Switch::new(table, Gate::new(OWN_STRIPES, SHARED_STRIPES));
        Ok(Self { switch, turn: Mutex::new(()), footprint })
    }

    /// False if no key of this hash is in the group: never wrong for a key whose insertion is known to have
    /// returned. True for all keys that are there, and for some others. No lock, no locked instruction.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.switch.may_contain(hash)
    }

    /// Prefetches the data that [`Filter::may_contain`] and a change need.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.switch.current(|table| table.prefetch(hash));
    }

    /// Prefetches the data that [`Filter::may_contain`] needs.
    #[inline]
    pub(crate) fn prefetch_to_read(&self, hash: u64) {
        self.switch.current(|table| table.prefetch_to_read(hash));
    }

    /// Begins a change of the group. It is begun before the engine is touched and dropped after:
    ///
    /// ```
    /// # use coreplane_mkvs::filter::{Filter, hash_of};
    /// # let filter = Filter::with_capacity(1_000)?;
    /// # let mut engine = std::collections::HashMap::new();
    /// // A put: counted first, so that nobody who knows of the record is told that it is not there.
    /// let change = filter.change();
    /// let inserted = change.insert(hash_of(b"key"));
    /// if engine.insert("key", "value").is_some() {
    ///     inserted.undo();
    /// }
    /// drop(change);
    /// assert!(filter.may_contain(hash_of(b"key")));
    /// // A delete: uncounted last.
    /// let change = filter.change();
    /// if engine.remove("key").is_some() {
    ///     change.remove(hash_of(b"key"));
    /// }
    /// # Ok::<(), coreplane_engine::Error>(())
    /// ```
    ///
    /// If writers of the same key exclude each other from before the put until after the insertion, the put may
    /// come first, and the insertion count only a new key.
    ///
    /// A rebuild waits for it; so a thread that has a change open must not rebuild.
    #[inline]
    pub fn change(&self) -> Change<'_> {
        Change { filter: self, stay: self.switch.enter(stripe_number()) }
    }

    /// How many keys it counts: exact, except for keys that a rebuild has lost track of (module docs). It adds up a
    /// counter for each stripe of threads, and is not for every operation.
    pub fn len(&self) -> u64 {
        self.switch.current(|table| table.len())
    }

    /// True if it counts no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that it has room for: at most so many keep the promise of one false "perhaps" in a
    /// hundred.
    pub fn capacity(&self) -> u64 {
        self.switch.current(|table| table.capacity())
    }

    /// The number of its keys in proportion to the capacity.
    pub fn load(&self) -> f64 {
        self.switch.current(|table| table.len() as f64 / table.capacity() as f64)
    }

    /// The table in force, to be stored. No thread may change the filter meanwhile.
    pub(crate) fn image(&self) -> Arc<Table<Word>> {
        self.switch.current(Arc::clone)
    }

    /// Bytes of DRAM in its tables: one, or two while it is made anew. An old one that probes were
    /// still in when it was replaced is dropped by this call if it can be.
    pub fn dram_bytes(&self) -> u64 {
        self.switch.place().reclaim();
        self.footprint.load(Ordering::Relaxed)
    }

    /// Begins to make the filter anew with room for `capacity` keys: to grow, or to drop wrong counts. Waits until
    /// all changes that are open have ended. After that the caller lists the engine's keys, from any number of
    /// threads, adds each ([`Rebuild::add`]), and puts the new table in force ([`Rebuild::finish`]). Every key must
    /// be listed that the engine has from this call's return to `finish`; others may be, and cost a false "perhaps"
    /// each.
    ///
    /// # Errors
    /// If it is under way, and if the system does not give the memory.
    pub fn rebuild(&self, capacity: u64) -> Result<Rebuild<'_>> {
        let is_busy = || Error::Unusable("the filter is being made anew already".to_owned());
        let turn = self.turn.try_lock().ok_or_else(is_busy)?;
        let next = Arc::new(table(capacity, &self.footprint)?);
        let mut backoff = Backoff::new();
        self.switch.start(Arc::clone(&next), || backoff.wait());
        Ok(Rebuild { filter: self, next, is_finished: false, _turn: turn })
    }
}

fn table(capacity: u64, footprint: &Arc<AtomicU64>) -> Result<Table<Word>> {
    let no_memory = |_| Error::Unusable(format!("no memory for a filter of {capacity} keys"));
    Table::new(capacity, footprint).map_err(no_memory)
}

/// A change of the group from before its engine is touched until after ([`Filter::change`]).
#[derive(Debug)]
#[must_use = "it lasts until it is dropped, which is after the engine has been changed"]
pub struct Change<'a> {
    filter: &'a Filter,
    stay: Stay,
}

impl Change<'_> {
    /// Counts a key. From the return on it is not denied until it is removed.
    #[inline]
    pub fn insert(&self, hash: u64) -> Insertion<'_> {
        let youngest = self.filter.switch.insert(&self.stay, hash);
        Insertion { change: self, hash, youngest }
    }

    /// Counts a key, unless the filter says that it may be there: as [`Filter::may_contain`] and [`Change::insert`],
    /// in one look at the key's line.
    #[inline]
    pub(crate) fn insert_absent(&self, hash: u64) -> Option<Insertion<'_>> {
        let youngest = self.filter.switch.insert_absent(&self.stay, hash)?;
        Some(Insertion { change: self, hash, youngest })
    }

    /// Takes back the count of a key that was inserted. Once for each insertion: a key that was not inserted must
    /// not be removed, or other keys are denied.
    #[inline]
    pub fn remove(&self, hash: u64) {
        self.filter.switch.remove(&self.stay, hash);
    }
}

/// A key that was counted in a change, which may turn out to be one that was there already.
#[derive(Debug)]
pub struct Insertion<'a> {
    change: &'a Change<'a>,
    hash: u64,
    youngest: u64,
}

impl Insertion<'_> {
    /// Takes the count back as if it had never been, in a rebuild too (where
    /// [`Change::remove`] leaves a false "perhaps" behind).
    #[inline]
    pub fn undo(self) {
        self.change.filter.switch.undo(&self.change.stay, self.hash, self.youngest);
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        self.filter.switch.leave(&self.stay);
    }
}

/// A filter that is being made anew ([`Filter::rebuild`]). Dropped before it has finished, it
/// leaves the filter as it is.
#[derive(Debug)]
#[must_use = "dropped, it leaves the filter as it was"]
pub struct Rebuild<'a> {
    filter: &'a Filter,
    next: Arc<Table<Word>>,
    is_finished: bool,
    _turn: MutexGuard<'a, ()>,
}

impl Rebuild<'_> {
    /// Adds a key that the engine has. From any thread.
    #[inline]
    pub fn add(&self, hash: u64) {
        self.next.add(hash);
    }

    /// Adds keys one after the other, each a little after its line was prefetched.
    pub(crate) fn additions(&self) -> Additions<'_> {
        Additions { rebuild: self, ahead: [0; AHEAD], count: 0 }
    }

    /// Sets the counters from `offset` on as they were in an image of a filter with the same capacity;
    /// false if that cannot be.
    pub(crate) fn restore(&self, offset: u64, bytes: &[u8]) -> bool {
        self.next.restore(offset, bytes)
    }

    /// Adds the number of keys that the image counts.
    pub(crate) fn restored(&self, keys: u64) {
        self.next.restored(keys);
    }

    /// All keys are added: the new table is in force from now on. Waits until all changes that are
    /// open have ended, and gives the memory of the old table back, unless a probe stays in it.
    pub fn finish(mut self) {
        self.is_finished = true;
        let mut backoff = Backoff::new();
        self.filter.switch.finish(|| backoff.wait());
        let mut backoff = Backoff::new();
        for _ in 0..PATIENCE {
            if self.filter.switch.place().reclaim() == 0 {
                return;
            }
            backoff.wait();
        }
    }
}

/// Adds keys; the last ones when it is dropped.
#[must_use = "the last keys are added when it is dropped"]
pub(crate) struct Additions<'a> {
    rebuild: &'a Rebuild<'a>,
    /// The keys whose lines were prefetched last, in a ring.
    ahead: [u64; AHEAD],
    count: usize,
}

impl Additions<'_> {
    /// Adds a key, before this is dropped.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64) {
        self.rebuild.next.prefetch(hash);
        let ahead = std::mem::replace(&mut self.ahead[self.count % AHEAD], hash);
        if self.count >= AHEAD {
            self.rebuild.add(ahead);
        }
        self.count += 1;
    }
}

impl Drop for Additions<'_> {
    fn drop(&mut self) {
        if !mutant!("mkvs.filter.last_keys") {
            self.ahead[..self.count.min(AHEAD)].iter().for_each(|hash| self.rebuild.add(*hash));
        }
    }
}

impl Drop for Rebuild<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.filter.switch.abandon();
        }
    }
}
