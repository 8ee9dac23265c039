//! Scans: leaf after leaf, each as it was at one moment.
//!
//! The places of a leaf are in no order. The first scan that comes to it after a change sorts them
//! and leaves the order for the others. The records themselves are mostly in order, since a leaf is
//! written so, and its own later records are few.
//!
//! From one leaf to the next a scan goes down the tree: the least key of the next one is the bound
//! of this one, whatever has become of either meanwhile.

use crate::get::Whole;
use crate::leaf::{Directory, Head, PLACES, Version};
use crate::store::Store;
use coreplane_engine::{Entry, Horizon, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::Kind;

/// Lines of a record that are asked for before its length is known.
const AHEAD: u64 = 3;

/// Where a scan is.
#[derive(Clone, Copy)]
enum Reach<'k> {
    /// At this key, on its way up.
    From(&'k [u8]),
    /// Below this key (or behind the last), on its way down.
    Below(Option<&'k [u8]>),
}

/// What a scan meets in one leaf, in its direction.
struct Stretch<'g> {
    records: Vec<Whole<'g>>,
    least: &'g [u8],
    bound: Option<&'g [u8]>,
}

impl Store {
    /// Shows the records from `start` up to `end`, until `visit` says no or `limit` were shown.
    ///
    /// # Errors
    /// If a leaf is damaged.
    pub(crate) fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut from: Box<[u8]> = start.into();
        let mut shown = 0;
        while shown < limit {
            let guard = epoch::pin();
            let stretch = self.stretch(&guard, Reach::From(&from), limit - shown)?;
            for whole in &stretch.records {
                if end.is_some_and(|end| whole.view.key() >= end) {
                    return Ok(());
                }
                shown += 1;
                if !visit(whole.entry()) {
                    return Ok(());
                }
            }
            match stretch.bound {
                Some(bound) if end.is_none_or(|end| bound < end) => from = bound.into(),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// As [`Store::scan`], from `end` down to `start`.
    ///
    /// # Errors
    /// If a leaf is damaged.
    pub(crate) fn scan_back(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut to: Option<Box<[u8]>> = end.map(Into::into);
        let mut shown = 0;
        while shown < limit {
            let guard = epoch::pin();
            let stretch = self.stretch(&guard, Reach::Below(to.as_deref()), limit - shown)?;
            for whole in &stretch.records {
                if whole.view.key() < start {
                    return Ok(());
                }
                shown += 1;
                if !visit(whole.entry()) {
                    return Ok(());
                }
            }
            if stretch.least.is_empty() || stretch.least <= start {
                return Ok(());
            }
            to = Some(stretch.least.into());
        }
        Ok(())
    }

    /// The next `limit` records of a scan that are in one leaf.
    fn stretch<'g>(
        &'g self,
        guard: &'g Guard,
        reach: Reach<'_>,
        limit: usize,
    ) -> Result<Stretch<'g>> {
        loop {
            let descent = match reach {
                Reach::From(key) => self.inner.descend(key),
                Reach::Below(key) => self.inner.descend_before(key),
            };
            let Some((leaf, version)) = self.arrive(&descent)? else { continue };
            let stretch = self.read_stretch(guard, descent.leaf, (leaf, version), reach, limit);
            let rests_on = self.rests_on_leaf(descent.leaf);
            if leaf.is_at(version) {
                if !rests_on.is_durable() {
                    self.wait_durable(&Horizon::from(rests_on))?;
                }
                return stretch;
            }
        }
    }

    fn read_stretch<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        (leaf, version): (&Directory, Version),
        reach: Reach<'_>,
        limit: usize,
    ) -> Result<Stretch<'g>> {
        let (least, bound) =
            Head::bounds(&self.space, guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        let mut places = [0; PLACES];
        let len = match leaf.order_at(version, &mut places) {
            Some(len) => len,
            None => self.sort(guard, page, (leaf, version), &mut places)?,
        };
        let places = &places[..len.min(PLACES)];
        let view = |place: u8| self.record_at(guard, page, leaf, usize::from(place));
        // How many are below the key where the scan is.
        let below = |key: &[u8]| {
            if key == least {
                return Ok(0);
            }
            let (mut from, mut to) = (0, places.len());
            while from < to {
                let middle = from.midpoint(to);
                if view(places[middle])?.key() < key { from = middle + 1 } else { to = middle }
            }
            Ok(from)
        };
        // All that will be shown, before the first of it has arrived.
        let prefetch = |places: &mut dyn Iterator<Item = &u8>| {
            for place in places.take(limit) {
                let offset =
                    self.space.start_of(page) + u64::from(leaf.offset(usize::from(*place)));
                (0..AHEAD).for_each(|line| self.space.prefetch(offset + 64 * line));
            }
        };
        let mut records = Vec::with_capacity(limit.min(places.len()));
        let mut take = |place: u8| {
            let view = view(place)?;
            if view.header.kind == Kind::Put && !self.is_expired(&view)? {
                records.push(self.whole(guard, view)?);
            }
            Ok(records.len() < limit)
        };
        match reach {
            Reach::From(key) => {
                let places = &places[below(key)?..];
                prefetch(&mut places.iter());
                for place in places {
                    if !take(*place)? {
                        break;
                    }
                }
            }
            Reach::Below(key) => {
                let places = &places[..key.map_or(Ok(places.len()), below)?];
                prefetch(&mut places.iter().rev());
                for place in places.iter().rev() {
                    if !take(*place)? {
                        break;
                    }
                }
            }
        }
        Ok(Stretch { records, least, bound })
    }

    /// Sorts the places of a leaf by their keys; how many there are.
    fn sort(
        &self,
        guard: &Guard,
        page: u32,
        (leaf, version): (&Directory, Version),
        places: &mut [u8; PLACES],
    ) -> Result<usize> {
        let mut used = leaf.used();
        let mut keys = Vec::with_capacity(used.count_ones() as usize);
        while used != 0 {
            let place = used.trailing_zeros() as usize;
            keys.push((self.record_at(guard, page, leaf, place)?.key(), place as u8));
            used &= used - 1;
        }
        keys.sort_unstable();
        for (to, (_, place)) in places.iter_mut().zip(&keys) {
            *to = *place;
        }
        leaf.keep_order(version, places);
        Ok(keys.len())
    }
}
