//! Changes that are drawn one by one, as in a log.

use super::super::change::Change;
use super::super::draw::{not_found, number, there_already, type_conflict};
use super::super::measurement::Measurement;
use super::super::name::check_key;
use super::super::series::parts;
use super::super::{Catalogue, DatabaseId, MeasurementId, PolicyId};
use crate::error::{Error, Result};
use crate::point::check_time;
use crate::value::FieldType;

impl Catalogue {
    /// The change that makes a shard of a policy for a time.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the policy; [`Error::Input`]: no point can have that time, or a shard contains it;
    /// [`Error::Limit`].
    pub(super) fn shard_change(&self, policy: PolicyId, time: i64) -> Result<Change> {
        let state = self.policies.get(&policy).ok_or_else(|| not_found("policy", policy))?;
        check_time(time).map_err(Error::Input)?;
        if let Some(shard) = state.shard_of(time) {
            return Err(there_already("shard", &shard.id.to_string()));
        }
        self.check_room(0)?;
        let (start, end) = state.window(time);
        Ok(Change::Shard { id: number(self.next.shard)?, policy, start, end })
    }

    /// The change that makes a measurement.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the database; [`Error::Input`]: the name is invalid, or exists; [`Error::Limit`].
    pub(super) fn measurement_change(&self, database: DatabaseId, name: &str) -> Result<Change> {
        if !self.databases.contains_key(&database) {
            return Err(not_found("database", database));
        }
        check_key(name).map_err(Error::Input)?;
        if self.measurement(database, name).is_some() {
            return Err(there_already("measurement", name));
        }
        self.check_room(name.len())?;
        Ok(Change::Measurement { id: number(self.next.measurement)?, database, name: name.into() })
    }

    /// The change that makes a field.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the measurement; [`Error::Input`]: the name is invalid, or exists, maybe with another
    /// type; [`Error::Limit`].
    pub(super) fn field_change(
        &self,
        measurement: MeasurementId,
        name: &str,
        field_type: FieldType,
    ) -> Result<Change> {
        let it = self.measurement_to_fill(measurement)?;
        check_key(name).map_err(Error::Input)?;
        match it.field(name, usize::MAX) {
            Some((_, field)) if field.field_type != field_type => {
                return Err(type_conflict(&it.name, field, field_type));
            }
            Some(_) => return Err(there_already("field", name)),
            None => {}
        }
        let max = self.limits.fields_max;
        if it.fields().len() >= max {
            let name = &it.name;
            let message = format!("max-fields-per-measurement limit exceeded on {name:?}: ({max})");
            return Err(Error::Limit(message));
        }
        self.check_room(Measurement::cost_of_field(name))?;
        Ok(Change::Field {
            id: number(self.next.field)?,
            measurement,
            name: name.into(),
            field_type,
        })
    }

    /// The change that makes a series in a queue set. The key is the text of a `SeriesKey` of this measurement.
    ///
    /// # Errors
    /// [`Error::NotFound`]: the measurement; [`Error::Input`]: the key is invalid, or exists; [`Error::Limit`].
    pub(super) fn series_change(
        &self,
        measurement: MeasurementId,
        set: u32,
        key: &str,
    ) -> Result<Change> {
        let it = self.measurement_to_fill(measurement)?;
        check_key(key).map_err(Error::Input)?;
        parts(key).filter(|(name, _)| **name == *it.name).ok_or_else(|| {
            Error::Input(format!("invalid series key {key:?} of measurement {:?}", it.name))
        })?;
        if self.series_of(it.database, key).is_some() {
            return Err(there_already("series", key));
        }
        let max = self.limits.series_max;
        if self.series_count() as u64 >= max {
            return Err(Error::Limit(format!("max-series-per-database limit exceeded: ({max})")));
        }
        self.check_room(0)?;
        Ok(Change::Series { id: number(self.next.series)?, measurement, set, key: key.into() })
    }

    fn measurement_to_fill(&self, id: MeasurementId) -> Result<&Measurement> {
        self.measurement_by_id(id).ok_or_else(|| not_found("measurement", id))
    }
}
