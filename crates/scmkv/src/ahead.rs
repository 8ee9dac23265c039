//! A put that needs no look at what it replaces: its record goes ahead of the lookup.
//!
//! ```text
//!   lock the group ─▶ append past the caches ─▶ look the key up ─▶ fence ─▶ publish
//! ```
//!
//! A fence takes as long as the medium needs for the record, a lookup as long as it needs for a
//! line of the index and one of the old record. In this order they go on side by side. What the
//! record says must not depend on the lookup then: its version comes from the group's lock, which
//! alone is above all versions of the group's keys ([`lock`](crate::index)).
//!
//! A sequence that the caller gives must be above the key's last one, or nothing may be written: a
//! crash could bring it to light, with a version above that of the newer record. But no record has a
//! sequence above its version. So one that is above all versions of the group is new, and it is seen
//! without a look at the key. Those of a matrix mostly are.
//!
//! Seldom the lookup finds no room in the group, or damage. Then the record is taken back, so
//! that no crash can bring to light what was refused.

use crate::log::Order;
use crate::put::{Plan, Write};
use crate::store::Store;
use coreplane_engine::{Brief, Outcome, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::epoch;
use coreplane_record::{Header, Kind};
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
        match self.put_ahead(key, value, options)? {
            Some(Put { sequence, replaced }) => {
                Ok(Outcome::Written(Written { sequence, ticket: Ticket::DURABLE, replaced }))
            }
            None => self.put_in_sight(key, value, options),
        }
    }

    /// The same, and what came of it in two words.
    #[inline]
    pub(crate) fn put_briefly(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Brief {
        match self.put_ahead(key, value, options) {
            Ok(Some(Put { replaced: true, .. })) => Brief::Replaced,
            Ok(Some(Put { replaced: false, .. })) => Brief::New,
            Ok(None) => Brief::of(self.put_in_sight(key, value, options)),
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
    fn put_ahead(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Option<Put>> {
        // Before the order is asked for, which may note in the root that a write is to be lax.
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        let is_plain = !options.is_vital && value.len() <= self.geometry.inline_max();
        if !is_plain || self.order(options)? != Order::Strict {
            return Ok(None);
        }
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        let write = Write { key, place, options, order: Order::Strict };
        let (sequence, expires_at) = (options.sequence, options.expires_at);
        let mut header = Header { sequence, expires_at, ..Header::put(0) };
        let mut log = self.my_log()?;
        self.make_room(&mut log, header.record_len(key, value.len()), Kind::Put)?;
        let guard = epoch::pin();
        let mut held = self.index.lock(place);
        if sequence.is_some_and(|given| given <= held.last_version().max(self.version_base())) {
            return Ok(None);
        }
        header.version = self.next_version(&mut held, sequence.map_or(0, |given| given - 1))?;
        let appended = log.append(self, &header, key, &[value], Order::Strict)?;
        let standing = match self.look(&guard, &held, key, place) {
            Ok(Some(standing)) => standing,
            seen => {
                log.take_back(self, appended)?;
                seen?;
                // The guard too goes now: whoever cleans for a split waits for all that were pinned.
                return Ok(None);
            }
        };
        self.account(&held, standing.slot, standing.old.as_ref(), &header);
        let (at, of) = (standing.at, (&header, value.len()));
        self.publish_record(&mut log, &mut held, &write, at, of, appended)?;
        self.expiries.note(expires_at);
        let sequence = sequence.unwrap_or(header.version);
        Ok(Some(Put { sequence, replaced: standing.live }))
    }
}
