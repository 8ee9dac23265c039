//! The commit of all changes, and what it does beside.

use super::LogMap;
use crate::engine::durable::Writing;
use coreplane_engine::{Result, Ticket};
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

/// How many steps of release there are at a time.
const IN_TIME: usize = 16;

impl LogMap {
    /// Makes all earlier changes durable, or requests it; returns the ticket to wait for.
    ///
    /// Where a fence is an instruction they are durable when this returns, by one fence, or none if nothing is new;
    /// by two if the cleaner of a tree has moved records. Where it is a sync, one is requested.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn commit(&self) -> Result<Ticket> {
        let store = &self.store;
        let mut map = store.map.write();
        store.check_writable()?;
        // Moved records share the fence or sync, and nothing is hidden from the next apply.
        map.tidy()?;
        if store.volume.space.fences_at_once() {
            store.commit_all(&mut map)?;
            self.release(&mut map)?;
            return Ok(Ticket::DURABLE);
        }
        self.release(&mut map)?;
        map.seal()?;
        if map.stream().is_uncovered() {
            map.stream_mut().cover(true);
        }
        let generation = map.stream().pending();
        map.settle();
        drop(map);
        let Some(generation) = generation else { return Ok(Ticket::DURABLE) };
        store.volume.space.sync_request(generation);
        Ok(Ticket::new(0, generation))
    }

    /// Drops a few of the versions that only dropped snapshots have seen: called from time to time, so that they go
    /// where no commits come.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn release_in_time(&self) -> Result<()> {
        let mut map = self.store.map.write();
        // A closed map stays as it is.
        if !map.is_release_due() || self.store.check_writable().is_err() {
            return Ok(());
        }
        if map.stream().is_hiding() {
            self.store.commit_all(&mut map)?;
        }
        self.appended.fetch_max(IN_TIME, Ordering::Relaxed);
        self.release(&mut map)
    }

    /// Drops some of the versions that only dropped snapshots have seen: more than the changes since the last commit
    /// can have added, and no more than in proportion to them, since the caller may serve others, too. Called where
    /// no record is hidden.
    fn release(&self, map: &mut Writing<'_>) -> Result<()> {
        let (guard, changes) = (epoch::pin(), self.appended.swap(0, Ordering::Relaxed));
        for _ in 0..=changes {
            if !map.release_some(&guard)? {
                break;
            }
        }
        Ok(())
    }
}
