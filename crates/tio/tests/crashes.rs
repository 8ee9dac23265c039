//! Power cuts at every fence and every return, and in recovery: each sector has the acknowledged contents or those of
//! a later write, and is never torn.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Call, Eviction, Fault, History, Model, Run, Sim, SimOptions, Standing, Subject, explore,
};
use coreplane_tio::{Disk, Mode, Op, Options, Policy, Source, Tio};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Bytes of a sector here: images are small.
const SECTOR: u64 = 1024;

fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// The effect of a request: a new disk, or sectors with their contents.
#[derive(Debug, Clone)]
enum Made {
    Disk,
    Sectors(Sectors),
}

/// The bytes of a sector.
#[derive(Clone, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = self.0.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        write!(f, "{:?}… {sum:x}", &self.0[..4])
    }
}

/// The bytes of some sectors.
type Sectors = BTreeMap<u64, Bytes>;

#[derive(Debug, Clone, Copy)]
struct Story {
    seed: u64,
    partitions: u32,
    sectors: u64,
    operations: u64,
    /// One request in this many has several sectors, a part of one, or zeroes.
    long_in: u64,
    part_in: u64,
    zero_in: u64,
    /// The number of requests of a batch.
    together: u64,
    /// Where a fence is a sync: one batch in this many is followed by a flush, or is made with FUA.
    flush_in: u64,
    fua_in: u64,
    mode: Mode,
    /// Concurrent sources, each with its own sectors.
    threads: u64,
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    fn hits(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.next(once_in) == 0
    }
}

fn zeroes() -> Bytes {
    Bytes(vec![0; SECTOR as usize])
}

impl Story {
    fn new(seed: u64, partitions: u32) -> Self {
        Self {
            seed,
            partitions,
            sectors: 300,
            operations: 40,
            long_in: 5,
            part_in: 6,
            zero_in: 7,
            together: 1 + seed % 4,
            flush_in: 5,
            fua_in: 6,
            mode: Mode::MultiQueue,
            threads: 1,
        }
    }

    fn options(&self) -> Options {
        Options {
            size: self.sectors * SECTOR,
            partitions: self.partitions,
            sector_len: SECTOR as u32,
            policy: Policy::Pid,
            mode: self.mode,
            ..Options::default()
        }
    }

    fn sim_options(&self, model: Model) -> SimOptions {
        let len = Disk::partition_len(&self.options()).expect("a size");
        SimOptions {
            spaces: self.partitions as usize,
            len,
            max_len: len,
            page_size: SECTOR as u32,
            model,
            seed: self.seed,
            images_per_cut: if is_full_scale() { 12 } else { 6 },
            ..SimOptions::default()
        }
    }

    /// A request, and the sectors that it changes.
    fn request(&self, draw: &mut Draw, serial: u64, known: &mut Sectors) -> (Tio, Sectors) {
        let is_long = draw.hits(self.long_in);
        let count = if is_long { 2 + draw.next(9) } else { 1 };
        // Some sectors of all extents again and again.
        let first = draw.next(6) * (self.sectors / 6) + draw.next(4);
        let first = first.min(self.sectors - count);
        let (mut place, mut len) = (first * SECTOR, count * SECTOR);
        if draw.hits(self.part_in) {
            let from = draw.next(SECTOR / 2);
            (place, len) = (place + from, len - from - draw.next(SECTOR / 3));
        }
        let is_zero = draw.hits(self.zero_in);
        let byte = |at: u64| if is_zero { 0 } else { (serial * 31 + at / 8 + 1) as u8 };
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        let mut made = Sectors::new();
        for (at, byte) in (place..).zip(&bytes) {
            let sector = at / SECTOR;
            let before = || known.get(&sector).cloned().unwrap_or_else(zeroes);
            made.entry(sector).or_insert_with(before).0[(at % SECTOR) as usize] = *byte;
        }
        known.extend(made.clone());
        match is_zero {
            true => (Tio::zero(place, len), made),
            false => (Tio::write(place, bytes), made),
        }
    }
}

/// Acknowledged, and not durable yet.
type Open<'r> = Mutex<Vec<Call<'r, Made>>>;

impl Story {
    /// A source that runs beside others.
    fn live<'r>(&self, run: &'r Run<'_, Made>, disk: &Disk, open: &Open<'r>, thread: u64) {
        let mut draw = Draw(self.seed * 7 + thread);
        for serial in 0..self.operations {
            // The source's own sectors, in all extents.
            let first = draw.next(self.sectors / 16 - 1) * 16 + thread * 5;
            let count = 1 + draw.next(4);
            let byte = if draw.hits(self.zero_in) { 0 } else { (serial * 3 + thread + 1) as u8 };
            let sector = Bytes(vec![byte; SECTOR as usize]);
            let made = (first..first + count).map(|it| (it, sector.clone())).collect();
            let (place, len) = (first * SECTOR, count * SECTOR);
            let mut tio = Tio::write(place, vec![byte; len as usize]);
            if byte == 0 {
                tio = Tio::zero(place, len);
            }
            let is_fua = draw.hits(self.fua_in);
            tio.fua = is_fua;
            let (source, call) = (Source::of_connection(thread), run.began(Made::Sectors(made)));
            let mut tios = [tio, Tio::read(place, len)];
            disk.run(&source, &mut tios);
            assert!(tios.iter().all(|tio| tio.outcome.is_ok()), "{tios:?}");
            assert!(tios[1].bytes.iter().all(|it| *it == byte));
            match disk.is_durable_at_once() || is_fua {
                true => call.returned(),
                false => open.lock().expect("open").push(call),
            }
            if draw.hits(self.flush_in) {
                let all = std::mem::take(&mut *open.lock().expect("open"));
                disk.flush().expect("flush");
                all.into_iter().for_each(|call| call.returned());
            }
        }
    }
}

impl Subject for Story {
    type Op = Made;
    type Store = Option<Disk>;
    type Contents = Option<Sectors>;

    fn work(&self, run: &Run<'_, Made>) {
        let disk = run.acknowledged(Made::Disk, || {
            Disk::simulated_create(run.spaces(), &self.options()).expect("create")
        });
        if self.threads > 1 {
            let open = Mutex::default();
            run.threads(|threads| {
                for thread in 0..self.threads {
                    let (disk, open) = (&disk, &open);
                    threads.spawn(move || self.live(run, disk, open, thread));
                }
            });
            return disk.check_blocks().expect("blocks");
        }
        let mut draw = Draw(self.seed);
        let (mut known, mut open) = (Sectors::new(), Vec::new());
        for serial in 0..self.operations {
            let source = Source::of_connection(draw.next(u64::from(self.partitions)));
            let (mut tios, mut calls) = (Vec::new(), Vec::new());
            let is_fua = draw.hits(self.fua_in);
            for number in 0..self.together {
                let serial = serial * self.together + number;
                let (mut tio, made) = self.request(&mut draw, serial, &mut known);
                tio.fua = is_fua;
                calls.push((run.began(Made::Sectors(made)), is_fua));
                tios.push(tio);
            }
            // The read sees the writes before it.
            let sector = draw.next(self.sectors);
            tios.push(Tio::read(sector * SECTOR, SECTOR));
            disk.run(&source, &mut tios);
            assert!(tios.iter().all(|tio| tio.outcome.is_ok()), "{tios:?}");
            let expected = known.get(&sector).cloned().unwrap_or_else(zeroes);
            assert!(tios[tios.len() - 1].bytes == expected.0);
            for (call, is_fua) in calls {
                match disk.is_durable_at_once() || is_fua {
                    true => call.returned(),
                    false => open.push(call),
                }
            }
            if draw.hits(self.flush_in) {
                disk.flush().expect("flush");
                open.drain(..).for_each(|call| call.returned());
            }
        }
        disk.check_blocks().expect("blocks");
        open.into_iter().for_each(|call| call.returned());
    }

    fn recover(&self, spaces: &Arc<Space>) -> Result<Option<Disk>, String> {
        self.recover_all(std::slice::from_ref(spaces))
    }

    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Option<Disk>, String> {
        match Disk::simulated_open(spaces, &self.options()) {
            Ok(disk) => Ok(Some(disk)),
            Err(coreplane_tio::Error::Partitions(_) | coreplane_tio::Error::Pool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, disk: &Option<Disk>) -> Result<Option<Sectors>, String> {
        let Some(disk) = disk else { return Ok(None) };
        let findings = disk.verify(&mut |_, _| {}).map_err(|error| error.to_string())?;
        if !findings.is_sound() {
            return Err(format!("{findings:?}"));
        }
        disk.check_blocks()?;
        let mut tios = [Tio::read(0, disk.len())];
        disk.run(&Source::of_connection(0), &mut tios);
        let [Tio { op: Op::Read, bytes, outcome, .. }] = tios else { return Err("a read".into()) };
        outcome.map_err(|error| error.to_string())?;
        Ok(Some((0..).zip(bytes.chunks(SECTOR as usize).map(|it| Bytes(it.to_vec()))).collect()))
    }

    fn check(&self, contents: &Option<Sectors>, history: &History<'_, Made>) -> Result<(), String> {
        let Some(contents) = contents else {
            let is_made = history.acknowledged().next().is_some();
            return if is_made { Err("the disk is lost".to_owned()) } else { Ok(()) };
        };
        let zeroes = zeroes();
        for (sector, bytes) in contents {
            let mut allowed = vec![&zeroes];
            for (made, standing) in history.operations() {
                let Made::Sectors(made) = made else { continue };
                let Some(made) = made.get(sector) else { continue };
                if standing == Standing::Acknowledged {
                    allowed.clear();
                }
                allowed.push(made);
            }
            if !allowed.contains(&bytes) {
                return Err(format!("sector {sector} is {bytes:?}, none of {allowed:?}"));
            }
        }
        Ok(())
    }
}

fn explored(story: &Story, model: Model) -> u64 {
    let report = explore(&story.sim_options(model), story);
    assert!(report.is_clean(), "{story:?} {model:?}: {report}");
    report.images
}

fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    first..first + if is_full_scale() { 10 * count } else { count }
}

const BOTH: [Model; 2] = [Model::X86, Model::File];

#[test]
fn a_sector_is_what_it_was_or_what_it_is_now() {
    let mut images = 0;
    for seed in seeds(1, 3) {
        for model in BOTH {
            images += explored(&Story::new(seed, 1), model);
        }
    }
    assert!(images > 500, "{images}");
}

#[test]
fn a_flush_covers_what_every_set_has_acknowledged() {
    let mut images = 0;
    for seed in seeds(21, 3) {
        for model in BOTH {
            images += explored(&Story { fua_in: 0, ..Story::new(seed, 3) }, model);
        }
    }
    assert!(images > 500, "{images}");
}

/// With very few free blocks.
#[test]
fn blocks_come_round() {
    for seed in seeds(41, 2) {
        for model in BOTH {
            let story = Story { sectors: 128, operations: 90, flush_in: 40, ..Story::new(seed, 1) };
            let story = Story { long_in: 2, zero_in: 15, ..story };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn the_other_drivers_keep_as_much() {
    for (seed, mode) in (61..).zip([Mode::SingleQueue, Mode::Sync]) {
        for model in BOTH {
            explored(&Story { mode, ..Story::new(seed, 2) }, model);
        }
    }
}

#[test]
fn writers_side_by_side_keep_as_much() {
    for seed in seeds(81, 2) {
        for (model, partitions, sectors) in [(Model::X86, 1, 900), (Model::File, 2, 400)] {
            let story = Story {
                mode: Mode::Sync,
                threads: 3,
                operations: 14,
                sectors,
                ..Story::new(seed, partitions)
            };
            assert!(explored(&story, model) > 100);
        }
    }
}

/// The map page was a block before: its old bytes must not be taken for names.
#[test]
fn an_extent_that_comes_late_is_empty() {
    for model in BOTH {
        let story = Story { sectors: 256, ..Story::new(1, 1) };
        let sim = Sim::new(&story.sim_options(model)).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &story.options()).expect("create");
        let source = Source::of_connection(0);
        // Each page was a block once.
        for round in 0..600 {
            let mut tios = [Tio::write(round % 128 * SECTOR, vec![0xa5; SECTOR as usize])];
            disk.run(&source, &mut tios);
            assert!(tios[0].outcome.is_ok());
        }
        let mut tios = [Tio::write(200 * SECTOR, vec![7; SECTOR as usize])];
        disk.run(&source, &mut tios);
        disk.flush().expect("flush");
        let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &story.options()).expect("open");
        let findings = disk.verify(&mut |_, _| {}).expect("verify");
        assert!(findings.is_sound() && findings.sectors == 129, "{model:?}: {findings:?}");
    }
}

/// A flushed block is not reused before its replacement is flushed.
#[test]
fn what_was_flushed_stays_until_what_replaces_it_is() {
    let story = Story { sectors: 128, ..Story::new(1, 1) };
    let sim = Sim::new(&story.sim_options(Model::File)).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &story.options()).expect("create");
    let source = Source::of_connection(0);
    let write = |sector: u64, byte: u8| {
        let mut tios = [Tio::write(sector * SECTOR, vec![byte; SECTOR as usize])];
        disk.run(&source, &mut tios);
        assert!(tios[0].outcome.is_ok());
    };
    (0..128).for_each(|sector| write(sector, 1));
    for step in 0..80_u8 {
        write(0, 2 * step);
        disk.flush().expect("flush");
        write(0, 2 * step + 1);
        (0..3).for_each(|at| write(1 + (u64::from(step) * 3 + at) % 127, step));
        for seed in 0..4 {
            let sim = sim.crash(Eviction::Seeded(seed)).reopen().expect("memory");
            let disk = Disk::simulated_open(sim.spaces(), &story.options()).expect("open");
            let mut tios = [Tio::read(0, 1)];
            disk.run(&source, &mut tios);
            assert!(tios[0].outcome.is_ok());
            assert_eq!(tios[0].bytes[0] / 2, step, "of step {step}, {seed}");
        }
    }
}

/// All stores of a killed process remain.
#[test]
fn a_killed_process_loses_nothing() {
    for (seed, model) in (1..9).zip([Model::X86, Model::File].into_iter().cycle()) {
        let story = Story { fua_in: 9, flush_in: 9, ..Story::new(seed, 2) };
        let sim = Sim::new(&story.sim_options(model)).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &story.options()).expect("create");
        let (mut draw, mut known) = (Draw(seed), Sectors::new());
        for serial in 0..150 {
            let source = Source::of_connection(draw.next(2));
            let (tio, _) = story.request(&mut draw, serial, &mut known);
            let mut tios = [tio];
            disk.run(&source, &mut tios);
            assert!(tios[0].outcome.is_ok());
            if draw.hits(20) {
                disk.flush().expect("flush");
            }
        }
        let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &story.options()).expect("open");
        for (sector, bytes) in known {
            let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
            disk.run(&Source::of_connection(0), &mut tios);
            assert!(tios[0].outcome.is_ok() && tios[0].bytes == bytes.0, "sector {sector}, {seed}");
        }
        disk.check_blocks().expect("blocks");
    }
}

/// Some missing flushes or fences may be harmless; most are not.
#[test]
fn a_flush_or_a_fence_that_is_missing_is_found() {
    let (step, least) = if is_full_scale() { (9, 8) } else { (36, 2) };
    let places = (20..200).step_by(step);
    let faults: [(&str, Vec<Fault>, usize); 4] = [
        ("all flushes", vec![Fault::DropEveryFlush], 1),
        ("all fences", vec![Fault::DropEveryFence], 1),
        ("a flush", places.clone().map(Fault::DropFlush).collect(), least),
        ("a fence", places.map(Fault::DropFence).collect(), least),
    ];
    for (what, faults, least) in faults {
        let caught = faults.into_iter().filter(|fault| {
            let story = Story { operations: 100, ..Story::new(2, 1) };
            let options = SimOptions {
                fault: Some(fault.clone()),
                recovery_cut_in: 0,
                max_violations: 1,
                shrink: false,
                ..story.sim_options(Model::X86)
            };
            !explore(&options, &story).violations.is_empty()
        });
        let caught = caught.count();
        assert!(caught >= least, "{what} missing: found at {caught} places");
    }
}
