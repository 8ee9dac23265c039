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
//! Seldom the lookup finds no room in the group, or damage. Then the record is taken back, so
//! that no crash can bring to light what was refused.

use crate::log::Order;
use crate::put::{Plan, Write};
use crate::store::Store;
use coreplane_engine::{Outcome, Result, WriteOptions};
use coreplane_pmem::epoch;
use coreplane_record::{Header, Kind};
use std::borrow::Cow;

impl Store {
    /// Puts `key`, ahead of the lookup if that can be.
    #[inline]
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        // Before the order is asked for, which may note in the root that a write is to be lax.
        self.check_writable()?;
        self.check_key(key)?;
        let is_usual = options.sequence.is_none() && !options.is_vital;
        let is_plain = is_usual && value.len() <= self.geometry.inline_max();
        if is_plain && self.order(options)? == Order::Strict {
            self.put_ahead(key, value, options)
        } else {
            self.put_in_sight(key, value, options)
        }
    }

    /// Puts `key` in sight of what it replaces.
    fn put_in_sight(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let outcome = self.write(key, options, &mut |_, _, _| {
            Ok(Plan::Put { value: Cow::Borrowed(value), expires_at })
        });
        self.expiries.note(expires_at);
        outcome
    }

    // The outcome is handed on as it was made, never taken apart and put together again: its parts
    // would be loaded in other widths than they were stored in, and such a load waits until the
    // stores have left the processor, which is behind the fence's.
    fn put_ahead(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        let write = Write { key, place, options, order: Order::Strict };
        let mut header = Header { expires_at: options.expires_at, ..Header::put(0) };
        let mut log = self.my_log()?;
        self.make_room(&mut log, header.record_len(key, value.len()), Kind::Put)?;
        let guard = epoch::pin();
        let mut held = self.index.lock(place);
        header.version = self.next_version(&mut held, 0)?;
        let appended = log.append(self, &header, key, &[value], Order::Strict)?;
        let standing = match self.look(&guard, &held, key, place) {
            Ok(Some(standing)) => standing,
            seen => {
                log.take_back(self, appended)?;
                seen?;
                // The guard too: whoever cleans for a split waits for all that were pinned before.
                drop((held, log, guard));
                return self.put_in_sight(key, value, options);
            }
        };
        self.account(&held, standing.slot, standing.old.as_ref(), &header);
        let header = (&header, value.len());
        let outcome = self.publish_record(&mut log, &mut held, &write, &standing, header, appended);
        self.expiries.note(options.expires_at);
        outcome
    }
}
