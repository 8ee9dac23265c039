//! Terms that no cluster reaches by elections.

use crate::table::Table;
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::{Envelope, Role};

/// Offsets in an envelope: its kind, its receiver, and its body.
const KIND: usize = 5;
const TO: usize = 46;
const BODY: usize = 54;
/// Kinds of envelopes, and one of the messages of consensus.
const RAFT: u8 = 1;
const PAGE: u8 = 2;
const HEARTBEAT: u8 = 8;

/// This message with another receiver and term.
fn forged(bytes: &[u8], to: u64, term: u64) -> Envelope {
    let mut bytes = bytes.to_vec();
    let at = if bytes[KIND] == RAFT { BODY + 2 } else { BODY };
    bytes[TO..TO + 8].copy_from_slice(&to.to_le_bytes());
    bytes[at..at + 8].copy_from_slice(&term.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Envelope::decode(&bytes).expect("a message")
}

/// Three nodes, the third of which installs a snapshot; a heartbeat and a page of the first one.
fn with_a_node_that_installs() -> (Table, Vec<u8>, Vec<u8>) {
    let mut table = Table::with(MapKind::List, (3, 3), Model::X86, |it| {
        (it.ring_bytes, it.page_bytes) = (1, 1);
    });
    table.lead(1);
    table.part(&[3], &[1, 2]);
    table.fill_keys(1, 30);
    table.cut.clear();
    let (mut heartbeat, mut page) = (None, None);
    let is_page = |bytes: &[u8]| bytes[KIND] == PAGE;
    let is_heartbeat = |bytes: &[u8]| bytes[KIND] == RAFT && bytes[BODY] == HEARTBEAT;
    while heartbeat.is_none() || page.is_none() || table.node(3).status().role != Role::Installing {
        (1..=3).for_each(|id| table.tick(id));
        for _ in 0..5 {
            let of_first = table.letters.iter().filter(|letter| letter.0 == 1);
            for (_, _, bytes) in of_first {
                heartbeat = heartbeat.or_else(|| is_heartbeat(bytes).then(|| bytes.clone()));
                page = page.or_else(|| is_page(bytes).then(|| bytes.clone()));
            }
            table.deliver();
        }
    }
    (table, heartbeat.expect("a heartbeat"), page.expect("a page"))
}

/// The greatest term that a node of a young cluster takes.
const MOST: u64 = (1 << 62) + (1 << 32);

/// Sends a heartbeat or a page with this term to each of two nodes, one of which installs a snapshot. Each time a leader
/// is elected after it. Whether the term was taken, and the nodes that have all entries.
fn send_with_term(term: u64) -> Vec<(bool, usize)> {
    let cases = [(false, 2), (false, 3), (true, 2), (true, 3)];
    let told = cases.map(|(sends_page, to)| {
        let (mut table, heartbeat, page) = with_a_node_that_installs();
        let bytes = if sends_page { &page } else { &heartbeat };
        table.node(to).step(forged(bytes, to, term)).expect("a node that goes on");
        table.hear(to);
        let is_taken = table.node(to).status().term >= term;
        table.run(300);
        let leader = table.leader().expect("a leader");
        let number = table.put(leader, b"after");
        table.run(5);
        assert!(table.seats[&leader].settled.contains(&number), "term {term} at {to}");
        let newest = table.node(leader).status().newest;
        let has_all = (1..=3).filter(|id| table.node(*id).status().applied == newest).count();
        (is_taken, has_all)
    });
    told.to_vec()
}

/// A node that takes the last term from a message never takes part in an election again.
#[test]
fn a_term_behind_which_there_are_no_elections_is_not_heard() {
    for term in [u64::MAX, MOST + 1] {
        assert_eq!(send_with_term(term), [(false, 3); 4], "term {term}");
    }
    assert_eq!(send_with_term(1 << 62), [(true, 3); 4]);
}

/// The cluster takes the terms of its next elections, although its term was raised to the bound.
#[test]
fn a_term_at_the_bound_stops_no_election() {
    let told = send_with_term(MOST);
    assert!(told.iter().all(|(is_taken, _)| *is_taken), "{told:?}");
}
