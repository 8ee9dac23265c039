//! One store through many lives: dozens of power cuts on one pool, and writes between them.
//!
//! ```text
//!   create ─▶ write, clean, move the clock, read ─▶ ✂ ─▶ recover ─▶ all as acknowledged? ─▶ write … ─▶ ✂ …
//! ```
//!
//! Each write is waited for, so that what must be there is known exactly: the newest value of each key,
//! however many lives it was written in. The clock moves forward and back; a record that was once said to
//! have expired stays gone, one that nobody was told of may be there again.
//!
//! A life ends with a cut (some of what was not flushed is there), with a kill (all that was stored is
//! there), or with a close; now and then the next one is cut at once, when it has only recovered.
//! `crashes.rs` cuts at every fence, within one life.

mod scale;
mod story;

use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Engine, Repairable, UnixMillis, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use scale::scaled;
use std::collections::BTreeMap;
use story::{Draw, key};

const LIVES: usize = 36;
const KEYS: u8 = 40;
const START: u64 = 1_800_000_000_000;
const LEN: u64 = 288 << 10;

/// What was written last of a key.
#[derive(Debug, Clone)]
struct Newest {
    value: Vec<u8>,
    expires_at: Option<u64>,
}

/// A store, and what is known of it.
struct Biography {
    draw: Draw,
    serial: usize,
    clock: ManualClock,
    now: u64,
    /// The latest that the clock has ever shown.
    latest: u64,
    /// The greatest expiry that somebody was told of.
    told: u64,
    known: BTreeMap<u8, Newest>,
    placement: Placement,
}

impl Biography {
    fn new(seed: u64, placement: Placement) -> Self {
        let clock = ManualClock::starting_at(UnixMillis(START));
        let (draw, known) = (Draw(seed << 8), BTreeMap::new());
        Self { draw, serial: 0, clock, now: START, latest: START, told: 0, known, placement }
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

    /// Reads a key, which must be as it was written last.
    fn read(&mut self, store: &Scmkv, number: u8) -> Result<(), String> {
        let found = store.get(&key(number)).map_err(|error| error.to_string())?;
        let newest = self.known.get(&number);
        let value = newest.map(|newest| &newest.value);
        let expires_at = newest.and_then(|newest| newest.expires_at).unwrap_or(u64::MAX);
        let is_gone = expires_at <= self.now.max(self.told);
        // The cleaner or the sweep may have come by while it had expired.
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
        let mut batch = Batch::new();
        for number in 0..count {
            let number = if len.is_some() { number as u8 } else { self.draw.key(&(0..KEYS)) };
            let value = (len.is_some() || self.draw.next(4) > 0).then(|| {
                let mut value = self.value();
                len.into_iter().for_each(|len| value.resize(len, 7));
                value
            });
            match &value {
                Some(value) => batch.put(&key(number), value),
                None => batch.delete(&key(number)),
            };
            self.note(number, value, None);
        }
        store.apply(&batch, &WriteOptions::default()).expect("apply");
    }

    fn act(&mut self, store: &Scmkv) -> Result<(), String> {
        let number = self.draw.key(&(0..KEYS));
        let write = WriteOptions::default();
        match self.draw.next(24) {
            0..=8 => {
                let value = self.value();
                let _outcome = store.put(&key(number), &value, &write).expect("put");
                self.note(number, Some(value), None);
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
                let _outcome = store.put(&key(number), &value, &expiring).expect("put");
                self.note(number, Some(value), Some(at));
            }
            17 => self.move_clock(),
            18..=19 => self.read(store, number)?,
            20..=21 => {
                store.clean().expect("clean");
                if self.draw.next(4) == 0 {
                    store.sweep_expired().expect("sweep");
                }
            }
            22 => {
                store.clean().and_then(|_| store.clean()).expect("clean");
                store.prepare_pages().expect("prepare");
            }
            _ if self.placement == Placement::Dram && self.draw.next(4) == 0 => {
                store.checkpoint().expect("checkpoint");
            }
            _ => {}
        }
        Ok(())
    }

    /// All keys are as they were written last, and the store says that it is sound.
    fn check(&mut self, store: &Scmkv) -> Result<(), String> {
        for number in 0..KEYS {
            self.read(store, number)?;
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        if !report.is_sound() {
            return Err(format!("{:?}", report.damages));
        }
        // Counted by slices or at once, and by writers since; held against what can be read.
        let counted = match self.serial % 2 {
            0 => store.try_len().map(|len| len.unwrap_or(report.records)),
            _ => store.len(),
        };
        let counted = counted.map_err(|error| error.to_string())?;
        let told = || format!("{counted} records are counted of {}", report.records);
        (counted == report.records).then_some(()).ok_or_else(told)
    }

    /// The end of a life: the machine of the next.
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

/// The first life with something wrong; none if all was right.
fn tell(seed: u64, placement: Placement, model: Model) -> Result<(), String> {
    let options = SimOptions {
        len: LEN,
        max_len: LEN,
        model,
        seed,
        non_temporal: model == Model::X86 && seed.is_multiple_of(2),
        early_reads: false,
        ..SimOptions::default()
    };
    let mut sim = Sim::new(&options).expect("a machine");
    let mut it = Biography::new(seed, placement);
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
    Ok(())
}

fn tell_all(first: u64, placement: Placement, model: Model) {
    for seed in first..first + scaled(40, 400) {
        tell(seed, placement, model).unwrap();
    }
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_with_the_index_in_the_pool() {
    tell_all(1, Placement::Pool, Model::X86);
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_with_the_index_in_dram() {
    tell_all(1001, Placement::Dram, Model::X86);
}

#[test]
fn a_store_of_many_lives_has_the_newest_of_each_key_where_a_fence_is_a_sync() {
    tell_all(2001, Placement::Dram, Model::File);
}
