//! A device that stalls now and then, as media do that level their wear, or is pulled out.
//!
//! Time is cut into periods. In each of them the device is paused once, from a moment that is drawn:
//! whoever comes meanwhile waits for the end of the pause. The draws of devices are independent, and
//! the same for the same seed. Whatever is asked of a device that was pulled out fails.

use crate::record::mix;
use coreplane_conformance::interceptor::{Call, Interceptor};
use coreplane_engine::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
        let at = at.as_nanos();
        let pause = self.of_period(at / self.period.as_nanos().max(1));
        pause.contains(&at).then(|| Duration::from_nanos((pause.end - at) as u64))
    }

    /// The pause of a period, in nanoseconds.
    fn of_period(&self, number: u128) -> Range<u128> {
        let (period, length) = (self.period.as_nanos().max(1), self.length.as_nanos());
        let free = period.saturating_sub(length).max(1);
        let begin = number * period + u128::from(mix(self.seed ^ mix(number as u64))) % free;
        begin..begin + length
    }

    /// How much of so long a time all of them, which have the same period, pause.
    pub(crate) fn shared_by(all: &[Self], time: Duration) -> Duration {
        let Some(first) = all.first() else { return Duration::ZERO };
        let periods = time.as_nanos() / first.period.as_nanos().max(1);
        let of_period = |number| {
            let pauses = || all.iter().map(|pauses| pauses.of_period(number));
            let begin = pauses().map(|pause| pause.start).max().unwrap_or(0);
            let end = pauses().map(|pause| pause.end).min().unwrap_or(0).min(time.as_nanos());
            end.saturating_sub(begin)
        };
        Duration::from_nanos((0..=periods).map(of_period).sum::<u128>() as u64)
    }
}

/// What all devices of a matrix have in common.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    /// From when on time is cut into periods; there are no pauses before.
    start: OnceLock<Instant>,
    is_over: AtomicBool,
    met: AtomicU64,
    interrupted: AtomicU64,
}

impl Weather {
    /// Devices pause from `start` on: the same at the same time after it, in each run.
    pub(crate) fn begin(&self, start: Instant) {
        self.start.get_or_init(|| start);
    }

    /// They do not any more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Operations that met a pause.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Operations that took over [`INTERRUPTED`], pauses apart.
    pub(crate) fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// How long after the start it is, while there are pauses.
    fn now(&self) -> Option<Duration> {
        let start = self.start.get().filter(|_| !self.is_over.load(Ordering::Relaxed))?;
        Instant::now().checked_duration_since(*start)
    }
}

/// A device that pauses, for whoever reads or writes, and can be pulled out.
pub(crate) struct Stalling {
    pub(crate) pauses: Pauses,
    pub(crate) weather: Arc<Weather>,
    pub(crate) is_out: Arc<AtomicBool>,
}

/// A lookup takes a thousandth of it: who took so long was not run meanwhile.
const INTERRUPTED: Duration = Duration::from_millis(1);

/// An operation, after the pause.
pub(crate) struct Begun<'a> {
    weather: &'a Weather,
    at: Option<Instant>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.at.is_some_and(|at| at.elapsed() > INTERRUPTED) {
            self.weather.interrupted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Interceptor for Stalling {
    type Held<'a> = Begun<'a>;

    /// Waits for the end of a pause: asleep, for a device that stalls takes no processor.
    fn begin(&self, call: Call<'_>) -> Result<Begun<'_>> {
        if !matches!(call, Call::Care)
            && let Some(rest) = self.weather.now().and_then(|now| self.pauses.rest(now))
        {
            self.weather.met.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(rest);
        }
        if self.is_out.load(Ordering::SeqCst) {
            let source = std::io::Error::other("it was pulled out");
            return Err(Error::Io { context: "a device".to_owned(), source });
        }
        let at = self.weather.now().map(|_| Instant::now());
        Ok(Begun { weather: &self.weather, at })
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
        let pauses = [1, 2].map(|seed| Pauses { seed, period, length });
        let step = |at: &u64| {
            pauses.iter().all(|pauses| pauses.rest(Duration::from_micros(*at)).is_some())
        };
        let counted = (0..2_000_000).filter(step).count() as u128;
        let shared = Pauses::shared_by(&pauses, Duration::from_secs(2)).as_micros();
        assert!(shared > 0 && shared.abs_diff(counted) <= 200, "{shared} {counted}");
    }
}
