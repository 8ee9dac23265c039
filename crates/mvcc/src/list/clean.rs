//! The cleaner: what lives in a page is moved to the end of the stream, so that the page is free.
//!
//! It takes the page with the least that lives, and now and then the oldest, for tombstones wait for that. A
//! writer pays for its own space: when pages are short, each write looks at some records of the *victim*, the page that
//! is being cleaned, and moves those that live. The shorter pages are, the more: so that no write waits for a whole
//! page, as long as there are pages. What is moved has the fence of the write.
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

/// With fewer pages a victim is cleaned as a whole.
const AMPLE: u32 = 12;

/// When pages are short, bytes of a victim that are looked at for each that was written, at least and at most.
const PACE: (u64, u64) = (2, 32);

/// The page that is being cleaned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    page: u32,
    /// Up to here it was looked at.
    at: u64,
}

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
            let may_clean = steps > 0 && usable >= self.for_victim() && !is_enough_coming;
            if may_clean && let Some(generation) = self.stream.moves_wait_for()? {
                self.stream.volume.space.sync_request(generation);
                return Ok(Space::Wait(generation));
            }
            if may_clean && self.find_victim(1, true)? && self.clean_some(u64::MAX)? > 0 {
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

    /// Looks at some records of the victim if free pages are short: at the more, the more was written since, and the
    /// shorter they are.
    pub(super) fn clean_in_time(&mut self) -> Result<()> {
        let written = self.stream.bytes_appended - self.bytes_copied;
        let due = written - std::mem::replace(&mut self.written_before, written);
        let (total, free) = self.stream.pages.total_and_free();
        let (wanted, usable) = (total / 8 + 8, free + self.stream.coming());
        if usable >= wanted {
            return Ok(());
        }
        let shortage = (PACE.1 - PACE.0) * u64::from(wanted - usable) / u64::from(wanted);
        let mut bytes = due * (PACE.0 + shortage);
        let dead_min = self.stream.volume.space.page_size() / WORTH;
        while bytes > 0 {
            let usable = self.stream.pages.refresh_some(AMPLE) + self.stream.pages_ahead();
            if usable < AMPLE {
                // Half a victim has taken pages, and given none back.
                bytes = u64::MAX;
            }
            if usable < self.for_victim()
                || !self.stream.may_move()
                || !self.find_victim(dead_min, !self.is_log)?
            {
                break;
            }
            match self.clean_some(bytes)? {
                0 => break,
                _ if bytes == u64::MAX => break,
                looked_at => bytes = bytes.saturating_sub(looked_at),
            }
        }
        Ok(())
    }

    /// Pages that have to be there before records are moved.
    fn for_victim(&self) -> u32 {
        if self.victim.is_some() { FOR_CLEANER - 1 } else { FOR_CLEANER }
    }

    /// Sees to it that there is a victim: a page of which at least so many bytes are dead; false if there is none. One
    /// with records that are not durable only if that `may_commit`: of a log a commit is its caller's.
    fn find_victim(&mut self, dead_min: u32, may_commit: bool) -> Result<bool> {
        if self.victim.is_some() {
            return Ok(true);
        }
        self.steps += 1;
        // Those that are held, or not durable yet, stay wherever they are.
        let has_many_tombstones = self.tombstones.bytes() * 8 > self.stream.pages.live();
        let oldest = if has_many_tombstones && self.steps.is_multiple_of(4) {
            self.stream.pages.oldest()
        } else {
            None
        };
        let victim = oldest.or_else(|| {
            let (page, dead) = self.stream.pages.victim()?;
            (dead >= dead_min).then_some(page)
        });
        let page = match victim {
            Some(page) => page,
            // Nothing but tombstones may be in the way.
            None if has_many_tombstones => match self.stream.pages.oldest() {
                Some(page) => page,
                None => return Ok(false),
            },
            None => return Ok(false),
        };
        if self.stream.is_partly_hidden(page) {
            if !may_commit {
                return Ok(false);
            }
            self.stream.commit()?;
        }
        // It neither goes by itself nor is picked again until it is done with.
        self.stream.pages.keep(page, true);
        let at = self.stream.volume.space.start_of(page);
        self.victim = Some(Victim { page, at });
        Ok(true)
    }

    /// Looks at the next records of the victim, so many bytes or one more: those that live are moved. How many bytes were
    /// looked at; 0 if there is no page for the next that lives.
    fn clean_some(&mut self, bytes: u64) -> Result<u64> {
        let Some(Victim { page, at: from }) = self.victim else { return Ok(0) };
        let volume = Arc::clone(&self.stream.volume);
        let (guard, birth) = (epoch::pin(), self.stream.pages.birth(page));
        let forgotten = self.tombstones.sorted(page).to_vec();
        let (mut at, mut has_moved, mut is_over) = (from, false, false);
        while at - from < bytes {
            let view = match record_at(&volume, &guard, (page, birth), at) {
                Ok(Some(view)) => view,
                Ok(None) => {
                    is_over = true;
                    break;
                }
                // The page stays as it is, for `verify` to name, and is not picked again.
                Err(_) => {
                    self.victim = None;
                    return Ok(1);
                }
            };
            if let Some(it) = self.move_of(&view, page, &forgotten) {
                let len = view.len();
                if self.stream.pages_for([len as usize].into_iter())
                    > self.stream.pages.total_and_free().1
                {
                    break;
                }
                self.move_one(&it)?;
                has_moved = true;
                if !matches!(it.holder, Holder::Tombstone(_)) {
                    self.stream.supersede(view.offset, len);
                }
            }
            at += u64::from(view.len());
        }
        if has_moved {
            self.stream.note_moved();
        }
        self.victim = Some(Victim { page, at });
        if is_over {
            self.victim = None;
            self.pages_cleaned += 1;
            self.end_victim(page);
        }
        Ok(at - from + u64::from(is_over))
    }

    /// All that lives in a page was moved, but for what pins see.
    fn end_victim(&mut self, page: u32) {
        // Those that were forgotten here are elsewhere now, or needed no more.
        let forgotten = self.tombstones.take_page(page);
        forgotten.iter().for_each(|it| self.stream.supersede(it.offset, it.len));
        self.stream.pages.close(page);
        if self.stream.pages.live_of(page) > 0 {
            self.stream.pages.keep(page, false);
        }
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
        moves.iter().try_for_each(|it| self.move_one(it))?;
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

    /// Appends a record once more, and has what leads to it lead there.
    fn move_one(&mut self, Move { view, holder }: &Move<'_>) -> Result<()> {
        // Each for itself: it is all the same which of both is found.
        let doubtful = self.is_doubtful(view) && !mutant!("mvcc.damage.moved");
        let header = Header { batched: false, doubtful, ..view.header };
        let offset = self.stream.append(header, view.key(), &[view.value()])?;
        self.bytes_copied += u64::from(view.len());
        self.note_move(view, *holder, offset);
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

/// The record of a full page at `at`; none at its end.
///
/// # Errors
/// If it is damaged, or there is neither.
fn record_at<'g>(
    volume: &'g Volume,
    guard: &'g Guard,
    (page, birth): (u32, u64),
    at: u64,
) -> Result<Option<View<'g>>> {
    if at + 8 > volume.space.start_of(page) + u64::from(volume.space.page_size()) {
        return Ok(None);
    }
    let word = volume.space.bytes(guard, at, 8).and_then(|it| it.first_chunk().copied());
    if word.is_some_and(|word| u64::from_le_bytes(word) == end_mark(birth, at)) {
        return Ok(None);
    }
    let view = volume.view(guard, at)?;
    view.check(volume.seed_at(birth, at))?;
    Ok(Some(view))
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
    let (mut at, mut records) = (volume.space.start_of(page), Vec::new());
    while at < until
        && let Some(view) = record_at(volume, guard, (page, birth), at)?
    {
        at += u64::from(view.len());
        records.push(view);
    }
    Ok(records)
}
