//! After a crash, after a close without a usable checkpoint, or for a repair: finds the leaves by their heads, reads
//! them, and builds the tree.
//!
//! A page holds a leaf that counts if
//!
//! - its birth is not below those that a [`clear`](crate::write::clear) has left behind;
//! - its head is sound, and its records do not end with a superseded mark;
//! - the page of its predecessor is marked superseded, or has another use by now (or it has no
//!   predecessor: the first leaf). Of several pages it names the first: all are marked superseded, or none is.
//!
//! A page that begins like a leaf and does not count, and has no superseded mark itself, was being written when the
//! power went. It is wiped before anything else is written ([`rewrite`](crate::tree::rewrite)).
//!
//! A batch of which a leaf has a part counts if all of its links are there
//! ([`multi_leaf_commit`](crate::tree::multi_leaf_commit)); so does a superseded mark, which is such a part. Parts
//! that do not count are struck out in the same way.
//!
//! The leaves that count must then tile the whole range of keys. Where they do not, one is damaged:
//!
//! - of two that serve the same key the younger counts: the other has lost its superseded mark;
//! - where no leaf serves a key, one has lost its head. A leaf without records is put in its place, which
//!   reports its keys as lost, rather than as absent.
//!
//! Damage that is found is recorded in the leaves at once, which are rewritten for that: the evidence may be gone
//! the next time ([`doubt`](crate::tree::doubt)).

use crate::leaf::{Head, Life};
use crate::recovery::Recovery;
use crate::recovery::coverage::{drop_older, in_order, is_tiled};
use crate::recovery::prove::Places;
use crate::tree::leaf_page::{Found, Latest};
use crate::tree::multi_leaf_commit::Commits;
use crate::volume::counters::Count;
use coreplane_engine::{Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{self as pmem, Pen, mutant, processors, spin};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages that a thread reads before it takes more, and bytes in them: the kernel is asked for all of them at once.
const AT_A_TIME: u32 = 1024;
const BYTES_AT_A_TIME: u32 = 16 << 20;

impl Recovery<'_> {
    /// Finds and reads the leaves. The pages are in service once the last one is cut.
    ///
    /// # Errors
    /// If the medium fails, or there is no page in which to record damage.
    pub(crate) fn recover(
        &self,
        mut recovery: pmem::Recovery,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<()> {
        let mut found = self.read_pages(&recovery, progress)?;
        self.prove(&recovery, &mut found)?;
        self.flush_damaged(&found)?;
        // Bytes behind the last record of a leaf belong to no record, except for damage.
        for found in found.iter().filter(|found| !found.is_dead) {
            let end = self.end_with_damage(&recovery.pin(), found);
            let _is_cut = mutant!("bptree.recover.uncut") || recovery.cut(found.page, end);
        }
        self.strike_out_parts(&mut recovery, &mut found)?;
        // Dead leaves without a superseded mark: the evidence that they are dead may go.
        let gone = found.iter().filter(|found| found.has_lost_mark());
        let mut gone: Vec<u32> = gone.map(|found| found.page).collect();
        let (mut counting, mut void) = self.counting(found);
        self.know_bounds(&recovery, &mut counting);
        while !is_tiled(&counting) {
            let dropped = drop_older(&mut counting);
            if dropped.is_empty() {
                break;
            }
            // Successors of a leaf that is dead after all count, and may be the younger ones.
            let is_of =
                |found: &Found| found.head.predecessor.is_some_and(|it| dropped.contains(&it));
            let (mut successors, others) = void.into_iter().partition(is_of);
            void = others;
            self.know_bounds(&recovery, &mut successors);
            counting.append(&mut successors);
            gone.extend(dropped.iter().map(|it| it.page));
        }
        let is_used = self.used_by(&recovery, &counting)?;
        self.strike_out_void(&mut recovery, void)?;
        self.strike_out_leaves(&mut recovery, &gone)?;
        // Those that the recovery has adopted need not wait for the readers of other pools.
        let unused = (0..self.space.pages()).filter(|page| !is_used[*page as usize]);
        let (free, adopted_before): (Vec<u32>, Vec<u32>) =
            unused.partition(|page| !mutant!("bptree.recover.retired") && recovery.free(*page));
        drop(recovery);
        self.remove_remains(&counting)?;
        self.retire_all(adopted_before)?;
        self.pages.offer(free.into_iter().rev());
        let damaged = counting.iter().filter(|found| found.is_to_be_told());
        let damaged: Vec<Box<[u8]>> = damaged.map(|found| found.head.least.clone()).collect();
        self.lead_to(counting)?;
        self.keep_doubts(&damaged)
    }

    /// The leaves that are not dead: those that count, and those that do not.
    fn counting(&self, found: Vec<Found>) -> (Vec<Found>, Vec<Found>) {
        let places = Places::new(&found, self.space.pages());
        // The leaf no longer exists, or is marked superseded.
        let is_gone = |life: Life| places.of(&found, life).is_none_or(|at| found[at].is_dead);
        let counts = |found: &Found| found.head.predecessor.is_none_or(is_gone);
        let counts: Vec<bool> = found.iter().map(counts).collect();
        let (mut counting, mut void) = (Vec::with_capacity(found.len()), Vec::new());
        for (found, counts) in found.into_iter().zip(counts).filter(|(found, _)| !found.is_dead) {
            if counts { counting.push(found) } else { void.push(found) }
        }
        (counting, void)
    }

    /// Replaces the bounds of leaves by whole keys. If the rest of a bound is damaged, the leaf's range of keys is
    /// unknown: it is no leaf.
    fn know_bounds(&self, recovery: &pmem::Recovery, leaves: &mut Vec<Found>) {
        let guard = recovery.pin();
        leaves.retain_mut(|found| {
            let is_known = self.know_bounds_of(&guard, found).is_ok();
            if !is_known {
                self.free(found.page);
            }
            is_known
        });
    }

    fn know_bounds_of(&self, guard: &Guard, found: &mut Found) -> Result<()> {
        let Head { least, bound, .. } = &mut found.head;
        for field in std::iter::once(least).chain(bound) {
            found.rests.extend(self.rest_of(guard, field)?);
            self.make_whole(guard, field)?;
        }
        Ok(())
    }

    /// The pages of leaves, of their large values, and of the rests of their keys and bounds.
    fn used_by(&self, recovery: &pmem::Recovery, leaves: &[Found]) -> Result<Vec<bool>> {
        let mut is_used = vec![false; self.space.pages() as usize];
        is_used[0] = true;
        let guard = recovery.pin();
        let mut rests = Vec::new();
        for found in leaves {
            is_used[found.page as usize] = true;
            for offset in found.large.iter().map(|within| self.space.start_of(found.page) + within)
            {
                let Some(view) = self.reader().view(&guard, offset) else { continue };
                if view.header.large {
                    let pages = self.pages_of(&guard, &view)?;
                    pages.into_iter().for_each(|page| is_used[page as usize] = true);
                }
                rests.extend(self.rest_of(&guard, view.key())?);
            }
            rests.extend(&found.rests);
        }
        if !rests.is_empty() {
            self.expect_long_keys();
        }
        for page in rests {
            is_used[page as usize] = true;
        }
        Ok(is_used)
    }

    /// A leaf that was found turns out to be none.
    pub(crate) fn free(&self, page: u32) {
        if let Some(held) = self.leaves.get(page as usize).lock() {
            held.free();
        }
    }

    /// Strikes out the remains of batches that are not whole.
    fn strike_out_parts(&self, recovery: &mut pmem::Recovery, found: &mut [Found]) -> Result<()> {
        let mut commits = Commits::default();
        for it in found.iter() {
            commits.add(it.life(), it.head.predecessor, (&it.parts, it.proven));
        }
        let broken = commits.broken();
        if broken.is_empty() {
            return Ok(());
        }
        for found in found.iter_mut() {
            let Some(part) = broken.get(&found.page) else { continue };
            let (page, head, guard) = (found.page, found.head.clone(), recovery.pin());
            let (read, latest) =
                self.read_leaf_page(&guard, page, head, (part.start, found.proven))?;
            self.begin_found(&read, &latest);
            drop(latest);
            drop(guard);
            *found = read;
            let _is_cut = mutant!("bptree.recover.parts_uncut") || recovery.cut(page, found.end);
            self.refill(found.life())?;
            found.has_remains = false;
        }
        self.fence()
    }

    /// Restores the fill over remains that lie behind the records of leaves and do not count; durable when it
    /// returns. Damage stays until it is recorded.
    fn remove_remains(&self, counting: &[Found]) -> Result<()> {
        let mut is_any = false;
        let stays = |it: &Found| it.is_to_be_told() || mutant!("bptree.recover.remains");
        for found in counting.iter().filter(|it| it.has_remains && !stays(it)) {
            self.refill(found.life())?;
            is_any = true;
        }
        if is_any { self.fence() } else { Ok(()) }
    }

    /// Strikes out leaves that do not count. A successor of another goes first, durably: without its predecessor it
    /// would count. And all of them go after the parts of batches: a part in a leaf that is gone is taken to have
    /// been whole.
    fn strike_out_void(&self, recovery: &mut pmem::Recovery, mut void: Vec<Found>) -> Result<()> {
        while !void.is_empty() && !mutant!("bptree.recover.void_stays") {
            let ordered = void.iter().filter(|_| !mutant!("bptree.recover.void_order"));
            let made_of: HashSet<Life> =
                ordered.filter_map(|found| found.head.predecessor).collect();
            let (later, now): (Vec<_>, Vec<_>) =
                void.into_iter().partition(|found| made_of.contains(&found.life()));
            let pages: Vec<u32> = now.iter().map(|found| found.page).collect();
            self.strike_out_leaves(recovery, &pages)?;
            if now.is_empty() {
                let page = later.first().map_or(0, |found| found.page);
                return Err(self.not_a_leaf(page));
            }
            void = later;
        }
        Ok(())
    }

    /// Strikes out leaves as a whole; durable when it returns.
    fn strike_out_leaves(&self, recovery: &mut pmem::Recovery, pages: &[u32]) -> Result<()> {
        for page in pages {
            self.free(*page);
            recovery.cut(*page, 0);
            let pen = Pen::new(&self.space);
            let mut writer = pen.take_up(*page).map_err(|_| self.not_a_leaf(*page))?;
            let start = writer.next_offset();
            // It is not published: the next use of the page overwrites it.
            writer.append(&[&[0; 8]]).ok_or_else(|| self.not_a_leaf(*page))?;
            if !mutant!("bptree.recover.strike_flush") {
                writer.flush_from(start);
            }
        }
        let is_any = !pages.is_empty() && !mutant!("bptree.recover.strike_fence");
        if is_any { self.fence() } else { Ok(()) }
    }

    /// Reads all pages, on as many threads as there are processors.
    fn read_pages(
        &self,
        recovery: &pmem::Recovery,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Vec<Found>> {
        let pages = self.space.pages();
        let at_a_time = (BYTES_AT_A_TIME / self.space.page_size()).clamp(1, AT_A_TIME);
        let next = AtomicU32::new(1);
        let all = Mutex::new(Ok(Vec::new()));
        let work = || loop {
            let from = next.fetch_add(at_a_time, Ordering::Relaxed);
            if from >= pages {
                if let Err(error) = self.fence_found() {
                    *spin::lock(&all) = Err(error);
                }
                return;
            }
            let done = u64::from(from);
            progress(Progress { stage: "reading leaves", done, total: u64::from(pages) });
            let read = self.read_range(recovery, from..pages.min(from + at_a_time));
            let mut all = spin::lock(&all);
            match (&mut *all, read) {
                (Ok(found), Ok(more)) => found.extend(more),
                (Ok(_), Err(error)) => *all = Err(error),
                (Err(_), _) => {}
            }
        };
        let processors = processors::available().min(16);
        let threads = if pages > 4 * at_a_time { processors } else { 1 };
        std::thread::scope(|scope| {
            // This thread works too: where no other can be started, it does everything.
            for _ in 1..threads {
                let builder = std::thread::Builder::new().name("coreplane-leaves".to_owned());
                if builder.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        all.into_inner()
    }

    fn read_range(
        &self,
        recovery: &pmem::Recovery,
        pages: std::ops::Range<u32>,
    ) -> Result<Vec<Found>> {
        let guard = recovery.pin();
        let mut found = Vec::new();
        let are_readable = self.space.can_load(pages.clone());
        for page in pages {
            // Those of a damaged checkpoint are adopted already.
            let len = self.space.page_size();
            if !recovery.adopt(page, len) && self.space.watermarks(page).is_none() {
                return Err(self.not_a_leaf(page));
            }
            if !are_readable {
                self.check_readable(page)?;
            }
            // An unsound head was being written when the power went, or is no head; or it is damaged, and then its
            // keys are not served.
            let head = Head::read(&self.space, &guard, self.seed, page).ok().flatten();
            if let Some(head) = head.filter(|head| head.birth >= self.opened.cleared_births) {
                let (leaf, latest) = self.read_leaf_page(&guard, page, head, (u32::MAX, 0))?;
                self.flush_found(&leaf, leaf.cached_from);
                if !leaf.is_dead {
                    self.begin_found(&leaf, &latest);
                }
                found.push(leaf);
            }
        }
        Ok(found)
    }

    /// Flushes a leaf that was found, from a place in its page on: durable after a fence. After a kill it may never
    /// have been flushed, and from here on other data relies on it. Where a fence is a sync, the sync of the root
    /// has made everything durable that was in the file.
    fn flush_found(&self, found: &Found, from: u32) {
        if self.early.is_none() && !mutant!("bptree.recover.flush") {
            let len = found.end.saturating_sub(from);
            self.space.flush(self.space.start_of(found.page) + u64::from(from), u64::from(len));
        }
    }

    /// # Errors
    /// If the medium fails.
    fn fence_found(&self) -> Result<()> {
        if self.early.is_none() { self.fence() } else { Ok(()) }
    }

    /// As [`Recovery::flush_found`], for leaves with damage: the records that others have proven may lie behind the
    /// end that was found at first. Durable when it returns.
    fn flush_damaged(&self, found: &[Found]) -> Result<()> {
        let mut damaged = found.iter().filter(|found| found.doubt > 0).peekable();
        if damaged.peek().is_none() {
            return Ok(());
        }
        damaged.for_each(|found| self.flush_found(found, 0));
        self.fence_found()
    }

    /// Loads a leaf that was found, which no other thread knows yet: whether it counts is decided when all have
    /// been read.
    pub(crate) fn begin_found(&self, found: &Found, latest: &Latest<'_>) {
        let begun = latest.begun(found, self.opened.sealed_births);
        let start = self.space.start_of(found.page);
        self.leaves.get(found.page as usize).begin(begun, latest.records(start));
    }

    /// Builds the tree over leaves no two of which serve the same key.
    fn lead_to(&self, mut counting: Vec<Found>) -> Result<()> {
        // The key from which on no leaf serves keys yet.
        let mut expected: Option<Box<[u8]>> = Some(Box::default());
        let mut bounds = Vec::with_capacity(counting.len());
        let (mut records, mut live_bytes) = (0, 0);
        for at in in_order(&counting) {
            let found = &mut counting[at as usize];
            let least = std::mem::take(&mut found.head.least);
            if let Some(from) = expected.filter(|from| *from < least) {
                let page = self.make_lost_leaf_in_time(&from, Some(&least))?;
                bounds.push((from, page));
            }
            records += found.live;
            live_bytes += found.live_bytes;
            expected = found.head.bound.take();
            bounds.push((least, found.page));
        }
        if let Some(from) = expected {
            let page = self.make_lost_leaf_in_time(&from, None)?;
            bounds.push((from, page));
        }
        self.counters.add(Count::Records, records);
        self.counters.add(Count::LiveBytes, live_bytes);
        self.inner.build_all(bounds);
        Ok(())
    }
}
