//! The cleaner: what lives in a page is moved to the end of the stream, a page at a time, so that the page is free.
//!
//! It takes the page with the least that lives, and now and then the oldest, for tombstones wait for that. A
//! page is small, so that a writer pays for its own space: when pages are short, whoever opens one cleans two.
//!
//! A record keeps its version when it is moved, so that after a cut it does not matter which of both is found.
//! The page is free only when what was moved is durable.

use super::List;
use super::tombstone::Tombstone;
use crate::map::Space;
use crate::volume::Volume;
use crate::volume::stream::end_mark;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::Arc;

/// A page of which less than this part is dead is not cleaned before there is need.
const WORTH: u32 = 8;

/// Pages that cleaning one may take, and one that a recovery takes if the power goes then.
const FOR_CLEANER: u32 = 3;

/// A record of a victim that is needed.
struct Move<'g> {
    view: View<'g>,
    holder: Holder,
}

/// Who leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Index,
    /// Those that are forgotten: a page that was born so may have what it says is gone.
    Tombstone(u64),
    /// A pending entry.
    Entry,
    /// It is the newest control record.
    Control,
    /// It says that there is doubt.
    Doubt,
}

impl List {
    /// Sees to it that `pages` are free, and `reserve` more. It comes to an end: no page in which nothing is dead is
    /// cleaned, and in what is moved nothing is.
    pub(super) fn clean_for_space(&mut self, pages: u32, reserve: u32) -> Result<Space> {
        // Each page twice, if it is for tombstones alone that they are cleaned.
        let mut steps = 2 * self.stream.pages.total_and_free().0;
        loop {
            let free = self.stream.pages.refresh_free();
            let usable = self.stream.pages_usable();
            if usable >= pages + reserve {
                return Ok(Space::Found);
            }
            // Those that are coming may wait for a guard of this very thread.
            let is_enough_coming = usable + self.stream.coming() >= pages + reserve;
            let may_clean = steps > 0 && usable >= FOR_CLEANER && !is_enough_coming;
            if may_clean && let Some(generation) = self.stream.moves_wait_for()? {
                self.stream.volume.space.sync_request(generation);
                return Ok(Space::Wait(generation));
            }
            if may_clean && self.clean_one(1, true)? {
                steps -= 1;
                self.press()?;
                continue;
            }
            self.press()?;
            // Pages whose word has become 0 by that.
            self.press()?;
            if self.stream.pages.refresh_free() > free {
                continue;
            }
            if self.stream.coming() == 0 {
                let reclaimable = self.reclaimable();
                let needed = u64::from(pages) * u64::from(self.stream.volume.space.page_size());
                return Err(Error::NoSpace { needed, reclaimable });
            }
            return Ok(Space::Wait(self.stream.waits_for().unwrap_or(0)));
        }
    }

    /// What was moved, and what pages wait for, is durable, or will be by a sync that is asked for.
    fn press(&mut self) -> Result<()> {
        if self.stream.fences_at_once() {
            return self.stream.commit();
        }
        if mutant!("mvcc.clean.cover") {
            self.stream.wait_for_generation();
            self.stream.advance();
        } else if self.stream.is_uncovered() {
            let generation = self.stream.cover(false);
            self.stream.volume.space.sync_request(generation);
        } else {
            self.stream.advance();
        }
        Ok(())
    }

    /// Bytes that are neither free nor alive.
    fn reclaimable(&self) -> u64 {
        let (total, free) = self.stream.pages.total_and_free();
        let in_use = u64::from(total - free) * u64::from(self.stream.volume.space.page_size());
        in_use.saturating_sub(self.stream.pages.live())
    }

    /// Cleans two pages if free ones are short.
    pub(super) fn clean_in_time(&mut self) -> Result<()> {
        let (total, free) = self.stream.pages.total_and_free();
        if free + self.stream.coming() >= total / 8 + 8 {
            return Ok(());
        }
        let dead_min = self.stream.volume.space.page_size() / WORTH;
        for _ in 0..2 {
            let usable = self.stream.pages.refresh_free() + self.stream.pages_ahead();
            if usable < FOR_CLEANER
                || !self.stream.may_move()
                || !self.clean_one(dead_min, !self.is_log)?
            {
                break;
            }
        }
        if !self.stream.fences_at_once() && self.stream.is_uncovered() {
            // So that readers wait for what was moved, if they waited for it before. Nobody asks for the sync.
            self.stream.cover(false);
        }
        Ok(())
    }

    /// Cleans one page, of which at least so many bytes are dead; false if there is none. One with records that are not
    /// durable only if that `may_commit`: of a log a commit is its caller's.
    fn clean_one(&mut self, dead_min: u32, may_commit: bool) -> Result<bool> {
        self.steps += 1;
        // Those that are held, or not durable yet, stay wherever they are.
        let has_many_tombstones = self.tombstones.bytes() * 8 > self.stream.pages.live();
        let oldest = if has_many_tombstones && self.steps.is_multiple_of(4) {
            self.stream.pages.oldest()
        } else {
            None
        };
        let size = self.stream.volume.space.page_size();
        let victim = oldest.or_else(|| {
            let (page, dead) = self.stream.pages.victim()?;
            (dead >= dead_min).then_some(page)
        });
        let victim = match victim {
            Some(page) => page,
            // Nothing but tombstones may be in the way.
            None if has_many_tombstones => match self.stream.pages.oldest() {
                Some(page) => page,
                None => return Ok(false),
            },
            None => return Ok(false),
        };
        let start = self.stream.volume.space.start_of(victim);
        if self.stream.is_partly_hidden(victim) {
            if !may_commit {
                return Ok(false);
            }
            self.stream.commit()?;
        }
        let until = start + u64::from(size);
        let guard = epoch::pin();
        match self.clean_page(&guard, victim, until) {
            Ok(()) => self.pages_cleaned += 1,
            Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => {
                // It stays as it is, for `verify` to name, and is not picked again.
                self.stream.pages.keep(victim, true);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Moves what lives in a page before `until`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it fits no free page; [`Error::ChecksumMismatch`] or [`Error::Corrupt`] if the page
    /// is damaged; nothing is moved then.
    pub(super) fn clean_page(&mut self, guard: &Guard, page: u32, until: u64) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let records = records(&volume, guard, page, self.stream.pages.birth(page), until)?;
        self.move_records(page, &records)
    }

    /// As [`List::clean_page`], of a page that is damaged: what is sound in it is moved.
    pub(super) fn clean_damaged(&mut self, guard: &Guard, page: u32, until: u64) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let sound = sound_records(&volume, guard, page, self.stream.pages.birth(page));
        let records: Vec<View<'_>> = sound.into_iter().filter(|it| it.offset < until).collect();
        self.move_records(page, &records)
    }

    /// Moves those of a page's records that are needed.
    fn move_records(&mut self, page: u32, records: &[View<'_>]) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let forgotten = self.tombstones.sorted(page).to_vec();
        let moves = records.iter().filter_map(|view| self.move_of(view, page, &forgotten));
        let moves: Vec<Move<'_>> = moves.collect();
        let lengths = moves.iter().map(|it| it.view.len() as usize);
        let pages = self.stream.pages_for(lengths);
        if self.stream.pages.total_and_free().1 < pages {
            let needed = u64::from(pages) * u64::from(volume.space.page_size());
            return Err(Error::NoSpace { needed, reclaimable: 0 });
        }
        for Move { view, holder } in &moves {
            // Each for itself: it is all the same which of both is found.
            let doubtful = self.is_doubtful(view) && !mutant!("mvcc.damage.moved");
            let header = Header { batched: false, doubtful, ..view.header };
            let offset = self.stream.append(header, view.key(), &[view.value()])?;
            self.bytes_copied += u64::from(view.len());
            self.note_move(view, *holder, offset);
        }
        // Those that were forgotten here are elsewhere now, or needed no more.
        let forgotten = self.tombstones.take_page(page).into_iter().map(|it| (it.offset, it.len));
        let others = moves.iter().filter(|it| !matches!(it.holder, Holder::Tombstone(_)));
        let others = others.map(|it| (it.view.offset, it.view.len()));
        forgotten.chain(others).for_each(|(offset, len)| self.stream.supersede(offset, len));
        if !moves.is_empty() {
            self.stream.note_moved();
        }
        if self.stream.pages.live_of(page) > 0 {
            self.stream.pages.keep(page, false);
        }
        Ok(())
    }

    /// A record is elsewhere now.
    fn note_move(&mut self, view: &View<'_>, holder: Holder, offset: u64) {
        match holder {
            Holder::Index => {
                if let Some(versions) = self.index.get_mut(view.key()) {
                    let versions = versions.all_mut().iter_mut();
                    versions.filter(|it| **it == view.offset).for_each(|it| *it = offset);
                }
            }
            Holder::Tombstone(birth) => self.forget(offset, view.len(), birth),
            Holder::Doubt => {
                if let Some(doubt) = &mut self.damage.doubt {
                    doubt.record = Some((offset, view.len()));
                }
            }
            Holder::Entry => {
                if let Some(part) = self.entries.part_at(view.header.version, view.offset) {
                    part.offset = offset;
                }
            }
            Holder::Control => {
                if let Some(newest) = &mut self.entries.newest {
                    newest.offset = offset;
                }
            }
        }
        if view.header.kind == Kind::Delete {
            // It may wait to be forgotten.
            let waiting = self.graves.iter_mut().filter(|it| it.offset == view.offset);
            waiting.for_each(|it| it.offset = offset);
        }
    }

    /// The record, if it is needed. Those of its page that are forgotten are in the order of their offsets.
    fn move_of<'g>(
        &mut self,
        view: &View<'g>,
        page: u32,
        forgotten: &[Tombstone],
    ) -> Option<Move<'g>> {
        let is_indexed = match self.versions(view.key()) {
            Some(versions) if view.header.kind != Kind::Commit => versions.newest() == view.offset,
            _ => false,
        };
        let is_older = mutant!("mvcc.clean.older") && self.index.contains_key(view.key());
        let holder = if is_indexed || is_older {
            Holder::Index
        } else if self.damage.doubt.and_then(|it| it.record).is_some_and(|it| it.0 == view.offset) {
            Holder::Doubt
        } else if self.is_newest_control(view) {
            Holder::Control
        } else if self.entries.part_at(view.header.version, view.offset).is_some() {
            Holder::Entry
        } else {
            Holder::Tombstone(self.needed_until(view, page, forgotten)?)
        };
        Some(Move { view: *view, holder })
    }

    fn is_newest_control(&self, view: &View<'_>) -> bool {
        let newest = self.entries.newest.filter(|_| !mutant!("mvcc.log.control"));
        newest.is_some_and(|newest| newest.offset == view.offset)
    }

    /// Of a tombstone that the index does not lead to, the record of a clear, or a control record that rolled back, if a
    /// page may be left that has what it says is gone: up to which birth that may be.
    fn needed_until(&mut self, view: &View<'_>, page: u32, forgotten: &[Tombstone]) -> Option<u64> {
        let is_lost = match view.header.kind {
            Kind::Commit => mutant!("mvcc.clean.marker"),
            _ => mutant!("mvcc.list.tombstone"),
        };
        let at = forgotten.binary_search_by_key(&view.offset, |it| it.offset).ok();
        let birth = forgotten.get(at.filter(|_| !is_lost)?)?.birth;
        // A newer version says more.
        let is_known = view.header.kind == Kind::Delete && self.index.contains_key(view.key());
        (!is_known && self.stream.pages.is_any_older(birth, page)).then_some(birth)
    }
}

/// Those of a page's records that are sound, in order.
fn sound_records<'g>(volume: &'g Volume, guard: &'g Guard, page: u32, birth: u64) -> Vec<View<'g>> {
    let (start, size) = (volume.space.start_of(page), u64::from(volume.space.page_size()));
    let (mut at, mut records) = (start, Vec::new());
    while at + 8 <= start + size {
        let view = volume.view(guard, at).ok();
        let sound = view.filter(|view| view.check(volume.seed_at(birth, at)).is_ok());
        at += sound.map_or(8, |view| u64::from(view.len()));
        records.extend(sound);
    }
    records
}

/// The records of a full page, in order, up to `until` or its end mark.
///
/// # Errors
/// If one is damaged, or there is no end.
fn records<'g>(
    volume: &'g Volume,
    guard: &'g Guard,
    page: u32,
    birth: u64,
    until: u64,
) -> Result<Vec<View<'g>>> {
    let (start, size) = (volume.space.start_of(page), u64::from(volume.space.page_size()));
    let (mut at, end, mut records) = (start, until.min(start + size), Vec::new());
    while at + 8 <= end {
        let word = volume.space.bytes(guard, at, 8).and_then(|it| it.first_chunk().copied());
        if word.is_some_and(|word| u64::from_le_bytes(word) == end_mark(birth, at)) {
            break;
        }
        let view = volume.view(guard, at)?;
        view.check(volume.seed_at(birth, at))?;
        at += u64::from(view.len());
        records.push(view);
    }
    Ok(records)
}
