//! Opening a list: all its pages are read in the order of their births, and their records are entered in the index.
//!
//! ```text
//!   … [g H] [i J k ✂                           torn: no record behind follows ─▶ k, and i if its group is cut
//!   … [g H] [i J ✗ L] [M …                     L follows: the bytes at ✗ were durable, and are damaged
//! ```
//!
//! What a power cut has left behind the last whole group is void. Its pages are freed, and live records before it in
//! a page are moved, before anything is appended: so every page but the open one ends well for the next open. The
//! first of these pages is freed last: as long as it is there, another open comes to the same result. Records that
//! are moved out of it do not *follow*, since they stand behind void ones.
//!
//! How damage is told from a torn end, and what is known of the keys then, is described in [`damage`](super::damage).
//!
//! A process that was killed may have left records in the caches alone that are found here, and shown. So everything
//! that is not proven to be durable is flushed before it counts.

use super::candidates::{Candidate, Candidates};
use super::damage::{Doubt, Piece, pieces};
use super::entries::Pending;
use super::found::{self, Standing};
use super::rewrite::{self, Left, Lost};
use super::{List, Versions};
use crate::key::Key;
use crate::map::Opening;
use crate::volume::Volume;
use crate::volume::flip::Hurt;
use crate::volume::page::Found;
use crate::volume::pages::Pages;
use crate::volume::stream::{Position, Stream};
use crate::volume::table::Life;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{Recovery, mutant};
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages between two progress reports.
const PACE: usize = 4096;

/// The pages of a pool.
struct Contents {
    /// Pages of the stream in the order of their births.
    stream: Vec<(u64, u32)>,
    /// Pages of large values.
    chains: BTreeMap<u32, u64>,
    free: Vec<u32>,
}

/// The list as far as it was read.
struct Reading<'v> {
    volume: &'v Volume,
    guard: &'v Guard,
    candidates: Candidates,
    /// Records of a group that has not ended yet, with their places.
    group: Vec<(Position, Piece<'v>)>,
    /// The greatest birth of a page in which a clear was written first.
    cleared_birth: u64,
    /// The version of the newest clear, and the offset of its record.
    clear: Option<(u64, u64)>,
    /// The offset from which on records are void.
    void_from: Option<u64>,
    /// The last page with a record that follows, by its number in the order of births.
    proven: usize,
    /// The first unsound piece and all behind it: torn, unless a record behind them follows.
    held: Vec<(Position, Piece<'v>)>,
    /// Damaged records by offset.
    hurt: BTreeMap<u64, Hurt>,
    /// Pages with damage.
    damaged: BTreeSet<u32>,
    doubt: Option<Doubt>,
    /// Of a log: all records that count as far as is known, and the state that results from them.
    found: Option<found::Found>,
    standing: Standing,
}

/// Opens the list that a pool holds.
pub(super) fn recover(volume: &Arc<Volume>, opening: &Opening<'_>) -> Result<List> {
    let in_use = || Error::Unusable("the pool was opened before".to_owned());
    let recovery = volume.space.recovery().ok_or_else(in_use)?;
    let mut contents = Contents { stream: Vec::new(), chains: BTreeMap::new(), free: Vec::new() };
    for page in volume.table.data_pages(0) {
        match volume.table.life(page)? {
            None => contents.free.push(page),
            Some(Life { birth, .. }) if birth == 0 || birth >= opening.first_birth => {
                let what = format!("page {page} is of a life that there never was");
                return Err(Error::Corrupt { offset: volume.space.start_of(page), what });
            }
            Some(Life { birth, is_apart: true }) => {
                let _previous = contents.chains.insert(page, birth);
            }
            Some(Life { birth, is_apart: false }) => contents.stream.push((birth, page)),
        }
    }
    contents.stream.sort_unstable();
    let (list, left) = {
        let guard = recovery.pin();
        let reading = read(volume, &recovery, &guard, &contents, opening)?;
        flush(volume, &contents, reading.proven, opening);
        let list = into_list(volume, &guard, reading, contents, opening)?;
        (opening.begin)()?;
        list
    };
    // From here on all threads may read, and pages can be given back.
    drop(recovery);
    rewrite::finish(list, left)
}

/// Reads all pages of the stream.
fn read<'v>(
    volume: &'v Volume,
    recovery: &Recovery,
    guard: &'v Guard,
    contents: &Contents,
    opening: &Opening<'_>,
) -> Result<Reading<'v>> {
    let mut reading = Reading {
        volume,
        guard,
        candidates: Candidates::default(),
        group: Vec::new(),
        cleared_birth: 0,
        clear: None,
        void_from: None,
        proven: 0,
        held: Vec::new(),
        hurt: BTreeMap::new(),
        damaged: BTreeSet::new(),
        doubt: None,
        found: volume.is_log().then(found::Found::default),
        standing: Standing::default(),
    };
    let total = contents.stream.len();
    let all = contents.stream.iter().map(|(_, page)| page).chain(contents.chains.keys());
    for page in all {
        if !recovery.adopt(*page, volume.space.page_size()) {
            return Err(Error::Unusable(format!("page {page} is in use")));
        }
    }
    for (at, (birth, page)) in contents.stream.iter().copied().enumerate() {
        if at % PACE == 0 {
            let stage = "reading the list";
            (opening.progress)(Progress { stage, done: at as u64, total: total as u64 });
        }
        let found = volume.look_at_page(guard, page, birth);
        let is_ended = opening.was_closed || birth < opening.births_closed;
        reading.take_page(found, (at, page, birth), is_ended)?;
    }
    // A group without an end and without a break: the life of its last page was never durable.
    let open = reading.group.first().or(reading.held.first());
    reading.void_from = open.map(|it| it.1.offset());
    reading.take_log()?;
    Ok(reading)
}

impl<'v> Reading<'v> {
    /// Takes the pieces of a page. They count unless a cut was before them.
    fn take_page(
        &mut self,
        found: Found<'v>,
        (number, page, birth): (usize, u32, u64),
        is_ended: bool,
    ) -> Result<()> {
        let start = self.volume.space.start_of(page);
        for piece in pieces(self.volume, self.guard, (page, birth), found) {
            // All pieces that were held so far were durable.
            let mut proves = is_ended.then_some(Position::MAX);
            if let Piece::Sound(view) = &piece {
                if view.header.follows {
                    (self.proven, proves) = (number, Some(Position::MAX));
                } else if view.header.kind == Kind::Lost {
                    proves = proves.or(Doubt::decode(view).map(|it| it.proven));
                }
            }
            if let Some(until) = proves.filter(|_| !mutant!("mvcc.damage.torn")) {
                self.take_held(until)?;
            }
            let place = Position { birth, within: (piece.offset() - start) as u32 };
            let is_sound = matches!(piece, Piece::Sound(_));
            if self.held.is_empty() && (is_sound || is_ended) {
                self.take_piece(place, piece)?;
            } else {
                self.held.push((place, piece));
            }
        }
        Ok(())
    }

    /// Takes the held pieces, which were durable, up to the first unsound one that does not stand before `until`.
    fn take_held(&mut self, until: Position) -> Result<()> {
        let torn = |it: &(Position, Piece<'_>)| it.0 >= until && !matches!(it.1, Piece::Sound(_));
        let at = self.held.iter().position(torn).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        for (place, piece) in std::mem::replace(&mut self.held, rest) {
            self.take_piece(place, piece)?;
        }
        Ok(())
    }

    /// Takes a piece that was durable.
    fn take_piece(&mut self, place: Position, piece: Piece<'v>) -> Result<()> {
        let at = piece.offset();
        if !matches!(piece, Piece::Sound(_)) {
            if self.volume.is_log() {
                return Err(damaged(at));
            }
            self.damaged.insert(self.volume.space.page_of(at));
        }
        let is_batched = match &piece {
            Piece::Sound(view) => view.header.batched && !mutant!("mvcc.list.half_groups"),
            Piece::Hurt(_, hurt) if matches!(hurt.header.kind, Kind::Put | Kind::Delete) => {
                hurt.header.batched
            }
            Piece::Hurt(..) => return self.lose(place),
            Piece::Lost(_, to) => {
                return self.lose(Position { within: place.within + (to - at) as u32, ..place });
            }
            Piece::Mark(_) => return Ok(()),
        };
        self.group.push((place, piece));
        if is_batched { Ok(()) } else { self.end_group() }
    }

    /// Notes that records of unknown keys were lost before this place.
    fn lose(&mut self, until: Position) -> Result<()> {
        self.doubt_until(Doubt { until, proven: until, record: None });
        // Its group is known to have been durable.
        self.end_group()
    }

    fn doubt_until(&mut self, doubt: Doubt) {
        // The record of a doubt that was cleared may have been moved behind the clear.
        let is_any = doubt.until > Position::default() && doubt.until.birth >= self.cleared_birth;
        if is_any && self.doubt.is_none_or(|it| it.until <= doubt.until) {
            self.doubt = Some(doubt);
        }
    }

    /// Ends a group: all its records were found, and count.
    fn end_group(&mut self) -> Result<()> {
        let mut group = std::mem::take(&mut self.group);
        let ended = group.drain(..).try_for_each(|(place, piece)| self.take_record(place, piece));
        self.group = group;
        ended
    }

    fn take_record(&mut self, place: Position, piece: Piece<'v>) -> Result<()> {
        let view = match piece {
            Piece::Sound(view) => view,
            Piece::Hurt(at, hurt) => {
                let key = Key::new(&hurt.key);
                self.candidates.push(Candidate::of_header(key, &hurt.header, at, 0));
                self.hurt.insert(at, hurt);
                return Ok(());
            }
            Piece::Lost(..) | Piece::Mark(_) => return Ok(()),
        };
        if let Some(found) = &mut self.found {
            found.take(place, &view);
            return Ok(());
        }
        match (view.header.kind, Doubt::decode(&view)) {
            (Kind::Lost, Some(doubt)) => self.doubt_until(doubt),
            (Kind::Put | Kind::Delete | Kind::Lost, _) => {
                self.candidates.push(Candidate::new(&view));
            }
            (Kind::Commit, _) => self.take_clear(&view),
            _ => {}
        }
        Ok(())
    }

    fn take_clear(&mut self, view: &View<'_>) {
        let version = view.header.version;
        // It says all that older ones say; of one that was moved the copy counts.
        if self.clear.is_none_or(|it| it.0 <= version) {
            self.clear = Some((version, view.offset));
        }
        // Where the clear was written first, not where it was moved to: records lost behind that place were not
        // cleared.
        let written = view.value_word(0).unwrap_or(0);
        self.cleared_birth = self.cleared_birth.max(written);
        self.doubt = self.doubt.filter(|doubt| doubt.until.birth >= written);
        self.candidates.clear(version);
    }

    /// Of a log, when all of it was read: determines which records count.
    fn take_log(&mut self) -> Result<()> {
        let Some(found) = self.found.take() else { return Ok(()) };
        self.standing = found.sort(self.volume, self.guard)?;
        for offset in std::mem::take(&mut self.standing.applied) {
            self.candidates.push(Candidate::new(&self.volume.view(self.guard, offset)?));
        }
        Ok(())
    }
}

/// Flushes everything that may be in the caches alone. It is durable after the next fence.
fn flush(volume: &Volume, contents: &Contents, proven: usize, opening: &Opening<'_>) {
    if mutant!("mvcc.recover.flush") {
        return;
    }
    volume.table.flush();
    let unproven =
        if opening.was_closed { &[] } else { contents.stream.get(proven..).unwrap_or(&[]) };
    for (_, page) in unproven {
        volume.space.flush(volume.space.start_of(*page), u64::from(volume.space.page_size()));
    }
}

fn damaged(offset: u64) -> Error {
    let what = "no sound record, and those behind it say that there was one".to_owned();
    Error::Corrupt { offset, what }
}

/// Builds the list from what was read; also returns the work that is left.
fn into_list(
    volume: &Arc<Volume>,
    guard: &Guard,
    reading: Reading<'_>,
    contents: Contents,
    opening: &Opening<'_>,
) -> Result<(List, Left)> {
    let Reading { candidates, clear, void_from, standing, hurt, damaged, doubt, .. } = reading;
    let mut pages = Pages::new(&volume.space);
    pages.offer(contents.free.into_iter());
    contents.stream.iter().for_each(|(birth, page)| pages.adopt(*page, *birth));
    let voids = voids_of(volume, &contents.stream, void_from);
    let mut list =
        List::new(Stream::new(volume, pages, opening.first_birth), opening.held, opening.horizon);
    list.entries = standing.entries;
    let (mut named, mut lost, mut is_damaged) = (Vec::new(), Vec::new(), false);
    let newest = candidates.into_newest();
    for it in &newest {
        list.key_bytes += it.key.heap_bytes();
        if let Some(hurt) = hurt.get(&it.offset) {
            lost.push(Lost { key: it.key.clone(), header: hurt.header });
            continue;
        }
        if it.is_large
            && let Err(error) = name_chain(volume, guard, it.offset, &mut named)
        {
            if list.is_log {
                return Err(error);
            }
            // A page of its value is not the one that it names.
            let header = volume.view(guard, it.offset)?.header;
            lost.push(Lost { key: it.key.clone(), header });
            continue;
        }
        list.stream.pages.add_live(volume.space.page_of(it.offset), it.len);
        list.records += u64::from(it.kind == Kind::Put);
        is_damaged |= it.kind == Kind::Lost;
        if it.kind == Kind::Delete {
            let view = volume.view(guard, it.offset)?;
            let grave = list.grave_of(it.key.clone(), &view);
            list.graves.push(grave);
        }
    }
    list.index = newest.into_iter().map(|it| (it.key, Versions::One(it.offset))).collect();
    volume.damaged.store(is_damaged || doubt.is_some() || !lost.is_empty(), Ordering::Relaxed);
    list.damage.doubt = doubt;
    if let Some((offset, len)) = doubt.and_then(|doubt| doubt.record) {
        list.stream.pages.add_live(volume.space.page_of(offset), len);
    }
    for part in list.entries.pending.iter().flat_map(Pending::all) {
        if part.is_large {
            name_chain(volume, guard, part.offset, &mut named)?;
        }
        list.stream.pages.add_live(volume.space.page_of(part.offset), part.len);
    }
    if let Some(newest) = list.entries.newest {
        list.stream.pages.add_live(volume.space.page_of(newest.offset), newest.len);
    }
    add_unindexed(volume, guard, &mut list, clear, &standing.voids)?;
    for page in named {
        let birth = contents.chains.get(&page).copied().unwrap_or_default();
        list.stream.pages.adopt_apart(page, birth);
        list.stream.adopt_chain(&[page]);
    }
    for (page, birth) in contents.chains {
        if list.stream.pages.birth(page) == 0 {
            list.stream.pages.adopt_apart(page, birth);
            list.stream.drop_chain(&[page]);
        }
    }
    let (damaged, others): (Vec<_>, Vec<_>) =
        contents.stream.into_iter().partition(|(_, page)| damaged.contains(page));
    // The void pages are the newest.
    let first_void = voids.first().map_or(u64::MAX, |it| list.stream.pages.birth(it.0));
    for (_, page) in others.into_iter().filter(|it| it.0 < first_void) {
        // The rest of the page behind its end mark counts as dead.
        list.stream.pages.set_used(page, volume.space.page_size());
        list.stream.pages.close(page);
    }
    Ok((list, Left { voids, lost, damaged }))
}

/// The void pages of the stream, each from some offset on.
fn voids_of(volume: &Volume, stream: &[(u64, u32)], void_from: Option<u64>) -> Vec<(u32, u64)> {
    let Some(at) = void_from else { return Vec::new() };
    let first = volume.space.page_of(at);
    let pages = stream.iter().map(|(_, page)| *page).skip_while(|page| *page != first);
    let places = pages.map(|page| (page, volume.space.start_of(page)));
    places.map(|(page, start)| (page, if page == first { at } else { start })).collect()
}

/// Adds the pages of a large value to `named`.
fn name_chain(volume: &Volume, guard: &Guard, offset: u64, named: &mut Vec<u32>) -> Result<()> {
    let chain = volume.chain(guard, volume.view(guard, offset)?.value(), false)?;
    named.extend(chain.into_iter().map(|(page, _)| page));
    Ok(())
}

/// The newest clear is live as long as a page may have records that it cleared, and so are control records that
/// rolled back: the cleaner drops them as it drops tombstones.
fn add_unindexed(
    volume: &Volume,
    guard: &Guard,
    list: &mut List,
    clear: Option<(u64, u64)>,
    voids: &[(u64, u64)],
) -> Result<()> {
    let clear = clear.map(|(_, offset)| (offset, None));
    let voids = voids.iter().map(|(offset, birth)| (*offset, Some(*birth)));
    for (offset, birth) in clear.into_iter().chain(voids) {
        let view = volume.view(guard, offset)?;
        list.stream.pages.add_live(volume.space.page_of(offset), view.len());
        let written = view.value_word(0).unwrap_or(u64::MAX);
        list.forget(offset, view.len(), birth.unwrap_or(written));
    }
    Ok(())
}
