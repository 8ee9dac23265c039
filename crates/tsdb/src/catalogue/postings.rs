//! Postings: the series of a measurement that have a value of a tag.
//!
//! ```text
//!   region ─┬─ eu ── 0 1 4 5 …          host ─┬─ a ── 0
//!           └─ us ── 2 3 6 7 …                ├─ b ── 1        a value of one series has its number in place
//! ```
//!
//! Lists ascend, so that they are united, intersected and subtracted in one pass. They name live series alone. A
//! list grows by a quarter, since the lists of a tag are together as long as the measurement has series. The texts
//! of keys and values are stored here once, however many series have them; a series has its own copy in its key.

use super::series::{Series, Tags};
use super::{Hasher, SeriesId};
use hashbrown::hash_table::Entry;
use hashbrown::{HashSet, HashTable};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Bytes of DRAM of a key, and of a value, beside its text, about.
const KEY_COST: usize = 192;
const VALUE_COST: usize = 96;
/// Bytes of DRAM of the number of a series in a list that grows, about.
const ID_COST: usize = 5;

/// Postings of a measurement.
#[derive(Debug, Default)]
pub(super) struct Postings {
    /// All series.
    all: Vec<SeriesId>,
    keys: BTreeMap<Arc<str>, Values>,
    /// The approximate bytes of DRAM of the postings.
    cost: usize,
    /// How often the list of all series was scanned to remove some.
    #[cfg(test)]
    pub(super) passes: usize,
}

/// The values of a tag.
#[derive(Debug, Default)]
pub(super) struct Values {
    table: HashTable<Value>,
    /// The lists of values that have several series, or had.
    lists: Vec<Vec<SeriesId>>,
    /// Places of unused lists.
    free: Vec<u32>,
}

/// A value: 24 bytes, since there may be one for each series.
#[derive(Debug)]
struct Value {
    text: Arc<str>,
    ids: Ids,
}

/// The series of a value.
#[derive(Debug, Clone, Copy)]
enum Ids {
    One(SeriesId),
    /// The series in the list at this place.
    Many(u32),
}

impl Ids {
    fn as_slice<'v>(&'v self, lists: &'v [Vec<SeriesId>]) -> &'v [SeriesId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(list) => lists.get(*list as usize).map_or(&[], |ids| ids),
        }
    }
}

impl Postings {
    /// All series, ascending.
    pub(super) fn all(&self) -> &[SeriesId] {
        &self.all
    }

    /// The approximate bytes of DRAM of the postings.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// The tag keys, ascending.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.keys.keys()
    }

    /// The values of a tag.
    pub(super) fn values(&self, key: &str) -> Option<&Values> {
        self.keys.get(key)
    }

    /// The approximate bytes of DRAM that another series with these tags takes here. `is_new` is asked about tag keys, and
    /// about tags, that are not here.
    pub(super) fn cost_of(
        &self,
        hasher: &Hasher,
        tags: &Tags<'_>,
        is_new: &mut dyn FnMut(&str, Option<&str>) -> bool,
    ) -> usize {
        let mut cost = ID_COST * (1 + tags.len());
        for (key, value) in tags {
            let values = self.keys.get(&**key);
            if values.is_none() && is_new(key, None) {
                cost += KEY_COST + key.len();
            }
            let is_there = values.is_some_and(|it| !it.ids(hasher, value).is_empty());
            if !is_there && is_new(key, Some(value)) {
                cost += VALUE_COST + value.len();
            }
        }
        cost
    }

    /// Adds a series, whose number is greater than all others, with its tags.
    pub(super) fn insert(&mut self, hasher: &Hasher, id: SeriesId, tags: &Tags<'_>) {
        push(&mut self.all, id);
        self.cost += ID_COST * (1 + tags.len());
        for (key, value) in tags {
            let is_new = match self.keys.get_mut(&**key) {
                Some(values) => values.insert(hasher, value, id),
                None => {
                    self.cost += KEY_COST + key.len();
                    self.keys.entry(Arc::from(&**key)).or_default().insert(hasher, value, id)
                }
            };
            if is_new {
                self.cost += VALUE_COST + value.len();
            }
        }
    }

    /// Removes series; they ascend by number.
    pub(super) fn remove(&mut self, hasher: &Hasher, dead: &[Arc<Series>]) {
        let ids: Vec<SeriesId> = dead.iter().map(|series| series.id).collect();
        #[cfg(test)]
        {
            self.passes += 1;
        }
        let before = self.all.len();
        self.all.retain(|id| ids.binary_search(id).is_err());
        let mut cost = (before - self.all.len()) * ID_COST;
        // Each list once, however many of the series it has.
        let lists: HashSet<(&str, &str)> = dead.iter().flat_map(|series| series.tags()).collect();
        for (key, value) in lists {
            if let Some(values) = self.keys.get_mut(key) {
                cost += values.remove(hasher, value, &ids);
                if values.len() == 0 {
                    self.keys.remove(key);
                    cost += KEY_COST + key.len();
                }
            }
        }
        self.all.shrink_to(self.all.len().saturating_mul(2));
        self.cost = self.cost.saturating_sub(cost);
    }
}

impl Values {
    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// A copy of the values, in no order.
    pub(super) fn texts(&self) -> Vec<Arc<str>> {
        self.iter().map(|(text, _)| Arc::clone(text)).collect()
    }

    /// Each value with its series, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &[SeriesId])> {
        self.table.iter().map(|value| (&value.text, value.ids.as_slice(&self.lists)))
    }

    /// The series of a value, ascending.
    pub(super) fn ids(&self, hasher: &Hasher, text: &str) -> &[SeriesId] {
        let found = self.table.find(hasher.hash_one(text), |value| *value.text == *text);
        found.map_or(&[], |value| value.ids.as_slice(&self.lists))
    }

    /// Adds a series to a value; true if the value is new.
    fn insert(&mut self, hasher: &Hasher, text: &str, id: SeriesId) -> bool {
        let Self { table, lists, free } = self;
        let entry = table.entry(
            hasher.hash_one(text),
            |value| *value.text == *text,
            |value| hasher.hash_one(&*value.text),
        );
        match entry {
            Entry::Occupied(mut entry) => {
                let value = entry.get_mut();
                match value.ids {
                    Ids::One(first) => value.ids = Ids::Many(list_of(lists, free, [first, id])),
                    Ids::Many(list) => {
                        if let Some(ids) = lists.get_mut(list as usize) {
                            push(ids, id);
                        }
                    }
                }
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Value { text: text.into(), ids: Ids::One(id) });
                true
            }
        }
    }

    /// Removes series, which ascend, from a value; returns about how many bytes are freed.
    fn remove(&mut self, hasher: &Hasher, text: &str, dead: &[SeriesId]) -> usize {
        let found = self.table.find_entry(hasher.hash_one(text), |value| *value.text == *text);
        let Ok(value) = found else { return 0 };
        let (removed, is_empty) = match value.get().ids {
            Ids::One(id) => {
                let is_dead = dead.binary_search(&id).is_ok();
                (usize::from(is_dead), is_dead)
            }
            Ids::Many(list) => {
                let Some(ids) = self.lists.get_mut(list as usize) else { return 0 };
                let before = ids.len();
                ids.retain(|id| dead.binary_search(id).is_err());
                ids.shrink_to(ids.len().saturating_mul(2));
                if ids.is_empty() {
                    self.free.push(list);
                }
                (before - ids.len(), ids.is_empty())
            }
        };
        if !is_empty {
            return removed * ID_COST;
        }
        value.remove();
        removed * ID_COST + VALUE_COST + text.len()
    }
}

/// Appends to a list, which grows by a quarter.
fn push(ids: &mut Vec<SeriesId>, id: SeriesId) {
    if ids.len() == ids.capacity() {
        ids.reserve_exact(2 + ids.len() / 4);
    }
    ids.push(id);
}

/// The place of a new list of two series.
fn list_of(lists: &mut Vec<Vec<SeriesId>>, free: &mut Vec<u32>, ids: [SeriesId; 2]) -> u32 {
    let vacant = free.pop().and_then(|place| Some((place, lists.get_mut(place as usize)?)));
    if let Some((place, list)) = vacant {
        list.extend(ids);
        return place;
    }
    // There are fewer lists than series.
    let place = u32::try_from(lists.len()).unwrap_or(u32::MAX);
    lists.push(ids.into());
    place
}
