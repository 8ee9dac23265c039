//! Reads of single keys.

use super::{Count, Store};
use crate::map::Map;
use coreplane_engine::{Found, Horizon, Record, Result, Ticket, UnixMillis, Visibility};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::sync::atomic::Ordering;

/// How a version stands to a reader.
pub(super) enum Seen<'g> {
    /// It is to be shown.
    Live(View<'g>),
    /// There is none: nothing was found, or a tombstone, or it has expired.
    Gone(Option<View<'g>>),
    /// It is not durable and not to be seen before: the groups are to be committed.
    Hidden,
    /// Its time has passed, which is to be made known first.
    Expired(UnixMillis),
}

impl Store {
    /// How the record at `offset` stands. One that says that there is nothing is held against its checksum: else a flipped
    /// bit of its kind or its expiry would be a loss in silence.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
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

    /// The same of one that is not hidden.
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

    /// Fails if a version of a key that was found may not be the newest, or, if none was, there may have been one.
    ///
    /// # Errors
    /// [`Error::Corrupt`](coreplane_engine::Error::Corrupt), which says so.
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

    /// Holds what says that there is nothing against its checksum.
    ///
    /// # Errors
    /// If it is damaged.
    pub(super) fn check_gone(&self, view: &View<'_>) -> Result<()> {
        if mutant!("mvcc.read.gone") {
            return Ok(());
        }
        self.volume.check(view)
    }

    /// How it stands that there is no such key.
    pub(super) fn see_none<'g>(&self, map: &dyn Map, key: &[u8]) -> (Seen<'g>, Ticket) {
        let seen = if map.hides_absence(Some(key)) { Seen::Hidden } else { Seen::Gone(None) };
        (seen, self.rests_on_absence())
    }

    /// Does what has to be done, without the map, before a version can be seen.
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

    pub(crate) fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        loop {
            let map = self.map.read();
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
                continue;
            }
            if !ticket.is_durable() && visibility == Visibility::Durable {
                drop(map);
                self.pass(ticket, visibility)?;
                continue;
            }
            let hit = if let Seen::Live(view) = &seen {
                self.show(&guard, view, ticket, false, visit)?;
                true
            } else {
                false
            };
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
        loop {
            let map = self.map.read();
            let guard = epoch::pin();
            let mut horizon = Horizon::new();
            let mut all: Vec<(Option<View<'_>>, Ticket)> = Vec::with_capacity(keys.len());
            let mut first = None;
            for key in keys {
                let newest = map.newest(&guard, key)?;
                let (seen, ticket) = match newest {
                    None => self.see_none(&**map, key),
                    Some(offset) => {
                        (self.see(&**map, &guard, offset)?, self.rests_on(&**map, offset))
                    }
                };
                if !matches!(seen, Seen::Hidden) {
                    self.check_sure(&**map, &guard, newest)?;
                }
                horizon.include(ticket);
                match seen {
                    Seen::Live(view) => all.push((Some(view), ticket)),
                    Seen::Gone(_) => all.push((None, ticket)),
                    seen => {
                        first = Some(seen);
                        break;
                    }
                }
            }
            if let Some(seen) = first {
                drop(map);
                self.uncover(&seen)?;
                continue;
            }
            if visibility == Visibility::Durable && !horizon.is_empty() {
                drop(map);
                self.wait_durable(&horizon)?;
                continue;
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
            let hits = all.iter().filter(|(view, _)| view.is_some()).count();
            self.add(Count::Hits, hits as i64);
            self.add(Count::Misses, (keys.len() - hits) as i64);
            return Ok(horizon);
        }
    }
}
