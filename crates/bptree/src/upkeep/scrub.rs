//! The scrub: checks leaf after leaf against its checksums in the background, with the values and keys that have
//! pages of their own. Damage is counted (`damaged_pages` among the statistics), and named by `verify`. A damaged
//! record stays damaged when its leaf is rewritten.
//!
//! A leaf that is not loaded is read from its page, and stays so.
//!
//! It also removes the expired records of a sound leaf ([`sweep`](crate::upkeep::sweep)), to which nobody may write
//! ever again, and merges leaves that have few records left. That counts as a part of its work, of which it rests a
//! multiple. In a pool that is opened as a copy they stay: their removal would only take memory.
//!
//! A caller that has copies elsewhere asks for more ([`Store::scrub`]): each leaf is checked against the state that
//! a recovery would read, and if that differs from the known state, the leaf is rewritten
//! ([`salvage`](crate::tree::salvage)).

use crate::leaf::{Directory, Head};
use crate::upkeep::Store;
use crate::upkeep::verify::damage_of;
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::volume::pages::Patience;
use coreplane_engine::{
    Error, Progress, Result, SCRUB_BYTES, SCRUB_PACE, Scrub, ScrubReport, VerifyReport, scrub_rest,
};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{epoch, mutant};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Store {
    /// Looks at one leaf after the other until the store is closed.
    pub(crate) fn scrub_on(&self) {
        let mut scrub = Scrub::default();
        let each_time = (SCRUB_BYTES / self.space.page_size()).max(1);
        let mut rest = SCRUB_PACE;
        loop {
            // Woken early only when the store is closed.
            std::thread::park_timeout(rest);
            let begun_at = Instant::now();
            for _ in 0..each_time {
                if self.closed.load(Ordering::Acquire) {
                    return;
                }
                if !self.scrub_next(&mut scrub) {
                    break;
                }
            }
            rest = scrub_rest(begun_at.elapsed());
        }
    }

    /// Rewrites each leaf that a recovery would not find as it is known. Durable when it returns.
    ///
    /// # Errors
    /// If the medium fails, and once the store is closed.
    pub(crate) fn scrub(&self, progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        let mut from: Box<[u8]> = Box::default();
        let mut done = 0;
        loop {
            // An unfinished rewrite does not count.
            let scrubbed = self.pages.in_time(&mut Patience::default(), || {
                self.check_writable()?;
                self.scrub_leaf(&from, &mut report)
            });
            match scrubbed {
                Err(error @ Error::NoSpace { .. }) => report.damages.push(damage_of(&error)),
                Err(error) if is_damage(&error) => report.damages.push(damage_of(&error)),
                scrubbed => scrubbed?,
            }
            done += 1;
            progress(Progress { stage: "reading leaves", done, total: self.pages_in_use() });
            // The tree knows where the next leaf begins, whether this one is readable or not.
            let Some(next) = self.inner.bound_of(&from) else { break };
            from = next;
        }
        // Where a fence is a sync, the superseded marks wait for one.
        if report.rewritten > 0 && !mutant!("bptree.scrub.fence") {
            self.fence()?;
        }
        Ok(report)
    }

    fn scrub_leaf(&self, from: &[u8], report: &mut ScrubReport) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(from, 0)?;
        if self.check_recovery(&guard, &locked).is_ok() {
            if locked.leaf.doubt() > 0 {
                report.damages.push(damage_of(&self.in_doubt(&guard, locked.page)));
            }
            return Ok(());
        }
        let damages = self.rewrite_damaged(&guard, locked, (from, 0, 0))?;
        report.rewritten += 1;
        report.damages.extend(damages);
        Ok(())
    }

    fn pages_in_use(&self) -> u64 {
        u64::from(self.space.pages().saturating_sub(self.pages.free_len()))
    }

    /// False if there was nothing to look at for so long that it is time for a rest.
    pub(super) fn scrub_next(&self, scrub: &mut Scrub) -> bool {
        let mut is_sound = false;
        let look = |page| self.scrub_page(page).inspect(|looked| is_sound = looked.1);
        let Some(looked) = scrub.step(self.space.pages(), look) else { return false };
        if is_sound && !self.is_copy {
            self.sweep_page(looked.page);
        }
        self.counters.add(Count::ScrubbedPages, 1);
        if looked.is_new_damage {
            self.counters.add(Count::DamagedPages, 1);
        }
        true
    }

    /// The birth of a leaf's page, and whether all of it is sound; none for any other page, and for a leaf that has
    /// changed meanwhile: its turn comes again.
    pub(super) fn scrub_page(&self, page: u32) -> Option<(u64, bool)> {
        let guard = epoch::pin();
        let leaf = self.leaves.made(page as usize);
        let Some((leaf, version)) = leaf.and_then(|leaf| Some((leaf, leaf.version()?))) else {
            return self.scrub_unloaded(&guard, page);
        };
        let birth = leaf.birth();
        let mut is_sound = self.is_sound(&guard, page, leaf);
        if !is_sound {
            // A writer may have appended records that it has not published yet.
            let _held = leaf.try_lock(version)?;
            is_sound = self.is_sound(&guard, page, leaf);
        }
        // The pages of a value go when its record goes.
        leaf.is_at(version).then_some((birth, is_sound))
    }

    /// True if all of a loaded leaf is sound. Valid if the leaf has not changed meanwhile.
    fn is_sound(&self, guard: &Guard, page: u32, leaf: &Directory) -> bool {
        let mut report = VerifyReport::default();
        let read = self.read_leaf(guard, page, leaf, None);
        for (_, whole) in read.iter().flat_map(|leaf| &leaf.records) {
            self.verify_record(guard, &whole.view, leaf.birth(), &mut report);
        }
        let is_whole = read.is_ok_and(|leaf| leaf.in_doubt.is_none() && leaf.hurt.is_empty())
            && self.check_page(guard, page, leaf).is_ok();
        is_whole && report.is_sound()
    }

    /// As [`Store::scrub_page`], for a leaf that is not loaded.
    fn scrub_unloaded(&self, guard: &Guard, page: u32) -> Option<(u64, bool)> {
        // In a leaf that is being written nothing is published yet.
        let (end, _) = self.space.watermarks(page).filter(|(end, _)| *end > 0)?;
        let is_still =
            || self.is_unloaded(page) && self.space.watermarks(page).is_some_and(|it| it.0 == end);
        let head = match Head::read(&self.space, guard, self.seed, page) {
            Ok(Some(head)) => head,
            // A leaf that begins like none, or ends behind what is published, is damaged.
            Ok(None) if self.is_overflow(guard, page) || self.inner.bounds_of(page).is_none() => {
                return None;
            }
            _ => return is_still().then_some((0, false)),
        };
        let birth = head.birth;
        // A new leaf is written before its directory is loaded.
        if birth >= self.opened.births_end {
            return None;
        }
        let mut bounds = std::iter::once(&head.least).chain(&head.bound);
        let has_bounds = bounds.all(|bound| self.bound(guard, bound).is_ok());
        let mut report = VerifyReport::default();
        let read = self.read_leaf_page(guard, page, head, (end, end));
        let is_whole = read.as_ref().is_ok_and(|(found, _)| found.end == end && found.doubt == 0);
        for view in read.iter().flat_map(|(_, latest)| latest.views()) {
            self.verify_record(guard, view, birth, &mut report);
        }
        is_still().then_some((birth, has_bounds && is_whole && report.is_sound()))
    }

    /// True if this may be the page of a leaf in the tree that is not loaded: the content of any other page that is
    /// not loaded tells nothing.
    pub(crate) fn is_unloaded(&self, page: u32) -> bool {
        let leaf = self.leaves.made(page as usize);
        self.opened.unloaded.load(Ordering::Acquire) > 0 && leaf.is_none_or(Directory::is_unloaded)
    }
}
