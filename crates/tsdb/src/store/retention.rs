//! Retention: shards that are over are dropped, and then the series that have no point left.
//!
//! ```text
//!   shard dropped ─▶ series without a point: noted as empty ─▶ writes that began before have ended ─▶ looked at
//!   again: still without a point, and kept by no write: doomed ─▶ one record, fence ─▶ gone
//! ```
//!
//! No acknowledged point is lost with its series: a write either began before the note, and has its points in a head
//! when the series is looked at again; or it finds the note and keeps the series; or it finds a doomed one, waits for
//! the log of names, and makes a new series.

use super::{Shared, Store};
use crate::catalogue::{Catalogue, Change, Series, SeriesId};
use crate::error::{Error, Result};
use coreplane_pmem::epoch::{Writes, has_passed_in, stamp_in};
use coreplane_pmem::{mutant, spin};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time that writes have to end in. A write takes longer if a sync does.
const WRITES_END_WITHIN: Duration = Duration::from_secs(10);
/// The maximum number of series in one record.
const IDS_MAX: usize = 200;
/// The time after which series without points are looked for again, if they could not be dropped.
const PAUSE: Duration = Duration::from_secs(600);

impl Shared {
    /// Drops the shards whose points are older than their policies allow, by one record for all sets, and series
    /// that have no point left.
    pub(super) fn expire(&self) -> Result<()> {
        let now = self.now();
        let expired: Vec<u32> = self.names.read().expired_shards(now).collect();
        let Some(first) = self.sets.first() else { return Ok(()) };
        if !expired.is_empty() {
            let dropped = self.names.change(&first.pages, |draft| {
                let is_there = |id: &&u32| draft.catalogue.is_shard_live(**id);
                let dropped: Vec<Change> = expired
                    .iter()
                    .filter(is_there)
                    .map(|id| Change::ShardDropped { id: *id })
                    .collect();
                draft.push(dropped);
                Ok(())
            });
            // A part of them may be gone also after an error.
            self.may_have_empty_series.store(true, Ordering::Relaxed);
            dropped?;
        }
        let mut next_try = spin::lock(&self.series_drop);
        if next_try.is_some_and(|it| Instant::now() < it) {
            return Ok(());
        }
        if self.may_have_empty_series.swap(false, Ordering::Relaxed) {
            let dropped = self.drop_empty_series();
            let is_done = matches!(dropped, Ok(true));
            // It is tried again, and looks at all series then.
            *next_try = (!is_done).then(|| Instant::now() + PAUSE);
            self.may_have_empty_series.fetch_or(!is_done, Ordering::Relaxed);
            // A full store seals and merges as before.
            return dropped.map(drop).or_else(|error| match error {
                Error::Full(_) => Ok(()),
                error => Err(error),
            });
        }
        Ok(())
    }

    /// Drops the series that have no point, and the measurements that have no other series; false if writes did not
    /// end in time.
    fn drop_empty_series(&self) -> Result<bool> {
        let all = self.names.read().all_series().map(|it| (it.set, it.id)).collect();
        let empty = self.without_points(all)?;
        if empty.is_empty() {
            return Ok(true);
        }
        let of = |(_, id): &(u32, SeriesId)| self.names.read().series(*id).cloned();
        let noted: Vec<Arc<Series>> = empty.iter().filter_map(of).collect();
        noted.iter().for_each(|it| it.note_empty());
        let dropped = self.wait_for_writes().and_then(|has_ended| {
            if has_ended {
                let empty = self.without_points(empty)?;
                self.drop_doomed(&empty.iter().map(|(_, id)| *id).collect::<Vec<_>>())?;
            }
            Ok(has_ended)
        });
        // Those that were not dropped after all. No other thread dooms any: see `series_drop`.
        noted.iter().for_each(|it| it.revive());
        dropped
    }

    /// Those of the series, with the numbers of their sets, that have no point in a live shard.
    fn without_points(&self, series: Vec<(u32, SeriesId)>) -> Result<Vec<(u32, SeriesId)>> {
        let mut by_set: BTreeMap<u32, Vec<SeriesId>> = BTreeMap::new();
        for (set, id) in series {
            by_set.entry(set).or_default().push(id);
        }
        let mut found = Vec::new();
        let is_shard_live = |shard| self.names.read().is_shard_live(shard);
        for (number, mut series) in by_set {
            let Some(set) = self.sets.get(number as usize) else { continue };
            series.sort_unstable();
            let empty = set.without_points(series, &is_shard_live, &|| self.breathe())?;
            found.extend(empty.into_iter().map(|id| (number, id)));
        }
        Ok(found)
    }

    /// Waits until the writes that have begun have ended; false if they did not in time.
    fn wait_for_writes(&self) -> Result<bool> {
        let (stamp, since) = (stamp_in::<Writes>(), Instant::now());
        while !has_passed_in::<Writes>(stamp) && !mutant!("tsdb.series.unsettled") {
            if since.elapsed() > WRITES_END_WITHIN {
                return Ok(false);
            }
            self.breathe()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Drops those of the series noted as empty that no write has kept.
    pub(super) fn drop_doomed(&self, noted: &[SeriesId]) -> Result<()> {
        let Some(first) = self.sets.first() else { return Ok(()) };
        self.names.change(&first.pages, |draft| {
            let is_doomed = |id: &SeriesId| draft.catalogue.series(*id).is_some_and(|it| it.doom());
            draft.push(drops(draft.catalogue, noted.iter().copied().filter(is_doomed).collect()));
            Ok(())
        })
    }
}

/// The changes that drop series, whole measurements where no other series is left.
pub(super) fn drops(catalogue: &Catalogue, mut doomed: BTreeSet<SeriesId>) -> Vec<Change> {
    let its_measurement = |id: &SeriesId| catalogue.series(*id).map(|it| it.measurement);
    let measurements: BTreeSet<_> = doomed.iter().filter_map(its_measurement).collect();
    let mut changes = Vec::new();
    for id in measurements {
        let series = catalogue.series_ids_of(id);
        if series.iter().all(|it| doomed.contains(it)) {
            series.iter().for_each(|it| _ = doomed.remove(it));
            changes.push(Change::MeasurementDropped { id });
        }
    }
    let rest: Vec<SeriesId> = doomed.into_iter().collect();
    changes.extend(rest.chunks(IDS_MAX).map(|ids| Change::SeriesDropped { ids: ids.to_vec() }));
    changes
}

impl Store {
    /// Drops the shards whose points are all older than their policies allow, then the series that have no point
    /// left, and the measurements that have no series left. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full), [`Error::Sync`](crate::Error::Sync); [`Error::Ended`](crate::Error::Ended)
    /// while the store is closed.
    pub fn expire(&self) -> Result<()> {
        self.shared.expire()
    }
}
