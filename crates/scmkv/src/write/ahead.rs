//! A put that needs no look at what it replaces: its record goes ahead of the lookup.
//!
//! ```text
//!   lock the group ─▶ append past the caches ─▶ look the key up ─▶ fence ─▶ publish
//! ```
//!
//! A fence takes as long as the medium needs for the record, a lookup as long as it needs for a
//! line of the index and one of the old record. In this order they go on side by side. What the
//! record says must not depend on the lookup then: its version comes from the group's lock, which
//! alone is above all versions of the group's keys ([`lock`](crate::table::index)).
//!
//! A sequence that the caller gives must be above the key's last one, or nothing may be written: a
//! crash could bring it to light, with a version above that of the newer record. But no record has a
//! sequence above its version. So one that is above all versions of the group is new, and it is seen
//! without a look at the key. Those of a matrix mostly are.
//!
//! Seldom the lookup finds no room in the group, or damage. Then the record is taken back, so
//! that no crash can bring to light what was refused.
//!
//! The same put on another engine ([`Beside`]) comes between the group's lock and the append. Meanwhile
//! nothing may wait for long: neither for pages, which come back when nobody is in an old epoch, as this
//! thread is; nor for a log whose owner waits for such pages.

use crate::clean::reserve::Demand;
use crate::store::Store;
use crate::table::index::GroupLock;
use crate::table::log::{Appended, Log, Order};
use crate::write::put::{Plan, Standing, Write};
use coreplane_engine::{Beside, Brief, Outcome, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::Header;
use std::borrow::Cow;

/// What was put ahead of the lookup, and is durable.
struct Put {
    sequence: u64,
    replaced: bool,
}

impl Store {
    /// Puts `key`, ahead of the lookup if that can be.
    #[inline]
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        match self.put_ahead(key, value, options, None)? {
            Some(Put { sequence, replaced }) => {
                Ok(Outcome::Written(Written { sequence, ticket: Ticket::DURABLE, replaced }))
            }
            None => self.put_in_sight(key, value, options),
        }
    }

    /// The same, and what came of it in two words; ahead of the lookup or not at all with `beside`.
    #[inline]
    pub(crate) fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        let is_alone = beside.is_none();
        let put = match beside {
            None => self.put_ahead(key, value, options, None),
            beside => self.put_ahead(key, value, options, beside),
        };
        match put {
            Ok(Some(Put { replaced: true, .. })) => Brief::Replaced,
            Ok(Some(Put { replaced: false, .. })) => Brief::New,
            Ok(None) if is_alone => Brief::of(self.put_in_sight(key, value, options)),
            Ok(None) => Brief::Declined,
            Err(error) => Brief::of(Err(error)),
        }
    }

    /// Puts `key` in sight of what it replaces.
    #[inline(never)]
    fn put_in_sight(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let outcome = self.write(key, options, &mut |_, _, _| {
            Ok(Plan::Put { value: Cow::Borrowed(value), expires_at })
        });
        self.expiries.note(expires_at);
        outcome
    }

    /// Puts `key` ahead of the lookup; none if that cannot be, and nothing was put.
    // What comes out is made into an outcome by whoever it is inlined into, never taken apart and put
    // together again: its parts would be loaded in other widths than they were stored in, and such a load
    // waits until the stores have left the processor, which is behind the fence's.
    #[inline(always)]
    fn put_ahead(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Result<Option<Put>> {
        // Before the order is asked for, which may note in the root that a write is not strict.
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        let is_plain = !options.use_reserve && value.len() <= self.geometry.inline_max();
        if !is_plain || self.order(options)? != Order::Strict {
            return Ok(None);
        }
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        let write = Write { key, place, options, order: Order::Strict };
        let (sequence, expires_at) = (options.sequence, options.expires_at);
        let mut header = Header { sequence, expires_at, ..Header::put(0) };
        let len = header.record_len(key, value.len());
        let mut log = if beside.is_none() {
            let log = self.my_log()?;
            // Who sees what it takes the place of knows how much room there is.
            if log.room_for(Demand::Insert) < len {
                return Ok(None);
            }
            log
        } else {
            let Some(log) = self.my_log_at_once(len)? else { return Ok(None) };
            log
        };
        let guard = epoch::pin();
        let mut held = self.index.lock(place);
        if sequence.is_some_and(|given| given <= held.last_version().max(self.version_base())) {
            return Ok(None);
        }
        header.version = self.next_version(&mut held, sequence.map_or(0, |given| given - 1))?;
        let replaced = match beside {
            None => {
                let recorded =
                    self.record_ahead(&mut log, &held, &guard, &write, &header, value)?;
                let Some((appended, standing)) = recorded else { return Ok(None) };
                self.account(&held, standing.slot, standing.old.as_ref(), &header);
                let (at, of) = (standing.at, (&header, value.len()));
                self.publish_record(&mut log, &mut held, &write, at, of, appended)?;
                standing.live
            }
            Some(beside) => {
                let put =
                    self.put_beside(&mut log, &held, &guard, (&write, &header, value), beside);
                let Some(replaced) = put? else { return Ok(None) };
                replaced
            }
        };
        self.expiries.note(expires_at);
        let sequence = sequence.unwrap_or(header.version);
        Ok(Some(Put { sequence, replaced }))
    }

    /// Appends the record, and looks the key up; none if there is no room in the group, and nothing was
    /// appended.
    #[inline(always)]
    fn record_ahead<'g>(
        &'g self,
        log: &mut Log,
        held: &GroupLock<'_>,
        guard: &'g Guard,
        write: &Write<'_>,
        header: &Header,
        value: &[u8],
    ) -> Result<Option<(Appended, Standing<'g>)>> {
        let appended = log.append(self, header, write.key, &[value], Order::Strict)?;
        match self.look(guard, held, write.key, write.place) {
            Ok(Some(standing)) => Ok(Some((appended, standing))),
            seen => {
                log.take_back(self, appended)?;
                // The guard too goes then: whoever cleans for a split waits for all that were pinned.
                seen.map(|_| None)
            }
        }
    }

    /// As [`Store::put_ahead`] from the group's lock on, beside the same put on another engine: whether a
    /// live record was replaced.
    fn put_beside(
        &self,
        log: &mut Log,
        held: &GroupLock<'_>,
        guard: &Guard,
        (write, header, value): (&Write<'_>, &Header, &[u8]),
        beside: Beside<'_>,
    ) -> Result<Option<bool>> {
        // Filled in where it is, and looked at there: a copy of what was stored in other pieces would wait
        // for the stores behind the medium's.
        let (mut recorded, mut failure, mut flushed_at) = (None, Ok(()), None);
        let goes_on = beside(&mut || {
            match self.record_ahead(log, held, guard, write, header, value) {
                Ok(made) => recorded = made,
                Err(error) => failure = Err(error),
            }
            if recorded.is_some() {
                flushed_at = Some(log.flush(self));
            }
            recorded.is_some()
        });
        failure?;
        let (Some((appended, standing)), Some(mark)) = (&recorded, flushed_at) else {
            return Ok(None);
        };
        if !goes_on {
            log.take_back(self, *appended)?;
            return Ok(None);
        }
        log.commit_since(self, mark)?;
        // Its locked instructions wait for the fence, as those of the publication do.
        self.account(held, standing.slot, standing.old.as_ref(), header);
        self.publish_slot(log, held, write, standing.at, (header, value.len()), *appended)?;
        Ok(Some(standing.live))
    }
}
