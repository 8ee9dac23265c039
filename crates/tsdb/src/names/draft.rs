//! Names that are to be made, and the catalogue as it will be with them.

use super::devices::Devices;
use crate::catalogue::{
    Catalogue, Change, DatabaseId, Field, Measurement, MeasurementId, Next, PolicyId, SHARD_COST,
    Shard, type_conflict,
};
use crate::error::{Error, Result};
use crate::point::SeriesKey;
use crate::rows::FIELDS_MAX;
use crate::value::FieldType;
use hashbrown::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

/// No tag can have this name.
const TIME: &str = "time";

/// Changes that are to be made together.
#[derive(Debug)]
pub(crate) struct Draft<'c> {
    pub(crate) catalogue: &'c Catalogue,
    devices: &'c mut Devices,
    next: Next,
    changes: Vec<Change>,
    measurements: HashMap<(DatabaseId, Arc<str>), MeasurementId>,
    fields: HashMap<(MeasurementId, Arc<str>), Field>,
    field_counts: HashMap<MeasurementId, usize>,
    series: HashSet<(DatabaseId, Box<str>)>,
    shards: Vec<Shard>,
    /// Hashes of the tag keys and of the tags of these series, with their measurements.
    tags: HashSet<u64>,
    /// Bytes of DRAM that the drawn names will take, about.
    cost: usize,
}

impl<'c> Draft<'c> {
    pub(super) fn new(catalogue: &'c Catalogue, devices: &'c mut Devices) -> Self {
        Self {
            catalogue,
            devices,
            next: catalogue.next(),
            changes: Vec::new(),
            measurements: HashMap::new(),
            fields: HashMap::new(),
            field_counts: HashMap::new(),
            series: HashSet::new(),
            shards: Vec::new(),
            tags: HashSet::new(),
            cost: 0,
        }
    }

    pub(super) fn finish(self) -> Vec<Change> {
        self.changes
    }

    /// Adds changes that the catalogue has drawn; nothing else is drawn together with them.
    pub(crate) fn push(&mut self, change: impl IntoIterator<Item = Change>) {
        self.changes.extend(change);
    }

    /// Makes the names that a point needs; none, if it cannot have all of them.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the database is gone; [`Error::Input`] if a field has another type; [`Error::Limit`].
    pub(crate) fn point<'f>(
        &mut self,
        database: DatabaseId,
        key: &SeriesKey<'_>,
        fields: impl Iterator<Item = (&'f str, FieldType)>,
        interval: Option<Duration>,
    ) -> Result<()> {
        // Another thread may have dropped the database since it was looked up: the next opening would refuse a
        // record with names of a database that is gone.
        if !self.catalogue.is_database_live(database) {
            return Err(Error::NotFound("the database is gone".to_owned()));
        }
        let before = (self.changes.len(), self.next, self.cost);
        let drawn = self.names_of(database, key, fields, interval);
        if drawn.is_err() {
            self.undo(before);
        }
        drawn
    }

    /// Adds bytes of DRAM, if there is room for them.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        let cost = self.cost.saturating_add(bytes);
        self.catalogue.check_room(cost)?;
        self.cost = cost;
        Ok(())
    }

    /// Undoes the changes behind the first `before` ones.
    fn undo(&mut self, (before, next, cost): (usize, Next, usize)) {
        (self.next, self.cost) = (next, cost);
        for change in self.changes.drain(before..) {
            match change {
                Change::Measurement { database, name, .. } => {
                    self.measurements.remove(&(database, name));
                }
                Change::Field { measurement, name, .. } => {
                    self.fields.remove(&(measurement, name));
                    if let Some(count) = self.field_counts.get_mut(&measurement) {
                        *count -= 1;
                    }
                }
                _ => {}
            }
        }
    }

    fn names_of<'f>(
        &mut self,
        database: DatabaseId,
        key: &SeriesKey<'_>,
        fields: impl Iterator<Item = (&'f str, FieldType)>,
        interval: Option<Duration>,
    ) -> Result<()> {
        let its_name = key.measurement();
        if self.catalogue.series_of(database, key.as_str()).is_none()
            && key.tags().any(|(name, _)| name == TIME)
        {
            return Err(Error::Input(format!(
                "invalid tag key: input tag \"{TIME}\" on measurement \"{its_name}\" is invalid"
            )));
        }
        let measurement = self.measurement(database, &its_name)?;
        for (name, of) in fields {
            self.field((measurement, &its_name), name, of)?;
        }
        self.one_series(database, measurement, key.as_str(), interval)
    }

    fn measurement(&mut self, database: DatabaseId, name: &str) -> Result<MeasurementId> {
        if let Some(id) = self.catalogue.measurement(database, name) {
            return Ok(id);
        }
        self.catalogue.check_measurement(name)?;
        let key = (database, Arc::from(name));
        if let Some(id) = self.measurements.get(&key) {
            return Ok(*id);
        }
        self.spend(Measurement::cost_of(name))?;
        let id = draw(&mut self.next.measurement)?;
        let name = Arc::clone(&key.1);
        self.changes.push(Change::Measurement { id, database, name });
        self.measurements.insert(key, id);
        Ok(id)
    }

    fn field(
        &mut self,
        (measurement, its_name): (MeasurementId, &str),
        name: &str,
        of: FieldType,
    ) -> Result<()> {
        let there = self.catalogue.measurement_by_id(measurement);
        let key = (measurement, Arc::from(name));
        let known = there.and_then(|it| it.field(name, 0)).map(|(_, field)| field);
        if let Some(known) = known.or_else(|| self.fields.get(&key)) {
            return match known.field_type == of {
                true => Ok(()),
                false => Err(type_conflict(its_name, known, of)),
            };
        }
        if self.next.field >= FIELDS_MAX {
            return Err(Error::Limit("no number of a field is left".to_owned()));
        }
        let drawn = self.field_counts.get(&measurement).copied().unwrap_or(0);
        let before = there.map_or(0, |it| it.fields().len()) + drawn;
        self.catalogue.check_field(its_name, before, name)?;
        self.spend(Measurement::cost_of_field(name))?;
        let field =
            Field { id: draw(&mut self.next.field)?, name: Arc::clone(&key.1), field_type: of };
        let (id, name) = (field.id, Arc::clone(&key.1));
        self.changes.push(Change::Field { id, measurement, name, field_type: of });
        *self.field_counts.entry(measurement).or_insert(0) += 1;
        self.fields.insert(key, field);
        Ok(())
    }

    fn one_series(
        &mut self,
        database: DatabaseId,
        measurement: MeasurementId,
        key: &str,
        interval: Option<Duration>,
    ) -> Result<()> {
        let known = self.catalogue.series_of(database, key);
        // The point is written after this: a drop for lack of points must not come between.
        known.inspect(|series| series.revive());
        if known.is_some() || self.series.contains(&(database, Box::from(key))) {
            return Ok(());
        }
        self.catalogue.check_series(key, self.series.len())?;
        let mut tags = Vec::new();
        let is_new = &mut |key: &str, value: Option<&str>| {
            let hash = self.tags.hasher().hash_one((measurement, key, value));
            let is_new = !self.tags.contains(&hash);
            tags.extend(is_new.then_some(hash));
            is_new
        };
        let cost = self.catalogue.cost_of_series(measurement, key, is_new);
        self.spend(cost)?;
        self.tags.extend(tags);
        let id = draw(&mut self.next.series)?;
        let set = self.devices.set_of(key, interval);
        self.changes.push(Change::Series { id, measurement, set, key: Box::from(key) });
        self.series.insert((database, Box::from(key)));
        Ok(())
    }

    /// Makes the shard of a policy that contains this time.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn shard(&mut self, policy: PolicyId, time: i64) -> Result<()> {
        let is_in = |it: &Shard| it.policy == policy && it.start <= time && time < it.end;
        if self.catalogue.shard_of(policy, time).is_some() || self.shards.iter().any(is_in) {
            return Ok(());
        }
        let Some((start, end)) = self.catalogue.shard_window(policy, time) else {
            return Err(Error::NotFound("the retention policy is gone".to_owned()));
        };
        // It counts, but is not refused: series that are known can be written to at any time.
        self.cost = self.cost.saturating_add(SHARD_COST);
        let id = draw(&mut self.next.shard)?;
        self.changes.push(Change::Shard { id, policy, start, end });
        self.shards.push(Shard { id, policy, start, end });
        Ok(())
    }
}

/// Draws a number that was never given.
fn draw(next: &mut u32) -> Result<u32> {
    let id = *next;
    *next = id.checked_add(1).ok_or_else(|| Error::Limit("no number is left".to_owned()))?;
    Ok(id)
}
