//! A processor interrupts other threads for callers that wait for its answers, and not for writes.

use super::pair::{directory, engine, pair, put, wait_until};
use crate::device::{Asked, Device};
use crate::in_flight::InFlight;
use crate::stats::End;
use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
use coreplane_engine::Result;
use coreplane_pmem::background;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Calls under each of the two policies, the batch policy last.
#[derive(Debug, Default)]
struct Seen([AtomicU64; 2]);

impl Seen {
    fn note(&self) {
        self.0[usize::from(background::is_batch())].fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> [u64; 2] {
        self.0.each_ref().map(|it| it.load(Ordering::SeqCst))
    }
}

impl Interceptor for Seen {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        if matches!(call, Call::Put(_)) {
            self.note();
        }
        Ok(())
    }
}

impl Asked for Seen {
    fn run(&self, device: &Device, asked_at: Instant) {
        // By this it knows that it has answered.
        device.pace.note(End::Won, asked_at, Instant::now());
        self.note();
    }
}

#[test]
fn a_processor_interrupts_others_for_waiting_callers_alone() {
    if !background::spawn("probe", background::is_batch).unwrap().join().unwrap() {
        // The tests were started with another policy, or the system refuses this one: all threads are alike.
        return;
    }
    let directory = directory();
    let (writes, reads) = (Arc::<Seen>::default(), Arc::<Seen>::default());
    let following =
        Arc::new(Intercepted { engine: engine(&directory, 0), around: Arc::clone(&writes) });
    let in_flight = Arc::new(InFlight::new());
    let group = pair([following, engine(&directory, 1)], &in_flight, true);
    let follower = group.device(0).expect("it is there");
    let put = |number: u64| {
        assert!(put(&group, &number.to_le_bytes()));
        wait_until(|| follower.queued() == 0);
    };
    (0..10).for_each(put);
    let [usual, batch] = writes.now();
    assert_eq!((usual, batch), (0, 10), "no caller waits for them");
    // The first answers are still given under the batch policy.
    wait_until(|| {
        let answers = reads.now().iter().sum::<u64>();
        assert!(follower.ask(&group, Arc::clone(&reads) as Arc<dyn Asked>));
        wait_until(|| reads.now().iter().sum::<u64>() > answers);
        reads.now()[0] >= 2
    });
    let mut number = 10;
    while writes.now()[1] == 10 {
        put(number % 100);
        number += 1;
        assert!(number < 1 << 20, "it never comes");
    }
    assert!(number > 100, "more callers may have come: {number}");
    group.devices().for_each(|device| device.stop());
}
