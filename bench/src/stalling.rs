//! A device that stalls now and then, as media do that level their wear.
//!
//! Time is cut into periods. In each of them the device is paused once, from a moment that is drawn:
//! whoever comes meanwhile waits for the end of the pause. The draws of devices are independent, and
//! the same for the same seed.

use crate::record::mix;
use coreplane_engine::Result;
use coreplane_engine::around::{Around, Call};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When a device pauses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pauses {
    pub(crate) seed: u64,
    pub(crate) period: Duration,
    pub(crate) length: Duration,
}

impl Pauses {
    /// How much longer a pause lasts that there is at this time; none if there is none.
    fn rest(&self, at: Duration) -> Option<Duration> {
        let (at, length) = (at.as_nanos(), self.length.as_nanos());
        let period = self.period.as_nanos().max(1);
        let number = at / period;
        let free = period.saturating_sub(length).max(1);
        let begin = number * period + u128::from(mix(self.seed ^ mix(number as u64))) % free;
        let end = begin + length;
        (begin..end).contains(&at).then(|| Duration::from_nanos((end - at) as u64))
    }
}

/// What all devices of a matrix have in common.
#[derive(Debug)]
pub(crate) struct Weather {
    pub(crate) start: Instant,
    /// Devices pause only while it is so.
    pub(crate) is_rough: AtomicBool,
    /// Operations that met a pause.
    pub(crate) met: AtomicU64,
}

/// A device that pauses, for whoever reads or writes.
pub(crate) struct Stalling {
    pub(crate) pauses: Pauses,
    pub(crate) weather: Arc<Weather>,
}

impl Around for Stalling {
    type Held<'a> = ();

    /// Waits for the end of a pause.
    fn begin(&self, call: Call<'_>) -> Result<()> {
        let weather = &self.weather;
        if !matches!(call, Call::Care)
            && weather.is_rough.load(Ordering::Relaxed)
            && let Some(rest) = self.pauses.rest(weather.start.elapsed())
        {
            weather.met.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(rest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_pauses_once_in_a_period_for_so_long() {
        let (period, length) = (Duration::from_millis(10), Duration::from_millis(1));
        let paused = |seed: u64, millisecond: u64| {
            let pauses = Pauses { seed, period, length };
            let step = |at: &u64| pauses.rest(Duration::from_micros(*at)).is_some();
            (millisecond * 1000..(millisecond + 1) * 1000).filter(step).count()
        };
        for seed in 0..3 {
            for number in 0..50 {
                let in_period: usize = (0..10).map(|at| paused(seed, number * 10 + at)).sum();
                assert!((999..=1001).contains(&in_period), "{in_period}");
            }
        }
        let both = (0..2000).filter(|at| paused(1, *at) > 0 && paused(2, *at) > 0).count();
        assert!(both > 0 && both < 160, "{both}: independent of each other");
    }
}
