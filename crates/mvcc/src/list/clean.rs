//! The cleaner: the live records of a page are moved to the end of the stream, so that the page becomes free.
//!
//! It takes the page with the fewest live bytes, and now and then the oldest, since tombstones wait for that. A
//! writer pays for its own space: when pages are short, each write examines some records of the *victim*, the page
//! that is being cleaned, and moves the live ones. The shorter pages are, the more it examines: so that no write
//! waits for a whole page as long as there are pages. Moved records share the fence of the write.
//!
//! A record keeps its version when it is moved, so that after a power cut it does not matter which copy is found. The
//! page is free only when the moved records are durable.

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

/// Before there is need, a page is cleaned only if at least 1 / `WORTH` of it is dead.
const WORTH: u32 = 8;

/// Pages that cleaning a page may take, and one more for a recovery after a power cut at that time.
const FOR_CLEANER: u32 = 3;

/// With fewer usable pages a victim is cleaned as a whole.
const AMPLE: u32 = 12;

/// Pages that are cleaned in a call that looks for pages, or steps of trimming: others get the map in between.
const ROUND: u32 = 16;
const TRIMS: usize = 64;

/// When pages are short: bytes of a victim that are examined for each byte written, at least and at most.
const PACE: (u64, u64) = (2, 32);

/// The page that is being cleaned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    page: u32,
    /// The place up to which it was examined.
    at: u64,
}

/// A live record of a victim.
struct Move<'g> {
    view: View<'g>,
    holder: Holder,
}

/// The reference through which a record is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Index,
    /// It is forgotten: a page with this birth, or a lesser one, may have records that it deletes.
    Tombstone(u64),
    /// A pending entry.
    Entry,
    /// It is the newest control record.
    Control,
    /// It states that there is doubt.
    Doubt,
}

impl List {
    /// Ensures that `pages` pages are free, and `reserve` more.
    pub(super) fn clean_for_space(&mut self, pages: u32, reserve: u32) -> Result<Space> {
        let (wanted, mut cleaned) = (pages + reserve, 0);
        loop {
            let free = self.stream.pages.refresh_free();
            let usable = self.stream.pages_usable();
            if usable >= wanted {
                return Ok(Space::Found);
            }
            if cleaned == ROUND {
                return Ok(Space::Again(cleaned));
            }
            // The pages that are coming may wait for a guard of this very thread.
            let is_enough_coming = usable + self.stream.coming() >= wanted;
            if !is_enough_coming && self.is_trim_due() {
                if self.stream.is_hiding() {
                    self.stream.commit()?;
                }
                let guard = epoch::pin();
                for _ in 0..TRIMS {
                    self.trim_some(&guard)?;
                }
                return Ok(Space::Again(0));
            }
            if self.is_in_vain(pages) {
                return Err(self.stream.pages.no_space(pages));
            }
            let may_clean = usable >= self.for_victim() && !is_enough_coming;
            if may_clean && let Some(generation) = self.stream.moves_wait_for()? {
                self.stream.volume.space.sync_request(generation);
                return Ok(Space::Wait(generation));
            }
            if may_clean && self.find_victim(1, true)? && self.clean_some(u64::MAX)? > 0 {
                cleaned += 1;
                self.stream.press()?;
                continue;
            }
            self.stream.press()?;
            // Pages whose word the first call has set to 0.
            self.stream.press()?;
            if self.stream.pages.refresh_free() <= free {
                return Space::awaited(&self.stream, pages, wanted);
            }
        }
    }

    /// True if there were not as many pages even if no byte that is not live took space.
    fn is_in_vain(&self, pages: u32) -> bool {
        let live = self.stream.pages.live().saturating_sub(self.tombstones.bytes());
        let in_use = live.div_ceil(u64::from(self.stream.volume.space.page_size()));
        let (total, _) = self.stream.pages.total_and_free();
        // Of other tombstones it is not known yet whether they stay.
        self.graves.is_settled() && in_use + u64::from(pages) > u64::from(total)
    }

    /// Examines some records of the victim if free pages are short: more of them the more was written since, and the
    /// shorter pages are.
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
                // A partly cleaned victim has taken pages and given none back.
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

    /// Pages that have to be usable before records are moved.
    fn for_victim(&self) -> u32 {
        if self.victim.is_some() { FOR_CLEANER - 1 } else { FOR_CLEANER }
    }

    /// Ensures that there is a victim: a page with at least so many dead bytes; false if there is none. A page with
    /// records that are not durable is taken only if the call `may_commit`: commits of a log belong to its caller.
    fn find_victim(&mut self, dead_min: u32, may_commit: bool) -> Result<bool> {
        if self.victim.is_some() {
            return Ok(true);
        }
        self.steps += 1;
        // Tombstones that are held, or not durable yet, are not counted: they stay in any case.
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
            // Only tombstones may be in the way.
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
        // The page is neither freed by itself nor picked again until it is cleaned.
        self.stream.pages.keep(page);
        let at = self.stream.volume.space.start_of(page);
        self.victim = Some(Victim { page, at });
        Ok(true)
    }

    /// Examines the next records of the victim, so many bytes or one record more, and moves the live ones. Returns
    /// how many bytes were examined; 0 if there is no page for the next live record.
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
                // The page stays as it is, for `verify` to report, and is not picked again.
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

    /// All live records of a page were moved, except those that only pins see.
    fn end_victim(&mut self, page: u32) {
        // The forgotten tombstones of this page were moved, or are no longer needed.
        let forgotten = self.tombstones.take_page(page);
        forgotten.iter().for_each(|it| self.stream.supersede(it.offset, it.len));
        self.stream.pages.set_aside(page);
    }

    /// Moves the live records of a page that stand before `until`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they do not fit the free pages; [`Error::Corrupt`] if the page is damaged before `until`;
    /// nothing is moved then.
    pub(super) fn clean_page(&mut self, guard: &Guard, page: u32, until: u64) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let mut found = volume.look_at_page(guard, page, self.stream.pages.birth(page));
        if let Some(offset) = found.broken.filter(|at| *at < until) {
            let what = "no record is where one should be".to_owned();
            return Err(Error::Corrupt { offset, what });
        }
        found.records.retain(|view| view.offset < until);
        self.move_records(page, &found.records)
    }

    /// As [`List::clean_page`], for a damaged page: its sound records are moved.
    pub(super) fn clean_damaged(&mut self, guard: &Guard, page: u32, until: u64) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let mut found = volume.look_at_page(guard, page, self.stream.pages.birth(page));
        found.records.append(&mut found.behind);
        found.records.retain(|view| view.offset < until);
        self.move_records(page, &found.records)
    }

    /// Moves the live records among `records` of a page.
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
        // The forgotten tombstones of this page were moved, or are no longer needed.
        let forgotten = self.tombstones.take_page(page).into_iter().map(|it| (it.offset, it.len));
        let others = moves.iter().filter(|it| !matches!(it.holder, Holder::Tombstone(_)));
        let others = others.map(|it| (it.view.offset, it.view.len()));
        forgotten.chain(others).for_each(|(offset, len)| self.stream.supersede(offset, len));
        if !moves.is_empty() {
            self.stream.note_moved();
        }
        if self.stream.pages.live_of(page) > 0 {
            self.stream.pages.set_aside(page);
        }
        Ok(())
    }

    /// Appends a record again, and makes its holder lead to the copy.
    fn move_one(&mut self, Move { view, holder }: &Move<'_>) -> Result<()> {
        // Each is a group of its own: it does not matter which copy a recovery finds.
        let doubtful = self.is_doubtful(view) && !mutant!("mvcc.damage.moved");
        let header = Header { batched: false, doubtful, ..view.header };
        let offset = self.stream.append(header, view.key(), &[view.value()])?;
        self.bytes_copied += u64::from(view.len());
        self.note_move(view, *holder, offset);
        Ok(())
    }

    /// Notes the new offset of a record that was moved.
    fn note_move(&mut self, view: &View<'_>, holder: Holder, offset: u64) {
        match holder {
            Holder::Index => {
                if let Some(versions) = self.index.get_mut(view.key()) {
                    let versions = versions.all_mut().iter_mut();
                    versions.filter(|it| **it == view.offset).for_each(|it| *it = offset);
                }
                if view.header.kind == Kind::Delete {
                    self.graves.moved(view, offset);
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
    }

    /// The move of a record, if it is live. The forgotten tombstones of its page are given in the order of their
    /// offsets.
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

    /// For a forgotten tombstone, a record of a clear, or a control record that rolled back: the greatest birth of a
    /// page that may have records which it deletes; none if no such page is left.
    fn needed_until(&mut self, view: &View<'_>, page: u32, forgotten: &[Tombstone]) -> Option<u64> {
        let is_lost = match view.header.kind {
            Kind::Commit => mutant!("mvcc.clean.marker"),
            _ => mutant!("mvcc.list.tombstone"),
        };
        let at = forgotten.binary_search_by_key(&view.offset, |it| it.offset).ok();
        let birth = forgotten.get(at.filter(|_| !is_lost)?)?.birth;
        // A newer version of the key makes the tombstone superfluous.
        let is_known = view.header.kind == Kind::Delete && self.index.contains_key(view.key());
        (!is_known && self.stream.pages.is_any_older(birth, page)).then_some(birth)
    }
}

/// The record at `at` of a full page; none at the end of its records.
///
/// # Errors
/// If it is damaged, or there is neither a record nor an end.
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
