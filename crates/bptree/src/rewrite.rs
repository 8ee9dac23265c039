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
//! Two leaves become one in the same way: their farewells count together or not at all
//! ([`ring`](crate::ring)), as every farewell is a part of a ring, mostly of its own.
//!
//! Where a fence is a sync, the third step does not wait for the second: what is written to the new
//! leaves is covered by no earlier sync than the farewell, and until that has ended the old page
//! is kept.

use crate::counters::Count;
use crate::doubt::is_doubtful;
use crate::hurt::Cuts;
use crate::image::{Image, Item, Source, give_items, take_items};
use crate::inner::{Bound, word_at};
use crate::keys::Edge;
use crate::leaf::{Head, Life, PLACES, generation};
use crate::lock::Locked;
use crate::pages::RESERVE;
use crate::ring::NewPart;
use crate::store::{FAREWELL, Store};
use coreplane_engine::{Error, Result};
use coreplane_pmem::LINE;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

/// Lines of a record that are asked for before its length is known.
const ASKED: u64 = 3;

/// What is in a leaf.
pub(crate) struct Contents<'g> {
    /// In the order of keys. What has expired is a tombstone, if those are held.
    pub(crate) kept: Vec<Item<'g>>,
    /// Records that are kept no more.
    pub(crate) expired: Vec<View<'g>>,
    /// Fields of long keys of which nothing is kept.
    pub(crate) dropped: Vec<&'g [u8]>,
    /// It is in doubt whether these are the newest of their keys; they are kept too.
    doubtful: Vec<View<'g>>,
    /// Of those the ones that are kept no more.
    settled: Vec<View<'g>>,
    pub(crate) cuts: Cuts,
    /// Records with short keys that are not those that were written: nobody can tell whose they are. They are in
    /// none of the others, and the leaf's heirs are in doubt unless they are written over.
    pub(crate) hurt: Vec<View<'g>>,
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
        }
    }
}

impl Store {
    /// Sees to it that the leaf that serves `key` has room for a record of `len` bytes. For a
    /// tombstone it takes the last pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn make_room(&self, key: &[u8], len: usize, kind: Kind) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, 0)?;
        if self.room(&locked) >= len && locked.leaf.vacancy().is_some() {
            return Ok(());
        }
        let reserve = if kind == Kind::Delete { 0 } else { RESERVE };
        self.rewrite(&guard, locked, (key, len), reserve)
    }

    /// Writes the leaf anew that serves `key`, if anything in it has expired.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn sweep_at(&self, key: &[u8]) -> Result<()> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, 0)?;
        self.ask_for_records(&locked);
        if self.records_of(&guard, &locked)?.expired.is_empty() {
            return Ok(());
        }
        self.rewrite(&guard, locked, (key, 0), 0)
    }

    /// Writes a leaf anew, as one or as two, so that each has room for `len` bytes.
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
        if !contents.hurt.is_empty() && !mutant!("bptree.rewrite.hurt") {
            // In a leaf that is written anew they would be other keys, and soundly so.
            return self.rewrite_damaged(guard, locked, (key, len, reserve)).map(drop);
        }
        self.rewrite_as(guard, locked, (key, len, reserve), (head, contents))
    }

    /// Writes a leaf anew without what is doubtful in it: its heirs are in doubt no more.
    ///
    /// # Errors
    /// As [`Store::make_room`].
    pub(crate) fn rewrite_settled(
        &self,
        guard: &Guard,
        locked: Locked<'_>,
        key: &[u8],
    ) -> Result<()> {
        self.ask_for_records(&locked);
        let head = Head { is_lost: false, ..self.head_of(guard, locked.page)? };
        let mut contents = self.records_of(guard, &locked)?;
        contents.kept.retain(|item| !item.header.doubtful);
        contents.settled = std::mem::take(&mut contents.doubtful);
        // Whose they were has been put anew, or is not there.
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
        let Contents { kept: items, expired, settled, dropped, cuts, .. } = contents;
        let total: usize = items.iter().map(Item::len).sum();
        let capacity = self.space.page_size() as usize - head.len() - FAREWELL;
        let is_one =
            items.len() < 2 || (total + len <= capacity * 3 / 4 && items.len() <= PLACES * 3 / 4);
        let (lens, reserve, count) = if is_one {
            (vec![items.len()], reserve / 2, Count::Rewrites)
        } else {
            let lower = lower_half(&items, total / 2);
            (self.halves(locked.page, (&items, cuts), lower)?, reserve, Count::Splits)
        };
        let edges = self.edges(guard, &head, (&items, &lens), reserve)?;
        let pages = self.pages.take(lens.len(), reserve)?;
        self.ask_for_heirs(&locked, &pages);
        let images = self.write_images((&locked, head), (&items, &lens), (&pages, edges))?;
        give_items(items);
        if !mutant!("bptree.rewrite.fence") {
            self.fence()?;
        }
        self.say_farewell(&[&locked], locked.held.given())?;
        self.cover();
        let old = locked.page;
        let heirs = self.begin_all(images);
        self.count_out(&expired, &settled);
        locked.held.bury();
        self.lead_to_heirs((old, key), &heirs);
        self.counters.add(count, 1);
        // What was written counts, whatever comes of the rest.
        let gone = expired.iter().chain(&settled);
        let retired = self.retire(old).and(self.retire_values(guard, gone));
        retired.and(self.retire_rests(guard, &dropped))
    }

    /// What a locked leaf has, in the order of keys: what is kept, and what has expired and can be
    /// forgotten when that is there no more. Tombstones that nobody holds are in neither, unless the
    /// leaf is in doubt: then they say that a key is surely not there.
    pub(crate) fn records_of<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
    ) -> Result<Contents<'g>> {
        let is_in_doubt = locked.leaf.doubt() > 0;
        let contents = self.records_if(guard, locked, is_in_doubt)?;
        if is_in_doubt || contents.hurt.is_empty() {
            return Ok(contents);
        }
        self.records_if(guard, locked, true)
    }

    /// The same of a leaf whose heirs will be in doubt, or not.
    fn records_if<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
        is_in_doubt: bool,
    ) -> Result<Contents<'g>> {
        let mut contents = Contents::new();
        let page = locked.page;
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        let mut used = locked.leaf.used();
        while used != 0 {
            let place = used.trailing_zeros() as usize;
            let within = locked.leaf.offset(place);
            used &= used - 1;
            let Some(view) = View::of(&bytes, within) else {
                return Err(self.no_record(page, within));
            };
            if self.is_hurt_inline(view.key(), locked.leaf.tag(place)) {
                contents.hurt.push(view);
            } else {
                self.take_over(locked, view, is_in_doubt, &mut contents)?;
            }
        }
        contents.cuts = self.sort_items(guard, &mut contents.kept)?;
        Ok(contents)
    }

    /// Takes a record of a locked leaf over to its heirs, if it is kept.
    ///
    /// # Errors
    /// If it cannot be made durable that it has expired.
    pub(crate) fn take_over<'g>(
        &self,
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
        if item.header.kind == Kind::Put && !self.is_expired(&view)? {
            contents.kept.push(item);
            return Ok(());
        }
        if item.header.kind == Kind::Put {
            contents.expired.push(view);
        }
        if is_in_doubt || self.holds_tombstone(view.sequence()) {
            let header =
                Header { kind: Kind::Delete, large: false, expires_at: None, ..item.header };
            // The lengths of one that is damaged may give a tombstone a value.
            if header != item.header || !item.value.is_empty() {
                // With a checksum of its own a copy of what is damaged would look sound.
                let is_sound = view.check(seed).is_ok();
                item.source = if is_sound { Source::Caller } else { Source::Damaged };
            }
            contents.kept.push(Item { header, value: &[], ..item });
        } else if self.is_long(item.key) {
            contents.dropped.push(item.key);
        }
        Ok(())
    }

    /// Asks for all records of a leaf at once: most of them are in no cache.
    pub(crate) fn ask_for_records(&self, locked: &Locked<'_>) {
        let start = self.space.start_of(locked.page);
        let mut used = locked.leaf.used();
        while used != 0 {
            let at = start + u64::from(locked.leaf.offset(used.trailing_zeros() as usize));
            (0..ASKED).for_each(|line| self.space.prefetch(at + line * LINE as u64));
            used &= used - 1;
        }
    }

    /// Asks for what a leaf's farewell and its heirs will be written to in DRAM and at its end.
    fn ask_for_heirs(&self, locked: &Locked<'_>, pages: &[u32]) {
        for page in pages {
            let leaf = self.leaves.get(*page as usize);
            leaf.prefetch();
            leaf.prefetch_order();
        }
        let tail = self.space.watermarks(locked.page).map_or(0, |(published, _)| published);
        let farewell = self.space.start_of(locked.page) + u64::from(tail);
        self.space.prefetch_to_write(farewell);
        self.space.prefetch_to_write(farewell + LINE as u64);
    }

    /// Records that had expired are there no more, and nothing in their place, nor in that of others that are
    /// `gone`. To be counted while the leaf is locked: who has shut all leaves finds counted what is there.
    pub(crate) fn count_out(&self, expired: &[View<'_>], gone: &[View<'_>]) {
        self.counters.add(Count::Expired, expired.len() as i64);
        let records = expired.iter().chain(gone).filter(|view| view.header.kind == Kind::Put);
        for view in records {
            self.counters.add(Count::Records, -1);
            self.counters.add(Count::LiveBytes, -self.live_bytes(&Item::from(view)));
        }
    }

    /// Gives back the pages of the large values of records that are there no more.
    pub(crate) fn retire_values<'v>(
        &self,
        guard: &Guard,
        gone: impl IntoIterator<Item = &'v View<'v>>,
    ) -> Result<()> {
        let is_large = |view: &&View<'_>| view.header.kind == Kind::Put && view.header.large;
        let mut retired = Ok(());
        for view in gone.into_iter().filter(is_large) {
            retired = retired.and(self.retire_pieces(guard, view));
        }
        retired
    }

    /// The least keys of the heirs of a leaf: of its records, which are sorted, and how many of them
    /// are in each heir. All that is new of them is durable after a fence.
    ///
    /// # Errors
    /// [`Error::NoSpace`], if a rest is damaged, and if the medium fails.
    pub(crate) fn edges(
        &self,
        guard: &Guard,
        head: &Head,
        (items, lens): (&[Item<'_>], &[usize]),
        reserve: u32,
    ) -> Result<Vec<Edge<'_>>> {
        let whole = self.whole_key(guard, &head.least)?.into();
        let mut edges = vec![Edge { whole, field: head.least.clone(), rest: None }];
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

    /// Writes the heirs of a locked leaf to free pages, each with its least key. Durable after a
    /// fence. They would be taken for leaves once the leaf is gone: from here on nothing may be
    /// refused, so all that takes pages is done before.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn write_images<'s>(
        &self,
        (locked, mut head): (&Locked<'_>, Head),
        (items, lens): (&[Item<'_>], &[usize]),
        (pages, edges): (&[u32], Vec<Edge<'s>>),
    ) -> Result<Vec<Image<'s>>> {
        head.predecessor = Some(Life { page: locked.page, birth: head.birth });
        head.version = locked.held.given();
        let bounds = edges.iter().skip(1).map(|edge| Some(edge.field.clone()));
        let bounds: Vec<_> = bounds.chain([head.bound.take()]).collect();
        let mut images = Vec::with_capacity(lens.len());
        let mut rest = items;
        let mut pen = self.take_pen();
        for (((len, page), edge), bound) in lens.iter().zip(pages).zip(edges).zip(bounds) {
            let (mine, others) = rest.split_at(*len);
            let head = Head { bound, ..head.clone() };
            images.push(self.write_image_with(&mut pen, *page, (head, edge), mine)?);
            rest = others;
        }
        self.desk().pen = pen;
        Ok(images)
    }

    /// Lets durable images be leaves that nothing leads to yet: of each the least key, and the page.
    pub(crate) fn begin_all(&self, images: Vec<Image<'_>>) -> Vec<Bound> {
        let begin = |image: Image<'_>| {
            let bound = (image.edge.whole.clone(), image.life.page);
            self.begin(image);
            bound
        };
        images.into_iter().map(begin).collect()
    }

    /// Puts leaves in the place of `old`, which serves `key` and which nobody gets past: it is dead, or
    /// changing. It stays in the tree until the last change, for all keys that do not lead to their heir
    /// yet: an heir that served keys of the next one for a moment would deny them, and lose what is
    /// written to it.
    pub(crate) fn lead_to_heirs(&self, (old, key): (u32, &[u8]), heirs: &[Bound]) {
        match heirs {
            [] => {}
            [(_, only)] => self.inner.replace(key, *only),
            [(_, first), (separator, second), others @ ..] => {
                for (separator, heir) in others.iter().rev() {
                    self.inner.split(old, separator, *heir);
                }
                self.inner.split(*first, separator, *second);
            }
        }
    }

    /// Makes the leaf that a new store begins with; durable when it returns.
    pub(crate) fn write_first(&self, page: u32, (head, least): (Head, Edge<'_>)) -> Result<()> {
        let image = self.write_image(page, (head, least), &[])?;
        self.fence()?;
        self.begin(image);
        Ok(())
    }

    /// Says that leaves are dead, all of them or none.
    pub(crate) fn say_farewell(&self, leaves: &[&Locked<'_>], version: u64) -> Result<()> {
        let part = |locked: &&Locked<'_>| NewPart {
            life: locked.life(),
            items: Vec::new(),
            is_farewell: true,
        };
        let parts: Vec<NewPart<'_>> = leaves.iter().map(part).collect();
        self.append_ring(&parts, version).map(drop)
    }

    /// True if a tombstone is to be kept. One that is not is noted as forgotten.
    pub(crate) fn holds_tombstone(&self, sequence: u64) -> bool {
        let is_held = sequence > self.held_tombstones.load(Ordering::Acquire);
        if is_held && !mutant!("bptree.rewrite.tombstones") {
            return true;
        }
        self.forgotten_tombstones.fetch_max(sequence, Ordering::AcqRel);
        false
    }

    /// Gives a page back, once no reader can hold it any more, and what it was is needed no more.
    pub(crate) fn retire(&self, page: u32) -> Result<()> {
        if self.pages.give_back(page) {
            return Ok(());
        }
        Err(Error::Unusable(format!("page {page} has a writer, and should be dead")))
    }

    /// As [`Store::retire`], of all of them, and says what went wrong first.
    pub(crate) fn retire_all(&self, pages: impl IntoIterator<Item = u32>) -> Result<()> {
        let mut retired = Ok(());
        for page in pages {
            retired = retired.and(self.retire(page));
        }
        retired
    }
}

/// Sorts records by their keys, most of which differ in their first bytes: those are compared as
/// numbers, of which the last bits say which record it is, and the records moved once.
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

/// How many of two or more records are to be in the lower one of two leaves: as near to `half` of the
/// bytes as can be, so that neither has more than half and half of the longest record.
fn lower_half(items: &[Item<'_>], half: usize) -> usize {
    let mut bytes = 0;
    let upper = items.iter().take_while(|item| {
        let middle = bytes + item.len() / 2;
        bytes += item.len();
        middle < half
    });
    upper.count().clamp(1, items.len() - 1)
}

/// The shortest key that is above `lower` and not above `upper`, which is greater than that.
pub(crate) fn separator(lower: &[u8], upper: &[u8]) -> Box<[u8]> {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    upper[..(common + 1).min(upper.len())].into()
}
