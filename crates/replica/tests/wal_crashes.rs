//! The baseline in a pool, on a simulated medium whose power fails at any fence, and again during the start.

use coreplane_engine::{Batch, ChangeRef};
use coreplane_mvcc::{Control, LogAppend, SnapshotRecord};
use coreplane_pmem::media::sim::{Eviction, Fault, Model, Sim, SimOptions};
use coreplane_replica::{ReplicaMap, WalBaseline, WalOptions};
use std::collections::BTreeMap;

const OPTIONS: WalOptions = WalOptions { checkpoint_bytes: 1500, has_thread: false };

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The visible contents of a log. The fact that an entry was applied may be lost, so they are seen as if all were
/// applied.
#[derive(Debug, Clone, PartialEq, Default)]
struct Contents {
    term: u64,
    vote: u64,
    members: Vec<u8>,
    newest: u64,
    header: Vec<u8>,
    records: Records,
}

fn contents(map: &WalBaseline) -> Contents {
    let newest = map.control().newest;
    map.apply(newest).unwrap();
    let Control { term, vote, members, applied_header, .. } = map.control();
    let mut records = Records::new();
    map.scan(b"", None, false, &mut |entry| {
        records.extend(entry.record.map(|it| (entry.key.to_vec(), it.value.to_vec())));
        true
    })
    .unwrap();
    Contents { term, vote, members, newest, header: applied_header, records }
}

/// The expected contents after each of the entries, from the applied one on.
struct Truth {
    applied: u64,
    states: Vec<Contents>,
}

impl Truth {
    fn now(&self) -> Contents {
        self.states.last().unwrap().clone()
    }

    fn set(&mut self, change: impl Fn(&mut Contents)) {
        self.states.iter_mut().for_each(change);
    }
}

struct Dice(u64);

impl Dice {
    fn draw(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Makes one change; the contents that are allowed after a power cut, in order.
fn change(map: &WalBaseline, truth: &mut Truth, dice: &mut Dice, step: u64) -> Vec<Contents> {
    let Control { applied, newest, term, .. } = map.control();
    let mark = step.to_le_bytes();
    match dice.draw(20) {
        0..11 => {
            let mut batch = Batch::new();
            for _ in 0..dice.draw(4) {
                let key = [dice.draw(8) as u8];
                match dice.draw(4) {
                    0 => batch.delete(&key),
                    _ => batch.put(&key, &mark.repeat(1 + dice.draw(40) as usize)),
                };
            }
            let entry = LogAppend { timestamp: newest + 1, header: &mark, changes: &batch };
            map.append(&[entry]).unwrap();
            let mut after = truth.now();
            (after.newest, after.header) = (newest + 1, mark.to_vec());
            for change in batch.changes() {
                match change {
                    ChangeRef::Put { key, value, .. } => {
                        after.records.insert(key.to_vec(), value.to_vec());
                    }
                    ChangeRef::Delete { key } => _ = after.records.remove(key),
                }
            }
            truth.states.push(after);
        }
        11..15 => {
            let to = applied + dice.draw(newest - applied + 1);
            map.apply(to).unwrap();
            truth.states.drain(..(to - truth.applied) as usize);
            truth.applied = to;
        }
        15 | 16 => {
            let to = applied + dice.draw(newest - applied + 1);
            map.roll_back(to).unwrap();
            truth.states.truncate((to - truth.applied) as usize + 1);
        }
        17 => {
            let vote = dice.draw(4);
            map.set_vote(term + 1, vote).unwrap();
            truth.set(|it| (it.term, it.vote) = (term + 1, vote));
        }
        18 => {
            map.set_members(&mark).unwrap();
            truth.set(|it| it.members = mark.to_vec());
        }
        _ => {
            let at = newest + 3;
            map.begin_install(at).unwrap();
            let record =
                SnapshotRecord { key: &mark, value: b"installed", timestamp: at, expires_at: None };
            map.install(&mut [record].into_iter()).unwrap();
            map.end_install(&mark, b"members").unwrap();
            let records = Records::from([(mark.to_vec(), b"installed".to_vec())]);
            let (members, header) = (b"members".to_vec(), mark.to_vec());
            let after = Contents { newest: at, header, members, records, ..truth.now() };
            *truth = Truth { applied: at, states: vec![after] };
        }
    }
    vec![truth.now()]
}

fn open(sim: &Sim) -> WalBaseline {
    WalBaseline::simulated_open(sim.space().clone(), &OPTIONS).unwrap()
}

fn simulated(seed: u64, model: Model, non_temporal: bool) -> SimOptions {
    SimOptions {
        len: 40 << 10,
        max_len: 40 << 10,
        page_size: 1024,
        own_epochs: true,
        seed,
        model,
        non_temporal,
        ..SimOptions::default()
    }
}

/// The contents after a cut are among the allowed ones; and the same again, if the power fails during the start or
/// the first commit after it.
fn check(sim: Sim, may_be: &[Contents], dice: &mut Dice, what: &str) -> Sim {
    let before = sim.events();
    let found = contents(&open(&sim));
    assert!(may_be.contains(&found), "{what}: {found:?} is none of {may_be:?}");
    let at = dice.draw(sim.fences_since(before) as u64 + 1) as usize;
    let again = sim.crash_at_fence(before, at, Eviction::Seeded(dice.draw(1 << 30)));
    let again = again.reopen().unwrap();
    assert_eq!(contents(&open(&again)), found, "{what}: another start");
    // The process is killed, and the power stays on.
    again.killed().unwrap()
}

/// Lives of a machine whose power fails in the middle of each: acknowledged changes survive, and none in part.
fn live(seed: u64, model: Model) -> usize {
    let (mut dice, mut images) = (Dice(seed), 0);
    let mut sim = Sim::new(&simulated(seed, model, seed.is_multiple_of(3))).unwrap();
    let mut map = WalBaseline::simulated_create(sim.space().clone(), &OPTIONS).unwrap();
    let mut truth = Truth { applied: 0, states: vec![Contents::default()] };
    for life in 0..4_u64 {
        for step in 0..40 {
            let before = sim.events();
            let mut may_be = vec![truth.now()];
            for _ in 0..=dice.draw(3) {
                may_be.extend(change(&map, &mut truth, &mut dice, life * 100 + step));
            }
            map.wait_durable(map.commit().unwrap()).unwrap();
            let fences = sim.fences_since(before);
            let what = format!("seed {seed} life {life} step {step}");
            for cut in 0..=fences {
                let may_be = if cut == fences { &may_be[may_be.len() - 1..] } else { &may_be };
                let seeded = Eviction::Seeded(dice.draw(1 << 30));
                for eviction in [Eviction::Nothing, Eviction::Everything, seeded] {
                    let image = sim.crash_at_fence(before, cut, eviction).reopen().unwrap();
                    check(image, may_be, &mut dice, &format!("{what} cut {cut} {eviction:?}"));
                    images += 1;
                }
            }
        }
        // The power fails before the first fence of one more change, at a fence within its commit, or after it.
        let before = sim.events();
        let mut may_be = vec![truth.now()];
        may_be.extend(change(&map, &mut truth, &mut dice, life * 100 + 99));
        map.wait_durable(map.commit().unwrap()).unwrap();
        let cut = dice.draw(sim.fences_since(before) as u64 + 1) as usize;
        let image = sim.crash_at_fence(before, cut, Eviction::Seeded(dice.draw(1 << 30)));
        drop(map);
        sim = check(image.reopen().unwrap(), &may_be, &mut dice, &format!("seed {seed} end"));
        map = open(&sim);
        truth = Truth { applied: map.control().newest, states: vec![contents(&map)] };
    }
    images
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    let images: usize = (1..7).map(|seed| live(seed, Model::X86)).sum();
    assert!(images > 2000, "{images}");
}

/// With a file, where a fence is a sync by a thread of its own.
#[test]
fn what_was_synced_is_there_after_a_power_cut() {
    let images: usize = (11..14).map(|seed| live(seed, Model::File)).sum();
    assert!(images > 500, "{images}");
}

/// Appends entries without changes, whose frames have 96 bytes each: ten to a page.
fn append(map: &WalBaseline, timestamps: std::ops::RangeInclusive<u64>, mark: u8) {
    let changes = Batch::new();
    for timestamp in timestamps {
        let entry = LogAppend { timestamp, header: &[mark; 75], changes: &changes };
        map.append(&[entry]).unwrap();
    }
    map.wait_durable(map.commit().unwrap()).unwrap();
}

/// A power cut leaves frames in a page, but not the header that makes it a page of the log. The next start writes
/// there, and the older frames behind its own do not count.
#[test]
fn a_page_that_was_lost_gives_nothing_back() {
    let mut was_lost = 0;
    for seed in 0..40 {
        let sim = Sim::new(&simulated(seed, Model::X86, false)).unwrap();
        let map = WalBaseline::simulated_create(sim.space().clone(), &OPTIONS).unwrap();
        append(&map, 1..=10, 1);
        let before = sim.events();
        append(&map, 11..=20, 2);
        let sim = sim.crash_at_fence(before, 0, Eviction::Seeded(seed)).reopen().unwrap();
        let map = open(&sim);
        let newest = map.control().newest;
        was_lost += usize::from(newest == 10);
        append(&map, newest + 1..=newest + 1, 3);
        let map = open(&sim.crash(Eviction::Everything).reopen().unwrap());
        assert_eq!(map.control().newest, newest + 1, "seed {seed}");
        assert_eq!(map.header(newest + 1).unwrap(), Some(vec![3; 75]));
    }
    assert!(was_lost > 10, "{was_lost}");
}

/// The first commit after a start takes several pages; a power cut leaves any of them.
#[test]
fn the_first_pages_of_a_start_are_lost_in_any_order() {
    for model in [Model::X86, Model::File] {
        for seed in 0..60 {
            let sim = Sim::new(&simulated(seed, model, false)).unwrap();
            let map = WalBaseline::simulated_create(sim.space().clone(), &OPTIONS).unwrap();
            append(&map, 1..=5, 1);
            drop(map);
            let sim = sim.crash(Eviction::Everything).reopen().unwrap();
            let map = open(&sim);
            let before = sim.events();
            append(&map, 6..=40, 2);
            let fences = sim.fences_since(before);
            assert!(fences > 1);
            for at in 0..fences {
                let cut = sim.crash_at_fence(before, at, Eviction::Seeded(seed)).reopen().unwrap();
                let newest = open(&cut).control().newest;
                assert!((5..=40).contains(&newest), "{newest}");
            }
            let cut = sim.crash(Eviction::Nothing).reopen().unwrap();
            assert_eq!(open(&cut).control().newest, 40);
        }
    }
}

/// A process is killed before it has flushed; the next one relies on the frames that it has found.
#[test]
fn what_a_killed_process_has_left_is_made_durable() {
    let run = |fault| {
        let options = SimOptions { fault, ..simulated(1, Model::X86, false) };
        let sim = Sim::new(&options).unwrap();
        let create = || WalBaseline::simulated_create(sim.space().clone(), &OPTIONS).unwrap();
        let (map, mut flushes) = sim.cost_of(create);
        let ((), first) = sim.cost_of(|| append(&map, 1..=8, 1));
        flushes.flushes += first.flushes;
        let ((), last) = sim.cost_of(|| append(&map, 9..=12, 2));
        (sim, flushes.flushes, last.flushes)
    };
    let (_, before, last) = run(None);
    assert!(last > 1, "it takes another page");
    for flush in before..before + last {
        let sim = run(Some(Fault::DropFlush(flush))).0.killed().unwrap();
        let found = contents(&open(&sim));
        assert_eq!(found.newest, 12);
        let sim = sim.crash(Eviction::Nothing).reopen().unwrap();
        assert_eq!(contents(&open(&sim)), found, "flush {flush}");
    }
}

/// A commit has one fence, and flushes no line twice: three frames of 96 bytes touch five lines.
#[test]
fn a_commit_has_one_fence() {
    let sim = Sim::new(&simulated(1, Model::X86, false)).unwrap();
    let map = WalBaseline::simulated_create(sim.space().clone(), &OPTIONS).unwrap();
    append(&map, 1..=2, 1);
    let ((), cost) = sim.cost_of(|| append(&map, 3..=5, 1));
    assert_eq!((cost.fences, cost.flushes), (1, 1));
    assert_eq!(cost.flushed_lines.len(), 5);
}
