//! A leaf written anew: without what is dead in it, as one leaf or as two.
//!
//! ```text
//!   1  the new leaves: head and records          flush, fence
//!   2  a farewell at the end of the old page     flush, fence   ◀── from here on they count
//!   3  the tree in DRAM leads to the new ones; the old page is retired
//! ```
//!
//! Nothing is ever changed in place, so that a crash finds either the old leaf whole or the new
//! ones. A new leaf names the page that it was made of. It counts if that one says farewell, or is
//! something else by now, which it can be only after step 3. What a crash between 1 and 2 leaves
//! is wiped in recovery, before the old leaf can be written anew once more: else its page could be
//! used again, and this were taken for its heir.
//!
//! Two leaves become one in the same way. The farewell of the left one decides, the right one's
//! follows; if a crash comes in between, recovery wipes the right one.

use crate::counters::Count;
use crate::leaf::{Begun, Head, Life, PLACES, tag_of};
use crate::pages::RESERVE;
use crate::store::{FAREWELL, Locked, Store, sync_failed};
use coreplane_engine::{Error, Result};
use coreplane_pmem::WriteMode;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

/// A new leaf that is durable and counts for nothing yet.
struct Image {
    life: Life,
    begun: Begun,
    /// Tag, offset in the page and length of each record.
    records: Vec<(u8, u32, u32)>,
}

impl Store {
    /// Sees to it that the leaf that serves `key` has room for a record of `len` bytes. For a
    /// tombstone it takes the last pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn make_room(&self, key: &[u8], len: usize, kind: Kind) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_leaf(key);
        if self.room(&locked) >= len && locked.leaf.vacancy().is_some() {
            return Ok(());
        }
        let head = self.head_of(&guard, locked.page)?;
        let records = self.records_of(&guard, &locked)?;
        let total: usize = records.iter().map(|view| view.len() as usize).sum();
        let page_size = self.space.page_size() as usize;
        let capacity = page_size - head.len() - FAREWELL;
        let is_one = records.len() < 2
            || (total + len <= capacity * 3 / 4 && records.len() <= PLACES * 3 / 4);
        let predecessor = Life { page: locked.page, birth: head.birth };
        let version = locked.held.given();
        let head = Head { version, predecessors: [Some(predecessor), None], ..head };
        let reserve = if kind == Kind::Delete { 0 } else { RESERVE };
        if is_one {
            self.rewrite_as_one(key, locked, head, &records, reserve / 2)
        } else {
            self.rewrite_as_two(locked, head, &records, total / 2, reserve)
        }
    }

    /// Makes one leaf of the one that serves `key` and one beside it, if they are small enough and
    /// nobody else is about to. None of it is needed now: where there is no page for it, it is left.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn merge_at(&self, key: &[u8]) -> Result<()> {
        let guard = epoch::pin();
        let Some((left, separator, right)) = self.inner.pair_of(key) else { return Ok(()) };
        // The left one first, whoever comes: so that no two wait for each other.
        let Some(left) = self.lock_page(left) else { return Ok(()) };
        let Some(right) = self.lock_page(right) else { return Ok(()) };
        // Both are locked, so that what the tree says of them now stays so.
        let is_pair = self.inner.descend(&separator).leaf == right.page
            && self.inner.descend_before(Some(&separator)).leaf == left.page;
        let live = left.leaf.live() + right.leaf.live();
        if !is_pair || live > self.space.page_size() / 2 {
            return Ok(());
        }
        let mut records = self.records_of(&guard, &left)?;
        records.extend(self.records_of(&guard, &right)?);
        if records.len() > PLACES / 2 {
            return Ok(());
        }
        let (lower, upper) = (self.head_of(&guard, left.page)?, self.head_of(&guard, right.page)?);
        let life = |page: u32, head: &Head| Some(Life { page, birth: head.birth });
        let head = Head {
            version: left.held.given().max(right.held.given()),
            predecessors: [life(left.page, &lower), life(right.page, &upper)],
            least: lower.least,
            bound: upper.bound,
            ..upper
        };
        let page = match self.pages.take(1, 0) {
            Ok(pages) => pages[0],
            Err(_) => return Ok(()),
        };
        let image = self.write_image(page, head, &records)?;
        self.space.fence().map_err(sync_failed)?;
        self.say_farewell(&left, &[&image])?;
        self.say_farewell(&right, &[&image])?;
        let old = [left.page, right.page];
        self.begin(image);
        left.held.bury();
        right.held.bury();
        self.inner.merge(&separator, page);
        self.counters.add(Count::Merges, 1);
        old.into_iter().try_for_each(|page| self.retire(page))
    }

    fn lock_page(&self, page: u32) -> Option<Locked<'_>> {
        let leaf = self.leaves.get(page as usize);
        leaf.lock().map(|held| Locked { page, leaf, held })
    }

    /// What a locked leaf has, in the order of keys, without the tombstones that nobody holds.
    fn records_of<'g>(&'g self, guard: &'g Guard, locked: &Locked<'_>) -> Result<Vec<View<'g>>> {
        let mut records = Vec::with_capacity(PLACES);
        let mut used = locked.leaf.used();
        while used != 0 {
            let place = used.trailing_zeros() as usize;
            let view = self.record_at(guard, locked.page, locked.leaf, place)?;
            if view.header.kind == Kind::Put || self.holds_tombstone(view.sequence()) {
                records.push(view);
            }
            used &= used - 1;
        }
        records.sort_unstable_by_key(|view| view.key());
        Ok(records)
    }

    fn rewrite_as_one(
        &self,
        key: &[u8],
        locked: Locked<'_>,
        head: Head,
        records: &[View<'_>],
        reserve: u32,
    ) -> Result<()> {
        let page = self.pages.take(1, reserve)?[0];
        let image = self.write_image(page, head, records)?;
        self.space.fence().map_err(sync_failed)?;
        self.say_farewell(&locked, &[&image])?;
        let (old, leaf) = (locked.page, image.life.page);
        self.begin(image);
        locked.held.bury();
        self.inner.replace(key, leaf);
        self.counters.add(Count::Rewrites, 1);
        self.retire(old)
    }

    fn rewrite_as_two(
        &self,
        locked: Locked<'_>,
        head: Head,
        records: &[View<'_>],
        half: usize,
        reserve: u32,
    ) -> Result<()> {
        let mut bytes = 0;
        let middle = records.iter().take_while(|view| {
            bytes += view.len() as usize;
            bytes <= half
        });
        let middle = middle.count().clamp(1, records.len() - 1);
        let (lower, upper) = records.split_at(middle);
        let separator = separator(lower[middle - 1].key(), upper[0].key());
        let pages = self.pages.take(2, reserve)?;
        let left = Head { bound: Some(separator.clone()), ..head.clone() };
        let right = Head { least: separator.clone(), ..head };
        let left = self.write_image(pages[0], left, lower)?;
        let right = self.write_image(pages[1], right, upper)?;
        self.space.fence().map_err(sync_failed)?;
        self.say_farewell(&locked, &[&left, &right])?;
        let old = locked.page;
        self.begin(left);
        self.begin(right);
        locked.held.bury();
        self.inner.split(pages[0], &separator, pages[1]);
        self.counters.add(Count::Splits, 1);
        self.retire(old)
    }

    /// Makes the leaf that a new store begins with; durable when it returns.
    pub(crate) fn write_first(&self, page: u32, head: Head) -> Result<()> {
        let image = self.write_image(page, head, &[])?;
        self.space.fence().map_err(sync_failed)?;
        self.begin(image);
        Ok(())
    }

    /// Writes a leaf to a free page; durable after a fence.
    fn write_image(&self, page: u32, head: Head, records: &[View<'_>]) -> Result<Image> {
        let birth = self.birth()?;
        let Some(mut writer) = self.space.claim_log(page) else {
            return Err(Error::Unusable(format!("free page {page} is in use")));
        };
        let past_caches = self.space.append_mode() == WriteMode::NonTemporal;
        let image_len = head.len() as u32 + records.iter().map(View::len).sum::<u32>();
        let head = Head { birth, image_len, ..head };
        let mut places = Vec::with_capacity(records.len());
        let start = writer.next_offset();
        let mut write = |parts: &[&[u8]]| {
            let written = if past_caches { writer.append_nt(parts) } else { writer.append(parts) };
            written.ok_or_else(|| Error::Unusable(format!("page {page} is too short")))
        };
        write(&[&head.encode(self.seed, page)])?;
        let mut next = start + head.len() as u64;
        for view in records {
            let header = Header { follows: false, ..view.header };
            let encoded = self.encode(birth, next, &header, view.key(), view.value());
            write(&[encoded.bytes(), view.key(), view.value()])?;
            places.push((tag_of(view.key()), (next - start) as u32, live_len(view)));
            next += u64::from(view.len());
        }
        if !past_caches {
            writer.flush_from(start);
        }
        writer.publish_early();
        self.counters.add(Count::CopiedBytes, i64::from(image_len));
        let begun = Begun { birth, given: head.version, is_sealed: false };
        Ok(Image { life: Life { page, birth }, begun, records: places })
    }

    /// Says durably that a leaf is dead, and which ones are in its place.
    fn say_farewell(&self, locked: &Locked<'_>, heirs: &[&Image]) -> Result<()> {
        let mut value = Vec::with_capacity(24);
        for Image { life, .. } in heirs {
            value.extend_from_slice(&life.birth.to_le_bytes());
            value.extend_from_slice(&life.page.to_le_bytes());
        }
        let header = Header { kind: Kind::Commit, ..Header::put(0) };
        let birth = locked.held.birth();
        self.append_to(locked.page, |writer| {
            let offset = writer.next_offset();
            let encoded = self.encode(birth, offset, &header, &[], &value);
            writer.append(&[encoded.bytes(), &value])?;
            writer.flush_from(offset);
            Some(())
        })?;
        for Image { life, .. } in heirs {
            let tail = self.space.watermarks(life.page).map_or(0, |(published, _)| published);
            self.space.mark_durable(life.page, tail);
        }
        Ok(())
    }

    /// True if a tombstone is to be kept. One that is not is noted as forgotten.
    fn holds_tombstone(&self, sequence: u64) -> bool {
        if sequence > self.held_tombstones.load(Ordering::Acquire) {
            return true;
        }
        self.forgotten_tombstones.fetch_max(sequence, Ordering::AcqRel);
        false
    }

    fn begin(&self, image: Image) {
        let leaf = self.leaves.get(image.life.page as usize);
        leaf.begin(image.begun, image.records.into_iter());
    }

    /// Gives a page back, once no reader can hold it any more.
    pub(crate) fn retire(&self, page: u32) -> Result<()> {
        if self.space.retire(page) {
            return Ok(());
        }
        Err(Error::Unusable(format!("page {page} has a writer, and should be dead")))
    }
}

/// Bytes of a record that live: none of a tombstone, which may be forgotten.
pub(crate) fn live_len(view: &View<'_>) -> u32 {
    if view.header.kind == Kind::Put { view.len() } else { 0 }
}

/// The shortest key that is above `lower` and not above `upper`, which is greater than that.
pub(crate) fn separator(lower: &[u8], upper: &[u8]) -> Box<[u8]> {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    upper[..(common + 1).min(upper.len())].into()
}
