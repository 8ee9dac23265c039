//! Finds a log again at an opening.

use super::{END, HEADER, Kind, Log, position, record_at};
use crate::error::{Error, Result};
use crate::pages::{Pages, Role};
use coreplane_pmem::{Pen, Recovery, RecoveryGuard, mutant};
use std::collections::VecDeque;

/// A log that was found, and its damage.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) log: Log,
    /// Places that were durable once and are damaged.
    pub(crate) damage: Vec<String>,
}

/// A record, or a place where there is none.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    page: u32,
    within: u32,
    /// None if it is unsound.
    kind: Option<Kind>,
    len: u32,
}

/// The records found in the pages.
#[derive(Debug, Default)]
struct Scan {
    places: Vec<Place>,
    /// The log was durable up to this place.
    durable: u64,
    /// Pages before this one are history.
    first: u64,
    /// The page before the last checkpoint's start is gone.
    is_trimmed: bool,
}

impl Scan {
    fn page(
        &mut self,
        pages: &Pages,
        guard: &RecoveryGuard<'_>,
        role: Role,
        list: &[(u64, u32)],
        (number, page): (u64, u32),
    ) {
        let (space, len) = (pages.space(), pages.page_len());
        let bytes = space.bytes(guard, space.start_of(page), u64::from(len)).unwrap_or_default();
        let (mut within, mut is_gap) = (0, false);
        while within as usize + HEADER <= bytes.len() {
            let at = position(number, within);
            let Some(found) = record_at(bytes, pages.seed(), role, number, within) else {
                if !is_gap {
                    self.places.push(Place { at, page, within, kind: None, len: 0 });
                }
                (is_gap, within) = (true, within + 8);
                continue;
            };
            is_gap = false;
            self.durable = self.durable.max(found.durable);
            let len = found.bytes.len() as u32;
            self.places.push(Place { at, page, within, kind: Some(found.kind), len });
            if found.kind == Kind::Start {
                self.note_before(number, page, found.bytes);
            }
            if found.kind == Kind::StartOfCheckpoint {
                let before = found.bytes.try_into().ok().map(u64::from_le_bytes);
                let is_there = |it: &u64| list.binary_search_by_key(it, |it| it.0).is_ok();
                let is_first = before == Some(u64::MAX);
                self.is_trimmed = !is_first && !before.as_ref().is_some_and(is_there);
            }
            if found.kind == Kind::End {
                return;
            }
            within += HEADER as u32 + len.next_multiple_of(8);
        }
    }

    /// Inserts a gap if the page before this one, which this page names, is missing.
    fn note_before(&mut self, number: u64, page: u32, bytes: &[u8]) {
        let Some(before) = bytes.try_into().ok().map(u64::from_le_bytes) else { return };
        let start = self.places.len() - 1;
        let last = start.checked_sub(1).and_then(|at| self.places.get(at));
        let is_there = last.map_or(before < self.first, |last| last.at >= position(before, 0));
        if before < number && !is_there {
            let gap = Place { at: position(before, 0), page, within: 0, kind: None, len: 0 };
            self.places.insert(start, gap);
        }
    }

    /// The end of the log: the place of the first record that does not count. Also whether it ends in a checkpoint
    /// whose end existed once: the older pages are given back only after that end.
    fn end(&self) -> (usize, bool) {
        let is_end = |place: &Place| place.kind.is_none() && place.at >= self.durable;
        let end = self.places.iter().position(is_end).unwrap_or(self.places.len());
        let before = self.places.get(..end).unwrap_or_default();
        // A checkpoint without an end does not count.
        let is = |kind: Kind| move |place: &Place| place.kind == Some(kind);
        let started = before.iter().rposition(is(Kind::StartOfCheckpoint));
        let ended = before.iter().rposition(is(Kind::EndOfCheckpoint));
        let is_cut = started.is_some_and(|it| ended.is_none_or(|ended| ended < it));
        match started.filter(|_| is_cut) {
            Some(started) if !self.is_trimmed || mutant!("tsdb.log.trimmed") => (started, false),
            _ => (end, is_cut),
        }
    }

    /// The place at which the log begins.
    fn start(&self, end: usize) -> usize {
        let before = self.places.get(..end).unwrap_or_default();
        let start = |place: &Place| place.kind == Some(Kind::StartOfCheckpoint);
        before.iter().rposition(start).unwrap_or(0)
    }
}

impl Log {
    /// Finds the log with these pages again; pages before `first` are history. Shows each record to `visit`, in
    /// order. All shown records are durable with the next fence of this thread.
    ///
    /// # Errors
    /// The error of `visit`; [`Error::Damage`] if the log of a state's changes is damaged: it is left as it is;
    /// [`Error::Sync`].
    pub(crate) fn recover(
        (pages, recovery): (&Pages, &mut Recovery),
        role: Role,
        mut list: Vec<(u64, u32)>,
        first: u64,
        mut visit: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Recovered> {
        list.sort_unstable();
        let next = list.last().map_or(0, |(number, _)| number + 1);
        let next = next.max(first).max(pages.first_number());
        let live = list.split_off(list.partition_point(|(number, _)| *number < first));
        pages.give_up(list.into_iter().map(|(_, page)| page));
        let len = pages.page_len();
        let mut scan = Scan { first, ..Scan::default() };
        let (start, end, is_broken);
        {
            for (_, page) in &live {
                // No other user has the page.
                let _is_its = recovery.adopt(*page, len);
            }
            let guard = recovery.pin();
            live.iter().for_each(|it| scan.page(pages, &guard, role, &live, *it));
            (end, is_broken) = scan.end();
            start = scan.start(end);
            let records = scan.places.get(start..end).unwrap_or_default();
            for place in records.iter().filter(|it| it.kind == Some(Kind::Data)) {
                let from = pages.space().start_of(place.page) + u64::from(place.within);
                let bytes = pages.space().bytes(&guard, from + HEADER as u64, place.len.into());
                visit(bytes.unwrap_or_default())?;
            }
        }
        let mut log = Self { next, ..Self::new(role) };
        let counted = scan.places.get(start..end).unwrap_or_default();
        let damage = damage_of(role, counted, scan.places.get(end).filter(|_| is_broken));
        // Without some of its records the state would be wrong: nothing more is taken away from the log.
        if let Some(what) = damage.first().filter(|_| role != Role::Head) {
            return Err(Error::Damage(what.clone()));
        }
        let (from, to) = (counted.first(), counted.last());
        let (from, to) = (from.map_or(u64::MAX, |it| it.at), to.map_or(0, |it| it.at));
        let is_live = |(number, _): &(u64, u32)| {
            position(*number + 1, 0) > from && position(*number, 0) <= to
        };
        let (kept, left): (Vec<_>, Vec<_>) = live.into_iter().partition(is_live);
        if !left.is_empty() {
            pages.give_back(&left.iter().map(|(_, page)| *page).collect::<Vec<u32>>());
            // Before the log is ended: behind an end these pages would count.
            if !mutant!("tsdb.log.left") {
                pages.space().fence()?;
            }
        }
        log.pages = VecDeque::from(kept);
        log.bytes = counted.iter().map(|it| HEADER as u64 + u64::from(it.len)).sum();
        if let Some(end) = scan.places.get(end) {
            log.end_page(pages, recovery, end)?;
        }
        for (_, page) in &log.pages {
            // A process may have been killed between its stores and its fence.
            pages.space().flush(pages.space().start_of(*page), len.into());
        }
        pages.space().fence()?;
        log.note_durable(log.tail());
        Ok(Recovered { log, damage })
    }

    /// Ends the page in which the log ends, so that no bytes behind the end are ever taken for a part of the log.
    fn end_page(&mut self, pages: &Pages, recovery: &mut Recovery, end: &Place) -> Result<()> {
        let Some((number, page)) = self.pages.back().copied() else { return Ok(()) };
        let is_this = page == end.page && position(number, end.within) == end.at;
        let has_room = end.within as usize + END <= pages.page_len() as usize;
        if !is_this || !has_room || mutant!("tsdb.log.end") {
            return Ok(());
        }
        recovery.cut(page, end.within);
        if let Ok(writer) = Pen::new(pages.space()).take_up(page) {
            self.writer = Some(writer);
            let before = self.bytes;
            self.put(pages, Kind::End, &[])?;
            self.bytes = before;
            self.set_aside();
        }
        Ok(())
    }
}

/// The unsound places among those that count, and the place in which a checkpoint that had an end breaks off.
fn damage_of(role: Role, counted: &[Place], broken: Option<&Place>) -> Vec<String> {
    let gaps = counted.iter().filter(|place| place.kind.is_none()).chain(broken);
    let say = |place: &Place| {
        format!("the {role:?} log at {:x}, byte {} of page {}", place.at, place.within, place.page)
    };
    gaps.map(say).collect()
}
