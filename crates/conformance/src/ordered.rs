//! Ordered access and snapshots, where an engine has them.

use super::Factory;
use super::probe::{EARLY, PAST, Seen, WAIT, key, put, until, written};
use super::rng::Rng;
use coreplane_engine::{Batch, Ordered, Snapshot};
use std::collections::BTreeMap;

/// The records that a scan shows.
fn scan(
    ordered: &dyn Ordered,
    start: &[u8],
    end: Option<&[u8]>,
    reverse: bool,
    limit: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut shown = Vec::new();
    ordered
        .scan(start, end, reverse, limit, &mut |entry| {
            let record = entry.record.expect("scan showed a tombstone");
            assert_eq!(record.sequence, entry.sequence);
            shown.push((entry.key.to_vec(), record.value.to_vec()));
            true
        })
        .unwrap();
    shown
}

pub(super) fn scans_in_order(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let Some(ordered) = engine.ordered() else { return };
    assert!(scan(ordered, b"", None, false, 10).is_empty());
    let mut rng = Rng::new(fixture.scale.seed);
    let mut expected = BTreeMap::new();
    for number in 0..fixture.scale.keys_of(64, 200) {
        let len = rng.below(4);
        let key: Vec<u8> = rng.bytes(len).iter().map(|byte| byte % 7 * 40).collect();
        put(engine, &key, &number.to_le_bytes());
        expected.insert(key.clone(), number.to_le_bytes().to_vec());
        if rng.one_in(4) {
            written(engine.delete(&key, &WAIT).unwrap());
            expected.remove(&key);
        }
    }
    written(engine.put(b"expired", b"", &until(PAST)).unwrap());
    for _ in 0..fixture.scale.operations / 4 {
        let (len, end_len) = (rng.below(4), rng.below(4));
        let start: Vec<u8> = rng.bytes(len).iter().map(|byte| byte % 7 * 40).collect();
        let end: Vec<u8> = rng.bytes(end_len).iter().map(|byte| byte % 7 * 40).collect();
        let end = (!rng.one_in(4)).then_some(end);
        let (reverse, limit) = (rng.one_in(2), [0, 1, 5, usize::MAX][rng.below(4)]);
        let mut due: Vec<_> = expected
            .iter()
            .filter(|(key, _)| **key >= start && end.as_ref().is_none_or(|end| *key < end))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if reverse {
            due.reverse();
        }
        due.truncate(limit);
        let shown = scan(ordered, &start, end.as_deref(), reverse, limit);
        assert_eq!(shown, due, "scan of {start:?}..{end:?}, reverse {reverse}, limit {limit}");
    }
    let mut calls = 0;
    let mut stop = |_: coreplane_engine::Entry<'_>| {
        calls += 1;
        calls < 2
    };
    ordered.scan(b"", None, false, usize::MAX, &mut stop).unwrap();
    assert_eq!(calls, expected.len().min(2), "visit said stop");
}

/// The value of `key` in a snapshot.
fn then(snapshot: &dyn Snapshot, key: &[u8]) -> Option<Vec<u8>> {
    let mut seen = Vec::new();
    let found = snapshot.get_with(key, &mut |record| seen.push(Seen::of(record))).unwrap();
    assert_eq!(usize::from(found), seen.len(), "found, and how often it was shown");
    seen.pop().map(|seen| seen.value)
}

/// Keys and their values.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// All records of a snapshot, up or down.
fn all_then(snapshot: &dyn Snapshot, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut shown = Vec::new();
    let mut visit = |entry: coreplane_engine::Entry<'_>| {
        let record = entry.record.expect("a snapshot showed a tombstone");
        assert!(entry.sequence <= snapshot.sequence(), "newer than the snapshot");
        assert!(record.ticket.is_durable(), "a snapshot of what may be lost");
        shown.push((entry.key.to_vec(), record.value.to_vec()));
        true
    };
    snapshot.scan(b"", None, reverse, usize::MAX, &mut visit).unwrap();
    if reverse {
        shown.reverse();
    }
    shown
}

/// Beside overwrites, deletes and new keys, which make the engine clean, if it does.
pub(super) fn snapshots_are_scanned_beside_writes(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let Some(snapshots) = engine.snapshots() else { return };
    let mut rng = Rng::new(fixture.scale.seed);
    let count = fixture.scale.keys_of(256, 60);
    let mut truth = Contents::new();
    let mut held: Vec<(Box<dyn Snapshot>, Contents)> = Vec::new();
    for number in 0..fixture.scale.operations {
        let (key, value) = (key(rng.below(count)), rng.bytes(40));
        if rng.one_in(5) {
            if truth.remove(&key).is_some() {
                written(engine.delete(&key, &WAIT).unwrap());
            }
        } else {
            put(engine, &key, &value);
            truth.insert(key, value);
        }
        if number % 97 == 0 {
            let snapshot = snapshots.snapshot().unwrap();
            let before = held.last().map_or(0, |(last, _)| last.sequence());
            assert!(snapshot.sequence() >= before, "a snapshot of the past");
            held.push((snapshot, truth.clone()));
        }
        if held.len() > 3 {
            let (snapshot, then) = held.remove(rng.below(held.len()));
            let then: Vec<_> = then.into_iter().collect();
            let reverse = rng.one_in(2);
            assert_eq!(all_then(&*snapshot, reverse), then, "a snapshot of {number} moved");
        }
    }
    let from = key(count / 2);
    for (snapshot, then) in held {
        let mut shown = Vec::new();
        let mut visit = |entry: coreplane_engine::Entry<'_>| {
            shown.push(entry.key.to_vec());
            shown.len() < 3
        };
        snapshot.scan(&from, None, false, usize::MAX, &mut visit).unwrap();
        let due: Vec<_> = then.range(from.clone()..).map(|(key, _)| key.clone()).take(3).collect();
        assert_eq!(shown, due, "a part of a snapshot");
    }
    let now: Vec<_> = truth.into_iter().collect();
    let ordered = engine.ordered().map(|ordered| scan(ordered, b"", None, false, usize::MAX));
    assert!(ordered.is_none_or(|shown| shown == now), "what is there after all snapshots went");
}

pub(super) fn snapshots_stand_still(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let Some(snapshots) = engine.snapshots() else { return };
    let empty = snapshots.snapshot().unwrap();
    for number in 0..10 {
        put(engine, &key(number), b"first");
    }
    written(engine.put(&key(4), b"early", &EARLY).unwrap());
    let first = snapshots.snapshot().unwrap();
    engine.apply(Batch::new().put(&key(0), b"second").delete(&key(1)), &WAIT).unwrap();
    put(engine, &key(20), b"new");
    let second = snapshots.snapshot().unwrap();
    engine.clear().unwrap();
    for number in 0..fixture.scale.operations {
        put(engine, &key(number % 10), &[3; 50]);
    }
    for number in 0..21 {
        assert_eq!(then(&*empty, &key(number)), None, "a snapshot of nothing");
    }
    let text = |snapshot: &dyn Snapshot, number| {
        then(snapshot, &key(number)).map(|value| String::from_utf8_lossy(&value).into_owned())
    };
    let views = [
        (&first, [Some("first"), Some("first"), Some("first"), Some("early"), None]),
        (&second, [Some("second"), None, Some("first"), Some("early"), Some("new")]),
    ];
    for (snapshot, expected) in views {
        let found = [0, 1, 2, 4, 20].map(|number| text(&**snapshot, number));
        assert_eq!(found, expected.map(|text| text.map(str::to_owned)), "a snapshot moved");
    }
    drop(first);
    assert_eq!(text(&*second, 0).as_deref(), Some("second"), "after another was dropped");
}
