//! Reads of many keys, in their order: scans, iterations, changes.
//!
//! ```text
//!   with the map       a ─▶ 12   b ─▶ 7   c ─▶ 3, 31   …      the offsets of the records of some keys
//!   without it         12: a = …   7: b = …   31: too new, 3: c = …
//! ```
//!
//! The map is held for some keys at a time, so that writers get it in between, and only to find the offsets of their
//! records. The epoch that is pinned before keeps the bytes of these records; but a page that is given up can no
//! longer be reached by a thread that has not looked at it before: then the key is read again while the map is held.
//! So are large values, which have pages of their own.
//!
//! A walk that meets a *gap*, keys which the map cannot find for damage, shows it in the place of these keys, as it
//! shows a damaged record, and goes on behind it.
//!
//! A walk that meets a record which is not durable, or an expiry that no caller was told of, makes it durable or
//! known, and continues there.

use super::Store;
use super::durable::Reading;
use super::read::Seen;
use super::upkeep::offset_of;
use crate::key::Key;
use crate::map::{self, Way};
use coreplane_engine::{Entry, Error, Record, Result, Ticket};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::{LINE, mutant, spin};
use coreplane_record::{Kind, View};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Keys that are found before the map is released.
const STEP: usize = 32;

/// Steps after which a walk yields its processor once: a thread on the same processor that looks for the map would
/// find it held whenever this thread is suspended in the midst of a step.
const STEPS: usize = 8;

/// Lines of a record that are prefetched.
const LINES: u64 = 3;

/// The place at which a walk continues.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Up(Vec<u8>),
    Down(Option<Vec<u8>>),
}

/// The place that an iteration has reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reached {
    key: Box<[u8]>,
    /// The offset of the first damage that it has passed over, and its error.
    passed: Option<(u64, Box<str>)>,
}

/// A step of a walk.
#[derive(Clone, Copy)]
struct Step {
    /// The greatest version that is shown.
    at: u64,
    /// Keys at most.
    most: usize,
    /// The map is held while records are read.
    holds: bool,
    /// Large values are read, for which the map is held.
    reads_large: bool,
}

/// The way in which a walk continues.
enum Next {
    At(Place),
    /// At that place, holding the map.
    Again(Place),
    End,
}

impl Place {
    /// The place in the same direction with this key as the next.
    fn at(&self, key: &[u8]) -> Self {
        match self {
            Self::Up(_) => Self::Up(key.to_vec()),
            // A bound itself is not shown.
            Self::Down(_) => Self::Down(Some([key, &[0]].concat())),
        }
    }
}

/// The place of a version of a key that is searched for, and its state when it was found.
#[derive(Clone, Copy)]
struct Spot {
    offset: u64,
    is_hidden: bool,
    ticket: Ticket,
}

/// A key that was found, or the first of the keys of a gap.
struct Found {
    key: Key,
    what: std::result::Result<Spots, Gap>,
}

/// The versions of a key.
struct Spots {
    newest: Spot,
    /// If there are several versions, those before it, the newest last.
    older: Vec<Spot>,
    /// An error if it may not be the newest.
    sure: Result<()>,
}

/// Keys that the map cannot find.
struct Gap {
    error: Error,
    end: Option<Box<[u8]>>,
}

/// A key that a walk meets, live or not.
pub(super) struct Met<'a, 'g> {
    pub(super) key: &'a [u8],
    /// It stands for this key and those behind it, which cannot be found, up to the one before this; up to the last
    /// one if there is none.
    pub(super) gap: Option<Option<&'a [u8]>>,
    /// The offset of its record.
    pub(super) offset: u64,
    /// Its record; an error if it cannot be read, or may not be the newest.
    pub(super) view: Result<View<'g>>,
    pub(super) is_live: bool,
    pub(super) ticket: Ticket,
}

impl Met<'_, '_> {
    /// True if it is below this key, and all that it stands for.
    fn is_below(&self, key: &[u8]) -> bool {
        self.gap.map_or(self.key < key, |end| end.is_some_and(|end| end <= key))
    }
}

/// Called with each key that is met.
type Visit<'v> = &'v mut dyn FnMut(&Guard, Met<'_, '_>) -> Result<ControlFlow<()>>;

impl Store {
    /// Shows keys with their newest version not above `at`, until `visit` breaks, expected after `expected` keys.
    pub(super) fn walk(
        &self,
        place: Place,
        (at, expected): (u64, usize),
        visit: Visit<'_>,
    ) -> Result<()> {
        let most = STEP.min(expected.max(1));
        let step = Step { at, most, holds: self.check_reads, reads_large: true };
        self.walk_while(place, step, &|| true, visit).map(drop)
    }

    /// Shows keys from this one on with their newest version, as long as `goes_on`. Large values are not read. Returns
    /// the key from which to go on; none at the end.
    pub(super) fn walk_over(
        &self,
        from: Vec<u8>,
        goes_on: &dyn Fn() -> bool,
        visit: Visit<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let step = Step { at: u64::MAX, most: STEP, holds: false, reads_large: false };
        Ok(match self.walk_while(Place::Up(from), step, goes_on, visit)? {
            Some(Place::Up(key)) => Some(key),
            _ => None,
        })
    }

    /// Shows keys as long as `goes_on` and until `visit` breaks; returns the place at which to go on, none at the end.
    fn walk_while(
        &self,
        place: Place,
        step: Step,
        goes_on: &dyn Fn() -> bool,
        visit: Visit<'_>,
    ) -> Result<Option<Place>> {
        let (mut found, mut next) = (Vec::new(), Next::At(place));
        for made in 1_usize.. {
            let (place, this) = match next {
                Next::At(place) if !goes_on() => return Ok(Some(place)),
                Next::At(place) => (place, step),
                Next::Again(place) => (place, Step { most: 1, holds: true, ..step }),
                Next::End => break,
            };
            next = self.walk_some(&place, this, &mut found, visit)?;
            if made.is_multiple_of(STEPS) {
                spin::yield_processor();
            }
        }
        Ok(None)
    }

    /// Shows some keys; returns where to continue.
    fn walk_some(
        &self,
        place: &Place,
        Step { at, most, holds, reads_large }: Step,
        found: &mut Vec<Found>,
        visit: Visit<'_>,
    ) -> Result<Next> {
        found.clear();
        let guard = epoch::pin();
        let (map, next) = self.find_some(&guard, place, (at, most), found)?;
        let map = holds.then_some(map);
        // The lines of all records are on their way when the first is read.
        let spots = found.iter().filter_map(|it| it.what.as_ref().ok());
        for spot in spots.flat_map(|it| it.older.iter().chain([&it.newest])) {
            (0..LINES)
                .for_each(|line| self.volume.space.prefetch(spot.offset + line * LINE as u64));
        }
        let mut rest = found.drain(..);
        while let Some(Found { key, what }) = rest.next() {
            let Spots { newest, older, sure } = match what {
                Ok(spots) => spots,
                Err(gap) => match self.show_gap(&guard, &key, gap, visit)? {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(()) => return Ok(Next::End),
                },
            };
            let (seen, spot) = match self.see_at(&guard, newest, &older, at) {
                Ok(Some((seen, spot))) => (Ok(seen), spot),
                // All its versions are newer.
                Ok(None) => {
                    let newer = self.volume.view(&guard, newest.offset);
                    (newer.map(|view| Seen::Gone(Some(view))), newest)
                }
                Err(_) if !holds && !mutant!("mvcc.walk.again") => {
                    return Ok(Next::Again(place.at(&key)));
                }
                Err(error) => (Err(error), newest),
            };
            let (view, is_live) = match seen {
                Ok(Seen::Live(view)) if view.header.large && !holds && reads_large => {
                    return Ok(Next::Again(place.at(&key)));
                }
                Ok(Seen::Live(view)) => (Ok(view), true),
                Ok(Seen::Gone(Some(view))) => (Ok(view), false),
                Ok(Seen::Gone(None)) => continue,
                Ok(seen) => {
                    let seen = self.with_expiries(&guard, seen, rest, at);
                    drop(map);
                    self.uncover(&seen)?;
                    return Ok(Next::At(place.at(&key)));
                }
                Err(error) => (Err(error), false),
            };
            let view = view.and_then(|view| sure.map(|()| view));
            let Spot { offset, ticket, .. } = spot;
            let met = Met { key: &key, gap: None, offset, view, is_live, ticket };
            if visit(&guard, met)?.is_break() {
                return Ok(Next::End);
            }
        }
        Ok(next)
    }

    fn show_gap(
        &self,
        guard: &Guard,
        key: &[u8],
        Gap { error, end }: Gap,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let (gap, view) = (Some(end.as_deref()), Err(error));
        visit(guard, Met { key, gap, offset: 0, view, is_live: false, ticket: Ticket::DURABLE })
    }

    /// What [`Store::uncover`] gets: of an expiry the greatest of it and of those `behind` that have passed, too, since
    /// it takes several fences to make one known.
    fn with_expiries<'g>(
        &self,
        guard: &Guard,
        seen: Seen<'g>,
        behind: impl Iterator<Item = Found>,
        at: u64,
    ) -> Seen<'g> {
        let Seen::Expired(first) = seen else { return seen };
        let behind = behind.filter_map(|it| it.what.ok());
        let passed = behind.filter_map(|it| match self.see_at(guard, it.newest, &it.older, at) {
            Ok(Some((Seen::Expired(expiry), _))) => Some(expiry),
            _ => None,
        });
        Seen::Expired(passed.fold(first, Ord::max))
    }

    /// The state and place of the newest version not above `at`, if there is one.
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

    /// Finds some keys; returns the map that has them, and where to continue.
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
            if found.len() == most {
                next = Next::At(place.at(key));
                return Ok(false);
            }
            let (newest, older) = match versions {
                Ok(versions) => match versions.split_last() {
                    Some(versions) => versions,
                    None => return Ok(true),
                },
                Err(map::Gap { error, end }) => {
                    let gap = Gap { error, end: end.map(Box::from) };
                    found.push(Found { key: Key::new(key), what: Err(gap) });
                    return Ok(true);
                }
            };
            let older: Vec<Spot> = older.iter().copied().map(spot).collect();
            let (key, newest) = (Key::new(key), spot(*newest));
            let sure = match is_damaged {
                false => Ok(()),
                true => match self.spot_at(guard, newest, &older, at) {
                    Ok(Some(spot)) => map.check_sure(guard, Some(spot.offset)),
                    // Not shown, or reported where it is met.
                    Ok(None) | Err(_) => Ok(()),
                },
            };
            found.push(Found { key, what: Ok(Spots { newest, older, sure }) });
            Ok(true)
        })?;
        Ok((map, next))
    }

    /// The place of the newest version that is not above `at`. The checksums of those above it are verified: otherwise
    /// a flipped bit of a version would leave the key out, or show an older value.
    ///
    /// # Errors
    /// If one of them is damaged, or cannot be read.
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
            if !self.volume.is_above(&self.volume.view(guard, spot.offset)?, at)? {
                return Ok(Some(*spot));
            }
        }
        Ok(None)
    }

    /// Shows live records of a range, and between those of a pin, as entries without a record, the keys that have none
    /// at that time: there may be many in a row. They do not count against the limit.
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
                true => met.is_below(start),
            };
            if is_beyond {
                return Ok(ControlFlow::Break(()));
            }
            let view = met.view?;
            let mut goes_on = true;
            if met.is_live {
                left -= 1;
                self.show(guard, &view, met.ticket, self.check_reads, &mut |record| {
                    goes_on = visit(entry(met.key, record));
                })?;
            } else if at < u64::MAX {
                goes_on = visit(Entry { key: met.key, record: None, sequence: view.sequence() });
            }
            Ok(if goes_on && left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })
    }

    /// Shows some live records from `cursor` on; returns the next cursor. An iteration passes over keys that cannot
    /// be read, and is an error at its end, although they may have been written again by then: they were not shown.
    pub(super) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let Reached { key, mut passed } = self.cursors.lock().place_of(cursor);
        let (mut left, mut next) = (count.max(1), None);
        let expected = count.saturating_add(1);
        self.walk(Place::Up(key.into_vec()), (u64::MAX, expected), &mut |guard, met| {
            if left == 0 {
                next = Some(Box::<[u8]>::from(met.key));
                return Ok(ControlFlow::Break(()));
            }
            let shown = met.view.and_then(|view| {
                // An expired one is a step, too: there may be many of them in a row.
                left -= usize::from(view.header.kind == Kind::Put);
                if !met.is_live {
                    return Ok(());
                }
                self.show(guard, &view, met.ticket, false, &mut |record| {
                    visit(entry(met.key, record));
                })
            });
            if let Err(error) = shown {
                passed.get_or_insert_with(|| (offset_of(&error), error.to_string().into()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(key) = next {
            return Ok(self.cursors.lock().remember(cursor, Reached { key, passed }));
        }
        if let Some((offset, error)) = passed.filter(|_| !mutant!("mvcc.iterate.passed")) {
            let what = format!("not all records could be read and shown: {error}");
            return Err(Error::Corrupt { offset, what });
        }
        self.map.read().check_complete()?;
        self.cursors.lock().end(cursor);
        Ok(0)
    }

    /// Shows all changes with a sequence above `sequence`, tombstones too, except damaged records, which are an error at
    /// the end.
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
        let mut sound = Ok(());
        self.walk(Place::Up(Vec::new()), (u64::MAX, usize::MAX), &mut |guard, met| {
            let shown = met.view.and_then(|view| {
                let its = view.sequence();
                if its > sequence && met.is_live {
                    self.show(guard, &view, met.ticket, true, &mut |record| {
                        visit(entry(met.key, record));
                    })?;
                } else if its > sequence {
                    visit(Entry { key: met.key, record: None, sequence: its });
                }
                Ok(())
            });
            // A change that is not known to be the last is not shown: callers have another copy of it.
            if sound.is_ok() {
                sound = shown;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        check()?;
        self.map.read().check_complete()?;
        sound
    }
}

fn entry<'a>(key: &'a [u8], record: Record<'a>) -> Entry<'a> {
    Entry { key, sequence: record.sequence, record: Some(record) }
}
