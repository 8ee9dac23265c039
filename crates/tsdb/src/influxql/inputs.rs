//! The inputs of a SELECT: measurements of a store, and other SELECTs.

use super::ast::{Measurement, Name};
use super::budget::{Budget, Fallible};
use super::plan::Plan;
use crate::catalogue::Field;
use crate::read::{Reader, Scope};
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a field of an input, about.
const FIELD_BYTES: usize = 128;

/// An input of a SELECT.
#[derive(Debug)]
pub(super) enum Input {
    /// A measurement.
    Stored(Stored),
    /// Another SELECT.
    Inner(Box<Plan>),
}

/// A measurement of a policy of a database.
#[derive(Debug)]
pub(super) struct Stored {
    /// The number of its reader.
    pub(super) reader: usize,
    /// Its name.
    pub(super) name: Arc<str>,
    /// Its fields.
    pub(super) fields: BTreeMap<Arc<str>, Field>,
}

/// The readers of a statement.
#[derive(Debug)]
pub(super) struct Inputs<'s> {
    store: &'s Store,
    database: Option<&'s str>,
    policy: Option<&'s str>,
    readers: Vec<(String, Option<String>, Reader<'s>)>,
}

impl<'s> Inputs<'s> {
    /// No reader is open yet; the names are used where a statement states none.
    pub(super) fn new(
        store: &'s Store,
        database: Option<&'s str>,
        policy: Option<&'s str>,
    ) -> Self {
        Self { store, database, policy, readers: Vec::new() }
    }

    /// A reader.
    pub(super) fn reader(&self, at: usize) -> Option<&Reader<'s>> {
        self.readers.get(at).map(|(_, _, reader)| reader)
    }

    /// The scopes of the readers, by the readers' numbers: all threads can read them.
    pub(super) fn scopes(&self) -> Vec<&Scope<'s>> {
        self.readers.iter().map(|(_, _, reader)| reader.scope()).collect()
    }

    /// Opens the reader of a policy of a database; none is that of the request.
    pub(super) fn open(&mut self, database: Option<&str>, policy: Option<&str>) -> Fallible<usize> {
        let is_default = database.is_none() || database == self.database;
        let database = named(self.store, database.or(self.database))?.to_owned();
        let policy = policy.or(self.policy.filter(|_| is_default)).map(str::to_owned);
        let found = self.readers.iter().position(|(of, by, _)| *of == database && *by == policy);
        if let Some(found) = found {
            return Ok(found);
        }
        if let Some(policy) = &policy {
            let known = self.store.policies(&database).map_err(|it| it.to_string())?;
            if !known.iter().any(|it| it.name == *policy) {
                return Err(format!("retention policy not found: {policy}"));
            }
        }
        let reader =
            self.store.reader(&database, policy.as_deref()).map_err(|it| it.to_string())?;
        self.readers.push((database, policy, reader));
        Ok(self.readers.len() - 1)
    }

    /// Opens the reader of the names of a database; none is that of the request.
    pub(super) fn open_names(&mut self, database: Option<&str>) -> Fallible<usize> {
        let database = named(self.store, database.or(self.database))?.to_owned();
        let reader = self.store.names(&database).map_err(|it| it.to_string())?;
        self.readers.push((database, None, reader));
        Ok(self.readers.len() - 1)
    }

    /// Adds the measurements that a query names.
    pub(super) fn stored(
        &mut self,
        asked: &Measurement,
        budget: &Budget<'_>,
        to: &mut Vec<Input>,
    ) -> Fallible<()> {
        let at = self.open(asked.database.as_deref(), asked.policy.as_deref())?;
        let Some(reader) = self.reader(at) else { return Ok(()) };
        let names = match &asked.name {
            Name::Is(name) => vec![Arc::from(name.as_str())],
            Name::Match(pattern) => {
                let mut names = Vec::new();
                for name in reader.measurements() {
                    if budget.finds(&pattern.0, &name)? {
                        names.push(name);
                    }
                }
                names
            }
        };
        for name in names {
            budget.tick()?;
            let fields = reader.fields(&name);
            budget.hold(fields.len() * FIELD_BYTES)?;
            let fields = fields.into_iter().map(|it| (Arc::clone(&it.name), it)).collect();
            to.push(Input::Stored(Stored { reader: at, name, fields }));
        }
        Ok(())
    }
}

/// The database of a statement, which must exist.
pub(super) fn named<'n>(store: &Store, name: Option<&'n str>) -> Fallible<&'n str> {
    let name = name.ok_or_else(|| "database name required".to_owned())?;
    if store.databases().iter().any(|it| **it == *name) {
        Ok(name)
    } else {
        Err(format!("database not found: {name}"))
    }
}
