//! Iterators: bounds, pages, both ends, writes beside them.

use crate::stores::{each, each_ordered, in_memory};
use coreplane::{Db, EngineChoice, Error, Range, Remedy, StoreConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn all(entries: impl Iterator<Item = coreplane::Result<(Vec<u8>, Vec<u8>)>>) -> Pairs {
    entries.map(Result::unwrap).collect()
}

fn keys(range: Range) -> Vec<Vec<u8>> {
    all(range).into_iter().map(|(key, _)| key).collect()
}

fn key(number: u32) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Writes so many entries; returns them as a map.
fn fill(db: &Db, count: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let map: BTreeMap<_, _> = (0..count).map(|n| (key(n), n.to_be_bytes().to_vec())).collect();
    for part in map.iter().collect::<Vec<_>>().chunks(32) {
        let mut batch = db.batch();
        for (key, value) in part {
            batch.put(key, value);
        }
        batch.commit().unwrap();
    }
    map
}

#[test]
fn an_engine_without_order_says_so() {
    let unordered = std::cell::Cell::new(0);
    each(|name, db| {
        db.put("k", "v").unwrap();
        if db.is_ordered() {
            return;
        }
        unordered.set(unordered.get() + 1);
        for error in [db.range("a"..).unwrap_err(), db.prefix("").unwrap_err()] {
            let engine = db.engine().name();
            assert!(matches!(error, Error::NotOrdered { engine: it } if it == engine), "{name}");
            assert_eq!(error.remedy(), Remedy::FixInput);
            assert!(error.to_string().contains("order"), "{error}");
        }
        assert_eq!(all(db.iter()), [(b"k".to_vec(), b"v".to_vec())], "{name}");
    });
    assert_eq!(unordered.get(), 2);
}

#[test]
fn every_entry_is_met() {
    each(|name, db| {
        assert_eq!(db.iter().count(), 0, "{name}");
        let map = fill(db, 1200);
        let seen = all(db.iter());
        let met: BTreeMap<_, _> = seen.iter().cloned().collect();
        assert_eq!(met, map, "{name}");
        if db.is_ordered() {
            assert!(seen.is_sorted() && seen.len() == map.len(), "{name}");
        }
    });
}

#[test]
fn ranges_are_those_of_a_map() {
    use Bound::{Excluded, Included, Unbounded};
    each_ordered(|name, db| {
        let map = fill(db, 700);
        let between = b"k00300x".to_vec();
        let bounds = [
            (Unbounded, Unbounded),
            (Included(key(0)), Excluded(key(1))),
            (Included(key(10)), Included(key(500))),
            (Excluded(key(10)), Excluded(key(500))),
            (Excluded(key(699)), Unbounded),
            (Included(between.clone()), Excluded(key(650))),
            (Unbounded, Included(between)),
            (Included(key(5)), Excluded(key(5))),
            (Included(b"z".to_vec()), Unbounded),
        ];
        for bounds in bounds {
            let expected: Pairs = map
                .range(bounds.clone())
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(all(db.range(bounds.clone()).unwrap()), expected, "{name}: {bounds:?}");
            let mut reversed = all(db.range(bounds.clone()).unwrap().rev());
            reversed.reverse();
            assert_eq!(reversed, expected, "{name}: {bounds:?} from the end");
        }
        let nothing = [
            db.range(key(9)..key(3)).unwrap(),
            db.range((Excluded(key(5)), Excluded(key(5)))).unwrap(),
            db.range("".."").unwrap(),
        ];
        assert!(nothing.into_iter().all(|mut it| it.next().is_none() && it.next_back().is_none()));
        assert_eq!(db.range("k00007"..="k00008").unwrap().count(), 2, "{name}");
    });
}

#[test]
fn pages_end_anywhere() {
    each_ordered(|name, db| {
        // Pages have 16, 32, 64 entries and so on, so one ends after 16, 48, 112 and 240 entries.
        let mut there = 0;
        for count in [1, 15, 16, 17, 47, 48, 49, 111, 112, 113, 240] {
            for number in there..count {
                db.put(key(number), "v").unwrap();
            }
            there = count;
            let expected: Vec<_> = (0..count).map(key).collect();
            let mut range = db.prefix("k").unwrap();
            let seen: Vec<_> = range.by_ref().map(|entry| entry.unwrap().0).collect();
            assert_eq!(seen, expected, "{name}: {count}");
            assert!(range.next().is_none() && range.next_back().is_none(), "{name}: it stays so");
        }
    });
}

#[test]
fn ends_meet_wherever_they_are() {
    each_ordered(|name, db| {
        let expected: Vec<_> = fill(db, 300).into_keys().collect();
        for at_front in [0, 1, 15, 16, 17, 100, 299, 300] {
            let mut range = db.range("a"..).unwrap();
            let mut front: Vec<_> =
                (0..at_front).map(|_| range.next().unwrap().unwrap().0).collect();
            let mut back: Vec<_> = range.by_ref().rev().map(|entry| entry.unwrap().0).collect();
            back.reverse();
            front.append(&mut back);
            assert_eq!(front, expected, "{name}: {at_front} from the front");
            assert!(range.next().is_none());
        }
        let mut range = db.range("a"..).unwrap();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        while let Some(entry) = range.next() {
            front.push(entry.unwrap().0);
            back.extend(range.next_back().map(|entry| entry.unwrap().0));
        }
        assert_eq!((front.len(), back.len()), (150, 150), "{name}: in turns");
        back.reverse();
        front.append(&mut back);
        assert_eq!(front, expected, "{name}: in turns");
    });
}

#[test]
fn prefixes_end_where_they_should() {
    each_ordered(|name, db| {
        let all: [&[u8]; 9] =
            [b"", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\0"];
        for key in all {
            db.put(key, "v").unwrap();
        }
        for prefix in [&b""[..], b"a", b"a\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff", b"c"] {
            let begin: Vec<&[u8]> = all.into_iter().filter(|key| key.starts_with(prefix)).collect();
            assert_eq!(keys(db.prefix(prefix).unwrap()), begin, "{name}: {prefix:?}");
        }
    });
}

#[test]
fn long_keys_and_large_values_make_pages_short() {
    each_ordered(|name, db| {
        let len = db.engine().limits().key_len_max;
        let longest = |number: u8| [vec![b'k'; len - 1], vec![number]].concat();
        for number in 0..20 {
            db.put(longest(number), "v").unwrap();
            db.put([b'v', number], vec![number; 100 << 10]).unwrap();
        }
        let expected: Vec<_> = (0..20).map(longest).collect();
        assert_eq!(keys(db.prefix("k").unwrap()), expected, "{name}");
        let mut reversed: Vec<_> =
            db.prefix("k").unwrap().rev().map(|entry| entry.unwrap().0).collect();
        reversed.reverse();
        assert_eq!(reversed, expected, "{name}");
        let values = all(db.prefix("v").unwrap());
        assert_eq!(values.len(), 20, "{name}");
        let is_whole = |(key, value): &(Vec<u8>, Vec<u8>)| *value == vec![key[1]; 100 << 10];
        assert!(values.iter().all(is_whole), "{name}");
    });
}

#[test]
fn what_is_written_meanwhile_is_shown_where_nothing_was_read() {
    each_ordered(|name, db| {
        fill(db, 100);
        let mut range = db.range("k"..).unwrap();
        assert_eq!(range.next().unwrap().unwrap().0, key(0), "{name}");
        // The first page ends before these keys.
        db.delete(key(70)).unwrap();
        db.put("k00080x", "new").unwrap();
        db.put(key(90), "changed").unwrap();
        // These are behind the iterator.
        db.put("a", "new").unwrap();
        db.put("k00000x", "new").unwrap();
        let rest = all(range);
        let mut expected: BTreeSet<_> = (1..100).filter(|number| *number != 70).map(key).collect();
        expected.insert(b"k00080x".to_vec());
        let seen: Vec<_> = rest.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(seen, expected.into_iter().collect::<Vec<_>>(), "{name}");
        assert!(rest.contains(&(key(90), b"changed".to_vec())), "{name}");
    });
}

#[test]
fn what_stays_is_shown_once_whatever_others_write() {
    each(|name, db| {
        let stays: BTreeSet<_> = (0..400).map(|number| key(number * 2)).collect();
        for key in &stays {
            db.put(key, "v").unwrap();
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    let number = round * 7919 % 400;
                    let comes = key(number * 2 + 1);
                    match round % 3 {
                        0 => drop(db.put(comes, "x").unwrap()),
                        1 => drop(db.delete(comes).unwrap()),
                        _ => drop(db.put(key(number * 2), "v").unwrap()),
                    }
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
            for _ in 0..10 {
                let seen: Vec<_> = all(db.iter()).into_iter().map(|(key, _)| key).collect();
                let met: BTreeSet<_> = seen.iter().filter(|key| stays.contains(*key)).collect();
                assert_eq!(met.len(), stays.len(), "{name}");
                assert!(
                    !db.is_ordered() || seen.is_sorted_by(|a, b| a < b),
                    "{name}: once, in order"
                );
            }
            is_over.store(true, Ordering::Release);
        });
    });
}

#[test]
fn damage_is_the_last_item() {
    let directory = in_memory();
    let path = directory.path().join("pool");
    let config = StoreConfig::at(&path).engine(EngineChoice::Bptree).size(4 << 20);
    let db = config.create_db().unwrap();
    for number in 0..400 {
        db.put(key(number), format!("value {number:03}")).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let mut bytes = std::fs::read(&path).unwrap();
    let damaged = b"value 200";
    let places = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(damaged));
    places.collect::<Vec<_>>().into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let db = config.check_reads(true).open_db().unwrap();
    assert!(db.get(key(200)).is_err());
    // How near the iteration comes to the damage depends on the engine.
    let mut range = db.prefix("k").unwrap();
    let seen: Vec<_> = range.by_ref().map_while(Result::ok).map(|(key, _)| key).collect();
    assert!((100..=200).contains(&seen.len()), "{}", seen.len());
    assert_eq!(seen, (0..seen.len() as u32).map(key).collect::<Vec<_>>());
    assert!(range.next().is_none() && range.next_back().is_none(), "it was the last");
    let mut range = db.prefix("k").unwrap();
    assert!(range.next().unwrap().is_ok());
    let seen: Vec<_> = range.by_ref().rev().map_while(Result::ok).map(|(key, _)| key).collect();
    assert!((100..200).contains(&seen.len()), "{}", seen.len());
    let greatest = (0..400).rev().map(key).take(seen.len());
    assert_eq!(seen, greatest.collect::<Vec<_>>());
    assert!(range.next().is_none(), "of both ends");
    assert_eq!(db.range(key(300)..).unwrap().filter(Result::is_ok).count(), 100);
}
