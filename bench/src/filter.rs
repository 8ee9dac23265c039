//! What the filter of a matrix's group costs, and how often it is wrong.
//!
//! Three things are measured of a filter with room for the plan's records, its *design load*:
//!
//! - **false "perhaps"**: half full, full, and a fifth over it, probed for keys that it never had;
//! - **the price** of a probe of a key that is there and of one that is not: one after the other as
//!   the processor likes it, so that their misses overlap, and with the next key depending on the
//!   answer; and of an insertion and a removal;
//! - **false "surely not"**, of which there must be none: all threads insert, remove and probe,
//!   while another one makes the filter anew, larger and smaller, again and again.
//!
//! # How a denial would show
//!
//! ```text
//!   keys of a thread    … 7 8 9 10 11 12 …        removed below `oldest`, inserted below `next`
//!                             ▲        ▲
//!                          oldest     next
//! ```
//!
//! What a group's engine would be is a window of keys for each thread: it moves `next` once the key
//! is counted, and `oldest` before it is uncounted. So a key is surely there for whoever saw it
//! below `next` before the probe and still not below `oldest` after it, whichever thread looks. A
//! rebuild lists the windows.

use crate::choice::Draws;
use crate::{Error, Plan};
use coreplane_mkvs::filter::{Filter, hash_of};
use serde::Serialize;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A phase of the filter. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterReport {
    /// What was done.
    pub phase: &'static str,
    /// Keys that the filter has room for.
    pub records: u64,
    /// Keys that it had at the end.
    pub keys: u64,
    /// Threads.
    pub threads: usize,
    /// Operations of all threads.
    pub operations: u64,
    /// How long they took together.
    pub seconds: f64,
    /// Nanoseconds of a thread for one, the hash of a key of 8 bytes included.
    pub ns_per_operation: f64,
    /// Keys that were not there and not denied; none: not counted in this phase.
    pub false_positives: Option<u64>,
    /// Keys that were there and denied; none: not counted in this phase.
    pub false_negatives: Option<u64>,
    /// Bits of DRAM for each key that there is room for.
    pub bits_per_key: f64,
    /// How often the filter was made anew meanwhile.
    pub rebuilds: u64,
}

/// Probes of a phase that looks for false "perhaps", or for the price of one, at most.
const PROBES: u64 = 10_000_000;

/// Keys from here on are never inserted.
const STRANGERS: u64 = 1 << 56;

/// Is given each phase.
type Show<'a, E> = dyn FnMut(FilterReport) -> Result<(), E> + 'a;

/// Runs all phases; `show` is given each as soon as it is done. The plan's records are the keys
/// that the filter has room for; its operations are those of the phase that looks for denials, and
/// the most of any other.
///
/// # Errors
/// [`Error::Plan`]; [`Error::Target`] if there is no memory, or a key was denied that was there;
/// what `show` fails with.
pub fn run_filter<E: From<Error>>(plan: &Plan, show: &mut Show<'_, E>) -> Result<(), E> {
    plan.check()?;
    let filter = Filter::with_capacity(plan.records).map_err(Error::from)?;
    let bench = FilterBench { filter: &filter, plan };
    let mut keys = 0;
    for (percent, inserting, probing) in [
        (50, "filter-insert-50", "filter-false-50"),
        (100, "filter-insert-100", "filter-false-100"),
        (120, "filter-insert-120", "filter-false-120"),
    ] {
        let fresh = keys..plan.records * percent / 100;
        keys = fresh.end;
        show(bench.timed(inserting, fresh, |key| insert(&filter, key)).1)?;
        let probes = STRANGERS..STRANGERS + bench.probes();
        let (wrong, report) = bench.timed(probing, probes, |key| probe(&filter, key));
        show(FilterReport { false_positives: Some(wrong), ..report })?;
        if percent == 100 {
            bench.prices(keys, show)?;
        }
    }
    show(bench.timed("filter-remove", 0..keys, |key| remove(&filter, key)).1)?;
    let report = bench.churn()?;
    let denied = report.false_negatives.unwrap_or(0);
    show(report)?;
    if denied > 0 {
        return Err(
            Error::Target(format!("the filter has denied {denied} keys that it had")).into()
        );
    }
    Ok(())
}

#[inline]
fn hash(key: u64) -> u64 {
    hash_of(&key.to_le_bytes())
}

#[inline]
fn insert(filter: &Filter, key: u64) -> u64 {
    filter.change().insert(hash(key));
    0
}

#[inline]
fn remove(filter: &Filter, key: u64) -> u64 {
    filter.change().remove(hash(key));
    0
}

/// 1 if the key is not denied.
#[inline]
fn probe(filter: &Filter, key: u64) -> u64 {
    u64::from(filter.may_contain(hash(key)))
}

struct FilterBench<'a> {
    filter: &'a Filter,
    plan: &'a Plan,
}

impl FilterBench<'_> {
    fn probes(&self) -> u64 {
        self.plan.operations.clamp(1, PROBES)
    }

    /// What a probe costs of a key that is there (those below `keys`), and of one that is not.
    fn prices<E>(&self, keys: u64, show: &mut Show<'_, E>) -> Result<(), E> {
        let filter = self.filter;
        let nothing = black_box(0);
        for (base, count, next_to, after) in [
            (0, keys.min(self.probes()), "filter-hit", "filter-hit-waiting"),
            (2 * STRANGERS, self.probes(), "filter-miss", "filter-miss-waiting"),
        ] {
            let range = base..base + count;
            let (found, report) = self.timed(next_to, range.clone(), |key| probe(filter, key));
            let denied = (base == 0).then_some(count - found);
            show(FilterReport { false_negatives: denied, ..report })?;
            // Which key is next depends on the answer: where the processor does not guess it from
            // the last ones, it waits.
            let mut waited = 0;
            let (_, report) = self.timed(after, range, |key| {
                let answer = probe(filter, key + (waited & nothing));
                waited = answer;
                answer
            });
            show(report)?;
        }
        Ok(())
    }

    /// Does `work` for each key, and adds up what it says.
    fn timed(
        &self,
        phase: &'static str,
        keys: Range<u64>,
        mut work: impl FnMut(u64) -> u64,
    ) -> (u64, FilterReport) {
        let operations = keys.end - keys.start;
        let begun = Instant::now();
        let mut sum = 0;
        for key in keys {
            sum += work(key);
        }
        (sum, self.report(phase, 1, operations, begun))
    }

    fn report(
        &self,
        phase: &'static str,
        threads: usize,
        operations: u64,
        begun: Instant,
    ) -> FilterReport {
        let seconds = begun.elapsed().as_secs_f64();
        let bits = self.filter.dram_bytes() as f64 * 8.0;
        FilterReport {
            phase,
            records: self.plan.records,
            keys: self.filter.len(),
            threads,
            operations,
            seconds,
            ns_per_operation: seconds * 1e9 * threads as f64 / operations.max(1) as f64,
            false_positives: None,
            false_negatives: None,
            bits_per_key: bits / self.filter.capacity().max(1) as f64,
            rebuilds: 0,
        }
    }

    /// All operations of the plan on all of its threads, the filter made anew beside them.
    fn churn(&self) -> Result<FilterReport, Error> {
        let (plan, filter) = (self.plan, self.filter);
        let windows: Vec<Window> =
            (0..plan.threads as u64).map(|thread| Window::from(thread << 40)).collect();
        let running = AtomicBool::new(true);
        // Half full on the average: what is over the design load is seldom at fault for a denial.
        let width = plan.records / plan.threads as u64 / 2;
        let begun = Instant::now();
        let mut ended = Vec::new();
        let rebuilds = std::thread::scope(|scope| {
            let (windows, running) = (&windows, &running);
            let rebuilder =
                scope.spawn(move || rebuild_until(filter, plan.records, windows, running));
            let workers: Vec<_> = (0..plan.threads)
                .map(|thread| {
                    let operations = plan.share(plan.operations, thread);
                    let draws = Draws::new(plan.seed ^ (thread as u64) << 32);
                    scope.spawn(move || {
                        let churn = Churn { filter, windows, thread, width, draws };
                        churn.run(operations.end - operations.start)
                    })
                })
                .collect();
            ended.extend(workers.into_iter().map(|worker| worker.join()));
            running.store(false, Ordering::Release);
            rebuilder.join()
        });
        let rebuilds = rebuilds.map_err(|_| Error::Panicked)??;
        let report = self.report("filter-churn", plan.threads, plan.operations, begun);
        let mut denied = 0;
        for worker in ended {
            denied += worker.map_err(|_| Error::Panicked)?;
        }
        // And all that is left.
        denied += windows
            .iter()
            .flat_map(|window| {
                window.oldest.load(Ordering::Acquire)..window.next.load(Ordering::Acquire)
            })
            .filter(|key| probe(filter, *key) == 0)
            .count() as u64;
        Ok(FilterReport { false_negatives: Some(denied), rebuilds, ..report })
    }
}

/// The keys of a thread that are there: from `oldest` to before `next`.
#[derive(Debug)]
struct Window {
    oldest: AtomicU64,
    next: AtomicU64,
}

impl From<u64> for Window {
    fn from(base: u64) -> Self {
        Self { oldest: AtomicU64::new(base), next: AtomicU64::new(base) }
    }
}

/// Makes the filter anew, twice as large and back again, until it is told to stop, and once at
/// least; how often it did.
fn rebuild_until(
    filter: &Filter,
    capacity: u64,
    windows: &[Window],
    running: &AtomicBool,
) -> Result<u64, Error> {
    let mut count = 0;
    while count == 0 || running.load(Ordering::Acquire) {
        let larger = if count % 2 == 0 { 2 } else { 1 };
        let rebuild = filter.rebuild(capacity * larger).map_err(Error::from)?;
        for window in windows {
            // Oldest first: what is removed meanwhile is listed, which does no harm.
            let oldest = window.oldest.load(Ordering::Acquire);
            for key in oldest..window.next.load(Ordering::Acquire) {
                rebuild.add(hash(key));
            }
        }
        rebuild.finish();
        count += 1;
    }
    Ok(count)
}

/// A thread that changes its window, and probes all.
struct Churn<'a> {
    filter: &'a Filter,
    windows: &'a [Window],
    thread: usize,
    /// Keys that its window has room for.
    width: u64,
    draws: Draws,
}

impl Churn<'_> {
    /// How many keys were denied that were there.
    fn run(mut self, operations: u64) -> u64 {
        let own = &self.windows[self.thread];
        let mut denied = 0;
        // Three quarters of the room at first: a walk at random would stay near nothing for long.
        let first = operations.min(self.width * 4) / 16 * 3;
        let filled = own.next.load(Ordering::Relaxed) + first;
        for _ in 0..operations {
            let (oldest, next) =
                (own.oldest.load(Ordering::Relaxed), own.next.load(Ordering::Relaxed));
            let draw = self.draws.below(100);
            if next < filled || next == oldest || (draw < 25 && next - oldest < self.width) {
                let change = self.filter.change();
                change.insert(hash(next));
                own.next.store(next + 1, Ordering::Release);
            } else if draw < 50 {
                let change = self.filter.change();
                own.oldest.store(oldest + 1, Ordering::Release);
                change.remove(hash(oldest));
            } else {
                denied += u64::from(!self.is_granted());
            }
        }
        denied
    }

    /// Probes a key of any window; false if it was there before and after, and denied.
    fn is_granted(&mut self) -> bool {
        let window = &self.windows[self.draws.below(self.windows.len() as u64) as usize];
        let oldest = window.oldest.load(Ordering::Acquire);
        let there = window.next.load(Ordering::Acquire).saturating_sub(oldest);
        if there == 0 {
            return true;
        }
        let key = oldest + self.draws.below(there);
        probe(self.filter, key) == 1 || {
            // The probe is over before the window is looked at again.
            std::sync::atomic::fence(Ordering::SeqCst);
            window.oldest.load(Ordering::Acquire) > key
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_phases_are_shown_and_nothing_is_denied() -> Result<(), Error> {
        let plan = Plan { records: 20_000, operations: 400_000, threads: 2, ..Plan::default() };
        let mut shown = Vec::new();
        run_filter::<Error>(&plan, &mut |report| {
            shown.push(report);
            Ok(())
        })?;
        let of = |phase: &str| shown.iter().find(|report| report.phase == phase).expect(phase);
        assert_eq!((of("filter-insert-100").keys, of("filter-insert-120").keys), (20_000, 24_000));
        assert_eq!(of("filter-remove").keys, 0);
        let wrong = |phase| of(phase).false_positives.expect("counted");
        assert!(wrong("filter-false-50") < wrong("filter-false-100"));
        assert!(wrong("filter-false-100") < wrong("filter-false-120"));
        // At most one in a hundred, of 400,000.
        assert!((1_000..=4_000).contains(&wrong("filter-false-100")), "{shown:?}");
        assert_eq!(of("filter-hit").false_negatives, Some(0));
        let churn = of("filter-churn");
        assert_eq!((churn.false_negatives, churn.operations), (Some(0), 400_000));
        assert!(churn.rebuilds >= 1 && churn.keys > 0, "{churn:?}");
        Ok(())
    }

    #[test]
    fn a_denial_is_seen() -> Result<(), Error> {
        let filter = Filter::with_capacity(1_000)?;
        let windows = [Window::from(0)];
        // Ten keys that the filter was never told of.
        windows[0].next.store(10, Ordering::Release);
        let draws = Draws::new(1);
        let mut churn = Churn { filter: &filter, windows: &windows, thread: 0, width: 10, draws };
        assert!(!churn.is_granted());
        (0..10).for_each(|key| assert_eq!(insert(&filter, key), 0));
        assert!((0..100).all(|_| churn.is_granted()));
        Ok(())
    }
}
