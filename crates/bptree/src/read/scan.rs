//! Scans: leaf after leaf, each as it was at one moment.
//!
//! The places of a leaf are in no order, unless it was rewritten as a whole. The first scan of a leaf after a
//! change sorts them and leaves the order for later scans.
//!
//! A scan copies the places of a leaf's records, and checks that the leaf has not changed meanwhile. The records
//! themselves do not change as long as its guard lives: they are shown in place.
//!
//! From one leaf to the next a scan descends the tree: the least key of the next leaf is the bound of this one,
//! however either has changed meanwhile. It descends before it shows the records of this leaf, so that the lines of
//! the next one have arrived when it gets there.

use crate::inner::{Descent, word_at};
use crate::leaf::{Directory, PLACES, Version};
use crate::read::Reader;
use crate::read::get::{LINES, TRIES, Whole};
use crate::volume::keys::Parts;
use coreplane_engine::{Entry, Error, Horizon, Record, Result, Ticket, Value};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageBytes, epoch};
use coreplane_record::{HEADER, Kind, View};
use std::borrow::Cow;
use std::cmp::Ordering;

/// The number of records that are prefetched ahead of the one that is shown.
const AHEAD: usize = 6;

/// Probes of a search that are prefetched before the first is known: those of three steps.
const PROBES: usize = 8;

/// Lines of a page that hold its head, and mostly its first record.
const HEAD_LINES: u64 = 4;

/// The position of a scan.
#[derive(Clone, Copy)]
enum Reach<'k> {
    /// At this key, on its way up.
    From(&'k [u8]),
    /// Below this key (or behind the last), on its way down.
    Below(Option<&'k [u8]>),
}

/// A leaf at one moment.
struct Snapshot<'g> {
    leaf: &'g Directory,
    version: Version,
    birth: u64,
    bytes: PageBytes<'g>,
    least: Cow<'g, [u8]>,
    bound: Option<Cow<'g, [u8]>>,
    /// Offsets in the page of its records, in the order of their keys.
    offsets: [u32; PLACES],
    len: usize,
    /// The long keys, by the offsets of their records. They are read at that moment: later their rests may be gone.
    longs: Vec<(u32, Parts<'g>)>,
    /// The fields of keys whose rests are damaged: the place of their records in the order is unknown.
    hurt: Vec<(u64, &'g [u8])>,
}

/// Long keys, and the fields of those whose rests are damaged.
type LongKeys<'g> = (Vec<(u32, Parts<'g>)>, Vec<(u64, &'g [u8])>);

/// The result of showing a record.
enum Shown {
    /// It was not shown: a tombstone, or it has expired.
    Not,
    Yes,
    /// The last one that the visitor asked for.
    Last,
    /// Its pages are gone: there is a newer record.
    Gone,
}

impl<'g> Snapshot<'g> {
    fn offsets(&self) -> &[u32] {
        &self.offsets[..self.len]
    }

    #[inline]
    fn prefetch(&self, offset: u32, lines: u32) {
        (0..lines).for_each(|line| self.bytes.prefetch(offset + 64 * line));
    }

    // Inlined as [`View::of`] is.
    #[inline(always)]
    fn view(&self, offset: u32) -> Result<View<'g>> {
        View::of(&self.bytes, offset).ok_or_else(|| no_record(&self.bytes, offset))
    }

    /// Compares the key of a record with `key`.
    #[inline]
    fn compare(&self, view: &View<'g>, key: &[u8]) -> Ordering {
        match self.parts(view) {
            None => view.key().cmp(key),
            Some(parts) => parts.cmp_key(key),
        }
    }

    /// The key of a record.
    #[inline]
    fn key(&self, view: &View<'g>) -> Cow<'g, [u8]> {
        self.parts(view).map_or(Cow::Borrowed(view.key()), Parts::whole)
    }

    /// The key of a record, if it is long.
    #[inline]
    fn parts(&self, view: &View<'g>) -> Option<&Parts<'g>> {
        if self.longs.is_empty() {
            return None;
        }
        let offset = (view.offset - self.bytes.start()) as u32;
        self.longs.iter().find(|(at, _)| *at == offset).map(|(_, parts)| parts)
    }

    /// The number of records below a key.
    fn below(&self, key: &[u8]) -> Result<usize> {
        if *key == *self.least {
            return Ok(0);
        }
        let offsets = self.offsets();
        for probe in 1..PROBES {
            let place = offsets.get(offsets.len() * probe / PROBES);
            place.into_iter().for_each(|offset| self.prefetch(*offset, 1));
        }
        let (mut from, mut to) = (0, offsets.len());
        while from < to {
            let middle = from.midpoint(to);
            let order = self.compare(&self.view(offsets[middle])?, key);
            if order.is_lt() { from = middle + 1 } else { to = middle }
        }
        Ok(from)
    }
}

#[cold]
fn no_record(bytes: &PageBytes<'_>, offset: u32) -> Error {
    let offset = bytes.start() + u64::from(offset);
    Error::Corrupt { offset, what: "no record where the leaf has one".to_owned() }
}

#[cold]
fn no_progress(bytes: &PageBytes<'_>) -> Error {
    let what = "the keys of a leaf end where those before it do".to_owned();
    Error::Corrupt { offset: bytes.start(), what }
}

impl Reader {
    /// Shows the records from `start` up to `end`, until `visit` says no or `limit` were shown.
    ///
    /// # Errors
    /// If a leaf is damaged, or in doubt.
    pub(crate) fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut from = Cow::Borrowed(start);
        let (mut shown, mut lost) = (0, 0);
        let mut way = None;
        'leaves: while shown < limit {
            let guard = epoch::pin();
            let snapshot = self.snapshot(&guard, Reach::From(&from), way.take())?;
            if snapshot.bound.as_deref().is_some_and(|bound| *bound <= *from) {
                return Err(no_progress(&snapshot.bytes));
            }
            let offsets = &snapshot.offsets()[snapshot.below(&from)?..];
            let hurt = self.hurt_in(&snapshot, &from, end).min_by_key(|it| it.1);
            let first = offsets.iter().take(AHEAD.min(limit - shown));
            first.for_each(|offset| snapshot.prefetch(*offset, LINES));
            let bound = snapshot.bound.as_deref();
            if let Some(bound) = bound.filter(|_| limit - shown > offsets.len()) {
                way = Some(self.set_out(Reach::From(bound)));
            }
            for (at, offset) in offsets.iter().enumerate() {
                match (offsets.get(at + AHEAD), &way) {
                    (Some(ahead), _) => snapshot.prefetch(*ahead, LINES),
                    (None, Some(way)) => self.ask_for_record(way, at + AHEAD - offsets.len()),
                    _ => {}
                }
                let view = snapshot.view(*offset)?;
                if end.is_some_and(|end| snapshot.compare(&view, end).is_ge()) {
                    break;
                }
                if hurt.is_some_and(|it| snapshot.compare(&view, self.prefix_of(it.1)).is_ge()) {
                    break;
                }
                match self.show(&guard, &snapshot, view, (&mut lost, visit))? {
                    Shown::Not => {}
                    Shown::Yes => shown += 1,
                    Shown::Last => return Ok(()),
                    Shown::Gone => {
                        // The key of a damaged record may be above the leaf.
                        let key = snapshot.key(&view);
                        let next = bound.map_or(&*key, |bound| bound.min(&key));
                        from = Cow::Owned(next.to_vec());
                        way = None;
                        continue 'leaves;
                    }
                }
                if shown == limit {
                    return Ok(());
                }
            }
            if let Some((offset, field)) = hurt {
                return Err(self.damaged_key(&guard, offset, field));
            }
            match bound {
                Some(bound) if end.is_none_or(|end| bound < end) => {
                    from = Cow::Owned(bound.to_vec());
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// As [`Reader::scan`], from `end` down to `start`.
    ///
    /// # Errors
    /// If a leaf is damaged, or in doubt.
    pub(crate) fn scan_back(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut to = end.map(Cow::Borrowed);
        let (mut shown, mut lost) = (0, 0);
        'leaves: while shown < limit {
            let guard = epoch::pin();
            let snapshot = self.snapshot(&guard, Reach::Below(to.as_deref()), None)?;
            if to.as_deref().is_some_and(|to| *snapshot.least >= *to && !to.is_empty()) {
                return Err(no_progress(&snapshot.bytes));
            }
            let below = to.as_deref().map(|to| snapshot.below(to)).transpose()?;
            let offsets = &snapshot.offsets()[..below.unwrap_or(snapshot.len)];
            let hurt = self.hurt_in(&snapshot, start, to.as_deref()).max_by_key(|it| it.1);
            let first = offsets.iter().rev().take(AHEAD.min(limit - shown));
            first.for_each(|offset| snapshot.prefetch(*offset, LINES));
            for (at, offset) in offsets.iter().enumerate().rev() {
                if let Some(ahead) = at.checked_sub(AHEAD) {
                    snapshot.prefetch(offsets[ahead], LINES);
                }
                let view = snapshot.view(*offset)?;
                if snapshot.compare(&view, start).is_lt() {
                    break;
                }
                if hurt.is_some_and(|it| self.prefix_of(view.key()) <= self.prefix_of(it.1)) {
                    break;
                }
                match self.show(&guard, &snapshot, view, (&mut lost, visit))? {
                    Shown::Not => {}
                    Shown::Yes => shown += 1,
                    Shown::Last => return Ok(()),
                    Shown::Gone => {
                        // Below the record that was shown last.
                        if let Some(last) = offsets.get(at + 1) {
                            let last = snapshot.key(&snapshot.view(*last)?).into_owned();
                            to = Some(Cow::Owned(last));
                        }
                        continue 'leaves;
                    }
                }
                if shown == limit {
                    return Ok(());
                }
            }
            if let Some((offset, field)) = hurt {
                return Err(self.damaged_key(&guard, offset, field));
            }
            if *snapshot.least <= *start {
                return Ok(());
            }
            to = Some(Cow::Owned(snapshot.least.to_vec()));
        }
        Ok(())
    }

    /// The keys of a leaf whose rests are damaged and that may be from `start` on and below `end`.
    #[inline]
    fn hurt_in<'g>(
        &self,
        snapshot: &Snapshot<'g>,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> impl Iterator<Item = (u64, &'g [u8])> {
        let may_be = move |(_, field): &&(u64, &'g [u8])| {
            let prefix = self.prefix_of(field);
            prefix >= self.prefix_of(start) && end.is_none_or(|end| prefix < end)
        };
        snapshot.hurt.iter().filter(may_be).copied()
    }

    // Inlines the view, as [`View::of`] does.
    #[inline(always)]
    fn show<'g>(
        &self,
        guard: &'g Guard,
        snapshot: &Snapshot<'g>,
        view: View<'g>,
        (lost, visit): (&mut usize, &mut dyn FnMut(Entry<'_>) -> bool),
    ) -> Result<Shown> {
        if view.header.kind != Kind::Put || self.is_expired(&view)? {
            return Ok(Shown::Not);
        }
        let checked =
            if self.check_reads { self.check(guard, &view, snapshot.birth) } else { Ok(()) };
        if !view.header.large && checked.is_ok() {
            let record = Some(Record {
                value: Value::Whole(view.value()),
                sequence: view.sequence(),
                expires_at: view.header.expires_at,
                ticket: Ticket::DURABLE,
            });
            let key = snapshot.key(&view);
            let entry = Entry { key: &key, record, sequence: view.sequence() };
            return Ok(if visit(entry) { Shown::Yes } else { Shown::Last });
        }
        let whole: Whole<'_> = match checked.and_then(|()| self.whole(guard, view)) {
            Ok(whole) => whole,
            // The pages of a large value, or of a long key, go when its record is replaced.
            Err(_) if !snapshot.leaf.is_at(snapshot.version) => {
                return self.show_gone(guard, &snapshot.key(&view), (lost, visit));
            }
            Err(error) => return Err(error),
        };
        Ok(if visit(whole.entry(&snapshot.key(&view))) { Shown::Yes } else { Shown::Last })
    }

    /// Has the scan look again at a leaf in which the pages of a record are gone; a scan that has lost many shows
    /// the newest record of the key.
    #[cold]
    fn show_gone(
        &self,
        guard: &Guard,
        key: &[u8],
        (lost, visit): (&mut usize, &mut dyn FnMut(Entry<'_>) -> bool),
    ) -> Result<Shown> {
        *lost += 1;
        if *lost <= TRIES {
            return Ok(Shown::Gone);
        }
        let Some(newest) = self.newest(guard, key)? else { return Ok(Shown::Not) };
        Ok(if visit(newest.entry(key)) { Shown::Yes } else { Shown::Last })
    }

    /// Descends to the next leaf of a scan, and prefetches the lines that a look at it reads.
    fn set_out(&self, reach: Reach<'_>) -> Descent {
        let descent = match reach {
            Reach::From(key) => self.inner.descend(key),
            Reach::Below(key) => self.inner.descend_before(key),
        };
        self.leaves.get(descent.leaf as usize).prefetch_order();
        self.space.prefetch_page(descent.leaf);
        let start = self.space.start_of(descent.leaf);
        (0..HEAD_LINES).for_each(|line| self.space.prefetch(start + 64 * line));
        descent
    }

    /// Prefetches the record that is likely to be the `at`-th of a leaf.
    #[inline]
    fn ask_for_record(&self, way: &Descent, at: usize) {
        let offset = self.leaves.get(way.leaf as usize).likely_offset(at);
        let start = self.space.start_of(way.leaf) + u64::from(offset % self.space.page_size());
        (0..u64::from(LINES)).for_each(|line| self.space.prefetch(start + 64 * line));
    }

    /// The leaf at the position of a scan, as it is at one moment; `way` is the descent to it, if there was one
    /// already.
    fn snapshot<'g>(
        &'g self,
        guard: &'g Guard,
        reach: Reach<'_>,
        mut way: Option<Descent>,
    ) -> Result<Snapshot<'g>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let descent = way.take().unwrap_or_else(|| self.set_out(reach));
            let Some((leaf, version)) = self.arrive(&descent) else {
                self.load_leaf_to_read(descent.leaf)?;
                continue;
            };
            // Otherwise many long keys might not be read between two writes.
            let held = if tries <= TRIES { None } else { leaf.try_lock(version) };
            let snapshot = self.read_snapshot(guard, descent.leaf, (leaf, version));
            let (rests_on, is_in_doubt) = (self.rests_on_leaf(descent.leaf), leaf.doubt() > 0);
            if leaf.is_at(version) {
                drop(held);
                if is_in_doubt {
                    return Err(self.in_doubt(guard, descent.leaf));
                }
                if !rests_on.is_durable() {
                    self.wait_durable(&Horizon::from(rests_on))?;
                }
                return snapshot;
            }
        }
    }

    fn read_snapshot<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        (leaf, version): (&'g Directory, Version),
    ) -> Result<Snapshot<'g>> {
        let not_a_leaf = || self.not_a_leaf(page);
        let bytes = self.space.page_bytes(guard, page).ok_or_else(not_a_leaf)?;
        let (least, bound) = self.bounds_in(guard, &bytes)?;
        let mut places = [0; PLACES];
        let ordered = leaf.ordered(&mut places);
        let len = leaf.used().count();
        if ordered < len {
            self.sort(guard, &bytes, (leaf, version), &mut places[..len])?;
        }
        let mut offsets = [0; PLACES];
        for (offset, place) in offsets.iter_mut().zip(&places).take(len) {
            *offset = leaf.offset(usize::from(*place) % PLACES);
        }
        let (longs, hurt) = if leaf.has_long() {
            self.long_keys(guard, &bytes, &mut offsets[..len])?
        } else {
            (Vec::new(), Vec::new())
        };
        let birth = leaf.birth();
        Ok(Snapshot { leaf, version, birth, bytes, least, bound, offsets, len, longs, hurt })
    }

    /// The long keys of the records at these places, and the fields of damaged ones; puts the places in the order
    /// of the keys as they are now. The order that was kept may be from before the damage, or was made with other
    /// checks: a search in it would miss keys.
    #[cold]
    fn long_keys<'g>(
        &'g self,
        guard: &'g Guard,
        bytes: &PageBytes<'g>,
        offsets: &mut [u32],
    ) -> Result<LongKeys<'g>> {
        let (mut keys, mut hurt) = (Vec::with_capacity(offsets.len()), Vec::new());
        for offset in &*offsets {
            let view = View::of(bytes, *offset).ok_or_else(|| no_record(bytes, *offset))?;
            let (parts, is_hurt) = self.parts_or_prefix(guard, view.key(), self.check_reads)?;
            keys.push((*offset, parts, self.is_long(view.key())));
            let is_hurt = is_hurt && view.header.kind == Kind::Put;
            hurt.extend(is_hurt.then_some((view.offset, view.key())));
        }
        if !keys.is_sorted_by(|a, b| a.1.cmp(&b.1).is_le()) {
            keys.sort_unstable_by(|a, b| a.1.cmp(&b.1));
            offsets.iter_mut().zip(&keys).for_each(|(to, key)| *to = key.0);
        }
        let longs = keys.into_iter().filter(|it| it.2).map(|(offset, parts, _)| (offset, parts));
        Ok((longs.collect(), hurt))
    }

    /// Sorts the places of a leaf by their keys, which mostly differ in their first bytes.
    #[inline(never)]
    fn sort(
        &self,
        guard: &Guard,
        bytes: &PageBytes<'_>,
        (leaf, version): (&Directory, Version),
        places: &mut [u8],
    ) -> Result<()> {
        let offset_of = |place: &u8| leaf.offset(usize::from(*place) % PLACES);
        // All at once: most records are in no cache.
        for offset in places.iter().map(offset_of) {
            // The beginning of a record, and the end of the first bytes of its key.
            bytes.prefetch(offset);
            bytes.prefetch(offset + HEADER as u32 + 7);
        }
        let mut keys = Vec::with_capacity(places.len());
        for place in &*places {
            let offset = offset_of(place);
            let view = View::of(bytes, offset).ok_or_else(|| no_record(bytes, offset))?;
            keys.push((word_at(view.key(), 0), view.key(), *place));
        }
        if leaf.has_long() {
            let whole = |(_, field, place)| {
                Ok((self.parts_or_prefix(guard, field, self.check_reads)?.0, place))
            };
            let mut keyed: Vec<_> = keys.into_iter().map(whole).collect::<Result<_>>()?;
            keyed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            keys = keyed.into_iter().map(|(_, place)| (0, &[][..], place)).collect();
        } else {
            // Most are in order, and the stable sort makes use of that.
            keys.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        }
        for (to, (.., place)) in places.iter_mut().zip(&keys) {
            *to = *place;
        }
        leaf.keep_order(version, places);
        Ok(())
    }
}
