//! A record that is made on all devices of a group.

use super::pair::{directory, engine, pair};
use crate::in_flight::InFlight;
use coreplane_engine::Error;
use std::cell::Cell;
use std::sync::Arc;

/// It would become a member without the record.
#[test]
fn a_device_that_fails_while_it_is_filled_does_not_stay() {
    let directory = directory();
    let engines = [0, 1].map(|number| engine(&directory, number));
    let group = pair(engines, &Arc::new(InFlight::new()), false);
    group.states.set_members(0b10, 1);
    group.states.join(0);
    // The primary comes first.
    let calls = Cell::new(0);
    let made = group.make_on_each(group.followers(), |_| {
        calls.set(calls.get() + 1);
        let is_made = (calls.get() == 1).then_some(());
        is_made.ok_or_else(|| Error::SyncFailed("it fails".to_owned()))
    });
    // This pair lets no device leave.
    assert!(made.is_err());
    let failed = [0, 1].map(|number| group.device(number).expect("it is there").why().is_some());
    assert_eq!((calls.get(), failed), (2, [true, false]));
}
