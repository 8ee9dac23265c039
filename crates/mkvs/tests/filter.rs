//! The filter of a group, by its public face alone: how often it is wrong, and that it grows.

use coreplane_engine::Remedy;
use coreplane_mkvs::bloom::{Filter, FilterError, KEYS_PER_LINE, hash_of};
use std::ops::Range;

fn hash(key: u64) -> u64 {
    hash_of(&key.to_le_bytes())
}

fn insert(filter: &Filter, keys: Range<u64>) {
    for key in keys {
        filter.change().insert(hash(key));
    }
}

fn remove(filter: &Filter, keys: Range<u64>) {
    keys.for_each(|key| filter.change().remove(hash(key)));
}

fn contained(filter: &Filter, keys: Range<u64>) -> u64 {
    keys.filter(|key| filter.may_contain(hash(*key))).count() as u64
}

/// The bytes come to what is said: at once, or when a probe of another test of this process, which
/// may have been stopped in the middle, goes on.
fn assert_dram_bytes(filter: &Filter, bytes: u64) {
    for _ in 0..10_000 {
        if filter.dram_bytes() == bytes {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(filter.dram_bytes(), bytes);
}

const KEYS: u64 = 400_000;

/// Other keys than those.
const STRANGERS: Range<u64> = 1 << 40..(1 << 40) + 1_000_000;

/// At most one in a hundred; and not much less, or the figures of the lecture are of another
/// filter.
fn assert_false_positives(filter: &Filter, what: &str) {
    let wrong = contained(filter, STRANGERS);
    assert!((7_500..=9_000).contains(&wrong), "{what}: {wrong}");
}

#[test]
fn at_its_design_load_it_is_wrong_for_one_in_a_hundred_at_most() {
    let filter = Filter::with_capacity(KEYS).unwrap();
    assert_eq!(filter.capacity(), KEYS);
    assert_eq!(contained(&filter, STRANGERS), 0);
    insert(&filter, 0..KEYS);
    assert_eq!(contained(&filter, 0..KEYS), KEYS);
    assert_eq!((filter.len(), filter.load(), filter.needs_growth()), (KEYS, 1.0, false));
    assert_false_positives(&filter, "full");
    // All keys replaced by others: counts are exact, so nothing of the old ones is left.
    for round in 0..4_u64 {
        for key in round * KEYS..(round + 1) * KEYS {
            let change = filter.change();
            change.remove(hash(key));
            change.insert(hash(key + KEYS));
        }
    }
    assert_eq!(contained(&filter, 4 * KEYS..5 * KEYS), KEYS);
    assert_false_positives(&filter, "after four times as many changes");
    remove(&filter, 4 * KEYS..5 * KEYS);
    assert_eq!(contained(&filter, 0..5 * KEYS), 0);
    assert!(filter.is_empty());
}

#[test]
fn a_key_takes_about_fifty_bits() {
    let filter = Filter::with_capacity(KEYS).unwrap();
    assert_dram_bytes(&filter, KEYS / KEYS_PER_LINE * 64);
    assert_eq!(Filter::with_capacity(0).unwrap().dram_bytes(), 64);
}

#[test]
fn it_grows_and_keeps_its_keys_and_its_promise() {
    let filter = Filter::with_capacity(KEYS / 2).unwrap();
    insert(&filter, 0..KEYS);
    assert!(filter.needs_growth());
    assert!(contained(&filter, STRANGERS) > 40_000, "twice the design load");
    let rebuild = filter.rebuild(KEYS).unwrap();
    assert_dram_bytes(&filter, (KEYS + KEYS / 2) / KEYS_PER_LINE * 64);
    assert_eq!(filter.rebuild(KEYS).unwrap_err(), FilterError::Rebuilding);
    std::thread::scope(|scope| {
        for half in [0..KEYS / 2, KEYS / 2..KEYS] {
            let rebuild = &rebuild;
            scope.spawn(move || half.for_each(|key| rebuild.add(hash(key))));
        }
    });
    assert!(filter.needs_growth(), "the old table is in force until the end");
    rebuild.finish();
    assert_eq!((filter.len(), filter.capacity(), filter.needs_growth()), (KEYS, KEYS, false));
    assert_eq!(contained(&filter, 0..KEYS), KEYS);
    assert_dram_bytes(&filter, KEYS / KEYS_PER_LINE * 64);
    assert_false_positives(&filter, "grown");
    remove(&filter, 0..KEYS);
    assert_eq!(contained(&filter, 0..KEYS), 0);
}

#[test]
fn a_rebuild_that_fails_leaves_the_old_filter_in_force() {
    let filter = Filter::with_capacity(1_000).unwrap();
    insert(&filter, 0..1_000);
    for is_panic in [false, true] {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let rebuild = filter.rebuild(2_000).unwrap();
            (0..500).for_each(|key| rebuild.add(hash(key)));
            insert(&filter, 1_000..1_100);
            remove(&filter, 1_000..1_100);
            assert!(!is_panic, "the engine fails");
        }));
        assert_eq!(failed.is_err(), is_panic);
        assert_eq!((filter.len(), filter.capacity()), (1_000, 1_000));
        assert_eq!(contained(&filter, 0..1_000), 1_000);
        assert_dram_bytes(&filter, 6_400);
    }
    remove(&filter, 0..1_000);
    assert_eq!(contained(&filter, 0..2_000), 0, "exact as if no rebuild had been");
}

#[test]
fn a_table_for_which_there_is_no_memory_is_refused_and_changes_nothing() {
    let error = Filter::with_capacity(u64::MAX).unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixInput);
    assert!(error.to_string().contains("18446744073709551615 keys"), "{error}");
    let filter = Filter::with_capacity(100).unwrap();
    insert(&filter, 0..100);
    assert!(matches!(filter.rebuild(u64::MAX), Err(FilterError::NoMemory { .. })));
    assert_eq!(contained(&filter, 0..100), 100);
    filter.rebuild(200).unwrap().finish();
    assert_eq!(filter.capacity(), 200);
}

/// What the lecture says is lost in a rebuild, and what is not.
#[test]
fn a_rebuild_forgets_no_removal_but_those_beside_it() {
    let filter = Filter::with_capacity(2_000).unwrap();
    insert(&filter, 0..1_000);
    let rebuild = filter.rebuild(2_000).unwrap();
    remove(&filter, 0..10);
    insert(&filter, 1_000..1_010);
    for key in 10..1_000 {
        let change = filter.change();
        change.insert(hash(key)).undo();
    }
    (10..1_010).for_each(|key| rebuild.add(hash(key)));
    assert_eq!((filter.len(), contained(&filter, 10..1_010)), (1_000, 1_000));
    rebuild.finish();
    assert_eq!((filter.len(), contained(&filter, 10..1_010)), (1_010, 1_000));
    remove(&filter, 10..1_010);
    assert_eq!((filter.len(), contained(&filter, 1_000..1_010)), (10, 10), "counted twice");
    // Made anew once more, with nobody beside, it is exact.
    filter.rebuild(2_000).unwrap().finish();
    assert_eq!((filter.len(), contained(&filter, 0..2_000)), (0, 0));
}

/// A line that is given far more keys than it can count says "perhaps" from then on, and nothing
/// else.
#[test]
fn what_is_counted_beyond_the_end_is_never_denied() {
    let filter = Filter::with_capacity(1).unwrap();
    for _ in 0..3 {
        insert(&filter, 0..500);
        assert_eq!(contained(&filter, 0..500), 500);
        remove(&filter, 100..500);
        assert_eq!(contained(&filter, 0..100), 100);
        remove(&filter, 0..100);
    }
    filter.rebuild(10).unwrap().finish();
    assert_eq!((filter.len(), contained(&filter, 0..500)), (0, 0));
}
