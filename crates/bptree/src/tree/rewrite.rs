//! Rewrites a leaf without its dead records, as one leaf or as two.
//!
//! ```text
//!   1  the new leaves: head and records          flush, fence
//!   2  a superseded mark at the end of the old page     flush, fence   ◀── from here on they count
//!   3  the tree in DRAM leads to the new leaves; the old page is retired
//! ```
//!
//! Nothing is ever changed in place, so that a crash finds either the old leaf whole or the new ones. A new leaf
//! names the page of its predecessor. It counts if that page is marked superseded, or has another use by now, which
//! is possible only after step 3. Remains of a crash between 1 and 2 are wiped in recovery, before the old leaf can
//! be rewritten once more: otherwise its page could be reused, and the remains be taken for its successor.
//!
//! Several leaves become fewer in the same way: their superseded marks count together or not at all
//! ([`multi_leaf_commit`](crate::tree::multi_leaf_commit)), as every superseded mark is a part of a multi-leaf
//! commit, mostly of one leaf.
//!
//! Where a fence is a sync, the third step does not wait for the second: no sync covers writes to the new leaves
//! that does not cover the superseded mark too, and the old page is kept until that sync has ended.

use crate::inner::Bound;
use crate::leaf::{Head, PLACES, generation};
use crate::tree::cuts::Cuts;
use crate::tree::doubt::is_doubtful;
use crate::tree::image::{Image, Item, Source, give_items, take_items};
use crate::tree::lock::Locked;
use crate::tree::multi_leaf_commit::NewPart;
use crate::tree::{SUPERSEDED_MARK_LEN, Tree};
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::volume::keys::Edge;
use crate::volume::pages::RESERVE;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{LINE, mutant};
use coreplane_record::{Header, Kind, View};
use smallvec::SmallVec;

/// Lines of a record that are prefetched before its length is known.
const ASKED: u64 = 3;

/// The content of a leaf.
pub(crate) struct Contents<'g> {
    /// In the order of keys. An expired record is a tombstone here, if tombstones are held.
    pub(crate) kept: Vec<Item<'g>>,
    /// Expired records, which are no longer kept.
    pub(crate) expired: Vec<View<'g>>,
    /// Fields of long keys of which no record is kept.
    pub(crate) dropped: Vec<&'g [u8]>,
    /// Records that may not be the newest of their keys; they are in `kept` too.
    doubtful: Vec<View<'g>>,
    /// Doubtful records that are no longer kept.
    settled: Vec<View<'g>>,
    pub(crate) cuts: Cuts,
    /// Damaged records whose keys are unknown, or that are longer than a record can be. They are in none of the
    /// others, and the leaf's successors are in doubt unless the keys are overwritten.
    pub(crate) hurt: Vec<View<'g>>,
    /// The number of other records that are lost: by a damaged length they end outside of the page.
    pub(crate) lost: i64,
    /// Their bytes, as far as they are known.
    pub(crate) lost_bytes: i64,
}

impl Contents<'_> {
    pub(crate) fn new() -> Self {
        Self {
            kept: take_items(),
            expired: Vec::new(),
            dropped: Vec::new(),
            doubtful: Vec::new(),
            settled: Vec::new(),
            cuts: Cuts::default(),
            hurt: Vec::new(),
            lost: 0,
            lost_bytes: 0,
        }
    }

    /// True if there are records that are in no successor.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0 || !self.hurt.is_empty()
    }
}

/// What happens to doubtful records when a [doubt](crate::tree::doubt) ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubtful {
    Dropped,
    Kept,
}

impl Tree {
    /// Rewrites a leaf, as one or as two, so that each has room for `len` bytes.
    pub(crate) fn rewrite(
        &self,
        guard: &Guard,
        locked: Locked<'_>,
        (key, len): (&[u8], usize),
        reserve: u32,
    ) -> Result<()> {
        self.ask_for_records(&locked);
        let is_lost = locked.leaf.doubt() > 0;
        let head = Head { is_lost, ..self.head_of(guard, locked.page)? };
        let contents = self.records_of(guard, &locked)?;
        if contents.has_lost() && !mutant!("bptree.rewrite.hurt") {
            // In a rewritten leaf they would be other keys, with valid checksums.
            return self.rewrite_damaged(guard, locked, (key, len, reserve)).map(drop);
        }
        self.rewrite_as(guard, locked, (key, len, reserve), (head, contents))
    }

    /// Rewrites a leaf and ends the doubt about its successors: without its doubtful records, or with them as
    /// sound.
    ///
    /// # Errors
    /// As [`Writer::make_room`](crate::write::Writer::make_room).
    pub(crate) fn rewrite_settled(
        &self,
        guard: &Guard,
        locked: Locked<'_>,
        key: &[u8],
        doubtful: Doubtful,
    ) -> Result<()> {
        self.ask_for_records(&locked);
        let head = Head { is_lost: false, ..self.head_of(guard, locked.page)? };
        let mut contents = self.records_of(guard, &locked)?;
        match doubtful {
            Doubtful::Dropped => {
                contents.kept.retain(|item| !item.header.doubtful);
                contents.settled = std::mem::take(&mut contents.doubtful);
            }
            Doubtful::Kept => {
                contents.kept.iter_mut().for_each(|item| item.header.doubtful = false);
                contents.doubtful.clear();
            }
        }
        // The keys of these records have been put again, or are absent.
        contents.settled.append(&mut contents.hurt);
        let fields = contents.settled.iter().map(View::key);
        contents.dropped.extend(fields.filter(|field| self.is_long(field)));
        self.rewrite_as(guard, locked, (key, 0, 0), (head, contents))
    }

    pub(crate) fn rewrite_as(
        &self,
        guard: &Guard,
        locked: Locked<'_>,
        (key, len, reserve): (&[u8], usize, u32),
        (head, contents): (Head, Contents<'_>),
    ) -> Result<()> {
        let Contents { kept: items, expired, settled, dropped, cuts, lost, lost_bytes, .. } =
            contents;
        let total: usize = items.iter().map(Item::len).sum();
        let capacity = self.space.page_size() as usize - head.len() - SUPERSEDED_MARK_LEN;
        let fill = self.fill_factor();
        let is_one =
            items.len() < 2 || (total + len <= fill.of(capacity) && items.len() <= fill.records);
        let (lens, reserve, count) = if is_one {
            (vec![items.len()], reserve.min(RESERVE) / 2, Count::Rewrites)
        } else {
            let lower = lower_half(&items, total / 2);
            (self.halves(locked.page, (&items, cuts), lower)?, reserve, Count::Splits)
        };
        let (mut lens, mut count) = (lens, count);
        let (edges, pages) = match self.successors_of(guard, &head, (&items, &lens), reserve) {
            // Where there is only one page, it has to suffice.
            Err(Error::NoSpace { .. }) if total + len <= capacity && items.len() < PLACES => {
                (lens, count) = (vec![items.len()], Count::Rewrites);
                self.successors_of(guard, &head, (&items, &lens), reserve.min(RESERVE) / 2)?
            }
            successors => successors?,
        };
        self.ask_for_successors(&locked, &pages);
        let head = Head { predecessor: Some(locked.life()), version: locked.held.given(), ..head };
        let images = self.write_images(head, (&items, &lens), (&pages, edges))?;
        give_items(items);
        if !mutant!("bptree.rewrite.fence") {
            self.fence()?;
        }
        self.mark_superseded(&[&locked], locked.held.given())?;
        self.cover();
        let old = locked.page;
        let successors = self.begin_all(images);
        self.count_out(&expired, &settled);
        self.counters.add_all([(Count::Records, -lost), (Count::LiveBytes, -lost_bytes)]);
        self.count_rewritten(locked.leaf, &successors);
        locked.held.free();
        self.lead_to_successors((old, key), &successors);
        self.counters.add(count, 1);
        // The write counts, whatever the result of the rest.
        let gone = expired.iter().chain(&settled);
        let retired = self.retire(old).and(self.retire_values(guard, gone));
        retired.and(self.retire_rests(guard, &dropped))
    }

    /// The bounds of the successors of a leaf, and pages for them.
    pub(crate) fn successors_of(
        &self,
        guard: &Guard,
        head: &Head,
        parts: (&[Item<'_>], &[usize]),
        reserve: u32,
    ) -> Result<(Vec<Edge<'_>>, Vec<u32>)> {
        let edges = self.edges(guard, head, parts, reserve)?;
        Ok((edges, self.pages.take(parts.1.len(), reserve)?))
    }

    /// The content of a locked leaf, in the order of keys: the records that are kept, and the expired records that
    /// can be forgotten once they are gone. Tombstones that are not held are in neither, unless the leaf is in
    /// doubt: then they state that a key is surely absent.
    pub(crate) fn records_of<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
    ) -> Result<Contents<'g>> {
        let is_in_doubt = locked.leaf.doubt() > 0;
        let contents = self.records_if(guard, locked, is_in_doubt)?;
        if is_in_doubt || !contents.has_lost() {
            return Ok(contents);
        }
        self.records_if(guard, locked, true)
    }

    /// The same for a leaf whose successors will be in doubt, or not.
    fn records_if<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
        is_in_doubt: bool,
    ) -> Result<Contents<'g>> {
        let mut contents = Contents::new();
        let page = locked.page;
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        for place in locked.leaf.used() {
            let Some(view) = View::of(&bytes, locked.leaf.offset(place)) else {
                contents.lost += 1;
                continue;
            };
            if view.len() as usize > self.record_len_max()
                || self.is_hurt_inline(view.key(), locked.leaf.tag(place))
            {
                contents.hurt.push(view);
            } else {
                self.take_over(guard, locked, view, is_in_doubt, &mut contents)?;
            }
        }
        if contents.has_lost() {
            // What they were counted as is unknown.
            self.counters.be_unsure();
        }
        contents.cuts = self.sort_items(guard, &mut contents.kept)?;
        Ok(contents)
    }

    /// Passes a record of a locked leaf on to its successors, if it is kept.
    ///
    /// # Errors
    /// If the fact that it has expired cannot be made durable.
    pub(crate) fn take_over<'g>(
        &self,
        guard: &Guard,
        locked: &Locked<'_>,
        view: View<'g>,
        is_in_doubt: bool,
        contents: &mut Contents<'g>,
    ) -> Result<()> {
        let within = (view.offset - self.space.start_of(locked.page)) as u32;
        let seed = coreplane_record::seed(self.seed, generation(locked.held.birth()), view.offset);
        let mut item = Item { source: Source::Record(view.original(seed)), ..Item::from(&view) };
        item.header.doubtful = is_doubtful(locked.leaf, view.header.doubtful, within);
        if item.header.doubtful {
            // Whether it has expired, or is a tombstone, is in doubt as well.
            contents.doubtful.push(view);
            contents.kept.push(item);
            return Ok(());
        }
        match self.is_live_in(guard, locked.page, locked.leaf, &view) {
            Ok(false) => {}
            // Whether it is a tombstone, or has expired, is unknown: it stays, damaged, until a write takes its place.
            Err(error) if !is_damage(&error) => return Err(error),
            _ => {
                contents.kept.push(item);
                return Ok(());
            }
        }
        if item.header.kind == Kind::Put {
            contents.expired.push(view);
        }
        if is_in_doubt || self.holds_tombstone(view.sequence()) {
            let header =
                Header { kind: Kind::Delete, large: false, expires_at: None, ..item.header };
            if header != item.header {
                item.source = Source::Caller;
            }
            contents.kept.push(Item { header, value: &[], ..item });
        } else if self.is_long(item.key) {
            contents.dropped.push(item.key);
        }
        Ok(())
    }

    /// Prefetches all records of a leaf at once: most of them are in no cache.
    pub(crate) fn ask_for_records(&self, locked: &Locked<'_>) {
        let start = self.space.start_of(locked.page);
        for place in locked.leaf.used() {
            let at = start + u64::from(locked.leaf.offset(place));
            (0..ASKED).for_each(|line| self.space.prefetch(at + line * LINE as u64));
        }
    }

    /// Prefetches, for writing, the directories of a leaf's successors in DRAM and the place of its superseded
    /// mark.
    pub(crate) fn ask_for_successors(&self, locked: &Locked<'_>, pages: &[u32]) {
        for page in pages {
            let leaf = self.leaves.get(*page as usize);
            leaf.prefetch();
            leaf.prefetch_order();
        }
        let tail = self.space.watermarks(locked.page).map_or(0, |(published, _)| published);
        let mark = self.space.start_of(locked.page) + u64::from(tail);
        self.space.prefetch_to_write(mark);
        self.space.prefetch_to_write(mark + LINE as u64);
    }

    /// Counts the `expired` records and the others in `gone` out: they are no longer there, and nothing is in their
    /// place. Called while the leaf is locked: a thread that has shut all leaves finds the counters exact.
    pub(crate) fn count_out(&self, expired: &[View<'_>], gone: &[View<'_>]) {
        self.counters.add(Count::Expired, expired.len() as i64);
        let records = expired.iter().chain(gone).filter(|view| view.header.kind == Kind::Put);
        for view in records {
            self.counters.add(Count::Records, -1);
            self.counters.add(Count::LiveBytes, -self.live_bytes(&Item::from(view)));
        }
    }

    /// Gives back the pages of the large values of removed records.
    pub(crate) fn retire_values<'v>(
        &self,
        guard: &Guard,
        gone: impl IntoIterator<Item = &'v View<'v>>,
    ) -> Result<()> {
        let is_large = |view: &&View<'_>| view.header.kind == Kind::Put && view.header.large;
        let mut retired = Ok(());
        for view in gone.into_iter().filter(is_large) {
            retired = retired.and(self.retire_overflow(guard, view));
        }
        retired
    }

    /// The least keys of the successors of a leaf, given its records, which are sorted, and the number of them in
    /// each successor. New rests of keys are durable after a fence.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn edges(
        &self,
        guard: &Guard,
        head: &Head,
        (items, lens): (&[Item<'_>], &[usize]),
        reserve: u32,
    ) -> Result<Vec<Edge<'_>>> {
        let mut edges = vec![Edge::of_old(&head.least)];
        let mut rest = items;
        for len in lens {
            let (mine, others) = rest.split_at(*len);
            if let (Some(lower), Some(upper)) = (mine.last(), others.first()) {
                edges.push(self.edge_between(guard, (lower.key, upper.key), reserve)?);
            }
            rest = others;
        }
        Ok(edges)
    }

    /// Writes the successors of locked leaves to free pages, each with its least key; `head` is that of a single
    /// successor. Durable after a fence. Once the old leaf is gone, the images would be taken for leaves: from here
    /// on nothing may be refused, so that every step that takes pages comes before.
    ///
    /// # Errors
    /// If damaged lengths of records make one too long for its page, before any is written; if the medium fails.
    pub(crate) fn write_images<'s>(
        &self,
        mut head: Head,
        (items, lens): (&[Item<'_>], &[usize]),
        (pages, edges): (&[u32], Vec<Edge<'s>>),
    ) -> Result<Vec<Image<'s>>> {
        let bounds = edges.iter().skip(1).map(|edge| Some(edge.field.clone()));
        let bounds: Vec<_> = bounds.chain([head.bound.take()]).collect();
        let mut rest = items;
        for ((len, edge), bound) in lens.iter().zip(&edges).zip(&bounds) {
            let (mine, others) = rest.split_at(*len);
            let head_len = Head::len_of(&edge.field, bound.as_deref());
            let image_len = head_len + mine.iter().map(Item::len).sum::<usize>();
            if image_len + SUPERSEDED_MARK_LEN > self.space.page_size() as usize {
                pages.iter().for_each(|page| self.pages.leave(*page));
                return Err(Error::Unusable(format!("{image_len} bytes are too long for a leaf")));
            }
            rest = others;
        }
        let mut images = Vec::with_capacity(lens.len());
        let mut rest = items;
        let mut pen = self.pen().take();
        for (((len, page), edge), bound) in lens.iter().zip(pages).zip(edges).zip(bounds) {
            let (mine, others) = rest.split_at(*len);
            let head = Head { bound, ..head.clone() };
            images.push(self.write_image_with(&mut pen, *page, (head, edge), mine)?);
            rest = others;
        }
        *self.pen() = pen;
        Ok(images)
    }

    /// Turns durable images into leaves that nothing leads to yet: returns the least key of each, empty for one in
    /// the place of another, and its page.
    pub(crate) fn begin_all(&self, images: Vec<Image<'_>>) -> Vec<Bound> {
        let begin = |image: Image<'_>| {
            let bound = (image.edge.whole.clone(), image.life.page);
            self.begin(image);
            bound
        };
        images.into_iter().map(begin).collect()
    }

    /// Puts leaves in the place of `old`, which serves `key` and which no thread gets past: it is dead, or
    /// changing. It stays in the tree until the last change, for all keys that do not lead to their successor yet:
    /// a successor that served keys of the next one for a moment would not find them, and would lose writes to
    /// them.
    pub(crate) fn lead_to_successors(&self, (old, key): (u32, &[u8]), successors: &[Bound]) {
        match successors {
            [] => {}
            [(_, only)] => self.inner.replace(key, *only),
            [(_, first), (separator, second), others @ ..] => {
                for (separator, successor) in others.iter().rev() {
                    self.inner.split(old, separator, *successor);
                }
                self.inner.split(*first, separator, *second);
            }
        }
    }

    /// Makes the first leaf of a new store; durable when it returns.
    pub(crate) fn write_first(&self, page: u32, (head, least): (Head, Edge<'_>)) -> Result<()> {
        let image = self.write_image(page, (head, least), &[])?;
        self.fence()?;
        self.begin(image);
        Ok(())
    }

    /// Marks leaves as dead, all of them or none.
    pub(crate) fn mark_superseded(&self, leaves: &[&Locked<'_>], version: u64) -> Result<()> {
        let part = |locked: &&Locked<'_>| NewPart {
            life: locked.life(),
            items: SmallVec::new(),
            is_superseded: true,
        };
        let parts: Vec<NewPart<'_>> = leaves.iter().map(part).collect();
        self.append_commit(&parts, version).map(drop)
    }
}

/// The number of records, of two or more, for the lower one of two leaves: as near to `half` of the bytes as
/// possible, so that neither has more than half and half of the longest record.
fn lower_half(items: &[Item<'_>], half: usize) -> usize {
    let mut bytes = 0;
    let upper = items.iter().take_while(|item| {
        let middle = bytes + item.len() / 2;
        bytes += item.len();
        middle < half
    });
    upper.count().clamp(1, items.len() - 1)
}
