//! A group of two devices, for tests.

use crate::device::Device;
use crate::device::fault_guard::guarded;
use crate::filter::Filter;
use crate::group::{Demote, Group, Parts, Rules};
use crate::in_flight::InFlight;
use crate::shape::position::Ack;
use crate::shape::prototype::{Paths, Prototype, ReadPath, WritePath};
use coreplane_engine::StorageEngine;
use std::sync::Arc;

/// Two devices with these engines: writes wait for the second, and the first follows.
pub(super) fn pair(
    engines: [Arc<dyn StorageEngine>; 2],
    in_flight: &Arc<InFlight>,
    demote: Demote,
) -> Arc<Group> {
    let (reads, writes) = (ReadPath::default(), WritePath::default());
    let rules = Rules {
        ack: Ack::First,
        prototype: Prototype::default(),
        paths: Paths { reads, writes },
        asks_filters: true,
        answers_within: None,
        queue_bytes_max: 16 << 20,
    };
    let device =
        |(number, engine)| Arc::new(Device::new(number, guarded(engine).expect("it is there")));
    Arc::new(Group::new(Parts {
        number: 0,
        devices: (0..).zip(engines).map(device).collect(),
        members: 0b11,
        primary: 1,
        filter: Filter::with_capacity(1000).expect("memory"),
        in_flight: Arc::clone(in_flight),
        sequence: Arc::default(),
        rules,
        demote,
        renew: Box::new(|_, _, _| Ok(())),
    }))
}
