//! Leaderships that come and go.

use crate::seat::{Seat, early, lead, leader, leader_without, run, run_without, seat};
use coreplane_engine::{Deferred, Engine, Error, Horizon};

/// A lost write stays lost for a caller that has waited for another one since.
#[test]
fn a_horizon_knows_of_each_leadership() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    run(&seats, 3);
    let mut horizon = Horizon::new();
    horizon.include(seats[first].replica.put(b"lost", b"1", &early()).expect("put").ticket());
    // No other node has received it; another one leads.
    leader_without(&seats, &[first]);
    run(&seats, 30);
    lead(&seats, first);
    horizon.include(seats[first].replica.put(b"kept", b"1", &early()).expect("put").ticket());
    run(&seats, 5);
    assert!(matches!(seats[first].replica.is_durable(&horizon), Err(Error::Indeterminate)));
}

/// A count that was taken under a leadership that has ended does not hold.
#[test]
fn what_a_deposed_leader_has_seen_is_no_answer() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let second = leader_without(&seats, &[first]);
    let _written = seats[second].replica.put(b"k", b"v", &early()).expect("put");
    run_without(&seats, 5, &[first]);
    assert_eq!(seats[first].replica.len().expect("it takes itself for the leader"), 0);
    run(&seats, 5);
    let seen = Horizon::from(seats[first].replica.visible_ticket());
    assert!(!matches!(seats[first].replica.is_durable(&seen), Ok(true)));
}
