//! Makes and drops databases and policies; drops measurements and series.

use super::Store;
use super::retention::drops;
use crate::catalogue::{Change, Policy, TagFilter};
use crate::error::{Error, Result};
use crate::names::Draft;
use crate::pages::Pages;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
    fn change<T>(&self, draw: impl FnOnce(&mut Draft<'_>) -> Result<T>) -> Result<T> {
        let first = self.shared.sets.first();
        let pages: &Pages =
            first.map(|set| &set.pages).ok_or_else(|| Error::Pools("no queue set".to_owned()))?;
        let done = self.shared.names.change(pages, draw);
        // A part of the changes may be made also after an error.
        self.shared.ring();
        done
    }

    /// Makes a database with a policy `autogen` that keeps all points; does nothing if the database exists. Durable
    /// when it returns.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Limit`], [`Error::Full`], [`Error::Sync`].
    pub fn create_database(&self, name: &str) -> Result<()> {
        self.change(|draft| {
            if draft.catalogue.database(name).is_none() {
                draft.push(draft.catalogue.database_changes(name)?);
            }
            Ok(())
        })
    }

    /// Makes a database with this policy, which is its only and its default one; does nothing if the database has
    /// it as its default one. A shard duration of 0 stands for InfluxDB's choice. Durable when it returns: after a
    /// power cut there are both or neither.
    ///
    /// # Errors
    /// [`Error::Input`], also if the database exists with another policy; [`Error::Limit`], [`Error::Full`],
    /// [`Error::Sync`].
    pub(crate) fn create_database_with(&self, name: &str, policy: &Policy) -> Result<()> {
        let policy = Policy { is_default: true, ..policy.clone() };
        self.change(|draft| {
            let Some(id) = draft.catalogue.database(name) else {
                draft.push(draft.catalogue.database_changes_with(name, &policy)?);
                return Ok(());
            };
            let conflict = "retention policy conflicts with an existing policy";
            let known = draft.catalogue.policy(id, Some(&policy.name));
            match draft.catalogue.policy_change(id, &policy)? {
                Change::Policy { policy, .. } if known.is_some_and(|it| *it.1 == policy) => Ok(()),
                _ => Err(Error::Input(conflict.to_owned())),
            }
        })
    }

    /// Drops a database with its content; does nothing if it does not exist. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Sync`].
    pub fn drop_database(&self, name: &str) -> Result<()> {
        self.change(|draft| {
            let id = draft.catalogue.database(name);
            draft.push(id.map(|id| Change::DatabaseDropped { id }));
            Ok(())
        })
    }

    /// The names of the databases, in the order in which they were made.
    #[must_use]
    pub fn databases(&self) -> Vec<Arc<str>> {
        self.shared.names.read().databases().map(|(_, name)| Arc::clone(name)).collect()
    }

    /// The policies of a database, in the order in which they were made.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn policies(&self, database: &str) -> Result<Vec<Policy>> {
        let names = self.shared.names.read();
        let id = names.database(database).ok_or_else(|| no_database(database))?;
        Ok(names.policies(id).map(|(_, policy)| policy.clone()).collect())
    }

    /// Makes a policy, or changes the durations of an existing one (for shards to come). Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Input`], [`Error::Limit`], [`Error::Full`], [`Error::Sync`].
    pub fn put_policy(&self, database: &str, policy: &Policy) -> Result<()> {
        self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            draft.push([draft.catalogue.policy_change(id, policy)?]);
            Ok(())
        })
    }

    /// Makes a policy; does nothing if there is the same one. Durable when it returns.
    ///
    /// # Errors
    /// As [`Store::put_policy`]; [`Error::Input`] if there is another policy of this name.
    pub(crate) fn create_policy(&self, database: &str, policy: &Policy) -> Result<()> {
        self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            draft.push(draft.catalogue.new_policy_change(id, policy)?);
            Ok(())
        })
    }

    /// Changes an existing policy as `edit` does; no other thread changes it meanwhile. Durable when it returns.
    ///
    /// # Errors
    /// As [`Store::put_policy`]; [`Error::NotFound`] if there is no such policy.
    pub(crate) fn alter_policy(
        &self,
        database: &str,
        policy: &str,
        edit: impl FnOnce(&mut Policy),
    ) -> Result<()> {
        self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            let known = draft.catalogue.policy(id, Some(policy));
            let (_, known) = known.ok_or_else(|| no_policy(policy))?;
            let mut edited = known.clone();
            edit(&mut edited);
            draft.push([draft.catalogue.policy_change(id, &edited)?]);
            Ok(())
        })
    }

    /// Drops a policy with all its points. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Full`], [`Error::Sync`].
    pub fn drop_policy(&self, database: &str, policy: &str) -> Result<()> {
        self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            let known = draft.catalogue.policy(id, Some(policy));
            let (id, _) = known.ok_or_else(|| no_policy(policy))?;
            draft.push([Change::PolicyDropped { id }]);
            Ok(())
        })?;
        self.shared.may_have_empty_series.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Drops a measurement with its series. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Full`], [`Error::Sync`].
    pub fn drop_measurement(&self, database: &str, measurement: &str) -> Result<()> {
        let dropped = self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            let missing = || Error::NotFound(format!("measurement not found: {measurement}"));
            let id = draft.catalogue.measurement(id, measurement).ok_or_else(missing)?;
            draft.push([Change::MeasurementDropped { id }]);
            Ok(())
        });
        self.note_dropped(&dropped);
        dropped
    }

    /// Drops the series of a measurement that the filter lets through, and the measurement if no other is left;
    /// returns the number of series. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Full`], [`Error::Sync`].
    pub fn drop_series(
        &self,
        database: &str,
        measurement: &str,
        filter: &TagFilter,
    ) -> Result<u64> {
        let dropped = self.change(|draft| {
            let id = draft.catalogue.database(database).ok_or_else(|| no_database(database))?;
            let Some(id) = draft.catalogue.measurement(id, measurement) else { return Ok(0) };
            let ids = draft.catalogue.series_ids_that(id, filter);
            let count = ids.len() as u64;
            draft.push(drops(draft.catalogue, ids.into_iter().collect()));
            Ok(count)
        });
        self.note_dropped(&dropped);
        dropped
    }

    /// Notes that series may be gone, as a part of them is if there was no room for all.
    fn note_dropped<T>(&self, dropped: &Result<T>) {
        if matches!(dropped, Ok(_) | Err(Error::Full(_))) {
            self.shared.note_dropped_series();
        }
    }
}

fn no_database(name: &str) -> Error {
    Error::NotFound(format!("database not found: {name:?}"))
}

fn no_policy(name: &str) -> Error {
    Error::NotFound(format!("retention policy not found: {name}"))
}
