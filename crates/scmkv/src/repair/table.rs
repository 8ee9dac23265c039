//! The page information table: an element of which one word is damaged is made good.
//!
//! A damaged element keeps the whole store closed, since nobody can tell what its page holds. Its
//! three words say enough of each other, and the page itself says the rest:
//!
//! | damaged | made good |
//! |---|---|
//! | state | one of the words that differ from it in one byte and match their check: that with which the page's first record is sound, or else the only one that fits birth and length |
//! | length | as if the page had been open: up to its last sound record |
//! | birth | the least there can be: tombstones stay longer than they must |
//!
//! The element of a page of the table itself is always the same.
//!
//! If no state fits, what was in the page is lost, and is told as such. An element with two
//! damaged words is not made good: it could be that of a free page, in which deleted records lie.
//! The clock's mark, which is kept in the element of page 0, begins anew at the time of the repair.

use super::{Finding, Repair, Tell};
use crate::geometry::Geometry;
use crate::page::{Element, Kind, Pages};
use crate::store::Seeds;
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::{Space, epoch};
use coreplane_record::sealed;
use coreplane_record::{self as record, Reader};
use std::sync::Arc;

/// No page has been opened so often.
const GENERATION_UNKNOWN: u64 = 1 << 31;

/// The bits of a length that say how many bytes.
const LENGTH_MAX: u64 = u32::MAX as u64;

/// The words of an element of a page of the table itself: they are always the same.
const TABLE: [(u64, Option<u64>); 3] = [(8, None), (16, Some(0)), (0, Some(Kind::Table as u64))];
const OF_TABLE: &str = "it is a page of this table, and so its words are known";

/// True if the records of a page can be so long.
fn is_length(length: u64, geometry: Geometry) -> bool {
    length <= u64::from(geometry.page_size) && length.is_multiple_of(8)
}

/// What an element's words hold; none: damaged.
#[derive(Debug, Clone, Copy)]
struct Words {
    offset: u64,
    state: Option<u64>,
    /// 0: it has none.
    length: Option<u64>,
    birth: Option<u64>,
    /// The state as it is stored.
    stored: u64,
}

/// The state of a page, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    kind: Kind,
    log: u64,
    generation: u32,
}

impl State {
    fn of(content: u64) -> Option<Self> {
        let kind = Kind::from_bits(content & 0xf)?;
        Some(Self { kind, log: content >> 4 & 0xfff, generation: (content >> 16) as u32 })
    }

    fn content(self) -> u64 {
        self.kind as u64 | self.log << 4 | u64::from(self.generation) << 16
    }
}

/// Makes the elements of the first `formatted` pages good, and the clock's mark.
///
/// # Errors
/// If an element cannot be made good: nothing is changed then.
pub(super) fn restore(
    space: &Arc<Space>,
    geometry: Geometry,
    (pages, formatted): (&Pages, u32),
    (seeds, now): (Seeds, UnixMillis),
    repair: &mut Repair,
    tell: Tell<'_>,
) -> Result<()> {
    let mut stores = Vec::new();
    pages.claim_table(formatted)?;
    for page in 0..formatted {
        let is_possible = |element: Element| {
            element.length.is_none_or(|length| is_length(u64::from(length), geometry))
        };
        if pages.element(page).is_ok_and(is_possible) {
            continue;
        }
        if pages.is_table(page) {
            let offset = pages.element_offset(page);
            stores.extend(TABLE.map(|(at, content)| (page, offset + at, content, OF_TABLE)));
            continue;
        }
        let words = Words::read(pages, page, geometry)?;
        let (at, content, what) = made_good(space, geometry, seeds, page, &words)?;
        stores.push((page, at, content, what));
    }
    super::reclaim_all(space)?;
    let clock = pages.clock_offset();
    let mark = pages.word(clock)?.load();
    if mark != 0 && sealed::open(mark, clock).is_none() {
        let what = "the clock's mark; it begins anew now";
        stores.push((0, clock, Some(now.0 & sealed::CONTENT_MAX), what));
    }
    for (page, offset, content, what) in stores {
        let what = format!("the page information of page {page}: {what}");
        repair.add(tell, Finding { page, offset, len: 8, what, keys: Vec::new() });
        if content.is_some_and(|content| content >> 16 == GENERATION_UNKNOWN) {
            // Whatever was in it is lost.
            let proof = pages.word(offset + 24)?;
            proof.store(sealed::seal(GENERATION_UNKNOWN, offset + 24));
            proof.flush();
        }
        let word = pages.word(offset)?;
        match content {
            Some(content) => word.store(sealed::seal(content, offset)),
            None => word.store(0),
        }
        word.flush();
    }
    space.fence().map_err(crate::page::sync_failed)
}

impl Words {
    fn read(pages: &Pages, page: u32, geometry: Geometry) -> Result<Self> {
        let offset = pages.element_offset(page);
        let load = |at: u64| -> Result<u64> { Ok(pages.word(at)?.load()) };
        let length = load(offset + 8)?;
        let stored = load(offset)?;
        Ok(Self {
            offset,
            state: sealed::open(stored, offset).filter(|content| State::of(*content).is_some()),
            length: match length {
                0 => Some(0),
                _ => sealed::open(length, offset + 8)
                    .filter(|content| is_length(content & LENGTH_MAX, geometry)),
            },
            birth: sealed::open(load(offset + 16)?, offset + 16),
            stored,
        })
    }

    /// States that differ from what is stored in one byte and match their check.
    fn near(&self) -> impl Iterator<Item = State> + '_ {
        let stored = self.stored;
        let words = (0..64)
            .step_by(8)
            .flat_map(move |shift| (1..=255_u64).map(move |bits| stored ^ bits << shift));
        words.filter_map(|word| sealed::open(word, self.offset)).filter_map(State::of)
    }
}

/// The word to store, its content (none: zero), and what that means.
type MadeGood = (u64, Option<u64>, &'static str);

fn made_good(
    space: &Arc<Space>,
    geometry: Geometry,
    seeds: Seeds,
    page: u32,
    words: &Words,
) -> Result<MadeGood> {
    let offset = words.offset;
    match (words.state.and_then(State::of), words.length, words.birth) {
        (Some(state), Some(_), None) => {
            let in_use = !matches!(state.kind, Kind::Free | Kind::Table);
            Ok((offset + 16, Some(u64::from(in_use)), "its birth; the least there can be now"))
        }
        (Some(_), None, Some(_)) => {
            Ok((offset + 8, None, "its length; its records are read to the last that is sound"))
        }
        (None, Some(length), Some(birth)) => {
            let fits = |state: &State| match state.kind {
                Kind::Free | Kind::Table => birth == 0 && length == 0 && state.log == 0,
                Kind::Index | Kind::Checkpoint => birth > 0 && length == 0 && state.log == 0,
                Kind::Log => birth > 0,
            };
            let first = first_record(space, geometry, seeds, page, words, &fits);
            let mut near = words.near().filter(fits);
            let only = near.next().filter(|_| near.next().is_none());
            let state = first.or(only);
            let what = match state {
                Some(_) => "its state; it is as it was",
                None if birth == 0 => "its state; it is free",
                None => "its state; what it was cannot be told",
            };
            let kind = if birth == 0 { Kind::Free } else { Kind::Log };
            let unknown = State { kind, log: 0, generation: GENERATION_UNKNOWN as u32 };
            Ok((offset, Some(state.unwrap_or(unknown).content()), what))
        }
        _ => Err(Error::Corrupt {
            offset,
            what: format!(
                "the page information of page {page} is damaged in several words; this cannot be \
                 repaired: restore the pool from a copy"
            ),
        }),
    }
}

/// The state with which the first record of a page is sound.
fn first_record(
    space: &Arc<Space>,
    geometry: Geometry,
    seeds: Seeds,
    page: u32,
    words: &Words,
    fits: &dyn Fn(&State) -> bool,
) -> Option<State> {
    if !space.adopt_log(page, geometry.page_size) {
        return None;
    }
    let found = {
        let guard = epoch::pin();
        let start = space.start_of(page);
        let view = Reader { space }.view(&guard, start);
        view.and_then(|view| {
            words.near().filter(fits).find(|state| {
                let seed = record::seed(seeds.crc, state.generation, start);
                state.kind == Kind::Log && view.check(seed).is_ok()
            })
        })
    };
    space.retire(page);
    found
}
