//! A pinned version: the store as it was then, while writes and the cleaner go on.

use super::Store;
use super::durable::Writing;
use super::read::Seen;
use coreplane_engine::{Entry, Record, Result, Snapshot, Ticket};
use coreplane_pmem::{epoch, spin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Steps of a release after which its thread yields its processor once, for threads on it that wait for the map.
const STEPS: usize = 32;

/// A pinned version.
pub(crate) struct Pinned {
    store: Arc<Store>,
    pub(super) version: u64,
}

impl Pinned {
    /// Pins the current state; durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn now(store: &Arc<Store>) -> Result<Self> {
        let pinned = Self::within(store, &mut store.writing()?)?;
        store.sync()?;
        Ok(pinned)
    }
}

impl Pinned {
    /// The same for a caller that holds the map; on file media durable only after a sync.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn within(store: &Arc<Store>, map: &mut Writing<'_>) -> Result<Self> {
        store.commit_all(map)?;
        let version = store.next_version.load(Ordering::Relaxed) - 1;
        map.pin(version);
        Ok(Self { store: Arc::clone(store), version })
    }
}

impl Pinned {
    /// Shows the keys of a range in order, until `visit` returns false: each with its record of that moment, if it had
    /// one.
    ///
    /// # Errors
    /// As [`Snapshot::scan`].
    pub(crate) fn walk(
        &self,
        range: (&[u8], Option<&[u8]>),
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.store.scan_at(range, false, (usize::MAX, self.version), visit)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Hidden records cannot be read. Versions of records that cannot be read stay.
        let release = |map: &mut Writing<'_>| {
            let _best_effort = self.store.commit_all(map).is_ok();
            map.release_some(&epoch::pin())
        };
        let is_log = {
            let mut map = self.store.map.write();
            map.unpin(self.version);
            map.log().is_some()
        };
        if is_log {
            // Its commits release: the thread that drops may be the one that serves all clients.
            return;
        }
        for step in 1_usize.. {
            if !release(&mut self.store.map.write()).unwrap_or(false) {
                return;
            }
            spin::leave();
            if step.is_multiple_of(STEPS) {
                spin::yield_processor();
            }
        }
    }
}

impl Snapshot for Pinned {
    fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        loop {
            let map = self.store.exposed()?;
            let guard = epoch::pin();
            let version = map.version_at(&guard, key, self.version)?;
            self.store.check_sure(&**map, &guard, version)?;
            let Some(offset) = version else { return Ok(false) };
            match self.store.see(&**map, &guard, offset)? {
                Seen::Gone(_) => return Ok(false),
                Seen::Live(view) => {
                    self.store.show(&guard, &view, Ticket::DURABLE, false, visit)?;
                    return Ok(true);
                }
                seen => {
                    drop(map);
                    self.store.uncover(&seen)?;
                }
            }
        }
    }

    fn sequence(&self) -> u64 {
        self.version
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.store.scan_at((start, end), reverse, (limit, self.version), &mut |entry| {
            entry.record.is_none() || visit(entry)
        })
    }
}
