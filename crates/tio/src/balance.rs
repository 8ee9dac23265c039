//! The binding of devices to queue sets (section 5 of the paper).
//!
//! ```text
//!   Tio_list_load      set 0      set 1      set 2      set 3
//!   IoT_number             2          1          3          0
//!   T_interval         20 ms      10 ms     300 ms          0
//!   K                  10 ms      10 ms     100 ms   infinite     ─▶ a new device goes to set 3, and the next to set 2
//! ```
//!
//! K is the mean interval of a set's devices. It does not measure load: a set with two devices of 10 ms has twice the
//! load of a set with one, and the same K. [`Policy::Rate`] sums the rates of the devices (writes a second), and
//! takes the set with the smallest sum.
//!
//! The data that a device has written stays in the partition of the set that it was bound to at the time. So it may
//! be bound anew at any time, and no two of its requests change their order.

use crate::tio::Source;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How the queue set of a new device is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// As in the paper: the set with the highest mean interval takes the new device; a set without devices comes
    /// first.
    Paper,
    /// The set with the smallest sum of rates takes the new device.
    #[default]
    Rate,
    /// The number of the connection (in place of the process id) modulo the number of sets, as in the paper for
    /// unknown devices.
    Pid,
    /// A hash of the device's number, modulo the number of sets.
    Hash,
}

/// `paper`, `rate`, `pid`, `hash`.
impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "paper" => Ok(Self::Paper),
            "rate" => Ok(Self::Rate),
            "pid" => Ok(Self::Pid),
            "hash" => Ok(Self::Hash),
            _ => Err(format!("`{text}` is none of paper, rate, pid, hash")),
        }
    }
}

/// The interval of a device about which nothing is known yet.
const INTERVAL_UNKNOWN: Duration = Duration::from_secs(1);
/// The number of writes after which an interval is first estimated; then after twice as many each time.
const ARRIVALS_MIN: u64 = 16;

/// Sets are even if their rates differ by less than this part of the mean.
const EVEN: f64 = 0.04;
/// The most devices for which sets are evened out.
const EVEN_OUT_MAX: usize = 512;

/// A device, or a connection that stands in for one.
type Key = (bool, u64);

/// A row of the paper's table.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Devices that are bound to the set.
    pub devices: u64,
    /// The sum of their intervals, in seconds.
    pub interval_s: f64,
    /// The sum of their rates, in writes a second.
    pub rate: f64,
}

impl Load {
    fn add(&mut self, interval: Duration) {
        self.devices += 1;
        self.interval_s += interval.as_secs_f64();
        self.rate += 1.0 / interval.as_secs_f64();
    }
}

#[derive(Debug)]
struct Bound {
    set: usize,
    interval: Duration,
    is_stated: bool,
    /// Connections that write its data.
    connections: u64,
    writes: u64,
    /// The arrival of the first writes, and their number.
    first: Option<(Instant, u64)>,
}

/// Limits an interval so that sums of intervals and rates are finite.
fn possible(interval: Duration) -> Duration {
    interval.clamp(Duration::from_micros(1), Duration::from_secs(24 * 60 * 60))
}

/// The binding of devices to sets, for a [`Disk`](crate::Disk), and for callers with their own queue sets.
#[derive(Debug)]
pub struct Balance {
    policy: Policy,
    loads: Vec<Load>,
    /// The part of the loads from devices that are not in the table.
    fixed: Vec<Load>,
    bound: HashMap<Key, Bound>,
}

fn hash(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Balance {
    /// Over `sets` sets, at least one.
    #[must_use]
    pub fn new(policy: Policy, sets: usize) -> Self {
        let sets = sets.max(1);
        let loads = vec![Load::default(); sets];
        Self { policy, fixed: loads.clone(), loads, bound: HashMap::new() }
    }

    /// The paper's table.
    #[must_use]
    pub fn loads(&self) -> Vec<Load> {
        self.loads.clone()
    }

    fn choose(&self, source: &Source) -> usize {
        let sets = self.loads.len() as u64;
        let by = |value: &dyn Fn(&Load) -> f64| {
            let rows = self.loads.iter().enumerate();
            // Of equal sets the first.
            rows.min_by(|(_, one), (_, other)| value(one).total_cmp(&value(other)))
                .map_or(0, |it| it.0)
        };
        match self.policy {
            Policy::Paper => by(&|load| match load.devices {
                0 => f64::NEG_INFINITY,
                devices => -load.interval_s / devices as f64,
            }),
            Policy::Rate => by(&|load| load.rate),
            Policy::Pid => (source.connection % sets) as usize,
            Policy::Hash => (hash(source.key().1) % sets) as usize,
        }
    }

    /// Recomputes the sums of a set: a subtraction from a sum of floating-point numbers would leave a remainder.
    fn count(&mut self, set: usize) {
        let Some((load, fixed)) = self.loads.get_mut(set).zip(self.fixed.get(set)) else { return };
        *load = *fixed;
        for bound in self.bound.values().filter(|bound| bound.set == set) {
            load.add(bound.interval);
        }
    }

    /// Announces a connection: its device is bound to a set, unless it already is.
    pub fn join(&mut self, source: &Source) -> usize {
        let key = source.key();
        if let Some(bound) = self.bound.get_mut(&key) {
            bound.connections += 1;
            let set = bound.set;
            if let Some(stated) = source.interval {
                (bound.interval, bound.is_stated) = (possible(stated), true);
                self.count(set);
            }
            return set;
        }
        let interval = possible(source.interval.unwrap_or(INTERVAL_UNKNOWN));
        let set = self.choose(source);
        let is_stated = source.interval.is_some();
        let bound = Bound { set, interval, is_stated, connections: 1, writes: 0, first: None };
        self.bound.insert(key, bound);
        if let Some(load) = self.loads.get_mut(set) {
            load.add(interval);
        }
        set
    }

    /// Adds a device to a set permanently. Only its share in the sums is kept: the caller, which may have a million
    /// devices, records where each is.
    pub fn add_fixed(&mut self, set: usize, interval: Option<Duration>) {
        let interval = possible(interval.unwrap_or(INTERVAL_UNKNOWN));
        if let Some((load, fixed)) = self.loads.get_mut(set).zip(self.fixed.get_mut(set)) {
            load.add(interval);
            fixed.add(interval);
        }
    }

    /// Removes a connection; with the last one of its device, its load.
    pub fn leave(&mut self, source: &Source) {
        let key = source.key();
        let Some(bound) = self.bound.get_mut(&key) else { return };
        bound.connections -= 1;
        if bound.connections == 0 {
            let set = bound.set;
            self.bound.remove(&key);
            self.count(set);
        }
    }

    /// Binds devices anew where the sums of rates are not even, under [`Policy::Rate`]: a device moves from the set
    /// with the greatest sum to the one with the smallest, or two devices are exchanged, so that these two sets
    /// become as even as possible. This is needed since devices come and go in any order.
    pub fn even_out(&mut self) {
        if self.policy != Policy::Rate || self.bound.len() > EVEN_OUT_MAX {
            return;
        }
        // Each turn reduces the greatest sum, or ends the loop.
        for _ in 0..self.bound.len() {
            let by_rate = |(_, one): &(usize, &Load), (_, other): &(usize, &Load)| {
                one.rate.total_cmp(&other.rate)
            };
            let all = || self.loads.iter().enumerate();
            let (Some((most, load)), Some((least, other))) =
                (all().max_by(by_rate), all().min_by(by_rate))
            else {
                return;
            };
            let difference = load.rate - other.rate;
            if difference * self.loads.len() as f64 <= EVEN * all().map(|it| it.1.rate).sum::<f64>()
            {
                return;
            }
            let Some((given, taken)) = self.exchange(most, least, difference) else { return };
            for (key, set) in [(Some(given), least), (taken, most)] {
                if let Some(bound) = key.and_then(|key| self.bound.get_mut(&key)) {
                    bound.set = set;
                }
            }
            self.count(most);
            self.count(least);
        }
    }

    /// The device of `most`, and possibly one of `least` in exchange for it, whose exchange makes the two sets most
    /// even; none if no exchange improves them.
    fn exchange(&self, most: usize, least: usize, difference: f64) -> Option<(Key, Option<Key>)> {
        let of = |set: usize| {
            let its = self.bound.iter().filter(move |(_, bound)| bound.set == set);
            its.map(|(key, bound)| (Some(*key), 1.0 / bound.interval.as_secs_f64()))
        };
        let mut taken: Vec<(Option<Key>, f64)> = of(least).collect();
        taken.push((None, 0.0));
        // In an order that does not depend on the map's.
        taken.sort_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)));
        let mut best: Option<(f64, Key, Option<Key>)> = None;
        for (given, rate) in of(most) {
            for (back, other) in &taken {
                let left = (difference - 2.0 * (rate - other)).abs();
                let is_better = best.is_none_or(|(least, key, _)| {
                    left < least || (left == least && given < Some(key))
                });
                if let Some(given) = given.filter(|_| left < difference * 0.99 && is_better) {
                    best = Some((left, given, *back));
                }
            }
        }
        best.map(|(_, given, taken)| (given, taken))
    }

    /// The set for new data of a source.
    #[must_use]
    pub fn set_of(&self, source: &Source) -> usize {
        self.bound.get(&source.key()).map_or_else(|| self.choose(source), |bound| bound.set)
    }

    /// Notes writes of a source that arrived together, and estimates its interval if it was not stated.
    pub fn note_writes(&mut self, source: &Source, count: u64, now: Instant) {
        let key = source.key();
        let Some(bound) = self.bound.get_mut(&key).filter(|bound| !bound.is_stated) else { return };
        let power = bound.writes.checked_ilog2();
        bound.writes = bound.writes.saturating_add(count);
        let (first, together) = *bound.first.get_or_insert((now, count));
        // Nothing is known of the time before the first writes.
        let gaps = bound.writes - together;
        if bound.writes < ARRIVALS_MIN || bound.writes.checked_ilog2() == power || gaps == 0 {
            return;
        }
        let elapsed = now.saturating_duration_since(first).as_secs_f64();
        bound.interval = possible(Duration::from_secs_f64(elapsed / gaps as f64));
        let before = bound.set;
        // As if it had just come: new data goes to the set with the least load.
        bound.set = usize::MAX;
        self.count(before);
        let next = self.choose(source);
        if let Some(bound) = self.bound.get_mut(&key) {
            bound.set = next;
        }
        self.count(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(device: u64, interval_ms: u64) -> Source {
        let interval = Some(Duration::from_millis(interval_ms));
        Source { connection: device, device: Some(device), interval }
    }

    #[test]
    fn rates_are_even_whatever_the_order_in_which_devices_come_and_go() {
        for seed in 0..40_u64 {
            let mut balance = Balance::new(Policy::Rate, 4);
            // From 1 to 100 ms, evenly by their logarithms; the fastest has a tenth of all.
            let mut all: Vec<Source> = (0..24)
                .map(|at| {
                    let interval =
                        Duration::from_micros((1000.0 * 100_f64.powf(at as f64 / 23.0)) as u64);
                    Source { connection: at, device: Some(at), interval: Some(interval) }
                })
                .collect();
            all.sort_by_key(|source| hash(source.connection + 100 * seed));
            for source in &all {
                balance.join(source);
                balance.even_out();
            }
            let even = |balance: &Balance| {
                let rates: Vec<f64> = balance.loads().iter().map(|load| load.rate).collect();
                let mean = rates.iter().sum::<f64>() / 4.0;
                rates.iter().fold(0.0, |most: f64, rate| most.max(*rate)) / mean
            };
            assert!(even(&balance) < 1.1, "{seed}: {}", even(&balance));
            for source in all.iter().filter(|it| it.connection % 5 == 4) {
                balance.leave(source);
                balance.even_out();
            }
            assert!(even(&balance) < 1.1, "{seed}: {}", even(&balance));
            assert_eq!(balance.loads().iter().map(|load| load.devices).sum::<u64>(), 20);
        }
    }

    #[test]
    fn the_paper_fills_empty_sets_and_then_that_of_the_highest_mean() {
        let mut balance = Balance::new(Policy::Paper, 3);
        assert_eq!(balance.join(&device(1, 10)), 0);
        assert_eq!(balance.join(&device(2, 100)), 1);
        assert_eq!(balance.join(&device(3, 40)), 2);
        assert_eq!(balance.join(&device(4, 20)), 1, "its mean is 100");
        // Now its mean is 60, and still the highest.
        assert_eq!(balance.join(&device(5, 10)), 1);
        // (100 + 20 + 10) / 3 = 43.
        assert_eq!(balance.join(&device(6, 10)), 1);
        assert_eq!(balance.join(&device(7, 10)), 2);
        balance.leave(&device(1, 10));
        assert_eq!(balance.loads()[0], Load::default());
        assert_eq!(balance.join(&device(8, 5)), 0, "it has none any more");
    }

    #[test]
    fn devices_that_came_for_good_count_whatever_else_leaves() {
        let mut balance = Balance::new(Policy::Rate, 2);
        balance.add_fixed(0, Some(Duration::from_millis(10)));
        assert_eq!(balance.join(&device(1, 1000)), 1);
        balance.add_fixed(1, Some(Duration::from_millis(1)));
        balance.leave(&device(1, 1000));
        let fixed = |interval_s| Load { devices: 1, interval_s, rate: 1.0 / interval_s };
        assert_eq!(balance.loads(), [fixed(0.01), fixed(0.001)]);
        assert_eq!(balance.join(&device(2, 10)), 0);
        // There is no set with this number: nothing is counted.
        balance.add_fixed(2, None);
        assert_eq!(balance.loads().len(), 2);
    }

    /// The skew with 200 devices, with intervals from a millisecond to a minute.
    fn skew(policy: Policy) -> f64 {
        let mut balance = Balance::new(policy, 4);
        for number in 0..200_u64 {
            let interval = 1.058_f64.powi((hash(number) % 196) as i32);
            balance.join(&device(number, interval as u64 + 4));
        }
        let rates: Vec<f64> = balance.loads().iter().map(|load| load.rate).collect();
        rates.iter().copied().fold(0.0, f64::max) / (rates.iter().sum::<f64>() / 4.0)
    }

    #[test]
    fn rates_are_balanced_where_no_device_dominates_and_means_are_not() {
        let (rate, paper) = (skew(Policy::Rate), skew(Policy::Paper));
        assert!(rate < 1.1, "{rate}");
        assert!(paper > rate, "{paper} by the paper, {rate} by rates");
    }

    #[test]
    fn an_interval_that_nobody_states_is_estimated() {
        let mut balance = Balance::new(Policy::Rate, 2);
        let unknown = Source::of_connection(9);
        balance.join(&unknown);
        let start = Instant::now();
        for write in 0..ARRIVALS_MIN as u32 {
            balance.note_writes(&unknown, 1, start + write * Duration::from_millis(5));
        }
        let rate: f64 = balance.loads().iter().map(|load| load.rate).sum();
        assert!((rate - 200.0).abs() < 1.0, "{rate}");
        // A stated interval is not estimated.
        balance.join(&device(1, 1000));
        for write in 0..100 {
            balance.note_writes(&device(1, 1000), 1, start + write * Duration::from_millis(5));
        }
        let rate: f64 = balance.loads().iter().map(|load| load.rate).sum();
        assert!((rate - 201.0).abs() < 1.0, "{rate}");
    }

    #[test]
    fn writes_that_arrive_together_are_counted_one_by_one() {
        // The last are more than 2^32 writes.
        for (together, batches, gap_s) in
            [(3, 6, 0.01), (40, 3, 0.1), (7, 100, 1.0), (1 << 31, 9, 4e4)]
        {
            let mut balance = Balance::new(Policy::Rate, 2);
            let source = Source::of_connection(9);
            balance.join(&source);
            let (start, gap) = (Instant::now(), Duration::from_secs_f64(gap_s));
            for batch in 0..batches {
                balance.note_writes(&source, together, start + batch * gap);
            }
            let rate: f64 = balance.loads().iter().map(|load| load.rate).sum();
            let expected = together as f64 / gap_s;
            assert!((rate / expected - 1.0).abs() < 0.01, "{together}: {rate}, not {expected}");
        }
    }

    #[test]
    fn a_device_has_one_set_however_many_connections_it_has() {
        let mut balance = Balance::new(Policy::Rate, 4);
        let first = balance.join(&device(1, 10));
        balance.join(&device(2, 10));
        let again = Source { connection: 77, ..device(1, 10) };
        assert_eq!(balance.join(&again), first);
        balance.leave(&again);
        assert_eq!(balance.set_of(&device(1, 10)), first);
        assert_eq!(balance.loads()[first].devices, 1);
        balance.leave(&device(1, 10));
        assert_eq!(balance.loads()[first].devices, 0);
        for policy in [Policy::Pid, Policy::Hash] {
            let mut balance = Balance::new(policy, 4);
            let sets: Vec<usize> = (0..64).map(|it| balance.join(&device(it, 10))).collect();
            assert!((0..4).all(|set| sets.contains(&set)), "{sets:?}");
        }
    }
}
