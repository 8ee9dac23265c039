//! Devices: which queue set a series is bound to (section 5 of the paper).
//!
//! A device is all series with the same tags; they go to one set. It is bound when its first series is made, by the
//! interval that it states, or by the interval of the points with which it arrives. Its later series follow it,
//! whichever connection their points come from: the rows of a device stay in one log.
//!
//! There may be as many devices as series, so the entry of a device is one word: 48 bits of its number, and its
//! set. Two devices with the same 48 bits go to one set, which is harmless. Devices without a series are forgotten
//! when they outnumber the others.

use crate::catalogue::Series;
use coreplane_tio::{Balance, Policy, Source};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The binding of devices to sets.
#[derive(Debug)]
pub(crate) struct Devices {
    balance: Balance,
    sets: u64,
    hasher: DefaultHashBuilder,
    /// The number of a device, with its set in the lowest bits.
    bound: HashTable<u64>,
}

/// Bits of a word that have the set; there are fewer sets than that.
const SET_BITS: u32 = 16;
/// So many devices are not counted when it is checked whether most devices have a series.
const DEVICES_FEW: usize = 1024;

/// The number of a device: a hash of the tags in the text of a key.
fn device_of(key: &str) -> u64 {
    let bytes = key.as_bytes();
    // The measurement ends at the first comma that has no backslash before it.
    let is_end = |at: &usize| {
        bytes.get(*at) == Some(&b',') && (*at == 0 || bytes.get(*at - 1) != Some(&b'\\'))
    };
    let end = (0..bytes.len()).find(is_end).unwrap_or(bytes.len());
    match bytes.get(end..) {
        // Without tags the measurement is the device.
        None | Some([]) => xxh3_64(bytes),
        Some(tags) => xxh3_64(tags),
    }
}

impl Devices {
    pub(super) fn new(policy: Policy, sets: usize) -> Self {
        let (hasher, bound) = (DefaultHashBuilder::default(), HashTable::new());
        Self { balance: Balance::new(policy, sets), sets: sets as u64, hasher, bound }
    }

    fn bound_set(&self, device: u64) -> Option<u32> {
        let name = device >> SET_BITS;
        let found = self.bound.find(self.hasher.hash_one(name), |it| it >> SET_BITS == name);
        found.map(|it| (it & ((1 << SET_BITS) - 1)) as u32)
    }

    /// Binds a device that is not bound.
    fn bind(&mut self, device: u64, set: u32) {
        let Self { hasher, bound, .. } = self;
        let name = device >> SET_BITS;
        let word = name << SET_BITS | u64::from(set).min((1 << SET_BITS) - 1);
        bound.insert_unique(hasher.hash_one(name), word, |it| hasher.hash_one(it >> SET_BITS));
    }

    /// Binds the device of a series that is there when the store is opened.
    pub(super) fn note(&mut self, series: &Series) {
        let device = device_of(&series.key);
        if self.bound_set(device).is_none() {
            self.bind(device, series.set);
            self.balance.add_fixed(series.set as usize, None);
        }
    }

    /// Notes that series were dropped: `left` is how many remain, `series` their keys and sets. The load of
    /// forgotten devices stays in the table of sets.
    pub(super) fn note_drop<'s>(
        &mut self,
        left: usize,
        series: impl Iterator<Item = (&'s str, u32)>,
    ) {
        if self.bound.len() <= DEVICES_FEW + 2 * left {
            return;
        }
        self.bound = HashTable::with_capacity(left);
        for (key, set) in series {
            let device = device_of(key);
            if self.bound_set(device).is_none() {
                self.bind(device, set);
            }
        }
    }

    /// The number of bound devices.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.bound.len()
    }

    /// The set of a new series.
    pub(super) fn set_of(&mut self, key: &str, interval: Option<Duration>) -> u32 {
        let device = device_of(key);
        if let Some(set) = self.bound_set(device) {
            return set;
        }
        let source = Source { connection: device, device: Some(device), interval };
        let set = self.balance.set_of(&source) as u32;
        let set = set.min(self.sets.saturating_sub(1) as u32);
        self.balance.add_fixed(set as usize, interval);
        self.bind(device, set);
        set
    }

    /// The paper's table of queue sets.
    pub(crate) fn loads(&self) -> Vec<coreplane_tio::Load> {
        self.balance.loads()
    }
}

/// Parses an interval as a tag states it: a number, and `ns`, `us`, `ms`, `s`, `m` or `h`.
pub(crate) fn interval_of_text(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|it: char| it.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits)?;
    let unit_ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let interval_ns = number.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    (interval_ns > 0).then(|| Duration::from_nanos(interval_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_series_are_forgotten_when_they_are_most() {
        let mut devices = Devices::new(Policy::Rate, 4);
        let key = |at: u32| format!("cpu,host={at}");
        let sets: Vec<u32> = (0..5000).map(|at| devices.set_of(&key(at), None)).collect();
        let keys: Vec<String> = (0..5000).map(key).collect();
        let live = || keys.iter().map(|key| &**key).zip(sets.iter().copied());
        devices.note_drop(2000, live().take(2000));
        assert_eq!(devices.bound.len(), 5000, "they are not more than half and some");
        devices.note_drop(100, live().take(100));
        assert_eq!(devices.bound.len(), 100);
        for at in 0..100 {
            assert_eq!(devices.set_of(&key(at), None), sets[at as usize]);
        }
        let devices_of = |it: &Devices| it.loads().iter().map(|load| load.devices).sum::<u64>();
        assert_eq!(devices_of(&devices), 5000);
        devices.set_of(&key(4000), None);
        assert_eq!((devices.bound.len(), devices_of(&devices)), (101, 5001));
    }

    #[test]
    fn series_of_a_device_go_to_one_set_and_the_fast_ones_are_spread() {
        let mut devices = Devices::new(Policy::Rate, 2);
        let fast = interval_of_text("10ms");
        assert_eq!(fast, Some(Duration::from_millis(10)));
        assert_eq!((interval_of_text("x"), interval_of_text("0s")), (None, None));
        let sets: Vec<u32> =
            (0..4).map(|at| devices.set_of(&format!("cpu,host={at}"), fast)).collect();
        assert_eq!(sets, [0, 1, 0, 1]);
        for (at, set) in sets.iter().enumerate() {
            assert_eq!(devices.set_of(&format!("m\\,x,host={at}"), None), *set);
        }
        // A device that writes every ten minutes is no load.
        let slow = interval_of_text("10m");
        let set = devices.set_of("cpu,host=s", slow);
        assert_eq!(devices.set_of("cpu,host=t", slow), 1 - set);
    }
}
