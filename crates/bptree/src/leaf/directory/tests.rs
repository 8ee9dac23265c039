//! The answers of a leaf's table of contents to readers and writers.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn the_candidates_of_a_tag_are_all_that_have_it(
        tags in proptest::collection::vec(0_u8..4, 0..PLACES),
    ) {
        let leaf = Directory::new();
        let records = tags.iter().enumerate().map(|(at, tag)| (*tag, at as u32 * 8, 8));
        leaf.begin(Begun::default(), records);
        prop_assert_eq!(leaf.live() as usize, 8 * leaf.used().count());
        prop_assert_eq!(leaf.records(), leaf.used().count());
        for tag in 0..5_u8 {
            let candidates = leaf.candidates(tag);
            for (place, is) in tags.iter().enumerate() {
                let is_named = candidates.contains(place);
                prop_assert!(*is != tag || is_named, "{place} of {tag}");
                prop_assert_eq!(leaf.offset(place), 8 * place as u32);
            }
            prop_assert!(candidates.without(PlaceSet::first(tags.len())).is_empty());
        }
    }
}

#[test]
fn what_began_sorted_is_in_order_until_it_changes() {
    let leaf = Directory::new();
    let records = || (0..PLACES as u32).map(|at| (at as u8, 8 * at, 8));
    leaf.begin(Begun::default(), records());
    let mut places = [0; PLACES];
    assert_eq!(leaf.ordered(&mut places), 0);
    leaf.begin(Begun { is_sorted: true, ..Begun::default() }, records().take(PLACES - 2));
    let set = |place: usize| {
        let mut held = leaf.lock().unwrap();
        held.begin();
        held.set(place, (2, 80, 24), 8);
    };
    // A record in the place of another of the same key does not change the order; one of a new key does.
    for (place, expected) in [(3, PLACES - 2), (PLACES - 2, PLACES - 2)] {
        set(place);
        assert_eq!(leaf.ordered(&mut places), expected);
    }
    assert_eq!(places[..PLACES - 1], std::array::from_fn::<u8, { PLACES - 1 }, _>(|at| at as u8));
    let before = leaf.version().unwrap();
    places.reverse();
    leaf.keep_order(before, &places[1..]);
    let mut kept = [0; PLACES];
    assert_eq!((leaf.ordered(&mut kept), &kept[..PLACES - 1]), (PLACES - 1, &places[1..]));
    set(PLACES - 1);
    leaf.keep_order(before, &[7; PLACES]);
    assert_eq!((leaf.ordered(&mut kept), kept[PLACES - 1]), (PLACES - 1, PLACES as u8 - 1));
}

#[test]
fn a_change_is_seen_and_a_lock_alone_is_not() {
    let leaf = Directory::new();
    assert!(leaf.version().is_none(), "dead until it begins");
    leaf.begin(Begun::default(), [(1, 64, 16)].into_iter());
    let version = leaf.version().unwrap();
    let held = leaf.try_lock(version).unwrap();
    assert!(leaf.is_at(version) && leaf.try_lock(version).is_none());
    drop(held);
    assert!(leaf.is_at(version));
    let mut held = leaf.try_lock(version).unwrap();
    held.begin();
    held.set(0, (2, 80, 24), 16);
    drop(held);
    assert!(!leaf.is_at(version) && leaf.try_lock(version).is_none());
    assert!(leaf.candidates(2).eq([0]) && leaf.candidates(1).is_empty());
    assert_eq!((leaf.live(), leaf.records()), (24, 1));
    let set = |place: usize, len: u32, old: u32| {
        let mut held = leaf.lock().unwrap();
        held.begin();
        held.set(place, (3, 120, len), old);
    };
    // One more record; a tombstone in the place of a record, and of a tombstone; a record there again.
    let steps = [(1, 8, 0, (32, 2)), (0, 0, 24, (8, 1)), (0, 0, 0, (8, 1)), (0, 40, 0, (48, 2))];
    for (place, len, old, left) in steps {
        set(place, len, old);
        assert_eq!((leaf.live(), leaf.records()), left);
    }
    leaf.lock().unwrap().free();
    assert!(leaf.version().is_none() && leaf.lock().is_none());
    leaf.begin(Begun::default(), std::iter::empty());
    assert!(leaf.version().is_some_and(|now| now != version) && leaf.used().is_empty());
}

#[test]
fn a_leaf_is_filled_once_and_shut_for_good() {
    let leaf = Directory::new();
    assert!(leaf.version().is_none());
    drop(leaf.begin_load().unwrap());
    assert!(leaf.version().is_none(), "it was not filled");
    assert!(leaf.shut());
    leaf.begin_load().unwrap().begin(Begun::default(), [(1, 64, 16)].into_iter());
    assert!(leaf.version().is_some() && leaf.begin_load().is_none());
    assert!(leaf.lock().unwrap().is_shut(), "shut while it was not loaded");
    let leaf = Directory::new();
    leaf.begin(Begun::default(), std::iter::empty());
    let version = leaf.version().unwrap();
    assert!(!leaf.lock().unwrap().is_shut() && leaf.shut());
    assert!(leaf.try_lock(version).is_none(), "what was seen before it was shut is not now");
    leaf.lock().unwrap().free();
    assert!(!leaf.shut(), "dead");
}

/// A thread that holds or fills the leaf puts back the word that it has taken.
#[test]
fn a_leaf_that_is_held_while_it_is_opened_again_is_not_shut_for_ever() {
    for round in 0..200 {
        let leaf = Directory::new();
        let is_unloaded = round % 2 == 0;
        if !is_unloaded {
            leaf.begin(Begun::default(), std::iter::empty());
        }
        assert!(leaf.shut());
        let load = leaf.begin_load();
        let held = if is_unloaded { None } else { leaf.lock() };
        assert!(load.is_some() != held.is_some());
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                leaf.unshut();
            });
            begun.wait();
            (0..100).for_each(|_| std::thread::yield_now());
            drop(held);
            load.into_iter().for_each(|it| it.begin(Begun::default(), std::iter::empty()));
        });
        assert!(!leaf.lock().unwrap().is_shut(), "round {round}");
    }
}

#[test]
fn places_are_filled_up_to_the_last() {
    let leaf = Directory::new();
    leaf.begin(Begun::default(), std::iter::empty());
    for at in 0..PLACES {
        if at == FEW {
            assert_eq!(leaf.vacancy(), None, "pages abound");
            leaf.allow_full();
        }
        let place = leaf.vacancy().unwrap();
        let mut held = leaf.lock().unwrap();
        held.begin();
        held.set(place, (at as u8, 8 * at as u32, 8), 0);
    }
    assert_eq!((leaf.vacancy(), leaf.used()), (None, PlaceSet::first(PLACES)));
    assert_eq!(leaf.offset(PLACES - 1), 8 * (PLACES as u32 - 1));
}
