//! The changes that a node shows.

use crate::seat::{Seat, alone, early, leader, leader_without, run, run_without, seat};
use coreplane_engine::{Engine, Error};
use coreplane_mvcc::MapKind;
use coreplane_replica::Replica;
use std::time::Duration;

/// The changes that a node shows: their indices and keys.
fn shown(replica: &Replica, since: u64) -> Vec<(u64, Vec<u8>)> {
    let entries = replica.changes_since(since, usize::MAX).expect("changes").into_iter();
    let changes = entries.flat_map(|entry| {
        let keys: Vec<_> =
            entry.changes.changes().map(|it| (entry.index, it.key().to_vec())).collect();
        keys
    });
    changes.collect()
}

#[test]
fn changes_are_shown_on_each_node_once_a_majority_has_them() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    run(&seats, 3);
    let since = seats[first].replica.applied();
    for key in [b"a", b"b", b"a"] {
        let _written = seats[first].replica.put(key, b"1", &early()).expect("put");
    }
    run(&seats, 3);
    let all = shown(&seats[first].replica, since);
    assert_eq!(all.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), [b"a", b"b", b"a"]);
    // The first two share an entry, and both changes of a key are shown.
    assert!(all[0].0 == all[1].0 && all[1].0 < all[2].0);
    for seat in &seats {
        assert_eq!(shown(&seat.replica, since), all);
        assert_eq!(shown(&seat.replica, all[0].0), all[2..]);
    }
    // No node answers the leader: its proposal is not shown, and then another entry takes its place.
    let cut = [first];
    let _open = seats[first].replica.put(b"lost", b"1", &early()).expect("put");
    seats[first].replica.persisted().expect("a turn");
    run_without(&seats, 2, &cut);
    assert_eq!(shown(&seats[first].replica, since), all);
    let second = leader_without(&seats, &cut);
    let _written = seats[second].replica.put(b"kept", b"1", &early()).expect("put");
    run(&seats, 20);
    let later = shown(&seats[first].replica, all[2].0);
    assert_eq!(later.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), [b"kept"]);
    let mut feed = seats[first].replica.watch(all[2].0);
    let next = feed.next_within(Duration::ZERO).expect("changes").expect("one");
    assert_eq!((next.index, next.changes.len()), (later[0].0, 1));
    assert!(feed.next_within(Duration::from_millis(1)).expect("changes").is_none());
    assert_eq!(feed.index(), seats[first].replica.applied());
}

#[test]
fn changes_that_are_gone_are_said_to_be_gone() {
    let seats = [alone(MapKind::List)];
    let replica = &seats[0].replica;
    let since = replica.applied();
    for round in 0..200_u8 {
        let _written = replica.put(b"k", &vec![round; 200_000], &early()).expect("put");
        run(&seats, 2);
    }
    let gone = replica.changes_since(since, 1);
    let Err(Error::HistoryGone { asked, horizon }) = gone else { panic!("{gone:?}") };
    assert!(asked == since && horizon > since && horizon < replica.applied());
    assert_eq!(shown(replica, horizon).len() as u64, replica.applied() - horizon);
    assert!(replica.changes_since(horizon - 1, 1).is_err());
    // A reader that knows a later index than this node waits for it.
    assert!(replica.changes_since(replica.applied() + 9, 1).expect("later").is_empty());
}
