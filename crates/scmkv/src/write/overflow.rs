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
//! [owned](Overflow::own), because the write has failed, its records are dead and counted so.
//!
//! All pages that a value needs are set aside before its first record is appended: a value that does
//! not fit takes none, and one that is written under the lock of its key's group waits for none.
//!
//! [`clean::overflow`](crate::clean::overflow) moves them.

use crate::table::demand::Demand;
use crate::table::log::{Log, Order};
use crate::table::overflow::Overflow;
use crate::write::Writer;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};

/// A large value that is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Large<'k> {
    pub(crate) key: &'k [u8],
    /// Bytes of the value.
    pub(crate) len: usize,
    /// The header of the owner.
    pub(crate) header: Header,
    pub(crate) demand: Demand,
}

impl Writer {
    /// Bytes of a value's overflow records and their owner, and the pages that they take beside the open one.
    fn extent(&self, log: &Log, large: &Large<'_>) -> (usize, u32) {
        let (part, page) = (self.geometry.inline_max(), self.geometry.page_size as usize);
        let records = large.len.div_ceil(part);
        let header = Header { kind: Kind::Overflow, ..Header::put(0) };
        let overflow = (0..records)
            .map(|at| header.record_len(large.key, part.min(large.len - at * part) + 8));
        let owner = large.header.record_len(large.key, 8 * (records + 1));
        let (mut bytes, mut pages, mut room) = (0, 0, log.room());
        for len in overflow.chain([owner]) {
            if room < len {
                (pages, room) = (pages + 1, page);
            }
            (bytes, room) = (bytes + len, room.saturating_sub(len));
        }
        (bytes, pages)
    }

    /// True if the pages that a value needs are set aside, and its part of the open one is paid for.
    pub(crate) fn has_room_for_large(&self, log: &Log, large: &Large<'_>) -> bool {
        let (bytes, pages) = self.extent(log, large);
        pages <= log.aside() && bytes.min(log.room()) <= log.room_for(large.demand)
    }

    /// Makes room for a value, by cleaning if need be. That may seal the open page: then the value takes more pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace).
    pub(crate) fn make_room_for_large(&self, log: &mut Log, large: &Large<'_>) -> Result<()> {
        let (bytes, pages) = self.extent(log, large);
        self.set_pages_aside(log, pages, bytes, large.demand)?;
        self.make_room(log, bytes.min(log.room()), large.demand)
    }

    /// Writes a large value, for which there is room, as overflow records, durable as `order` demands when it returns.
    ///
    /// # Errors
    /// If the medium fails; the records written so far are dead then.
    pub(crate) fn write_overflow(
        &self,
        log: &mut Log,
        large: &Large<'_>,
        value: &[u8],
        order: Order,
    ) -> Result<Overflow<'_>> {
        // A window of `relaxed` is for small values.
        let order = if order == Order::Early { Order::Early } else { Order::Strict };
        let mut overflow = Overflow::of(self, value.len());
        let mut first = None;
        let header = Header { kind: Kind::Overflow, ..Header::put(0) };
        for (at, record) in value.chunks(self.geometry.inline_max()).enumerate() {
            let len = header.record_len(large.key, record.len() + 8);
            if log.room() < len {
                // Commit first, so that the page that is left can be read to its end.
                if let Some(first) = first.take() {
                    log.commit(self, first, order)?;
                }
                self.open_page_aside(log, len, large.demand)?;
            }
            let index = (at as u64).to_le_bytes();
            let appended = log.append(self, &header, large.key, &[&index, record], order)?;
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
