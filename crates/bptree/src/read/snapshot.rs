//! A leaf as it was at one moment, for a scan: the places of its records, in the order of their keys.
//!
//! The order is that of the keys that were written. A key that has no longer the tag of its place is damage: it may
//! stand anywhere among the others, so that a search by the bytes that are there now, or an end at such a key, would
//! leave out sound keys.

use crate::inner::{Descent, word_at};
use crate::leaf::{Directory, PLACES, Version};
use crate::read::Reader;
use crate::read::get::TRIES;
use crate::volume::keys::{Parts, has_tag};
use coreplane_engine::{Error, Horizon, Result, UnixMillis};
use coreplane_pmem::PageBytes;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{HEADER, Kind, View};
use std::borrow::Cow;
use std::cmp::Ordering;

/// Probes of a search that are prefetched before the first is known: those of three steps.
const PROBES: usize = 8;

/// Lines of a page that hold its head, and mostly its first record.
const HEAD_LINES: u64 = 4;

/// The position of a scan.
#[derive(Clone, Copy)]
pub(super) enum Reach<'k> {
    /// At this key, on its way up.
    From(&'k [u8]),
    /// Below this key (or behind the last), on its way down.
    Below(Option<&'k [u8]>),
}

/// The place of a record.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// Its offset in the page.
    offset: u32,
    /// The tag of its key when it was written.
    tag: u8,
}

/// A leaf at one moment.
pub(super) struct Snapshot<'g> {
    pub(super) leaf: &'g Directory,
    pub(super) version: Version,
    pub(super) birth: u64,
    pub(super) bytes: PageBytes<'g>,
    pub(super) least: Cow<'g, [u8]>,
    pub(super) bound: Option<Cow<'g, [u8]>>,
    /// The places of its records, in the order of their keys.
    places: [Place; PLACES],
    pub(super) len: usize,
    field_max: usize,
    /// The long keys, by the offsets of their records. They are read at that moment: later their rests may be gone.
    longs: Vec<(u32, Parts<'g>)>,
    /// The fields of keys whose rests are damaged: the place of their records in the order is unknown.
    pub(super) hurt: Vec<(u64, &'g [u8])>,
}

/// Long keys, and the fields of those whose rests are damaged.
type LongKeys<'g> = (Vec<(u32, Parts<'g>)>, Vec<(u64, &'g [u8])>);

impl<'g> Snapshot<'g> {
    pub(super) fn places(&self) -> &[Place] {
        &self.places[..self.len]
    }

    #[inline]
    pub(super) fn prefetch(&self, place: Place, lines: u32) {
        (0..lines).for_each(|line| self.bytes.prefetch(place.offset + 64 * line));
    }

    // Inlined as [`View::of`] is.
    #[inline(always)]
    pub(super) fn view(&self, place: Place) -> Result<View<'g>> {
        view(&self.bytes, place)
    }

    /// The expiries of its records.
    pub(super) fn expiries(&self) -> impl Iterator<Item = UnixMillis> {
        self.places().iter().filter_map(|place| self.view(*place).ok()?.header.expires_at)
    }

    /// Checks the key of a record against the tag of its place.
    ///
    /// # Errors
    /// If it is not the key that was written.
    #[inline]
    pub(super) fn check_key(&self, view: &View<'g>, place: Place) -> Result<()> {
        check_key(view, place, self.field_max)
    }

    /// Compares the key of a record with `key`.
    #[inline]
    pub(super) fn compare(&self, view: &View<'g>, key: &[u8]) -> Ordering {
        match self.parts(view) {
            None => view.key().cmp(key),
            Some(parts) => parts.cmp_key(key),
        }
    }

    /// The key of a record.
    #[inline]
    pub(super) fn key(&self, view: &View<'g>) -> Cow<'g, [u8]> {
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
    pub(super) fn below(&self, key: &[u8]) -> Result<usize> {
        if *key == *self.least {
            return Ok(0);
        }
        let places = self.places();
        for probe in 1..PROBES {
            let place = places.get(places.len() * probe / PROBES);
            place.into_iter().for_each(|place| self.prefetch(*place, 1));
        }
        let (mut from, mut to) = (0, places.len());
        while from < to {
            let middle = from.midpoint(to);
            let view = self.view(places[middle])?;
            self.check_key(&view, places[middle])?;
            let order = self.compare(&view, key);
            if order.is_lt() { from = middle + 1 } else { to = middle }
        }
        Ok(from)
    }
}

#[inline(always)]
fn view<'g>(bytes: &PageBytes<'g>, place: Place) -> Result<View<'g>> {
    View::of(bytes, place.offset).ok_or_else(|| no_record(bytes, place.offset))
}

#[inline]
fn check_key(view: &View<'_>, place: Place, field_max: usize) -> Result<()> {
    if has_tag(view.key(), field_max, place.tag) { Ok(()) } else { Err(damaged_key(view)) }
}

/// A place of a leaf, by its number.
#[inline]
fn place_in(leaf: &Directory, number: u8) -> Place {
    let number = usize::from(number) % PLACES;
    Place { offset: leaf.offset(number), tag: leaf.tag(number) }
}

#[cold]
fn damaged_key(view: &View<'_>) -> Error {
    Error::Corrupt { offset: view.offset, what: "a damaged key".to_owned() }
}

#[cold]
fn no_record(bytes: &PageBytes<'_>, offset: u32) -> Error {
    let offset = bytes.start() + u64::from(offset);
    Error::Corrupt { offset, what: "no record where the leaf has one".to_owned() }
}

impl Reader {
    /// Descends to the next leaf of a scan, and prefetches the lines that a look at it reads.
    pub(super) fn set_out(&self, reach: Reach<'_>) -> Descent {
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

    /// The leaf at the position of a scan, as it is at one moment; `way` is the descent to it, if there was one
    /// already.
    pub(super) fn snapshot<'g>(
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
        let mut order = [0; PLACES];
        let ordered = leaf.ordered(&mut order);
        let len = leaf.used().count();
        if ordered < len {
            self.sort(guard, &bytes, (leaf, version), &mut order[..len])?;
        }
        let mut places = [Place::default(); PLACES];
        places
            .iter_mut()
            .zip(&order)
            .take(len)
            .for_each(|(to, place)| *to = place_in(leaf, *place));
        let (longs, hurt) = if leaf.has_long() {
            self.long_keys(guard, &bytes, &mut places[..len])?
        } else {
            (Vec::new(), Vec::new())
        };
        let (birth, field_max) = (leaf.birth(), self.field_max());
        Ok(Snapshot {
            leaf,
            version,
            birth,
            bytes,
            least,
            bound,
            places,
            len,
            field_max,
            longs,
            hurt,
        })
    }

    /// The long keys of the records at these places, and the fields of damaged ones; puts the places in the order
    /// of the keys as they are now. The order that was kept may be from before the damage, or was made with other
    /// checks: a search in it would miss keys.
    #[cold]
    fn long_keys<'g>(
        &'g self,
        guard: &'g Guard,
        bytes: &PageBytes<'g>,
        places: &mut [Place],
    ) -> Result<LongKeys<'g>> {
        let (mut keys, mut hurt) = (Vec::with_capacity(places.len()), Vec::new());
        for place in &*places {
            let view = view(bytes, *place)?;
            check_key(&view, *place, self.field_max())?;
            let (parts, is_hurt) = self.parts_or_prefix(guard, view.key(), self.check_reads)?;
            keys.push((*place, parts, self.is_long(view.key())));
            let is_hurt = is_hurt && view.header.kind == Kind::Put;
            hurt.extend(is_hurt.then_some((view.offset, view.key())));
        }
        if !keys.is_sorted_by(|a, b| a.1.cmp(&b.1).is_le()) {
            keys.sort_unstable_by(|a, b| a.1.cmp(&b.1));
            places.iter_mut().zip(&keys).for_each(|(to, key)| *to = key.0);
        }
        let longs = keys.into_iter().filter(|it| it.2);
        let longs = longs.map(|(place, parts, _)| (place.offset, parts));
        Ok((longs.collect(), hurt))
    }

    /// Sorts the places of a leaf by their keys, which mostly differ in their first bytes.
    #[inline(never)]
    fn sort(
        &self,
        guard: &Guard,
        bytes: &PageBytes<'_>,
        (leaf, version): (&Directory, Version),
        order: &mut [u8],
    ) -> Result<()> {
        // All at once: most records are in no cache.
        for place in order.iter().map(|place| place_in(leaf, *place)) {
            // The beginning of a record, and the end of the first bytes of its key.
            bytes.prefetch(place.offset);
            bytes.prefetch(place.offset + HEADER as u32 + 7);
        }
        let mut keys = Vec::with_capacity(order.len());
        for place in &*order {
            let (at, field_max) = (place_in(leaf, *place), self.field_max());
            let view = view(bytes, at)?;
            check_key(&view, at, field_max)?;
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
        for (to, (.., place)) in order.iter_mut().zip(&keys) {
            *to = *place;
        }
        leaf.keep_order(version, order);
        Ok(())
    }
}
