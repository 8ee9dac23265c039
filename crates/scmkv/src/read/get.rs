//! Reading: one line of the index, then the record.
//!
//! A reader takes no lock, unless batches come at each look. It pins the epoch, probes, and shows
//! the record where it lies in the log. On the way it may meet
//!
//! - a newer version: the slot that was loaded was right at that moment, which is enough;
//! - the cleaner: the page is retired, and the slot has the record's new place: look again. The
//!   same holds for the overflow records of a large value;
//! - a batch that is being published: the reader waits until it is published
//!   ([`Gate`](crate::read::gate::Gate)), so that it never sees a batch in part.

mod pair;

use crate::read::Reader;
use crate::table::counters::Count;
use crate::table::hash::Place;
use crate::table::index::{Slot, Verdict};
use crate::table::misled;
use crate::table::overflow::overflow_offsets;
use coreplane_engine::{Error, Found, Horizon, Record, Result, Ticket, Value, Visibility};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Kind, View};

/// Keys that are looked up side by side.
const LANE: usize = 16;

/// Lines of a record that are prefetched before its length is known.
const AHEAD: u64 = 3;

/// The most lines that are prefetched once it is known: the processor prefetches the rest of a long
/// copy itself.
const AHEAD_MAX: u64 = 16;

impl Reader {
    /// The live record of `key`, without any lock.
    #[inline]
    pub(crate) fn find<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
        place: Place,
    ) -> Result<Option<View<'g>>> {
        let mut found = None;
        let mut damage = Ok(());
        let slot = self.index.find(place, |slot: Slot| {
            if slot.is_tombstone() {
                return Verdict::Other;
            }
            // Prefetch the lines after the first, before the first has arrived.
            (1..AHEAD).for_each(|line| self.space.prefetch(slot.offset() + 64 * line));
            match self.view(guard, slot.offset()) {
                None => Verdict::Moved,
                Some(view) if self.is_of(&view, key) => {
                    found = Some(view);
                    Verdict::Mine
                }
                Some(view) if view.header.kind == Kind::Lost => Verdict::Moved,
                Some(view) => {
                    // The record of another key, unless its key is damaged.
                    let is_damaged = self.check_reads || self.had_key(&view, key);
                    let checked = if is_damaged { self.check_record(&view) } else { Ok(()) };
                    damage = std::mem::replace(&mut damage, Ok(())).and(checked);
                    Verdict::Other
                }
            }
        })?;
        match (slot, found) {
            (Some(slot), Some(view)) if view.header.kind != Kind::Put => Err(misled(slot)),
            (Some(_), Some(view)) => {
                self.check_read(&view)?;
                Ok((!self.is_expired(&view)?).then_some(view))
            }
            _ => damage.map(|()| None),
        }
    }

    /// # Errors
    /// If reads are checked, as [`check_record`](crate::table::Table::check_record).
    #[inline]
    pub(crate) fn check_read(&self, view: &View<'_>) -> Result<()> {
        if self.check_reads { self.check_record(view) } else { Ok(()) }
    }

    /// True if the record is that of `key`. The whole record is prefetched before its key is
    /// compared.
    #[inline]
    fn is_of(&self, view: &View<'_>, key: &[u8]) -> bool {
        self.prefetch_rest(view.offset, view.len());
        view.key() == key
    }

    /// Prefetches the lines of a record behind those that were prefetched before its length was
    /// known.
    #[inline(always)]
    fn prefetch_rest(&self, offset: u64, len: u32) {
        let (mut at, end) = (64 * AHEAD, u64::from(len).min(64 * AHEAD_MAX));
        while at < end {
            self.space.prefetch(offset + at);
            at += 64;
        }
    }

    /// Shows `view`, whose group is locked, to a caller that derives a new value from it. The
    /// record is checked, so that a damaged value is not written again with a checksum that says it
    /// is sound. A value in overflow records is put together.
    pub(crate) fn show<R>(
        &self,
        guard: &Guard,
        view: &View<'_>,
        ticket: Ticket,
        visit: impl FnOnce(Record<'_>) -> R,
    ) -> Result<R> {
        self.check_record(view)?;
        if !view.header.large {
            return Ok(visit(record_of(view, Value::Whole(view.value()), ticket)));
        }
        let pieces = self.pieces(guard, view, true)?;
        Ok(visit(record_of(view, Value::Pieces(&pieces), ticket)))
    }

    /// The pieces of a large value, each checked if `checked`.
    pub(crate) fn pieces<'g>(
        &'g self,
        guard: &'g Guard,
        view: &View<'g>,
        checked: bool,
    ) -> Result<Vec<&'g [u8]>> {
        overflow_offsets(view)
            .enumerate()
            .map(|(at, offset)| {
                let overflow = self
                    .view(guard, offset)
                    .filter(|overflow| {
                        overflow.header.kind == Kind::Overflow
                            && overflow.value_word(0) == Some(at as u64)
                            && overflow.key() == view.key()
                    })
                    .ok_or_else(|| Error::Corrupt {
                        offset,
                        what: format!("no overflow record of the value at {:#x} here", view.offset),
                    })?;
                if checked {
                    self.check_record(&overflow)?;
                }
                // It has a first word, as was just checked.
                Ok(overflow.value().get(8..).unwrap_or_default())
            })
            .collect()
    }

    /// The large value of `view`, which was found without a lock. If the cleaner has moved an
    /// overflow record since, the slot already points at a record that names the new place. So the
    /// record is looked up again, and a record that is still in its place has lost its overflow
    /// record. None if the record is gone. Its overflow records are checked if `checked`.
    fn gather<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
        mut view: View<'g>,
        checked: bool,
    ) -> Result<Option<Whole<'g>>> {
        loop {
            if !view.header.large {
                return Ok(Some(Whole { view, pieces: Vec::new() }));
            }
            let lost = match self.pieces(guard, &view, checked) {
                Ok(pieces) => return Ok(Some(Whole { view, pieces })),
                Err(error) => error,
            };
            match self.find(guard, key, self.place(key))? {
                None => return Ok(None),
                Some(again) if again.offset == view.offset => return Err(lost),
                Some(again) => view = again,
            }
        }
    }

    pub(crate) fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let place = self.place(key);
        self.see_staged(place)?;
        let guard = epoch::pin();
        if let Some(pair) = self.find_pair(&guard, key, place) {
            visit(pair);
            self.counters.add(Count::Hits, 1);
            return Ok(Found { hit: true, ticket: Ticket::DURABLE });
        }
        self.get_any(&guard, key, place, visibility, visit)
    }

    /// The get of a key that [`Reader::find_pair`] has not found.
    #[inline(never)]
    fn get_any(
        &self,
        guard: &Guard,
        key: &[u8],
        place: Place,
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let found = self.gate.read(|| match self.find(guard, key, place)? {
            Some(view) => self.gather(guard, key, view, self.check_reads),
            None => Ok(None),
        })?;
        let Some(whole) = found else { return self.miss(visibility) };
        let ticket = self.settle_ticket(self.ticket_of(&whole.view), visibility)?;
        visit(whole.record(ticket));
        self.counters.add(Count::Hits, 1);
        Ok(Found { hit: true, ticket })
    }

    /// Checks the record of `key` and the overflow records of a large value against their
    /// checksums; false if there is no record.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn check_record_of(&self, key: &[u8]) -> Result<bool> {
        let place = self.place(key);
        self.see_staged(place)?;
        let guard = epoch::pin();
        self.gate.read(|| {
            let Some(view) = self.find(&guard, key, place)? else { return Ok(false) };
            self.check_record(&view)?;
            // A record that is looked up again is a copy of the cleaner, which has checked it, or a new one.
            Ok(self.gather(&guard, key, view, true)?.is_some())
        })
    }

    fn miss(&self, visibility: Visibility) -> Result<Found> {
        self.counters.add(Count::Misses, 1);
        Ok(Found { hit: false, ticket: self.absence_ticket(visibility)? })
    }

    /// Waits for `ticket` unless the reader accepts early writes.
    fn settle_ticket(&self, ticket: Ticket, visibility: Visibility) -> Result<Ticket> {
        if visibility == Visibility::Durable && !ticket.is_durable() {
            self.wait_durable(&Horizon::from(ticket))?;
            return Ok(Ticket::DURABLE);
        }
        Ok(ticket)
    }

    /// The ticket that an absence rests on: perhaps that of a delete that is not durable yet.
    fn absence_ticket(&self, visibility: Visibility) -> Result<Ticket> {
        if self.space.fences_at_once() {
            return Ok(Ticket::DURABLE);
        }
        self.settle_ticket(self.early_ticket(), visibility)
    }

    pub(crate) fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.see_staged_of(keys)?;
        let guard = epoch::pin();
        let mut horizon = Horizon::new();
        let mut views = Vec::with_capacity(keys.len());
        let mut large = Vec::new();
        self.gate.read(|| {
            views.clear();
            large.clear();
            for lane in keys.chunks(LANE) {
                self.find_lane(&guard, lane, &mut views)?;
            }
            self.gather_all(&guard, keys, &mut views, &mut large)
        })?;
        for view in views.iter().flatten() {
            horizon.include(self.ticket_of(view));
        }
        if views.iter().any(Option::is_none) {
            horizon.include(self.absence_ticket(Visibility::Early)?);
        }
        if visibility == Visibility::Durable {
            self.wait_durable(&horizon)?;
            horizon.clear();
        }
        let hits = views.iter().flatten().count() as i64;
        self.counters.add(Count::Hits, hits);
        self.counters.add(Count::Misses, keys.len() as i64 - hits);
        // All early writes rest on one generation.
        let ticket = horizon.tickets().first().copied().unwrap_or(Ticket::DURABLE);
        let mut large = large.iter();
        for (at, view) in views.iter().enumerate() {
            let record = view.as_ref().map(|view| match view.header.large {
                false => record_of(view, Value::Whole(view.value()), ticket),
                true => {
                    let pieces: &[&[u8]] = large.next().map_or(&[], Vec::as_slice);
                    record_of(view, Value::Pieces(pieces), ticket)
                }
            });
            visit(at, record);
        }
        Ok(horizon)
    }

    /// Gathers the large values among `views`, in their order.
    fn gather_all<'g>(
        &'g self,
        guard: &'g Guard,
        keys: &[&[u8]],
        views: &mut [Option<View<'g>>],
        large: &mut Vec<Vec<&'g [u8]>>,
    ) -> Result<()> {
        for (slot, key) in views.iter_mut().zip(keys) {
            let Some(view) = slot.filter(|view| view.header.large) else { continue };
            let whole = self.gather(guard, key, view, self.check_reads)?;
            *slot = whole.as_ref().map(|whole| whole.view);
            large.extend(whole.filter(|whole| whole.view.header.large).map(|whole| whole.pieces));
        }
        Ok(())
    }

    /// Looks several keys up at once: all index lines are prefetched, then all records, so that
    /// they are on their way by the time that the first is read.
    fn find_lane<'g>(
        &'g self,
        guard: &'g Guard,
        keys: &[&[u8]],
        views: &mut Vec<Option<View<'g>>>,
    ) -> Result<()> {
        let mut places = [Place::NOWHERE; LANE];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.place(key);
            self.index.prefetch(*place);
        }
        let mut likely = [Slot::EMPTY; LANE];
        for (place, likely) in places.iter().zip(&mut likely).take(keys.len()) {
            *likely = self.index.likely(*place).unwrap_or(Slot::EMPTY);
            (0..AHEAD).for_each(|line| self.space.prefetch(likely.offset() + 64 * line));
        }
        for ((place, likely), key) in places.iter().zip(likely).zip(keys) {
            // Nearly always the first slot with the signature is the key's.
            let found = match self.view(guard, likely.offset()) {
                Some(view)
                    if !likely.is_tombstone()
                        && view.header.kind == Kind::Put
                        && self.is_of(&view, key) =>
                {
                    self.check_read(&view)?;
                    (!self.is_expired(&view)?).then_some(view)
                }
                _ => self.find(guard, key, *place)?,
            };
            views.push(found);
        }
        Ok(())
    }
}

/// A record, and the pieces of its value if that is large. It can be read as long as the guard
/// lives, even if the record is replaced meanwhile.
pub(crate) struct Whole<'g> {
    pub(crate) view: View<'g>,
    pub(crate) pieces: Vec<&'g [u8]>,
}

impl Whole<'_> {
    pub(crate) fn record(&self, ticket: Ticket) -> Record<'_> {
        let value = match self.view.header.large {
            true => Value::Pieces(&self.pieces),
            false => Value::Whole(self.view.value()),
        };
        record_of(&self.view, value, ticket)
    }
}

#[inline]
fn record_of<'r>(view: &View<'_>, value: Value<'r>, ticket: Ticket) -> Record<'r> {
    Record { value, sequence: view.sequence(), expires_at: view.header.expires_at, ticket }
}
