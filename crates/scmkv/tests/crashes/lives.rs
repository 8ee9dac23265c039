//! One store through many lives: dozens of power cuts on one pool, and writes between them.
//!
//! ```text
//!   create ─▶ write, clean, move the clock, read ─▶ ✂ ─▶ recover ─▶ all as acknowledged? ─▶ write … ─▶ ✂ …
//! ```
//!
//! Each write is waited for, so that the expected state is known exactly: the newest value of each
//! key, in whichever life it was written. The clock moves forward and back; a record that was once
//! reported as expired stays gone, one whose expiry was not reported may be there again.
//!
//! A life ends with a cut (some unflushed stores are there), with a kill (all stores are there), or
//! with a close; now and then the next life is cut at once, when it has only recovered.
//! `cuts.rs` cuts at every fence, within one life.

use crate::scale::scaled;
use crate::story::{self, Draw, key};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Engine, Error, Repairable, UnixMillis, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeMap;

const LIVES: usize = 36;
const START: u64 = 1_800_000_000_000;

/// The properties of the pools of a test.
#[derive(Debug, Clone, Copy)]
struct World {
    placement: Placement,
    model: Model,
    keys: u8,
    len: u64,
    /// It has no room for all of its keys.
    is_full: bool,
}

const WORLD: World = World {
    placement: Placement::Pool,
    model: Model::X86,
    keys: 40,
    len: 288 << 10,
    is_full: false,
};

/// The last write of a key.
#[derive(Debug, Clone)]
struct Newest {
    value: Vec<u8>,
    expires_at: Option<u64>,
}

/// A store, and its expected state.
struct Biography {
    draw: Draw,
    serial: usize,
    clock: ManualClock,
    now: u64,
    /// The latest that the clock has ever shown.
    latest: u64,
    /// The greatest expiry that was reported.
    told: u64,
    known: BTreeMap<u8, Newest>,
    /// Writes that found no room.
    refused: u64,
    world: World,
}

impl Biography {
    fn new(seed: u64, world: World) -> Self {
        let clock = ManualClock::starting_at(UnixMillis(START));
        let (draw, known) = (Draw(seed << 8), BTreeMap::new());
        let (now, latest) = (START, START);
        Self { draw, serial: 0, clock, now, latest, told: 0, known, refused: 0, world }
    }

    fn options(&self) -> Options {
        Options { time: Some(self.clock.as_clock()), ..story::options() }
    }

    fn value(&mut self) -> Vec<u8> {
        self.serial += 1;
        let mut value = self.serial.to_le_bytes().to_vec();
        value.extend(self.draw.value(self.serial));
        value
    }

    fn note(&mut self, number: u8, value: Option<Vec<u8>>, expires_at: Option<u64>) {
        match value {
            Some(value) => drop(self.known.insert(number, Newest { value, expires_at })),
            None => drop(self.known.remove(&number)),
        }
    }

    /// True if a write was made; false if there was no room, which some pools are meant to run out
    /// of.
    fn is_made<T>(&mut self, written: Result<T, Error>) -> bool {
        match written {
            Err(Error::NoSpace { .. }) if self.world.is_full => {
                self.refused += 1;
                false
            }
            written => written.map(|_| true).expect("a write"),
        }
    }

    /// Reads a key, which must be as it was last written.
    fn read(&mut self, store: &Scmkv, number: u8) -> Result<(), String> {
        let found = store.get(&key(number)).map_err(|error| error.to_string())?;
        let newest = self.known.get(&number);
        let value = newest.map(|newest| &newest.value);
        let expires_at = newest.and_then(|newest| newest.expires_at).unwrap_or(u64::MAX);
        let is_gone = expires_at <= self.now.max(self.told);
        // The cleaner or the sweep may have found it while it had expired.
        let may_be_gone = expires_at <= self.latest;
        let is_right = match (&found, value) {
            (None, None) => true,
            (None, Some(_)) => is_gone || may_be_gone,
            (Some(found), Some(value)) => !is_gone && found == value,
            (Some(_), None) => false,
        };
        if !is_right {
            let told = |value: Option<&Vec<u8>>| value.map(|it| it[..8].to_vec());
            return Err(format!(
                "key {number} is {:?}, not {:?}; gone: {is_gone}",
                told(found.as_ref()),
                told(value)
            ));
        }
        if found.is_none() && value.is_some() {
            self.told = self.told.max(expires_at);
            self.known.remove(&number);
        }
        Ok(())
    }

    fn move_clock(&mut self) {
        let by = self.draw.next(6000);
        let is_back = self.draw.next(3) == 0;
        self.now = if is_back { self.now - by } else { self.now + by };
        self.latest = self.latest.max(self.now);
        self.clock.set(UnixMillis(self.now));
    }

    fn write_batch(&mut self, store: &Scmkv, count: u64, len: Option<usize>) {
        let (mut batch, mut changes) = (Batch::new(), Vec::new());
        for number in 0..count {
            let any = 0..self.world.keys;
            let number = if len.is_some() { number as u8 } else { self.draw.key(&any) };
            let value = (len.is_some() || self.draw.next(4) > 0).then(|| {
                let mut value = self.value();
                len.into_iter().for_each(|len| value.resize(len, 7));
                value
            });
            match &value {
                Some(value) => batch.put(&key(number), value),
                None => batch.delete(&key(number)),
            };
            changes.push((number, value));
        }
        if self.is_made(store.apply(&batch, &WriteOptions::default())) {
            changes.into_iter().for_each(|(number, value)| self.note(number, value, None));
        }
    }

    fn act(&mut self, store: &Scmkv) -> Result<(), String> {
        let number = self.draw.key(&(0..self.world.keys));
        let write = WriteOptions::default();
        match self.draw.next(24) {
            0..=8 => {
                let value = self.value();
                if self.is_made(store.put(&key(number), &value, &write)) {
                    self.note(number, Some(value), None);
                }
            }
            9..=10 => {
                let _outcome = store.delete(&key(number), &write).expect("delete");
                self.note(number, None, None);
            }
            11..=12 => self.write_batch(store, 2 + self.draw.0 % 4, None),
            // More than a page.
            13 => self.write_batch(store, 32, Some(200)),
            14..=16 => {
                // The engine's clock may be ahead.
                let at = store.now().0 + 1 + self.draw.next(5000);
                let value = self.value();
                let expiring = WriteOptions { expires_at: Some(UnixMillis(at)), ..write };
                if self.is_made(store.put(&key(number), &value, &expiring)) {
                    self.note(number, Some(value), Some(at));
                }
            }
            17 => self.move_clock(),
            18..=19 => self.read(store, number)?,
            20..=21 => {
                let cleaned = store.clean();
                let _is_made = self.is_made(cleaned);
                if self.draw.next(4) == 0 {
                    store.sweep_expired().expect("sweep");
                }
            }
            22 => {
                let cleaned = store.clean().and_then(|_| store.clean());
                let _is_made = self.is_made(cleaned);
                store.prepare_pages().expect("prepare");
            }
            _ if self.world.placement == Placement::Dram && self.draw.next(4) == 0 => {
                store.checkpoint().expect("checkpoint");
            }
            _ => {}
        }
        Ok(())
    }

    /// All keys are as they were last written, and `verify` finds the store sound.
    fn check(&mut self, store: &Scmkv) -> Result<(), String> {
        for number in 0..self.world.keys {
            self.read(store, number)?;
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        if !report.is_sound() {
            return Err(format!("{:?}", report.damages));
        }
        // Counted by slices or at once, and by writers since; compared with the records that can be
        // read.
        let counted = match self.serial % 2 {
            0 => store.try_len().map(|len| len.unwrap_or(report.records)),
            _ => store.len(),
        };
        let counted = counted.map_err(|error| error.to_string())?;
        let told = || format!("{counted} records are counted of {}", report.records);
        (counted == report.records).then_some(()).ok_or_else(told)
    }

    /// Ends a life; returns the machine of the next.
    fn end(&mut self, sim: Sim, store: Scmkv) -> Sim {
        let end = self.draw.next(12);
        if end == 0 {
            store.close().expect("close");
            drop(store);
            return sim.crash(Eviction::Nothing).reopen().expect("reopen");
        }
        drop(store);
        if end == 1 {
            return sim.killed().expect("the machine goes on");
        }
        let images = sim.crashes(4);
        let chosen = self.draw.next(images.len() as u64) as usize;
        images[chosen].reopen().expect("reopen")
    }
}

/// Returns how many writes found no room, or the first life with something wrong.
fn tell(seed: u64, world: World) -> Result<u64, String> {
    let World { placement, model, len, .. } = world;
    let options = SimOptions {
        len,
        max_len: len,
        model,
        seed,
        non_temporal: model == Model::X86 && seed.is_multiple_of(2),
        early_reads: false,
        ..SimOptions::default()
    };
    let mut sim = Sim::new(&options).expect("a machine");
    let mut it = Biography::new(seed, world);
    let space = sim.space().clone();
    let mut store = Scmkv::simulated_create(space, Geometry::TINY, placement, it.options())
        .map_err(|error| error.to_string())?;
    for life in 0..LIVES {
        let told =
            |what: String| format!("seed {seed}, {placement:?}, {model:?}, life {life}: {what}");
        for _ in 0..8 + it.draw.next(40) {
            it.act(&store).map_err(told)?;
        }
        it.check(&store).map_err(told)?;
        loop {
            sim = it.end(sim, store);
            // While the power was off.
            it.move_clock();
            let opened = Scmkv::simulated_open(sim.space().clone(), it.options());
            store = opened.map_err(|error| told(format!("open: {error}")))?;
            if it.draw.next(4) > 0 {
                break;
            }
        }
        it.check(&store).map_err(|what| told(format!("after it: {what}")))?;
    }
    Ok(it.refused)
}

fn tell_all(first: u64, world: World) -> u64 {
    let seeds = first..first + scaled(40, 400);
    seeds.map(|seed| tell(seed, world).unwrap_or_else(|what| panic!("{what}"))).sum()
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_with_the_index_in_the_pool() {
    assert_eq!(tell_all(1, WORLD), 0);
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_with_the_index_in_dram() {
    assert_eq!(tell_all(1001, World { placement: Placement::Dram, ..WORLD }), 0);
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_where_a_fence_is_a_sync() {
    let file = World { placement: Placement::Dram, model: Model::File, ..WORLD };
    assert_eq!(tell_all(2001, file), 0);
}

/// Writers clean all the time, and refused writes leave nothing behind.
#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_where_there_is_no_room() {
    let full = World { keys: 250, len: 64 << 10, is_full: true, ..WORLD };
    let refused = tell_all(3001, full)
        + tell_all(3501, World { placement: Placement::Dram, ..full })
        + tell_all(4001, World { placement: Placement::Dram, model: Model::File, ..full });
    assert!(refused > 1000, "only {refused} writes found no room");
}
