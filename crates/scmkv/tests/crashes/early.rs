//! Power cuts beside event loops: they write without waiting, read what others have not made
//! durable, and withhold their answers until it is.
//!
//! ```text
//!   turn      put, get, delete … ─▶ answers + their horizon ─▶ commit
//!   later     is the horizon durable? ─▶ the answers are sent: from now on they must be true
//! ```
//!
//! An answer may be that of a read: then the write that it shows, of any loop, must be there too.
//! On a file the sync of a turn is requested at its end, begins and ends beside later turns, and
//! may fail; where a fence is an instruction the writes are staged, and a loop that meets one
//! commits it.

use crate::scale::scaled;
use crate::story::{self, Change, Draw, Durable, LEN_MAX, Map, Op, key, options};
use coreplane_engine::{
    Completion, Deferred, Durability, Engine, Horizon, Record, Result, Ticket, Visibility,
    WriteOptions,
};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Call, Fault, History, Model, Report, Run, SimOptions, Subject, explore,
};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A workload drawn from a seed.
#[derive(Debug)]
struct EventLoops {
    seed: u64,
    placement: Placement,
    /// Loops, each with keys of its own to write; all read all.
    loops: u8,
    /// All keys: few, if the loops are to meet on them.
    keys: u8,
    /// Answers that were sent late, in all runs: they were not durable when their turn ended.
    late: AtomicU64,
    /// Loops that were ended by a sync that failed.
    failed: AtomicU64,
}

/// The answers of a turn, and the horizon that they rest on.
#[derive(Debug, Default)]
struct Withheld<'a> {
    calls: Vec<Call<'a, Op>>,
    horizon: Horizon,
}

/// The number of turns that may wait for their answers to be sent.
const TURNS_WITHHELD: usize = 3;

struct EventLoop<'a> {
    run: &'a Run<'a, Op>,
    store: &'a Scmkv,
    mine: Range<u8>,
    all: Range<u8>,
    /// A key for writes that wait for nothing, between those of others in the same pages.
    relaxed: u8,
    draw: Draw,
    serial: usize,
    withheld: VecDeque<Withheld<'a>>,
    late: &'a AtomicU64,
}

impl<'a> EventLoop<'a> {
    fn early(&self) -> WriteOptions {
        WriteOptions { completion: Completion::Early, ..WriteOptions::default() }
    }

    /// The state of a key that a reader gets, and the ticket that it rests on.
    fn read(&mut self) -> Result<(Change, Ticket)> {
        let number = self.draw.key(&self.all);
        let visibility =
            if self.draw.next(6) == 0 { Visibility::Durable } else { Visibility::Early };
        let mut value = None;
        let mut shown = Ticket::DURABLE;
        let found = self.store.get_with(&key(number), visibility, &mut |record: Record<'_>| {
            value = Some(record.value.to_vec());
            shown = record.ticket;
        })?;
        assert_eq!(found.hit, value.is_some());
        assert!(value.is_none() || shown == found.ticket);
        Ok(((number, value), found.ticket))
    }

    fn command(&mut self, answers: &mut Withheld<'a>) -> Result<()> {
        let choice = self.draw.next(16);
        if choice < 6 {
            let (seen, ticket) = self.read()?;
            // The absence of another loop's key tells nothing: it may be of any of its deletes.
            if seen.1.is_some() || self.mine.contains(&seen.0) {
                answers.calls.push(self.run.began(Op::Seen(seen)));
                answers.horizon.include(ticket);
            }
            return Ok(());
        }
        self.serial += 1;
        if choice == 8 {
            // Lost or not: no loop reads it, and no answer shows it.
            let relaxed =
                WriteOptions { durability: Some(Durability::RELAXED), ..WriteOptions::default() };
            let op = Op::Write(vec![(self.relaxed, Some(self.draw.value(self.serial)))]);
            let _never_acknowledged = self.run.began(op.clone());
            return op.perform(self.store, &relaxed).map(drop);
        }
        let op = match choice {
            6 => Op::Write(self.draw.changes(2, &self.mine, self.serial)),
            7 => {
                let (number, value) = self.draw.change(&self.mine, self.serial, 0);
                Op::PutExpired(number, value.unwrap_or_default())
            }
            _ => Op::Write(self.draw.changes(1, &self.mine, self.serial)),
        };
        let call = self.run.began(op.clone());
        answers.horizon.merge(&op.perform(self.store, &self.early())?);
        answers.calls.push(call);
        Ok(())
    }

    /// Sends the answers that have become durable: each turn is another client's, and waits for
    /// none but its own.
    fn send(&mut self) -> Result<()> {
        for answers in std::mem::take(&mut self.withheld) {
            if self.store.is_durable(&answers.horizon)? {
                answers.calls.into_iter().for_each(Call::returned);
            } else {
                self.withheld.push_back(answers);
            }
        }
        Ok(())
    }

    fn send_first(&mut self) {
        let calls = self.withheld.pop_front().unwrap_or_default().calls;
        calls.into_iter().for_each(Call::returned);
    }

    fn turn(&mut self) -> Result<()> {
        let mut answers = Withheld::default();
        for _ in 0..1 + self.draw.next(3) {
            self.command(&mut answers)?;
        }
        // Now and then the sync is left for a later turn to request.
        if self.draw.next(4) > 0 && !self.store.commit(&answers.horizon)? {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        self.withheld.push_back(answers);
        self.send()?;
        if self.withheld.len() > TURNS_WITHHELD {
            if let Some(first) = self.withheld.front() {
                self.store.wait_durable(&first.horizon)?;
            }
            self.send_first();
        }
        if self.draw.next(6) == 0 {
            // No thread may wait with answers in hand, and this loop does not: it holds no lock.
            Op::Upkeep.perform(self.store, &self.early())?;
        }
        Ok(())
    }

    /// Sends the rest, as a loop does that has nothing else to do.
    fn end(&mut self) -> Result<()> {
        while let Some(first) = self.withheld.front() {
            if self.store.commit(&first.horizon)? {
                self.send_first();
            }
        }
        Ok(())
    }
}

impl EventLoops {
    fn run_loop<'a>(&'a self, run: &'a Run<'a, Op>, store: &'a Scmkv, number: u8) -> Result<()> {
        let all = 0..self.keys;
        let keys = all.end / self.loops;
        let mine = number * keys..(number + 1) * keys;
        let draw = Draw(self.seed << 8 | u64::from(number));
        let (withheld, late) = (VecDeque::new(), &self.late);
        let relaxed = 200 + number;
        let mut this =
            EventLoop { run, store, mine, all, relaxed, draw, serial: 0, withheld, late };
        let turns = 60 / usize::from(self.loops);
        for turn in 0..turns {
            this.turn()?;
            if (number, turn) == (0, turns / 2) {
                store.grow(LEN_MAX)?;
            }
        }
        this.end()
    }

    /// The loops, until they are done or the medium has failed; false if it has.
    fn run_all(&self, run: &Run<'_, Op>, store: &Scmkv) -> bool {
        let before = self.failed.load(Ordering::Relaxed);
        let run_one = |number: u8| {
            if let Err(error) = self.run_loop(run, store, number) {
                assert!(run.space().check_sync().is_err(), "{error}");
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        };
        if self.loops == 1 {
            run_one(0);
        } else {
            run.threads(|threads| {
                (0..self.loops).for_each(|number| threads.spawn(move || run_one(number)));
            });
        }
        self.failed.load(Ordering::Relaxed) == before
    }
}

impl Subject for EventLoops {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let created = run.began(Op::Create);
        let space = run.space().clone();
        match Scmkv::simulated_create(space, Geometry::TINY, self.placement, options()) {
            Ok(store) => {
                created.returned();
                if self.run_all(run, &store) {
                    let closing = run.began(Op::Close);
                    match store.close() {
                        Ok(()) => closing.returned(),
                        Err(error) => assert!(run.space().check_sync().is_err(), "{error}"),
                    }
                }
            }
            Err(error) => assert!(run.space().check_sync().is_err(), "{error}"),
        }
    }

    fn recover(&self, space: &Arc<Space>) -> std::result::Result<Option<Scmkv>, String> {
        story::recover(space, options())
    }

    fn contents(&self, store: &Option<Scmkv>) -> std::result::Result<Option<Map>, String> {
        story::contents(store, true)
    }

    fn check(
        &self,
        contents: &Option<Map>,
        history: &History<'_, Op>,
    ) -> std::result::Result<(), String> {
        story::check(contents, history, Durable::AtReturn)
    }
}

fn event_loops(seed: u64, placement: Placement, loops: u8) -> EventLoops {
    let (late, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    // Some seeds have a few keys, so that one loop reads what another is just writing.
    let keys = if seed.is_multiple_of(2) { 2 * loops } else { story::keys(seed) / 2 };
    EventLoops { seed, placement, loops, keys, late, failed }
}

fn sim_options(seed: u64) -> SimOptions {
    // Early reads are what is tested.
    SimOptions { images_per_cut: 24, early_reads: false, ..story::sim_options(seed) }
}

fn on_a_file(seed: u64) -> SimOptions {
    SimOptions { model: Model::File, non_temporal: false, ..sim_options(seed) }
}

fn explore_all(
    placement: Placement,
    loops: u8,
    first: u64,
    options: fn(u64) -> SimOptions,
) -> Report {
    let mut sum = Report::default();
    let mut late = 0;
    let seeds = scaled(4, 40);
    for seed in first..first + seeds {
        let subject = event_loops(seed, placement, loops);
        let report = explore(&options(seed), &subject);
        assert!(report.violations.is_empty(), "seed {seed}: {report}");
        late += subject.late.into_inner();
        sum.merge(report);
    }
    eprintln!("{} crash images, {late} turns answered late, {:?}", sum.images, sum.sync_cuts);
    assert!(sum.images > 1000 * seeds, "only {} images", sum.images);
    let on_a_file = options(first).model == Model::File;
    assert_eq!(late > 0, on_a_file, "{late} turns were answered late");
    assert_eq!(sum.sync_cuts.are_all_there(), on_a_file, "{:?}", sum.sync_cuts);
    sum
}

#[test]
fn an_answer_that_was_sent_is_true_after_a_power_cut_on_a_file() {
    explore_all(Placement::Dram, 1, 601, on_a_file);
    explore_all(Placement::Dram, 3, 701, on_a_file);
}

#[test]
fn an_answer_that_was_sent_is_true_after_a_power_cut_where_writes_are_staged() {
    explore_all(Placement::Pool, 2, 801, sim_options);
    explore_all(Placement::Dram, 3, 901, sim_options);
}

#[test]
fn an_answer_that_was_sent_is_true_although_a_sync_fails() {
    let mut failed = 0;
    for (seed, sync) in (1001..1001 + scaled(8, 40)).zip((3..).step_by(3)) {
        let subject = event_loops(seed, Placement::Dram, 1 + (seed % 3) as u8);
        let options = SimOptions { failing_sync: Some(sync), ..on_a_file(seed) };
        let report = explore(&options, &subject);
        assert!(report.violations.is_empty(), "seed {seed}, sync {sync}: {report}");
        failed += subject.failed.into_inner();
    }
    assert!(failed > 0, "no loop has met a sync that failed");
}

/// A medium that reports syncs as done before they have ended, or older ones in their place.
#[test]
fn a_sync_that_is_taken_for_done_too_soon_is_caught() {
    for fault in [Fault::DoneWhenDrawn, Fault::DoneWhenRequested, Fault::CoveredByOlder] {
        let caught = (601..609).find(|seed| {
            let options = SimOptions {
                fault: Some(fault.clone()),
                recovery_cut_in: 0,
                max_violations: 1,
                shrink: false,
                ..on_a_file(*seed)
            };
            let loops = event_loops(*seed, Placement::Dram, 1 + (seed % 2) as u8);
            !explore(&options, &loops).violations.is_empty()
        });
        assert!(caught.is_some(), "{fault:?} was not caught");
    }
}
