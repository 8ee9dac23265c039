//! The groups of a matrix; groups may be added later.

use crate::group::Group;
use crate::shape::position::GROUPS_MAX;
use coreplane_engine::Limits;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

/// The groups, by their numbers. No group is ever removed.
pub(crate) struct Groups {
    /// Filled from the first on.
    places: Box<[OnceLock<Arc<Group>>]>,
}

impl Groups {
    pub(crate) fn new(groups: Vec<Arc<Group>>) -> Self {
        let places = (0..GROUPS_MAX).map(|_| OnceLock::new()).collect();
        let these = Self { places };
        groups.into_iter().for_each(|group| {
            these.push(group);
        });
        these
    }

    /// Adds a group; false if the matrix has the most groups already. One caller at a time.
    pub(crate) fn push(&self, group: Arc<Group>) -> bool {
        self.places.get(self.len()).is_some_and(|place| place.set(group).is_ok())
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Arc<Group>> {
        self.places.get(number)?.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.places.iter().map_while(OnceLock::get)
    }
}

/// The limits that hold on all devices.
pub(crate) fn limits(groups: &[Arc<Group>]) -> Limits {
    let devices = groups.iter().flat_map(|group| group.devices());
    let each = devices.map(|device| device.engine.limits());
    let least = each.reduce(limits_of_both);
    let nothing = Limits { key_len_max: 0, value_len_max: 0, batch_len_max: 0, batch_bytes_max: 0 };
    least.unwrap_or(nothing)
}

/// The limits that hold on two devices.
pub(crate) fn limits_of_both(one: Limits, other: Limits) -> Limits {
    Limits {
        key_len_max: one.key_len_max.min(other.key_len_max),
        value_len_max: one.value_len_max.min(other.value_len_max),
        batch_len_max: one.batch_len_max.min(other.batch_len_max),
        batch_bytes_max: one.batch_bytes_max.min(other.batch_bytes_max),
    }
}

/// The group of a number that a table of owners has.
impl Index<usize> for Groups {
    type Output = Arc<Group>;

    #[inline]
    fn index(&self, number: usize) -> &Arc<Group> {
        self.places[number].get().expect("an owner is a group")
    }
}
