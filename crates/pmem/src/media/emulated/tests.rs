//! The model's arithmetic, on a clock that only waits advance.

use super::*;
use crate::space::set_thread_number;
use std::sync::Mutex;

#[derive(Debug)]
struct Fake {
    now: AtomicU64,
    /// The mode of each wait.
    waits: Mutex<Vec<Wait>>,
}

impl Clock for Fake {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wait_until(&self, time: u64, wait: Wait) {
        self.now.fetch_max(time, Ordering::Relaxed);
        self.waits.lock().unwrap().push(wait);
    }
}

fn model(profile: &str) -> Model<Fake> {
    let clock = Fake { now: AtomicU64::new(1), waits: Mutex::default() };
    Model::new(profile.parse().unwrap(), clock)
}

/// Runs `action` as the thread with that number.
fn by(number: usize, action: impl FnOnce()) {
    let own = set_thread_number(number);
    action();
    set_thread_number(own);
}

/// Nanoseconds that `action` takes by the model's clock.
fn time(model: &Model<Fake>, action: impl FnOnce()) -> u64 {
    let start = model.clock.now();
    action();
    model.clock.now() - start
}

/// One byte a nanosecond, four channels.
const EVEN: &str = "pcm,read=300,write=1000,read-gbps=1,write-gbps=1,channels=4";

#[test]
fn a_fence_waits_for_transfer_and_latency_of_the_whole_granule() {
    let model = model(EVEN);
    assert_eq!(time(&model, || model.fence()), 0, "nothing was flushed");
    let persist = |offset, len| {
        time(&model, || {
            model.flush(offset, len);
            model.fence();
        })
    };
    assert_eq!(persist(0, 64), 256 + 1000);
    assert_eq!(persist(64, 128), 256 + 1000);
    assert_eq!(persist(192, 128), 256 + 1000, "two granules on two channels");
    assert_eq!(persist(0, 4 * 256), 256 + 1000, "all channels at once");
    assert_eq!(persist(0, 4 * 256 * 10), 10 * 256 + 1000, "ten granules a channel");
    assert_eq!(time(&model, || model.flush(0, 64)), 0, "a flush alone does not wait");
}

#[test]
fn lines_of_one_granule_before_a_fence_are_one_write() {
    let model = model(EVEN);
    let elapsed = time(&model, || {
        for line in 0..4 {
            model.flush(64 * line, 64);
        }
        model.fence();
    });
    assert_eq!(elapsed, 256 + 1000);
    let elapsed = time(&model, || {
        model.flush(0, 64);
        model.flush(4 * 256, 64);
        model.flush(0, 64);
        model.fence();
    });
    assert_eq!(elapsed, 3 * 256 + 1000, "there and back is three");
}

/// A flush of the first line of the `nth` granule of a channel of four.
fn flush_at(model: &Model<Fake>, channel: u64, nth: u64) {
    model.flush((channel + 4 * nth) * GRANULE, 64);
}

/// By how many nanoseconds the flushes of `action` delay the time when each of four channels is free.
fn service(model: &Model<Fake>, action: impl FnOnce()) -> [u64; 4] {
    let now = model.clock.now();
    let free = || model.writes.iter().map(|it| it.load(Ordering::Relaxed).max(now));
    let before: Vec<u64> = free().collect();
    action();
    let took: Vec<u64> = free().zip(before).map(|(after, before)| after - before).collect();
    took.try_into().unwrap()
}

#[test]
fn writers_contend_with_those_who_have_granules_at_the_same_channel() {
    let model = model(&format!("{EVEN},contention=0.5"));
    let flush =
        |writer, channel, nth| service(&model, || by(writer, || flush_at(&model, channel, nth)));
    assert_eq!(flush(1, 0, 0), [256, 0, 0, 0]);
    assert_eq!(flush(2, 1, 0), [0, 256, 0, 0], "others write, and elsewhere");
    assert_eq!(flush(3, 2, 0), [0, 0, 256, 0]);
    assert_eq!(flush(2, 0, 1), [384, 0, 0, 0], "half as long again, behind the first");
    assert_eq!(flush(3, 0, 2), [512, 0, 0, 0], "two others");
    assert_eq!(flush(3, 0, 3), [512, 0, 0, 0], "its own granules do not count");
    let all = service(&model, || by(1, || model.flush(4 * 4 * 256, 2 * 4 * 256)));
    assert_eq!(all, [2 * 512, 2 * 384, 2 * 384, 2 * 256], "each channel by itself");
}

#[test]
fn a_writer_whose_granules_are_through_does_not_contend_though_it_has_not_fenced() {
    let model = model(&format!("{EVEN},contention=0.5"));
    let flush = |writer, nth| service(&model, || by(writer, || flush_at(&model, 0, nth)))[0];
    assert_eq!(flush(1, 0), 256);
    model.clock.now.store(256, Ordering::Relaxed);
    assert_eq!(flush(2, 1), 384, "the first is through at 257");
    by(2, || model.fence());
    assert_eq!(model.clock.now(), 257 + 384 + 1000);
    assert_eq!(flush(3, 2), 256);
    by(1, || model.fence());
    by(3, || model.fence());
    assert_eq!(model.writers.load(Ordering::Relaxed), 0);
}

#[test]
fn without_contention_writers_queue() {
    let model = model(EVEN);
    by(1, || flush_at(&model, 0, 0));
    by(2, || flush_at(&model, 0, 1));
    assert_eq!(model.writes[0].load(Ordering::Relaxed), 1 + 2 * 256);
}

#[test]
fn all_that_waits_does_so_as_the_profile_says() {
    for (text, wait) in [("", Wait::Spin), (",wait=spin", Wait::Spin), (",wait=yield", Wait::Yield)]
    {
        let model = model(&format!("{EVEN}{text}"));
        let elapsed = time(&model, || {
            model.flush(0, 64);
            model.fence();
            model.read(0, 64, &|| {});
        });
        assert_eq!(elapsed, (256 + 1000) + (64 + 300), "the times are the same");
        assert_eq!(*model.clock.waits.lock().unwrap(), [wait; 2]);
    }
}

#[test]
fn a_read_waits_for_its_bytes_once() {
    let model = model(EVEN);
    let touched = AtomicU64::new(0);
    let touch = || {
        touched.fetch_add(1, Ordering::Relaxed);
    };
    assert_eq!(time(&model, || model.read(8, 8, &touch)), 64 + 300);
    assert_eq!(time(&model, || model.read(0, 1024, &touch)), 256 + 300, "four channels");
    assert_eq!(time(&model, || model.read(0, 8 * 256, &touch)), 512 + 300);
    assert_eq!(touched.load(Ordering::Relaxed), 3);
}

#[test]
fn a_real_operation_that_takes_longer_is_not_lengthened() {
    let model = model(EVEN);
    let slow = || model.clock.wait_until(model.clock.now() + 5000, Wait::Spin);
    assert_eq!(time(&model, || model.read(0, 64, &slow)), 5000);
}

#[test]
fn stalls_come_as_often_as_asked_and_always_the_same() {
    let stalls = |seed: u64| -> Vec<usize> {
        let model = model(&format!("{EVEN},jitter=0.1,stall=50,seed={seed}"));
        (0..10_000).filter(|_| model.stall_ns() == 50_000).collect()
    };
    assert_eq!(stalls(7), stalls(7));
    assert_ne!(stalls(7), stalls(8));
    let count = stalls(7).len();
    assert!((900..=1100).contains(&count), "{count} of 10,000");
    let model = model(&format!("{EVEN},jitter=1,stall=50"));
    let elapsed = time(&model, || {
        model.flush(0, 64);
        model.fence();
    });
    assert_eq!(elapsed, 256 + 50_000 + 1000);
}

#[test]
fn a_profile_is_what_it_prints() {
    for name in Profile::names() {
        assert_eq!(name.parse::<Profile>().unwrap().to_string(), name);
    }
    for text in ["optane,write=200,jitter=0.001,seed=3", "pcm,wait=yield"] {
        assert_eq!(text.parse::<Profile>().unwrap().to_string(), text);
    }
    assert_eq!("pcm,wait=spin".parse::<Profile>().unwrap().to_string(), "pcm");
    assert!("none,wait=yield".parse::<Profile>().unwrap().is_none());
    assert!("none".parse::<Profile>().unwrap().is_none());
    assert!(!"none,read=500".parse::<Profile>().unwrap().is_none());
    for wrong in
        ["", "optan", "optane,", "optane,jitter", "optane,jitter=2", "pcm,channels=0", "pcm,x=1"]
    {
        assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
    }
    for wrong in ["pcm,write-gbps=0", "pcm,read-gbps=NaN", "pcm,read=-1", "pcm,wait=sleep"] {
        assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
    }
}
