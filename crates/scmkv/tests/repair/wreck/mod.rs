//! Pools to be wrecked: their contents, the places of these, and the damage.

use crate::home::{self, Home, New};
use coreplane_engine::{Batch, Engine, UnixMillis, WriteOptions};
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub(crate) const PAGE: usize = home::PAGE as usize;
const HEADER: usize = 2048;
const ELEMENT: usize = 32;
const STRETCH: usize = (PAGE - HEADER) / ELEMENT;
const RECORD_HEADER: usize = 20;
const FOLLOWS: u64 = 16;
const NOW: u64 = 1_800_000_000_000;

/// A store whose clock stands still.
pub(crate) fn options() -> Options {
    let time = Some(Arc::new(|| UnixMillis(NOW)) as _);
    Options { background: false, time, ..Options::default() }
}

/// Numbers drawn from a seed.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

pub(crate) fn key(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

/// A value unlike that of any other serial.
fn value(serial: usize, len: usize) -> Vec<u8> {
    let mut value = format!("<{serial}>").into_bytes();
    value.extend((value.len()..len).map(|at| (serial * 37 + at * 11) as u8));
    value
}

/// All states that each key has had, the last one last; none: absent.
pub(crate) type Past = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// A pool's bytes, and their expected contents.
pub(crate) struct Pool {
    pub(crate) bytes: Vec<u8>,
    pub(crate) past: Past,
    pub(crate) is_in_pool: bool,
    pub(crate) is_closed: bool,
}

/// A store in the making.
struct Story {
    draw: Draw,
    keys: usize,
    serial: usize,
    past: Past,
}

impl Story {
    fn value(&mut self) -> Vec<u8> {
        self.serial += 1;
        let len = match self.draw.below(20) {
            0 => 513 + self.draw.below(1500),
            1..=4 => 100 + self.draw.below(400),
            _ => self.draw.below(60),
        };
        value(self.serial, len)
    }

    fn note(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.past.entry(key).or_default().push(value);
    }

    fn put(&mut self, store: &Scmkv) {
        let (key, value) = (key(self.draw.below(self.keys)), self.value());
        let expires_at = match self.draw.below(12) {
            0 => Some(UnixMillis(NOW - 1)),
            1 => Some(UnixMillis(NOW + 1_000_000)),
            _ => None,
        };
        let write = WriteOptions { expires_at, ..home::write() };
        let _outcome = store.put(&key, &value, &write).expect("put");
        let is_over = expires_at.is_some_and(|at| at.0 < NOW);
        if is_over {
            self.note(key.clone(), Some(value));
            self.note(key, None);
        } else {
            self.note(key, Some(value));
        }
    }

    fn delete(&mut self, store: &Scmkv) {
        let key = key(self.draw.below(self.keys));
        let _outcome = store.delete(&key, &home::write()).expect("delete");
        self.note(key, None);
    }

    fn batch(&mut self, store: &Scmkv) {
        let (mut batch, mut changes) = (Batch::new(), BTreeMap::new());
        for _ in 0..2 + self.draw.below(7) {
            let key = key(self.draw.below(self.keys));
            let value = (self.draw.below(4) > 0).then(|| self.value());
            match &value {
                Some(value) => batch.put(&key, value),
                None => batch.delete(&key),
            };
            changes.insert(key, value);
        }
        store.apply(&batch, &home::write()).expect("apply");
        changes.into_iter().for_each(|(key, value)| self.note(key, value));
    }
}

/// A store written by the story of `seed`, closed or killed.
pub(crate) fn write_one(seed: u64) -> Pool {
    let mut draw = Draw(seed);
    let placement = if draw.below(2) == 0 { Placement::Pool } else { Placement::Dram };
    let pages = [56, 120][draw.below(2)];
    let keys = [12, 60, 150][draw.below(3)];
    let ops = 60 + draw.below(300);
    let is_closed = draw.below(2) == 0;
    let home = Home::in_memory();
    let mut store = home.create(New::tiny(pages).placed(placement).with(options()));
    let mut story = Story { draw, keys, serial: 0, past: Past::new() };
    for _ in 0..ops {
        match story.draw.below(100) {
            0..70 => story.put(&store),
            70..84 => story.delete(&store),
            84..93 => story.batch(&store),
            93..96 => drop(store.clean().expect("clean")),
            96..98 => drop(store.checkpoint().expect("checkpoint")),
            98 => {
                store.close().expect("close");
                drop(store);
                store = home.open(options());
            }
            _ => {
                drop(store);
                store = home.open(options());
            }
        }
    }
    if is_closed {
        store.close().expect("close");
    }
    let bytes = home.bytes();
    Pool { bytes, past: story.past, is_in_pool: placement == Placement::Pool, is_closed }
}

/// A record with its place in the pool.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) key: Vec<u8>,
    /// The runs that a commit record names.
    runs: Vec<Range<usize>>,
    follows: bool,
}

impl Pool {
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.bytes[at..].first_chunk().expect("a word"))
    }

    pub(crate) fn pages(&self) -> usize {
        self.bytes.len() / PAGE
    }

    /// The place of the page information of a page.
    pub(crate) fn element(&self, page: usize) -> Range<usize> {
        let at = page / STRETCH * STRETCH * PAGE + HEADER + page % STRETCH * ELEMENT;
        at..at + ELEMENT
    }

    /// 1: free, 2: table, 3: log, 4: index, 5: checkpoint.
    pub(crate) fn kind(&self, page: usize) -> u64 {
        self.word(self.element(page).start) & 0xf
    }

    /// True for the bytes of headers and tables.
    pub(crate) fn is_metadata(&self, range: &Range<usize>) -> bool {
        (range.start / PAGE..=(range.end - 1) / PAGE).any(|page| page % STRETCH == 0)
    }

    /// The seed of the checksum of a record at `at` in a page of `generation`.
    fn seed(&self, generation: u32, at: usize) -> u32 {
        let place = ((at as u64 >> 3) as u32).rotate_left(7) ^ (at as u64 >> 35) as u32;
        crc32c::crc32c(&self.bytes[16..32]) ^ generation.wrapping_mul(0x9e37_79b1) ^ place
    }

    fn records(&self, page: usize) -> Vec<Record> {
        let (mut at, mut records) = (page * PAGE, Vec::new());
        let element = self.element(page).start;
        let generation = (self.word(element) >> 16) as u32;
        let sealed = self.word(element + 8) as u32 as usize;
        let end = at + if sealed == 0 { PAGE } else { sealed };
        while at + RECORD_HEADER <= end {
            let lengths = self.word(at) >> 32;
            let (key, kind, flags) = (lengths & 0x1_ffff, lengths >> 17 & 7, lengths >> 20 & 0x1f);
            let head = RECORD_HEADER + 8 * (flags & 3).count_ones() as usize;
            let value = head + key as usize;
            let len = value + self.word(at + 8) as u32 as usize;
            let Some(bytes) = self.bytes[..end].get(at..at + len) else { break };
            // The bytes from here on are of an earlier use of the page.
            let crc = crc32c::crc32c_append(self.seed(generation, at), &bytes[4..]);
            if crc.to_le_bytes() != bytes[..4] {
                break;
            }
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
            let runs = (value..len).step_by(16).filter(|_| kind == 4).map(|run| {
                let start = word(run) as usize;
                start..start + word(run + 8) as u32 as usize
            });
            records.push(Record {
                start: at,
                end: at + len,
                key: bytes[head..value].to_vec(),
                runs: runs.collect(),
                follows: flags & FOLLOWS != 0,
            });
            at += len.next_multiple_of(8);
        }
        records
    }

    /// The keys whose loss cannot be known: those of the records at the end of a page that was open
    /// when the store was killed, with nothing sound behind them, and of the batches that end
    /// there.
    pub(crate) fn unprovable(&self, wreck: &[Range<usize>]) -> BTreeSet<Vec<u8>> {
        let is_hit = |range: Range<usize>| {
            wreck.iter().any(|it| it.start < range.end && range.start < it.end)
        };
        let logs = || (1..self.pages()).filter(|page| self.kind(*page) == 3);
        let mut lost = Vec::new();
        for page in logs() {
            let element = self.element(page);
            let is_open = self.word(element.start + 8) == 0 || is_hit(element);
            if is_open && is_hit(page * PAGE..(page + 1) * PAGE) {
                let records = self.records(page);
                let last = records.iter().rposition(|it| it.follows && !is_hit(it.start..it.end));
                lost.extend(records.into_iter().skip(last.map_or(0, |last| last + 1)));
            }
        }
        let runs: Vec<Range<usize>> = lost.iter().flat_map(|it| it.runs.clone()).collect();
        let members = logs().flat_map(|page| self.records(page));
        let members = members.filter(|it| runs.iter().any(|run| run.contains(&it.start)));
        let mut keys: BTreeSet<Vec<u8>> = members.map(|it| it.key).collect();
        keys.extend(lost.into_iter().map(|it| it.key));
        keys
    }
}

/// The kinds of damage to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wreck {
    Byte,
    Zeroes,
    Ones,
    Noise,
    /// Two pages, each in the place of the other.
    Swapped,
    /// A page in the place of another.
    Copied,
}

/// Damages a pool in one place; returns the damage, and where it is.
pub(crate) fn wreck(pool: &Pool, bytes: &mut [u8], draw: &mut Draw) -> (Wreck, Vec<Range<usize>>) {
    let used: Vec<usize> = (0..pool.pages()).filter(|page| pool.kind(*page) != 1).collect();
    let page = |draw: &mut Draw| match draw.below(10) {
        0 => draw.below(pool.pages()),
        1 => 0,
        _ => used[draw.below(used.len())],
    };
    let kinds = [Wreck::Byte, Wreck::Zeroes, Wreck::Ones, Wreck::Noise];
    let kind = match draw.below(40) {
        0 => Wreck::Swapped,
        1 => Wreck::Copied,
        _ => kinds[draw.below(4)],
    };
    let start = page(draw) * PAGE;
    if kind == Wreck::Copied {
        let other = page(draw) * PAGE;
        bytes.copy_within(start..start + PAGE, other);
        let page = other..other + PAGE;
        return (kind, vec![page]);
    }
    if kind == Wreck::Swapped {
        let other = page(draw) * PAGE;
        let (low, high) = (start.min(other), start.max(other));
        if low < high {
            let (front, back) = bytes.split_at_mut(high);
            front[low..low + PAGE].swap_with_slice(&mut back[..PAGE]);
        }
        return (kind, vec![low..low + PAGE, high..high + PAGE]);
    }
    let (at, len) = match (kind, draw.below(8)) {
        (Wreck::Byte, _) => (draw.below(PAGE), 1),
        (_, 0) => (0, PAGE),
        (_, 1) => (draw.below(PAGE), 512 + draw.below(3000)),
        (_, 2) => (draw.below(PAGE / 64) * 64, 64),
        (_, 3) => (draw.below(PAGE / 8) * 8, 8),
        (_, 4) => (draw.below(PAGE), 1 + draw.below(8)),
        _ => (draw.below(PAGE), 1 + draw.below(300)),
    };
    let range = start + at..(start + at + len).min(bytes.len());
    for byte in &mut bytes[range.clone()] {
        match kind {
            Wreck::Byte => *byte ^= 1 + draw.below(255) as u8,
            Wreck::Zeroes => *byte = 0,
            Wreck::Ones => *byte = 0xff,
            Wreck::Noise | Wreck::Swapped | Wreck::Copied => *byte = draw.next() as u8,
        }
    }
    (kind, vec![range])
}
