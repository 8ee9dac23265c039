//! A put that needs no look at the record that it replaces: it is appended ahead of the lookup.
//!
//! ```text
//!   lock the group ─▶ append past the caches ─▶ look the key up ─▶ fence ─▶ publish
//! ```
//!
//! A fence takes as long as the medium needs for the record, a lookup as long as it needs for a
//! line of the index and one of the old record. In this order the two overlap. Then the content of
//! the record must not depend on the lookup: its version comes from the group's lock, and is so
//! above all versions of the group's keys ([`lock`](crate::table::index)).
//!
//! A sequence that the caller gives must be above the key's last one. Otherwise nothing may be
//! written: after a crash the record could come to light, with a version above that of the newer
//! record. But no record has a sequence above its version. So a sequence above all versions of the
//! group is new, which shows without a look at the key. The sequences of a matrix mostly are.
//!
//! Seldom the lookup finds no room in the group, or damage. Then the record is taken back, so that
//! no crash can bring a refused record to light.
//!
//! The same put on another engine ([`Beside`]) comes between the group's lock and the append.
//! Meanwhile this thread must not wait for long: neither for pages, which come back when no thread
//! is in an old epoch, as this thread is; nor for a log whose owner waits for such pages.

use crate::table::demand::Demand;
use crate::table::index::GroupLock;
use crate::table::log::{Appended, Log, Order};
use crate::table::look::{Standing, Write};
use crate::write::Writer;
use coreplane_engine::{Beside, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::Header;

/// A put that was made ahead of the lookup, and is durable.
pub(super) struct Put {
    pub(super) sequence: u64,
    pub(super) replaced: bool,
}

impl Writer {
    /// Puts `key` ahead of the lookup; none if that is not possible, and nothing was put.
    // The function into which this is inlined makes an outcome of the result, which is never taken
    // apart and put together again: its parts would be loaded in other widths than they were stored
    // in, and such a load waits until the stores have left the processor, which is after those of
    // the fence.
    #[inline(always)]
    pub(super) fn put_ahead(
        &self,
        write: &Write<'_>,
        value: &[u8],
        beside: Option<Beside<'_>>,
    ) -> Result<Option<Put>> {
        let Write { key, place, options, order } = *write;
        let is_plain = !options.use_reserve && value.len() <= self.geometry.inline_max();
        if !is_plain || order != Order::Strict {
            return Ok(None);
        }
        let (sequence, expires_at) = (options.sequence, options.expires_at);
        let mut header = Header { sequence, expires_at, ..Header::put(0) };
        let len = header.record_len(key, value.len());
        let mut log = if beside.is_none() {
            let log = self.my_log()?;
            // The room depends on the record that is replaced: only a put in sight of it can tell.
            if log.room_for(Demand::Insert) < len {
                return Ok(None);
            }
            log
        } else {
            let Some(log) = self.my_log_at_once(len)? else { return Ok(None) };
            log
        };
        let mut held = self.index.lock(place);
        // Who has the lock may write a large value, and pages must come back meanwhile.
        let guard = epoch::pin();
        if sequence.is_some_and(|given| given <= held.last_version().max(self.version_base())) {
            return Ok(None);
        }
        header.version = self.next_version(&mut held, sequence.map_or(0, |given| given - 1))?;
        let replaced = match beside {
            None => {
                let mut standing = Standing::UNKNOWN;
                let record = (write, &header, value);
                let recorded =
                    self.record_ahead(&mut log, (&held, &guard), record, &mut standing)?;
                let Some(appended) = recorded else { return Ok(None) };
                self.account(&held, standing.slot, standing.old.as_ref(), &header);
                let (at, of) = (standing.at, (&header, value.len()));
                self.publish_record(&mut log, &mut held, write, at, of, appended)?;
                standing.live
            }
            Some(beside) => {
                let put = self.put_beside(&mut log, &held, &guard, (write, &header, value), beside);
                let Some(replaced) = put? else { return Ok(None) };
                replaced
            }
        };
        self.expiries.note(expires_at);
        let sequence = sequence.unwrap_or(header.version);
        Ok(Some(Put { sequence, replaced }))
    }

    /// Appends the record, and looks the key up; none if there is no room in the group, and nothing
    /// was appended.
    #[inline(always)]
    fn record_ahead<'g>(
        &'g self,
        log: &mut Log,
        (held, guard): (&GroupLock<'_>, &'g Guard),
        (write, header, value): (&Write<'_>, &Header, &[u8]),
        standing: &mut Standing<'g>,
    ) -> Result<Option<Appended>> {
        let appended = log.append(self, header, write.key, &[value], Order::Strict)?;
        match self.look_into(standing, guard, held, write.key, write.place) {
            Ok(true) => Ok(Some(appended)),
            seen => {
                log.take_back(self, appended)?;
                // The guard goes then, too: a writer that cleans for a split waits for all that
                // were pinned.
                seen.map(|_| None)
            }
        }
    }

    /// As [`Writer::put_ahead`] from the group's lock on, beside the same put on another engine;
    /// returns whether a live record was replaced.
    fn put_beside(
        &self,
        log: &mut Log,
        held: &GroupLock<'_>,
        guard: &Guard,
        (write, header, value): (&Write<'_>, &Header, &[u8]),
        beside: Beside<'_>,
    ) -> Result<Option<bool>> {
        // Filled in and read in place: a copy of values that were stored in other pieces would wait
        // for the stores behind those to the medium.
        let (mut recorded, mut failure, mut flushed_at) = (None, Ok(()), None);
        let mut standing = Standing::UNKNOWN;
        let goes_on = beside(&mut || {
            let record = (write, header, value);
            match self.record_ahead(log, (held, guard), record, &mut standing) {
                Ok(made) => recorded = made,
                Err(error) => failure = Err(error),
            }
            if recorded.is_some() {
                flushed_at = Some(log.flush(self));
            }
            recorded.is_some()
        });
        failure?;
        let (Some(appended), Some(mark)) = (&recorded, flushed_at) else {
            return Ok(None);
        };
        if !goes_on {
            log.take_back(self, *appended)?;
            return Ok(None);
        }
        log.commit_since(self, mark)?;
        // The locked instructions of the accounts wait for the fence, as those of the publication
        // do.
        self.account(held, standing.slot, standing.old.as_ref(), header);
        self.publish_slot(log, held, write, standing.at, (header, value.len()), *appended)?;
        Ok(Some(standing.live))
    }
}
