//! Devices and what they measure: ten fields, each a random walk with steps N(0,1), as line protocol.
//!
//! *Integers* are those of TSBS's use case cpu-only: between 0 and 100, cut to whole numbers, with its ten tags. *Decimals* are
//! floats of four decimals, without bounds.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// Fields of a device.
pub(super) const FIELDS: usize = 10;
const NAMES: [&str; FIELDS] = [
    "usage_user",
    "usage_system",
    "usage_idle",
    "usage_nice",
    "usage_iowait",
    "usage_irq",
    "usage_softirq",
    "usage_steal",
    "usage_guest",
    "usage_guest_nice",
];
/// 2016-01-01, and ten seconds, in nanoseconds.
const EPOCH: i64 = 1_451_606_400_000_000_000;
pub(super) const INTERVAL: i64 = 10_000_000_000;

/// What values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Integers,
    Decimals,
}

#[derive(Debug)]
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, count: u64) -> u64 {
        (self.word() >> 16) % count.max(1)
    }

    fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn of<'a>(&mut self, some: &[&'a str]) -> &'a str {
        some.get(self.below(some.len() as u64) as usize).copied().unwrap_or_default()
    }

    /// N(0,1): half of what Marsaglia's polar method gives.
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.unit() * 2.0 - 1.0, self.unit() * 2.0 - 1.0);
            let square = x * x + y * y;
            if square < 1.0 && square > 0.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }
}

/// When a step is, in nanoseconds since 1970.
pub(super) fn time_of(step: u64) -> i64 {
    EPOCH + step as i64 * INTERVAL
}

/// The tags of a device, from the first comma on: ascending by key, or in TSBS's order.
pub(super) fn tags_of(seed: u64, device: u64, is_sorted: bool) -> String {
    let mut draw = Draw::new(seed << 32 ^ device ^ 1 << 63);
    let region = draw.of(&["us-east-1", "us-west-1", "eu-west-1", "eu-central-1", "sa-east-1"]);
    let mut tags = [
        format!("hostname=host_{device}"),
        format!("region={region}"),
        format!("datacenter={region}{}", draw.of(&["a", "b", "c"])),
        format!("rack={}", draw.below(100)),
        format!("os={}", draw.of(&["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"])),
        format!("arch={}", draw.of(&["x64", "x86"])),
        format!("team={}", draw.of(&["SF", "NYC", "LON", "CHI"])),
        format!("service={}", draw.below(20)),
        format!("service_version={}", draw.below(2)),
        format!("service_environment={}", draw.of(&["production", "staging", "test"])),
    ];
    if is_sorted {
        tags.sort_unstable();
    }
    format!(",{}", tags.join(","))
}

/// The first two of them, which ascend.
pub(super) fn two_tags_of(seed: u64, device: u64) -> String {
    let mut text = tags_of(seed, device, false);
    let end = text.match_indices(',').nth(2).map_or(text.len(), |it| it.0);
    text.truncate(end);
    text
}

/// The walks of all devices, step after step.
#[derive(Debug)]
pub(super) struct Walks {
    kind: Kind,
    draw: Draw,
    tags: Vec<String>,
    /// Of each device, of each field.
    values: Vec<f64>,
    /// The sum of the first field of the first device, so far; of decimals in ten-thousandths.
    pub(super) first_sum: i64,
}

impl Walks {
    pub(super) fn new(seed: u64, devices: u64, kind: Kind, is_sorted: bool) -> Self {
        let mut draw = Draw::new(seed);
        let values = (0..devices * FIELDS as u64).map(|_| draw.unit() * 100.0).collect();
        let tags = (0..devices).map(|device| tags_of(seed, device, is_sorted)).collect();
        Self { kind, draw, tags, values, first_sum: 0 }
    }

    /// Appends a line of each device, of this step.
    pub(super) fn step(&mut self, step: u64, out: &mut Vec<u8>) -> std::io::Result<()> {
        let Self { kind, draw, tags, values, first_sum } = self;
        for (device, (tags, values)) in tags.iter().zip(values.chunks_mut(FIELDS)).enumerate() {
            write!(out, "cpu{tags}")?;
            let mut separator = ' ';
            for (field, (name, value)) in NAMES.iter().zip(values).enumerate() {
                match kind {
                    Kind::Integers => write!(out, "{separator}{name}={}i", *value as u64)?,
                    Kind::Decimals => write!(out, "{separator}{name}={value:.4}")?,
                }
                separator = ',';
                if device == 0 && field == 0 {
                    *first_sum += match kind {
                        Kind::Integers => *value as i64,
                        Kind::Decimals => (*value * 1e4).round() as i64,
                    };
                }
                *value += draw.normal();
                if *kind == Kind::Integers {
                    *value = value.clamp(0.0, 100.0);
                }
            }
            writeln!(out, " {}", time_of(step))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_normal_and_integers_have_bounds() {
        let mut draw = Draw::new(7);
        let all: Vec<f64> = (0..100_000).map(|_| draw.normal()).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let mut walks = Walks::new(1, 3, Kind::Integers, false);
        let mut text = Vec::new();
        (0..2000).for_each(|step| walks.step(step, &mut text).unwrap());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 6000);
        let values = text.split("usage_user=").skip(1);
        let values = values.map(|rest| rest.split('i').next().unwrap().parse::<u64>().unwrap());
        let values: Vec<u64> = values.collect();
        assert!(values.iter().all(|value| *value <= 100));
        assert_eq!(walks.first_sum as u64, values.iter().step_by(3).sum::<u64>());
    }

    #[test]
    fn tags_follow_from_the_seed_and_can_be_sorted() {
        assert_eq!(tags_of(1, 5, false), tags_of(1, 5, false));
        assert!(tags_of(1, 5, false).starts_with(",hostname=host_5,region="));
        let sorted = tags_of(1, 5, true);
        let keys: Vec<&str> =
            sorted[1..].split(',').map(|it| it.split('=').next().unwrap()).collect();
        assert!(keys.is_sorted() && keys.len() == 10, "{keys:?}");
        let two = two_tags_of(1, 5);
        assert!(tags_of(1, 5, false).starts_with(&format!("{two},datacenter=")), "{two}");
    }
}
