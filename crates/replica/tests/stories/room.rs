//! A follower that has no room for its leader's entries.

use crate::stall::run;
use crate::table::{LEN, Seat, Table};
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::Role;

/// Bytes that the ring of each leader keeps: as much as a pool has room for, a part of it, and nearly nothing. A
/// follower that lags further behind is sent a snapshot.
const LONG: usize = 4 * LEN as usize;
const MIDDLE: usize = LEN as usize / 2;
const SHORT: usize = 1 << 14;

/// How often a leader may answer that it is busy with one proposal.
const CALLS: usize = 100;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Three nodes, with rings of so many bytes; the pool of the third has another size.
fn table(kind: MapKind, ring: usize, len: u64) -> Table {
    let mut table = Table::with(kind, (3, 3), Model::X86, |settings| settings.ring_bytes = ring);
    let settings = table.seats[&3].settings.clone();
    table.seats.insert(3, Seat::new(kind, settings, Model::X86, len));
    table.lead(1);
    table
}

/// Proposes a change and has it delivered; false if the leader has no room.
fn write(table: &mut Table, batch: &Batch) -> bool {
    let mut calls = 0;
    loop {
        match table.node(1).propose(batch, None) {
            Ok(_) => break,
            Err(Error::NoSpace { .. }) => return false,
            // Pages are cleaned for it, some at a time.
            Err(Error::Busy) if calls < CALLS => table.run(1),
            Err(error) => panic!("after {calls} calls: {error}"),
        }
        calls += 1;
    }
    table.flush(1);
    while table.deliver() {}
    // A reader of another test may hold pages for a moment.
    let mut ticks = 0;
    while table.node(1).status().applied < table.node(1).newest() {
        table.run(1);
        ticks += 1;
        assert!(ticks < 100_000, "nothing is applied");
    }
    true
}

/// Fills the cluster until the leader refuses; how many keys it has.
fn fill(table: &mut Table) -> u32 {
    let mut count = 0;
    loop {
        let mut batch = Batch::new();
        batch.put(&key(count), &[7; 300]);
        if !write(table, &batch) {
            return count;
        }
        count += 1;
        if count % 64 == 0 {
            table.run(2);
        }
    }
}

fn get(table: &mut Table, id: u64, number: u32) -> Option<Vec<u8>> {
    table.node(id).with_map(|map| map.get(&key(number))).expect("a map that can be read")
}

/// A follower without room for the next entries, or for a snapshot, keeps its state, and has everything again when
/// there is less.
#[test]
fn a_follower_with_less_room_lags_and_does_not_stop() {
    for (kind, ring) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, LONG), (kind, MIDDLE)]) {
        let mut table = table(kind, ring, LEN / 4);
        let count = fill(&mut table);
        table.run(50);
        let newest = table.node(1).status().newest;
        let third = table.node(3).status();
        assert!(third.newest < newest, "it has room for all {count} records");
        assert!(table.node(3).left_out() > 0 && table.node(3).lacks_room());
        assert_eq!(table.node(2).status().applied, newest, "the others went on");
        assert!(!table.node(2).lacks_room());
        // Its state is that of the others, as far as it goes.
        assert_eq!(table.node(3).installed(), 0, "it has given up what it had");
        assert_eq!(get(&mut table, 3, 0).as_deref(), Some(&[7; 300][..]));
        assert_eq!(get(&mut table, 3, count - 1), None);
        for number in 0..count - 10 {
            let mut batch = Batch::new();
            batch.delete(&key(number));
            assert!(
                write(&mut table, &batch),
                "a delete of {kind:?}, ring {ring}, {number} of {count}"
            );
        }
        // So far behind that it is sent a snapshot, which fits.
        for _ in 0..2 * ring / 300 {
            let mut batch = Batch::new();
            batch.put(&key(count - 1), &[7; 300]);
            assert!(write(&mut table, &batch), "an overwrite of {kind:?}");
        }
        table.run(200);
        let (newest, third) = (table.node(1).status().newest, table.node(3).status());
        assert_eq!((third.newest, third.applied), (newest, newest), "{kind:?}");
        assert!(table.node(3).installed() > 0 && !table.node(3).lacks_room());
        assert_eq!(get(&mut table, 3, 0), None);
        assert_eq!(get(&mut table, 3, count - 1).as_deref(), Some(&[7; 300][..]));
    }
}

/// What it has applied is not durable yet: a sync that is to come frees some pages.
#[test]
fn a_leader_on_a_file_refuses_what_has_no_room_and_leads_on() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::File, |_| {});
        run(&mut table, 60, &[1, 2, 3]);
        let leader = table.leader().expect("a leader");
        for round in 0..40 {
            table.put(leader, &[round; 900]);
            run(&mut table, 2, &[1, 2, 3]);
        }
        for part in 1..=8 {
            let mut batch = Batch::new();
            batch.put(b"large", &vec![7; LEN as usize / 8 * part]);
            let mut propose = |_| {
                let answer = table.node(leader).propose(&batch, None).map(drop);
                table.flush(leader);
                run(&mut table, 5, &[1, 2, 3]);
                (!matches!(answer, Err(Error::Busy))).then_some(answer)
            };
            match (0..CALLS).find_map(&mut propose) {
                Some(Ok(())) => assert!(part < 8, "{kind:?}: a value as long as the pool"),
                Some(Err(Error::NoSpace { .. })) => assert!(part > 1, "{kind:?}: an eighth"),
                answer => panic!("{kind:?}, {part}: {answer:?}"),
            }
            assert_eq!(table.node(leader).status().role, Role::Leader, "{kind:?}, {part}");
        }
    }
}

/// A follower with a pool like the leader's has room for everything, even if it is told late.
#[test]
fn a_follower_with_as_much_room_catches_up() {
    for (kind, ring) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, LONG), (kind, SHORT)]) {
        let mut table = table(kind, ring, LEN);
        table.part(&[3], &[1, 2]);
        let count = fill(&mut table);
        table.cut.clear();
        table.run(200);
        let newest = table.node(1).status().newest;
        assert_eq!(table.node(3).status().applied, newest, "{kind:?}");
        assert_eq!(table.node(3).installed() > 0, ring == SHORT);
        for number in [0, count / 2, count - 1] {
            assert_eq!(get(&mut table, 3, number).as_deref(), Some(&[7; 300][..]));
        }
    }
}

/// An entry that no other node has is where the next leader has committed another one, and the pool is full.
#[test]
fn a_full_follower_gives_up_what_was_never_committed() {
    for kind in MapKind::ALL {
        let mut table = table(kind, LONG, LEN);
        let count = fill(&mut table);
        table.run(10);
        table.lead(3);
        table.part(&[3], &[1, 2]);
        let mut batch = Batch::new();
        batch.delete(&key(0));
        table.node(3).propose(&batch, None).expect("a delete has room");
        table.flush(3);
        table.run(100);
        table.letters.clear();
        table.lead(1);
        for number in 1..count / 2 {
            let mut batch = Batch::new();
            batch.delete(&key(number));
            assert!(write(&mut table, &batch));
        }
        let mut batch = Batch::new();
        batch.put(&key(0), &[8; 300]);
        assert!(write(&mut table, &batch));
        table.cut.clear();
        table.run(200);
        let newest = table.node(1).status().newest;
        assert_eq!(table.node(3).status().applied, newest, "{kind:?}");
        assert_eq!(get(&mut table, 3, 0).as_deref(), Some(&[8; 300][..]));
        assert_eq!(get(&mut table, 3, 1), None);
    }
}

/// A leader pins its state, for a backup, and is deposed. It is sent a snapshot that does not fit beside the pinned
/// state: it keeps what it has until the pin is gone.
#[test]
fn a_node_with_a_pinned_state_gives_up_nothing_for_a_snapshot() {
    for kind in MapKind::ALL {
        let mut table = table(kind, SHORT, LEN);
        let count = fill(&mut table);
        for number in 0..count / 8 {
            let mut batch = Batch::new();
            batch.delete(&key(number));
            assert!(write(&mut table, &batch));
        }
        table.lead(3);
        let before = table.node(3).installed();
        let pinned = table.node(3).snapshot().expect("an applied state");
        table.lead(1);
        table.part(&[3], &[1, 2]);
        for _ in 0..2 * SHORT / 300 {
            let mut batch = Batch::new();
            batch.put(&key(count - 1), &[8; 300]);
            assert!(write(&mut table, &batch), "an overwrite of {kind:?}");
        }
        table.cut.clear();
        table.run(100);
        assert_eq!(table.node(3).installed(), before, "of {kind:?}");
        assert_eq!(get(&mut table, 3, count - 1).as_deref(), Some(&[7; 300][..]));
        assert!(table.node(3).lacks_room());
        drop(pinned);
        table.run(100);
        let (newest, third) = (table.node(1).status().newest, table.node(3).status());
        assert_eq!((third.newest, third.applied), (newest, newest), "of {kind:?}");
        assert_eq!(table.node(3).installed(), before + 1, "of {kind:?}");
        assert_eq!(get(&mut table, 3, count - 1).as_deref(), Some(&[8; 300][..]));
        assert!(!table.node(3).lacks_room());
    }
}
