//! Writes that a follower makes several at a time.

use super::pair::{directory, pair, put, wait_until};
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
use coreplane_engine::{Error, Result, StorageEngine};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys that follow in one apply batch.
const KEYS: u8 = 5;

/// Holds puts, and calls that make them durable, until they are released; and counts both.
#[derive(Default)]
struct Gates {
    holds_puts: AtomicBool,
    puts: AtomicU64,
    holds_care: AtomicBool,
    care: AtomicU64,
    refuses_care: AtomicBool,
}

impl Interceptor for Gates {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        let (come, holds) = match call {
            Call::Put(_) => (&self.puts, &self.holds_puts),
            Call::Care => (&self.care, &self.holds_care),
            _ => return Ok(()),
        };
        come.fetch_add(1, Ordering::SeqCst);
        wait_until(|| !holds.load(Ordering::SeqCst));
        if matches!(call, Call::Care) && self.refuses_care.load(Ordering::SeqCst) {
            return Err(Error::SyncFailed("it is refused".to_owned()));
        }
        Ok(())
    }
}

/// A pair whose second device has made some keys, one more than an apply batch. The first device has made the first
/// key by itself, and the others as a batch that waits to be made durable.
fn held(directory: &tempfile::TempDir, can_leave: bool) -> (Arc<Group>, Arc<InFlight>, Arc<Gates>) {
    let engine = |number: u8| -> Arc<dyn StorageEngine> {
        let path = directory.path().join(number.to_string());
        let (media, options) = (coreplane_pmem::MediaChoice::Auto, Options::default());
        let (geometry, index) = (Geometry::TINY, Placement::Pool);
        let made = Scmkv::create_with(&path, 1 << 20, geometry, media, index, options);
        Arc::new(made.expect("create"))
    };
    let gates = Arc::new(Gates::default());
    let follows = Arc::new(Intercepted { engine: engine(0), around: Arc::clone(&gates) });
    let in_flight = Arc::new(InFlight::new());
    let group = pair([follows, engine(1)], &in_flight, can_leave);
    gates.holds_puts.store(true, Ordering::SeqCst);
    gates.holds_care.store(true, Ordering::SeqCst);
    for key in 0..=KEYS {
        assert!(put(&group, &[key]));
        // The first is taken out of the ring before the others come into it.
        wait_until(|| gates.puts.load(Ordering::SeqCst) == 1);
    }
    gates.holds_puts.store(false, Ordering::SeqCst);
    wait_until(|| gates.care.load(Ordering::SeqCst) == 1);
    assert_eq!(gates.puts.load(Ordering::SeqCst), u64::from(KEYS) + 1, "all were made");
    (group, in_flight, gates)
}

#[test]
fn nobody_is_told_of_a_lot_before_it_is_durable() {
    let directory = directory();
    let (group, in_flight, gates) = held(&directory, true);
    let follower = group.device(0).expect("it is there");
    let lacks = |key: u8| in_flight.current((hash_of(&[key]), &[key]), 0b11) == 0b10;
    assert!(follower.queued() > 0 && !lacks(0), "the first was made by itself");
    assert!((1..=KEYS).all(lacks), "they are not durable");
    gates.holds_care.store(false, Ordering::SeqCst);
    wait_until(|| follower.queued() == 0);
    assert!(!(0..=KEYS).any(lacks));
    group.devices().for_each(|device| device.stop());
}

#[test]
fn a_lot_that_does_not_become_durable_was_not_made() {
    let directory = directory();
    let (group, in_flight, gates) = held(&directory, false);
    let follower = group.device(0).expect("it is there");
    gates.refuses_care.store(true, Ordering::SeqCst);
    gates.holds_care.store(false, Ordering::SeqCst);
    wait_until(|| follower.queued() == 0);
    let reached = |key: u8| in_flight.reached((hash_of(&[key]), &[key]), 0b11);
    assert_eq!(reached(0), 0b11);
    assert!((1..=KEYS).all(|key| reached(key) == 0b10), "they are in doubt");
    group.devices().for_each(|device| device.stop());
}
