//! Entries that a node has acknowledged and does not have any more.

use crate::table::Table;
use coreplane_engine::Batch;
use coreplane_mvcc::MapKind;
use coreplane_replica::Role;

const DAMAGED: &[u8] = &[0x5a; 3000];

/// A voter has acknowledged an entry that is damaged later, and is filled by a leader that has not applied it again
/// yet. It must neither vote as if it had never had the entry, nor lead: the entry is committed because of its
/// acknowledgement.
#[test]
fn what_was_acknowledged_is_kept_in_mind_over_an_older_snapshot() {
    for kind in MapKind::ALL {
        for cuts in [false, true] {
            let mut table = Table::new(kind, (3, 3));
            let number = install_less_than_was_acknowledged(&mut table);
            assert!(table.seats[&1].settled.contains(&number));
            if cuts {
                table.seat(2).cut();
                table.seat(2).start();
            }
            // 1 is gone: 2 and 3 are a majority, and lack the acknowledged entry.
            table.seat(1).cut();
            table.letters.clear();
            table.cut.clear();
            table.run(300);
            assert_eq!(table.leader(), None, "a write that was acknowledged is lost");
            // Clients wait for a leader, and are not sent to one that is gone.
            assert_eq!(table.node(2).status().leader, None);
            table.seat(1).start();
            table.run(100);
            for id in 1..=3 {
                assert_eq!(table.value(id).as_deref(), Some(DAMAGED));
            }
            table.lead(2);
            table.put(2, b"after");
            table.run(5);
            assert_eq!(table.value(3).as_deref(), Some(&b"after"[..]));
        }
    }
}

/// 1 leads, 2 and 3 follow; the last entry that 2 has acknowledged is damaged, 3 does not have it, and 2 installs a
/// snapshot of 1 that ends before it. The number of that entry's proposal.
fn install_less_than_was_acknowledged(table: &mut Table) -> u64 {
    let propose = |table: &mut Table, key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(key, b"v");
        table.node(1).propose(&batch, None).unwrap();
        table.flush(1);
    };
    table.lead(1);
    table.put(1, b"before");
    table.run(5);
    let first = table.node(1).status().newest + 1;
    propose(table, b"first");
    while table.node(3).status().newest < first {
        assert!(table.deliver());
    }
    table.part(&[3], &[1, 2]);
    let number = table.put(1, DAMAGED);
    // 2 has both. It has not heard that the first is committed, which 1 has applied and writes with another entry.
    while table.node(2).status().newest <= first {
        assert!(table.deliver());
    }
    assert_eq!(table.node(1).status().applied, first);
    propose(table, b"of 1 alone");
    table.letters.retain(|(_, to, _)| *to == 1);
    while !table.seats[&1].settled.contains(&number) {
        assert!(table.deliver());
    }
    table.seat(1).cut();
    table.seat(2).damage(&DAMAGED[..100]);
    table.seat(2).start();
    table.seat(1).start();
    assert_eq!(table.node(2).status().role, Role::Installing);
    assert_eq!(table.node(1).status().applied, first, "that the other is applied is not durable");
    table.letters.clear();
    while table.node(2).installed() == 0 {
        if !table.deliver() {
            (1..=2).for_each(|id| table.tick(id));
        }
    }
    assert_eq!(table.node(2).status().newest, first);
    number
}
