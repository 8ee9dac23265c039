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

use crate::inner::Descent;
use crate::read::Reader;
use crate::read::get::{LINES, TRIES, Whole};
use crate::read::snapshot::{Place, Reach, Snapshot};
use coreplane_engine::{Entry, Error, Record, Result, Ticket, Value};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageBytes, epoch};
use coreplane_record::View;
use std::borrow::Cow;

/// The number of records that are prefetched ahead of the one that is shown.
const AHEAD: usize = 6;

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
            let places = &snapshot.places()[snapshot.below(&from)?..];
            let hurt = self.hurt_in(&snapshot, &from, end).min_by_key(|it| it.1);
            let first = places.iter().take(AHEAD.min(limit - shown));
            first.for_each(|place| snapshot.prefetch(*place, LINES));
            let bound = snapshot.bound.as_deref();
            if let Some(bound) = bound.filter(|_| limit - shown > places.len()) {
                way = Some(self.set_out(Reach::From(bound)));
            }
            for (at, place) in places.iter().enumerate() {
                match (places.get(at + AHEAD), &way) {
                    (Some(ahead), _) => snapshot.prefetch(*ahead, LINES),
                    (None, Some(way)) => self.ask_for_record(way, at + AHEAD - places.len()),
                    _ => {}
                }
                let view = snapshot.view(*place)?;
                if end.is_some_and(|end| snapshot.compare(&view, end).is_ge()) {
                    snapshot.check_key(&view, *place)?;
                    break;
                }
                if hurt.is_some_and(|it| snapshot.compare(&view, self.prefix_of(it.1)).is_ge()) {
                    break;
                }
                match self.show(&guard, &snapshot, (view, *place), (&mut lost, visit))? {
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
            let places = &snapshot.places()[..below.unwrap_or(snapshot.len)];
            let hurt = self.hurt_in(&snapshot, start, to.as_deref()).max_by_key(|it| it.1);
            let first = places.iter().rev().take(AHEAD.min(limit - shown));
            first.for_each(|place| snapshot.prefetch(*place, LINES));
            for (at, place) in places.iter().enumerate().rev() {
                if let Some(ahead) = at.checked_sub(AHEAD) {
                    snapshot.prefetch(places[ahead], LINES);
                }
                let view = snapshot.view(*place)?;
                if snapshot.compare(&view, start).is_lt() {
                    snapshot.check_key(&view, *place)?;
                    break;
                }
                if hurt.is_some_and(|it| self.prefix_of(view.key()) <= self.prefix_of(it.1)) {
                    break;
                }
                match self.show(&guard, &snapshot, (view, *place), (&mut lost, visit))? {
                    Shown::Not => {}
                    Shown::Yes => shown += 1,
                    Shown::Last => return Ok(()),
                    Shown::Gone => {
                        // Below the record that was shown last.
                        if let Some(last) = places.get(at + 1) {
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
        (view, place): (View<'g>, Place),
        (lost, visit): (&mut usize, &mut dyn FnMut(Entry<'_>) -> bool),
    ) -> Result<Shown> {
        if !self.is_live(&view, snapshot.birth, || snapshot.expiries())? {
            return Ok(Shown::Not);
        }
        let checked = if self.check_reads {
            self.check(guard, &view, snapshot.birth)
        } else {
            snapshot.check_key(&view, place)
        };
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
                // The scan would go on at the damaged key.
                snapshot.check_key(&view, place)?;
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

    /// Prefetches the record that is likely to be the `at`-th of a leaf.
    #[inline]
    fn ask_for_record(&self, way: &Descent, at: usize) {
        let offset = self.leaves.get(way.leaf as usize).likely_offset(at);
        let start = self.space.start_of(way.leaf) + u64::from(offset % self.space.page_size());
        (0..u64::from(LINES)).for_each(|line| self.space.prefetch(start + 64 * line));
    }
}
