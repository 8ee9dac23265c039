//! Growth, a segment at a time.
//!
//! ```text
//!   A (prefix p, depth d)  ──▶  A0 (p0, d+1)  and  A1 (p1, d+1), then A is free again
//! ```
//!
//! A split holds all locks of A, so that no writer changes it, while readers go on in it. Both
//! halves are written to fresh segments and made durable; then their header words; then A's header
//! word is cleared; then the directory names the halves. Slots keep the next bits of the hash, so
//! that no record is read, except in one split in seven generations, which fills the window anew.
//!
//! The header words alone define the segments. After a crash (see [`Index::load`]) a segment whose
//! parent is there too counts only if its sibling does: until both are durable the parent is
//! complete, and afterwards no writer has changed the parent.

use super::directory::{DEPTH_MAX, Directory, Leaf, prefix};
use super::lock::Lock;
use super::pass::Passes;
use super::{GroupLock, Index, Slot};
use crate::table::geometry::{Geometry, SLOTS};
use crate::table::hash::{Place, home_of, window, window_start};
use crate::table::page::{check_loads, sync_failed};
use coreplane_engine::{Error, Result};
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::mutant;
use coreplane_pmem::{LINE, Space, epoch};
use coreplane_record::sealed;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The content of a segment's header word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SegmentHeader {
    pub(crate) prefix: u32,
    pub(crate) depth: u32,
}

impl SegmentHeader {
    // media-format: begin pool
    pub(super) fn to_word(self, offset: u64) -> u64 {
        sealed::seal(1 | u64::from(self.depth) << 1 | u64::from(self.prefix) << 8, offset)
    }
    // media-format: end

    /// None for a segment that is free.
    pub(crate) fn from_word(word: u64, offset: u64) -> Result<Option<Self>> {
        if word == 0 {
            return Ok(None);
        }
        let content = sealed::open(word, offset).ok_or_else(|| Error::Corrupt {
            offset,
            what: "the header of an index segment does not match its check".to_owned(),
        })?;
        let (depth, prefix) = (content as u32 >> 1 & 0x7f, (content >> 8) as u32);
        if content & 1 == 0 || depth > DEPTH_MAX || u64::from(prefix) >= 1 << depth {
            return Err(Error::Corrupt {
                offset,
                what: format!("index segment of depth {depth}, prefix {prefix:#x}"),
            });
        }
        Ok(Some(Self { prefix, depth }))
    }
}

/// Where index pages come from: the offset of a fresh one, zeroed, durable as an index page; none
/// if there is no space.
pub(crate) type Supply<'a> = &'a mut dyn FnMut() -> Result<Option<u64>>;

/// Reads the `y` of the key that a slot points at.
pub(crate) type Rehash<'a> = &'a dyn Fn(Slot, &dyn Fn(Place) -> bool) -> Result<Place>;

/// The pages of the segments, and the free segments.
#[derive(Debug, Default)]
pub(super) struct Growth {
    pages: Vec<u64>,
    /// Numbers of segments that are not in use.
    free: Vec<u32>,
}

impl Growth {
    pub(super) fn segments_bytes(&self, shape: &Geometry) -> u64 {
        self.pages.len() as u64 * u64::from(shape.page_size)
    }

    pub(super) fn segments_used(&self, shape: &Geometry) -> u64 {
        self.pages.len() as u64 * shape.segments_per_page() - self.free.len() as u64
    }

    fn add_page(&mut self, start: u64, shape: &Geometry) {
        let first = self.pages.len() as u64 * shape.segments_per_page();
        self.pages.push(start);
        self.free.extend((first..first + shape.segments_per_page()).rev().map(|n| n as u32));
    }

    pub(super) fn place(&self, number: u32, shape: &Geometry) -> (u64, u64) {
        let per_page = shape.segments_per_page();
        let start = self.pages[(u64::from(number) / per_page) as usize];
        let unit = u64::from(number) % per_page + 1;
        (start + unit * shape.segment_bytes(), start + unit * 8)
    }

    /// A segment that is not in use; none if there is no page for one.
    ///
    /// # Errors
    /// If there is no lock for another one.
    pub(super) fn take(&mut self, shape: &Geometry, supply: Supply<'_>) -> Result<Option<u32>> {
        if self.free.is_empty() {
            let Some(start) = supply()? else { return Ok(None) };
            self.add_page(start, shape);
        }
        let number = self.free.pop();
        if number.is_some_and(|number| u64::from(number) >= SEGMENTS_MAX) {
            self.free.extend(number);
            return Err(Error::NoSpace { needed: shape.segment_bytes(), reclaimable: 0 });
        }
        Ok(number)
    }
}

/// A split's new segment while it is filled.
struct Half {
    number: u32,
    words: Vec<u64>,
}

impl Half {
    /// Puts a slot into its bucket of group `group`, or the next with room.
    fn insert(&mut self, slot: Slot, group: u32, shape: &Geometry) -> Result<()> {
        let home = home_of(slot.tag(), shape.buckets);
        for step in 0..shape.buckets {
            let bucket = group * shape.buckets + ((home + step) & (shape.buckets - 1));
            let start = (u64::from(bucket) * SLOTS) as usize;
            let line = &mut self.words[start..start + SLOTS as usize];
            if let Some(word) = line.iter_mut().find(|word| **word == Slot::EMPTY.0) {
                *word = slot.0;
                return Ok(());
            }
        }
        Err(Error::Corrupt { offset: slot.offset(), what: "half a group overflows".to_owned() })
    }
}

/// The most segments that an index has locks for.
const SEGMENTS_MAX: u64 = 1 << 22;

/// Locks that are allocated together: those of 256 segments, 128 KiB; fewer in a small index.
const LOCKS_IN_CHUNK: usize = 1 << 14;

impl Index {
    pub(super) fn with(
        space: Arc<Space>,
        in_pool: bool,
        shape: Geometry,
        depth: u32,
        counted: bool,
    ) -> Self {
        let page = u64::from(shape.page_size);
        let segments = space.reserved() / page * shape.segments_per_page();
        let locks = segments.min(SEGMENTS_MAX) as usize * shape.groups as usize;
        let initial = if counted { Lock::unmarked } else { Lock::marked };
        Self {
            space,
            in_pool,
            passes: Passes::new(counted),
            shape,
            windows: std::array::from_fn(|depth| window_start(depth as u32, shape.depth) as u8),
            directory: Directory::new(depth),
            locks: Chunked::new(locks, LOCKS_IN_CHUNK, initial),
            growth: Mutex::default(),
            waiting: super::Waiting::default(),
        }
    }

    /// A new, empty index.
    ///
    /// # Errors
    /// If there is not even space for its first segments.
    pub(crate) fn create(
        space: Arc<Space>,
        in_pool: bool,
        shape: Geometry,
        counted: bool,
        supply: Supply<'_>,
    ) -> Result<Self> {
        let index = Self::with(space, in_pool, shape, shape.depth, counted);
        let mut growth = index.growth.lock();
        for prefix in 0..1_u32 << shape.depth {
            let number = growth
                .take(&shape, supply)?
                .ok_or(Error::NoSpace { needed: u64::from(shape.page_size), reclaimable: 0 })?;
            let (offset, header) = growth.place(number, &shape);
            let depth = shape.depth;
            index.word(header)?.store(SegmentHeader { prefix, depth }.to_word(header));
            index.space.flush(header, 8);
            index.directory.set(prefix, Leaf::new(offset, depth, number));
        }
        drop(growth);
        index.space.fence().map_err(sync_failed)?;
        Ok(index)
    }

    /// Checks the header words of the pages at `pages`, whose bytes can be read, as [`Index::load`]
    /// does, and that no slot points out of the pool.
    ///
    /// # Errors
    /// If they do not make one whole index, or a slot points out of the pool.
    pub(crate) fn check(space: &Space, shape: &Geometry, pages: &[u64]) -> Result<()> {
        let (guard, mut found) = (epoch::pin(), HashSet::new());
        for start in pages {
            let bytes = space.bytes(&guard, *start, shape.segment_bytes()).unwrap_or_default();
            let words = bytes.as_chunks().0.iter().zip((*start..).step_by(8));
            for (word, at) in words.skip(1).take(shape.segments_per_page() as usize) {
                found.extend(SegmentHeader::from_word(u64::from_le_bytes(*word), at)?);
            }
            let all = space.bytes(&guard, *start, shape.page_size.into()).unwrap_or_default();
            let slots = all.as_chunks().0.iter().map(|word| Slot(u64::from_le_bytes(*word)));
            let slots = slots.skip((shape.segment_bytes() / 8) as usize);
            if slots.filter(|slot| slot.is_used()).any(|slot| slot.offset() >= space.len()) {
                let what = "a slot of the index points out of the pool".to_owned();
                return Err(Error::Corrupt { offset: *start, what });
            }
        }
        let dropped = superfluous(found.iter().copied(), |header| found.contains(&header));
        let counted = found.difference(&dropped);
        if counted.map(|header| 1_u64 << (32 - header.depth)).sum::<u64>() != 1 << 32 {
            let what = "the index segments do not cover all keys once".to_owned();
            let offset = pages.first().copied().unwrap_or(0);
            return Err(Error::Corrupt { offset, what });
        }
        Ok(())
    }

    /// The index that the pages at `pages` hold.
    ///
    /// # Errors
    /// If a page cannot be read, or their header words do not make one whole index.
    pub(crate) fn load(
        space: Arc<Space>,
        shape: Geometry,
        pages: &[u64],
        counted: bool,
    ) -> Result<Self> {
        let mut index = Self::with(space, true, shape, shape.depth, counted);
        let mut growth = Growth::default();
        let mut found = HashMap::new();
        for start in pages {
            check_loads(&index.space, index.space.page_of(*start))?;
            let first = growth.pages.len() as u64 * shape.segments_per_page();
            growth.pages.push(*start);
            for number in first..first + shape.segments_per_page() {
                let (_, at) = growth.place(number as u32, &shape);
                match SegmentHeader::from_word(index.word(at)?.load(), at)? {
                    None => growth.free.push(number as u32),
                    Some(header) => {
                        if found.insert(header, number as u32).is_some() {
                            return Err(Error::Corrupt {
                                offset: at,
                                what: format!("two index segments for {header:?}"),
                            });
                        }
                    }
                }
            }
        }
        index.settle(&mut found, &mut growth)?;
        for (header, number) in &found {
            let (offset, _) = growth.place(*number, &shape);
            index.directory.set(header.prefix, Leaf::new(offset, header.depth, *number));
        }
        let covered: u64 = found.keys().map(|header| 1_u64 << (32 - header.depth)).sum();
        if !index.directory.is_complete() || covered != 1 << 32 {
            return Err(Error::Corrupt {
                offset: pages.first().copied().unwrap_or(0),
                what: "the index segments do not cover all keys once".to_owned(),
            });
        }
        index.growth = Mutex::new(growth);
        Ok(index)
    }

    /// Makes the header words durable, and ends the split that a crash cut short: drops the lone half or the parent
    /// of two.
    fn settle(&self, found: &mut HashMap<SegmentHeader, u32>, growth: &mut Growth) -> Result<()> {
        let dropped = superfluous(found.keys().copied(), |header| found.contains_key(&header));
        // A process that was killed may have left header words in the caches: those of the halves, and that of the
        // parent, which is cleared. If the parent came back when a half has been split, too, a half would be lost.
        if !dropped.is_empty() || !mutant!("scmkv.open.headers") {
            for start in &growth.pages {
                self.space.flush(*start, 8 * (self.shape.segments_per_page() + 1));
            }
            self.space.fence().map_err(sync_failed)?;
        }
        for superfluous in dropped {
            if let Some(number) = found.remove(&superfluous) {
                let (_, at) = growth.place(number, &self.shape);
                self.word(at)?.store(0);
                self.space.persist(at, 8).map_err(sync_failed)?;
                growth.free.push(number);
            }
        }
        Ok(())
    }

    /// Splits the segment `full`, if it still serves `y`; false if there is no space for it.
    ///
    /// # Errors
    /// If the index is damaged or as deep as can be.
    pub(crate) fn split(
        &self,
        full: Leaf,
        y: u32,
        supply: Supply<'_>,
        rehash: Rehash<'_>,
    ) -> Result<bool> {
        let mut growth = self.growth.lock();
        if self.directory.leaf(y) != full {
            return Ok(true);
        }
        if full.depth() >= DEPTH_MAX {
            return Err(Error::NoSpace { needed: self.shape.segment_bytes(), reclaimable: 0 });
        }
        let Some(zero) = growth.take(&self.shape, supply)? else { return Ok(false) };
        let one = match growth.take(&self.shape, supply) {
            Ok(Some(one)) => one,
            other => {
                growth.free.push(zero);
                return other.map(|_| false);
            }
        };
        let groups = self.shape.groups;
        let held: Vec<_> = (0..groups)
            .map(|group| GroupLock::acquire(self, self.lock_of(full, group), full))
            .collect();
        let fill = (u64::from(groups * self.shape.buckets) * SLOTS) as usize;
        let mut halves = [zero, one].map(|number| Half { number, words: vec![0; fill] });
        let moved = self.distribute(full, prefix(y, full.depth()), &mut halves, rehash);
        if let Err(error) = moved {
            growth.free.extend([zero, one]);
            return Err(error);
        }
        let new_prefix = prefix(y, full.depth()) << 1;
        let leaves = self.write_halves(&growth, &halves, new_prefix, full.depth() + 1)?;
        let (_, old_header) = growth.place(full.number(), &self.shape);
        self.word(old_header)?.store(0);
        if self.in_pool {
            self.space.persist(old_header, 8).map_err(sync_failed)?;
        }
        // The new segments may have been in use before. A writer that waited for a lock of that
        // time holds it for a moment, until it sees that the segment no longer serves its key.
        // Hence the locks are acquired, not stored.
        let taken: Vec<_> = leaves
            .iter()
            .flat_map(|leaf| (0..groups).map(move |group| (*leaf, group)))
            .map(|(leaf, group)| {
                let lock = self.lock_of(leaf, group);
                let word = held[group as usize].word();
                let mut taken = GroupLock::acquire(self, lock, leaf);
                taken.inherit(word);
                taken
            })
            .collect();
        for (at, leaf) in leaves.iter().enumerate() {
            self.directory.set(new_prefix + at as u32, *leaf);
        }
        drop(taken);
        drop(held);
        growth.free.push(full.number());
        Ok(true)
    }

    /// Deals the slots of `full` to the halves.
    fn distribute(
        &self,
        full: Leaf,
        full_prefix: u32,
        halves: &mut [Half; 2],
        rehash: Rehash<'_>,
    ) -> Result<()> {
        let depth = full.depth();
        let (start, new_start) = (self.window_start(depth), self.window_start(depth + 1));
        for group in 0..self.shape.groups {
            let offset = full.offset() + u64::from(group) * self.shape.group_bytes();
            for line in self.group_words(offset)? {
                for slot in line.map(Slot).into_iter().filter(|slot| slot.is_used()) {
                    let bit = slot.window()
                        >> (crate::table::hash::WINDOW_BITS - 1 - (depth - start))
                        & 1;
                    let (slot, bit) = if new_start == start {
                        (slot, bit)
                    } else {
                        let is_its = |place: Place| {
                            prefix(place.y, depth) == full_prefix
                                && place.signature(start) == slot.signature()
                        };
                        let y = rehash(slot, &is_its)?.y;
                        (slot.with_window(window(y, new_start)), y >> (31 - depth) & 1)
                    };
                    halves[bit as usize].insert(slot, group, &self.shape)?;
                }
            }
        }
        Ok(())
    }

    /// Writes both halves and then their header words, each durable before the next step.
    fn write_halves(
        &self,
        growth: &Growth,
        halves: &[Half; 2],
        new_prefix: u32,
        depth: u32,
    ) -> Result<[Leaf; 2]> {
        let places = halves.each_ref().map(|half| growth.place(half.number, &self.shape));
        for (half, (offset, _)) in halves.iter().zip(places) {
            for (at, word) in half.words.iter().enumerate() {
                self.word(offset + 8 * at as u64)?.store(*word);
            }
            if self.in_pool && !mutant!("scmkv.split.flush") {
                self.space.flush(offset, self.shape.segment_bytes());
            }
        }
        if self.in_pool && !mutant!("scmkv.split.fence") {
            self.space.fence().map_err(sync_failed)?;
        }
        for (at, (_, header)) in places.into_iter().enumerate() {
            let content = SegmentHeader { prefix: new_prefix + at as u32, depth };
            self.word(header)?.store(content.to_word(header));
            if self.in_pool && !mutant!("scmkv.split.header_flush") {
                self.space.flush(header, 8);
            }
        }
        if self.in_pool && !mutant!("scmkv.split.header_fence") {
            self.space.fence().map_err(sync_failed)?;
        }
        let leaf = |at: usize| Leaf::new(places[at].0, depth, halves[at].number);
        debug_assert!(places.iter().all(|(offset, _)| offset % LINE as u64 == 0));
        Ok([leaf(0), leaf(1)])
    }
}

/// The segments that a split cut short by a crash left over: the lone half, or the parent of two.
fn superfluous(
    found: impl Iterator<Item = SegmentHeader>,
    has: impl Fn(SegmentHeader) -> bool,
) -> HashSet<SegmentHeader> {
    found
        .filter_map(|child| {
            let parent =
                SegmentHeader { prefix: child.prefix >> 1, depth: child.depth.checked_sub(1)? };
            let sibling = SegmentHeader { prefix: child.prefix ^ 1, ..child };
            let dropped = if has(sibling) { parent } else { child };
            has(parent).then_some(dropped)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_segments_than_locks() {
        let (shape, mut growth) = (Geometry::TINY, Growth::default());
        let mut pages = 0;
        let mut supply = || {
            pages += 1;
            Ok(Some(pages * u64::from(shape.page_size)))
        };
        for number in 0..SEGMENTS_MAX {
            assert_eq!(growth.take(&shape, &mut supply).unwrap(), Some(number as u32));
        }
        for _ in 0..3 {
            let taken = growth.take(&shape, &mut supply);
            assert!(matches!(taken, Err(Error::NoSpace { .. })), "{taken:?}");
        }
        growth.free.push(7);
        assert_eq!(growth.take(&shape, &mut supply).unwrap(), Some(7));
    }
}
