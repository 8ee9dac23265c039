//! A device that stalls now and then, as media do that level their wear.
//!
//! Time is cut into periods. In each of them the device is paused once, from a moment that is drawn:
//! whoever comes meanwhile waits for the end of the pause. The draws of devices are independent, and
//! the same for the same seed.

use crate::record::mix;
use coreplane_engine::{
    Batch, Doubt, DurableListener, Engine, Entry, Expected, Found, Horizon, Limits, Mutation,
    Ordered, Outcome, Progress, Record, Result, Stats, UnixMillis, VerifyReport, Visibility,
    WriteOptions, Written,
};
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

/// An engine that pauses.
pub(crate) struct Stalling {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) pauses: Pauses,
    pub(crate) weather: Arc<Weather>,
}

impl Stalling {
    /// Waits for the end of a pause.
    fn come(&self) -> &dyn Engine {
        let weather = &self.weather;
        if weather.is_rough.load(Ordering::Relaxed)
            && let Some(rest) = self.pauses.rest(weather.start.elapsed())
        {
            weather.met.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(rest);
        }
        &*self.engine
    }
}

impl Engine for Stalling {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.come().get_with(key, visibility, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.come().multi_get(keys, visibility, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.come().put(key, value, options)
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.come().insert(key, value, options)
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.come().update(key, value, options)
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.come().delete(key, options)
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.come().compare_and_set(key, expected, value, options)
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.come().modify(key, options, decide)
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.come().apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.come().iterate(cursor, count, visit)
    }

    fn advance_sequence(&self) -> Result<u64> {
        self.engine.advance_sequence()
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.come().changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.engine.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.engine.tombstone_horizon()
    }

    fn len(&self) -> Result<u64> {
        self.engine.len()
    }

    fn clear(&self) -> Result<()> {
        self.come().clear()
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.come().sweep_expired()
    }

    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.engine.commit(horizon)
    }

    fn now(&self) -> UnixMillis {
        self.engine.now()
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        self.engine.is_durable(horizon)
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.engine.wait_durable(horizon)
    }

    fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    fn on_durable(&self, listener: DurableListener) {
        self.engine.on_durable(listener);
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.engine.verify(progress)
    }

    fn doubts(&self) -> Result<Vec<Doubt>> {
        self.engine.doubts()
    }

    fn settle(&self, doubt: &Doubt) -> Result<()> {
        self.engine.settle(doubt)
    }

    fn close(&self) -> Result<()> {
        self.engine.close()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.engine.ordered()
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
