//! Emptying the matrix: all of it, or nothing.
//!
//! ```text
//!   nobody writes ─▶ every record says "clearing", durably ─▶ readers find nothing
//!     ─▶ each device is emptied, and has its record again ─▶ the records say that it is done
//! ```
//!
//! Cut off before the records say so, nothing has happened; after, opening goes on with it. A device
//! that is emptied at once loses its record with the rest, until it is written anew. So there is
//! always another one that has it: where a device is alone, its records go one by one.

use crate::device::{Device, Guarded, each_lot};
use crate::keyspace::intent::Intent;
use crate::matrix::Matrix;
use crate::membership::{Found, MembershipRecord};
use crate::rebuild::filter_snapshot;
use crate::shape::{Position, is_reserved};
use coreplane_engine::{Completion, Entry, Outcome, Result, WriteOptions};
use coreplane_pmem::mutant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Removes everything that a device has, durably so when it returns; perhaps its record too.
fn empty(engine: &Guarded, watermark: u64, is_alone: bool) -> Result<()> {
    if engine.tell(|it| it.clears_at_once()) && !is_alone {
        return engine.call(|it| it.clear());
    }
    Intent::drop_all(engine)?;
    filter_snapshot::drop_all(engine)?;
    empty_one_by_one(engine, watermark)
}

/// Gives a device that has been emptied its record again, durably.
fn put_record(engine: &Guarded, record: &MembershipRecord) -> Result<()> {
    record.write(engine)?;
    engine.call(|it| it.hold_tombstones(record.held.min(record.watermark)))
}

/// Deletes each key with the sequence `watermark`, which was drawn when no writer was active. Reconciliation compares
/// only what is above the watermark. With the devices' own sequences the tombstones would differ between members, and
/// look like writes that some of them lack.
fn empty_one_by_one(engine: &Guarded, watermark: u64) -> Result<()> {
    let given = (!mutant!("mkvs.clear.own_sequences")).then_some(watermark);
    let delete = |key: &[u8], sequence| {
        let options = WriteOptions {
            completion: Completion::Early,
            use_reserve: true,
            sequence,
            ..WriteOptions::default()
        };
        engine.call(|it| it.delete(key, &options))
    };
    let take = |entry: &Entry<'_>| (!is_reserved(entry.key)).then(|| entry.key.to_vec());
    each_lot((engine, &[]), take, |keys| {
        for key in &keys {
            if let Outcome::NotNewer(..) = delete(key, given)?
                && !mutant!("mkvs.clear.newer_left")
            {
                // Its record is damaged: no sequence that was ever given is greater than the watermark.
                let _outcome = delete(key, None)?;
            }
        }
        Ok(())
    })??;
    // No reader finds those, and they are counted.
    engine.call(|it| it.sweep_expired())?;
    engine.call(|it| it.sync())?;
    engine.call(|it| it.advance_sequence()).map(|_| ())
}

/// Goes on with what was cut off.
pub(crate) fn finish(
    found: &mut BTreeMap<Position, Found>,
    record: &mut MembershipRecord,
) -> Result<()> {
    if !record.is_clearing {
        return Ok(());
    }
    // It may have been cut off when one alone said so, which loses its record first of all. Who is missing has
    // got the last epoch, and says that it is current.
    record.epoch += 1;
    found.iter().try_for_each(|(at, device)| record.at(*at).write(&device.engine))?;
    let is_alone = found.len() == 1;
    for (position, device) in found {
        // Who is empty lacks nothing that the others have.
        device.record = record.at(*position);
        empty(&device.engine, record.watermark, is_alone)?;
        put_record(&device.engine, &device.record)?;
    }
    // Whoever is asked for the record next is told so.
    end_clear(record);
    Ok(())
}

/// Nothing is left, and nothing is lost any more.
fn end_clear(record: &mut MembershipRecord) {
    record.is_clearing = false;
    record.lost_ranges.clear();
}

/// A device that has lost its record with all that it had, and the place where it lies: whose it is, if
/// that is sure.
pub(crate) fn owner_of(
    place: Position,
    engine: &Guarded,
    found: &BTreeMap<Position, Found>,
    record: &MembershipRecord,
) -> Result<Option<Position>> {
    if !record.is_clearing || !engine.call(|it| it.is_empty())? {
        return Ok(None);
    }
    let lacks = |at: &Position| record.is_current(*at) && !found.contains_key(at);
    let mut lacking = record.positions().filter(lacks);
    let (first, more) = (lacking.next(), lacking.next());
    // Devices may be put anywhere.
    Ok(if lacks(&place) { Some(place) } else { first.filter(|_| more.is_none()) })
}

impl Matrix {
    /// Removes every record, durably when it returns. Writes that run beside it come before or after
    /// it, and so do reads.
    ///
    /// # Errors
    /// [`Unusable`](coreplane_engine::Error::Unusable) while a device or a group is being filled; as
    /// the devices. If it was begun and cannot be ended no more is written, and opening ends it.
    pub(super) fn remove_all(&self) -> Result<()> {
        // What is given to whoever is filled would be there again.
        let _alone = self.rebuild.fill_alone()?;
        {
            // Whoever goes through many keys has ended.
            let _still = self.keyspace.moves.write();
            let _turns = self.keyspace.in_flight.all_turns();
            self.keyspace.check_writable()?;
            self.begin_clear()?;
            let _publishing = self.keyspace.isolation.begin();
            self.keyspace.is_empty.store(true, Ordering::SeqCst);
            if let Err(error) = self.empty_devices() {
                // What was written from here on would be lost when that is gone on with.
                self.keyspace.closed.store(true, Ordering::SeqCst);
                return Err(error);
            }
            self.keyspace.in_flight.forget();
            self.keyspace.is_empty.store(false, Ordering::SeqCst);
        }
        for group in self.keyspace.groups.iter() {
            // Without it, it says "perhaps" of what was there.
            let _filled = self.filters.fill_filter(group).is_ok();
        }
        Ok(())
    }

    /// From here on it will be empty, whatever happens.
    fn begin_clear(&self) -> Result<()> {
        let members = || self.keyspace.groups.iter().flat_map(|group| group.of(group.followers()));
        members().for_each(|device| device.drain());
        let now = self.keyspace.groups[0].draw(None);
        // What was written up to now is on no device, nor is the tombstone of it.
        let record = self.failover.change(|record| {
            (record.is_clearing, record.watermark) = (true, record.watermark.max(now));
            record.horizon = record.horizon.max(now);
        })?;
        self.failover.watermark.fetch_max(record.watermark, Ordering::AcqRel);
        self.keyspace.horizon.fetch_max(record.horizon, Ordering::AcqRel);
        Ok(())
    }

    fn empty_devices(&self) -> Result<()> {
        let is_alone =
            self.keyspace.groups.len() == 1 && self.keyspace.groups[0].members().count_ones() == 1;
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()).map(Arc::clone).collect::<Vec<_>>() {
                let watermark = self.failover.membership.now().watermark;
                let emptied = empty(&device.engine, watermark, is_alone);
                if let Err(error) = emptied.and_then(|()| self.put_record(&device)) {
                    group.go_on_without(&device, error)?;
                } else {
                    self.keyspace.raise_sequence(&device.engine)?;
                }
            }
        }
        self.failover.change(end_clear).map(drop)
    }

    /// Gives a device that has been emptied the record in force, which may have changed since the device began: nobody
    /// changes it meanwhile. The lock is free again when it returns, so that the device can be left out.
    fn put_record(&self, device: &Device) -> Result<()> {
        let record = self.failover.membership.lock();
        put_record(&device.engine, &record.at(device.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_engine::{Engine, Replicated};
    use coreplane_pmem::MediaChoice;
    use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};

    /// Tombstones have the watermark as sequence. A record whose sequence is above it, which only damage can cause,
    /// does not stay.
    #[test]
    fn every_key_goes_and_tombstones_are_not_above_the_watermark() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let (path, media) = (directory.path().join("pool"), MediaChoice::Auto);
        let (geometry, placement) = (Geometry::TINY, Placement::Auto);
        let engine =
            Scmkv::create_with(&path, 256 << 10, geometry, media, placement, Options::default())
                .expect("create");
        engine.hold_tombstones(0).expect("hold");
        for (key, sequence) in [(b"below", 40), (b"above", 60)] {
            let options = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
            let _outcome = engine.put(key, b"value", &options).expect("put");
        }
        let engine = Guarded::new(Arc::new(engine)).expect("a device");
        empty_one_by_one(&engine, 50).expect("empty");
        assert_eq!(engine.call(|it| it.len()).expect("len"), 0);
        let mut sequences = Vec::new();
        let mut note = |entry: Entry<'_>| sequences.push((entry.key.to_vec(), entry.sequence));
        engine.call(|it| it.changes_since(0, &mut note)).expect("changes");
        let below = sequences.iter().find(|(key, _)| key == b"below").expect("a tombstone");
        assert_eq!(below.1, 50);
    }
}
