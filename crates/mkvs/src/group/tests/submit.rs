//! A processor that sleeps, and places in its ring that are given up.

use super::pair::{directory, engine, pair, put, wait_until};
use crate::device::Drained;
use crate::group::Group;
use crate::in_flight::InFlight;
use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin::Patience;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    let around = Arc::clone(around);
    let filled = Arc::new(Intercepted { engine: engine(directory, 1), around });
    pair([engine(directory, 0), filled], &Arc::new(InFlight::new()), true)
}

/// Otherwise it looks by itself a tenth of a second later, and holds up the writes behind the place.
#[test]
fn a_processor_that_sleeps_is_woken_for_a_place_that_is_dropped() {
    let directory = directory();
    let around = Arc::new(Fills::default());
    let group = group(&directory, &around);
    let follower = group.device(0).expect("it is there");
    for round in 0..20_u64 {
        let [made, refused] = [2 * round, 2 * round + 1].map(u64::to_le_bytes);
        assert!(put(&group, &made));
        let is_asleep = || follower.is_asleep();
        wait_until(|| follower.queued() == 0 && is_asleep());
        let submitted = follower.lines_submitted();
        around.0.store(true, Ordering::SeqCst);
        assert!(!put(&group, &refused));
        around.0.store(false, Ordering::SeqCst);
        assert!(follower.lines_submitted() > submitted, "it had a place");
        assert!(!is_asleep() || follower.queued() == 0, "round {round}: it sleeps");
    }
    group.devices().for_each(|device| device.stop());
}

/// The change waits for what is in the ring, and the write, once it is made on the primary, for the change.
#[test]
fn a_change_of_the_members_does_not_wait_for_a_write_that_waits_for_it() {
    let directory = directory();
    let around = Arc::new(Interrupted::default());
    let group = group(&directory, &around);
    let (drained, changing) = (Arc::new(Mutex::new(None)), Arc::clone(&group));
    let (noted, thread) = (Arc::clone(&drained), Arc::new(Mutex::new(None)));
    let kept = Arc::clone(&thread);
    let step = move || {
        // Another write lies in the ring behind the place of the first one.
        assert!(put(&changing, b"another"));
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
    assert!(put(&group, b"key"));
    let thread = thread.lock().take().expect("the step was executed");
    thread.join().expect("no panic");
    assert!(
        matches!(*drained.lock(), Some(Drained::All)),
        "the processor has waited for the place"
    );
    for (device, key) in [(0, b"key".as_slice()), (1, b"key"), (0, b"another"), (1, b"another")] {
        let device = group.device(device).expect("it is there");
        device.drain();
        let found = device.engine.call(|it| it.get(key)).expect("get");
        assert_eq!(found.as_deref(), Some(b"value".as_slice()));
    }
    group.devices().for_each(|device| device.stop());
}
