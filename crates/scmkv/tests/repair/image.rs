//! The pools whose bits are flipped, their contents, and the area of each of their bytes.

use crate::home::{self, Home, New};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Engine, UnixMillis, WriteOptions};
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::collections::BTreeMap;

const PAGE: usize = home::PAGE as usize;
const HEADER: usize = 2048;
const ELEMENT: usize = 32;
const RECORD_HEADER: usize = 20;
const NOW: u64 = 1_800_000_000_000;

/// The value that each key that was ever written must have; none: absent.
pub(crate) type Expected = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A pool's bytes, and their expected contents.
#[allow(dead_code, reason = "each test takes what it needs")]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
    /// The key that was written last, if the store was killed then.
    pub(crate) last: Option<&'static str>,
}

/// The area of a byte in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Area {
    Header,
    Table,
    Index,
    /// Header and key of a record.
    RecordHead,
    RecordValue,
    /// Free pages, and the bytes behind the last record of a page.
    Unused,
}

impl Area {
    #[allow(dead_code, reason = "of use to one of the tests")]
    pub(crate) fn is_metadata(self) -> bool {
        matches!(self, Self::Header | Self::Table | Self::Index)
    }
}

pub(crate) fn options() -> Options {
    let clock = ManualClock::starting_at(UnixMillis(NOW));
    Options { time: Some(clock.as_clock()), ..home::options(false) }
}

pub(crate) fn value(serial: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (serial * 37 + at * 11) as u8).collect()
}

/// Writes all kinds of records, overwrites and deletes among them, and cleans a little.
fn fill(store: &Scmkv) -> Expected {
    let mut expected = Expected::new();
    let write = WriteOptions::default();
    let mut serial = 0;
    let key = |number: usize| format!("key-{number:03}").into_bytes();
    let mut put = |expected: &mut Expected, number: usize, len: usize, options: &WriteOptions| {
        serial += 1;
        let _outcome = store.put(&key(number), &value(serial, len), options).expect("put");
        expected.insert(key(number), Some(value(serial, len)));
    };
    for number in 0..110 {
        put(&mut expected, number, 8 + number % 40, &write);
    }
    // Over an eighth of a page: in overflow records.
    for number in [110, 111, 112, 110] {
        put(&mut expected, number, 1300, &write);
    }
    let lasting = WriteOptions { expires_at: Some(UnixMillis(NOW + 1_000_000)), ..write };
    let over = WriteOptions { expires_at: Some(UnixMillis(NOW - 1)), ..write };
    for number in 20..26 {
        put(&mut expected, number, 30, &lasting);
    }
    for number in 26..30 {
        put(&mut expected, number, 30, &over);
        expected.insert(key(number), None);
    }
    for number in (0..110).step_by(3) {
        put(&mut expected, number, 24, &write);
    }
    for number in (1..110).step_by(7) {
        let _outcome = store.delete(&key(number), &write).expect("delete");
        expected.insert(key(number), None);
    }
    for first in [40, 50] {
        let mut batch = Batch::new();
        for number in first..first + 6 {
            batch.put(&key(number), &value(number + first, 50));
            expected.insert(key(number), Some(value(number + first, 50)));
        }
        batch.delete(&key(first + 6));
        expected.insert(key(first + 6), None);
        store.apply(&batch, &write).expect("apply");
    }
    for _ in 0..4 {
        store.clean().expect("clean");
    }
    for number in 60..75 {
        put(&mut expected, number, 20, &write);
    }
    expected
}

/// The images: closed and killed, both placements of the index.
pub(crate) fn images() -> Vec<Image> {
    let mut images = Vec::new();
    for (name, placement, is_closed) in [
        ("closed, index in the pool", Placement::Pool, true),
        ("killed, index in the pool", Placement::Pool, false),
        ("closed, index in DRAM", Placement::Dram, true),
        ("killed, index in DRAM", Placement::Dram, false),
    ] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(48).placed(placement).with(options()));
        let expected = fill(&store);
        if is_closed {
            store.close().expect("close");
        }
        let bytes = home.bytes();
        let last = (!is_closed).then_some("key-074");
        images.push(Image { name, bytes, expected, last });
    }
    images
}

impl Image {
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.bytes[at..].first_chunk().expect("a word"))
    }

    /// The area of every byte, read off the bytes as `docs/media-format.md` has them.
    pub(crate) fn areas(&self) -> Vec<Area> {
        let pages = self.bytes.len() / PAGE;
        let mut areas = vec![Area::Unused; self.bytes.len()];
        areas[..HEADER].fill(Area::Header);
        areas[HEADER..HEADER + pages * ELEMENT].fill(Area::Table);
        for page in 1..pages {
            let element = HEADER + page * ELEMENT;
            match self.word(element) & 0xf {
                3 => self.records(page, self.word(element + 8) as u32 as usize, &mut areas),
                4 => areas[page * PAGE..][..PAGE].fill(Area::Index),
                _ => {}
            }
        }
        areas
    }

    fn records(&self, page: usize, sealed: usize, areas: &mut [Area]) {
        let mut at = page * PAGE;
        let end = at + if sealed == 0 { PAGE } else { sealed };
        while at + RECORD_HEADER <= end {
            let lengths = self.word(at) >> 32;
            let (key, kind, flags) = (lengths & 0x1_ffff, lengths >> 17 & 7, lengths >> 20 & 0xf);
            if !(1..=4).contains(&kind) {
                break;
            }
            let head = RECORD_HEADER + 8 * (flags & 3).count_ones() as usize + key as usize;
            let len = head + self.word(at + 8) as u32 as usize;
            areas[at..at + head].fill(Area::RecordHead);
            areas[at + head..at + len].fill(Area::RecordValue);
            at += len.next_multiple_of(8);
        }
    }
}
