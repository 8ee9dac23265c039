//! Reading pending entries and applied records.

use super::{Gate, LogMap, check_range, no_log};
use crate::control::closing;
use crate::engine::snapshot::Pinned;
use crate::map::Places;
use coreplane_engine::{
    ChangeRef, Entry, Error, Found, Horizon, Record, Result, Snapshot, Visibility,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use parking_lot::RwLockReadGuard;
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// A pending entry.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'a> {
    /// Its timestamp.
    pub timestamp: u64,
    /// The header that its writer has given.
    pub header: &'a [u8],
    /// Its changes in the order of their keys, each key once.
    pub changes: &'a [ChangeRef<'a>],
}

/// The pages of a large value, with the part of it in each.
type Chain<'g> = Vec<(u32, &'g [u8])>;

/// The records of an entry.
struct Views<'g> {
    /// With the pages of their values, if these are large.
    changes: Vec<(View<'g>, Chain<'g>)>,
    closing: View<'g>,
}

impl LogMap {
    /// Shows the pending entries from `from` to `to`, in order, until `visit` returns false. Verifies the checksums
    /// of each.
    ///
    /// # Errors
    /// [`Error::HistoryGone`] for applied entries; [`Error::OutOfRange`] for entries that do not exist;
    /// [`Error::Installing`]; [`Error::ChecksumMismatch`], [`Error::Corrupt`]; if the medium fails.
    pub fn entries(
        &self,
        range: std::ops::RangeInclusive<u64>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<()> {
        for timestamp in range {
            let guard = epoch::pin();
            let views = self.views(&guard, timestamp, true)?;
            if !self.show_entry(timestamp, &views, visit)? {
                break;
            }
        }
        Ok(())
    }

    /// The header of a pending entry, or of the one that was applied last; none for others.
    ///
    /// # Errors
    /// [`Error::ChecksumMismatch`], [`Error::Corrupt`]; if the medium fails.
    pub fn header(&self, timestamp: u64) -> Result<Option<Vec<u8>>> {
        let guard = epoch::pin();
        match self.views(&guard, timestamp, false) {
            Ok(views) => Ok(Some(closing(&views.closing)?.1.to_vec())),
            Err(Error::HistoryGone { .. } | Error::OutOfRange { .. } | Error::Installing) => {
                let control = self.control();
                let is_it = control.applied == timestamp && timestamp > 0;
                Ok((is_it && !control.is_installing).then_some(control.applied_header))
            }
            Err(error) => Err(error),
        }
    }

    /// The current records of a pending entry, including its changes if it `is_whole`. They stay as long as the
    /// guard. Their checksums are verified while the map is held: otherwise the lives of their pages are not known.
    fn views<'g>(&'g self, guard: &'g Guard, timestamp: u64, is_whole: bool) -> Result<Views<'g>> {
        let store = &self.store;
        let view = |offset| {
            let view = store.volume.view(guard, offset)?;
            store.volume.check(&view)?;
            let chain = match view.header.large {
                true => store.volume.chain(guard, view.value(), true)?,
                false => Vec::new(),
            };
            Ok((view, chain))
        };
        loop {
            let map = store.map.read();
            let log = map.log().ok_or_else(no_log)?;
            let control = log.control();
            if control.is_installing {
                return Err(Error::Installing);
            }
            if timestamp <= control.applied {
                return Err(Error::HistoryGone { asked: timestamp, horizon: control.applied });
            }
            check_range("read an entry", timestamp, (control.applied + 1, control.newest))?;
            let missing = || Error::Unusable(format!("entry {timestamp} is not there"));
            let Places { changes, closing } = log.pending(guard, timestamp)?.ok_or_else(missing)?;
            let is_hidden = |offset: &u64| map.stream().is_hidden(*offset);
            if changes.iter().chain([&closing]).any(is_hidden) {
                drop(map);
                store.commit_all(&mut store.map.write())?;
                continue;
            }
            let changes = if is_whole { changes } else { Vec::new() };
            let changes = changes.into_iter().map(view).collect::<Result<_>>()?;
            return Ok(Views { changes, closing: view(closing)?.0 });
        }
    }

    fn show_entry(
        &self,
        timestamp: u64,
        views: &Views<'_>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<bool> {
        let values = views.changes.iter().map(|(view, chain)| match view.header.large {
            false => Cow::Borrowed(view.value()),
            true => Cow::Owned(chain.iter().flat_map(|(_, part)| *part).copied().collect()),
        });
        let values: Vec<Cow<'_, [u8]>> = values.collect();
        let changes = views.changes.iter().zip(&values).map(|((view, _), value)| {
            let (key, expires_at) = (view.key(), view.header.expires_at);
            match view.header.kind {
                Kind::Delete => ChangeRef::Delete { key },
                _ => ChangeRef::Put { key, value, expires_at },
            }
        });
        let changes: Vec<ChangeRef<'_>> = changes.collect();
        let header = closing(&views.closing)?.1;
        Ok(visit(LogEntry { timestamp, header, changes: &changes }))
    }

    /// # Errors
    /// [`Error::Installing`]; [`Error::Unusable`] after a change that has failed halfway.
    fn enter(&self) -> Result<RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read();
        if self.is_broken.load(Ordering::Acquire) {
            let what = "a change has failed halfway: the pool is to be opened again".to_owned();
            return Err(Error::Unusable(what));
        }
        match *gate {
            Gate::Open => Ok(gate),
            Gate::Installing(_) => Err(Error::Installing),
        }
    }

    /// Shows the applied record of a key. Its sequence is the timestamp of the entry that wrote it.
    ///
    /// # Errors
    /// [`Error::Installing`]; if the record is damaged, or the medium fails.
    pub fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let _gate = self.enter()?;
        self.store.get_with(key, visibility, visit)
    }

    /// The applied value of a key, once it is durable here.
    ///
    /// # Errors
    /// As [`LogMap::get_with`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        let mut take = |record: Record<'_>| value = Some(record.value.to_vec());
        let found = self.get_with(key, Visibility::Durable, &mut take)?;
        Ok(value.filter(|_| found.hit))
    }

    /// The number of applied records, including those that have expired.
    pub fn len(&self) -> u64 {
        self.store.map.read().len()
    }

    /// True if there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shows the records of several keys, by their indices.
    ///
    /// # Errors
    /// As [`LogMap::get_with`].
    pub fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let _gate = self.enter()?;
        self.store.multi_get(keys, visibility, visit)
    }

    /// Shows the applied records of a range in order, until `visit` returns false. Entries may be applied between
    /// steps of some keys; a [snapshot](LogMap::snapshot) shows one timestamp.
    ///
    /// # Errors
    /// As [`LogMap::get_with`].
    pub fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let _gate = self.enter()?;
        self.store.scan_at((start, end), reverse, (limit, u64::MAX), visit)
    }

    /// Pins the applied state, to be read or sent while entries go on. Waits for no sync: where a fence is one, what is
    /// not durable yet, the applied timestamp for one, is so with the next [commit](LogMap::commit).
    ///
    /// # Errors
    /// [`Error::Installing`]; if the medium fails.
    pub fn snapshot(&self) -> Result<LogSnapshot> {
        let _gate = self.enter()?;
        let (pinned, header, members) = {
            let mut map = self.store.map.write();
            // A pin takes the state that was sealed last.
            if !mutant!("mvcc.pending.snapshot") {
                map.seal()?;
            }
            let pinned = Pinned::within(&self.store, &mut map)?;
            let control = map.log().ok_or_else(no_log)?.control();
            (pinned, control.applied_header.clone(), control.members.clone())
        };
        Ok(LogSnapshot { pinned, header, members })
    }

    /// True if a state is pinned.
    pub fn is_pinned(&self) -> bool {
        let map = self.store.map.read();
        map.log().is_some_and(|log| log.oldest_pin().is_some())
    }
}

/// The applied state at one moment. When it is dropped, [commits](LogMap::commit) release the versions that it sees.
pub struct LogSnapshot {
    pinned: Pinned,
    header: Vec<u8>,
    members: Vec<u8>,
}

impl std::fmt::Debug for LogSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogSnapshot").field("timestamp", &self.timestamp()).finish_non_exhaustive()
    }
}

impl LogSnapshot {
    /// The timestamp that was applied last then.
    pub fn timestamp(&self) -> u64 {
        self.pinned.sequence()
    }

    /// The header of the entry with that timestamp.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The members at that time.
    pub fn members(&self) -> &[u8] {
        &self.members
    }

    /// Its records.
    pub fn records(&self) -> &dyn Snapshot {
        &self.pinned
    }

    /// Shows the keys of a range in order, until `visit` returns false: each with its record, if it had one then. A
    /// list knows later keys, too, and there may be many of them in a row.
    ///
    /// # Errors
    /// As [`LogMap::scan`].
    pub fn walk(
        &self,
        range: (&[u8], Option<&[u8]>),
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.pinned.walk(range, visit)
    }
}
