//! A leaf as it is written to a free page: a head, and records in the order of their keys.
//!
//! An image is durable after a fence and does not count yet. The superseded mark of the leaf that had these records
//! before makes it count ([`rewrite`](crate::tree::rewrite)).

use crate::inner::{Bound, word_at};
use crate::leaf::{Begun, Directory, Head, Life, PLACES, generation};
use crate::tree::fill_factor::FillFactor;
use crate::tree::{SUPERSEDED_MARK_LEN, Tree};
use crate::volume::counters::Count;
use crate::volume::keys::{Edge, tag_of_field};
use coreplane_engine::{Error, Result};
use coreplane_pmem::{Pen, Space, WriteMode, mutant};
use coreplane_record::{Header, Kind, Original, View};
use std::cell::Cell;

thread_local! {
    /// The buffer in which a leaf is assembled: one leaf at a time, and as large as the largest.
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Room for the records of a leaf, which is too large for a quick allocation.
    static ITEMS: Cell<Vec<Item<'static>>> = const { Cell::new(Vec::new()) };
}

/// A record for a leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) header: Header,
    /// The key's [field](crate::volume::keys).
    pub(crate) key: &'a [u8],
    /// The value, or the name of a large one.
    pub(crate) value: &'a [u8],
    pub(crate) source: Source<'a>,
}

/// Room for the records of a leaf; reuses that of this thread, if it was given back.
pub(crate) fn take_items<'a>() -> Vec<Item<'a>> {
    let mut items = emptied(ITEMS.take());
    items.reserve(PLACES);
    items
}

/// Gives back the room from [`take_items`], for the next leaf.
pub(crate) fn give_items(items: Vec<Item<'_>>) {
    if items.capacity() <= 2 * PLACES {
        ITEMS.set(emptied(items));
    }
}

/// The same room for other records: collecting in place keeps it.
fn emptied<'a>(items: Vec<Item<'_>>) -> Vec<Item<'a>> {
    items.into_iter().map_while(|_| None).collect()
}

/// The contribution of a record or tombstone to the counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    records: i64,
    bytes: i64,
}

/// The origin of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// It is new.
    Caller,
    /// A record, of which only flags are changed.
    Record(Original<'a>),
    /// A record that does not match its checksum.
    Damaged,
}

impl<'a> From<&View<'a>> for Item<'a> {
    fn from(view: &View<'a>) -> Self {
        let header = Header { follows: false, batched: false, ..view.header };
        Self { header, key: view.key(), value: view.value(), source: Source::Caller }
    }
}

impl Item<'_> {
    /// Bytes in the page.
    pub(crate) fn len(&self) -> usize {
        self.header.record_len(self.key, self.value.len())
    }

    /// Live bytes: none for a tombstone, which may be forgotten.
    pub(crate) fn live_len(&self) -> u32 {
        if self.header.kind == Kind::Put { self.len() as u32 } else { 0 }
    }

    /// The length of the value, in the page or outside.
    #[inline]
    pub(crate) fn value_len(&self) -> i64 {
        match self.value.first_chunk() {
            Some(len) if self.header.large => u64::from_le_bytes(*len) as i64,
            _ => self.value.len() as i64,
        }
    }
}

/// A new leaf that is durable after a fence and counts for nothing yet.
pub(crate) struct Image<'s> {
    pub(crate) life: Life,
    /// The least key that it serves.
    pub(crate) edge: Edge<'s>,
    begun: Begun,
    /// Tag, offset in the page and length of each record.
    records: Vec<(u8, u32, u32)>,
}

impl Tree {
    /// Live bytes, including those of a large value and the rest of a long key.
    #[inline]
    pub(crate) fn live_bytes(&self, item: &Item<'_>) -> i64 {
        let large = if item.header.large { item.value_len() } else { 0 };
        let is_long = self.is_long(item.key) && item.header.kind == Kind::Put;
        let rest = if is_long { self.key_len_of(item.key) - item.key.len() } else { 0 };
        i64::from(item.live_len()) + large + rest as i64
    }

    /// The contribution of an old record to the counters, for when it is replaced.
    #[inline(always)]
    pub(crate) fn counted(&self, old: &View<'_>) -> Counted {
        let bytes = self.live_bytes(&Item::from(old));
        Counted { records: i64::from(old.header.kind == Kind::Put), bytes }
    }

    /// Counts a write that replaces `old`.
    #[inline]
    pub(crate) fn count_write(&self, item: &Item<'_>, old: Counted) {
        let is_record = item.header.kind == Kind::Put;
        self.counters.add_all([
            (if is_record { Count::Puts } else { Count::Deletes }, 1),
            (Count::Records, i64::from(is_record) - old.records),
            (Count::LiveBytes, self.live_bytes(item) - old.bytes),
            (Count::UserBytes, self.key_len_of(item.key) as i64 + item.value_len()),
            (Count::LogBytes, item.len() as i64),
        ]);
    }

    /// Counts a leaf that has shrunk, if a record of `len` bytes (0: a tombstone) in the place of one of `old` bytes
    /// has made it shrink.
    #[inline(always)]
    pub(crate) fn count_replaced(&self, leaf: &Directory, old: u32, len: u32) {
        if len < old {
            let (live, records) = (leaf.live(), leaf.records());
            let gone = usize::from(len == 0);
            self.count_shrunk((live + old - len, records + gone), (live, records));
        }
    }

    /// The same for a leaf with a single successor, which has no dead records.
    pub(crate) fn count_rewritten(&self, leaf: &Directory, successors: &[Bound]) {
        if let [(_, only)] = successors {
            let size = |leaf: &Directory| (leaf.live(), leaf.used().count());
            self.count_shrunk(size(leaf), size(self.leaves.get(*only as usize)));
        }
    }

    /// Counts a leaf that had `before` bytes and records and has `after` now, if a sixteenth of its page or of its
    /// places lies in between.
    fn count_shrunk(&self, before: (u32, usize), after: (u32, usize)) {
        let (bytes, places) = (self.space.page_size() / 16, PLACES / 16);
        if after.0 / bytes < before.0 / bytes || after.1 / places < before.1 / places {
            self.counters.add(Count::Shrunk, 1);
        }
    }

    /// Writes a leaf to a free page; durable after a fence. Its least key is given beside the head.
    pub(crate) fn write_image<'s>(
        &self,
        page: u32,
        leaf: (Head, Edge<'s>),
        items: &[Item<'_>],
    ) -> Result<Image<'s>> {
        let mut pen = self.pen().take();
        let image = self.write_image_with(&mut pen, page, leaf, items);
        *self.pen() = pen;
        image
    }

    /// As [`Tree::write_image`], with a pen, which is lost on a failure. For several images: getting the pen of the
    /// thread would wait until the previous image is in memory.
    pub(crate) fn write_image_with<'s>(
        &self,
        pen: &mut Option<Pen>,
        page: u32,
        (head, edge): (Head, Edge<'s>),
        items: &[Item<'_>],
    ) -> Result<Image<'s>> {
        let birth = self.birth()?;
        let in_use = |_| Error::Unusable(format!("free page {page} is in use"));
        let taken = pen.take().unwrap_or_else(|| Pen::new(&self.space));
        let mut writer = taken.begin(page).map_err(in_use)?;
        let past_caches = self.space.fill_mode() == WriteMode::NonTemporal;
        let head = Head { least: edge.field.clone(), ..head };
        let image_len = (head.len() + items.iter().map(Item::len).sum::<usize>()) as u32;
        let head = Head { birth, image_len, ..head };
        let mut records = Vec::with_capacity(items.len());
        let start = writer.next_offset();
        let mut bytes = BYTES.take();
        bytes.clear();
        bytes.extend_from_slice(&head.encode(self.seed, page));
        for item in items {
            let within = bytes.len();
            self.encode_item(item, (birth, start + within as u64), &mut bytes);
            let tag = tag_of_field(item.key, self.field_max());
            records.push((tag, within as u32, item.live_len()));
        }
        // All at once, so that whole lines go past the caches.
        let parts = [bytes.as_slice()];
        let written = if past_caches { writer.append_nt(&parts) } else { writer.append(&parts) };
        written.ok_or_else(|| Error::Unusable(format!("page {page} is too short")))?;
        BYTES.set(bytes);
        if !past_caches && !mutant!("bptree.image.flush") {
            writer.flush_from(start);
        }
        if !mutant!("bptree.image.fill") {
            self.fill_rest(&mut writer, birth)?;
        }
        *pen = Some(writer.finish_early());
        self.counters.add(Count::CopiedBytes, i64::from(image_len));
        let has_large = items.iter().any(|item| item.header.large);
        let given = head.version;
        let has_long = items.iter().any(|item| self.is_long(item.key));
        let doubt = if head.is_lost { head.len() as u32 } else { 0 };
        let (is_sealed, is_sorted) = (false, true);
        let begun = Begun { birth, given, is_sealed, is_sorted, has_large, has_long, doubt };
        Ok(Image { life: Life { page, birth }, edge, begun, records })
    }

    /// Appends the bytes of a record to those of its leaf; its place will be `offset` in the pool.
    fn encode_item(&self, item: &Item<'_>, (birth, offset): (u64, u64), to: &mut Vec<u8>) {
        let Item { header, key, value, source } = item;
        if let Source::Record(original) = source {
            let seed = coreplane_record::seed(self.seed, generation(birth), offset);
            return original.copy(header, seed, to);
        }
        let encoded = self.encode(birth, offset, header, key, value);
        let is_damaged = matches!(source, Source::Damaged);
        let encoded = if is_damaged { encoded.spoiled() } else { encoded };
        [encoded.bytes(), key, value].into_iter().for_each(|part| to.extend_from_slice(part));
        to.resize(to.len().next_multiple_of(8), 0);
    }

    /// Turns an image that counts into a leaf, ready for any thread that descends to it.
    pub(crate) fn begin(&self, image: Image<'_>) {
        if let Some(rest) = image.edge.rest {
            rest.own();
        }
        let page = image.life.page;
        let tail = self.space.watermarks(page).map_or(0, |(published, _)| published);
        self.space.mark_durable(page, tail);
        if let Some(early) = &self.early {
            early.begin(page);
        }
        let leaf = self.leaves.get(page as usize);
        leaf.begin(image.begun, image.records.into_iter());
    }

    /// Divides the records of a leaf into stretches, each a leaf with room to spare: the number of records in each,
    /// of at least one stretch.
    pub(crate) fn stretches(
        &self,
        head: &Head,
        items: &[Item<'_>],
        fill: FillFactor,
    ) -> Vec<usize> {
        // The bounds between them will be no longer than the longest key.
        let bounds = [head.least.len(), head.bound.as_ref().map_or(0, |bound| bound.len())];
        let field_len = items.iter().map(|item| item.key.len()).chain(bounds).max().unwrap_or(0);
        let capacity = fill.of(page_capacity(&self.space, field_len));
        let places = fill.records;
        let total: usize = items.iter().map(Item::len).sum();
        let count = total.div_ceil(capacity.max(1)).max(items.len().div_ceil(places)).max(1);
        let (fair_len, fair_count) = (total.div_ceil(count), items.len().div_ceil(count));
        let mut stretches = vec![0];
        let mut len = 0;
        for item in items {
            let is_cut = len >= fair_len
                || len + item.len() > capacity
                || stretches.last() >= Some(&fair_count);
            if is_cut && len > 0 {
                stretches.push(0);
                len = 0;
            }
            len += item.len();
            *stretches.last_mut().unwrap_or(&mut 0) += 1;
        }
        stretches
    }
}

/// Sorts records by their keys, most of which differ in their first bytes. Those bytes are compared as numbers
/// whose last bits hold the place of the record, and each record is moved once.
pub(crate) fn sort(items: &mut [Item<'_>]) {
    let places = items.len().next_power_of_two() as u64 - 1;
    let entry = |(at, item): (u64, &Item<'_>)| word_at(item.key, 0) & !places | at;
    let place = |entry: u64| (entry & places) as usize;
    let mut order: Vec<u64> = (0..).zip(&*items).map(entry).collect();
    order.sort_unstable();
    if order.windows(2).any(|pair| (pair[0] ^ pair[1]) & !places == 0) {
        order.sort_by(|a, b| items[place(*a)].key.cmp(items[place(*b)].key));
    }
    // Along the cycles of the order, so that nothing is allocated for it.
    for start in 0..items.len() {
        let (first, mut at) = (items[start], start);
        loop {
            let from = place(std::mem::replace(&mut order[at], at as u64));
            if from == start {
                break;
            }
            items[at] = items[from];
            at = from;
        }
        items[at] = first;
    }
}

/// Bytes of a page for records, where no bound of its leaf is longer than `field_len` bytes.
pub(crate) fn page_capacity(space: &Space, field_len: usize) -> usize {
    let head = (2 * field_len + 64).next_multiple_of(8);
    space.page_size() as usize - head - SUPERSEDED_MARK_LEN
}

/// Live bytes of a record: none for a tombstone, which may be forgotten.
pub(crate) fn live_len(view: &View<'_>) -> u32 {
    if view.header.kind == Kind::Put { view.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_records_is_used_again() {
        let mut items = take_items();
        let header = Header::put(1);
        items.push(Item { header, key: b"key", value: b"value", source: Source::Caller });
        let room = items.as_ptr().cast::<()>();
        give_items(items);
        let again = take_items();
        assert_eq!((again.len(), again.as_ptr().cast::<()>()), (0, room));
    }

    #[test]
    fn what_is_in_an_item_lives_unless_it_is_a_tombstone() {
        let item = |header| Item { header, key: b"key", value: b"value", source: Source::Caller };
        assert_eq!((item(Header::put(1)).len(), item(Header::put(1)).live_len()), (32, 32));
        let tombstone = Header { kind: Kind::Delete, ..Header::put(1) };
        assert_eq!((item(tombstone).len(), item(tombstone).live_len()), (32, 0));
    }
}
