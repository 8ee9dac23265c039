//! Large values: in overflow records.
//!
//! ```text
//!   … │ overflow 0 │ overflow 1 │ overflow 2 │ … │ owner: length, offsets of 0, 1, 2 │ …
//! ```
//!
//! A value that is longer than an eighth of a page is written as *overflow records*, and after them the
//! record of its key, their *owner*, whose value names them. The overflow records are durable before the
//! owner is; all that lie in one page share a fence.
//!
//! An overflow record lives while the published record of its key names it. Between its append and
//! that moment no record names it, and yet it must stay: its page is *pinned*, and the cleaner
//! leaves pinned pages alone. [`Overflow`] holds the pins. If it is dropped without having been
//! [owned](Overflow::own), because the write was refused or found no space, its records are dead
//! and counted so.
//!
//! **Moving.** The cleaner copies the overflow records of a page, makes the copies durable, and
//! then writes each owner once more, with the new offsets, under the lock of its group. The bytes
//! of these owners are the *toll* of a page: cleaning it gains so much less
//! ([`victim`](crate::clean::victim)).

use crate::table::demand::Demand;
use crate::table::log::{Log, Order};
use crate::table::overflow::Overflow;
use crate::write::Writer;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};

impl Writer {
    /// Writes a large value as overflow records, durable as `order` demands when it returns.
    ///
    /// # Errors
    /// If there is no space for it; the records written so far are dead then.
    pub(crate) fn write_overflow(
        &self,
        log: &mut Log,
        key: &[u8],
        (value, demand): (&[u8], Demand),
        order: Order,
    ) -> Result<Overflow<'_>> {
        // A window of `relaxed` is for small values.
        let order = if order == Order::Early { Order::Early } else { Order::Strict };
        let mut overflow = Overflow::of(self, value.len());
        let mut first = None;
        let header = Header { kind: Kind::Overflow, ..Header::put(0) };
        for (at, record) in value.chunks(self.geometry.inline_max()).enumerate() {
            let len = header.record_len(key, record.len() + 8);
            if log.room_for(demand) < len {
                // Commit first, so that the page that is left can be read to its end.
                if let Some(first) = first.take() {
                    log.commit(self, first, order)?;
                }
                self.make_room(log, len, demand)?;
            }
            let index = (at as u64).to_le_bytes();
            let appended = log.append(self, &header, key, &[&index, record], order)?;
            overflow.add(appended);
            first.get_or_insert(appended.offset);
        }
        if let Some(first) = first
            && !mutant!("scmkv.overflow.fence")
        {
            log.commit(self, first, order)?;
        }
        Ok(overflow)
    }
}
