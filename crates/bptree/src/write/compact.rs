//! Rewrites neighbouring leaves as fewer, when pages are short.
//!
//! Leaves with scattered keys are split at about the same time, and then all of them are half full: a load could
//! fill only a third of a pool. So when less than a sixteenth of the pages is free, a thread that rewrites a leaf
//! pays for it with others: two to five neighbouring leaves become one fewer ([`merge`](crate::write::merge)), and
//! so on from one inner node to the next, round and round in the order of keys. And no write is refused for lack of
//! space before many leaves have been looked at, or all of them for the replacement of another record.
//!
//! If a leaf is full, and there are not enough pages to split it, and a record in it is to be overwritten, the
//! records of that leaf and its neighbours are spread evenly over as many leaves ([`Writer::spread`]). Which of
//! these is tried, and when, is decided in [`page_search`](crate::write::page_search) alone.
//!
//! The size of each leaf is known in DRAM, and the choice reads nothing else. Of all runs below one inner node the
//! one with the least to copy is taken.

use crate::inner::Siblings;
use crate::tree::fill_factor::FillFactor;
use crate::tree::image::page_capacity;
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::volume::pages::{Demand, RESERVE};
use crate::write::Writer;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{epoch, spin};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The maximum number of leaves that become one fewer.
const RUN_MAX: usize = 5;

/// Inner nodes whose leaves are looked at ahead of need.
const NODES: usize = 2;

/// The same for an additional record. A store is full when no page is to be gained from so many: it would be slow
/// long before the last is found.
const INSERT_NODES: usize = 64;

/// Inner nodes after which a search in need looks whether it is still in need.
const LOOK_EVERY: usize = 32;

/// The position of the compaction.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    cursors: Mutex<Cursors>,
}

#[derive(Debug, Default)]
struct Cursor {
    /// The least key that was not looked at yet.
    next: Box<[u8]>,
    /// The greatest key was passed since the last gain.
    is_round: bool,
    /// The state when it began its round, and the fewest pages at hand since.
    round: Option<Wear>,
    /// The state when all leaves had been looked at in vain. Until it changes there is nothing to gain.
    in_vain: Option<Wear>,
}

/// The positions of the compaction ahead of need and in need.
#[derive(Debug, Default)]
struct Cursors {
    dense: Cursor,
    scarce: Cursor,
}

/// The state that must change before there can be something to gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wear {
    /// Splits, merges, and leaves that have shrunk.
    changes: i64,
    /// The live bytes, in pages: leaves that shrink by little count together.
    live: i64,
    /// Tombstones above this are kept.
    held: u64,
    /// Pages at hand for the successors, as far as they matter: with fewer there is no more to gain.
    pages: u32,
}

impl Wear {
    /// True if a look that was in vain then is in vain now.
    fn is_for(self, now: Self) -> bool {
        let state = |it: Self| (it.changes, it.live, it.held);
        state(self) == state(now) && now.pages <= self.pages
    }
}

/// The result of a part of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gain {
    Page,
    /// There is nothing to gain, or not now.
    Nothing,
    /// There are more leaves to look at.
    More,
}

/// Leaves to be rewritten together.
struct Choice {
    pages: Vec<u32>,
    separators: Vec<Box<[u8]>>,
}

impl Choice {
    fn of(siblings: &Siblings, run: Range<usize>) -> Self {
        Self {
            separators: siblings.separators[run.start..run.end - 1].to_vec(),
            pages: siblings.leaves[run].to_vec(),
        }
    }
}

impl Writer {
    /// Called after a leaf was rewritten: rewrites some others as fewer if pages are short. This is not urgent, so
    /// that it is never a reason to refuse a write.
    pub(super) fn compact_if_due(&self) {
        if self.pages.spare_len() < (self.pages.count() / 16).max(2 * RESERVE)
            && let Some(mut cursors) = self.compaction.cursors.try_lock()
        {
            let how = (FillFactor::DENSE, RESERVE);
            let _looked = self.gain(&mut cursors.dense, how, NODES).is_ok();
        }
    }

    /// Gains a page, which is free when no reader holds it any more, or finds that `goal` pages are free; false if
    /// there is none to gain, or too few for an additional record. Not to be called with a guard or a lock.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn gain_page(&self, demand: Demand, goal: u32) -> Result<bool> {
        let mut cursors = spin::lock(&self.compaction.cursors);
        let (cursor, how) = (&mut cursors.scarce, (FillFactor::SCARCE, 0));
        if demand == Demand::Insert {
            return Ok(self.gain(cursor, how, INSERT_NODES)? == Gain::Page);
        }
        loop {
            match self.gain(cursor, how, LOOK_EVERY)? {
                Gain::Page => return Ok(true),
                Gain::Nothing => return Ok(false),
                // Other writers may have given back pages meanwhile.
                Gain::More if self.pages.free_len() >= goal => return Ok(true),
                Gain::More => {}
            }
        }
    }

    /// For `wanted` bytes of records, and `wanted` places, in a full leaf: spreads the records of the leaf and its
    /// neighbours evenly over as many leaves. False if they have no room, or there are no pages for that.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn spread(&self, key: &[u8], wanted: (usize, usize)) -> Result<bool> {
        let guard = epoch::pin();
        let siblings = self.inner.siblings_of(key);
        let capacity = self.capacity_below(&siblings);
        let Some(fill) = FillFactor::leaving(wanted, capacity) else { return Ok(false) };
        let sizes = self.sizes_of(&siblings);
        let runs = (2..=RUN_MAX.min(sizes.len())).flat_map(|count| {
            let first = (siblings.at + 1).saturating_sub(count);
            (first..=siblings.at).map(move |start| start..start + count)
        });
        let mut runs = runs.filter(|run| {
            let Some(sizes) = sizes.get(run.clone()) else { return false };
            let bytes: Option<usize> = sizes.iter().map(|size| size.map(|it| it.0)).sum();
            let records: Option<usize> = sizes.iter().map(|size| size.map(|it| it.1)).sum();
            bytes.is_some_and(|bytes| bytes <= run.len() * fill.of(capacity))
                && records.is_some_and(|records| records <= run.len() * fill.records)
        });
        let Some(run) = runs.next() else { return Ok(false) };
        let choice = Choice::of(&siblings, run);
        let count = choice.pages.len();
        match self.merge_run(&guard, (&choice.pages, &choice.separators), (fill, count, 0)) {
            Err(Error::NoSpace { .. }) => Ok(false),
            Err(error) if is_damage(&error) => Ok(false),
            spread => spread,
        }
    }

    /// Looks below `nodes` inner nodes for leaves to rewrite as fewer, until some are; leaves `reserve` pages.
    fn gain(
        &self,
        cursor: &mut Cursor,
        (fill, reserve): (FillFactor, u32),
        nodes: usize,
    ) -> Result<Gain> {
        let wear = self.wear(reserve);
        // Without pages the look is not in vain: pages that readers still use come back, and it goes on here.
        if wear.pages == 0 || cursor.in_vain.is_some_and(|vain| vain.is_for(wear)) {
            return Ok(Gain::Nothing);
        }
        // What was looked at first is as it was then.
        let mut round = cursor.round.unwrap_or(wear);
        round.pages = round.pages.min(wear.pages);
        cursor.round = Some(round);
        for _ in 0..nodes {
            let guard = epoch::pin();
            let siblings = self.inner.siblings_of(&cursor.next);
            if let Some(choice) = self.choose(&siblings, fill, wear.pages as usize) {
                let count = choice.pages.len() - 1;
                match self.merge_run(
                    &guard,
                    (&choice.pages, &choice.separators),
                    (fill, count, reserve),
                ) {
                    Ok(true) => {
                        (cursor.is_round, cursor.round) = (false, None);
                        return Ok(Gain::Page);
                    }
                    Ok(false) => {}
                    // A damaged leaf stays as it is, and reads of it report the damage.
                    Err(error) if is_damage(&error) => {}
                    Err(Error::NoSpace { .. }) => {
                        if self.wear(reserve).pages == 0 {
                            // Other threads have taken them: it goes on here when there are some.
                            return Ok(Gain::Nothing);
                        }
                        // A long key takes more pages: with more pages at hand, look at this once more.
                        round.pages = round.pages.saturating_sub(1);
                        cursor.round = Some(round);
                    }
                    Err(error) => return Err(error),
                }
            }
            let is_last = siblings.bound.is_none();
            cursor.next = siblings.bound.unwrap_or_default();
            if is_last && std::mem::replace(&mut cursor.is_round, true) {
                cursor.is_round = false;
                cursor.in_vain = cursor.round.take();
                return Ok(Gain::Nothing);
            }
        }
        Ok(Gain::More)
    }

    fn wear(&self, reserve: u32) -> Wear {
        let page = i64::from(self.space.page_size());
        let changes = [Count::Splits, Count::Merges, Count::Shrunk];
        Wear {
            changes: changes.into_iter().map(|count| self.counters.get(count)).sum(),
            held: self.held_tombstones.load(Ordering::Relaxed),
            live: self.counters.get(Count::LiveBytes) / page,
            pages: self.pages.at_hand(reserve, RUN_MAX as u32 - 1),
        }
    }

    /// The run of leaves with the fewest bytes to copy for a page, into at most `others` leaves.
    fn choose(&self, siblings: &Siblings, fill: FillFactor, others: usize) -> Option<Choice> {
        let capacity = fill.of(self.capacity_below(siblings));
        let sizes = self.sizes_of(siblings);
        let mut best: Option<(usize, Range<usize>)> = None;
        for start in 0..sizes.len() {
            let (mut bytes, mut records) = (0, 0);
            for (end, size) in (start + 1..).zip(&sizes[start..]).take(RUN_MAX.min(others + 1)) {
                let Some((live, count)) = size else { break };
                (bytes, records) = (bytes + live, records + count);
                let fewer = end - start - 1;
                // The end of a leaf seldom has exactly the room that the next record takes.
                let ends = fewer * bytes / records.max(1);
                let fits = bytes + ends <= fewer * capacity && records <= fewer * fill.records;
                // An empty leaf is no run by itself.
                let fits = fewer > 0 && fits;
                if fits && best.as_ref().is_none_or(|(least, _)| bytes < *least) {
                    best = Some((bytes, start..end));
                }
            }
        }
        best.map(|(_, run)| Choice::of(siblings, run))
    }

    /// Bytes of records that fit into a leaf, as far as the bounds of its siblings tell.
    fn capacity_below(&self, siblings: &Siblings) -> usize {
        let bounds = siblings.separators.iter().map(|separator| separator.len());
        page_capacity(&self.space, bounds.max().unwrap_or(0).min(self.field_max()))
    }

    /// Bytes and records of each leaf, with its tombstones if any are held; none for a damaged leaf, which stays as
    /// it is.
    fn sizes_of(&self, siblings: &Siblings) -> Vec<Option<(usize, usize)>> {
        let are_held = self.held_tombstones.load(Ordering::Relaxed) != u64::MAX;
        let size = |page: &u32| {
            let leaf = self.leaves.get(*page as usize);
            let is_loaded = !leaf.is_unloaded() || self.load_leaf(*page).is_ok();
            let is_sound = is_loaded && leaf.doubt() == 0;
            let records = if are_held { leaf.used().count() } else { leaf.records() };
            is_sound.then(|| (leaf.live() as usize, records))
        };
        siblings.leaves.iter().map(size).collect()
    }
}
