//! Threads that work through a plan.

use crate::choice::{Chooser, Draws};
use crate::record::{check_value, mix, number_of, write_key, write_value};
use crate::report::Tally;
use crate::workload::Operation;
use crate::{Distribution, Error, Plan, Report, Result, Session, Target, Workload};
use std::sync::Barrier;
use std::time::Instant;

/// Runs one workload on `target`. All but [`Workload::Load`] and [`Workload::Fill`] expect it loaded.
///
/// # Errors
/// [`Error::Plan`] if the plan cannot be carried out on this target; [`Error::WrongValue`] if a
/// read shows what was never written, or nothing; whatever the target fails with.
pub fn run(target: &dyn Target, plan: &Plan, workload: Workload) -> Result<Report> {
    plan.check()?;
    if workload == Workload::E && !target.is_ordered() {
        return Err(Error::Plan(format!(
            "workload e scans records in order of their keys; engine {} has no order",
            target.name()
        )));
    }
    let distribution = plan.distribution_of(workload);
    let chooser = match workload {
        Workload::Fill | Workload::Load => Chooser::new(Distribution::Uniform, plan.records),
        _ => Chooser::new(distribution, plan.records),
    };
    let before = target.costs();
    let barrier = Barrier::new(plan.threads);
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let (barrier, chooser) = (&barrier, &chooser);
                scope.spawn(move || {
                    let worker = Worker::new(plan, workload, thread, chooser, target.keeps_order());
                    let session = target.session();
                    barrier.wait();
                    let start = Instant::now();
                    worker.and_then(|mut worker| {
                        worker.work(&mut *session?)?;
                        Ok((start, Instant::now(), worker.tally))
                    })
                })
            })
            .collect();
        ended.extend(workers.into_iter().map(|worker| worker.join().map_err(|_| Error::Panicked)));
    });
    let after = target.costs();
    let mut tally = Tally::new()?;
    let mut times: Option<(Instant, Instant)> = None;
    for worker in ended {
        let (start, end, counted) = worker??;
        tally.merge(&counted)?;
        times = Some(times.map_or((start, end), |all| (all.0.min(start), all.1.max(end))));
    }
    let seconds = times.map_or(0.0, |(start, end)| (end - start).as_secs_f64());
    Ok(Report {
        phase: workload.name().to_owned(),
        engine: target.name(),
        threads: plan.threads,
        operations: tally.operations,
        seconds,
        ops_per_s: if seconds > 0.0 { tally.operations as f64 / seconds } else { 0.0 },
        p50_ns: tally.latencies.value_at_quantile(0.5),
        p99_ns: tally.latencies.value_at_quantile(0.99),
        read_mean_ns: tally.reads.nanoseconds(),
        write_mean_ns: tally.writes.nanoseconds(),
        p999_ns: tally.latencies.value_at_quantile(0.999),
        flushes: after.flushes - before.flushes,
        fences: after.fences - before.fences,
        dram_bytes: after.dram_bytes,
        hits_verified: tally.hits,
        records: plan.records,
        distribution: if workload.is_load() { "uniform" } else { distribution.name() },
        key_size: plan.key_size,
        value_size: plan.value_size,
        seed: plan.seed,
    })
}

/// One thread.
struct Worker<'a> {
    plan: &'a Plan,
    workload: Workload,
    thread: u64,
    draws: Draws,
    /// The records to touch; for `load` none: they come in order.
    choices: Vec<u32>,
    numbers: std::ops::Range<u64>,
    latest: bool,
    /// Whether scans are held against the order of keys.
    keeps_order: bool,
    /// Records that this thread has inserted beyond the loaded ones.
    inserted: u64,
    version: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Operations until the next one that is timed.
    untimed: u32,
    tally: Tally,
}

/// One operation in so many is timed: two readings of the clock take 50 ns and hold the processor
/// up, which would be a large part of an operation, and would keep one operation's misses from
/// overlapping with the next one's. A prime, so that it does not beat with pages and batches.
const TIMED_EVERY: u32 = 17;

/// Why a run ends at a record that a read does not find: every record that is read was written before.
const ABSENT: &str = "it is not there";

/// Records of a batch of `fill`.
const FILLED_TOGETHER: usize = 1024;

/// Which mean an operation counts to.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

impl<'a> Worker<'a> {
    fn new(
        plan: &'a Plan,
        workload: Workload,
        thread: usize,
        chooser: &Chooser,
        keeps_order: bool,
    ) -> Result<Worker<'a>> {
        let mut draws = Draws::new(plan.seed ^ (thread as u64) << 32 ^ (workload as u64) << 56);
        let numbers = match workload {
            Workload::Fill => plan.share(plan.fill_count(), thread),
            Workload::Load => {
                let all = plan.load_range();
                let own = plan.share(all.end - all.start, thread);
                all.start + own.start..all.start + own.end
            }
            _ => plan.share(plan.operations, thread),
        };
        let choices = if workload.is_load() {
            Vec::new()
        } else {
            numbers.clone().map(|_| chooser.choose(&mut draws)).collect()
        };
        Ok(Self {
            plan,
            workload,
            thread: thread as u64,
            draws,
            choices,
            numbers,
            latest: plan.distribution_of(workload) == Distribution::Latest,
            keeps_order,
            inserted: 0,
            // Versions of one thread differ, and threads' from each other.
            version: (thread as u64) << 40,
            key: vec![0; plan.key_size],
            value: vec![0; plan.value_size],
            untimed: 0,
            tally: Tally::new()?,
        })
    }

    fn work(&mut self, session: &mut dyn Session) -> Result<()> {
        match self.workload {
            Workload::Fill => self.fill(session),
            Workload::Load => self.load(session),
            Workload::Mget => self.batches(session),
            _ => self.single(session),
        }
    }

    /// Batches are so large that a store which pays for each of them pays little.
    fn fill(&mut self, session: &mut dyn Session) -> Result<()> {
        let (size, len) = (self.plan.key_size, self.plan.value_size);
        let mut bytes = vec![0; FILLED_TOGETHER * (size + len)];
        let numbers: Vec<u64> = self.numbers.clone().collect();
        for batch in numbers.chunks(FILLED_TOGETHER) {
            for (number, record) in batch.iter().zip(bytes.chunks_exact_mut(size + len)) {
                self.version += 1;
                let (key, value) = record.split_at_mut(size);
                write_key(*number, key);
                write_value(*number, self.version, value);
            }
            let records: Vec<(&[u8], &[u8])> = bytes
                .chunks_exact(size + len)
                .take(batch.len())
                .map(|all| all.split_at(size))
                .collect();
            let timed = self.begin();
            session.put_all(&records)?;
            self.done(timed, Kind::Write, batch.len() as u64);
        }
        Ok(())
    }

    fn load(&mut self, session: &mut dyn Session) -> Result<()> {
        for number in self.numbers.clone() {
            let timed = self.begin();
            self.put(session, number)?;
            self.done(timed, Kind::Write, 1);
        }
        Ok(())
    }

    fn single(&mut self, session: &mut dyn Session) -> Result<()> {
        let choices = std::mem::take(&mut self.choices);
        let is_mix = self.workload.is_mix();
        for &choice in &choices {
            let draw = if is_mix { self.draws.below(100) } else { 0 };
            let operation = self.workload.operation(draw);
            let number = self.number(choice);
            let timed = self.begin();
            match operation {
                Operation::Get => self.get(session, number)?,
                Operation::Overwrite => self.put(session, number)?,
                Operation::Insert => {
                    let number = self.own(self.inserted);
                    self.put(session, number)?;
                    self.inserted += 1;
                }
                Operation::ReadModifyWrite => {
                    self.get(session, number)?;
                    self.put(session, number)?;
                }
                Operation::Scan => self.scan(session, number)?,
            }
            let kind = match operation {
                Operation::Get | Operation::Scan => Kind::Read,
                _ => Kind::Write,
            };
            self.done(timed, kind, 1);
        }
        Ok(())
    }

    /// The number of a choice.
    #[inline]
    fn number(&self, choice: u32) -> u64 {
        let choice = u64::from(choice);
        if !self.latest {
            return choice;
        }
        match self.inserted.checked_sub(choice + 1) {
            Some(at) => self.own(at),
            None => self.plan.records - 1 - (choice - self.inserted),
        }
    }

    /// The number of the record that this thread inserts as its `at`-th: threads take turns.
    #[inline]
    fn own(&self, at: u64) -> u64 {
        let first = self.plan.records + self.plan.inserted;
        first + at * self.plan.threads as u64 + self.thread
    }

    /// The time, if the operation that begins is one of those that are timed.
    #[inline]
    fn begin(&mut self) -> Option<Instant> {
        if self.untimed > 0 {
            self.untimed -= 1;
            return None;
        }
        self.untimed = TIMED_EVERY - 1;
        Some(Instant::now())
    }

    #[inline]
    fn done(&mut self, timed: Option<Instant>, kind: Kind, operations: u64) {
        if let Some(begun) = timed {
            let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.tally.latencies.saturating_record(nanoseconds);
            match kind {
                Kind::Read => self.tally.reads.add(nanoseconds),
                Kind::Write => self.tally.writes.add(nanoseconds),
            }
        }
        self.tally.operations += operations;
    }

    #[inline]
    fn put(&mut self, session: &mut dyn Session, number: u64) -> Result<()> {
        self.version += 1;
        write_key(number, &mut self.key);
        write_value(number, self.version, &mut self.value);
        session.put(&self.key, &self.value)
    }

    #[inline]
    fn get(&mut self, session: &mut dyn Session, number: u64) -> Result<()> {
        write_key(number, &mut self.key);
        let len = self.plan.value_size;
        let mut checked = Ok(0);
        let copy = &mut self.value;
        if !session.get(&self.key, &mut |value| checked = check_copy(number, value, len, copy))? {
            checked = Err(ABSENT);
        }
        checked.map_err(|what| Error::WrongValue { number, what })?;
        self.tally.hits += 1;
        Ok(())
    }

    fn scan(&mut self, session: &mut dyn Session, number: u64) -> Result<()> {
        let limit = match self.plan.scan {
            Some(limit) => limit,
            None => 1 + self.draws.below(Workload::SCAN_MAX),
        };
        write_key(number, &mut self.key);
        let (len, keeps_order) = (self.plan.value_size, self.keeps_order);
        let mut wrong = None;
        let mut hits = 0;
        // No two keys begin alike, so that their beginnings have their order.
        let mut least = mix(number);
        session.scan(&self.key, limit as usize, &mut |key, value| {
            hits += 1;
            let number = number_of(key).unwrap_or(u64::MAX);
            if let Err(what) = check_value(number, value, len) {
                wrong = Some(Error::WrongValue { number, what });
            }
            if keeps_order && mix(number) < least {
                wrong = Some(Error::WrongValue { number, what: "a scan shows it out of order" });
            }
            least = mix(number).saturating_add(1);
        })?;
        if hits > limit {
            wrong = Some(Error::WrongValue { number, what: "a scan from it shows too many" });
        }
        if hits == 0 {
            wrong = Some(Error::WrongValue { number, what: ABSENT });
        }
        self.tally.hits += hits;
        wrong.map_or(Ok(()), Err)
    }

    fn batches(&mut self, session: &mut dyn Session) -> Result<()> {
        let choices = std::mem::take(&mut self.choices);
        let (size, len) = (self.plan.key_size, self.plan.value_size);
        let mut keys = vec![0; size * Workload::BATCH];
        for batch in choices.chunks(Workload::BATCH) {
            let timed = self.begin();
            for (choice, key) in batch.iter().zip(keys.chunks_exact_mut(size)) {
                write_key(self.number(*choice), key);
            }
            let mut slices: [&[u8]; Workload::BATCH] = [&[]; Workload::BATCH];
            for (slice, key) in slices.iter_mut().zip(keys.chunks_exact(size)) {
                *slice = key;
            }
            let mut seen = 0_u64;
            let mut wrong = None;
            let mut copy = std::mem::take(&mut self.value);
            session.multi_get(&slices[..batch.len()], &mut |index, value| {
                let number = self.number(batch[index]);
                seen |= 1 << index;
                if let Err(what) = check_copy(number, value, len, &mut copy) {
                    wrong = Some(Error::WrongValue { number, what });
                }
            })?;
            self.value = copy;
            if let Some(choice) = batch.get(seen.trailing_ones() as usize) {
                wrong = Some(Error::WrongValue { number: self.number(*choice), what: ABSENT });
            }
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            self.tally.hits += batch.len() as u64;
            self.done(timed, Kind::Read, batch.len() as u64);
        }
        Ok(())
    }
}

/// Copies a value out of the store, as a caller does who keeps it, and checks the copy.
#[inline]
fn check_copy(
    number: u64,
    value: &[u8],
    len: usize,
    copy: &mut [u8],
) -> std::result::Result<u64, &'static str> {
    match copy.get_mut(..value.len()) {
        Some(copy) => {
            copy.copy_from_slice(value);
            check_value(number, copy, len)
        }
        None => check_value(number, value, len),
    }
}
