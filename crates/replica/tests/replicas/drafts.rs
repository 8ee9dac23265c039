//! Small writes between two turns share an entry of the log.

use crate::seat::{Seat, alone, early};
use coreplane_engine::{Batch, Clear, Deferred, Engine, Error};
use coreplane_mvcc::MapKind;
use coreplane_replica::Replica;

/// The index of a put.
fn put(replica: &Replica, key: &[u8], len: usize) -> u64 {
    let outcome = replica.put(key, &vec![7; len], &early()).expect("put");
    outcome.written().expect("it was made").sequence
}

#[test]
fn small_writes_share_an_entry_and_a_key_is_in_it_once() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &alone(kind);
        put(replica, b"c", 8);
        replica.persisted().expect("a turn");
        let first = put(replica, b"a", 8);
        let mut batch = Batch::new();
        batch.put(b"b", b"2").delete(b"c");
        assert_eq!(replica.apply(&batch, &early()).expect("batch").sequence, first);
        assert_eq!(put(replica, b"b", 9), first + 1, "its key is in the first");
        assert_eq!(put(replica, b"d", 9), first + 1);
        assert_eq!(put(replica, b"e", 2_000), first + 2, "it is not small");
        assert_eq!(put(replica, b"f", 9), first + 3);
        replica.persisted().expect("a turn");
        assert_eq!(put(replica, b"g", 9), first + 4, "the turn has ended the entry");
        for number in 0..100_u8 {
            put(replica, &[b'n', number], 100);
        }
        replica.persisted().expect("a turn");
        let entries = replica.changes_since(first - 1, usize::MAX).expect("changes");
        let keys: Vec<usize> = entries.iter().map(|entry| entry.changes.len()).collect();
        assert_eq!(keys[..4], [3, 2, 1, 1], "{kind:?}");
        let (least, most) = (keys[5..keys.len() - 1].iter().min(), keys.iter().max());
        assert!(least >= Some(&20) && most <= Some(&27), "{kind:?}: {keys:?}");
        let last = entries.last().map_or(0, |entry| entry.index);
        for number in 0..200_u8 {
            put(replica, &[b'm', number], 0);
        }
        replica.persisted().expect("a turn");
        let entries = replica.changes_since(last, usize::MAX).expect("changes");
        let most = entries.iter().map(|entry| entry.changes.len()).max();
        assert_eq!(most, Some(64), "{kind:?}: small changes");
        let value = |key: &[u8]| replica.with_map(|map| map.get(key)).expect("get");
        assert_eq!(value(b"b").map(|it| it.len()), Some(9));
        assert_eq!((value(b"c"), value(&[b'n', 99]).map(|it| it.len())), (None, Some(100)));
    }
}

/// A clear deletes what was proposed before it, be it in an entry or not.
#[test]
fn a_clear_is_behind_the_draft() {
    let Seat { replica, .. } = &alone(MapKind::List);
    put(replica, b"a", 8);
    let mut clear = Clear::default();
    assert!(replica.clear_step(&mut clear).expect("a step").is_some());
    put(replica, b"later", 8);
    replica.persisted().expect("a turn");
    let value = |key: &[u8]| replica.with_map(|map| map.get(key)).expect("get");
    assert_eq!((value(b"a"), value(b"later").map(|it| it.len())), (None, Some(8)));
}

/// A pool that is full refuses puts as before, takes deletes, and goes on.
#[test]
fn a_full_pool_refuses_what_has_no_room() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &alone(kind);
        let mut count = 0_u32;
        let refused = loop {
            match replica.put(&count.to_be_bytes(), &[7; 100], &early()) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 100_000, "{kind:?}: it is never full");
            if count.is_multiple_of(20) {
                replica.persisted().expect("a turn");
            }
        };
        assert!(matches!(refused, Error::NoSpace { .. }), "{kind:?}: {refused}");
        for number in 0..count {
            let deleted = replica.delete(&number.to_be_bytes(), &early());
            assert!(deleted.is_ok(), "{kind:?}: {deleted:?}");
            if number.is_multiple_of(20) {
                replica.persisted().expect("a turn");
            }
        }
        replica.persisted().expect("a turn");
        assert_eq!(replica.len().expect("len"), 0, "{kind:?}");
        put(replica, b"again", 100);
        replica.persisted().expect("a turn");
    }
}
