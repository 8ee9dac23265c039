//! Devices: which queue set a series is bound to (section 5 of the paper).
//!
//! A device is what has the same tags; its measurements go to one set. It is bound when its first series is made, by the
//! interval that it states, or that the points which it comes with have. Its later series follow it, wherever their points
//! come from: the rows of a device stay in one log.

use crate::catalogue::Series;
use coreplane_tio::{Balance, Policy, Source};
use hashbrown::HashMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Which device is bound to which set.
#[derive(Debug)]
pub(crate) struct Devices {
    balance: Balance,
    sets: u64,
    bound: HashMap<u64, u32>,
}

/// The number of a device: of the tags in the text of a key.
fn device_of(key: &str) -> u64 {
    let bytes = key.as_bytes();
    // The measurement ends at the first comma that has no backslash before it.
    let is_end = |at: &usize| {
        bytes.get(*at) == Some(&b',') && (*at == 0 || bytes.get(*at - 1) != Some(&b'\\'))
    };
    let end = (0..bytes.len()).find(is_end).unwrap_or(bytes.len());
    match bytes.get(end..) {
        // Without tags it is its measurement's.
        None | Some([]) => xxh3_64(bytes),
        Some(tags) => xxh3_64(tags),
    }
}

impl Devices {
    pub(super) fn new(policy: Policy, sets: usize) -> Self {
        Self { balance: Balance::new(policy, sets), sets: sets as u64, bound: HashMap::new() }
    }

    /// A series that is there when the store is opened.
    pub(super) fn note(&mut self, series: &Series) {
        let device = device_of(&series.key);
        if self.bound.insert(device, series.set).is_none() {
            self.balance.bind(&source(device, None), series.set as usize);
        }
    }

    /// The set of a new series.
    pub(super) fn set_of(&mut self, key: &str, interval: Option<Duration>) -> u32 {
        let device = device_of(key);
        if let Some(set) = self.bound.get(&device) {
            return *set;
        }
        let set = self.balance.join(&source(device, interval)) as u32;
        let set = set.min(self.sets.saturating_sub(1) as u32);
        self.bound.insert(device, set);
        set
    }

    /// The paper's table.
    pub(crate) fn loads(&self) -> Vec<coreplane_tio::Load> {
        self.balance.loads()
    }
}

fn source(device: u64, interval: Option<Duration>) -> Source {
    Source { connection: device, device: Some(device), interval }
}

/// An interval as a tag states it: a number, and `ns`, `us`, `ms`, `s`, `m` or `h`.
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
        // One that writes every ten minutes is no load.
        let slow = interval_of_text("10m");
        let set = devices.set_of("cpu,host=s", slow);
        assert_eq!(devices.set_of("cpu,host=t", slow), 1 - set);
    }
}
