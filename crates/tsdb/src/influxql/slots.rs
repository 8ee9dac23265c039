//! Slots of a row, one for each distinct item. They are found by the name of the field, since a wildcard may stand
//! for thousands of fields.

use hashbrown::HashMap;
use smallvec::SmallVec;

/// Items that have slots, in their order, and the slots of each name.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// The items.
    pub(super) all: Vec<T>,
    places: HashMap<String, SmallVec<[usize; 2]>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { all: Vec::new(), places: HashMap::new() }
    }
}

impl<T: PartialEq> Slots<T> {
    /// The slot of an item whose field has this name.
    pub(super) fn find(&self, name: &str, wanted: &T) -> Option<usize> {
        let is_it = |at: &&usize| self.all.get(**at).is_some_and(|it| it == wanted);
        self.places.get(name)?.iter().find(is_it).copied()
    }

    /// Gives an item a slot, if it has none.
    pub(super) fn put(&mut self, name: &str, thing: T) {
        if self.find(name, &thing).is_none() {
            self.places.entry_ref(name).or_default().push(self.all.len());
            self.all.push(thing);
        }
    }

    /// Puts the items in another order; `name` returns the name of an item's field.
    pub(super) fn sort(&mut self, order: impl FnOnce(&mut [T]), name: impl Fn(&T) -> &str) {
        order(&mut self.all);
        self.places.clear();
        for (at, thing) in self.all.iter().enumerate() {
            self.places.entry_ref(name(thing)).or_default().push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A field, and a function of it.
    #[derive(Debug, Clone)]
    struct Thing(String, u8);

    impl PartialEq for Thing {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            (&self.0, self.1) == (&other.0, other.1)
        }
    }

    #[test]
    fn each_thing_has_a_slot_and_is_compared_with_those_of_its_name_alone() {
        let mut slots = Slots::default();
        let things = || (0..1000).map(|at| Thing(format!("f{}", at / 2), at as u8 % 2));
        for thing in things().chain(things()) {
            slots.put(&thing.0.clone(), thing);
        }
        assert_eq!(slots.all.len(), 1000);
        slots.sort(|all| all.reverse(), |it| &it.0);
        for (at, thing) in things().enumerate() {
            assert_eq!(slots.find(&thing.0, &thing), Some(999 - at));
        }
        assert_eq!(slots.find("f1", &Thing("f1".to_owned(), 7)), None);
        assert_eq!(slots.find("none", &Thing("none".to_owned(), 0)), None);
        assert!(COMPARED.get() < 10_000, "{}", COMPARED.get());
    }
}
