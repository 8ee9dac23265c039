//! Messages that are on their way for a long time.

use crate::table::Table;
use crate::transfers::{KIND, PAGE};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;

/// Ticks in which nodes that hear nothing of each other elect another leader.
const LONG: usize = 100;

/// All messages of the leader wait behind a long one, whose parts arrive.
#[test]
fn a_leader_whose_message_is_long_leads_on() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    let term = table.node(1).status().term;
    let number = table.put(1, &[7; 3000]);
    let read = table.node(1).read().expect("it leads");
    let mut waiting = Vec::new();
    for tick in 0..LONG {
        (1..=3).for_each(|id| table.tick(id));
        waiting.extend(table.letters.extract_if(.., |(from, _, _)| *from == 1));
        while table.deliver() {
            waiting.extend(table.letters.extract_if(.., |(from, _, _)| *from == 1));
        }
        if tick % 5 == 0 {
            [2, 3].into_iter().for_each(|id| table.hear_part(id, 1));
        }
    }
    let seat = &table.seats[&1];
    assert!(!seat.settled.contains(&number) && !seat.reads.contains(&read), "by keepalives");
    table.letters = waiting;
    table.run(5);
    assert_eq!((table.leader(), table.node(1).status().term), (Some(1), term));
    let seat = &table.seats[&1];
    assert!(seat.settled.contains(&number) && seat.reads.contains(&read));
}

/// A long message of another node is no sign of the leader.
#[test]
fn parts_of_other_messages_are_no_signs() {
    let mut table = Table::new(MapKind::List, (3, 3));
    table.lead(1);
    table.part(&[1], &[2, 3]);
    let number = table.put(1, b"unheard");
    let read = table.node(1).read().expect("it leads");
    for _ in 0..LONG {
        (1..=3).for_each(|id| table.tick(id));
        table.hear_part(2, 3);
        table.hear_part(3, 2);
        while table.deliver() {}
    }
    assert!(table.leader().is_some_and(|leader| leader != 1), "nobody was elected");
    assert!(!table.seats[&1].settled.contains(&number));
    assert!(!table.seats[&1].reads.contains(&read));
}

/// The first page of a snapshot has a long record, and the node that receives it knows of no snapshot yet.
#[test]
fn a_long_first_page_of_a_snapshot_is_sent_once() {
    let mut table = Table::with(MapKind::List, (3, 3), Model::X86, |it| it.ring_bytes = 1);
    table.lead(1);
    table.fill_keys(1, 30);
    table.seat(3).wipe(777);
    table.letters.clear();
    let mut waiting = Vec::new();
    for tick in 0..10 * LONG {
        (1..=3).for_each(|id| table.tick(id));
        loop {
            let is_page =
                |(_, to, bytes): &mut (u64, u64, Vec<u8>)| *to == 3 && bytes[KIND] == PAGE;
            waiting.extend(table.letters.extract_if(.., is_page));
            if !table.deliver() {
                break;
            }
        }
        if tick % 5 == 0 {
            table.hear_part(3, 1);
        }
    }
    assert_eq!(waiting.len(), 1);
    table.letters = waiting;
    table.run(60);
    assert_eq!(table.node(3).installed(), 1);
}
