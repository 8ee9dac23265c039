//! Which record is touched next.
//!
//! *Uniform*: each as likely as any other. *Zipfian*: the i-th most popular with a likelihood of
//! 1 / i^0.99 (Gray et al., "Quickly generating billion-record synthetic databases"), which ones
//! are popular being scattered over all by a hash. *Latest*: as zipfian, the newest record the
//! most popular.

use crate::record::mix;
use std::str::FromStr;

/// How records are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Each as likely as any other.
    Uniform,
    /// A few are popular; which ones, is scattered over all.
    Zipfian,
    /// The newer, the more popular.
    Latest,
}

impl Distribution {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
        }
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Uniform, Self::Zipfian, Self::Latest]
            .into_iter()
            .find(|distribution| distribution.name() == text)
            .ok_or_else(|| format!("`{text}` is none of uniform, zipfian, latest"))
    }
}

/// A sequence of draws: `SplitMix64`.
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`.
    #[inline]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The numbers of `records` records, each once, in an order that is drawn (Fisher and Yates).
pub(crate) fn shuffled(records: u64, draws: &mut Draws) -> Vec<u32> {
    // Plans have fewer than 2^32 records.
    let mut numbers: Vec<u32> = (0..records as u32).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, draws.below(at as u64 + 1) as usize);
    }
    numbers
}

/// The constants of a distribution over `records` records.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    distribution: Distribution,
    records: u64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Chooser {
    pub(crate) fn new(distribution: Distribution, records: u64) -> Self {
        let zeta = match distribution {
            Distribution::Uniform => 0.0,
            Distribution::Zipfian | Distribution::Latest => {
                (1..=records).map(|rank| (rank as f64).powf(-THETA)).sum()
            }
        };
        let zeta_two = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / records as f64).powf(1.0 - THETA)) / (1.0 - zeta_two / zeta);
        Self { distribution, records, zeta, eta }
    }

    /// The number of a record; for `latest`, how many are newer than it.
    pub(crate) fn choose(&self, draws: &mut Draws) -> u32 {
        let chosen = match self.distribution {
            Distribution::Uniform => draws.below(self.records),
            Distribution::Zipfian => mix(self.rank(draws.unit()) + 1) % self.records,
            Distribution::Latest => self.rank(draws.unit()),
        };
        // Plans have fewer than 2^32 records.
        chosen as u32
    }

    /// The popularity rank, from 0, for a draw from 0 to below 1.
    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.records < 2 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let spread = (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        ((self.records as f64 * spread) as u64).min(self.records - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, records: u64, draws: u64) -> Vec<u64> {
        let chooser = Chooser::new(distribution, records);
        let mut source = Draws::new(5);
        let mut counts = vec![0; records as usize];
        for _ in 0..draws {
            counts[chooser.choose(&mut source) as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_is_even() {
        let counts = counts(Distribution::Uniform, 100, 100_000);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipfian_ranks_have_their_likelihood() {
        let counts = counts(Distribution::Latest, 1000, 1_000_000);
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-THETA)).sum();
        for rank in [1, 2, 3, 10, 100] {
            let expected = 1e6 * f64::from(rank).powf(-THETA) / zeta;
            let found = counts[rank as usize - 1] as f64;
            // The formula is exact for the first two and an approximation beyond.
            let within = if rank < 3 { 0.02 } else { 0.3 };
            assert!((found / expected - 1.0).abs() < within, "rank {rank}: {found}, {expected}");
        }
    }

    #[test]
    fn scattered_popularity_is_as_uneven() {
        let mut counts = counts(Distribution::Zipfian, 1000, 100_000);
        assert!(counts[0] < 10_000, "the first record is not the most popular one");
        counts.sort_unstable();
        assert!(counts[999] > 10_000, "some record is");
    }

    #[test]
    fn a_shuffle_has_every_number_once_and_each_time_another_order() {
        let mut draws = Draws::new(3);
        let (first, second) = (shuffled(1000, &mut draws), shuffled(1000, &mut draws));
        assert_ne!(first, second);
        for mut order in [first, second] {
            assert!(!order.is_sorted());
            order.sort_unstable();
            assert!(order.into_iter().eq(0..1000));
        }
        assert!(shuffled(0, &mut draws).is_empty());
    }

    #[test]
    fn small_stores_and_names() {
        for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            assert_eq!(distribution.name().parse(), Ok(distribution));
            for records in 1..4 {
                assert_eq!(counts(distribution, records, 100).iter().sum::<u64>(), 100);
            }
        }
        assert!("normal".parse::<Distribution>().is_err());
    }
}
