//! A write that is made on the primary and not yet in the rings of the others when members leave.

use super::pair::{directory, engine, pair, put, wait_until};
use crate::device::{Decided, Decision, If, Write};
use crate::filter::hash_of;
use crate::in_flight::{InFlight, Torn};
use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
use coreplane_engine::{Result, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Makes the device's own processor wait.
#[derive(Default)]
struct Lags(AtomicBool);

impl Interceptor for Lags {
    type Held<'a> = ();

    fn begin(&self, _call: Call<'_>) -> Result<()> {
        let is_processor =
            || std::thread::current().name().is_some_and(|name| name.starts_with("coreplane-d"));
        while self.0.load(Ordering::SeqCst) && is_processor() {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// The primary has left, and its successor has made the writes that were in its ring by then. A write that comes
/// into the ring after that is not acknowledged before the successor has it.
#[test]
fn a_write_is_on_the_successor_of_a_primary_that_left_meanwhile() {
    let directory = directory();
    let (successor, around) = (engine(&directory, 0), Arc::new(Lags::default()));
    let lags = Intercepted { engine: Arc::clone(&successor), around: Arc::clone(&around) };
    let in_flight = Arc::new(InFlight::new());
    let group = pair([Arc::new(lags), engine(&directory, 1)], &in_flight, true);
    let options = WriteOptions { sequence: Some(1), ..WriteOptions::default() };
    let (key, put) = (b"key", Some((b"value".as_slice(), None)));
    let decision =
        Decision { hash: hash_of(key), decided: Decided { key, put }, options: &options };
    let of_key = (decision.hash, key.as_slice());
    let (order, then) = (group.order_of(&[of_key]).expect("members"), group.states.now());
    in_flight.begin(of_key, 1, order.asked(), false);
    let primary = group.device(order.asked()).expect("it is there");
    decision.decided.make(&primary.engine, &options).expect("made on the primary");
    group.states.begin_change();
    group.set_members(0b01, 0, |_| true);
    around.0.store(true, Ordering::SeqCst);
    let is_made = group.hand_to_followers(&order, &decision, (0b10, then)).is_ok();
    let found = successor.get(key).expect("get");
    around.0.store(false, Ordering::SeqCst);
    group.devices().for_each(|device| device.stop());
    assert!(is_made);
    assert_eq!(found.as_deref(), Some(b"value".as_slice()));
}

/// A write is taken back while it lies in the ring of a follower, which does not have its key yet: the follower does
/// not keep the key.
#[test]
fn a_write_that_is_taken_back_is_on_no_follower_later() {
    let directory = directory();
    let [follower, primary] = [0, 1].map(|number| engine(&directory, number));
    let around = Arc::new(Lags::default());
    let lags = Intercepted { engine: Arc::clone(&follower), around: Arc::clone(&around) };
    let in_flight = Arc::new(InFlight::new());
    let group = pair([Arc::new(lags), Arc::clone(&primary)], &in_flight, true);
    let options = WriteOptions { sequence: Some(group.draw(None)), ..WriteOptions::default() };
    let (key, put) = (b"key", Some((b"value".as_slice(), None)));
    let decision =
        Decision { hash: hash_of(key), decided: Decided { key, put }, options: &options };
    in_flight.begin((decision.hash, key), 1, 1, false);
    let _outcome = primary.put(key, b"value", &options).expect("made on the primary");
    around.0.store(true, Ordering::SeqCst);
    let _way = group.follow(group.device(0).expect("it is there"), &decision, true);
    std::thread::scope(|scope| {
        let takes_back = scope.spawn(|| {
            let mut torn = Torn { made: 0b10, asked: 1, old: Some(None), known: u64::MAX };
            group.take_back(&mut torn, key)
        });
        wait_until(|| primary.get(key).expect("get").is_none());
        // It is over within that time if it does not wait for the ring.
        let since = Instant::now();
        wait_until(|| takes_back.is_finished() || since.elapsed() > Duration::from_millis(300));
        around.0.store(false, Ordering::SeqCst);
        takes_back.join().expect("no panic").expect("it is taken back");
    });
    group.device(0).expect("it is there").drain();
    let found = follower.get(key).expect("get");
    group.devices().for_each(|device| device.stop());
    assert_eq!(found, None);
}

/// No device may have the record of the members: no write is made the fast way, and any other is taken back.
#[test]
fn a_write_is_not_answered_while_the_members_are_unproven() {
    let directory = directory();
    let engines = [0, 1].map(|number| engine(&directory, number));
    let group = pair(engines, &Arc::new(InFlight::new()), false);
    group.states.set_proven(false);
    let (key, options) = (b"key".as_slice(), WriteOptions::default());
    let is_made_fast = put(&group, key);
    let mut write = Write::put((key, b"value"), If::Any, &options);
    let is_made = group.write(hash_of(key), &options, &mut write).is_ok();
    let device = group.device(1).expect("it is there");
    let found = device.engine.call(|it| it.get(key)).expect("get");
    group.states.set_proven(true);
    let is_made_then = put(&group, key);
    group.devices().for_each(|device| device.stop());
    assert_eq!((is_made_fast, is_made, found), (false, false, None));
    assert!(is_made_then);
}
