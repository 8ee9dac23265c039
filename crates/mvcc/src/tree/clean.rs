//! The cleaner: the live records of a page are written anew elsewhere, so that the page becomes free.
//!
//! A record of a key is appended again and its entry changed; a node is made fresh, so that the next commit writes
//! it. Both rewrite the path from the root, which costs more than the record itself: so many pages are cleaned for
//! one commit, whose paths share their upper nodes, and before a record is moved there must be pages for everything
//! that the commit will write. A page that cannot be moved as a whole is moved in parts.
//!
//! Where a fence is an instruction, records are moved to pages [apart](crate::volume::cold), not among nodes.
//!
//! A record that a pin sees also has to stay in its old place until the pin goes. So it is moved only if there is
//! room for both copies. It is moved then, since otherwise snapshots that follow each other without a pause would
//! keep the dead bytes beside it for ever.

use super::change::Change;
use super::look::Look;
use super::seal::Gone;
use super::{FOR_OPENINGS, Tree, count};
use crate::map::{Map, Purpose, Space};
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::Arc;

/// The most pages that are cleaned for one commit.
const ROUND: u32 = 32;
/// How often, at most, the cleaner goes through all pages for one write.
const PASSES: u64 = 2;

/// Steps of release in a call that looks for pages: the map is given to others in between.
const ROUNDS: u32 = 2;

/// The part of a page that was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    All,
    /// Some records are not durable yet.
    Part,
    /// There was no more room for copies.
    UntilFull,
}

impl Tree {
    /// Ensures that `pages` pages are free, and `reserve` more. A reserve of all pages stands for a map that is too full
    /// for the request: then everything that only waits for commits is let go, and the caller asks anew.
    pub(super) fn clean_for_space(&mut self, pages: u32, reserve: u32) -> Result<Space> {
        let wanted = pages.saturating_add(reserve);
        let (total, _) = self.stream.pages.total_and_free();
        if pages > total {
            return Err(self.stream.pages.no_space(pages));
        }
        let is_refused = reserve >= total;
        let is_short = !is_refused && self.stream.pages.refresh_free() < wanted;
        if is_short && self.need().bytes() > 0 {
            // Fresh nodes are a part of the wanted pages: the caller asks for less when they are sealed. It counts as
            // a page that was cleaned, since other writers may make nodes fresh again and again.
            self.push_out()?;
            return Ok(Space::Again(1));
        }
        let was_full = self.is_full();
        loop {
            let free = self.stream.pages.refresh_free();
            if free >= wanted {
                return Ok(Space::Found);
            }
            if is_refused && was_full && !self.is_full() {
                return Ok(Space::Again(0));
            }
            if self.release_said() {
                continue;
            }
            // The pages that are coming may wait for a guard of this very thread.
            let soon = free + self.stream.coming();
            if soon < wanted && self.kept_due > 0 {
                for _ in 0..ROUNDS {
                    self.release_kept(&epoch::pin());
                }
                return Ok(Space::Again(0));
            }
            let proven = self.stream.proven();
            let of_commit = self.stream.pages_for([self.commit_len_max()].into_iter());
            let can_commit = free >= of_commit + FOR_OPENINGS;
            if can_commit && self.is_late_before(proven) {
                // They wait only for a commit that states this place.
                self.is_due = true;
                self.push_out()?;
                continue;
            }
            // Other writers replace records all the time: a request that is refused waits for none of them.
            if !is_refused && can_commit && self.is_late_before(self.stream.end_position()) {
                self.push_out()?;
                match self.stream.pending() {
                    Some(generation) => return Ok(Space::Wait(generation)),
                    None => continue,
                }
            }
            if can_commit && !mutant!("mvcc.tree.graves") && self.bury_graves() {
                self.push_out()?;
                // Other writers may delete again and again.
                return Ok(Space::Again(1));
            }
            if is_refused {
                return Err(self.stream.pages.no_space(pages));
            }
            if self.count_nodes(count::STEP) {
                return Ok(Space::Again(0));
            }
            if soon < wanted
                && !self.is_in_vain()
                && let cleaned @ 1.. = self.clean_round(wanted)?
            {
                self.push_out()?;
                return Ok(Space::Again(cleaned));
            }
            self.push_out()?;
            // Pages whose word the first call has set to 0.
            self.push_out()?;
            if self.stream.pages.refresh_free() <= free && !self.release_said() {
                return Space::awaited(&self.stream, pages, wanted);
            }
        }
    }

    /// Seals the fresh nodes; durable where a fence is an instruction, otherwise with the next sync.
    fn push_out(&mut self) -> Result<()> {
        self.seal_all()?;
        self.stream.press()
    }

    /// True if so much was cleaned for one write that cleaning more would gain nothing.
    fn is_in_vain(&self) -> bool {
        self.pages_cleaned
            > self.cleaned_before + PASSES * u64::from(self.stream.pages.total_and_free().0)
    }

    /// Cleans some pages; how many.
    fn clean_round(&mut self, wanted: u32) -> Result<u32> {
        let size = self.stream.volume.space.page_size();
        let (total, free) = self.stream.pages.total_and_free();
        let dead_min = if free < total / 8 { size / 32 } else { size / 4 };
        let enough = ROUND.min(2 * wanted.saturating_sub(free).min(ROUND) + ROUND / 2);
        let kept = self.pages_for_pending(&epoch::pin())?;
        let mut count = 0;
        while count < enough && self.clean_one(dead_min, kept, true)? {
            count += 1;
        }
        Ok(count)
    }

    /// Cleans two pages that are mostly dead, if free pages are short.
    pub(super) fn clean_in_time(&mut self) -> Result<()> {
        let (total, free) = self.stream.pages.total_and_free();
        if free + self.stream.coming() >= total / 8 + self.reserve(Purpose::Overwrite) {
            return Ok(());
        }
        if self.count_nodes(count::STEP / 16) {
            return Ok(());
        }
        let dead_min = self.stream.volume.space.page_size() / 2;
        let kept = self.pages_for_pending(&epoch::pin())?;
        for _ in 0..2 {
            let _free = self.stream.pages.refresh_free();
            // The commits of a log belong to its caller.
            if !self.clean_one(dead_min, kept, !self.is_log)? {
                break;
            }
        }
        Ok(())
    }

    /// Cleans one page, or a part of it, with at least so many dead bytes; false if there is none, or no space for it
    /// beside the pages that are `kept`. A page with records that are not durable is taken only if the call
    /// `may_commit`.
    pub(super) fn clean_one(&mut self, dead_min: u32, kept: u32, may_commit: bool) -> Result<bool> {
        let victim = |tree: &mut Self| tree.victim(may_commit).filter(|it| it.1 >= dead_min);
        let Some((mut page, _)) = victim(self) else { return Ok(false) };
        if self.stream.is_partly_hidden(page) {
            self.push_out()?;
            // The commit may have freed it.
            match victim(self) {
                Some((next, _)) => page = next,
                None => return Ok(false),
            }
        }
        let victim = page;
        let guard = epoch::pin();
        let before = self.gone.len();
        // It is not picked again until the commit.
        self.stream.pages.keep(victim);
        match self.clean_page(&guard, victim, kept) {
            Ok(Moved::All) => {
                self.stream.pages.set_aside(victim);
                self.pages_cleaned += 1;
                Ok(true)
            }
            // No commit may come that would give it back: while pages wait for a reader it is picked again and again.
            Ok(Moved::UntilFull) if self.gone.len() == before && !mutant!("mvcc.tree.no_room") => {
                self.stream.pages.close(victim);
                Ok(false)
            }
            Ok(Moved::Part | Moved::UntilFull) => {
                self.part.push(victim);
                self.pages_cleaned += 1;
                Ok(self.gone.len() > before)
            }
            // It stays as it is, for `verify` to report, and is not picked again.
            Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Moves the live records of a page, as long as that leaves as many pages free as are `kept`.
    fn clean_page(&mut self, guard: &Guard, page: u32, kept: u32) -> Result<Moved> {
        let volume = Arc::clone(&self.stream.volume);
        let look = self.look(&volume, guard);
        let newest_pin = self.pins.values().map(|pin| pin.end).max().unwrap_or_default();
        let has_room = self.has_room_beside_pins();
        let (mut need, mut moved) = (self.need(), Moved::All);
        // Records behind bytes that are no sound record were left by a power cut; if one of them is live nevertheless,
        // it stays where it is.
        for view in volume.look_at_page(guard, page, self.stream.pages.birth(page)).records {
            // The pages of a large value would be freed with the copy.
            let is_small = !view.header.large || mutant!("mvcc.tree.chain");
            let may_be_twice = has_room && is_small;
            let is_seen = self.written(view.offset) < newest_pin;
            if is_seen && !may_be_twice || !self.is_live(look, &view)? {
                continue;
            }
            if self.stream.covering(view.offset).is_some() {
                // A reader of the record has to wait for it; a reader of the copy would not know to.
                moved = Moved::Part;
                continue;
            }
            if view.header.kind == Kind::Commit {
                self.is_due = true;
                continue;
            }
            need.add_path(look, self.root.as_ref().map(super::fresh::Link::as_ref), view.key())?;
            let len = view.len() as usize;
            let for_copy = match self.stream.fences_at_once() {
                true => self.stream.pages_for_cold(len),
                false => self.stream.pages_for([len].into_iter()),
            };
            let pages = need.pages(&volume, self.commit_len_max()) + for_copy;
            if self.stream.pages.total_and_free().1 < pages + kept + FOR_OPENINGS {
                return Ok(Moved::UntilFull);
            }
            self.move_record(look, &view)?;
        }
        Ok(moved)
    }

    /// True if there is room for two copies of the records that pins and the newest version see, until the pins go.
    fn has_room_beside_pins(&self) -> bool {
        let (total, free) = self.stream.pages.total_and_free();
        free >= total / 16
    }

    /// True if the tree leads to the record.
    fn is_live(&self, look: Look<'_>, view: &View<'_>) -> Result<bool> {
        let root = self.root.as_ref().map(super::fresh::Link::as_ref);
        Ok(match view.header.kind {
            Kind::Put | Kind::Delete => look.find(root, view.key())? == Some(view.offset),
            Kind::Node => match look.unchecked(view.offset) {
                Some(node) => look.meets(root, view.key(), (node.level, view.offset))?,
                None => false,
            },
            Kind::Commit => self.last.commit.is_some_and(|it| it.0 == view.offset),
            Kind::Overflow | Kind::Lost | Kind::Entry => false,
        })
    }

    fn move_record(&mut self, look: Look<'_>, view: &View<'_>) -> Result<()> {
        self.bytes_copied += u64::from(view.len());
        let node = look.unchecked(view.offset);
        let offset = match node {
            Some(_) => 0,
            None => {
                let header = Header { batched: true, follows: false, ..view.header };
                match self.stream.fences_at_once() {
                    true => self.stream.append_cold(header, view.key(), view.value())?,
                    false => self.stream.append(header, view.key(), &[view.value()])?,
                }
            }
        };
        self.fresh_max += 2 * self.height as usize + 2;
        let (limits, gone, spare) = (self.limits, &mut self.gone, &mut self.spare);
        let mut change = Change { look, limits, gone, spare };
        match node {
            Some(node) => change.freshen(&mut self.root, view.key(), node.level),
            None => {
                change.put(&mut self.root, view.key(), offset)?;
                // The pages of a large value belong to the copy from now on.
                let (offset, len) = (view.offset, view.len());
                self.gone.push(Gone { offset, len, is_large: false });
                Ok(())
            }
        }
    }
}
