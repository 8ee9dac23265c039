//! A group of two devices, for tests.

use crate::device::{Device, Guarded};
use crate::filter::hash_of;
use crate::group::{Group, Rules, Superior};
use crate::in_flight::InFlight;
use crate::shape::{Ack, Position, Prototype, ReadPath};
use coreplane_bptree::Bptree;
use coreplane_engine::{Error, Result, StorageEngine, WriteOptions};
use coreplane_pmem::epoch::pin_in;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

pub(in crate::group) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// The engine of a device.
pub(in crate::group) fn engine(
    directory: &tempfile::TempDir,
    number: u8,
) -> Arc<dyn StorageEngine> {
    let (path, options) = (directory.path().join(number.to_string()), Default::default());
    let media = coreplane_pmem::MediaChoice::Auto;
    Arc::new(Bptree::create(&path, 1 << 20, 8192, media, &options).expect("create"))
}

/// Puts a value the fast way; true if it was made.
pub(in crate::group) fn put(group: &Arc<Group>, key: &[u8]) -> bool {
    let options = WriteOptions::default();
    group.put_fast(hash_of(key), (key, b"value"), &options, &pin_in()).is_some()
}

pub(in crate::group) fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
        std::thread::yield_now();
    }
}

/// Agrees to all changes, or to no departure of a device.
struct Agrees {
    to_departures: bool,
}

impl Superior for Agrees {
    fn demote(&self, _device: &Device) -> Result<()> {
        let refused = || Error::Unusable("no record can be written".to_owned());
        self.to_departures.then_some(()).ok_or_else(refused)
    }

    fn renew(&self, _key: (u16, &[u8]), _known: u64, _sequence: u64) -> Result<()> {
        Ok(())
    }
}

/// As long as any group: a group does not keep its superior.
static SUPERIORS: LazyLock<[Arc<Agrees>; 2]> =
    LazyLock::new(|| [false, true].map(|to_departures| Arc::new(Agrees { to_departures })));

/// Two devices with these engines: writes wait for the second, and the first follows.
pub(in crate::group) fn pair(
    engines: [Arc<dyn StorageEngine>; 2],
    in_flight: &Arc<InFlight>,
    can_leave: bool,
) -> Arc<Group> {
    let rules = Rules {
        ack: Ack::First,
        prototype: Prototype::default(),
        reads: ReadPath::default(),
        asks_filters: true,
        answers_within: None,
        queue_bytes_max: 16 << 20,
    };
    let device = |(device, engine)| {
        let at = Position { group: 0, device };
        Arc::new(Device::new(at, Guarded::new(engine).expect("it is there")))
    };
    let devices = (0..).zip(engines).map(device).collect();
    let superior = Arc::downgrade(&SUPERIORS[usize::from(can_leave)]);
    let parts = (Arc::clone(in_flight), Arc::default(), rules);
    Group::new(superior, 0, (devices, 1), parts).expect("memory")
}
