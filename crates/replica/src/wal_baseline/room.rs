//! Room in a pool, which is finite: a third each for an old checkpoint, the next one, and logs.
//!
//! A leader checks room for its entries before it appends them, as if the whole state, pending entries included, had
//! to be written three times. So a checkpoint can always be written, which makes the rest void: the next one is begun
//! when there is little more room than it needs, and a commit waits for it when there is none. A node whose pool is
//! as large as the leader's has room for the entries of the leader, whenever its own checkpoints come.
//!
//! Deletes may use more room than puts, since they free room.

use super::Inner;
use super::state::State;
use super::storage::{Room, Storage};
use crate::entry::CONTEXT_MAX;
use coreplane_engine::{Batch, Error, Result};
use parking_lot::RwLock;
use std::sync::Arc;

/// Most bytes of a frame and of its parts beside keys and values.
const FRAME_BYTES: u64 = 64;
/// The same for a change.
const CHANGE_BYTES: u64 = 24;

/// Most bytes of an entry in a log.
pub(super) fn len_of(header: usize, changes: &Batch) -> u64 {
    let len = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
    let changes = changes
        .changes()
        .map(|change| change.key().len() as u64 + len(change.value()) as u64 + CHANGE_BYTES);
    FRAME_BYTES + header as u64 + changes.sum::<u64>()
}

/// Most bytes of entries that are checked for room one by one before they are appended.
pub(super) fn at_once(room: Option<Room>) -> u64 {
    room.map_or(1 << 20, |room| (room.all / 128).clamp(room.least, 1 << 20))
}

/// Bytes that are always kept free: for entries that are checked together, for the log's own frames, and for pages
/// that are not full.
fn slack(room: Room) -> u64 {
    2 * at_once(Some(room)) + 8 * room.least
}

impl Inner {
    /// Most bytes of a checkpoint of this state, and of the log that is begun with it.
    pub(super) fn checkpoint_need(&self, state: &RwLock<State>) -> u64 {
        let control = self.control.applied_header.len() + self.control.members.len();
        state.read().bytes() + self.pending_bytes + 2 * (FRAME_BYTES + control as u64)
    }

    /// Fails if there is no room for an entry with these changes, and for so many bytes beside.
    pub(super) fn check_room(
        &self,
        storage: &dyn Storage,
        state: &RwLock<State>,
        changes: &Batch,
        beside: u64,
    ) -> Result<()> {
        let Some(room) = storage.room() else { return Ok(()) };
        let needed = len_of(0, changes) + beside;
        let has_puts = changes.changes().any(|change| change.value().is_some());
        let kept = if has_puts { 2 * slack(room) } else { slack(room) };
        if 3 * (self.checkpoint_need(state) + needed) + kept > room.all {
            return Err(Error::NoSpace { needed, reclaimable: 0 });
        }
        Ok(())
    }

    /// True if so many entries certainly fit, with so many changes and bytes.
    pub(super) fn has_ample_room(
        &self,
        room: Room,
        state: &RwLock<State>,
        (entries, changes, bytes): (u64, u64, u64),
    ) -> bool {
        let beside = entries * (FRAME_BYTES + CONTEXT_MAX as u64) + changes * CHANGE_BYTES;
        3 * (self.checkpoint_need(state) + bytes + beside) + 2 * slack(room) <= room.all
    }

    /// How many of these entries fit, from the first on, with half of the slack that a leader keeps: if an entry fits
    /// at the leader, it fits into an equal pool. Entries without changes always fit: nothing is committed without
    /// them.
    pub(super) fn room_for(&self, room: Room, state: &RwLock<State>, entries: &[Batch]) -> usize {
        let mut needed = self.checkpoint_need(state);
        let is_over = |changes: &Batch| {
            needed += if changes.is_empty() { 0 } else { len_of(0, changes) };
            !changes.is_empty() && 3 * needed + slack(room) / 2 > room.all
        };
        entries.iter().position(is_over).unwrap_or(entries.len())
    }

    /// Free bytes beyond the added frames and the need of checkpoints; none if there are fewer.
    fn beyond(&self, room: Room, state: &RwLock<State>) -> Option<u64> {
        let running = self.checkpoint.as_ref().map_or(0, |it| it.need);
        let taken = self.log.added() + self.checkpoint_need(state) + running + 4 * room.least;
        room.left.checked_sub(taken)
    }

    /// True if a checkpoint is due because there is little room.
    pub(super) fn is_room_scarce(&self, storage: &dyn Storage, state: &RwLock<State>) -> bool {
        let Some(room) = storage.room() else { return false };
        let more = self.checkpoint_need(state) / 4 + slack(room) / 2;
        self.beyond(room, state).is_none_or(|beyond| beyond < more)
    }

    /// Makes room for the added frames.
    pub(super) fn make_room(
        &mut self,
        storage: &Arc<dyn Storage>,
        state: &Arc<RwLock<State>>,
    ) -> Result<()> {
        for attempt in 0..2 {
            let Some(room) = storage.room() else { return Ok(()) };
            if self.log.added() == 0 || self.beyond(room, state).is_some() {
                return Ok(());
            }
            match attempt {
                0 => self.wait_checkpoint()?,
                _ => self.write_checkpoint(storage, state)?,
            }
        }
        Ok(())
    }

    /// Makes room for a checkpoint of a state that replaces this one.
    pub(super) fn make_room_for(
        &mut self,
        storage: &Arc<dyn Storage>,
        (old, new): (&Arc<RwLock<State>>, &RwLock<State>),
    ) -> Result<()> {
        self.wait_checkpoint()?;
        let need = new.read().bytes();
        let is_scarce = |room: Room| room.left < need + slack(room);
        if storage.room().is_some_and(is_scarce) {
            // After that, only the pending entries are left of the logs.
            self.write_checkpoint(storage, old)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal_baseline::Pending;
    use crate::wal_baseline::frame::Frame;

    #[test]
    fn an_entry_takes_no_more_than_is_said() {
        for (header, key, value) in [(0, 0, 0), (1, 3, 5), (40, 100, 7), (3, 1, 1000)] {
            let mut changes = Batch::new();
            for count in 0..5_u8 {
                let mut bytes = Vec::new();
                let header = vec![1; header];
                Frame::Entry { timestamp: 1, header: &header, changes: &changes }
                    .encode(&mut bytes, 0);
                let len = Pending::new(&header, changes.clone()).len;
                assert!(bytes.len() as u64 <= len, "{} is over {len}", bytes.len());
                changes.put(&[&[count][..], &vec![2; key]].concat(), &vec![3; value]);
                changes.delete(&[count]);
            }
        }
    }
}
