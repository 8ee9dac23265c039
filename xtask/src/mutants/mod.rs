//! `cargo xtask mutants`: the tests are tested.
//!
//! The sources contain intentional mistakes (`mutant!("name")`, module `mutant` of `coreplane-pmem`), which have an
//! effect only in a build with the feature `mutants`, and there one at a time. The [`catalogue`] says of each what it
//! does, and which tests must detect it. This command builds those tests once, runs them without a mistake, where
//! they must pass, and then with each mistake, where they must fail. A mistake with which they pass has *survived*:
//! no test would notice it. Where all tests have just passed, by the same programs, the first of these runs is left out
//! ([`Baseline`]).
//!
//! A run that takes too long is stopped. That counts as detected only where the catalogue expects it: a mistake that
//! leaves a lock held makes no test fail, but hang.

pub(crate) mod catalogue;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::programs::Programs;
use crate::tally::Tally;
use catalogue::{Mutant, Suite};
use run::{Ended, Ran};

const USAGE: &str = "usage: cargo xtask mutants [--handful | --list | NAME…]\n\
                     a name may be the beginning of several";

/// The mistakes to be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All in the catalogue.
    All,
    /// A few of each kind, whose tests are quick.
    Handful,
    /// Those whose names begin with one of these.
    Named(Vec<String>),
}

impl Extent {
    fn parse(arguments: &[String]) -> Outcome<Self> {
        match arguments {
            [] => Ok(Self::All),
            [only] if only == "--handful" => Ok(Self::Handful),
            names if names.iter().any(|name| name.starts_with('-')) => Err(USAGE.into()),
            names => Ok(Self::Named(names.to_vec())),
        }
    }

    fn has(&self, mutant: &Mutant) -> bool {
        match self {
            Self::All => true,
            Self::Handful => mutant.is_quick,
            Self::Named(names) => names.iter().any(|name| mutant.name.starts_with(name.as_str())),
        }
    }
}

/// Whether the tests are known to pass without a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Baseline {
    /// They have passed a moment ago, by the same programs.
    Passed,
    /// They run first.
    Unknown,
}

/// `cargo xtask mutants`.
pub(crate) fn command(root: &Path, arguments: &[String]) -> Outcome<()> {
    if matches!(arguments, [only] if only == "--list") {
        catalogue::all().for_each(|it| println!("{:44} {}", it.name, it.what));
        return Ok(());
    }
    let mut tally = Tally::new();
    run(root, &Extent::parse(arguments)?, Baseline::Unknown, &mut tally)?;
    tally.close()
}

/// Makes the mistakes; one that survives is a failure.
pub(crate) fn run(
    root: &Path,
    extent: &Extent,
    baseline: Baseline,
    tally: &mut Tally,
) -> Outcome<()> {
    tally.stage("mutants");
    let chosen: Vec<&Mutant> = catalogue::all().filter(|mutant| extent.has(mutant)).collect();
    if chosen.is_empty() {
        return Err(format!("no mutant has such a name\n{USAGE}").into());
    }
    let mut suites: Vec<Suite> = chosen.iter().map(|mutant| mutant.suite).collect();
    suites.sort_unstable();
    suites.dedup();
    let programs = match extent {
        // After the tests of the workspace, which have built all programs.
        Extent::Handful => Programs::of_workspace(root, &[["--lib", "--bins"], ["--test", "*"]])?,
        _ => {
            let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for suite in &suites {
                wanted.entry(suite.package).or_default().insert(suite.test);
            }
            Programs::of_packages(root, &wanted)?
        }
    };
    suites.iter().try_for_each(|suite| run::program_of(&programs, suite).map(drop))?;
    let started = Instant::now();
    let limits = match baseline {
        Baseline::Passed => suites.iter().map(|suite| (*suite, LIMIT)).collect(),
        Baseline::Unknown => limits(&programs, &suites, tally),
    };
    let judged = side_by_side(&chosen, |mutant| {
        let limit = *limits.get(&mutant.suite).ok_or("its tests fail without it")?;
        let caught = run::run(&programs, &mutant.suite, Some(mutant.name), limit)
            .and_then(|ran| judge(mutant, &ran));
        let line = caught.as_ref().map_or_else(ToString::to_string, Clone::clone);
        println!("{:44} {line}", mutant.name);
        caught
    });
    println!("\n{:44} caught by", "mutant");
    for (mutant, caught) in chosen.iter().zip(judged) {
        match caught {
            Ok(by) => {
                println!("{:44} {by}", mutant.name);
                tally.count_quietly();
            }
            Err(why) => tally.count(mutant.name, Err(why)),
        }
    }
    println!("{} mutants in {} s of tests", chosen.len(), started.elapsed().as_secs());
    Ok(())
}

/// Runs the suites without a mistake: the time limit of each that passes.
fn limits(programs: &Programs, suites: &[Suite], tally: &mut Tally) -> BTreeMap<Suite, Duration> {
    let sound = side_by_side(suites, |suite| {
        let ran = run::run(programs, suite, None, BASELINE_MAX);
        println!("{}: {}", suite.name(), ran.as_ref().map_or_else(ToString::to_string, Ran::line));
        ran
    });
    let mut limits = BTreeMap::new();
    for (suite, ran) in suites.iter().zip(sound) {
        let verdict = ran.and_then(|ran| match ran.ended {
            Ended::Passed(1..) => Ok(ran.took),
            Ended::Passed(0) => Err("not one test ran".into()),
            _ => Err(format!("fails without a mistake: {}", ran.line()).into()),
        });
        match verdict {
            Ok(took) => drop(limits.insert(*suite, SLACK + took * TIMES)),
            Err(why) => tally.count(&suite.name(), Err(why)),
        }
    }
    limits
}

/// The time limit where no run without a mistake was timed: the longest of the handful takes 45 seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// The time limit for tests without a mistake.
const BASELINE_MAX: Duration = Duration::from_secs(600);
/// With a mistake they may take so many times as long as without, and this much more.
const TIMES: u32 = 6;
const SLACK: Duration = Duration::from_secs(20);

/// The tests that have detected the mistake.
fn judge(mutant: &Mutant, ran: &Ran) -> Outcome<String> {
    match &ran.ended {
        Ended::Passed(_) => {
            Err(format!("SURVIVED {}: {}", mutant.suite.name(), mutant.what).into())
        }
        Ended::Late if mutant.hangs => Ok("a time limit".to_owned()),
        Ended::Late => Err(format!("{} took too long", mutant.suite.name()).into()),
        Ended::Failed(tests) => Ok(tests.join(", ")),
        Ended::Died(how) => Ok(how.clone()),
    }
}

/// The result of `work` for each of `all`, on as many threads as there are processors.
fn side_by_side<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<R>>> = all.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(one), Some(place)) = (all.get(at), done.get(at)) else { return };
                    let made = Some(work(one));
                    *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = made;
                }
            });
        }
    });
    done.into_iter()
        .filter_map(|place| place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let parse = |words: &[&str]| {
            Extent::parse(&words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()).ok()
        };
        assert_eq!(parse(&[]), Some(Extent::All));
        assert_eq!(parse(&["--handful"]), Some(Extent::Handful));
        assert_eq!(parse(&["pmem."]), Some(Extent::Named(vec!["pmem.".to_owned()])));
        assert_eq!(parse(&["--all"]), None);
    }

    #[test]
    fn what_passes_and_what_takes_too_long_has_survived() {
        let mutant = catalogue::all().find(|mutant| !mutant.hangs).unwrap();
        let took = Duration::ZERO;
        let judged = |ended| judge(mutant, &Ran { ended, took });
        assert!(judged(Ended::Passed(3)).is_err() && judged(Ended::Late).is_err());
        let tests = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(judged(Ended::Failed(tests)).unwrap(), "one, two");
        assert!(judged(Ended::Died("a signal".to_owned())).is_ok());
        let hanging = Mutant { hangs: true, ..*mutant };
        assert!(judge(&hanging, &Ran { ended: Ended::Late, took }).is_ok());
    }

    #[test]
    fn answers_come_in_the_order_of_what_was_asked() {
        let all: Vec<u32> = (0..50).collect();
        assert_eq!(side_by_side(&all, |it| *it), all);
    }
}
