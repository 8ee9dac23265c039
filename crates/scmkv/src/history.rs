//! Going through the records: cursors, changes, emptying the store.

use crate::index::Position;
use crate::put::Plan;
use crate::record::Kind;
use crate::store::Store;
use coreplane_engine::{Entry, Error, Result, Ticket, WriteOptions};
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

impl Store {
    /// Shows the live records of whole groups from `cursor` on, until `count` were shown.
    pub(crate) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let mut position = Position::from_cursor(cursor);
        let mut shown = 0;
        loop {
            let (leaf, group, next) = self.index.step(position);
            let guard = epoch::pin();
            let Some(held) = self.index.lock_group(leaf, position.y, group) else { continue };
            let slots = self.index.slots(leaf, group)?;
            let mut views = Vec::with_capacity(slots.len());
            for found in slots.into_iter().filter(|found| !found.slot.is_tombstone()) {
                let view = self.record(&guard, found.slot)?;
                if !self.is_expired(found.slot, &view)? {
                    views.push(view);
                }
            }
            // Fragments of large values stay put only while the lock is held.
            for view in &views {
                shown += 1;
                self.show(&guard, view, Ticket::DURABLE, |record| {
                    let sequence = record.sequence;
                    visit(Entry { key: view.key(), record: Some(record), sequence });
                })?;
            }
            drop(held);
            match next {
                None => return Ok(0),
                Some(next) if shown >= count.max(1) => return Ok(next.to_cursor()),
                Some(next) => position = next,
            }
        }
    }

    /// Shows what is newer than `sequence`, tombstones too.
    pub(crate) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        let horizon = self.dropped_tombstones.load(Ordering::Acquire);
        if sequence < horizon {
            return Err(Error::HistoryGone { asked: sequence, horizon });
        }
        let mut position = Some(Position::default());
        while let Some(here) = position {
            let (leaf, group, next) = self.index.step(here);
            let guard = epoch::pin();
            let Some(held) = self.index.lock_group(leaf, here.y, group) else { continue };
            for found in self.index.slots(leaf, group)? {
                let view = self.record(&guard, found.slot)?;
                if view.sequence() <= sequence {
                    continue;
                }
                let (key, newer) = (view.key(), view.sequence());
                if view.header.kind == Kind::Delete || self.is_expired(found.slot, &view)? {
                    visit(Entry { key, record: None, sequence: newer });
                } else {
                    self.show(&guard, &view, Ticket::DURABLE, |record| {
                        visit(Entry { key, record: Some(record), sequence: newer });
                    })?;
                }
            }
            drop(held);
            position = next;
        }
        Ok(())
    }

    /// Deletes every record, one after the other.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut position = Some(Position::default());
        while let Some(here) = position {
            let (leaf, group, next) = self.index.step(here);
            let keys: Vec<Vec<u8>> = {
                let guard = epoch::pin();
                let Some(_held) = self.index.lock_group(leaf, here.y, group) else { continue };
                self.index
                    .slots(leaf, group)?
                    .into_iter()
                    .filter(|found| !found.slot.is_tombstone())
                    .map(|found| Ok(self.record(&guard, found.slot)?.key().to_vec()))
                    .collect::<Result<_>>()?
            };
            for key in keys {
                // Expired ones too, which `erase` would not find.
                let options = WriteOptions::default();
                self.write(&key, &options, 8, &mut |_, _, _| Ok(Plan::Delete))?;
            }
            position = next;
        }
        // What is written from now on is newer than the whole of it.
        self.raise_version_base()?;
        Ok(())
    }
}
