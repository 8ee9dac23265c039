//! Stories of a cluster, message by message: cases that a random world meets too seldom.

mod pools;
mod presence;
mod promise;
mod room;
mod stall;
mod table;
mod terms;
mod transfers;

use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_replica::{Envelope, MemberChange, Node, Role, Settings, map_options};
use std::sync::Arc;
use table::Table;

/// The offset of the message kind in an envelope; the byte behind it states whether the message refuses.
const KIND: usize = 54;
const VOTE: u8 = 5;
const VOTED: u8 = 6;

#[test]
fn a_node_that_joins_a_young_cluster_learns_who_is_in_it() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 4));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        table.change(1, &[MemberChange::Voter(4)]);
        table.run(30);
        assert_eq!(table.node(4).status().members, table.node(1).status().members);
        table.part(&[4], &[1, 2, 3]);
        table.run(60);
        assert_ne!(table.node(4).status().role, Role::Leader, "of itself alone");
    }
}

/// A voter applies the beginning of a change of members, gets the entry that ends it, and acknowledges it; then its
/// power fails. It must not stand for election among the earlier voters.
#[test]
fn a_change_of_members_is_durable_before_what_is_behind_it() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 4), Model::X86, |it| it.ring_bytes = 1);
        table.lead(2);
        table.change(2, &[MemberChange::Learner(4)]);
        table.run(30);
        table.put(2, b"before");
        table.run(10);
        table.change(2, &[MemberChange::Learner(3), MemberChange::Voter(4)]);
        table.part(&[3], &[1, 2, 4]);
        let joint = table.node(2).status().newest;
        while table.node(2).status().applied < joint {
            assert!(table.deliver());
        }
        // Node 1 learns that the change has begun together with the entry that ends it.
        table.letters.retain(|(_, to, _)| *to != 1);
        table.put(2, b"meanwhile");
        while table.node(1).status().newest <= joint {
            assert!(table.deliver());
        }
        table.seat(1).cut();
        table.run(10);
        table.part(&[1], &[2, 4]);
        table.seat(1).start();
        table.cut.retain(|pair| *pair != (1, 3) && *pair != (3, 1));
        for _ in 0..100 {
            table.tick(1);
            table.tick(3);
            while table.deliver() {}
            assert_ne!(table.node(1).status().role, Role::Leader, "of the voters of before");
        }
        let number = table.put(2, b"after");
        table.run(10);
        assert!(table.seats[&2].settled.contains(&number));
    }
}

#[test]
fn a_proposal_that_waits_beside_a_change_of_members_is_made() {
    let mut table = Table::new(MapKind::List, (3, 4));
    table.lead(1);
    table.change(1, &[MemberChange::Learner(3), MemberChange::Voter(4)]);
    for _ in 0..table.letters.len() {
        table.deliver();
    }
    let answers = std::mem::take(&mut table.letters);
    let mut batch = Batch::new();
    batch.put(b"k", b"v");
    let number = table.node(1).propose(&batch, None).unwrap().number;
    table.letters = answers;
    table.run(20);
    assert!(table.seats[&1].settled.contains(&number));
}

#[test]
fn a_cluster_has_so_many_nodes_and_no_more() {
    let mut table = Table::new(MapKind::List, (3, 8));
    table.lead(1);
    for id in 4..=7 {
        table.change(1, &[MemberChange::Learner(id)]);
        table.run(3);
    }
    let refused = |table: &mut Table, changes: &[MemberChange]| {
        let refused = table.node(1).propose_members(changes);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    };
    refused(&mut table, &[MemberChange::Learner(8)]);
    refused(&mut table, &[]);
    table.run(3);
    assert_eq!(table.node(3).status().members.learners.len(), 4);
}

#[test]
fn what_no_map_takes_is_refused_before_it_is_an_entry() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    let mut batch = Batch::new();
    batch.put(&[7; 4000], b"v");
    let refused = table.node(1).propose(&batch, None);
    assert!(matches!(refused, Err(Error::KeyTooLong { .. })), "{refused:?}");
    let mut batch = Batch::new();
    batch.put(b"k", &vec![0; 2 << 20]);
    let refused = table.node(1).propose(&batch, None);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    table.put(1, b"v");
    table.run(3);
    assert_eq!(table.value(3).as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_cut_while_a_cluster_is_formed_is_none() {
    let options = map_options(&Options { background: false, ..Options::default() });
    for kind in MapKind::ALL {
        for seed in 0..120 {
            let (len, page_size) = (1 << 20, 4096);
            let sim =
                Sim::new(&SimOptions { len, max_len: len, page_size, ..SimOptions::default() });
            let sim = sim.unwrap();
            let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options).unwrap();
            let settings = Settings { peers: vec![1, 2, 3], ..Settings::default() };
            let events = sim.events();
            let node = Node::open(Box::new(map), settings.clone()).unwrap();
            let at = seed as usize % (sim.fences_since(events) + 1);
            let eviction = if seed < 20 { Eviction::Everything } else { Eviction::Seeded(seed) };
            let image = sim.crash_at_fence(events, at, eviction);
            drop(node);
            let sim = image.reopen().unwrap();
            let map = LogMap::simulated_open(kind, Arc::clone(sim.space()), &options).unwrap();
            let node = Node::open(Box::new(map), settings).unwrap();
            assert_eq!(node.status().members.voters, [1, 2, 3], "seed {seed} of {kind:?}");
        }
    }
}

/// The only voter becomes leader in the very step in which it raises its term; where durability is a sync, that term
/// is not written yet.
#[test]
fn the_only_voter_says_nothing_in_a_term_that_is_not_durable() {
    let mut table = Table::with(MapKind::List, (1, 2), Model::File, |_| {});
    fn sync(table: &mut Table, id: u64) {
        for _ in 0..6 {
            table.node(id).with_map(|map| map.wait_durable(map.commit().unwrap()).unwrap());
            table.node(id).flush().unwrap();
            table.hear(id);
        }
    }
    fn round(table: &mut Table) {
        for id in [1, 2] {
            table.tick(id);
            sync(table, id);
        }
        while table.deliver() {
            [1, 2].into_iter().for_each(|id| sync(table, id));
        }
    }
    (0..30).for_each(|_| round(&mut table));
    table.put(1, b"before");
    round(&mut table);
    table.change(1, &[MemberChange::Learner(2)]);
    (0..40).for_each(|_| round(&mut table));
    table.seat(1).cut();
    table.seat(1).start();
    const HELLO: u8 = 4;
    let is_new =
        |letters: &[(u64, u64, Vec<u8>)]| letters.iter().any(|it| it.0 == 1 && it.2[5] != HELLO);
    while table.node(1).status().role != Role::Leader {
        table.tick(1);
    }
    // Nothing that it sends now is durable.
    table.put(1, b"of the first life");
    assert!(!is_new(&table.letters), "it speaks in a term that is not durable");
    while table.deliver() {
        sync(&mut table, 2);
    }
    table.seat(1).cut();
    table.letters.clear();
    table.seat(1).start();
    (0..40).for_each(|_| round(&mut table));
    table.put(1, b"of the second life");
    (0..20).for_each(|_| round(&mut table));
    assert_eq!(table.node(1).status().applied, table.node(2).status().applied);
    assert_eq!(table.value(1), table.value(2));
}

/// Of three nodes, one is gone, and one installs a snapshot and knows a newer term than the third.
#[test]
fn a_node_that_installs_tells_of_a_newer_term() {
    let mut table = Table::with(MapKind::List, (3, 3), Model::X86, |it| {
        (it.ring_bytes, it.page_bytes) = (1, 1);
    });
    table.lead(1);
    table.part(&[3], &[1, 2]);
    for number in 0..30_u32 {
        let mut batch = Batch::new();
        batch.put(&number.to_le_bytes(), &[7; 100]);
        table.node(1).propose(&batch, None).unwrap();
        table.flush(1);
        table.run(2);
    }
    table.part(&[2], &[1, 3]);
    table.cut.retain(|pair| *pair != (1, 3) && *pair != (3, 1));
    while table.node(3).status().role != Role::Installing {
        table.tick(1);
        table.tick(3);
        (0..3).for_each(|_| _ = table.deliver());
    }
    // Node 1 starts again and again, and gets the vote of 3; 2 hears none of it.
    table.letters.clear();
    let before = table.node(2).status().term;
    while table.node(3).status().term < before + 3 {
        table.seat(1).cut();
        table.seat(1).start();
        table.letters.clear();
        for _ in 0..100 {
            table.tick(1);
            table.tick(3);
            (0..2).for_each(|_| _ = table.deliver());
            if table.node(1).status().role == Role::Leader {
                break;
            }
        }
        table.letters.clear();
    }
    table.seat(1).cut();
    table.cut.clear();
    table.letters.clear();
    table.run(300);
    assert!(table.leader().is_some(), "two of three are there, and nobody leads");
}

/// A leader that hears from no node does not know that another one leads.
#[test]
fn a_read_waits_for_a_majority_that_knows_of_no_newer_term() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    table.put(1, b"old");
    table.run(3);
    table.part(&[1], &[2, 3]);
    for _ in 0..100 {
        table.tick(2);
        table.tick(3);
        while table.deliver() {}
    }
    let leader = table.leader().filter(|id| *id != 1).expect("another leader");
    let number = table.put(leader, b"new");
    while table.deliver() {}
    assert!(table.seats[&leader].settled.contains(&number));
    assert_eq!(table.node(1).status().role, Role::Leader, "it has heard nothing");
    let read = table.node(1).read().unwrap();
    table.flush(1);
    while table.deliver() {}
    assert!(!table.seats[&1].reads.contains(&read));
}

/// A proposal of an earlier start has the same number as one of this start.
#[test]
fn a_proposal_is_settled_by_its_own_entry() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    let first = table.put(1, b"of the first start");
    // No other node receives it.
    table.letters.clear();
    table.seat(1).cut();
    table.part(&[3], &[1, 2]);
    table.seat(1).start();
    while table.node(1).status().role != Role::Leader {
        table.tick(1);
        table.tick(2);
        while table.node(1).status().role != Role::Leader && table.deliver() {}
    }
    // Node 2 has all entries, which 1 has not heard yet.
    while table.node(2).status().newest < table.node(1).status().newest {
        if !table.deliver() {
            table.tick(1);
        }
    }
    let second = loop {
        let number = table.put(1, b"of the second start");
        if number >= first {
            break number;
        }
    };
    assert_eq!(first, second, "the numbers of a start begin anew");
    // Messages of 2 arrive, and none of 1.
    table.part(&[1], &[2]);
    table.cut.remove(&(2, 1));
    while table.deliver() {}
    assert_eq!(table.value(1).as_deref(), Some(&b"of the first start"[..]));
    assert!(!table.seats[&1].settled.contains(&second), "its entry is not committed");
}

/// An entry that was acknowledged, and is not applied yet, is damaged on a voter: it must not vote as if it had never
/// had the entry. (Its value has pages of its own. The map reports damage elsewhere when it is opened, but damage of
/// the last group looks as if the group had never been there.)
#[test]
fn an_entry_that_is_damaged_is_not_one_that_never_was() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 3));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        // 1 and 2 have the entry, and 3 does not; 2 does not hear that it is committed.
        table.part(&[3], &[1, 2]);
        let number = table.put(1, &[0x5a; 3000]);
        while !table.seats[&1].settled.contains(&number) {
            assert!(table.deliver());
        }
        table.letters.clear();
        table.seat(2).damage(&[0x5a; 100]);
        table.seat(1).cut();
        table.seat(2).start();
        table.cut.clear();
        table.run(300);
        assert_eq!(table.leader(), None, "2 and 3 do not know of a write that was acknowledged");
        table.seat(1).start();
        table.run(100);
        assert_eq!(table.value(2).as_deref(), Some(&[0x5a; 3000][..]));
        assert_eq!(table.value(3).as_deref(), Some(&[0x5a; 3000][..]));
    }
}

/// No entry follows a change of members, and the power fails: a node that has applied the change still knows it.
#[test]
fn a_change_of_members_that_was_applied_is_not_forgotten() {
    for kind in MapKind::ALL {
        let mut table = Table::new(kind, (3, 4));
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        table.change(1, &[MemberChange::Learner(4)]);
        table.run(5);
        assert!(table.node(2).status().members.learners.contains(&4));
        table.seat(2).cut();
        table.seat(2).start();
        assert!(table.node(2).status().members.learners.contains(&4), "{kind:?}");
    }
}

/// A follower asks how fresh its state is; a leader that was deposed cannot answer.
#[test]
fn a_follower_knows_how_fresh_it_is() {
    let mut table = Table::new(MapKind::List, (5, 5));
    table.lead(1);
    table.put(1, b"old");
    let ask = |table: &mut Table| {
        let number = table.node(2).ask().expect("it knows a leader");
        table.hear(2);
        while table.deliver() {}
        table.seats[&2].fresh.contains(&number)
    };
    assert!(ask(&mut table));
    assert_eq!(table.value(2).as_deref(), Some(&b"old"[..]));
    table.part(&[1, 2], &[3, 4, 5]);
    for _ in 0..100 {
        (3..=5).for_each(|id| table.tick(id));
        while table.deliver() {}
    }
    let leader = table.leader().filter(|id| *id > 2).expect("another leader");
    let number = table.put(leader, b"new");
    while table.deliver() {}
    assert!(table.seats[&leader].settled.contains(&number));
    assert!(!ask(&mut table), "nobody else knows of the term in which it was told");
    table.cut.clear();
    table.run(30);
    assert!(ask(&mut table));
    assert_eq!(table.value(2).as_deref(), Some(&b"new"[..]));
}

/// A message of node 2, of a cluster that has no name yet.
fn message(to: u64, kind: u8, words: [u64; 7]) -> Envelope {
    let mut bytes = vec![0; 4];
    bytes.extend([3, 1]);
    // Cluster, identity, start, life, from, to.
    [0, 102, 1, 1, 2, to].into_iter().for_each(|word: u64| bytes.extend(word.to_le_bytes()));
    bytes.extend([kind, 0]);
    words.into_iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend([0; 8]);
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Envelope::decode(&bytes).unwrap()
}

/// A node that installs a snapshot has no log, but knows where its log ended.
#[test]
fn a_node_that_installs_votes_for_nobody_who_has_less() {
    for (has_less, is_granted) in [(true, false), (false, true)] {
        let mut table = Table::with(MapKind::List, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1, 1);
        });
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        let had = table.node(3).status();
        table.part(&[3], &[1, 2]);
        for number in 0..30_u32 {
            let mut batch = Batch::new();
            batch.put(&number.to_le_bytes(), &[7; 100]);
            table.node(1).propose(&batch, None).unwrap();
            table.flush(1);
            table.run(2);
        }
        table.cut.clear();
        while table.node(3).status().role != Role::Installing {
            table.tick(1);
            table.tick(3);
            (0..3).for_each(|_| _ = table.deliver());
        }
        // It hears from no node for a while, and then from 2, whose log ends here.
        (0..15).for_each(|_| table.tick(3));
        table.letters.clear();
        let (term, last) = (had.term + 9, had.newest - u64::from(has_less));
        table.node(3).step(message(3, VOTE, [term, had.term, last, 0, 0, 0, 0])).unwrap();
        table.hear(3);
        let answer = table.letters.iter().find(|(_, to, bytes)| *to == 2 && bytes[KIND] == VOTED);
        let (_, _, answer) = answer.expect("an answer");
        assert_eq!(answer[KIND + 1] == 0, is_granted);
    }
}

#[test]
fn what_nobody_can_say_is_not_heard() {
    const APPEND: u8 = 3;
    const PRE_VOTE: u8 = 17;
    let mut table = Table::new(MapKind::List, (3, 3));
    // Each node knows the identities of the others.
    table.run(3);
    for (kind, words) in [
        // Term, term and index of the entry before, committed index.
        (VOTE, [0, 9, 9, 0, 0, 0, 0]),
        (PRE_VOTE, [0, 9, 9, 0, 0, 0, 0]),
        (APPEND, [5, 0, 1000, 1000, 0, 0, 0]),
        (APPEND, [5, 4, u64::MAX, u64::MAX, 0, 0, 0]),
    ] {
        table.node(1).step(message(1, kind, words)).unwrap();
    }
    table.lead(1);
}
