//! Snapshots that are interrupted, and what a node still knows after one.

use crate::table::Table;
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::Role;

/// The offset of its kind in an envelope, and the kind of a page.
pub(crate) const KIND: usize = 5;
pub(crate) const PAGE: u8 = 2;
/// The offset of the kind of a message of consensus, and the kind of one with entries.
const KIND_OF_RAFT: usize = 54;
const APPEND: u8 = 3;

/// A node has some pages of a snapshot, and is cut off until its leader gives up the transfer. The next transfer is of
/// the same state: it goes on, although the leader has not sent the wanted page before.
#[test]
fn a_transfer_that_was_given_up_is_taken_up_again() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1, 1);
        });
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.cut.clear();
        let mut pages = 0;
        while pages < 8 {
            let first = table.letters.first();
            let is_page = first.is_some_and(|(_, to, bytes)| *to == 3 && bytes[KIND] == PAGE);
            pages += usize::from(is_page);
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        assert_eq!(table.node(3).status().role, Role::Installing);
        table.part(&[3], &[1, 2]);
        let before = table.node(1).status();
        table.run(400);
        assert_eq!(table.node(1).status(), before, "the same state in the same term");
        table.cut.clear();
        table.run(60);
        assert_eq!(table.node(3).installed(), 1, "of {kind:?}: the transfer does not end");
        let (newest, third) = (table.node(1).status().newest, table.node(3).status());
        assert_eq!((third.newest, third.applied), (newest, newest));
    }
}

/// A node has heard of a start of its leader, and is filled by it. It still recognizes an earlier copy of the leader,
/// which would be elected without the acknowledged entries that the node lacks. So does a node that was wiped, and has
/// heard of that start by the pages alone.
#[test]
fn a_start_is_not_forgotten_over_a_snapshot() {
    for (kind, wipes) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| it.ring_bytes = 1);
        table.lead(1);
        table.put(1, b"before");
        table.run(5);
        let copy = table.seat(1).copy();
        table.seat(1).cut();
        table.letters.clear();
        table.seat(1).start();
        table.run(20);
        table.lead(1);
        if wipes {
            table.seat(3).wipe(777);
            table.letters.clear();
        } else {
            table.part(&[3], &[1, 2]);
            table.fill_keys(1, 30);
            table.cut.clear();
        }
        while table.node(3).installed() == 0 {
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        // It hears no more of the others.
        table.letters.clear();
        table.part(&[3], &[1, 2]);
        let number = table.put(1, b"acknowledged");
        while !table.seats[&1].settled.contains(&number) {
            assert!(table.deliver());
        }
        table.seat(2).cut();
        table.seat(1).put_back(copy);
        table.letters.clear();
        table.cut.clear();
        table.run(300);
        assert_eq!(table.leader(), None, "of {kind:?}: an acknowledged write is lost");
        let role = table.node(1).status().role;
        assert_eq!(role, Role::Installing, "of {kind:?}: a copy is taken for the pool");
        if !wipes {
            table.seat(2).start();
            table.run(300);
            for id in 1..=3 {
                assert_eq!(table.value(id).as_deref(), Some(&b"acknowledged"[..]), "of {kind:?}");
            }
        }
    }
}

/// A node has heard of a start of which its leader has not, and is filled by the leader. It still recognizes an
/// earlier copy.
#[test]
fn a_start_is_known_although_the_sender_of_a_snapshot_knows_less() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| it.ring_bytes = 1);
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        let copy = table.seat(2).copy();
        table.seat(2).cut();
        table.letters.clear();
        table.cut.clear();
        table.part(&[1], &[2]);
        table.seat(2).start();
        (0..3).for_each(|_| table.tick(2));
        table.deliver_of(2);
        while table.node(3).installed() == 0 {
            if !table.deliver() {
                [1, 3].into_iter().for_each(|id| table.tick(id));
            }
        }
        table.seat(2).put_back(copy);
        for _ in 0..30 {
            [1, 2, 3].into_iter().for_each(|id| table.tick(id));
            while table.deliver() {}
        }
        let role = table.node(2).status().role;
        assert_eq!(role, Role::Installing, "of {kind:?}: a copy is taken for the pool");
        table.cut.clear();
        table.run(200);
        assert_eq!(table.node(2).installed(), 1, "of {kind:?}");
    }
}

/// With each page of a snapshot that a node is sent, there is a write: many more of them than the ring has. It goes
/// on with the entries behind the first snapshot; otherwise it would be sent snapshots without an end.
#[test]
fn a_node_is_filled_while_writes_go_on() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1000, 1);
        });
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.cut.clear();
        let (mut pages, mut last) = (0, 0);
        while last == 0 || table.node(3).status().applied < last {
            let first = table.letters.first();
            if first.is_some_and(|(_, to, bytes)| *to == 3 && bytes[KIND] == PAGE) {
                pages += 1;
                assert!(pages < 200, "of {kind:?}: the transfers do not end");
                table.put(1, &[7; 200]);
            }
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
            if table.node(3).installed() > 0 && last == 0 {
                last = table.node(1).status().newest;
            }
        }
        table.run(5);
        assert_eq!(table.node(3).installed(), 1, "of {kind:?}: the first snapshot was in vain");
        assert_eq!(table.node(3).status().applied, table.node(1).status().applied);
        assert_eq!(table.value(3).as_deref(), Some(&[7; 200][..]), "of {kind:?}");
    }
}

/// A node that has the last page is silent for long: it writes the whole state to its medium. Meanwhile there are many
/// more writes than the ring has.
#[test]
fn a_node_that_takes_long_to_end_a_snapshot_is_not_filled_again() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| it.ring_bytes = 1000);
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.cut.clear();
        while table.node(3).installed() == 0 {
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        table.part(&[3], &[1, 2]);
        table.letters.clear();
        table.fill_keys(1, 30);
        table.run(400);
        table.cut.clear();
        table.run(60);
        assert_eq!(table.node(3).installed(), 1, "of {kind:?}: the snapshot was in vain");
        assert_eq!(table.node(3).status().applied, table.node(1).status().applied);
    }
}

/// The same, with less room for the entries: they are dropped, and the node gets another snapshot when there are
/// fewer writes.
#[test]
fn a_node_that_was_filled_in_vain_is_filled_again() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.held_bytes, it.page_bytes) = (1000, 2000, 1);
        });
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.cut.clear();
        while table.node(3).installed() == 0 {
            let first = table.letters.first();
            if first.is_some_and(|(_, to, bytes)| *to == 3 && bytes[KIND] == PAGE) {
                table.put(1, &[7; 200]);
            }
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        table.run(30);
        assert_eq!(table.node(3).installed(), 2, "of {kind:?}");
        assert_eq!(table.node(3).status().applied, table.node(1).status().applied);
    }
}

/// The leader has pending entries that its ring has dropped when a snapshot is begun. They are behind that snapshot.
#[test]
fn pending_entries_are_held_for_a_node_that_is_filled() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1000, 1);
        });
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.part(&[2], &[1]);
        (0..10).for_each(|_| _ = table.put(1, &[7; 200]));
        table.letters.clear();
        table.cut.retain(|pair| *pair != (1, 3) && *pair != (3, 1));
        while table.node(3).status().role != Role::Installing {
            if !table.deliver() {
                [1, 3].into_iter().for_each(|id| table.tick(id));
            }
        }
        // They are applied while the pages are on their way.
        table.cut.clear();
        while table.node(1).status().applied < table.node(1).status().newest {
            assert_eq!(table.node(3).status().role, Role::Installing);
            table.letters.retain(|(from, to, bytes)| bytes[KIND] != PAGE || (*from, *to) != (1, 3));
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        table.run(60);
        assert_eq!(table.node(3).installed(), 1, "of {kind:?}: the first snapshot was in vain");
        assert_eq!(table.value(3).as_deref(), Some(&[7; 200][..]), "of {kind:?}");
    }
}

/// A node is cut off from its leader while it installs a snapshot, and has applied an entry that the third one has not
/// heard to be committed. The third one, which has all entries, learns that with the vote: otherwise it could send only
/// a snapshot that is older than the state that was given up, and the two would make no progress.
#[test]
fn a_node_that_installs_says_up_to_where_it_had_applied() {
    for (kind, restarts) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1, 1);
        });
        table.lead(1);
        table.fill_keys(1, 10);
        let first = table.node(1).status().newest + 1;
        (0..3).for_each(|_| _ = table.put(1, &[7; 200]));
        // 3 gets the first of three entries, and 2 gets all; the answers of 2 wait.
        let mut is_later = false;
        table.letters.retain(|(_, to, _)| *to == 2 || !std::mem::replace(&mut is_later, true));
        (0..4).for_each(|_| assert!(table.deliver()));
        let of_2: Vec<_> = table.letters.extract_if(.., |(from, _, _)| *from == 2).collect();
        table.part(&[2], &[1]);
        // 3 hears from a heartbeat that the first is committed.
        while table.node(3).status().applied < first {
            table.letters.retain(|(_, to, bytes)| *to != 3 || bytes[KIND_OF_RAFT] != APPEND);
            if !table.deliver() {
                table.tick(1);
            }
        }
        table.letters = of_2;
        table.cut.remove(&(2, 1));
        while table.node(3).status().role != Role::Installing {
            if !table.deliver() {
                [1, 3].into_iter().for_each(|id| table.tick(id));
            }
        }
        let applied = |table: &mut Table| [2, 3].map(|id| table.node(id).status().applied);
        assert_eq!(applied(&mut table), [first - 1, first], "of {kind:?}");
        table.seat(1).cut();
        if restarts {
            let copy = table.seat(3).copy();
            table.seat(3).put_back(copy);
        }
        table.letters.clear();
        table.cut.clear();
        table.run(100);
        assert_eq!(table.leader(), Some(2), "of {kind:?}");
        let number = table.put(2, b"after");
        table.run(100);
        assert!(table.seats[&2].settled.contains(&number), "of {kind:?}: no progress");
        assert_eq!(table.value(3).as_deref(), Some(&b"after"[..]), "of {kind:?}");
    }
}
