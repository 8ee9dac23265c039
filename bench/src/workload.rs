//! What is done.

use crate::{Distribution, Plan};
use std::str::FromStr;

/// A workload: YCSB's six, loading, and what the floors are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Puts every record once, in order of their numbers (scattered keys).
    Load,
    /// Half gets, half overwrites.
    A,
    /// 95 % gets, 5 % overwrites.
    B,
    /// Gets.
    C,
    /// 95 % gets of the latest records, 5 % inserts.
    D,
    /// 95 % scans of up to 100 records, 5 % inserts.
    E,
    /// Half gets, half reads of a record followed by its overwrite.
    F,
    /// Gets in batches of [`Workload::BATCH`].
    Mget,
    /// Overwrites.
    Overwrite,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Overwrite,
    Insert,
    ReadModifyWrite,
    Scan,
}

impl Workload {
    /// Records of one `mget`.
    pub const BATCH: usize = 16;

    /// The longest scan of `e`, in records.
    pub const SCAN_MAX: u64 = 100;

    /// Its name, as in `--workload` and in the reports' `phase`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
            Self::Mget => "mget",
            Self::Overwrite => "overwrite",
        }
    }

    /// True if it inserts records beyond those that were loaded.
    pub fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }

    /// The operation for a draw from 0 to 99.
    #[inline]
    pub(crate) fn operation(self, draw: u64) -> Operation {
        match self {
            Self::A if draw < 50 => Operation::Overwrite,
            Self::B if draw < 5 => Operation::Overwrite,
            Self::D | Self::E if draw < 5 => Operation::Insert,
            Self::E => Operation::Scan,
            Self::F if draw < 50 => Operation::ReadModifyWrite,
            Self::Load => Operation::Insert,
            Self::Overwrite => Operation::Overwrite,
            _ => Operation::Get,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [
            Self::Load,
            Self::A,
            Self::B,
            Self::C,
            Self::D,
            Self::E,
            Self::F,
            Self::Mget,
            Self::Overwrite,
        ];
        all.into_iter()
            .find(|workload| workload.name() == text)
            .ok_or_else(|| format!("`{text}` is none of load, a, b, c, d, e, f, mget, overwrite"))
    }
}

/// A workload, and how it chooses records if that is not the plan's way: `c`, `c@uniform`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub workload: Workload,
    /// How records are chosen; none: as the plan says.
    pub distribution: Option<Distribution>,
}

impl Step {
    /// `plan` with the distribution of this step.
    #[must_use]
    pub fn applied_to(self, plan: &Plan) -> Plan {
        Plan { distribution: self.distribution.or(plan.distribution), ..*plan }
    }

    /// Records that it writes, at most about.
    pub fn writes(self, plan: &Plan) -> u64 {
        let percent = match self.workload {
            Workload::Load => return plan.records,
            Workload::C | Workload::Mget => return 0,
            Workload::Overwrite => return plan.operations,
            Workload::A | Workload::F => 50,
            Workload::B | Workload::D | Workload::E => 5,
        };
        // The draws scatter around the share.
        plan.operations / 100 * percent + plan.operations / 64 + 1024
    }
}

impl From<Workload> for Step {
    fn from(workload: Workload) -> Self {
        Self { workload, distribution: None }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('@') {
            None => text.parse().map(Workload::into),
            Some((workload, distribution)) => {
                Ok(Self { workload: workload.parse()?, distribution: Some(distribution.parse()?) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_and_know_what_they_write() {
        let plan = Plan { records: 10_000, operations: 100_000, ..Plan::default() };
        let step: Step = "a@uniform".parse().expect("a step");
        assert_eq!(step.applied_to(&plan).distribution, Some(Distribution::Uniform));
        assert!((50_000..55_000).contains(&step.writes(&plan)));
        assert_eq!("load".parse::<Step>().map(|step| step.writes(&plan)), Ok(10_000));
        assert_eq!("c".parse(), Ok(Step::from(Workload::C)));
        for wrong in ["", "@uniform", "a@", "a@normal", "z@uniform"] {
            assert!(wrong.parse::<Step>().is_err(), "{wrong}");
        }
    }
}
