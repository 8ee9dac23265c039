//! How much is done, with what, and how often.

use crate::choice::Distribution;
use crate::record::LEN_MIN;
use crate::{Error, Result, Workload};
use coreplane_engine::{KEY_LEN_MAX, VALUE_LEN_MAX};

/// How much is done. Two runs of one plan make the same operations.
///
/// As arguments of a command line too: what a field says is the help of its option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Plan {
    /// Records.
    #[arg(long, default_value_t = Plan::default().records)]
    pub records: u64,
    /// Operations of a workload, of all threads together; a batch of mget counts as many as it has
    /// keys.
    #[arg(long, default_value_t = Plan::default().operations)]
    pub operations: u64,
    /// Threads.
    #[arg(long, default_value_t = Plan::default().threads)]
    pub threads: usize,
    /// How records are chosen: uniform, zipfian, latest [default: latest for workload d, else
    /// zipfian].
    #[arg(long)]
    pub distribution: Option<Distribution>,
    /// Bytes of a key; at least 8.
    #[arg(long, default_value_t = Plan::default().key_size)]
    pub key_size: usize,
    /// Bytes of a value; at least 8.
    #[arg(long, default_value_t = Plan::default().value_size)]
    pub value_size: usize,
    /// Begins the draws: the same seed, the same operations.
    #[arg(long, default_value_t = Plan::default().seed)]
    pub seed: u64,
    /// Records of a scan of workload e [default: 1 to 100, drawn each time].
    #[arg(long)]
    pub scan: Option<u64>,
    /// Records that are there before `load`, which leaves them out: what was put by `fill`, or by a
    /// `load` of a part.
    #[arg(skip)]
    pub filled: u64,
    /// Records that a `load` puts, if it shall not put all that are not there.
    #[arg(skip)]
    pub load: Option<u64>,
    /// Numbers behind the records that earlier workloads have used for what they inserted.
    #[arg(skip)]
    pub inserted: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            records: 1_000_000,
            operations: 1_000_000,
            threads: 1,
            distribution: None,
            key_size: 16,
            value_size: 100,
            seed: 1,
            scan: None,
            filled: 0,
            load: None,
            inserted: 0,
        }
    }
}

impl Plan {
    /// Checks that the plan can be carried out.
    ///
    /// # Errors
    /// [`Error::Plan`].
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Plan(what));
        if self.records == 0 || self.records >= 1 << 32 {
            return refuse(format!("{} records: between 1 and 2^32 - 1 are", self.records));
        }
        if self.threads == 0 || self.threads > 1024 {
            return refuse(format!("{} threads: between 1 and 1024 are", self.threads));
        }
        if self.key_size < LEN_MIN || self.value_size < LEN_MIN {
            return refuse(format!(
                "keys of {} and values of {} bytes: both need {LEN_MIN}, for a number and a version",
                self.key_size, self.value_size
            ));
        }
        if self.key_size > KEY_LEN_MAX || self.value_size > VALUE_LEN_MAX {
            return refuse(format!(
                "keys of {} and values of {} bytes: {KEY_LEN_MAX} and {VALUE_LEN_MAX} are the longest",
                self.key_size, self.value_size
            ));
        }
        if self.scan == Some(0) {
            return refuse("scans of no record".to_owned());
        }
        Ok(())
    }

    /// The distribution of a workload.
    pub fn distribution_of(&self, workload: Workload) -> Distribution {
        self.distribution.unwrap_or(if workload == Workload::D {
            Distribution::Latest
        } else {
            Distribution::Zipfian
        })
    }

    /// Records of the store once this workload has run, at most about.
    pub fn records_after(&self, workload: Workload) -> u64 {
        self.records + self.after(workload).inserted
    }

    /// The plan for what comes after this workload: it knows which records are there by then.
    #[must_use]
    pub fn after(&self, workload: Workload) -> Self {
        match workload {
            Workload::Fill => Self { filled: self.fill_count(), ..*self },
            // Whoever loads again when all is there writes everything anew.
            Workload::Load => {
                let filled = self.load_range().end;
                Self { filled: if filled < self.records { filled } else { 0 }, ..*self }
            }
            // One in twenty inserts; the draws scatter around that.
            workload if workload.inserts() => {
                Self { inserted: self.inserted + self.operations / 16 + 1024, ..*self }
            }
            _ => *self,
        }
    }

    /// The numbers of the records that `load` puts.
    pub(crate) fn load_range(&self) -> std::ops::Range<u64> {
        let missing = self.records - self.filled.min(self.records);
        let count = self.load.map_or(missing, |count| count.min(missing));
        self.filled..self.filled + count
    }

    /// Records that `fill` puts: nine in ten.
    pub(crate) fn fill_count(&self) -> u64 {
        self.records / 10 * 9
    }

    /// The share of `total` that falls to thread `thread`.
    pub(crate) fn share(&self, total: u64, thread: usize) -> std::ops::Range<u64> {
        let threads = self.threads as u64;
        let thread = thread as u64;
        let (each, rest) = (total / threads, total % threads);
        let start = thread * each + thread.min(rest);
        start..start + each + u64::from(thread < rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_and_once() {
        for (total, threads) in [(10, 3), (2, 5), (0, 2), (1_000_001, 7)] {
            let plan = Plan { threads, ..Plan::default() };
            let mut next = 0;
            for thread in 0..threads {
                let share = plan.share(total, thread);
                assert_eq!(share.start, next);
                next = share.end;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn what_comes_after_knows_what_is_there() {
        let plan = Plan { records: 1_000, operations: 16_000, ..Plan::default() };
        let filled = plan.after(Workload::Fill);
        assert_eq!((filled.filled, filled.after(Workload::Load).filled), (900, 0));
        let twice = plan.after(Workload::E).after(Workload::C).after(Workload::D);
        assert_eq!(twice.inserted, 2 * 2024);
        let part = Plan { load: Some(600), ..plan };
        assert_eq!((part.load_range(), part.after(Workload::Load).filled), (0..600, 600));
        let rest = Plan { filled: 600, ..part };
        assert_eq!((rest.load_range(), rest.after(Workload::Load).filled), (600..1_000, 0));
        assert_eq!(twice.records_after(Workload::A), 1_000 + 2 * 2024);
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let good = Plan::default();
        assert!(good.check().is_ok());
        for bad in [
            Plan { records: 0, ..good },
            Plan { records: 1 << 32, ..good },
            Plan { threads: 0, ..good },
            Plan { key_size: 7, ..good },
            Plan { value_size: 7, ..good },
            Plan { key_size: KEY_LEN_MAX + 1, ..good },
            Plan { value_size: usize::MAX, ..good },
            Plan { scan: Some(0), ..good },
        ] {
            assert!(matches!(bad.check(), Err(Error::Plan(_))), "{bad:?}");
        }
    }
}
