//! A processor that sleeps, and places in its ring that are given up.

use super::pair::pair;
use crate::device::Drained;
use crate::device::interceptor::{Call, Intercepted, Interceptor};
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use coreplane_bptree::Bptree;
use coreplane_engine::{Error, Result, StorageEngine, WriteOptions};
use coreplane_pmem::epoch::pin_in;
use coreplane_pmem::spin::Patience;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Refuses puts once it is full.
#[derive(Default)]
struct Fills(AtomicBool);

impl Interceptor for Fills {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        let is_refused = matches!(call, Call::Put(_)) && self.0.load(Ordering::SeqCst);
        let full = Error::NoSpace { needed: 1, reclaimable: 0 };
        if is_refused { Err(full) } else { Ok(()) }
    }
}

type Step = Box<dyn FnOnce() + Send>;

/// Executes a step in the next put, before the engine.
#[derive(Default)]
struct Interrupted(Mutex<Option<Step>>);

impl Interceptor for Interrupted {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        let step = if matches!(call, Call::Put(_)) { self.0.lock().take() } else { None };
        step.into_iter().for_each(|step| step());
        Ok(())
    }
}

/// Two devices: writes wait for the second, and the first follows.
fn group<I: Interceptor + 'static>(directory: &tempfile::TempDir, around: &Arc<I>) -> Arc<Group> {
    let engine = |number: u8| -> Arc<dyn StorageEngine> {
        let (path, options) = (directory.path().join(number.to_string()), Default::default());
        let media = coreplane_pmem::MediaChoice::Auto;
        Arc::new(Bptree::create(&path, 1 << 20, 8192, media, &options).expect("create"))
    };
    let around = Arc::clone(around);
    let filled = Arc::new(Intercepted { engine: engine(1), around });
    pair([engine(0), filled], &Arc::new(InFlight::new()), Box::new(|_, _| Ok(())))
}

/// Otherwise it looks by itself a tenth of a second later, and holds up the writes behind the place.
#[test]
fn a_processor_that_sleeps_is_woken_for_a_place_that_is_dropped() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let around = Arc::new(Fills::default());
    let group = group(&directory, &around);
    let follower = group.device(0).expect("it is there");
    let (options, begun) = (WriteOptions::default(), Instant::now());
    let put = |key: &[u8]| group.put_fast(hash_of(key), (key, b"value"), &options, &pin_in());
    for round in 0..20_u64 {
        let [made, refused] = [2 * round, 2 * round + 1].map(u64::to_le_bytes);
        assert!(put(&made).is_some());
        let is_asleep = || follower.is_asleep();
        while follower.queued() > 0 || !is_asleep() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it has nothing to do");
            std::thread::yield_now();
        }
        let submitted = follower.lines_submitted();
        around.0.store(true, Ordering::SeqCst);
        assert!(put(&refused).is_none());
        around.0.store(false, Ordering::SeqCst);
        assert!(follower.lines_submitted() > submitted, "it had a place");
        assert!(!is_asleep() || follower.queued() == 0, "round {round}: it sleeps");
    }
    group.devices().for_each(|device| device.stop());
}

/// The change waits for what is in the ring, and the write, once it is made on the primary, for the change.
#[test]
fn a_change_of_the_members_does_not_wait_for_a_write_that_waits_for_it() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let around = Arc::new(Interrupted::default());
    let group = group(&directory, &around);
    let put = |group: &Arc<Group>, key: &[u8]| {
        let options = WriteOptions::default();
        group.put_fast(hash_of(key), (key, b"value"), &options, &pin_in())
    };
    let (drained, changing) = (Arc::new(Mutex::new(None)), Arc::clone(&group));
    let (noted, thread) = (Arc::clone(&drained), Arc::new(Mutex::new(None)));
    let kept = Arc::clone(&thread);
    let step = move || {
        // Another write lies in the ring behind the place of the first one.
        assert!(put(&changing, b"another").is_some());
        changing.states.begin_change();
        let drain = move || {
            let follower = changing.device(0).expect("it is there");
            let mut patience = Patience::new(Duration::from_secs(5));
            *noted.lock() = Some(follower.drain_within(Some(&mut patience)));
            changing.states.stay();
        };
        *kept.lock() = Some(std::thread::spawn(drain));
    };
    *around.0.lock() = Some(Box::new(step));
    assert!(put(&group, b"key").is_some());
    let thread = thread.lock().take().expect("the step was executed");
    thread.join().expect("no panic");
    assert!(
        matches!(*drained.lock(), Some(Drained::All)),
        "the processor has waited for the place"
    );
    for (device, key) in [(0, b"key".as_slice()), (1, b"key"), (0, b"another"), (1, b"another")] {
        let device = group.device(device).expect("it is there");
        device.drain();
        assert_eq!(device.engine.get(key).expect("get").as_deref(), Some(b"value".as_slice()));
    }
    group.devices().for_each(|device| device.stop());
}
