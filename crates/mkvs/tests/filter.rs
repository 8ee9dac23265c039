//! The filter of a group, through its public interface: how often it is wrong, and that it grows; and that no
//! thread of a matrix waits for it.

mod shelf;

use coreplane_engine::{Batch, Engine, Error, WriteOptions};
use coreplane_mkvs::filter::{Filter, KEYS_PER_LINE, hash_of};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Position};
use shelf::sample::created;
use shelf::{Kind, Shelf};
use std::ops::Range;
use std::sync::atomic::Ordering;

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

/// The filter takes this many bytes: at once, or when a probe in another test of this process, which may have
/// been stopped in the middle, continues.
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

/// Keys that are never inserted.
const STRANGERS: Range<u64> = 1 << 40..(1 << 40) + 1_000_000;

/// At most one in a hundred; and not much less, or the figures of the lecture would be those of another filter.
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
    assert_eq!((filter.len(), filter.load()), (KEYS, 1.0));
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
    assert_eq!(filter.load(), 2.0);
    assert!(contained(&filter, STRANGERS) > 40_000, "twice the design load");
    let rebuild = filter.rebuild(KEYS).unwrap();
    assert_dram_bytes(&filter, (KEYS + KEYS / 2) / KEYS_PER_LINE * 64);
    assert!(filter.rebuild(KEYS).unwrap_err().to_string().contains("already"));
    std::thread::scope(|scope| {
        for half in [0..KEYS / 2, KEYS / 2..KEYS] {
            let rebuild = &rebuild;
            scope.spawn(move || half.for_each(|key| rebuild.add(hash(key))));
        }
    });
    assert_eq!(filter.load(), 2.0, "the old table is in force until the end");
    rebuild.finish();
    assert_eq!((filter.len(), filter.capacity(), filter.load()), (KEYS, KEYS, 1.0));
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
    assert!(error.to_string().contains("18446744073709551615 keys"), "{error}");
    let filter = Filter::with_capacity(100).unwrap();
    insert(&filter, 0..100);
    assert!(filter.rebuild(u64::MAX).unwrap_err().to_string().contains("no memory"));
    assert_eq!(contained(&filter, 0..100), 100);
    filter.rebuild(200).unwrap().finish();
    assert_eq!(filter.capacity(), 200);
}

/// The removals that a rebuild loses, according to the lecture, and those that it does not.
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
    // After another rebuild without concurrent changes it is exact.
    filter.rebuild(2_000).unwrap().finish();
    assert_eq!((filter.len(), contained(&filter, 0..2_000)), (0, 0));
}

/// A line that is given far more keys than it can count says "perhaps" from then on, and is not wrong otherwise.
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

/// Damage may have hidden a key when keys were listed. When it is removed no other key is denied.
#[test]
fn the_removal_of_a_key_that_was_never_counted_denies_no_other() {
    let filter = Filter::with_capacity(1_000).expect("memory");
    insert(&filter, 0..1_000);
    for key in (1_000..20_000).filter(|key| !filter.may_contain(hash(*key))) {
        remove(&filter, key..key + 1);
    }
    assert_eq!((contained(&filter, 0..1_000), filter.len()), (1_000, 1_000));
}

fn figure_of_group(matrix: &Matrix, name: &str) -> u64 {
    let figures = &matrix.stats().groups[0].figures;
    figures.iter().find(|(known, _)| *known == name).expect("a figure").1
}

/// The capacity of the filter of the only group.
fn capacity(matrix: &Matrix) -> u64 {
    figure_of_group(matrix, "filter_capacity")
}

/// However long it takes to read a device's keys, writers do not wait for it, and no key is denied.
#[test]
fn writers_do_not_wait_for_a_filter_that_grows() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let gates = [0, 1].map(|device| shelf.gate(Position { group: 0, device }));
    let hold =
        |holds| gates.iter().for_each(|gate| gate.holds_looks.store(holds, Ordering::SeqCst));
    let figure = |name| matrix.stats().figure(name).expect("a figure");
    // As many as three filters of the initial size have room for.
    let keys = 3 * capacity(&matrix);
    let assert_there = || {
        for key in 0..keys {
            let found = matrix.get(&key.to_le_bytes()).expect("get");
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "key {key}");
        }
    };
    hold(true);
    for key in 0..keys {
        let _outcome =
            matrix.put(&key.to_le_bytes(), b"value", &WriteOptions::default()).expect("put");
    }
    while gates.iter().all(|gate| gate.held_looks.load(Ordering::SeqCst) == 0) {
        std::thread::yield_now();
    }
    assert_there();
    assert!(figure("filter_load_percent") >= 299 && figure("filter_growths") == 0);
    hold(false);
    shelf::wait_until(|| figure("filter_load_percent") <= 100 && figure("filter_growths") > 0);
    assert_there();
    let denied = figure("filter_denied");
    for key in keys..2 * keys {
        assert_eq!(matrix.get(&key.to_le_bytes()).expect("get"), None);
    }
    assert!(figure("filter_denied") - denied >= keys * 98 / 100, "it is not too full any more");
    matrix.close().expect("close");
}

/// A matrix that is closed while its filter grows does not wait for that to end.
#[test]
fn a_filter_that_grows_holds_up_no_close() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 1), Ack::All);
    let gate = shelf.gate(Position { group: 0, device: 0 });
    gate.holds_looks.store(true, Ordering::SeqCst);
    let put = |key: u64| matrix.put(&key.to_le_bytes(), b"value", &WriteOptions::default());
    let keys = 2 * capacity(&matrix);
    (0..keys).for_each(|key| assert!(put(key).is_ok()));
    while gate.held_looks.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while put(0).is_ok() {}
            gate.holds_looks.store(false, Ordering::SeqCst);
        });
        matrix.close().expect("close");
    });
    assert_eq!(matrix.stats().figure("filter_growths"), Some(0), "it was given up");
    drop(matrix);
    let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
    assert_eq!(matrix.len().expect("len"), keys);
}

/// A batch deletes a key while the keys are listed, and the key exists again when another group has refused
/// the batch: it is in the filter.
#[test]
fn what_a_refused_batch_had_deleted_is_not_denied() {
    let shelf = Shelf::new(Kind::Bptree, 4 << 20);
    let matrix = created(&shelf, (2, 2), Ack::All);
    let gate = |group, device| shelf.gate(Position { group, device });
    let spin = |until: &dyn Fn() -> bool| {
        while !until() {
            std::thread::yield_now();
        }
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::SeqCst);
    // The last device of a group is its primary.
    let listed = gate(0, 1);
    listed.holds_looks.store(true, Ordering::SeqCst);
    let put = |key: u64| matrix.put(&key.to_le_bytes(), b"value", &WriteOptions::default());
    for key in (0..8192).cycle() {
        assert!(put(key).is_ok());
        if count(&listed.held_looks) > 0 {
            break;
        }
    }
    let growths = || matrix.stats().figure("filter_growths").expect("a figure");
    let before = growths();
    let anchor = shelf.engine(Position { group: 0, device: 1 });
    let mut keys = Vec::new();
    let mut note = |entry: coreplane_engine::Entry<'_>| keys.push(entry.key.to_vec());
    anchor.iterate(0, 1024, &mut note).expect("iterate");
    // The first key to be listed, and one of the other group.
    let gone = keys.iter().find(|key| key.len() == 8).expect("a key").clone();
    let others = (8192_u64..).map(|it| it.to_le_bytes());
    let is_other = |key: &[u8; 8]| {
        let _outcome = matrix.put(key, b"value", &WriteOptions::default()).expect("put");
        anchor.get(key).expect("get").is_none()
    };
    let other = others.clone().find(is_other).expect("a key");
    let refusing = [gate(1, 0), gate(1, 1)];
    refusing.iter().for_each(|gate| gate.holds_puts.store(true, Ordering::SeqCst));
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let mut batch = Batch::new();
            batch.delete(&gone).put(&other, b"another");
            matrix.apply(&batch, &WriteOptions::default()).map(|_| ())
        });
        spin(&|| refusing.iter().any(|gate| count(&gate.held_puts) > 0));
        assert_eq!(anchor.get(&gone).expect("get"), None);
        let (mut cursor, mut looks) = (0, count(&listed.looks) - 1);
        loop {
            cursor = anchor.iterate(cursor, 1024, &mut |_| {}).expect("iterate");
            looks += 1;
            if cursor == 0 {
                break;
            }
        }
        listed.holds_looks.store(false, Ordering::SeqCst);
        spin(&|| count(&listed.looks) >= looks);
        for gate in &refusing {
            gate.is_full.store(true, Ordering::SeqCst);
            gate.holds_puts.store(false, Ordering::SeqCst);
        }
        let refused = refused.join().expect("no panic");
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    });
    spin(&|| growths() > before);
    // A thread that finds nothing asks the filter.
    (0..100_u64).for_each(|it| assert!(matrix.get(&(it << 40 | 1 << 39).to_le_bytes()).is_ok()));
    assert_eq!(matrix.get(&gone).expect("get").as_deref(), Some(&b"value"[..]));
    matrix.close().expect("close");
}

/// Puts that wait for one device and are counted in the filter before they are made: a put that is made and
/// answered with an error, or early, is counted all the same when it has been acknowledged. With one device it is put
/// again there; behind a put of a present key it is not expected to be new.
#[test]
fn what_was_acknowledged_is_not_denied_whatever_a_device_has_answered() {
    [(2, false), (1, false), (1, true)].into_iter().for_each(what_was_acknowledged_is_not_denied);
}

fn what_was_acknowledged_is_not_denied((devices, is_behind_others): (u8, bool)) {
    let shelf = Shelf::new(Kind::Bptree, 1 << 20);
    let matrix = created(&shelf, (1, devices), Ack::First);
    let gate = shelf.gate(Position { group: 0, device: devices - 1 });
    let put = |key: u64| matrix.put(&key.to_le_bytes(), b"value", &WriteOptions::default());
    for round in 0..20_u64 {
        let keys = 4 * round..4 * round + 4;
        for (key, how) in
            keys.clone().zip([None, Some(&gate.spoils_puts), None, Some(&gate.puts_early)])
        {
            if is_behind_others && key > 0 {
                let _replaced = put(key - 1).expect("put");
            }
            how.iter().for_each(|how| how.store(1, Ordering::SeqCst));
            let _outcome = put(key).expect("put");
            assert!(how.is_none_or(|how| how.load(Ordering::SeqCst) == 0), "it was asked");
        }
        matrix.sync().expect("sync");
        // The first get removes the in-flight entry, because of which it does not ask the filter.
        for key in keys.clone().chain(keys) {
            let found = matrix.get(&key.to_le_bytes()).expect("get");
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "{key}");
        }
        // A thread that misses often asks it.
        (1 << 40..(1 << 40) + 100_u64).for_each(|key| {
            assert_eq!(matrix.get(&key.to_le_bytes()).expect("get"), None);
        });
    }
    assert_eq!(matrix.len().expect("len"), 80);
}

/// A key that was counted and then taken back, since its device was left out meanwhile and the other one has
/// no space: its count is removed, too.
#[test]
fn what_was_taken_back_is_not_counted() {
    let shelf = Shelf::new(Kind::Bptree, 1 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    let [follower, anchor] = [0, 1].map(|device| Position { group: 0, device });
    let [other, gate] = [follower, anchor].map(|at| shelf.gate(at));
    let put = |key: u64| matrix.put(&key.to_le_bytes(), b"value", &WriteOptions::default());
    let _outcome = put(0).expect("put");
    matrix.sync().expect("sync");
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            // The next put is expected to be of a new key, too.
            let _outcome = put(1).expect("put");
            gate.holds_puts.store(true, Ordering::SeqCst);
            put(2)
        });
        while gate.held_puts.load(Ordering::SeqCst) == 0 || !gate.holds_puts.load(Ordering::SeqCst)
        {
            assert!(!putting.is_finished());
            std::thread::yield_now();
        }
        gate.is_out.store(true, Ordering::SeqCst);
        // The delete leaves the device out, and then waits for the other device.
        scope.spawn(|| matrix.delete(&0_u64.to_le_bytes(), &WriteOptions::default()));
        while matrix.member_states().contains(&(anchor, MemberState::Current)) {
            std::thread::yield_now();
        }
        gate.is_out.store(false, Ordering::SeqCst);
        other.is_full.store(true, Ordering::SeqCst);
        gate.holds_puts.store(false, Ordering::SeqCst);
        let refused = putting.join().expect("no panic");
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    });
    assert_eq!(matrix.get(&2_u64.to_le_bytes()).expect("get"), None);
    // The delete may have come while the remaining device was full.
    let is_there = |key: &u64| matrix.get(&key.to_le_bytes()).expect("get").is_some();
    let there = (0..3).filter(is_there).count() as u64;
    assert_eq!(figure_of_group(&matrix, "filter_keys"), there);
}

/// A group owns some of the slots, which depend on the same hash as the lines of a filter; its keys use all lines.
#[test]
fn in_a_matrix_of_many_groups_filters_are_wrong_for_one_in_a_hundred_at_most() {
    for groups in [1, 2, 8, 3] {
        let shelf = Shelf::new(Kind::Bptree, 4 << 20);
        let matrix = created(&shelf, (groups, 1), Ack::All);
        let figure = |name| matrix.stats().figure(name).expect("a figure");
        // Below the load at which a filter asks for more room.
        let keys = capacity(&matrix) * u64::from(groups) * 3 / 4;
        for key in 0..keys {
            let options = WriteOptions::default();
            let _outcome = matrix.put(&key.to_le_bytes(), b"v", &options).expect("put");
        }
        let absent = 50_000;
        for key in STRANGERS.take(absent as usize) {
            assert_eq!(matrix.get(&key.to_le_bytes()).expect("get"), None);
        }
        let (denied, wrong) = (figure("filter_denied"), figure("filter_false_hits"));
        assert!(denied + wrong >= absent, "{groups} groups: all are asked for in filters");
        assert!(wrong <= absent / 100, "{groups} groups: {wrong} of {absent}");
        matrix.close().expect("close");
    }
}
