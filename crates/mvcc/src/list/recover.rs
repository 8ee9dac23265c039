//! Opening a list: all its pages are read, in the order of their births, and lead to the index.
//!
//! ```text
//!   … [g H] [i J k ✂                           torn: no record behind follows ─▶ k, and i if its group is cut
//!   … [g H] [i J ✗ L] [M …                     L follows: what was there was durable, and is damaged
//! ```
//!
//! What a cut has left behind the last whole group is void. Its pages are freed, and what lives before it in a
//! page is moved, before anything is appended: so every page but the open one ends well, for the next opening.
//! The first of these pages goes last: as long as it is there, another opening comes to the same end. Nor does
//! what is moved out of it *follow*, for it is behind what is void.
//!
//! A process that was killed may have left in the caches alone what is found here, and shown. So all that nothing
//! proves to be durable is flushed before it counts.

use super::entries::Pending;
use super::found::{self, Standing};
use super::{List, Versions};
use crate::key::Key;
use crate::map::{Map, Opening};
use crate::volume::Volume;
use crate::volume::page::Found;
use crate::volume::pages::Pages;
use crate::volume::stream::{Position, Stream};
use crate::volume::table::Life;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{Recovery, mutant};
use coreplane_record::{Kind, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages between two words on how far it is.
const PACE: usize = 4096;

/// What is in the pages.
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
    index: BTreeMap<Key, Versions>,
    key_bytes: u64,
    /// Records of a group that has not ended yet, and where they are.
    group: Vec<(Position, u64)>,
    /// What is older was cleared.
    cleared: u64,
    /// Their versions, and where they are.
    clears: Vec<(u64, u64)>,
    /// Where what is void begins.
    void_from: Option<u64>,
    /// The last page with a record that follows, by its number in the order of births.
    proven: usize,
    /// Of a log: all records that count as far as is known, and what comes of them.
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
    let (list, voids) = {
        let guard = recovery.pin();
        let reading = read(volume, &recovery, &guard, &contents, opening)?;
        flush(volume, &contents, reading.proven, opening);
        let list = into_list(volume, &guard, reading, contents, opening)?;
        (opening.begin)()?;
        list
    };
    // From here on everybody may read, and pages can be given back.
    drop(recovery);
    finish(list, &voids)
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
        index: BTreeMap::new(),
        key_bytes: 0,
        group: Vec::new(),
        cleared: 0,
        clears: Vec::new(),
        void_from: None,
        proven: 0,
        found: volume.is_log().then(found::Found::default),
        standing: Standing::default(),
    };
    let total = contents.stream.len();
    let mut broken: Option<u64> = None;
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
        let found = volume.look_at_page(recovery, page, birth);
        reading.take_page(&found, &mut broken, (at, birth, opening))?;
    }
    // A group that has no end, and no break: its last page was never named.
    let open = reading.group.first().map(|it| it.1);
    reading.void_from = reading.void_from.or(open);
    reading.take_log()?;
    Ok(reading)
}

impl Reading<'_> {
    /// What is in a page counts, unless a cut was before it.
    fn take_page(
        &mut self,
        found: &Found,
        broken: &mut Option<u64>,
        (number, birth, opening): (usize, u64, &Opening<'_>),
    ) -> Result<()> {
        let views = |it: &u64| self.volume.view(self.guard, *it).ok();
        if let Some(at) = *broken {
            // All of this is void, unless it says that what is broken was durable.
            let follows = found.records.iter().filter_map(views).any(|view| view.header.follows);
            if follows || found.follows_behind {
                return Err(damaged(at));
            }
            return Ok(());
        }
        for offset in &found.records {
            let view = self.volume.view(self.guard, *offset)?;
            let start = self.volume.space.start_of(self.volume.space.page_of(*offset));
            let place = Position { birth, within: (*offset - start) as u32 };
            self.group.push((place, *offset));
            if view.header.follows {
                self.proven = number;
            }
            if !view.header.batched || mutant!("mvcc.list.half_groups") {
                self.end_group()?;
            }
        }
        if let Some(at) = found.broken {
            if found.follows_behind || opening.was_closed {
                return Err(damaged(at));
            }
            *broken = Some(at);
            self.void_from = Some(self.group.first().map_or(at, |it| it.1));
        }
        Ok(())
    }

    /// All records of a group are here: they count.
    fn end_group(&mut self) -> Result<()> {
        for (place, offset) in std::mem::take(&mut self.group) {
            let view = self.volume.view(self.guard, offset)?;
            if let Some(found) = &mut self.found {
                found.take(place, &view);
                continue;
            }
            match view.header.kind {
                Kind::Put | Kind::Delete if view.header.version > self.cleared => {
                    self.take_record(&view)?;
                }
                Kind::Commit => {
                    let version = view.header.version;
                    self.clears.retain(|it| it.0 != version);
                    self.clears.push((version, offset));
                    self.clear(version)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn take_record(&mut self, view: &View<'_>) -> Result<()> {
        let key = Key::new(view.key());
        match self.index.get_mut(&key) {
            None => {
                self.key_bytes += key.heap_bytes();
                self.index.insert(key, Versions::One(view.offset));
            }
            Some(versions) => {
                let old = self.volume.view(self.guard, versions.newest())?;
                // Of what was moved the copy counts, so that the page that it was moved out of is free.
                if view.header.version >= old.header.version {
                    *versions = Versions::One(view.offset);
                }
            }
        }
        Ok(())
    }

    /// Of a log, when all of it was read: what counts.
    fn take_log(&mut self) -> Result<()> {
        let Some(found) = self.found.take() else { return Ok(()) };
        self.standing = found.sort(self.volume, self.guard)?;
        for offset in std::mem::take(&mut self.standing.applied) {
            self.take_record(&self.volume.view(self.guard, offset)?)?;
        }
        Ok(())
    }

    /// What is older than a clear is gone.
    fn clear(&mut self, version: u64) -> Result<()> {
        self.cleared = self.cleared.max(version);
        let (volume, guard, cleared) = (self.volume, self.guard, self.cleared);
        let mut failed = None;
        self.index.retain(|_, versions| match volume.view(guard, versions.newest()) {
            Ok(view) => view.header.version > cleared,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        self.key_bytes = self.index.keys().map(Key::heap_bytes).sum();
        failed.map_or(Ok(()), Err)
    }
}

/// Flushes what may be in the caches alone. It is durable with what is fenced next.
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

/// The list of what was read; and the pages that are void from some place on.
fn into_list(
    volume: &Arc<Volume>,
    guard: &Guard,
    reading: Reading<'_>,
    contents: Contents,
    opening: &Opening<'_>,
) -> Result<(List, Vec<(u32, u64)>)> {
    let Reading { index, key_bytes, clears, void_from, standing, .. } = reading;
    let mut pages = Pages::new(&volume.space);
    pages.offer(contents.free.into_iter());
    let place = void_from.map(|at| (volume.space.page_of(at), at));
    let mut voids = Vec::new();
    for (birth, page) in &contents.stream {
        pages.adopt(*page, *birth);
        match place {
            Some((first, at)) if first == *page => voids.push((*page, at)),
            Some(_) if !voids.is_empty() => voids.push((*page, volume.space.start_of(*page))),
            _ => {}
        }
    }
    let mut list =
        List::new(Stream::new(volume, pages, opening.first_birth), opening.held, opening.horizon);
    (list.index, list.key_bytes) = (index, key_bytes);
    list.entries = standing.entries;
    let mut named = Vec::new();
    for (key, versions) in &list.index {
        let view = volume.view(guard, versions.newest())?;
        let is_put = view.header.kind == Kind::Put;
        list.records += u64::from(is_put);
        if !is_put {
            list.graves.push_back(list.grave_of(key.clone(), &view));
        }
        live(volume, guard, &mut list.stream.pages, &view, &mut named)?;
    }
    for part in list.entries.pending.iter().flat_map(Pending::all) {
        let view = volume.view(guard, part.offset)?;
        live(volume, guard, &mut list.stream.pages, &view, &mut named)?;
    }
    if let Some(newest) = list.entries.newest {
        list.stream.pages.add_live(volume.space.page_of(newest.offset), newest.len);
    }
    add_unindexed(volume, guard, &mut list, &clears, &standing.voids)?;
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
    for (_, page) in contents.stream {
        if voids.iter().all(|it| it.0 != page) {
            // What is left of it behind its end mark, nobody knows: it counts as dead.
            list.stream.pages.set_used(page, volume.space.page_size());
            list.stream.pages.close(page);
        }
    }
    Ok((list, voids))
}

/// A record is needed, and the pages of its value, which are `named`.
fn live(
    volume: &Volume,
    guard: &Guard,
    pages: &mut Pages,
    view: &View<'_>,
    named: &mut Vec<u32>,
) -> Result<()> {
    if view.header.large {
        let chain = volume.chain(guard, view.value(), false)?;
        named.extend(chain.into_iter().map(|(page, _)| page));
    }
    pages.add_live(volume.space.page_of(view.offset), view.len());
    Ok(())
}

/// Clears live as long as a page may have what they say is gone, and so do control records that rolled back: the cleaner
/// sees to that, as to tombstones.
fn add_unindexed(
    volume: &Volume,
    guard: &Guard,
    list: &mut List,
    clears: &[(u64, u64)],
    voids: &[(u64, u64)],
) -> Result<()> {
    let clears = clears.iter().map(|(_, offset)| (*offset, None));
    for (offset, birth) in clears.chain(voids.iter().map(|(offset, birth)| (*offset, Some(*birth))))
    {
        let view = volume.view(guard, offset)?;
        list.stream.pages.add_live(volume.space.page_of(offset), view.len());
        let written = view.value_word(0).unwrap_or(u64::MAX);
        list.forget(offset, view.len(), birth.unwrap_or(written));
    }
    Ok(())
}

/// Moves what lives in the page that ends with what a cut has left, and frees all void pages; durable when it
/// returns.
fn finish(mut list: List, voids: &[(u32, u64)]) -> Result<List> {
    if mutant!("mvcc.list.void_stays") {
        return Ok(list);
    }
    list.stream.is_settled = false;
    let is_first_last = !mutant!("mvcc.recover.void_order");
    let rest: Vec<u32> = voids.iter().skip(1).map(|(page, _)| *page).collect();
    if is_first_last {
        rest.iter().for_each(|page| list.stream.pages.close(*page));
    }
    list.stream.settle()?;
    if let Some((page, until)) = voids.first() {
        // A pool that is full has a page now, if it has no other.
        let _found = list.stream.await_free();
        let guard = coreplane_pmem::epoch::pin();
        list.clean_page(&guard, *page, *until)?;
        drop(guard);
        list.stream.settle()?;
        list.stream.pages.close(*page);
        list.stream.settle()?;
    }
    if !is_first_last {
        rest.iter().for_each(|page| list.stream.pages.close(*page));
        list.stream.settle()?;
    }
    list.stream.is_settled = true;
    list.settle();
    Ok(list)
}
