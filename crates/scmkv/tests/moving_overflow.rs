//! Large values are read while the cleaner moves their overflow records.

mod home;

use coreplane_engine::{Engine, Visibility};
use coreplane_scmkv::Scmkv;
use home::{Home, New};
use std::sync::atomic::{AtomicBool, Ordering};

/// A value whose bytes all give the number of its write.
fn value(round: usize, len: usize) -> Vec<u8> {
    vec![round as u8; len]
}

fn is_whole(value: &[u8], len: usize) -> bool {
    value.len() == len && value.iter().all(|byte| *byte == value[0])
}

/// Ends the other threads, even if this thread panics.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Readers of every kind, while one thread overwrites and cleans.
fn read_beside_the_cleaner(read: impl Fn(&Scmkv, &[&[u8]]) + Sync) {
    let home = Home::in_memory();
    // So large that a reader that is slow to let go of pages stops no writer.
    let store = home.create(New::tiny(8192));
    let write = home::write();
    let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    for key in keys {
        let _outcome = store.put(key, &value(0, 3000), &write).expect("put");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ending = Ending(&done);
            for round in 0..2500 {
                let _outcome = store.put(b"small", &[round as u8; 100], &write).expect("put");
                let _outcome =
                    store.put(keys[round % 4], &value(round, 3000), &write).expect("put");
                store.clean().expect("clean");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _ending = Ending(&done);
        while !done.load(Ordering::Relaxed) {
            read(&store, &keys);
        }
    });
}

#[test]
fn one_key_at_a_time() {
    read_beside_the_cleaner(|store, keys| {
        for key in keys {
            let value = store.get(key).expect("get").expect("there");
            assert!(is_whole(&value, 3000));
        }
    });
}

#[test]
fn several_keys_at_once() {
    read_beside_the_cleaner(|store, keys| {
        let mut shown = 0;
        let mut see = |_, record: Option<coreplane_engine::Record<'_>>| {
            let value = record.expect("there").value.to_vec();
            assert!(is_whole(&value, 3000));
            shown += 1;
        };
        store.multi_get(keys, Visibility::Durable, &mut see).expect("multi_get");
        assert_eq!(shown, keys.len());
    });
}

#[test]
fn all_of_them() {
    read_beside_the_cleaner(|store, keys| {
        let mut shown = 0;
        let mut see = |entry: coreplane_engine::Entry<'_>| {
            if entry.key != b"small" {
                let value = entry.record.expect("a record").value.to_vec();
                assert!(is_whole(&value, 3000));
                shown += 1;
            }
        };
        let mut cursor = 0;
        loop {
            cursor = store.iterate(cursor, 100, &mut see).expect("iterate");
            if cursor == 0 {
                break;
            }
        }
        assert!(shown >= keys.len());
    });
}
