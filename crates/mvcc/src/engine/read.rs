//! Reads of single keys.

use super::durable::Reading;
use super::{Count, Store};
use crate::map::Map;
use coreplane_engine::{Found, Horizon, Record, Result, Ticket, UnixMillis, Value, Visibility};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::sync::atomic::Ordering;

/// The state of a version for a reader.
pub(super) enum Seen<'g> {
    /// A live record.
    Live(View<'g>),
    /// No record is visible: none was found, or a tombstone, or it has expired.
    Gone(Option<View<'g>>),
    /// It is not durable, and so not visible: the groups have to be committed.
    Hidden,
    /// Its expiry has passed, which has to be made durable first.
    Expired(UnixMillis),
}

impl Store {
    /// The state of the record at `offset`. The checksum of a record that means absence is verified: otherwise a
    /// flipped bit of its kind or its expiry would be a silent loss.
    ///
    /// # Errors
    /// If there is no record, or it is damaged.
    pub(super) fn see<'g>(
        &'g self,
        map: &dyn Map,
        guard: &'g epoch::Guard,
        offset: u64,
    ) -> Result<Seen<'g>> {
        if map.stream().is_hidden(offset) {
            return Ok(Seen::Hidden);
        }
        self.see_shown(guard, offset)
    }

    /// The same for a record that is not hidden.
    ///
    /// # Errors
    /// As [`Store::see`].
    pub(super) fn see_shown<'g>(
        &'g self,
        guard: &'g epoch::Guard,
        offset: u64,
    ) -> Result<Seen<'g>> {
        let view = self.volume.view(guard, offset)?;
        if view.header.kind != Kind::Put {
            self.check_gone(&view)?;
            return Ok(Seen::Gone(Some(view)));
        }
        let Some(at) = view.header.expires_at.filter(|at| *at <= self.volume.now()) else {
            return Ok(Seen::Live(view));
        };
        self.check_gone(&view)?;
        Ok(if self.volume.is_told_expired(at) { Seen::Gone(Some(view)) } else { Seen::Expired(at) })
    }

    /// Fails if the version of a key that was found may not be the newest, or, if none was found, there may have been
    /// one.
    ///
    /// # Errors
    /// [`Error::Corrupt`](coreplane_engine::Error::Corrupt) in that case.
    #[inline]
    pub(super) fn check_sure(
        &self,
        map: &dyn Map,
        guard: &Guard,
        found: Option<u64>,
    ) -> Result<()> {
        if !self.volume.damaged.load(Ordering::Relaxed) {
            return Ok(());
        }
        map.check_sure(guard, found)
    }

    /// Verifies the checksum of a record that means absence.
    ///
    /// # Errors
    /// If it is damaged.
    pub(super) fn check_gone(&self, view: &View<'_>) -> Result<()> {
        if mutant!("mvcc.read.gone") {
            return Ok(());
        }
        self.volume.check(view)
    }

    /// The state of an absent key, and the ticket that its absence depends on.
    pub(super) fn see_none<'g>(&self, map: &dyn Map, key: &[u8]) -> (Seen<'g>, Ticket) {
        let seen = if map.hides_absence(Some(key)) { Seen::Hidden } else { Seen::Gone(None) };
        (seen, self.rests_on_absence())
    }

    /// Does what is needed before a version can be seen. The caller does not hold the map.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn uncover(&self, seen: &Seen<'_>) -> Result<()> {
        match seen {
            Seen::Hidden => self.commit_all(&mut self.writing()?),
            Seen::Expired(at) => self.volume.has_passed(*at).map(drop),
            Seen::Live(_) | Seen::Gone(_) => Ok(()),
        }
    }

    /// The map for reading; when a read is repeated, with no hidden record in it, however fast others write.
    fn to_look(&self, is_again: bool) -> Result<Reading<'_>> {
        if is_again && !mutant!("mvcc.read.starved") { self.exposed() } else { Ok(self.map.read()) }
    }

    /// A copy of a record that was seen, to be shown when it is durable, whatever the key has by then.
    fn copy(&self, guard: &Guard, view: &View<'_>) -> Result<Copied> {
        let mut copied = Copied { value: Vec::new(), sequence: 0, expires_at: None };
        self.show(guard, view, Ticket::DURABLE, false, &mut |record| {
            let Record { value, sequence, expires_at, .. } = record;
            copied = Copied { value: value.to_vec(), sequence, expires_at };
        })?;
        Ok(copied)
    }

    pub(crate) fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.find(key, (visibility, false), visit)
    }

    /// The same; the whole record is verified if it `is_checked`.
    pub(super) fn find(
        &self,
        key: &[u8],
        (visibility, is_checked): (Visibility, bool),
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let mut is_again = false;
        loop {
            let map = self.to_look(is_again)?;
            let guard = epoch::pin();
            let newest = map.newest(&guard, key)?;
            let (seen, ticket) = match newest {
                None => self.see_none(&**map, key),
                Some(offset) => (self.see(&**map, &guard, offset)?, self.rests_on(&**map, offset)),
            };
            if !matches!(seen, Seen::Hidden) {
                self.check_sure(&**map, &guard, newest)?;
            }
            if matches!(seen, Seen::Hidden | Seen::Expired(_)) {
                drop(map);
                self.uncover(&seen)?;
                is_again = true;
                continue;
            }
            let live = if let Seen::Live(view) = &seen { Some(view) } else { None };
            if !ticket.is_durable() && visibility == Visibility::Durable {
                // The read has waited once, and the key was written again since: that could go on for ever.
                let is_last = is_again && !mutant!("mvcc.read.starved");
                let copied = live.filter(|_| is_last).map(|view| self.copy(&guard, view));
                let (copied, hit) = (copied.transpose()?, live.is_some());
                drop((map, guard));
                self.pass(ticket, visibility)?;
                if !is_last {
                    is_again = true;
                    continue;
                }
                copied.iter().for_each(|it| it.show(visit));
                self.add(if hit { Count::Hits } else { Count::Misses }, 1);
                return Ok(Found { hit, ticket: Ticket::DURABLE });
            }
            if let Some(view) = live {
                self.show(&guard, view, ticket, is_checked, visit)?;
            }
            let hit = live.is_some();
            self.add(if hit { Count::Hits } else { Count::Misses }, 1);
            return Ok(Found { hit, ticket });
        }
    }

    pub(crate) fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let mut is_again = false;
        loop {
            let map = self.to_look(is_again)?;
            let guard = epoch::pin();
            let (all, horizon) = match self.look_at_all(&map, &guard, keys)? {
                Ok(looked) => looked,
                Err(seen) => {
                    drop(map);
                    self.uncover(&seen)?;
                    is_again = true;
                    continue;
                }
            };
            let hits = all.iter().filter(|(view, _)| view.is_some()).count();
            if visibility == Visibility::Durable && !horizon.is_empty() {
                let is_last = is_again && !mutant!("mvcc.read.starved");
                let mut copied = Vec::new();
                for (view, _) in all.iter().filter(|_| is_last) {
                    copied.push(view.as_ref().map(|view| self.copy(&guard, view)).transpose()?);
                }
                drop(all);
                drop((map, guard));
                self.wait_durable(&horizon)?;
                if !is_last {
                    is_again = true;
                    continue;
                }
                for (index, copied) in copied.iter().enumerate() {
                    match copied {
                        None => visit(index, None),
                        Some(it) => it.show(&mut |record| visit(index, Some(record))),
                    }
                }
                self.count_looks(hits, keys.len());
                return Ok(Horizon::new());
            }
            for (index, (view, ticket)) in all.iter().enumerate() {
                match view {
                    None => visit(index, None),
                    Some(view) => {
                        let mut shown = |record: Record<'_>| visit(index, Some(record));
                        self.show(&guard, view, *ticket, false, &mut shown)?;
                    }
                }
            }
            self.count_looks(hits, keys.len());
            return Ok(horizon);
        }
    }

    fn count_looks(&self, hits: usize, of: usize) {
        self.add(Count::Hits, hits as i64);
        self.add(Count::Misses, (of - hits) as i64);
    }

    /// The live records of keys at one moment, and the tickets they depend on. An inner `Err` is no failure, but a
    /// state that [`Store::uncover`] has to handle first.
    fn look_at_all<'g>(
        &'g self,
        map: &Reading<'_>,
        guard: &'g Guard,
        keys: &[&[u8]],
    ) -> Result<std::result::Result<Looked<'g>, Seen<'g>>> {
        let mut horizon = Horizon::new();
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            let newest = map.newest(guard, key)?;
            let (seen, ticket) = match newest {
                None => self.see_none(&***map, key),
                Some(offset) => (self.see(&***map, guard, offset)?, self.rests_on(&***map, offset)),
            };
            if !matches!(seen, Seen::Hidden) {
                self.check_sure(&***map, guard, newest)?;
            }
            horizon.include(ticket);
            match seen {
                Seen::Live(view) => all.push((Some(view), ticket)),
                Seen::Gone(_) => all.push((None, ticket)),
                seen => return Ok(Err(seen)),
            }
        }
        Ok(Ok((all, horizon)))
    }
}

/// The records of some keys, and the tickets they depend on.
type Looked<'g> = (Vec<(Option<View<'g>>, Ticket)>, Horizon);

/// A copy of a record that is durable when it is shown.
struct Copied {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

impl Copied {
    fn show(&self, visit: &mut dyn FnMut(Record<'_>)) {
        let Self { value, sequence, expires_at } = self;
        let (value, ticket) = (Value::Whole(value), Ticket::DURABLE);
        visit(Record { value, sequence: *sequence, expires_at: *expires_at, ticket });
    }
}
