//! Hedged reads of a device that hangs: it is replaced, or comes second, meanwhile.

use super::pair::{directory, engine, pair, wait_until};
use crate::device::{Device, Guarded};
use crate::filter::hash_of;
use crate::group::hedge;
use crate::in_flight::InFlight;
use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
use coreplane_engine::{Result, StorageEngine, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Holds gets until it is released.
#[derive(Default)]
struct Hangs {
    gets: AtomicU64,
    is_released: AtomicBool,
}

impl Interceptor for Hangs {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        if matches!(call, Call::Get) {
            self.gets.fetch_add(1, Ordering::SeqCst);
            wait_until(|| self.is_released.load(Ordering::SeqCst));
        }
        Ok(())
    }
}

/// Answers a get when another device is in one.
struct ComesFirst(Arc<Hangs>);

impl Interceptor for ComesFirst {
    type Held<'a> = ();

    fn begin(&self, call: Call<'_>) -> Result<()> {
        if matches!(call, Call::Get) {
            wait_until(|| self.0.gets.load(Ordering::SeqCst) > 0);
        }
        Ok(())
    }
}

/// Its caller does not look before another device is in the place: that one will never answer.
#[test]
fn a_read_does_not_wait_for_a_device_that_was_replaced() {
    let directory = directory();
    let around = Arc::new(Hangs::default());
    let hangs = Intercepted { engine: engine(&directory, 0), around: Arc::clone(&around) };
    let group = pair([Arc::new(hangs), engine(&directory, 1)], &Arc::new(InFlight::new()), true);
    let asked = Arc::clone(group.device(0).expect("it is there"));
    let (of, first) = (Arc::clone(&group), Arc::clone(&asked));
    let reader = std::thread::spawn(move || {
        let key = (hash_of(b"key"), b"key".as_slice());
        hedge::read(&of, &first, key, false, &mut |_| {}).map(|found| found.is_some())
    });
    wait_until(|| around.gets.load(Ordering::SeqCst) > 0);
    let another = Guarded::new(engine(&directory, 2)).expect("it is there");
    group.place(Arc::new(Device::new(asked.at, another)));
    asked.give_up();
    wait_until(|| reader.is_finished());
    let found = reader.join().expect("no panic").expect("no error");
    assert!(!found, "the device is chosen anew");
    around.is_released.store(true, Ordering::SeqCst);
    asked.stop();
    group.devices().for_each(|device| device.stop());
}

/// The caller is shown its record without a lock: the processor of a device that comes second goes on.
#[test]
fn a_device_that_comes_second_does_not_wait_for_the_caller() {
    let directory = directory();
    let around = Arc::new(Hangs::default());
    let hangs = Intercepted { engine: engine(&directory, 0), around: Arc::clone(&around) };
    let comes_first = ComesFirst(Arc::clone(&around));
    let comes_first = Intercepted { engine: engine(&directory, 1), around: Arc::new(comes_first) };
    let engines: [Arc<dyn StorageEngine>; 2] = [Arc::new(hangs), Arc::new(comes_first)];
    let group = pair(engines, &Arc::new(InFlight::new()), true);
    let options = WriteOptions { sequence: Some(1), ..WriteOptions::default() };
    for device in group.devices() {
        let put = device.engine.call(|it| it.put(b"key", b"value", &options));
        assert!(put.expect("put").written().is_some());
    }
    let (late, mut is_shown) = (group.device(0).expect("it is there"), false);
    let key = (hash_of(b"key"), b"key".as_slice());
    let found = hedge::read(&group, late, key, true, &mut |_| {
        assert!(late.call().is_some());
        around.is_released.store(true, Ordering::SeqCst);
        wait_until(|| late.call().is_none());
        is_shown = true;
    });
    assert_eq!(
        found.expect("no error").map(|(found, device)| (found.hit, device)),
        Some((true, 1))
    );
    assert!(is_shown);
    group.devices().for_each(|device| device.stop());
}
