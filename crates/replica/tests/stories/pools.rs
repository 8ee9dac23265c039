//! Pools that are wiped, put back or foreign: whose messages count, and which pools are filled anew.

use crate::table::{LEN, Seat, Table};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::{Envelope, MemberChange, Role, Settings};

/// The place of a node that claims to be another one.
const STRANGER: u64 = 9;

/// A voter is wiped. It is not counted and its vote does not count before it is filled; then it votes again.
#[test]
fn a_node_that_was_wiped_votes_for_nobody_until_it_is_filled() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        // 1 and 2 have the entry, and 3 does not.
        table.part(&[3], &[1, 2]);
        let number = table.put(1, b"acknowledged");
        while !table.seats[&1].settled.contains(&number) {
            assert!(table.deliver());
        }
        // 2 is wiped, and 1 is gone: 3 must not lead with the vote of the new 2.
        table.seat(1).cut();
        table.seat(2).wipe(777);
        table.letters.clear();
        table.cut.clear();
        table.run(300);
        assert_eq!(table.leader(), None);
        table.seat(1).start();
        table.run(200);
        let status = table.node(2).status();
        assert_eq!(status.members.voters, [1, 2, 3], "{status:?}");
        assert_eq!(table.value(2).as_deref(), Some(&b"acknowledged"[..]));
        table.lead(2);
        assert_eq!(table.value(3).as_deref(), Some(&b"acknowledged"[..]));
    }
}

/// A voter's pool is put back as it was before an earlier start.
#[test]
fn a_pool_that_was_put_back_is_filled_anew() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        table.put(1, b"old");
        table.run(5);
        let copy = table.seat(2).copy();
        table.seat(2).cut();
        table.seat(2).start();
        table.run(20);
        table.part(&[3], &[1, 2]);
        table.lead(1);
        let number = table.put(1, b"acknowledged");
        while !table.seats[&1].settled.contains(&number) {
            assert!(table.deliver());
        }
        table.seat(1).cut();
        table.seat(2).put_back(copy);
        table.letters.clear();
        table.cut.clear();
        table.run(300);
        assert_eq!(table.leader(), None, "3 leads with the vote of a copy");
        table.seat(1).start();
        table.run(200);
        assert_eq!(table.node(2).status().members.voters, [1, 2, 3]);
        assert_eq!(table.value(2).as_deref(), Some(&b"acknowledged"[..]));
    }
}

/// Five nodes, of which 2 was wiped and filled again while 5 was cut off.
fn with_a_pool_unknown_to_5(kind: MapKind) -> Table {
    let mut table = Table::new(kind, (5, 5));
    table.lead(1);
    table.run(5);
    table.part(&[5], &[1, 2, 3, 4]);
    table.seat(2).wipe(777);
    table.letters.clear();
    table.run(200);
    table
}

/// A node that lags still knows the pool that another one had before it was wiped. The new pool must not be given up
/// for that.
#[test]
fn a_node_that_lags_does_not_know_better() {
    for kind in MapKind::ALL {
        let mut table = with_a_pool_unknown_to_5(kind);
        table.put(1, b"after");
        table.run(5);
        let status = table.node(2).status();
        assert_eq!((status.members.voters.len(), status.members.joining.len()), (5, 0));
        assert_eq!(table.value(2).as_deref(), Some(&b"after"[..]));
        // 2 starts again and greets all nodes, among them 5, which knows only the earlier pool.
        table.seat(2).cut();
        table.seat(2).start();
        table.cut.retain(|pair| *pair != (2, 5) && *pair != (5, 2));
        table.run(50);
        assert_eq!(table.node(2).installed(), 0, "it was given up");
        assert_eq!(table.value(2).as_deref(), Some(&b"after"[..]));
    }
}

/// A node that lags follows a leader whose pool it does not know yet, since another one had that number before.
#[test]
fn a_node_that_lags_follows_a_pool_that_took_anothers_place() {
    for kind in MapKind::ALL {
        let mut table = with_a_pool_unknown_to_5(kind);
        assert_eq!(table.node(2).status().members.voters, [1, 2, 3, 4, 5]);
        table.lead(2);
        table.put(2, b"after");
        table.cut.clear();
        table.run(100);
        assert_eq!(table.leader(), Some(2), "of {kind:?}");
        assert_eq!(table.value(5).as_deref(), Some(&b"after"[..]), "of {kind:?}");
        // From then on it counts.
        table.part(&[1, 3], &[2, 4, 5]);
        let number = table.put(2, b"more");
        table.run(5);
        assert!(table.seats[&2].settled.contains(&number), "of {kind:?}");
    }
}

/// A node that was removed comes back with a new pool, and with the earlier peers: it forms no cluster with them, and
/// is added like any other.
#[test]
fn a_node_that_was_removed_forms_no_cluster_of_its_own() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (4, 4));
        table.lead(1);
        table.change(1, &[MemberChange::Remove(4)]);
        table.run(20);
        table.put(1, b"after");
        table.seat(4).wipe(777);
        table.letters.clear();
        table.run(200);
        assert_eq!(table.node(4).status().role, Role::Installing);
        assert_eq!(table.node(1).status().members.voters, [1, 2, 3]);
        let leader = table.leader().expect("a leader");
        table.change(leader, &[MemberChange::Join(4)]);
        table.run(100);
        assert_eq!(table.node(4).status().members.voters, [1, 2, 3, 4]);
        assert_eq!(table.value(4).as_deref(), Some(&b"after"[..]));
    }
}

/// The leader takes a pool that was put back for the one that it knows. Its messages must be ignored until the node
/// knows that it is a copy: otherwise the node would take an entry of its own for a committed one.
#[test]
fn a_copy_does_not_apply_what_was_never_committed() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(3);
        table.put(3, b"before");
        table.run(5);
        table.part(&[3], &[1, 2]);
        table.put(3, b"own");
        let copy = table.seat(3).copy();
        // Another leader has an entry of its own at that index, and no more.
        table.run(100);
        let leader = table.leader().expect("a leader");
        assert_ne!(leader, 3);
        table.seat(3).cut();
        table.seat(3).start();
        table.cut.clear();
        table.run(60);
        let status = table.node(3).status();
        assert_eq!(status.applied, table.node(leader).status().applied);
        table.letters.clear();
        table.seat(3).put_back(copy);
        assert!(table.node(3).status().newest >= status.applied, "the copy has an entry there");
        // Messages of 3 are late.
        table.part(&[3], &[1, 2]);
        table.cut.remove(&(leader, 3));
        for _ in 0..10 {
            table.tick(leader);
            while table.deliver() {}
            assert_eq!(table.value(3).as_deref(), Some(&b"before"[..]));
        }
        table.cut.clear();
        table.run(200);
        assert_eq!(table.node(3).installed(), 1);
        assert_eq!(table.value(3).as_deref(), Some(&b"before"[..]));
    }
}

/// 1 and 3 hear of a start, and the power of 2 fails before they answer. The next start must not look like a copy.
#[test]
fn a_start_is_durable_before_it_is_told_of() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        for _ in 0..2 {
            table.seat(2).cut();
            table.seat(2).start();
            (0..5).for_each(|_| table.tick(2));
            table.deliver_of(2);
        }
        table.run(100);
        assert_eq!(table.node(2).installed(), 0, "it was taken for a copy");
    }
}

/// 1 and 3 hear of a start of 2, and their power fails. They still recognize an earlier copy.
#[test]
fn a_start_that_was_heard_of_is_remembered() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        let copy = table.seat(2).copy();
        table.seat(2).cut();
        table.seat(2).start();
        (0..5).for_each(|_| table.tick(2));
        table.deliver_of(2);
        for id in [1, 3] {
            table.seat(id).cut();
            table.seat(id).start();
        }
        table.seat(2).put_back(copy);
        table.run(200);
        assert_eq!(table.node(2).installed(), 1, "the copy is taken for the pool");
    }
}

/// A copy that was told so starts again, more often than the pool has since the copy was made.
#[test]
fn a_pool_that_was_given_up_is_given_up_after_a_cut() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        let copy = table.seat(2).copy();
        table.seat(2).cut();
        table.seat(2).start();
        table.run(20);
        table.letters.clear();
        table.seat(2).put_back(copy);
        for _ in 0..20 {
            table.tick(2);
            while table.deliver() {}
        }
        assert_eq!(table.node(2).status().role, Role::Installing, "the copy is taken for the pool");
        table.letters.clear();
        table.seat(2).cut();
        table.seat(2).start();
        table.run(200);
        assert_eq!(table.node(2).installed(), 1, "the copy is taken for the pool");
    }
}

/// A wiped node hears from the leader, and no snapshot arrives: it is no voter before it has one.
#[test]
fn a_node_that_is_not_filled_is_no_voter() {
    const PAGE: u8 = 2;
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        table.seat(2).wipe(777);
        table.letters.clear();
        for _ in 0..100 {
            [1, 2, 3].into_iter().for_each(|id| table.tick(id));
            while table.letters.iter().any(|letter| letter.2[5] != PAGE) {
                table.letters.retain(|letter| letter.2[5] != PAGE);
                table.deliver();
            }
        }
        let members = table.node(1).status().members;
        assert_eq!((members.voters, members.joining), (vec![1, 3], vec![2]));
        table.run(100);
        assert_eq!(table.node(1).status().members.voters, [1, 2, 3]);
        assert_eq!(table.value(2).as_deref(), Some(&b"before"[..]));
    }
}

/// A node is started with the peers of another cluster. Neither cluster loses anything.
#[test]
fn a_node_of_another_cluster_keeps_its_pool() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        let mut other = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.identity, it.life) = (it.identity + 100, it.life + 100);
        });
        for (table, value) in [(&mut table, b"here"), (&mut other, b"else")] {
            table.lead(1);
            // The applied state of a node is durable with the next entry.
            table.put(1, value);
            table.run(5);
            table.put(1, value);
            table.run(5);
        }
        // The other cluster has changed its members more often.
        other.change(1, &[MemberChange::Learner(3)]);
        other.run(10);
        for table in [&mut table, &mut other] {
            table.seat(2).cut();
            table.letters.clear();
        }
        std::mem::swap(table.seat(2), other.seat(2));
        for table in [&mut table, &mut other] {
            table.seat(2).start();
            table.run(100);
        }
        assert_eq!(other.value(2).as_deref(), Some(&b"here"[..]));
        assert_eq!(table.value(2).as_deref(), Some(&b"else"[..]));
        for table in [&mut table, &mut other] {
            assert_eq!(table.node(2).installed(), 0, "it has given up its pool");
            table.seat(2).cut();
            table.letters.clear();
        }
        std::mem::swap(table.seat(2), other.seat(2));
        for table in [&mut table, &mut other] {
            table.seat(2).start();
            table.run(100);
            assert_eq!(table.node(2).installed(), 0);
            table.lead(2);
        }
        assert_eq!(table.value(2).as_deref(), Some(&b"here"[..]));
    }
}

/// A new pool has the number of an active member.
#[test]
fn a_stranger_does_not_take_the_place_of_a_member() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        let stranger = Table::with(kind, (3, 3), Model::X86, |it| it.identity += 100);
        let stranger = stranger.seats.into_iter().find(|it| it.0 == 2).expect("a seat").1;
        table.seats.insert(STRANGER, stranger);
        for _ in 0..100 {
            // It claims to be 2, and receives nothing.
            table.tick(STRANGER);
            table.run(1);
        }
        let status = table.node(2).status();
        assert_eq!((status.members.voters.len(), status.members.joining.len()), (3, 0));
        // It is gone; much later the member is away for a while.
        table.seats.remove(&STRANGER);
        table.run(5);
        table.part(&[2], &[1, 3]);
        table.run(100);
        table.cut.clear();
        table.run(30);
        let status = table.node(1).status();
        assert_eq!((status.members.voters.len(), status.members.joining.len()), (3, 0));
        assert_eq!(table.node(2).installed(), 0);
    }
}

/// A pool with the number of a member was heard of, and is gone. Much later the member is away for a while, and
/// another node is elected meanwhile.
#[test]
fn a_stranger_of_the_past_does_not_take_the_place_of_a_member() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        let stranger = Table::with(kind, (3, 3), Model::X86, |it| it.identity += 100);
        let stranger = stranger.seats.into_iter().find(|it| it.0 == 3).expect("a seat").1;
        table.seats.insert(STRANGER, stranger);
        for _ in 0..20 {
            table.tick(STRANGER);
            table.run(1);
        }
        table.seats.remove(&STRANGER);
        table.run(5);
        table.part(&[3], &[1, 2]);
        table.lead(2);
        table.run(100);
        table.cut.clear();
        table.run(30);
        assert_eq!(table.leader(), Some(2));
        let status = table.node(2).status();
        assert_eq!((status.members.voters.len(), status.members.joining.len()), (3, 0));
        assert_eq!(table.node(3).installed(), 0, "of {kind:?}: it was given up");
    }
}

/// All peers of a new cluster have to be present, and new, before the first leader is elected.
#[test]
fn a_new_cluster_waits_for_all_its_nodes() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.seat(3).cut();
    table.run(100);
    assert_eq!(table.leader(), None);
    table.seat(3).start();
    table.run(100);
    assert!(table.leader().is_some());
}

/// Runs the nodes; the one that stops is taken away, and why is returned.
fn why_one_stops(table: &mut Table, id: u64) -> String {
    for _ in 0..50 {
        let all: Vec<u64> = table.seats.keys().copied().collect();
        all.into_iter().for_each(|id| table.tick(id));
        while !table.letters.is_empty() {
            let (_, to, bytes) = table.letters.remove(0);
            if table.seat(to).node.is_none() {
                continue;
            }
            let envelope = Envelope::decode(&bytes).expect("what was sent");
            if let Err(error) = table.node(to).step(envelope) {
                assert_eq!(to, id, "{error}");
                table.seat(to).node = None;
                return error.to_string();
            }
            table.hear(to);
        }
    }
    panic!("{id} does not stop");
}

/// A write with a key that only some of the maps take would stop the others.
#[test]
fn a_node_whose_map_takes_other_keys_takes_no_part() {
    let mut table = Table::new(MapKind::List, (3, 3));
    let settings = table.seat(3).settings.clone();
    let tree = || Seat::new(MapKind::CowTree, settings.clone(), Model::X86, LEN);
    table.seats.insert(3, tree());
    let why = why_one_stops(&mut table, 3);
    assert!(why.contains("the same kind of map"), "{why}");
    table.run(50);
    assert_eq!(table.leader(), None, "two of three form no cluster");
    // With the right pool they do, and a node that comes with another one later changes nothing.
    table.seats.insert(3, Seat::new(MapKind::List, settings.clone(), Model::X86, LEN));
    table.lead(1);
    let settings = Settings { identity: 777, life: 5, ..settings.clone() };
    table.seats.insert(3, Seat::new(MapKind::CowTree, settings, Model::X86, LEN));
    let why = why_one_stops(&mut table, 3);
    assert!(why.contains("the same kind of map"), "{why}");
    table.put(1, b"value");
    table.run(5);
    assert_eq!(table.value(2).as_deref(), Some(&b"value"[..]));
}

/// A process gives its pool up twice. What was said of the pool in between is not true of the one after.
#[test]
fn a_pool_that_is_given_up_again_gets_another_identity() {
    let identity = |table: &mut Table| {
        while !table.letters.iter().any(|it| it.0 == 3) {
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        let (_, _, bytes) = table.letters.iter().find(|it| it.0 == 3).unwrap();
        u64::from_le_bytes(bytes[14..22].try_into().unwrap())
    };
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    let copy = table.seat(3).copy();
    table.seat(3).cut();
    table.seat(3).start();
    table.run(20);
    table.seat(3).put_back(copy);
    table.run(200);
    assert_eq!(table.node(3).installed(), 1);
    let first = identity(&mut table);
    // Another pool takes its place while it is cut off, until it is back.
    let settings = Settings { identity: 777, life: 50, ..table.seat(3).settings.clone() };
    let other = Seat::new(MapKind::List, settings, Model::X86, LEN);
    let seat = table.seats.insert(3, other).unwrap();
    table.run(200);
    assert_eq!(table.node(1).status().members.voters, [1, 2, 3]);
    table.seats.insert(3, seat);
    table.run(200);
    assert_eq!(table.node(3).installed(), 2);
    assert_ne!(identity(&mut table), first);
}
