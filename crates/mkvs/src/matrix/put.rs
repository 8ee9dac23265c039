//! Puts of a value, whatever was there.

use crate::filter::hash_of;
use crate::in_flight::InFlight;
use crate::matrix::Shared;
use crate::matrix::condition::If;
use crate::stats::counters::Count;
use coreplane_engine::{Outcome, Result, Ticket, WriteOptions, Written};
use std::sync::atomic::Ordering;

impl Shared {
    /// Puts a value, whatever was there.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        match self.put_fast(key, value, options) {
            Some((sequence, replaced)) => {
                let ticket = Ticket::DURABLE;
                Ok(Outcome::Written(Written { sequence, ticket, replaced }))
            }
            None => self.write_value((key, value), If::Any, options),
        }
    }

    /// The same where it is made in the usual way ([`Group::put_fast`](crate::group::Group::put_fast)):
    /// its sequence, and whether a live record was replaced. None if nothing was made.
    // Inlined, so that nothing of it goes through memory behind the fence.
    #[inline(always)]
    fn put_fast(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Option<(u64, bool)> {
        let is_usual = !self.relaxed.is_asked(options) && !self.relaxed.is_first(options);
        if options.sequence.is_some() || !is_usual {
            return None;
        }
        let hash = hash_of(key);
        let group = self.group_of(hash);
        if !group.puts_fast() || self.check_key(key).is_err() {
            return None;
        }
        group.prefetch_fast(hash, key);
        let turn = self.in_flight.lock_key(InFlight::stripe_of(hash));
        // Whoever closes goes round the key locks: what is made in one that comes after is not made.
        let route = self.owners.of(hash);
        if self.closed.load(Ordering::Acquire) || route.is_frozen() || route.to().is_some() {
            return None;
        }
        let group = &self.groups[route.owner()];
        let (sequence, replaced) = group.put_fast(hash, (key, value), options)?;
        if self.lost_ranges.is_any() {
            self.forget_lost_key(route.owner() as u16, key);
        }
        drop(turn);
        self.counters.add(Count::Puts, 1);
        self.look_after(hash, sequence);
        Some((sequence, replaced))
    }
}
