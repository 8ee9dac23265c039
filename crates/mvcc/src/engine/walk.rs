//! Reads of many keys, in their order: scans, iterations, changes.
//!
//! The map is had for some keys at a time, so that writers come between. A walk that meets something which is
//! not durable, or an expiry that nobody was told, lets go of the map, sees to it, and goes on from there.

use super::Store;
use super::read::Seen;
use crate::map::Way;
use coreplane_engine::{Entry, Error, Record, Result, Ticket};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::View;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Keys that are looked at before the map is let go of.
const STEP: usize = 256;

/// Where a walk goes on.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Up(Vec<u8>),
    Down(Option<Vec<u8>>),
}

/// What a walk shows: every key that it meets, live or not.
pub(super) struct Met<'a, 'g> {
    pub(super) key: &'a [u8],
    pub(super) view: View<'g>,
    pub(super) is_live: bool,
    /// If it may not be the newest, what says so.
    pub(super) sure: Result<()>,
    pub(super) ticket: Ticket,
}

/// What each key that is met is shown to.
type Visit<'v> = &'v mut dyn FnMut(&Guard, Met<'_, '_>) -> Result<ControlFlow<()>>;

impl Store {
    /// Shows keys with their newest version not above `at`, until `visit` breaks.
    pub(super) fn walk(&self, mut place: Place, at: u64, visit: Visit<'_>) -> Result<()> {
        loop {
            let Some(next) = self.walk_some(&place, at, visit)? else { return Ok(()) };
            place = next;
        }
    }

    /// Some of them; where to go on.
    fn walk_some(&self, place: &Place, at: u64, visit: Visit<'_>) -> Result<Option<Place>> {
        let map = if at == u64::MAX { self.complete()? } else { self.exposed()? };
        let guard = epoch::pin();
        let (mut left, mut next, mut blocked) = (STEP, None, None);
        let is_up = matches!(place, Place::Up(_));
        let way = match place {
            Place::Up(key) => Way::Up(key),
            Place::Down(below) => Way::Down(below.as_deref()),
        };
        map.walk(&guard, way, at, &mut |key, offset| {
            if left == 0 && is_up {
                next = Some(Place::Up(key.to_vec()));
                return Ok(false);
            }
            let seen = self.see(&**map, &guard, offset)?;
            let (view, is_live) = match seen {
                Seen::Live(view) => (view, true),
                Seen::Gone => (self.volume.view(&guard, offset)?, false),
                seen => {
                    // A bound is not shown itself: this key is to come again.
                    let again = [key, &[0]].concat();
                    let again =
                        if is_up { Place::Up(key.to_vec()) } else { Place::Down(Some(again)) };
                    (next, blocked) = (Some(again), Some(seen));
                    return Ok(false);
                }
            };
            let ticket = self.rests_on(&**map, offset);
            let sure = self.check_sure(&**map, &guard, Some(offset));
            if visit(&guard, Met { key, view, is_live, sure, ticket })?.is_break() {
                return Ok(false);
            }
            left = left.saturating_sub(1);
            if left == 0 && !is_up {
                next = Some(Place::Down(Some(key.to_vec())));
                return Ok(false);
            }
            Ok(true)
        })?;
        drop(map);
        if let Some(seen) = blocked {
            self.uncover(&seen)?;
        }
        Ok(next)
    }

    /// Shows live records of a range.
    pub(crate) fn scan_at(
        &self,
        (start, end): (&[u8], Option<&[u8]>),
        reverse: bool,
        (limit, at): (usize, u64),
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        if limit == 0 {
            return Ok(());
        }
        let mut left = limit;
        self.map.read().check_complete()?;
        let place = match reverse {
            false => Place::Up(start.to_vec()),
            true => Place::Down(end.map(<[u8]>::to_vec)),
        };
        self.walk(place, at, &mut |guard, met| {
            let is_beyond = match reverse {
                false => end.is_some_and(|end| met.key >= end),
                true => met.key < start,
            };
            if is_beyond {
                return Ok(ControlFlow::Break(()));
            }
            met.sure?;
            if !met.is_live {
                return Ok(ControlFlow::Continue(()));
            }
            left -= 1;
            let mut goes_on = true;
            self.show(guard, &met.view, met.ticket, self.check_reads, &mut |record| {
                goes_on = visit(entry(met.key, record));
            })?;
            let goes_on = goes_on && left > 0;
            Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })
    }

    /// Shows some live records from `cursor` on; the next cursor.
    pub(super) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let from = self.cursors.lock().place_of(cursor);
        let (mut left, mut next) = (count.max(1), None);
        self.walk(Place::Up(from.into_vec()), u64::MAX, &mut |guard, met| {
            if left == 0 {
                next = Some(Box::<[u8]>::from(met.key));
                return Ok(ControlFlow::Break(()));
            }
            if met.is_live && met.sure.is_ok() {
                left -= 1;
                self.show(guard, &met.view, met.ticket, false, &mut |record| {
                    visit(entry(met.key, record));
                })?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let Some(key) = next else {
            self.check_all()?;
            return Ok(0);
        };
        Ok(self.cursors.lock().remember(key))
    }

    /// Shows what is newer than `sequence`, tombstones too.
    pub(super) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        let check = || {
            let horizon = self.map.read().tombstone_horizon();
            let is_gone = sequence < horizon;
            if is_gone { Err(Error::HistoryGone { asked: sequence, horizon }) } else { Ok(()) }
        };
        check()?;
        self.walk(Place::Up(Vec::new()), u64::MAX, &mut |guard, met| {
            if met.sure.is_err() {
                return Ok(ControlFlow::Continue(()));
            }
            let its = met.view.sequence();
            if its > sequence && met.is_live {
                self.show(guard, &met.view, met.ticket, false, &mut |record| {
                    visit(entry(met.key, record));
                })?;
            } else if its > sequence {
                visit(Entry { key: met.key, record: None, sequence: its });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        check()?;
        self.check_all()
    }

    /// Fails if there is a key that may not be as it was last, or of which nobody knows: those who pass such keys by say
    /// so at the end.
    fn check_all(&self) -> Result<()> {
        if !self.volume.damaged.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.map.read().check_complete()?;
        self.walk(Place::Up(Vec::new()), u64::MAX, &mut |_, met| {
            met.sure?;
            Ok(ControlFlow::Continue(()))
        })
    }
}

fn entry<'a>(key: &'a [u8], record: Record<'a>) -> Entry<'a> {
    Entry { key, sequence: record.sequence, record: Some(record) }
}
