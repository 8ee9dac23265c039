//! What is done.

use crate::{Distribution, Plan};
use std::str::FromStr;

/// A workload: YCSB's six, loading, and what the floors are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Puts nine records in ten, in batches where the store has them: for stores whose single
    /// writes are so slow that `load` afterwards shall put the last tenth alone.
    Fill,
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
    /// 95 % scans of up to 100 records (or of as many as the plan says), 5 % inserts.
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
            Self::Fill => "fill",
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

    /// True if it puts the records that the others expect, in order of their numbers.
    pub(crate) fn is_load(self) -> bool {
        matches!(self, Self::Fill | Self::Load)
    }

    /// True if it inserts records beyond those that were loaded.
    pub fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }

    /// True if its operations are drawn.
    pub(crate) fn is_mix(self) -> bool {
        matches!(self, Self::A | Self::B | Self::D | Self::E | Self::F)
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
            Self::Fill | Self::Load => Operation::Insert,
            Self::Overwrite => Operation::Overwrite,
            _ => Operation::Get,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [
            Self::Fill,
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
        all.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            format!("`{text}` is none of fill, load, a, b, c, d, e, f, mget, overwrite")
        })
    }
}

/// A workload, and in what it departs from the plan: `c`, `c@uniform`, `e@zipfian:2t:40000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub workload: Workload,
    /// How records are chosen; none: as the plan says.
    pub distribution: Option<Distribution>,
    /// On how many threads; none: as the plan says.
    pub threads: Option<usize>,
    /// Operations; none: as the plan says. Of `load` records, which are put if they are not there;
    /// none: all of them.
    pub operations: Option<u64>,
}

impl Step {
    /// `plan` with what is this step's own.
    #[must_use]
    pub fn applied_to(self, plan: &Plan) -> Plan {
        Plan {
            distribution: self.distribution.or(plan.distribution),
            threads: self.threads.unwrap_or(plan.threads),
            operations: self.operations.unwrap_or(plan.operations),
            load: self.operations,
            ..*plan
        }
    }

    /// Records that it writes, at most about.
    pub fn writes(self, plan: &Plan) -> u64 {
        let plan = self.applied_to(plan);
        let percent = match self.workload {
            Workload::Fill => return plan.fill_count(),
            Workload::Load => return plan.load.unwrap_or(plan.records),
            Workload::C | Workload::Mget => return 0,
            Workload::Overwrite => return plan.operations,
            Workload::A | Workload::F => 50,
            Workload::B | Workload::D | Workload::E => 5,
        };
        // The draws scatter around the share.
        plan.operations / 100 * percent + plan.operations / 64 + 1024
    }

    /// The plan of each of `steps`, which are taken one after the other.
    pub fn plans<'a>(steps: &'a [Self], plan: &Plan) -> impl Iterator<Item = (Self, Plan)> + 'a {
        let mut known = *plan;
        steps.iter().map(move |step| {
            let plan = step.applied_to(&known);
            let Plan { filled, inserted, .. } = plan.after(step.workload);
            known = Plan { filled, inserted, ..known };
            (*step, plan)
        })
    }
}

impl From<Workload> for Step {
    fn from(workload: Workload) -> Self {
        Self { workload, distribution: None, threads: None, operations: None }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let what = parts.next().unwrap_or_default();
        let mut step = match what.split_once('@') {
            None => Self::from(what.parse::<Workload>()?),
            Some((workload, distribution)) => Self {
                distribution: Some(distribution.parse()?),
                ..Self::from(workload.parse::<Workload>()?)
            },
        };
        for part in parts {
            let wrong = |_| format!("`{part}` is neither threads, such as 2t, nor operations");
            match part.strip_suffix('t') {
                Some(threads) => step.threads = Some(threads.parse().map_err(wrong)?),
                None => step.operations = Some(part.parse().map_err(wrong)?),
            }
        }
        Ok(step)
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
        for wrong in ["", "@uniform", "a@", "a@normal", "z@uniform", "a:", "a:t", "a:2x", ":2t"] {
            assert!(wrong.parse::<Step>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_step_may_have_threads_and_operations_of_its_own() {
        let plan = Plan { records: 1_000, operations: 100, threads: 3, ..Plan::default() };
        let step: Step = "e@zipfian:2t:40000".parse().expect("a step");
        let own = step.applied_to(&plan);
        assert_eq!((own.threads, own.operations, own.records), (2, 40_000, 1_000));
        let steps = [step, Step::from(Workload::C), step];
        let plans: Vec<Plan> = Step::plans(&steps, &plan).map(|(_, plan)| plan).collect();
        assert_eq!((plans[1].threads, plans[1].operations), (3, 100), "the next one's are its own");
        let inserted = 40_000 / 16 + 1024;
        let known: Vec<u64> = plans.iter().map(|plan| plan.inserted).collect();
        assert_eq!(known, [0, inserted, inserted]);
    }
}
