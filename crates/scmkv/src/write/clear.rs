//! Emptying the store.

use crate::table::index::{Position, Slot};
use crate::table::misled;
use crate::write::{Plan, Writer};
use coreplane_engine::{Completion, Result, WriteOptions};
use coreplane_pmem::epoch;

impl Writer {
    /// Deletes every record, one after the other, and waits once for all of them.
    pub(crate) fn clear(&self) -> Result<()> {
        self.index.each_group(&mut |held, Position { group, .. }| {
            let keys: Vec<Vec<u8>> = {
                let (guard, held) = (epoch::pin(), held);
                let key_of = |slot: Slot| {
                    let key = self.record(&guard, slot)?.key();
                    // Otherwise the tombstone would be of another key.
                    let is_its = held.signature(self.place(key)) == slot.signature();
                    if is_its { Ok(key.to_vec()) } else { Err(misled(slot)) }
                };
                let slots =
                    self.index.slots(held.leaf(), group)?.into_iter().map(|found| found.slot);
                slots.filter(|slot| !slot.is_tombstone()).map(key_of).collect::<Result<_>>()?
            };
            for key in keys {
                // Expired ones too, which `erase` would not find.
                let completion = Completion::Early;
                let options = WriteOptions { completion, ..WriteOptions::default() };
                let _outcome = self.write(&key, &options, &mut |_, _, _| Ok(Plan::Delete))?;
            }
            Ok(())
        })?;
        self.sync()?;
        // Later writes are newer than all of these deletes.
        self.advance_sequence()?;
        Ok(())
    }
}
