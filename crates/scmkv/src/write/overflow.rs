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
//! [owned](Overflow::own), because the write failed or was overtaken, its records are dead and counted so.
//!
//! All pages that a value needs are set aside before its first record is appended: a value that does
//! not fit takes none.
//!
//! **Overtaken.** The overflow records are written without the lock of their key's group, for that takes
//! long, with some syncs where a fence is one. If another writer of the key comes first, what was decided
//! in sight of the old record is void, and so are they. Then it is decided anew, and the value is written
//! under the lock, its pages set aside: a value is written twice at most, however often others write the
//! key, and once more if the old record expires meanwhile. No epoch is pinned by it: other pages come back.
//!
//! [`clean::overflow`](crate::clean::overflow) moves overflow records.

use crate::table::demand::Demand;
use crate::table::index::GroupLock;
use crate::table::log::{Log, Order};
use crate::table::look::{Standing, Write};
use crate::table::overflow::Overflow;
use crate::write::{Attempt, Writer};
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use std::borrow::Cow;

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

/// What a decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestsOn {
    /// On the live record.
    Old,
    Nothing,
}

/// A large value that was decided on.
pub(crate) struct LargePut<'a> {
    pub(super) large: Large<'a>,
    pub(super) value: Cow<'a, [u8]>,
    /// The version of the live record that was seen.
    pub(super) seen: Option<u64>,
}

/// A large value whose overflow records are in the log, its own record not yet.
pub(super) struct Prepared<'s, 'a> {
    large: Large<'a>,
    overflow: Overflow<'s>,
    seen: Option<u64>,
}

/// What the attempts at a write leave to the next one.
pub(crate) struct Progress<'s, 'a> {
    rests_on: RestsOn,
    prepared: Option<Prepared<'s, 'a>>,
    /// The lock under which the overflow records were written.
    pub(super) held: Option<GroupLock<'s>>,
    /// Another writer came first.
    is_overtaken: bool,
}

impl<'s, 'a> Progress<'s, 'a> {
    pub(crate) fn new(rests_on: RestsOn) -> Self {
        Self { rests_on, prepared: None, held: None, is_overtaken: false }
    }

    /// The value that is in the log, if the decision on it stands beside a live record of version `seen`.
    pub(super) fn take_prepared(&mut self, seen: Option<u64>) -> Option<Prepared<'s, 'a>> {
        let prepared = self.prepared.take()?;
        let stands = self.rests_on == RestsOn::Nothing || prepared.seen == seen;
        self.is_overtaken |= !stands;
        stands.then_some(prepared)
    }
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
    fn has_room_for_large(&self, log: &Log, large: &Large<'_>) -> bool {
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

    /// Writes a large value as overflow records, durable as `order` demands when it returns.
    ///
    /// # Errors
    /// If there is no space for it, or the medium fails; the records written so far are dead then.
    pub(crate) fn write_overflow(
        &self,
        log: &mut Log,
        large: &Large<'_>,
        value: &[u8],
        order: Order,
    ) -> Result<Overflow<'_>> {
        while !self.has_room_for_large(log, large) {
            self.make_room_for_large(log, large)?;
        }
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

    /// Goes on with an attempt whose value is large and not in the log.
    pub(super) fn attempt_large<'s, 'a>(
        &self,
        log: &Log,
        held: GroupLock<'s>,
        progress: &Progress<'s, 'a>,
        put: LargePut<'a>,
    ) -> Attempt<'s, 'a> {
        if !progress.is_overtaken {
            return Attempt::NeedOverflow(put, None);
        }
        // Under the lock it waits neither for pages nor for staged writes.
        if log.has_staged() || !self.has_room_for_large(log, &put.large) {
            return Attempt::NeedRoomForLarge(put.large);
        }
        Attempt::NeedOverflow(put, Some(held))
    }

    /// Writes a large value that was decided on, under the lock `held` if there is one, and makes room for its owner.
    ///
    /// # Errors
    /// As [`Writer::write_overflow`].
    pub(super) fn prepare_large<'s, 'a>(
        &'s self,
        log: &mut Log,
        progress: &mut Progress<'s, 'a>,
        (put, held): (LargePut<'a>, Option<GroupLock<'s>>),
        order: Order,
    ) -> Result<()> {
        let overflow = self.write_overflow(log, &put.large, &put.value, order)?;
        let len = put.large.header.record_len(put.large.key, overflow.list().len());
        self.open_page_aside(log, len, put.large.demand)?;
        let LargePut { large, seen, .. } = put;
        progress.prepared = Some(Prepared { large, overflow, seen });
        progress.held = held;
        Ok(())
    }

    /// Places the owner of a value that is in the log.
    pub(super) fn publish_large<'s, 'a>(
        &self,
        log: &mut Log,
        mut held: GroupLock<'s>,
        write: &Write<'a>,
        standing: &Standing<'_>,
        (progress, prepared): (&mut Progress<'s, 'a>, Prepared<'s, 'a>),
    ) -> Result<Attempt<'s, 'a>> {
        let Large { key, header, demand, .. } = prepared.large;
        let list = prepared.overflow.list();
        let len = header.record_len(key, list.len());
        // Its room was made, unless cleaning for a split has sealed the page.
        if log.room() < len {
            progress.prepared = Some(prepared);
            return Ok(Attempt::NeedRoom(len, demand));
        }
        // Before the lock of the group is free.
        self.expiries.note(header.expires_at);
        // Its many records have a fence anyway, which is none of staged writes.
        let order = if write.order == Order::Staged { Order::Strict } else { write.order };
        let write = Write { order, ..*write };
        let outcome = self.place_record(log, &mut held, &write, standing, header, list)?;
        prepared.overflow.own(&held, len as u32);
        Ok(Attempt::Done(outcome))
    }
}
