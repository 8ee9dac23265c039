//! The groups of a matrix; groups may be added later.

use crate::group::Group;
use crate::shape::GROUPS_MAX;
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
    let of_each = devices.map(|device| device.engine.tell(|it| it.limits()));
    of_each.reduce(Limits::both).unwrap_or_default()
}

/// The group of a number that a table of owners has.
impl Index<usize> for Groups {
    type Output = Arc<Group>;

    #[inline]
    fn index(&self, number: usize) -> &Arc<Group> {
        self.places[number].get().expect("an owner is a group")
    }
}
