//! Filters that fill up are made anew with more room, in a thread of the matrix, while others write.
//!
//! Who writes looks now and then how full the filter of its key's group is, and asks for more room at
//! seven eighths of what it is made for: that is a flag and a wake-up. The thread goes through the keys
//! of the group; insertions and removals go on meanwhile ([`filter`](crate::filter)), and nobody waits
//! for it.
//!
//! How full a filter is by then: where `i` keys are inserted in the time in which `l` are listed, 7/8 x
//! (1 + i/l) of what it is made for, and what is inserted between two looks (1,024 writes of the matrix).
//! Nothing else bounds it. A filter that is fuller says "perhaps" more often, and is never wrong
//! otherwise; and when it has room it is looked at again, before anybody asks.
//!
//! The same thread fills the filters of a matrix that was not closed, and has many keys, after it is open.
//! Until then a filter says "perhaps" of every key, and nobody asks it.

use crate::device::Device;
use crate::device::decision::is_damage;
use crate::filter::CAPACITY_MIN;
use crate::filter::{FilterError, Rebuild, ResizeThread, hash_of};
use crate::group::Group;
use crate::keyspace::Keyspace;
use crate::rebuild::scrub::show_sure;
use crate::shape::position::is_reserved;
use crate::stats::counters::Count;
use coreplane_engine::{Entry, Error, Result};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// How full a filter is when more room is asked for.
const FULL: f64 = 7.0 / 8.0;

/// Bytes of a device for each key that a filter has room for from the beginning: a hundred and sixtieth of
/// them, in DRAM. To make a filter anew reads all keys, and takes the time of those who write them.
const BYTES_A_KEY: u64 = 1 << 10;

/// Room for more keys than this a filter gets when they come.
const AT_FIRST_MAX: u64 = 1 << 20;

/// Keys that are listed at a time.
const AT_A_TIME: usize = 1024;

/// How often the keys are listed if writes are taken back meanwhile.
const TRIES: u32 = 4;

/// What became of filling a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    Done,
    /// Writes were taken back all the time: the old one is in force.
    TakenBack,
    /// There are more keys than were to be listed.
    TooMany,
}

fn unusable(error: FilterError) -> Error {
    Error::Unusable(error.to_string())
}

/// The keys that the filter of a group has room for at least, of which this is a device.
fn least_room(device: &Device) -> u64 {
    let bytes = device.engine.stats().pool_bytes;
    (bytes / BYTES_A_KEY).clamp(CAPACITY_MIN, AT_FIRST_MAX)
}

/// The filters of an open matrix: filled, made anew with more room, and kept at a close.
pub(crate) struct Filters {
    /// Itself, for the thread.
    weak: Weak<Self>,
    pub(super) keyspace: Arc<Keyspace>,
    thread: ResizeThread,
    /// Filters of so many keys are kept at a close.
    pub(super) keeps_from: u64,
}

fn run(filters: &Weak<Filters>) {
    while let Some(filters) =
        filters.upgrade().filter(|it| !it.keyspace.closed.load(Ordering::SeqCst))
    {
        if filters.thread.take_request() {
            filters.resize_filters();
        } else {
            // It must not keep the matrix.
            drop(filters);
            std::thread::park();
        }
    }
}

impl Filters {
    pub(crate) fn new(keyspace: &Arc<Keyspace>, keeps_from: u64) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            weak: weak.clone(),
            keyspace: Arc::clone(keyspace),
            thread: ResizeThread::default(),
            keeps_from,
        })
    }

    /// Ends the thread. The matrix is closed by now.
    pub(crate) fn stop(&self) {
        self.thread.stop();
    }

    /// Has the filter of a group grow if it is about to be full; does not wait for it.
    pub(crate) fn look_after_filter(&self, group: &Group) {
        if group.filter.load() > FULL || group.is_to_be_listed.load(Ordering::Relaxed) {
            self.ask_for_resize();
        }
    }

    fn ask_for_resize(&self) {
        let filters = self.weak.clone();
        self.thread.ask(|| self.keyspace.closed.load(Ordering::SeqCst), move || run(&filters));
    }

    /// Makes all filters that nobody has filled yet, and anew those that are about to be full, until none is.
    fn resize_filters(&self) {
        let is_new = |group: &Group| group.is_to_be_listed.load(Ordering::Acquire);
        let is_due = |group: &&Arc<Group>| is_new(group) || group.filter.load() > FULL;
        while let Some(group) = self.keyspace.groups.iter().find(is_due) {
            let is_growth = !is_new(group);
            if !self.fill_filter(group).unwrap_or(false) {
                // Until somebody asks again.
                return;
            }
            group.is_to_be_listed.store(false, Ordering::Release);
            self.keyspace.counters.add(Count::Growths, i64::from(is_growth));
        }
    }

    /// Fills the filter of a group that is being opened, if it has at most so many keys; else that is done later, and the
    /// filter says "perhaps" until then. Nobody else is in the group yet.
    ///
    /// # Errors
    /// As the engine, and if there is no memory.
    pub(crate) fn fill_now_or_later(&self, group: &Group, most: u64) -> Result<()> {
        // Of a device that was closed it is known.
        let counted = |device: &Arc<Device>| device.engine.stats().records;
        let (room, keys) = group.ask(|device| Ok((least_room(device), counted(device))))?;
        let filled = match keys > most {
            true => Filling::TooMany,
            false => self.fill_up_to(group, room, Some(most))?,
        };
        if filled != Filling::Done {
            group.filter.admit_all().map_err(unusable)?;
            group.is_listed.store(false, Ordering::Release);
            group.is_to_be_listed.store(true, Ordering::Release);
            self.ask_for_resize();
        }
        Ok(())
    }

    /// Makes the filter of a group anew, twice as large as it has keys, from those of a device; false if
    /// writes were taken back all the time: then the old one is in force.
    ///
    /// # Errors
    /// As the engine, if there is no memory, and if the matrix is closed meanwhile.
    pub(crate) fn fill_filter(&self, group: &Group) -> Result<bool> {
        // Another thread may be at it.
        let _alone = self.thread.alone();
        let (keys, room) = group.ask(|device| Ok((device.engine.len()?, least_room(device))))?;
        self.fill_up_to(group, (2 * keys).max(room), None).map(|filled| filled == Filling::Done)
    }

    /// The same, with room for so many keys, if there are not more of them than `most`.
    fn fill_up_to(&self, group: &Group, capacity: u64, most: Option<u64>) -> Result<Filling> {
        for _ in 0..TRIES {
            let rebuild = group.filter.rebuild(capacity).map_err(unusable)?;
            let taken_back = self.keyspace.in_flight.taken_back();
            let Some(is_listed) = self.list_all(group, &rebuild, most)? else {
                return Ok(Filling::TooMany);
            };
            // What was deleted when it was listed, and taken back since, is there and was not listed; what
            // may be taken back yet is waited for.
            self.keyspace.in_flight.wait_for_key_locks();
            if self.keyspace.in_flight.taken_back() != taken_back {
                continue;
            }
            // What denies too much is not asked, and what is asked does not deny too much.
            group.is_listed.fetch_and(is_listed, Ordering::AcqRel);
            rebuild.finish();
            group.is_listed.store(is_listed, Ordering::Release);
            return Ok(Filling::Done);
        }
        Ok(Filling::TakenBack)
    }

    /// Counts all keys of a group in a filter that is made anew; false if some cannot be listed, and none if
    /// there are more than `most`.
    fn list_all(
        &self,
        group: &Group,
        rebuild: &Rebuild<'_>,
        most: Option<u64>,
    ) -> Result<Option<bool>> {
        let (counted, most) = (Cell::new(0_u64), most.unwrap_or(u64::MAX));
        // Only now: what was counted in the old table alone is on this device when it is listed. What
        // one had listed that has failed is counted twice: that is "perhaps".
        let mut add = |entry: Entry<'_>| {
            if !is_reserved(entry.key) {
                rebuild.add(hash_of(entry.key));
                counted.set(counted.get() + 1);
            }
        };
        let is_enough = || counted.get() > most;
        match self
            .keyspace
            .read_through(group, &mut |device| self.list(device, &mut add, &is_enough))
        {
            Err(error) if is_damage(&error) => {}
            read => return read.map(|()| (!is_enough()).then_some(true)),
        }
        // Each has lost something: what they have together is all that can be listed.
        for device in group.of(group.members()) {
            match show_sure(&*device.engine, &device.engine.lost_ranges()?, &mut add) {
                // The group is not listed, whatever else it lacks.
                Err(error) if is_damage(&error) => {}
                shown => shown?,
            }
        }
        Ok(Some(false))
    }

    /// Shows all records of a device, or as many as are enough.
    fn list(
        &self,
        device: &Device,
        show: &mut dyn FnMut(Entry<'_>),
        is_enough: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut cursor = 0;
        loop {
            self.keyspace.check_writable()?;
            cursor = device.engine.iterate(cursor, AT_A_TIME, show)?;
            if cursor == 0 || is_enough() {
                return Ok(());
            }
        }
    }
}
