//! A group of two devices, for tests.

use crate::device::Device;
use crate::device::fault_guard::guarded;
use crate::filter::{Filter, hash_of};
use crate::group::{Demote, Group, Parts, Rules};
use crate::in_flight::InFlight;
use crate::shape::position::Ack;
use crate::shape::prototype::{Paths, Prototype, ReadPath, WritePath};
use coreplane_bptree::Bptree;
use coreplane_engine::{StorageEngine, WriteOptions};
use coreplane_pmem::epoch::pin_in;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// The engine of a device.
pub(super) fn engine(directory: &tempfile::TempDir, number: u8) -> Arc<dyn StorageEngine> {
    let (path, options) = (directory.path().join(number.to_string()), Default::default());
    let media = coreplane_pmem::MediaChoice::Auto;
    Arc::new(Bptree::create(&path, 1 << 20, 8192, media, &options).expect("create"))
}

/// Puts a value the fast way; true if it was made.
pub(super) fn put(group: &Arc<Group>, key: &[u8]) -> bool {
    let options = WriteOptions::default();
    group.put_fast(hash_of(key), (key, b"value"), &options, &pin_in()).is_some()
}

pub(super) fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
        std::thread::yield_now();
    }
}

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
