//! The model's arithmetic, on a clock that only waits move.

use super::*;

#[derive(Debug, Default)]
struct Fake(AtomicU64);

impl Clock for Fake {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wait_until(&self, time: u64) {
        self.0.fetch_max(time, Ordering::Relaxed);
    }
}

fn model(profile: &str) -> Model<Fake> {
    Model::new(profile.parse().unwrap(), Fake(AtomicU64::new(1)))
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

#[test]
fn writers_on_one_channel_queue_and_contend() {
    let model = model(&format!("{EVEN},contention=0.5"));
    std::thread::scope(|scope| {
        scope.spawn(|| model.flush(0, 64)).join().unwrap();
        scope.spawn(|| model.flush(4 * 256, 64)).join().unwrap();
    });
    // The first took 256; the second waited for it and took half as long again.
    let free = model.writes[0].load(Ordering::Relaxed);
    assert_eq!(free, 1 + 256 + 384);
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
    let slow = || model.clock.wait_until(model.clock.now() + 5000);
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
    let text = "optane,write=200,jitter=0.001,seed=3";
    assert_eq!(text.parse::<Profile>().unwrap().to_string(), text);
    assert!("none".parse::<Profile>().unwrap().is_none());
    assert!(!"none,read=500".parse::<Profile>().unwrap().is_none());
    for wrong in
        ["", "optan", "optane,", "optane,jitter", "optane,jitter=2", "pcm,channels=0", "pcm,x=1"]
    {
        assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
    }
    for wrong in ["pcm,write-gbps=0", "pcm,read-gbps=NaN", "pcm,read=-1"] {
        assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
    }
}
