//! The tree against an ordered map, with pins, an active cleaner, and repeated opens.

use super::Tree;
use crate::map::{Group, Linked, Map, Opening, Purpose, Slice, Space as Found, Versions, Way};
use crate::volume::Volume;
use crate::volume::geometry::Use;
use crate::volume::root::{Root, STEP};
use coreplane_pmem::epoch;
use coreplane_pmem::media::sim::{Eviction, Image, Model as Law, Sim, SimOptions};
use coreplane_pmem::{Claim, CreateOptions, MediaChoice, Pool};
use coreplane_record::{Header, Kind, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

type Model = BTreeMap<Vec<u8>, u64>;

const PAGE: u32 = 4096;
/// The nodes of greater seeds have more entries.
const WIDE: u64 = 100;

/// A tree, and its expected contents.
struct Bench {
    sim: Sim,
    volume: Arc<Volume>,
    tree: Tree,
    model: Model,
    pins: Vec<(u64, Model)>,
    version: u64,
    random: u64,
    /// The state after each write of this life: events of the medium before it, and its model.
    history: Vec<(usize, Model)>,
}

impl Bench {
    fn new(law: Law, pages: u64, seed: u64) -> Self {
        let len = pages * u64::from(PAGE);
        let (max_len, page_size, early_reads) = (len, PAGE, false);
        let options = SimOptions {
            len,
            max_len,
            page_size,
            early_reads,
            model: law,
            ..SimOptions::default()
        };
        let sim = Sim::new(&options).unwrap();
        let create = CreateOptions {
            size: len,
            media: MediaChoice::Auto,
            page_size: PAGE,
            kind: "test".to_owned(),
            parameters: Use::Engine.parameters(if seed > WIDE { 32 } else { 7 }),
        };
        let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).unwrap();
        let root = Root { versions_end: STEP, births_end: STEP, ..Root::default() };
        let volume = Arc::new(Volume::new(pool, &root, &Options::default()));
        volume.table.claim(0..volume.space.pages(), Claim::Words).unwrap();
        volume.space.fence().unwrap();
        volume.pool.set_root(root.to_words()).unwrap();
        let tree = Tree::format(&volume);
        let (model, pins, history) = (Model::new(), Vec::new(), Vec::new());
        Self { sim, volume, tree, model, pins, version: 0, random: seed, history }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Some keys are so long that two of them fill a node.
    fn key(&mut self, keys: u64) -> Vec<u8> {
        let number = self.draw(keys);
        let len = if number.is_multiple_of(17) {
            PAGE as usize / 4 - 28
        } else {
            4 + number as usize % 9
        };
        let mut key = number.to_be_bytes()[4..].to_vec();
        key.resize(len, b'k');
        key
    }

    fn space_for(&mut self, key: &[u8], len: usize) {
        for _ in 0..1000 {
            let guard = epoch::pin();
            let group = Group { lengths: &[len], keys: &[key], apart: 0 };
            let pages = self.tree.pages_for(&guard, group).unwrap();
            drop(guard);
            let space = self.tree.make_space(pages, self.tree.reserve(Purpose::Delete));
            if space.is_err() && !self.pins.is_empty() {
                // Records that pins keep are not moved.
                for (version, _) in std::mem::take(&mut self.pins) {
                    self.tree.unpin(version);
                }
                while self.tree.release_some(&epoch::pin()).unwrap() {}
                continue;
            }
            match space.unwrap() {
                Found::Found => return,
                Found::Again(_) => {}
                // Another test may be reading just now.
                Found::Coming(0) | Found::Wait(0) => std::thread::sleep(Duration::from_millis(1)),
                Found::Coming(generation) | Found::Wait(generation) => {
                    self.volume.space.sync_wait(generation).unwrap();
                }
            }
        }
        panic!("no space comes");
    }

    fn write(&mut self, key: &[u8], is_put: bool) {
        let kind = if is_put { Kind::Put } else { Kind::Delete };
        self.version += 1;
        let events = self.sim.events();
        let header = Header { kind, batched: true, ..Header::put(self.version) };
        let value = self.version.to_le_bytes();
        let len = header.record_len(key, 8);
        self.space_for(key, len);
        let guard = epoch::pin();
        // As in the engine: records are committed before they are read.
        let newest = self.tree.newest(&guard, key).unwrap();
        if newest.is_some_and(|it| self.tree.stream().is_hidden(it)) {
            self.commit();
        }
        let offset = self.tree.stream_mut().append(header, key, &[&value]).unwrap();
        let (version, sequence) = (self.version, self.version);
        let new = Linked { offset, version, sequence, len: len as u32, is_put };
        self.tree.link(&guard, key, new).unwrap();
        match is_put {
            true => self.model.insert(key.to_vec(), version),
            false => self.model.remove(key),
        };
        self.history.push((events, self.model.clone()));
        self.tree.tidy().unwrap();
    }

    fn commit(&mut self) {
        self.tree.seal().unwrap();
        self.tree.stream_mut().commit().unwrap();
        if !self.volume.space.fences_at_once() {
            let generation = self.tree.stream_mut().cover(true);
            if self.draw(2) == 0 {
                self.volume.space.sync_wait(generation).unwrap();
            }
        }
        self.tree.settle();
    }

    fn shown(&self, way: Way<'_>, at: u64) -> Vec<(Vec<u8>, u64)> {
        let guard = epoch::pin();
        let mut shown = Vec::new();
        let mut visit = |key: &[u8], versions: Versions<'_>| {
            let offset = versions.ok().unwrap()[0];
            let view = self.volume.view(&guard, offset).unwrap();
            assert_eq!(view.key(), key);
            if view.header.kind == Kind::Put {
                shown.push((key.to_vec(), view.header.version));
            }
            Ok(true)
        };
        self.tree.walk(&guard, way, at, &mut visit).unwrap();
        shown
    }

    fn check_at(&self, model: &Model, at: u64, from: &[u8]) {
        let all: Vec<_> = model.iter().map(|(key, version)| (key.clone(), *version)).collect();
        assert_eq!(self.shown(Way::Up(&[]), at), all);
        let up: Vec<_> = all.iter().filter(|it| *it.0 >= *from).cloned().collect();
        assert_eq!(self.shown(Way::Up(from), at), up);
        let down: Vec<_> = all.iter().filter(|it| *it.0 < *from).rev().cloned().collect();
        assert_eq!(self.shown(Way::Down(Some(from)), at), down);
        assert_eq!(self.shown(Way::Down(None), at).len(), all.len());
    }

    /// Records and bytes, verified so many keys at a time.
    fn verified(&self, guard: &epoch::Guard, left: usize) -> (u64, u64) {
        let damaged = &mut |error: coreplane_engine::Error, _: Option<&[u8]>| panic!("{error}");
        let (after, is_last, records, bytes) = (None, false, 0, 0);
        let mut slice = Slice { after, left, is_last, records, bytes, damaged };
        while !slice.is_last {
            slice.left = left;
            self.tree.verify(guard, &mut slice);
        }
        (slice.records, slice.bytes)
    }

    fn check(&mut self, keys: u64) {
        self.commit();
        let from = self.key(keys);
        self.check_at(&self.model, u64::MAX, &from);
        for (version, model) in &self.pins {
            self.check_at(model, *version, &from);
        }
        assert_eq!(self.tree.len(), self.model.len() as u64);
        let guard = epoch::pin();
        let len = self.tree.len();
        // In one go, and in slices: each record is verified once.
        let [(records, bytes), parts] = [usize::MAX, 3].map(|left| self.verified(&guard, left));
        assert_eq!((records, parts), (len, (records, bytes)));
        // Pages that an open has found are counted now and then.
        if self.draw(2) == 0 {
            while self.tree.count_some() {}
            self.tree.audit(&guard).unwrap();
        }
    }

    /// Checks that the records in pages apart are all in the least and in the most that a power cut leaves; returns
    /// their number.
    fn check_moved(&self, [least, all]: &[Image; 2]) -> usize {
        let (guard, mut moved) = (epoch::pin(), 0);
        let mut visit = |_: &[u8], versions: Versions<'_>| {
            let offset = versions.ok().unwrap()[0];
            if self.tree.stream.pages.is_apart(self.volume.space.page_of(offset)) {
                let len = u64::from(self.volume.view(&guard, offset).unwrap().len());
                let record = offset as usize..(offset + len) as usize;
                assert_eq!(least.bytes()[record.clone()], all.bytes()[record], "at {offset}");
                moved += 1;
            }
            Ok(true)
        };
        self.tree.walk(&guard, Way::Up(&[]), u64::MAX, &mut visit).unwrap();
        moved
    }

    /// Opens the tree on a medium.
    fn open(sim: Sim, version: u64, random: u64) -> Self {
        let pool = Pool::simulated_open(Arc::clone(sim.space())).unwrap();
        let root = Root::from_words(pool.root());
        let first_birth = root.births_end;
        let root = Root { births_end: first_birth + STEP, ..root };
        let volume = Arc::new(Volume::new(pool, &root, &Options::default()));
        volume.table.claim(0..volume.space.pages(), Claim::WordsAsStored).unwrap();
        volume.pool.set_root(root.to_words()).unwrap();
        let (progress, begin) = (&|_| {}, &|| Ok(()));
        let (was_closed, held, horizon) = (false, u64::MAX, 0);
        let births_closed = 0;
        let opening =
            Opening { was_closed, births_closed, first_birth, held, horizon, begin, progress };
        let tree = Tree::open(&volume, &opening).unwrap();
        let (pins, model) = (Vec::new(), Model::new());
        let mut this =
            Self { sim, volume, tree, model, pins, version, random, history: Vec::new() };
        // The contents do not change when all pages are known.
        let shown = this.shown(Way::Up(&[]), u64::MAX);
        let rest = this.tree.rest().unwrap().unwrap();
        this.tree.take_rest(rest).unwrap();
        assert!(shown == this.shown(Way::Up(&[]), u64::MAX));
        this
    }

    /// The process ends, perhaps between a seal and its fence; another one opens the pool, and then the power fails.
    fn kill(mut self) -> Self {
        if self.draw(2) == 0 {
            self.tree.seal().unwrap();
        }
        let Self { sim, version, random, model, tree, .. } = self;
        drop(tree);
        let next = Self::open(sim.killed().unwrap(), version, random);
        let image = next.sim.crash(Eviction::Seeded(random));
        let shown: Model = next.shown(Way::Up(&[]), u64::MAX).into_iter().collect();
        let is_all = shown == model;
        let mut last = Self::open(image.reopen().unwrap(), version, random);
        last.model = last.shown(Way::Up(&[]), u64::MAX).into_iter().collect();
        // The state that the first heir has shown is there, whether it was complete or not.
        assert!(last.model == shown, "lost with the power, after a kill that left all: {is_all}");
        last
    }

    /// Cuts the power somewhere in the last writes, and opens the remains.
    fn cut(mut self) -> Self {
        self.commit();
        self.volume.space.fence().unwrap();
        let durable = self.sim.events();
        let first = self.history.len();
        for _ in 0..self.draw(12) {
            let key = self.key(200);
            let is_put = self.draw(3) > 0 || !self.model.contains_key(&key);
            self.write(&key, is_put);
            if self.draw(3) == 0 {
                self.commit();
            }
        }
        let events = durable + self.draw((self.sim.events() - durable) as u64 + 1) as usize;
        let eviction = Eviction::Seeded(self.random);
        let image = self.sim.crash_at(events, eviction);
        let Self { version, random, history, .. } = self;
        let mut cut = Self::open(image.reopen().unwrap(), version, random);
        let shown: Model = cut.shown(Way::Up(&[]), u64::MAX).into_iter().collect();
        let may_be = history[first - 1..].iter().filter(|it| it.0 <= events);
        assert!(may_be.clone().any(|it| it.1 == shown), "what is left is none of what there was");
        cut.model = shown;
        cut
    }
}

fn write_and_pin(bench: &mut Bench, steps: u64, keys: u64) {
    for step in 1..=steps {
        let key = bench.key(keys);
        let is_put = bench.draw(3) > 0 || !bench.model.contains_key(&key);
        bench.write(&key, is_put);
        match bench.draw(20) {
            0..=3 => bench.commit(),
            4 if bench.pins.len() < 3 => {
                bench.commit();
                let version = bench.version;
                bench.tree.pin(version);
                bench.pins.push((version, bench.model.clone()));
            }
            5..=6 if !bench.pins.is_empty() => {
                let at = bench.draw(bench.pins.len() as u64) as usize;
                let (version, _) = bench.pins.swap_remove(at);
                bench.tree.unpin(version);
                for _ in 0..bench.draw(4) {
                    let _is_over = bench.tree.release_some(&epoch::pin()).unwrap();
                }
            }
            _ => {}
        }
        if step % 50 == 0 {
            bench.check(keys);
        }
    }
}

#[test]
fn a_tree_is_as_an_ordered_map_and_pins_stand_still() {
    for seed in (1..=4).chain(WIDE + 1..=WIDE + 2) {
        println!("seed {seed}");
        let law = if seed % 2 == 0 { Law::File } else { Law::X86 };
        write_and_pin(&mut Bench::new(law, 2000, seed), 1500, 300);
    }
}

#[test]
fn pages_come_back_while_pins_go() {
    for seed in (11..=14).chain(WIDE + 11..=WIDE + 12) {
        println!("seed {seed}");
        let law = if seed % 2 == 0 { Law::File } else { Law::X86 };
        let mut bench = Bench::new(law, 200, seed);
        write_and_pin(&mut bench, 1500, 250);
        assert!(bench.tree.pages_cleaned > 0, "nothing was cleaned");
    }
}

/// While pages wait for a reader there is no room for copies, however often a write asks for it.
#[test]
fn a_page_for_whose_records_there_is_no_room_is_cleaned_later() {
    let mut bench = Bench::new(Law::X86, 200, 15);
    for _ in 0..3000 {
        let key = bench.key(250);
        bench.write(&key, true);
    }
    bench.commit();
    // Pages with dead records alone need no room.
    while bench.tree.clean_one(1, 200, true).unwrap() {}
    let cleaned = bench.tree.pages_cleaned;
    for _ in 0..300 {
        assert!(!bench.tree.clean_one(1, 200, true).unwrap());
    }
    assert_eq!(bench.tree.pages_cleaned, cleaned);
    assert!(bench.tree.clean_one(1, 0, true).unwrap(), "no page is left");
}

#[test]
fn a_cut_leaves_a_whole_number_of_commits() {
    for seed in (21..=60).chain(WIDE + 21..=WIDE + 30) {
        println!("seed {seed}");
        let law = if seed % 2 == 0 { Law::File } else { Law::X86 };
        let mut bench = Bench::new(law, 200, seed);
        for _ in 0..8 {
            write_and_pin(&mut bench, 25, 60);
            bench = if bench.draw(3) == 0 { bench.kill() } else { bench.cut() };
            bench.check(60);
        }
    }
}

/// Before a fence makes a commit durable, moved records are durable: a power cut cannot take any of them.
#[test]
fn what_was_moved_is_durable_before_a_commit_leads_to_it() {
    let mut bench = Bench::new(Law::X86, 200, 5);
    let (mut cleaned, mut moved) = (0, 0);
    while moved < 200 {
        let key = bench.key(250);
        bench.write(&key, true);
        if bench.draw(4) > 0 {
            continue;
        }
        bench.tree.seal().unwrap();
        let has_moved = bench.tree.pages_cleaned > cleaned;
        let cuts = [Eviction::Nothing, Eviction::Everything];
        let cuts = has_moved.then(|| cuts.map(|it| bench.sim.crash(it)));
        cleaned = bench.tree.pages_cleaned;
        bench.commit();
        moved += cuts.map_or(0, |cuts| bench.check_moved(&cuts));
    }
}

/// The longest keys, in an order that always changes the same end of the tree.
#[test]
fn a_tree_of_long_keys_is_as_low_as_one_of_short_keys() {
    for descends in [false, true] {
        let mut bench = Bench::new(Law::X86, 2000, 1);
        let longest = bench.tree.key_len_max(PAGE as usize);
        for number in 0..200_u32 {
            let number = if descends { 1000 - number } else { number };
            let mut key = number.to_be_bytes().to_vec();
            key.resize(longest, b'k');
            bench.write(&key, true);
            bench.commit();
        }
        bench.check(10);
        assert!(bench.tree.height <= 8, "{} levels", bench.tree.height);
    }
}

/// The dead bytes in pages of earlier lives are known when the pages were counted.
#[test]
fn an_opened_tree_has_victims() {
    let mut bench = Bench::new(Law::X86, 400, 3);
    for _ in 0..900 {
        let key = bench.key(200);
        bench.write(&key, true);
        bench.commit();
    }
    let Bench { sim, version, random, tree, .. } = bench;
    drop(tree);
    let mut bench = Bench::open(sim.killed().unwrap(), version, random);
    assert!(bench.tree.stream.pages.victim().is_none(), "what is not counted is no victim");
    while bench.tree.count_some() {}
    let (_, dead) = bench.tree.stream.pages.victim().unwrap();
    assert!(dead > PAGE / 2, "{dead} bytes are dead in the page with most of them");
}
