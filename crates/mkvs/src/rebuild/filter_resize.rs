//! Filters that fill up are rebuilt with more room, in a thread of the matrix, while writers continue.
//!
//! A writer occasionally checks how full the filter of its key's group is, and asks for more room at seven
//! eighths of its capacity: that is a flag and a wake-up. The thread reads the keys of the group. Insertions
//! and removals continue meanwhile ([`filter`](crate::filter)), and no thread waits for it.
//!
//! The fill of a filter by then: if `i` keys are inserted in the time in which `l` keys are listed, 7/8 x
//! (1 + i/l) of its capacity, and the keys inserted between two checks (1,024 writes of the matrix). There is
//! no other bound. A filter that is fuller says "perhaps" more often, and makes no other error; and when it
//! has room its fill is checked again without a request.
//!
//! If a matrix was not closed and has many keys, the same thread fills its filters after it is open. Until
//! then a filter lacks keys, and readers do not ask it.

use crate::device::{Device, Walk, is_damage};
use crate::filter::{CAPACITY_MIN, Rebuild, hash_of};
use crate::group::Group;
use crate::keyspace::Keyspace;
use crate::shape::is_reserved;
use crate::stats::Count;
use coreplane_engine::{Entry, Record, Result, Visibility};
use coreplane_pmem::{background, spin};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The fill at which a filter asks for more room.
const FULL: f64 = 7.0 / 8.0;

/// Bytes of a device for each key that a filter has room for initially: it takes a hundred and sixtieth of
/// them, in DRAM. A rebuild of a filter reads all keys, and takes time from writers.
const BYTES_A_KEY: u64 = 1 << 10;

/// The most keys that a filter has room for initially.
const AT_FIRST_MAX: u64 = 1 << 20;

/// Keys that are listed at a time.
const AT_A_TIME: usize = 1024;

/// How often the keys are listed if writes are taken back each time.
const TRIES: u32 = 4;

/// The least capacity of the filter of a group to which this device belongs.
fn least_room(device: &Device) -> u64 {
    let bytes = device.engine.tell(|it| it.stats()).pool_bytes;
    (bytes / BYTES_A_KEY).clamp(CAPACITY_MIN, AT_FIRST_MAX)
}

/// The filters of an open matrix: filled, resized, and kept at a close.
pub(crate) struct Filters {
    /// A reference to itself, for the thread.
    weak: Weak<Self>,
    pub(super) keyspace: Arc<Keyspace>,
    /// A check of all filters was requested.
    is_asked: AtomicBool,
    /// Checks the filters; started at the first request.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held by a thread that makes a filter anew.
    resizing: Mutex<()>,
    /// Filters of at least so many keys are kept at a close.
    pub(super) keeps_from: u64,
}

fn run(filters: &Weak<Filters>) {
    while let Some(filters) =
        filters.upgrade().filter(|it| !it.keyspace.closed.load(Ordering::SeqCst))
    {
        if filters.is_asked.swap(false, Ordering::AcqRel) {
            filters.resize_filters();
        } else {
            // The thread must not keep the matrix open.
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
            is_asked: AtomicBool::new(false),
            thread: Mutex::default(),
            resizing: Mutex::default(),
            keeps_from,
        })
    }

    /// Ends the thread. The matrix is closed by now.
    pub(crate) fn stop(&self) {
        let thread = spin::lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic there has been reported by its thread.
            let _ended = thread.join().is_ok();
        }
    }

    /// Has the filter of a group resized if it is almost full; does not wait for that.
    pub(crate) fn look_after_filter(&self, group: &Group) {
        if group.filter.load() > FULL || group.is_to_be_listed.load(Ordering::Relaxed) {
            self.ask_for_resize();
        }
    }

    /// Requests a check of all filters, unless the matrix is closed by now.
    fn ask_for_resize(&self) {
        self.is_asked.store(true, Ordering::Release);
        let mut thread = spin::lock(&self.thread);
        match &*thread {
            Some(thread) => thread.thread().unpark(),
            None if self.keyspace.closed.load(Ordering::SeqCst) => {}
            None => {
                let filters = self.weak.clone();
                // If the system gives no thread, filters get fuller, and the next writer tries again.
                *thread = background::spawn("coreplane-filters", move || run(&filters)).ok();
            }
        }
    }

    /// Fills filters that are not filled yet and resizes those that are almost full, until none is left.
    fn resize_filters(&self) {
        let is_new = |group: &Group| group.is_to_be_listed.load(Ordering::Acquire);
        let is_due = |group: &&Arc<Group>| is_new(group) || group.filter.load() > FULL;
        while let Some(group) = self.keyspace.groups.iter().find(is_due) {
            let is_growth = !is_new(group);
            if !self.fill_filter(group).unwrap_or(false) {
                // The next request continues.
                return;
            }
            group.is_to_be_listed.store(false, Ordering::Release);
            self.keyspace.counters.add(Count::Growths, i64::from(is_growth));
        }
    }

    /// Fills the filter of a group that is being opened, if it has at most `most` keys; otherwise that is
    /// done later, and the filter is not asked until then. No other thread uses the group yet.
    ///
    /// # Errors
    /// As the engine, and if there is no memory.
    pub(crate) fn fill_now_or_later(&self, group: &Group, most: u64) -> Result<()> {
        // Known for a device that was closed.
        let counted = |device: &Arc<Device>| device.engine.tell(|it| it.stats()).records;
        let (room, keys) =
            group.ask(Group::settled, |device| Ok((least_room(device), counted(device))))?;
        let is_filled = keys <= most && self.fill_up_to(group, room, most)?;
        if !is_filled {
            group.is_listed.store(false, Ordering::Release);
            group.is_to_be_listed.store(true, Ordering::Release);
            self.ask_for_resize();
        }
        Ok(())
    }

    /// Rebuilds the filter of a group with room for twice its keys, from the keys of a device; false if
    /// writes were taken back during each try: then the old filter is in force.
    ///
    /// # Errors
    /// As the engine, if there is no memory, and if the matrix is closed meanwhile.
    pub(crate) fn fill_filter(&self, group: &Group) -> Result<bool> {
        // Another thread may be filling one.
        let _alone = self.resizing.lock();
        let (keys, room) = group.ask(Group::settled, |device| {
            Ok((device.engine.call(|it| it.len())?, least_room(device)))
        })?;
        self.fill_up_to(group, (2 * keys).max(room), u64::MAX)
    }

    /// Rebuilds the filter with room for `capacity` keys; false if there are more than `most`, or writes were taken
    /// back during each try: then the old filter is in force.
    fn fill_up_to(&self, group: &Group, capacity: u64, most: u64) -> Result<bool> {
        for _ in 0..TRIES {
            let rebuild = group.filter.rebuild(capacity)?;
            let taken_back = self.keyspace.in_flight.taken_back();
            let Some(is_listed) = self.list_all(group, &rebuild, most)? else {
                return Ok(false);
            };
            // A key whose delete was taken back since exists, but was not listed. Writes that may still be taken
            // back are waited for.
            self.keyspace.in_flight.wait_for_key_locks();
            if self.keyspace.in_flight.taken_back() != taken_back {
                continue;
            }
            // The old filter is asked only if both are complete, the new one only if it is.
            group.is_listed.fetch_and(is_listed, Ordering::AcqRel);
            rebuild.finish();
            group.is_listed.store(is_listed, Ordering::Release);
            return Ok(true);
        }
        Ok(false)
    }

    /// Counts all keys of a group in a filter that is being rebuilt; false if some cannot be listed, and none
    /// if there are more than `most`.
    fn list_all(&self, group: &Group, rebuild: &Rebuild<'_>, most: u64) -> Result<Option<bool>> {
        let counted = Cell::new(0_u64);
        let mut additions = rebuild.additions();
        // Only now: a key that was counted in the old table alone is on this device when it is listed. A key that
        // a failed device had listed is counted twice, which only makes the filter say "perhaps".
        let mut add = |entry: Entry<'_>| {
            if !is_reserved(entry.key) {
                additions.add(hash_of(entry.key));
                counted.set(counted.get() + 1);
            }
        };
        let is_enough = || counted.get() > most;
        let mut listed = None;
        let read = self.keyspace.read_through(group, &mut |device| {
            listed = Some(Arc::clone(device));
            self.list(device, &mut add, &is_enough)
        });
        match read {
            // Each member has lost something. A filter that lacks keys is not asked.
            Err(error) if is_damage(&error) => Ok(Some(false)),
            Ok(()) if !is_enough() => {
                let is_whole = listed.map_or(Ok(true), |it| self.list_hidden(group, &it, &mut add));
                is_whole.map(Some)
            }
            read => read.map(|()| None),
        }
    }

    /// Shows the records that a device, which was listed, does not find although another member has them: a flipped
    /// bit of its index may hide them. False if damage hides records of the others.
    fn list_hidden(
        &self,
        group: &Group,
        listed: &Device,
        show: &mut dyn FnMut(Entry<'_>),
    ) -> Result<bool> {
        if listed.engine.tell(|it| it.proves_absence()) {
            return Ok(true);
        }
        let mut is_whole = true;
        for device in group.of(group.members() & !(1 << listed.number)) {
            device.drain();
            let mut show_hidden = |entry: Entry<'_>| {
                // Its value does not matter.
                let look = &mut |_: Record<'_>| {};
                let found =
                    listed.engine.call(|it| it.get_with(entry.key, Visibility::Early, look));
                if !found.is_ok_and(|found| found.hit) {
                    show(entry);
                }
            };
            match self.list(device, &mut show_hidden, &|| false) {
                Err(error) if is_damage(&error) => is_whole = false,
                Err(error) => group.go_on_without(device, error)?,
                Ok(()) => {}
            }
        }
        Ok(is_whole)
    }

    /// Shows the records of a device, until there are enough.
    fn list(
        &self,
        device: &Device,
        show: &mut dyn FnMut(Entry<'_>),
        is_enough: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut walk = Walk::new(&device.engine, &[]);
        loop {
            self.keyspace.check_writable()?;
            if !walk.next(AT_A_TIME, show)? || is_enough() {
                return Ok(());
            }
        }
    }
}
