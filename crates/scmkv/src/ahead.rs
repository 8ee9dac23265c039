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
use crate::put::Write;
use crate::record::{Header, Kind};
use crate::store::Store;
use coreplane_engine::{Outcome, Result, WriteOptions};
use coreplane_pmem::epoch;

impl Store {
    /// Puts `key`, if that can be done this way.
    pub(crate) fn put_ahead(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Option<Outcome>> {
        if options.sequence.is_some() || value.len() > self.geometry.inline_max() {
            return Ok(None);
        }
        self.check_writable()?;
        self.check_key(key)?;
        let order = self.order(options)?;
        if order != Order::Strict {
            return Ok(None);
        }
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        let write = Write { key, place, options, order };
        let mut header = Header { expires_at: options.expires_at, ..Header::put(0) };
        let mut log = self.my_log()?;
        self.make_room(&mut log, header.record_len(key, value.len()), Kind::Put)?;
        let guard = epoch::pin();
        let mut held = self.index.lock(place);
        header.version = self.next_version(&mut held, 0)?;
        let appended = log.append(self, &header, key, &[value], order)?;
        let standing = match self.look(&guard, &held, key, place) {
            Ok(Some(standing)) => standing,
            Ok(None) => {
                log.take_back(self, appended)?;
                return Ok(None);
            }
            Err(error) => {
                log.take_back(self, appended)?;
                return Err(error);
            }
        };
        self.account(&held, standing.slot, standing.old.as_ref(), &header);
        let header = (&header, value.len());
        self.publish_record(&mut log, &mut held, &write, &standing, header, appended).map(Some)
    }
}
