//! Puts that are made on several devices side by side: whatever one of them answers, all have the same
//! records afterwards; and no two puts wait for each other.

use crate::shelf::sample::{created, device as at};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Error, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, MemberState};
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: [Kind; 2] = [Kind::Bptree, Kind::Scmkv];

fn put(matrix: &Matrix, key: u64, value: &[u8]) -> Result<(), Error> {
    matrix.put(&key.to_le_bytes(), value, &WriteOptions::default()).map(|_| ())
}

/// All devices of the first group have this value.
fn check(shelf: &Shelf, devices: u8, key: u64, value: Option<&[u8]>) {
    for device in 0..devices {
        let found = shelf.engine(at(device)).get(&key.to_le_bytes()).expect("get");
        assert_eq!(found.as_deref(), value, "{key} on {device}");
    }
}

/// One device has made a put and reports that it has not, or does not report that it is durable: it is left
/// out, or has the same as the others.
#[test]
fn whatever_a_device_answers_all_have_the_same() {
    for kind in KINDS {
        let mut kept = 0;
        for device in 0..3 {
            let shelf = Shelf::new(kind, 24 << 20);
            let matrix = created(&shelf, (1, 3), Ack::All);
            let gate = shelf.gate(at(device));
            for key in 0..12_u64 {
                put(&matrix, key, b"old").expect("put");
                let answer = if key < 6 { &gate.puts_early } else { &gate.spoils_puts };
                answer.store(1, Ordering::SeqCst);
                put(&matrix, key, b"new").expect("it is made anew");
                let current = matrix.member_states();
                for other in (0..3).filter(|it| current.contains(&(at(*it), MemberState::Current)))
                {
                    let own = shelf.engine(at(other)).get(&key.to_le_bytes()).expect("get");
                    assert_eq!(
                        own.as_deref(),
                        Some(&b"new"[..]),
                        "{kind:?}, {device}: {key} on {other}"
                    );
                    kept += 1;
                }
                assert_eq!(
                    matrix.get(&key.to_le_bytes()).expect("get").as_deref(),
                    Some(&b"new"[..])
                );
            }
            assert_eq!(matrix.len().expect("len"), 12);
            matrix.close().expect("close");
        }
        assert!(kept >= 3 * (6 * 3 + 6 * 2), "{kind:?}: {kept}");
    }
}

/// One device has no space: nothing is made anywhere, and the earlier record stays.
#[test]
fn what_one_device_refuses_none_has() {
    for kind in KINDS {
        let shelf = Shelf::new(kind, 24 << 20);
        let matrix = created(&shelf, (1, 3), Ack::All);
        put(&matrix, 1, b"old").expect("put");
        for device in 0..3 {
            let gate = shelf.gate(at(device));
            gate.is_full.store(true, Ordering::SeqCst);
            for key in [1, 2] {
                let refused = put(&matrix, key, b"new");
                assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
            }
            gate.is_full.store(false, Ordering::SeqCst);
            check(&shelf, 3, 1, Some(b"old"));
            check(&shelf, 3, 2, None);
        }
        assert_eq!(matrix.get(&2_u64.to_le_bytes()).expect("get"), None);
        assert_eq!(matrix.len().expect("len"), 1);
        put(&matrix, 2, b"new").expect("there is space");
        check(&shelf, 3, 2, Some(b"new"));
        matrix.close().expect("close");
    }
}

/// Where a fence is a sync each device has its own, one after the other.
#[test]
fn on_files_all_have_it_too() {
    for kind in KINDS {
        let shelf = Shelf::on_files(kind, 24 << 20, false);
        let matrix = created(&shelf, (1, 2), Ack::All);
        for key in 0..20 {
            put(&matrix, key, b"value").expect("put");
            check(&shelf, 2, key, Some(b"value"));
        }
        matrix.close().expect("close");
    }
}

/// Several threads put the same keys, each put waiting for two or three devices, with so little space that it
/// is cleaned all the time: it ends, and all devices are equal.
#[test]
fn nobody_waits_for_ever() {
    const KEYS: u64 = 300;
    for kind in KINDS {
        for ack in [Ack::All, Ack::Majority] {
            let size = if kind == Kind::Bptree { 3 << 20 } else { 24 << 20 };
            let shelf = Shelf::new(kind, size);
            let matrix = created(&shelf, (1, 3), ack);
            let puts = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (matrix, puts) = (&matrix, &puts);
                    scope.spawn(move || {
                        for round in 0..3000_u64 {
                            let key = (round * 7 + thread * 13) % KEYS;
                            let value = [thread as u8; 1000];
                            let value = &value[..100 + (round as usize * 31) % 900];
                            match put(matrix, key, value) {
                                Ok(()) => drop(puts.fetch_add(1, Ordering::Relaxed)),
                                Err(Error::NoSpace { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    });
                }
            });
            assert!(puts.into_inner() > 6000, "{kind:?}, {ack:?}");
            matrix.sync().expect("those that follow, too");
            for key in 0..KEYS {
                let found = matrix.get(&key.to_le_bytes()).expect("get");
                let current = matrix.member_states();
                for device in (0..3).filter(|it| current.contains(&(at(*it), MemberState::Current)))
                {
                    let own = shelf.engine(at(device)).get(&key.to_le_bytes()).expect("get");
                    assert_eq!(own, found, "{kind:?}, {ack:?}: {key} on {device}");
                }
            }
            matrix.close().expect("close");
        }
    }
}
