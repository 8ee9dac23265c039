//! Unconditional puts.

use crate::device::If;
use crate::filter::hash_of;
use crate::in_flight::InFlight;
use crate::matrix::Matrix;
use crate::stats::Count;
use coreplane_engine::{Outcome, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::epoch::pin_in;
use std::sync::atomic::Ordering;

impl Matrix {
    /// Puts a value, unconditionally.
    pub(crate) fn write_put(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        match self.put_fast(key, value, options) {
            Some((sequence, replaced)) => {
                let ticket = Ticket::DURABLE;
                Ok(Outcome::Written(Written { sequence, ticket, replaced }))
            }
            None => self.write_value((key, value), If::Any, options),
        }
    }

    /// Makes a fast put ([`Group::put_fast`](crate::group::Group::put_fast)): its sequence, and whether a
    /// live record was replaced. None if nothing was made.
    // Inlined, so that no result goes through memory after the fence.
    #[inline(always)]
    fn put_fast(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Option<(u64, bool)> {
        let keyspace = &*self.keyspace;
        if options.sequence.is_some() || keyspace.relaxed.is_asked(options) {
            return None;
        }
        let hash = hash_of(key);
        let group = keyspace.group_of(hash);
        let fits = keyspace.check_key(key).is_ok() && keyspace.check_value(value).is_ok();
        if !fits {
            return None;
        }
        // Pinned once for all calls, but not during a long wait: a leaving device waits for pinned threads.
        let mut guard = pin_in();
        group.prefetch_fast(hash, key, &guard);
        let stripe = InFlight::stripe_of(hash);
        let turn = match keyspace.in_flight.try_lock_key(stripe) {
            Some(turn) => turn,
            None => {
                drop(guard);
                let turn = keyspace.in_flight.lock_key(stripe);
                guard = pin_in();
                turn
            }
        };
        // A close goes through all key locks: a write that takes its lock later is not made.
        let route = keyspace.owners.of(hash);
        if keyspace.closed.load(Ordering::Acquire) || route.is_frozen() || route.to().is_some() {
            return None;
        }
        let group = &keyspace.groups[route.owner()];
        let (sequence, replaced) = group.put_fast(hash, (key, value), options, &guard)?;
        drop(guard);
        if keyspace.lost_ranges.is_any() {
            self.failover.forget_lost_key(route.owner() as u16, key);
        }
        drop(turn);
        keyspace.counters.add(Count::Puts, 1);
        self.look_after(group, sequence);
        Some((sequence, replaced))
    }
}
