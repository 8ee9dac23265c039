//! A reader of the changes gets an error if some of them are gone.

use crate::home::{self, Home, New};
use coreplane_engine::{Engine, Error, Replicated};

/// The tombstone is dropped while other changes are shown, before the turn of its group.
#[test]
fn a_delete_that_is_forgotten_while_others_are_shown_is_told_as_gone() {
    const KEYS: u32 = 300;
    let home = Home::in_memory();
    // So many pages that none need be used again while a group is shown whose reader may still read
    // them.
    let store = home.create(New::tiny(4096));
    let write = home::write();
    store.hold_tombstones(0).expect("hold");
    for number in 0..KEYS {
        let _outcome = store.put(&number.to_be_bytes(), &[1; 100], &write).expect("put");
    }
    let (mut order, mut cursor) = (Vec::new(), 0);
    loop {
        let show = &mut |entry: coreplane_engine::Entry<'_>| order.push(entry.key.to_vec());
        cursor = store.iterate(cursor, 100, show).expect("iterate");
        if cursor == 0 {
            break;
        }
    }
    let last = order.pop().expect("a key");
    let line = store.advance_sequence().expect("a sequence");
    let _outcome = store.delete(&last, &write).expect("delete");
    // No page has an older record of it any more.
    let churn = |round: usize| {
        let _outcome = store.put(&order[round % order.len()], &[2; 100], &write).expect("put");
        store.clean().expect("clean")
    };
    for round in 0..2 * order.len() {
        churn(round);
    }
    let mut shown = Vec::new();
    let told = store.changes_since(0, &mut |entry| {
        if shown.is_empty() {
            store.hold_tombstones(u64::MAX).expect("hold");
            let mut rounds = 0..4 * order.len();
            while store.tombstone_horizon() <= line {
                churn(rounds.next().expect("it is forgotten soon"));
            }
        }
        shown.push(entry.key.to_vec());
    });
    assert!(shown.len() > order.len() / 2 && !shown.contains(&last), "{} are shown", shown.len());
    let horizon = store.tombstone_horizon();
    assert!(
        matches!(told, Err(Error::HistoryGone { asked: 0, horizon: said }) if said == horizon),
        "{told:?}"
    );
}
