//! Copies all records of a group to a device or a group that lacks them.
//!
//! The source is the group's primary: its records, then its tombstones. Writers continue meanwhile, and the
//! device or group that is being filled receives their writes as well. Sequences keep this in order: each
//! record is given with its own, and an engine keeps the newest.

use crate::device::{Device, Guarded, is_damage};
use crate::group::{Group, Item};
use crate::membership::just;
use crate::rebuild::Rebuild;
use crate::rebuild::scrub::Scrubbed;
use crate::shape::is_reserved;
use coreplane_engine::{DamagedKey, Entry, Error, KeyRange, Result};
use coreplane_pmem::mutant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Records that are read at a time.
pub(super) const AT_A_TIME: usize = 256;

/// Bytes of values that are read at a time: the values behind them are read one by one.
const BYTES_AT_A_TIME: usize = 8 << 20;

/// How a device or a group is filled.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyOptions {
    /// The most bytes of keys and values in a second; none: no limit.
    pub bytes_per_second_max: Option<u64>,
    /// The device at the place is removed, and a new one is filled from nothing. Otherwise a device that is
    /// there already is brought up to date.
    pub is_fresh: bool,
}

/// The data that was given to the filled device or group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Copied {
    /// Records that were read.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// The duration.
    pub elapsed: Duration,
    /// Keys that were left out, since their record is damaged on every device that has it. Reads of them fail
    /// from then on, on every device, until they are written again, or the loss is accepted when the matrix
    /// is opened. Of a long key whose rest is damaged this is the beginning.
    pub lost: Vec<Vec<u8>>,
}

/// Counts records, and limits the speed.
pub(crate) struct Pace {
    begun: Instant,
    bytes_per_second_max: Option<u64>,
    records: u64,
    bytes: u64,
    lost: Vec<KeyRange>,
}

/// The next records of a device, and the next cursor. A record without a value has one that is still to be read.
fn items_of(device: &Device, cursor: u64) -> (Vec<Item>, Result<u64>) {
    let (mut items, mut bytes) = (Vec::with_capacity(AT_A_TIME), 0);
    let mut take = |entry: Entry<'_>| {
        let Some(record) = &entry.record else { return };
        let put = (bytes < BYTES_AT_A_TIME).then(|| (record.value.to_vec(), record.expires_at));
        bytes += put.as_ref().map_or(0, |(value, _)| value.len());
        items.push(Item { key: entry.key.to_vec(), put, sequence: entry.sequence });
    };
    let listed = device.engine.call(|it| it.iterate(cursor, AT_A_TIME, &mut take));
    (items, listed)
}

impl Pace {
    pub(crate) fn new(options: &CopyOptions) -> Self {
        let bytes_per_second_max = options.bytes_per_second_max;
        let (records, bytes, lost) = (0, 0, Vec::new());
        Self { begun: Instant::now(), bytes_per_second_max, records, bytes, lost }
    }

    fn count(&mut self, item: &Item) {
        self.records += 1;
        self.bytes += item.key.len() as u64 + value_len(item);
    }

    /// Counts bytes of values that their records were listed without.
    pub(crate) fn count_values(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Waits if it was faster than allowed.
    fn keep(&self) {
        let Some(max) = self.bytes_per_second_max else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / max.max(1) as f64);
        let early = due.saturating_sub(self.begun.elapsed());
        // In steps, so that a matrix that is closed need not wait long.
        std::thread::sleep(early.min(Duration::from_millis(100)));
    }

    fn is_ahead(&self) -> bool {
        let max = self.bytes_per_second_max.map(|max| max.max(1) as f64);
        max.is_some_and(|max| self.bytes as f64 / max > self.begun.elapsed().as_secs_f64())
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Notes a range with a key that is not given.
    pub(crate) fn leave_out(&mut self, key: KeyRange) {
        if !self.lost.contains(&key) {
            self.lost.push(key);
        }
    }

    /// Keys that were not given, since every device that has them has damaged records: if only a part of a
    /// key is known, a range that contains it.
    pub(crate) fn lost(&self) -> &[KeyRange] {
        &self.lost
    }

    pub(crate) fn filled(&self) -> Copied {
        let Self { begun, records, bytes, ref lost, .. } = *self;
        let lost = lost.iter().map(|it| it.start.clone()).collect();
        Copied { records, bytes, elapsed: begun.elapsed(), lost }
    }
}

/// Bytes of the value of a record.
pub(crate) fn value_len(item: &Item) -> u64 {
    item.put.as_ref().map_or(0, |(value, _)| value.len() as u64)
}

/// The damaged keys that a device has skipped, if it has shown all others.
///
/// # Errors
/// The given error, if it has not.
pub(crate) fn hurt_of(engine: &Guarded, error: Error) -> Result<Vec<DamagedKey>> {
    let hurt = engine.call(|it| it.damaged_keys_since(0))?;
    if hurt.is_empty() || !engine.call(|it| it.lost_ranges())?.is_empty() {
        return Err(error);
    }
    Ok(hurt)
}

impl Rebuild {
    /// Gives everything that a group has: records first, then tombstones. An iteration checks no checksums,
    /// so each record is checked here: a damaged record must not become a valid one elsewhere, with a new
    /// checksum. A record that is damaged on every device is not given, and its key is noted in the pace.
    ///
    /// # Errors
    /// As the engine and `give`, and if the matrix is closed meanwhile.
    pub(crate) fn give_all(
        &self,
        group: &Arc<Group>,
        pace: &mut Pace,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<()> {
        let mut device = Arc::clone(group.settled()?);
        // Keys that the device lists and does not find; and the damage with which its list has ended.
        let (mut cursor, mut strange, mut damage) = (0, Vec::new(), None);
        loop {
            let primary = group.settled()?;
            if !Arc::ptr_eq(primary, &device) {
                // The order of an iteration on another device is different.
                (device, cursor) = (Arc::clone(primary), 0);
                (strange, damage) = (Vec::new(), None);
            }
            let from = cursor;
            let (items, listed) = items_of(&device, cursor);
            cursor = match listed {
                Err(error) if !is_damage(&error) => {
                    group.go_on_without(&device, error)?;
                    continue;
                }
                Err(error) => {
                    damage = Some(error);
                    0
                }
                Ok(cursor) => cursor,
            };
            let (mut failed, mut lost, mut later) = (None, Vec::new(), 0);
            self.give_each(
                &items,
                pace,
                &mut |item| match self.check_listed((&device, from), item) {
                    // Records that it showed before it failed are not used: the next primary has all of them.
                    _ if failed.is_some() => Ok(()),
                    Ok(true) if item.put.is_some() => give(item),
                    Ok(false) => {
                        strange.push(item.key.clone());
                        Ok(())
                    }
                    Err(error) if !is_damage(&error) => {
                        failed = Some(error);
                        Ok(())
                    }
                    // Its value was left out, or the record is damaged.
                    Ok(true) | Err(_) => {
                        self.give_sound(group, &item.key, &mut lost, &mut |given| {
                            later += if item.put.is_none() { value_len(given) } else { 0 };
                            give(given)
                        })
                    }
                },
            )?;
            pace.count_values(later);
            lost.iter().for_each(|key| pace.leave_out(just(key)));
            if let Some(error) = failed {
                group.go_on_without(&device, error)?;
            } else if cursor == 0 {
                break;
            }
        }
        if damage.is_some() || !strange.is_empty() {
            self.give_of_members(group, (&device, damage), strange, pace, give)?;
        }
        if mutant!("mkvs.fill.tombstones") {
            return Ok(());
        }
        self.give_each(&self.tombstones_of(group)?, pace, give)
    }

    /// The tombstones of a group.
    fn tombstones_of(&self, group: &Group) -> Result<Vec<Item>> {
        let mut gone = Vec::new();
        // From a member that can show all of them.
        self.keyspace.read_through(group, &mut |device| {
            loop {
                gone.clear();
                let mut is_begun = false;
                let mut take = |entry: Entry<'_>| {
                    is_begun = true;
                    if entry.record.is_none() {
                        let (key, sequence) = (entry.key.to_vec(), entry.sequence);
                        gone.push(Item { key, put: None, sequence });
                    }
                };
                let since = device.engine.tell(|it| it.tombstone_horizon());
                let shown = device.engine.call(|it| it.changes_since(since, &mut take));
                match shown {
                    // Tombstones that the primary drops meanwhile are not needed, and all others have been shown.
                    Err(Error::HistoryGone { .. }) if is_begun => return Ok(()),
                    Err(Error::HistoryGone { .. }) => {}
                    Err(error) if is_damage(&error) => {
                        return hurt_of(&device.engine, error).map(drop);
                    }
                    shown => return shown,
                }
            }
        })?;
        Ok(gone)
    }

    /// Gives the record of a key, which is healed if the primary lacks it or has it damaged; or notes that no device
    /// has it undamaged.
    pub(crate) fn give_sound(
        &self,
        group: &Arc<Group>,
        key: &[u8],
        lost: &mut Vec<Vec<u8>>,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<()> {
        let mut item = match group.item_of(key) {
            Err(error) if is_damage(&error) => None,
            item => item?,
        };
        if item.is_none() {
            let mut scrubbed = Scrubbed::default();
            self.scrub_key(group, key, &mut scrubbed)?;
            if !scrubbed.lost.is_empty() {
                if !lost.iter().any(|it| it == key) {
                    lost.append(&mut scrubbed.lost);
                }
                return Ok(());
            }
            // None: it was deleted meanwhile, and the device or group that is being filled has received the delete.
            item = group.item_of(key)?;
        }
        item.map_or(Ok(()), |item| give(&item))
    }

    /// # Errors
    /// [`Error::Closed`] if no device or group may be filled any more.
    pub(crate) fn check_going_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.keyspace.check_writable()
    }

    pub(crate) fn give_each(
        &self,
        items: &[Item],
        pace: &mut Pace,
        give: &mut dyn FnMut(&Item) -> Result<()>,
    ) -> Result<()> {
        for item in items.iter().filter(|item| !is_reserved(&item.key)) {
            if mutant!("mkvs.fill.one_in_seven")
                && crate::filter::hash_of(&item.key).is_multiple_of(7)
            {
                continue;
            }
            self.check_going_on()?;
            give(item)?;
            pace.count(item);
        }
        while pace.is_ahead() {
            self.check_going_on()?;
            pace.keep();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Position;
    use coreplane_bptree::{Bptree, Options};
    use coreplane_engine::{Engine, WriteOptions};
    use coreplane_pmem::MediaChoice;

    #[test]
    fn values_that_are_read_at_a_time_are_bounded_by_their_bytes() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let (path, options) = (directory.path().join("pool"), Options::default());
        let engine = Bptree::create(&path, 32 << 20, 8192, MediaChoice::Auto, &options);
        let engine = engine.expect("create");
        for key in 0..12_u8 {
            let value = vec![key; 1 << 20];
            let _outcome = engine.put(&[key], &value, &WriteOptions::default()).expect("put");
        }
        let device =
            Device::new(Position::default(), Guarded::new(Arc::new(engine)).expect("a device"));
        let (items, next) = items_of(&device, 0);
        let with_values = items.iter().filter(|item| item.put.is_some());
        assert_eq!((items.len(), with_values.count(), next.expect("the last")), (12, 8, 0));
    }
}
