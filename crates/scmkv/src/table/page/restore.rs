//! A damaged page information table: lost words of an element are derived, or the page is dropped.
//! [`repair`](crate::upkeep::repair) reports and stores the new words.
//!
//! | damaged | instead |
//! |---|---|
//! | state | the word that differs in one byte, fits its check and makes the first record sound; else all is lost |
//! | length | as if the page had been open: up to its last sound record |
//! | birth | the least possible: tombstones stay longer than necessary |
//!
//! The element of a page of the table itself is always the same. The clock's mark, which is kept in
//! the element of page 0, is set to the present time.

use super::{Kind, Pages};
use crate::table::Seeds;
use crate::table::geometry::Geometry;
use coreplane_engine::{Result, UnixMillis};
use coreplane_pmem::{Space, epoch};
use coreplane_record::{self as record, Reader, sealed};
use std::sync::Arc;

/// A generation that no page has reached.
const GENERATION_UNKNOWN: u64 = 1 << 31;

/// A word of the table that is to be stored: page, offset, the word, and a description.
pub(crate) type Restored = (u32, u64, u64, &'static str);

/// The words that mend the elements of the first `formatted` pages, and the clock's mark.
pub(crate) fn restored(
    space: &Arc<Space>,
    geometry: Geometry,
    (pages, formatted): (&Pages, u32),
    (seeds, now): (Seeds, UnixMillis),
) -> Result<Vec<Restored>> {
    pages.claim_table(formatted)?;
    let (mut stores, size) = (Vec::new(), u64::from(geometry.page_size));
    for page in 0..formatted {
        let offset = pages.element_offset(page);
        let [state, length, birth] = [0, 8, 16].map(|at| Ok(pages.word(offset + at)?.load()));
        let (stored, length, birth) = (state?, length?, birth?);
        let mut put = |at, word, what| stores.push((page, offset + at, word, what));
        let seal = |at, content| sealed::seal(content, offset + at);
        if pages.is_table(page) {
            let words = [
                (8, length, 0),
                (16, birth, seal(16, 0)),
                (0, stored, seal(0, Kind::Table as u64)),
            ];
            let wrong = words.into_iter().filter(|(_, is, must)| is != must);
            wrong.for_each(|(at, _, must)| put(at, must, "it is one of this table, and known"));
            continue;
        }
        let is_length = |bytes: u64| bytes <= size && bytes.is_multiple_of(8);
        let has_length = length == 0
            || sealed::open(length, offset + 8)
                .is_some_and(|it| is_length(it & u64::from(u32::MAX)));
        let birth = sealed::open(birth, offset + 16);
        let kind_of = |state: u64| Kind::from_bits(state & 0xf);
        let state = sealed::open(stored, offset).filter(|state| kind_of(*state).is_some());
        let near = || near(stored).filter_map(|word| sealed::open(word, offset));
        let logs = || near().filter(|state| kind_of(*state) == Some(Kind::Log));
        let log = || sound_one(space, geometry, seeds, page, logs());
        match state.or_else(|| log().filter(|_| birth != Some(0))) {
            Some(found) => {
                if state.is_none() {
                    put(0, seal(0, found), "its state; it is as it was");
                }
                // These of a free page do not count.
                let in_use = kind_of(found) != Some(Kind::Free);
                if in_use && !has_length {
                    put(8, 0, "its length; its records are read to the last that is sound");
                }
                if in_use && birth.is_none() {
                    put(16, seal(16, 1), "its birth; the least there can be now");
                }
            }
            None if birth == Some(0) => {
                let free = Kind::Free as u64 | GENERATION_UNKNOWN << 16;
                put(0, seal(0, free), "its state; it is free");
            }
            None => {
                let what = "its state; what was in it is lost";
                let log = Kind::Log as u64 | GENERATION_UNKNOWN << 16;
                put(8, 0, what);
                put(16, seal(16, birth.unwrap_or(1)), what);
                put(24, seal(24, GENERATION_UNKNOWN), what);
                put(0, seal(0, log), what);
            }
        }
    }
    let clock = pages.clock_offset();
    let mark = pages.word(clock)?.load();
    if mark != 0 && sealed::open(mark, clock).is_none() {
        let word = sealed::seal(now.0 & sealed::CONTENT_MAX, clock);
        stores.push((0, clock, word, "the clock's mark; it begins anew now"));
    }
    Ok(stores)
}

/// The words that differ from `word` in one byte.
fn near(word: u64) -> impl Iterator<Item = u64> {
    let shifts = (0..64).step_by(8);
    shifts.flat_map(move |shift| (1..=255_u64).map(move |bits| word ^ bits << shift))
}

/// The first of `states` with which the first record of a page is sound.
fn sound_one(
    space: &Arc<Space>,
    geometry: Geometry,
    seeds: Seeds,
    page: u32,
    mut states: impl Iterator<Item = u64>,
) -> Option<u64> {
    if !space.adopt_log(page, geometry.page_size) {
        return None;
    }
    let start = space.start_of(page);
    let found = states.find(|state| {
        let seed = record::seed(seeds.crc, (state >> 16) as u32, start);
        Reader { space }.view(&epoch::pin(), start).is_some_and(|it| it.check(seed).is_ok())
    });
    space.retire(page);
    found
}
