//! A medium whose sync takes long, or does not return.

use crate::table::Table;
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::{Envelope, MemberChange, Role};

/// Ticks in which a leader with a medium that has stalled gives the leadership up, and another node is elected.
const LONG: usize = 400;

/// The medium of this node completes its sync.
fn sync(table: &mut Table, id: u64) {
    for _ in 0..3 {
        table.node(id).with_map(|map| map.wait_durable(map.commit().unwrap()).unwrap());
        table.node(id).flush().unwrap();
        table.hear(id);
    }
}

/// A tick of all nodes, of which the media of these work.
pub(crate) fn run(table: &mut Table, ticks: usize, working: &[u64]) {
    for _ in 0..ticks {
        let all: Vec<u64> = table.seats.keys().copied().collect();
        all.into_iter().for_each(|id| table.tick(id));
        working.iter().for_each(|id| sync(table, *id));
        while table.deliver() {
            if table.letters.is_empty() {
                working.iter().for_each(|id| sync(table, *id));
            }
        }
    }
}

/// The heartbeats of a leader do not wait for its medium.
#[test]
fn a_leader_whose_medium_has_stalled_leads_no_more() {
    let mut table = Table::with(MapKind::List, (3, 3), Model::File, |_| {});
    run(&mut table, 60, &[1, 2, 3]);
    let first = table.leader().expect("a leader");
    table.put(first, b"before");
    run(&mut table, 5, &[1, 2, 3]);
    let others: Vec<u64> = (1..=3).filter(|id| *id != first).collect();
    table.seat(first).sim.stall_syncs();
    let lost = table.put(first, b"stalled");
    run(&mut table, LONG, &others);
    assert!(!table.seats[&first].settled.contains(&lost));
    assert_eq!(table.node(first).status().role, Role::Follower);
    let next = table.leader().expect("another leader");
    assert_eq!(table.node(first).status().leader, Some(next));
    let number = table.put(next, b"after");
    run(&mut table, 5, &others);
    assert!(table.seats[&next].settled.contains(&number), "the others go on without it");
    run(&mut table, 20, &[1, 2, 3]);
    assert_eq!(table.value(first).as_deref(), Some(&b"after"[..]));
}

/// A snapshot for a follower that lags waits for no sync of its leader.
#[test]
fn a_leader_whose_medium_has_stalled_sends_a_snapshot_and_leads_no_more() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::File, |it| it.ring_bytes = 1);
        run(&mut table, 60, &[1, 2, 3]);
        let first = table.leader().expect("a leader");
        let (other, behind) = (first % 3 + 1, (first + 1) % 3 + 1);
        table.part(&[behind], &[first, other]);
        for _ in 0..5 {
            table.put(first, b"before");
            run(&mut table, 5, &[1, 2, 3]);
        }
        table.seat(first).sim.stall_syncs();
        let lost = table.put(first, b"stalled");
        table.cut.clear();
        run(&mut table, 60, &[other, behind]);
        assert_eq!(table.node(behind).installed(), 1, "of {kind:?}");
        assert!(!table.seats[&first].settled.contains(&lost), "of {kind:?}: its medium has not");
        run(&mut table, LONG, &[other, behind]);
        assert_eq!(table.node(first).status().role, Role::Follower, "of {kind:?}");
        assert!(table.leader().is_some_and(|leader| leader != first), "of {kind:?}");
    }
}

/// Nobody can take its place: it goes on when its medium does.
#[test]
fn a_leader_without_whom_none_is_elected_leads_on_although_its_medium_has_stalled() {
    for nodes in [1, 2] {
        let mut table = Table::with(MapKind::List, (nodes, nodes), Model::File, |_| {});
        let all: Vec<u64> = (1..=nodes).collect();
        run(&mut table, 60, &all);
        let leader = table.leader().expect("a leader");
        table.seat(leader).sim.stall_syncs();
        let number = table.put(leader, b"stalled");
        let others: Vec<u64> = all.iter().copied().filter(|id| *id != leader).collect();
        run(&mut table, LONG, &others);
        assert!(!table.seats[&leader].settled.contains(&number));
        assert_eq!(table.node(leader).status().role, Role::Leader);
        run(&mut table, 5, &all);
        assert!(table.seats[&leader].settled.contains(&number));
    }
}

/// The parts of a long message arrive all the same.
#[test]
fn a_node_whose_medium_has_failed_answers_no_parts() {
    let mut table = Table::with(MapKind::List, (3, 3), Model::File, |_| {});
    run(&mut table, 60, &[1, 2, 3]);
    let leader = table.leader().expect("a leader");
    let follower = leader % 3 + 1;
    let hear = |table: &mut Table| {
        table.node(follower).hear_part(leader);
        table.node(follower).take_output().envelopes.len()
    };
    assert_eq!(hear(&mut table), 1);
    table.seat(follower).sim.fail_syncs();
    table.put(leader, b"failed");
    let mut failed = false;
    for (_, to, bytes) in std::mem::take(&mut table.letters) {
        if to == follower {
            let envelope = Envelope::decode(&bytes).expect("what was sent");
            failed |= table.node(follower).step(envelope).is_err();
        }
    }
    failed |= table
        .node(follower)
        .with_map(|map| map.commit().and_then(|it| map.wait_durable(it)).is_err());
    let _output = table.node(follower).take_output();
    assert!(failed && table.node(follower).flush().is_err());
    assert_eq!(hear(&mut table), 0);
}

/// The other one was removed. The node that remains has applied that, and its last entries are not durable yet.
#[test]
fn the_only_voter_is_not_elected_before_its_entries_are_durable() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (2, 2), Model::File, |_| {});
        run(&mut table, 60, &[1, 2]);
        if table.leader() != Some(1) {
            table.node(2).transfer_leadership(1);
            table.flush(2);
            run(&mut table, 20, &[1, 2]);
        }
        [1, 2].into_iter().for_each(|id| table.seat(id).sim.stall_syncs());
        // 1 proposes the removal, and does not hear that 2 has the entry.
        table.change(1, &[MemberChange::Remove(2)]);
        table.deliver_of(1);
        while table.node(1).status().role == Role::Leader {
            table.tick(1);
            [1, 2].into_iter().for_each(|id| sync(&mut table, id));
            table.letters.clear();
        }
        while table.node(2).status().role != Role::Leader {
            if !table.deliver() {
                table.tick(2);
            }
            if table.node(2).status().role != Role::Leader {
                [1, 2].into_iter().for_each(|id| sync(&mut table, id));
            }
        }
        // 2 leads until it has applied the removal; it has sent one more entry by then.
        table.put(2, b"of the other");
        sync(&mut table, 2);
        let newest = table.node(2).status().newest;
        while table.node(1).status().members.voters != [1] {
            assert!(table.deliver());
            if table.node(1).status().newest < newest {
                sync(&mut table, 1);
            }
        }
        assert_eq!(table.node(1).status().newest, newest, "of {kind:?}");
        (0..60).for_each(|_| table.tick(1));
        assert_ne!(table.node(1).status().role, Role::Leader, "of {kind:?}");
        run(&mut table, 60, &[1]);
        let number = table.put(1, b"after");
        run(&mut table, 5, &[1]);
        assert!(table.seats[&1].settled.contains(&number), "of {kind:?}");
    }
}
