//! Reads of many keys, in their order: scans, iterations, changes.
//!
//! ```text
//!   with the map       a ─▶ 12   b ─▶ 7   c ─▶ 3, 31   …      where the records of some keys are
//!   without it         12: a = …   7: b = …   31: too new, 3: c = …
//! ```
//!
//! The map is had for some keys at a time, so that writers come between, and only to find out where their records are.
//! The epoch that is pinned before keeps the bytes of those, but who has not looked at a page before it is given up does
//! not get at it any more: then that key is read again with the map in hand. So are large values, which have pages of
//! their own.
//!
//! A walk that meets something which is not durable, or an expiry that nobody was told, sees to it, and goes on from
//! there.

use super::Store;
use super::durable::Reading;
use super::read::Seen;
use crate::key::Key;
use crate::map::Way;
use coreplane_engine::{Entry, Error, Record, Result, Ticket};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::{LINE, mutant, spin};
use coreplane_record::{Kind, View};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Keys that are found before the map is let go of.
const STEP: usize = 32;

/// Steps after which a walk gives its processor away once: who looks for the map on the same one would find it had
/// each time that this thread is put aside in the midst of a step.
const STEPS: usize = 8;

/// Lines of a record that are asked for ahead.
const LINES: u64 = 3;

/// Where a walk goes on.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Up(Vec<u8>),
    Down(Option<Vec<u8>>),
}

/// How a walk goes on.
enum Next {
    At(Place),
    /// There, with the map in hand.
    Again(Place),
    End,
}

impl Place {
    /// The same way, with this key as the next.
    fn at(&self, key: &[u8]) -> Self {
        match self {
            Self::Up(_) => Self::Up(key.to_vec()),
            // A bound is not shown itself.
            Self::Down(_) => Self::Down(Some([key, &[0]].concat())),
        }
    }
}

/// Where the version of a key that is looked for may be, and how that stood when it was found.
#[derive(Clone, Copy)]
struct Spot {
    offset: u64,
    is_hidden: bool,
    ticket: Ticket,
}

/// A key that was found.
struct Found {
    key: Key,
    newest: Spot,
    /// Where there are several, those before it, the newest last.
    older: Vec<Spot>,
    /// What says that it may not be the newest.
    sure: Result<()>,
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
    /// Shows keys with their newest version not above `at`, until `visit` breaks, which is expected after some.
    pub(super) fn walk(
        &self,
        place: Place,
        (at, expected): (u64, usize),
        visit: Visit<'_>,
    ) -> Result<()> {
        let (mut found, mut next) = (Vec::new(), Next::At(place));
        let most = STEP.min(expected.max(1));
        for step in 1_usize.. {
            let (place, most, holds) = match &next {
                Next::At(place) => (place, most, self.check_reads),
                Next::Again(place) => (place, 1, true),
                Next::End => return Ok(()),
            };
            next = self.walk_some(place, (at, most, holds), &mut found, visit)?;
            if step.is_multiple_of(STEPS) {
                spin::yield_processor();
            }
        }
        Ok(())
    }

    /// Shows some of them, with the map in hand if it `holds`; where to go on.
    fn walk_some(
        &self,
        place: &Place,
        (at, most, holds): (u64, usize, bool),
        found: &mut Vec<Found>,
        visit: Visit<'_>,
    ) -> Result<Next> {
        found.clear();
        let guard = epoch::pin();
        let (map, next) = self.find_some(&guard, place, (at, most), found)?;
        let map = holds.then_some(map);
        // All that are found are on their way when the first is read.
        for spot in found.iter().flat_map(|it| it.older.iter().chain([&it.newest])) {
            (0..LINES)
                .for_each(|line| self.volume.space.prefetch(spot.offset + line * LINE as u64));
        }
        for Found { key, newest, older, sure } in found.drain(..) {
            let (seen, spot) = match self.see_at(&guard, newest, &older, at) {
                Ok(Some(seen)) => seen,
                Ok(None) => continue,
                Err(_) if !holds && !mutant!("mvcc.walk.again") => {
                    return Ok(Next::Again(place.at(&key)));
                }
                Err(error) => return Err(error),
            };
            let (view, is_live) = match seen {
                Seen::Live(view) if view.header.large && !holds => {
                    return Ok(Next::Again(place.at(&key)));
                }
                Seen::Live(view) => (view, true),
                Seen::Gone(Some(view)) => (view, false),
                Seen::Gone(None) => continue,
                seen => {
                    drop(map);
                    self.uncover(&seen)?;
                    return Ok(Next::At(place.at(&key)));
                }
            };
            let met = Met { key: &key, view, is_live, sure, ticket: spot.ticket };
            if visit(&guard, met)?.is_break() {
                return Ok(Next::End);
            }
        }
        Ok(next)
    }

    /// How the newest version not above `at` stands, and where it is, if there is one.
    fn see_at<'g>(
        &'g self,
        guard: &'g Guard,
        newest: Spot,
        older: &[Spot],
        at: u64,
    ) -> Result<Option<(Seen<'g>, Spot)>> {
        let Some(spot) = self.spot_at(guard, newest, older, at)? else { return Ok(None) };
        let seen = match spot.is_hidden {
            true => Seen::Hidden,
            false => self.see_shown(guard, spot.offset)?,
        };
        Ok(Some((seen, spot)))
    }

    /// Finds some keys; the map that knows of them, and where to go on.
    fn find_some(
        &self,
        guard: &Guard,
        place: &Place,
        (at, most): (u64, usize),
        found: &mut Vec<Found>,
    ) -> Result<(Reading<'_>, Next)> {
        let map = if at == u64::MAX { self.complete()? } else { self.exposed()? };
        let way = match place {
            Place::Up(key) => Way::Up(key),
            Place::Down(below) => Way::Down(below.as_deref()),
        };
        let spot = |offset| {
            let is_hidden = map.stream().is_hidden(offset);
            Spot { offset, is_hidden, ticket: self.rests_on(&**map, offset) }
        };
        let is_damaged = self.volume.damaged.load(Ordering::Relaxed);
        let mut next = Next::End;
        map.walk(guard, way, at, &mut |key, versions| {
            let Some((newest, older)) = versions.split_last() else { return Ok(true) };
            if found.len() == most {
                next = Next::At(place.at(key));
                return Ok(false);
            }
            let older: Vec<Spot> = older.iter().copied().map(spot).collect();
            let (key, newest) = (Key::new(key), spot(*newest));
            let sure = match is_damaged {
                false => Ok(()),
                true => match self.spot_at(guard, newest, &older, at)? {
                    Some(spot) => map.check_sure(guard, Some(spot.offset)),
                    None => return Ok(true),
                },
            };
            found.push(Found { key, newest, older, sure });
            Ok(true)
        })?;
        Ok((map, next))
    }

    /// The newest that is not above `at`.
    fn spot_at(
        &self,
        guard: &Guard,
        newest: Spot,
        older: &[Spot],
        at: u64,
    ) -> Result<Option<Spot>> {
        if at == u64::MAX {
            return Ok(Some(newest));
        }
        for spot in std::iter::once(&newest).chain(older.iter().rev()) {
            if self.volume.view(guard, spot.offset)?.header.version <= at {
                return Ok(Some(*spot));
            }
        }
        Ok(None)
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
        self.walk(place, (at, limit), &mut |guard, met| {
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
        let expected = count.saturating_add(1);
        self.walk(Place::Up(from.into_vec()), (u64::MAX, expected), &mut |guard, met| {
            if left == 0 {
                next = Some(Box::<[u8]>::from(met.key));
                return Ok(ControlFlow::Break(()));
            }
            if met.sure.is_ok() && met.view.header.kind == Kind::Put {
                // One that has expired is a step, too: there may be many of them behind each other.
                left -= 1;
            }
            if met.is_live && met.sure.is_ok() {
                self.show(guard, &met.view, met.ticket, false, &mut |record| {
                    visit(entry(met.key, record));
                })?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let Some(key) = next else {
            self.check_all()?;
            self.cursors.lock().end(cursor);
            return Ok(0);
        };
        Ok(self.cursors.lock().remember(cursor, key))
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
        self.walk(Place::Up(Vec::new()), (u64::MAX, usize::MAX), &mut |guard, met| {
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
        self.walk(Place::Up(Vec::new()), (u64::MAX, usize::MAX), &mut |_, met| {
            met.sure?;
            Ok(ControlFlow::Continue(()))
        })
    }
}

fn entry<'a>(key: &'a [u8], record: Record<'a>) -> Entry<'a> {
    Entry { key, sequence: record.sequence, record: Some(record) }
}
