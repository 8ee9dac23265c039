//! Keys of the greatest length that differ only in their last bytes: the way in which an engine splits and stores
//! them must not show.

use super::probe::{PAST, WAIT, all, put, until, value, written};
use super::{Factory, Restart};
use coreplane_engine::{Batch, Expected, Outcome, StorageEngine};
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The ends of such keys, in their order: some are prefixes of others.
const ENDS: [&[u8]; 12] =
    [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"b", b"c", b"cc", b"d", b"\xff", b"\xff\xff"];

/// Checks the records that a scan from `start` to `end` shows.
fn check_scan(engine: &dyn StorageEngine, map: &Map, start: &[u8], end: Option<&[u8]>) {
    let Some(ordered) = engine.ordered() else { return };
    let is_due = |key: &[u8]| key >= start && end.is_none_or(|end| key < end);
    let mut due: Vec<&Vec<u8>> = map.keys().filter(|key| is_due(key)).collect();
    for reverse in [false, true] {
        let mut shown = Vec::new();
        let mut visit = |entry: coreplane_engine::Entry<'_>| {
            let found = entry.record.expect("a scan showed a tombstone").value.to_vec();
            assert!(map.get(entry.key) == Some(&found), "a scan showed another record");
            shown.push(entry.key.to_vec());
            true
        };
        ordered.scan(start, end, reverse, usize::MAX, &mut visit).unwrap();
        assert!(shown.iter().eq(due.iter().copied()), "of {} bytes, {reverse}", start.len());
        due.reverse();
    }
}

/// Checks that every kind of read agrees with the map.
fn check(engine: &dyn StorageEngine, map: &Map, keys: &[Vec<u8>]) {
    for key in keys {
        assert!(value(engine, key) == map.get(key).cloned(), "a key of {} bytes", key.len());
        assert_eq!(engine.check(key).unwrap(), map.contains_key(key));
    }
    let iterated: Map = all(engine, 3).into_iter().map(|(key, seen)| (key, seen.value)).collect();
    assert!(iterated == *map, "an iteration showed {} of {}", iterated.len(), map.len());
    check_scan(engine, map, b"", None);
    for pair in keys.windows(2) {
        check_scan(engine, map, &pair[0], Some(&pair[1]));
        check_scan(engine, map, &pair[0], keys.last().map(Vec::as_slice));
        check_scan(engine, map, &pair[1], None);
    }
    let report = engine.verify(&mut |_| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.damages);
}

fn change(engine: &dyn StorageEngine, map: &mut Map, keys: &[Vec<u8>], large: usize) {
    let mut batch = Batch::new();
    for (at, key) in keys.iter().enumerate() {
        match at % 4 {
            0 => drop(batch.delete(key)),
            1 => drop(batch.put(key, &[1; 7])),
            _ => {}
        }
        let bytes = vec![at as u8; if at % 4 == 2 { large } else { 20 }];
        let expected = map.get(key).map_or(Expected::Absent, |value| Expected::Value(value));
        written(engine.compare_and_set(key, expected, &bytes, &WAIT).unwrap());
        let refused = engine.insert(key, b"", &WAIT).unwrap();
        assert!(matches!(refused, Outcome::Exists(_)), "{refused:?}");
        map.insert(key.clone(), bytes);
    }
    check(engine, map, keys);
    engine.apply(&batch, &WAIT).unwrap();
    for (at, key) in keys.iter().enumerate() {
        match at % 4 {
            0 => drop(map.remove(key)),
            1 => drop(map.insert(key.clone(), vec![1; 7])),
            _ => {}
        }
    }
    check(engine, map, keys);
    written(engine.put(&keys[3], b"", &until(PAST)).unwrap());
    assert!(written(engine.delete(&keys[2], &WAIT).unwrap()).replaced);
    map.remove(&keys[3]);
    map.remove(&keys[2]);
    check(engine, map, keys);
}

pub(super) fn long_keys_that_begin_alike(factory: Factory<'_>) {
    let mut fixture = factory();
    let limit = fixture.engine.limits().key_len_max;
    // Together they take less than half of the room.
    let alike = (limit - 2).min(fixture.scale.bytes / (3 * ENDS.len()));
    let keys: Vec<Vec<u8>> = ENDS.iter().map(|end| [&vec![b'k'; alike], *end].concat()).collect();
    let large = fixture.scale.bytes / 60;
    let mut map = Map::new();
    for how in [None, Some(Restart::Clean), Some(Restart::Kill)] {
        if let Some(how) = how {
            match fixture.restart(how) {
                Some(next) => fixture = next,
                None => return,
            }
            check(&*fixture.engine, &map, &keys);
        }
        let engine = &*fixture.engine;
        change(engine, &mut map, &keys, large);
        engine.clear().unwrap();
        map.clear();
        check(engine, &map, &keys);
        change(engine, &mut map, &keys, large);
    }
    let engine = &*fixture.engine;
    for key in map.keys() {
        assert!(written(engine.delete(key, &WAIT).unwrap()).replaced);
    }
    check(engine, &Map::new(), &keys);
    put(engine, &keys[5], b"again");
    assert_eq!(value(engine, &keys[5]).as_deref(), Some(&b"again"[..]));
}
