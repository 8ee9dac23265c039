//! A measurement: its fields and the postings of its series.

use super::postings::Postings;
use super::{DatabaseId, FieldId, Hasher};
use crate::value::FieldType;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::Arc;

/// A field of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its number.
    pub id: FieldId,
    /// Its name.
    pub name: Arc<str>,
    /// The type of its values.
    pub field_type: FieldType,
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(super) database: DatabaseId,
    pub(super) name: Arc<str>,
    /// In the order in which they were made.
    fields: Vec<Field>,
    /// Places in that list.
    places: HashTable<u32>,
    pub(super) postings: Postings,
    hasher: Hasher,
}

/// Bytes of DRAM of a measurement, and of a field, beside its name, about.
const COST: usize = 512;
const FIELD_COST: usize = 96;

impl Measurement {
    pub(super) fn new(database: DatabaseId, name: Arc<str>, hasher: Hasher) -> Self {
        let (fields, places, postings) = Default::default();
        Self { database, name, fields, places, postings, hasher }
    }

    /// The approximate bytes of DRAM of the measurement, without its fields and series, which are counted
    /// separately.
    pub(super) fn cost(&self) -> usize {
        Self::cost_of(&self.name) + self.postings.cost()
    }

    /// The approximate bytes of DRAM of a measurement without series.
    pub(crate) fn cost_of(name: &str) -> usize {
        COST + name.len()
    }

    /// The approximate bytes of DRAM of a field.
    pub(crate) fn cost_of_field(name: &str) -> usize {
        FIELD_COST + name.len()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its fields, in the order in which they were made.
    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// A field by its name, with its place in the list. The hint is a possible place: if it is right, as the place
    /// behind the field before mostly is, one comparison finds the field.
    pub(crate) fn field(&self, name: &str, hint: usize) -> Option<(usize, &Field)> {
        match self.fields.get(hint) {
            Some(field) if *field.name == *name => Some((hint, field)),
            _ => self.field_by_hash(name),
        }
    }

    fn field_by_hash(&self, name: &str) -> Option<(usize, &Field)> {
        let named = |place: usize| self.fields.get(place).filter(|it| *it.name == *name);
        let found =
            self.places.find(self.hasher.hash_one(name), |it| named(*it as usize).is_some())?;
        let place = *found as usize;
        Some((place, named(place)?))
    }

    /// Appends a field whose name is new.
    pub(super) fn push(&mut self, field: Field) {
        let Self { fields, places, hasher, .. } = self;
        let place = u32::try_from(fields.len()).unwrap_or(u32::MAX);
        let hash = hasher.hash_one(&*field.name);
        fields.push(field);
        places.insert_unique(hash, place, |place| {
            hasher.hash_one(fields.get(*place as usize).map_or("", |field| &field.name))
        });
    }

    /// The tag keys of its series, ascending.
    pub(crate) fn tag_keys(&self) -> Vec<Arc<str>> {
        self.postings.keys().cloned().collect()
    }

    /// The number of values of a tag of its series.
    pub(crate) fn tag_values_len(&self, key: &str) -> usize {
        self.postings.values(key).map_or(0, |it| it.len())
    }

    /// The values of a tag of its series, in no order.
    pub(crate) fn tag_values(&self, key: &str) -> Vec<Arc<str>> {
        let Some(values) = self.postings.values(key) else { return Vec::new() };
        values.iter().map(|(text, _)| Arc::clone(text)).collect()
    }
}
