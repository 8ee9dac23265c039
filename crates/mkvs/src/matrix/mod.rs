//! The write path: puts, conditions, deletes, modifications and batches.
//!
//! ```text
//!   put ─▶ put_fast   the usual one: one fence, nothing moves (Group::put_fast)
//!      └─▶ write      makes space if it lacks space, once
//!            └─▶ write_in_turn   in the key lock: the owner's write (Group::write), ahead where its slot moves to
//!   batch ─▶ the same for several keys at once
//! ```
//!
//! After some of them the filters and the watermark are checked.

pub(crate) mod batch;
mod put;

use crate::device::{If, UserCode, Write, is_damage};
use crate::failover::{Failover, is_next};
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use crate::keyspace::Keyspace;
use crate::rebuild::{Filters, Rebuild};
use crate::stats::Count;
use coreplane_engine::{Mutation, Outcome, Record, Result, Ticket, WriteOptions};
use coreplane_pmem::spin::Backoff;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Sequences after which the fill of a filter is checked.
const FILTERS: u64 = 1 << 10;

/// An open matrix.
///
/// Dropping it without [`Engine::close`](coreplane_engine::Engine::close) is a crash of its devices: no
/// acknowledged write is lost.
pub struct Matrix {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) failover: Arc<Failover>,
    pub(crate) filters: Arc<Filters>,
    pub(crate) rebuild: Rebuild,
    /// It was closed without an error.
    pub(crate) is_clean: AtomicBool,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let groups = self.keyspace.groups.len();
        f.debug_struct("Matrix").field("groups", &groups).finish_non_exhaustive()
    }
}

impl Matrix {
    fn write(&self, key: &[u8], options: &WriteOptions, write: &mut Write<'_>) -> Result<Outcome> {
        let written = self.write_in_turn(key, options, write);
        let Err(error) = &written else { return written };
        // Deletes must not fail for lack of space, since they make space.
        let use_reserve = write.decided().put.is_none() || options.use_reserve;
        if self.failover.make_space(error, use_reserve) {
            return self.write_in_turn(key, options, write);
        }
        written
    }

    fn write_in_turn(
        &self,
        key: &[u8],
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> Result<Outcome> {
        let Self { keyspace, failover, .. } = self;
        failover.check_writable()?;
        keyspace.check_key(key)?;
        if keyspace.relaxed.is_first(options) {
            failover.note_relaxed()?;
        }
        let hash = hash_of(key);
        keyspace.group_of(hash).prefetch(key);
        let mut backoff = Backoff::new();
        let outcome = loop {
            let _turn = keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
            // A close goes through all key locks: a write that takes its lock later is not made.
            keyspace.check_writable()?;
            failover.make_way_for(options.sequence)?;
            let route = keyspace.owners.of(hash);
            if !route.is_frozen() {
                if keyspace.lost_ranges.is_any() && write.rests_on_old() {
                    // A write that depends on the current record fails if that record may be lost.
                    keyspace.find(hash, key, &mut |_| {})?;
                }
                if let Some(given) = options.sequence
                    && let Some(newer) =
                        keyspace.newer_delete(&keyspace.groups[route.owner()], key, given)?
                    && !write.rests_on_old()
                {
                    return Ok(Outcome::NotNewer(newer, Ticket::DURABLE));
                }
                let (owner, before) =
                    (&keyspace.groups[route.owner()], keyspace.in_flight.taken_back());
                let outcome = owner.write(hash, options, write);
                if outcome.is_err() && keyspace.may_be_listed(owner, key, before) {
                    keyspace.give_anew_after_refusal(hash, key);
                }
                let outcome = outcome?;
                if keyspace.lost_ranges.is_any() && outcome.written().is_some() {
                    failover.forget_lost_key(route.owner() as u16, key);
                }
                if let (Some(to), Outcome::Written(written)) = (route.to(), &outcome) {
                    keyspace.write_ahead(to, hash, &write.decided(), written.sequence);
                }
                break keyspace.with_ticket(outcome, options);
            }
            drop(_turn);
            backoff.wait();
        };
        if let Outcome::Written(written) = &outcome {
            let is_put = write.decided().put.is_some();
            keyspace.counters.add(if is_put { Count::Puts } else { Count::Deletes }, 1);
            keyspace.in_flight.keep_tombstones(u64::from(!is_put));
            self.look_after(keyspace.group_of(hash), written.sequence);
        }
        Ok(outcome)
    }

    /// A write with a value.
    pub(crate) fn write_value(
        &self,
        (key, value): (&[u8], &[u8]),
        condition: If<'_>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.keyspace.check_value(value)?;
        self.write(key, options, &mut Write::put((key, value), condition, options))
    }

    /// A delete of a key.
    pub(crate) fn write_delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let is_given = options.sequence.is_some();
        let delete = |of| self.write(key, options, &mut Write::delete(key, of));
        let outcome = match delete(if is_given { If::Any } else { If::There }) {
            // No member can tell what the record was, and none need be able to.
            Err(error) if is_damage(&error) && !is_given => delete(If::Any)?,
            outcome => outcome?,
        };
        Ok(match outcome {
            Outcome::Kept(ticket) if !is_given => Outcome::Missing(ticket),
            other => other,
        })
    }

    /// A write that the caller's code decides, given the record.
    pub(crate) fn write_modified(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        // The caller's value may be too long, and its code may panic: then nothing changes, and the panic goes on
        // when the write is over.
        let (mut refused, mut user) = (Ok(()), UserCode::default());
        let mut checked = |record: Option<Record<'_>>| {
            let mutation = user.run(|| decide(record)).unwrap_or(Mutation::Keep);
            // The last answer counts.
            refused = match &mutation {
                Mutation::Put { value, .. } => self.keyspace.check_value(value),
                _ => Ok(()),
            };
            if refused.is_ok() { mutation } else { Mutation::Keep }
        };
        let written = self.write(key, options, &mut Write::decided_by(key, &mut checked));
        user.end();
        written.and_then(|outcome| refused.map(|()| outcome))
    }

    /// Occasionally checks what grows with writes: the filter of the key's group, and the watermark; and lets puts
    /// be fast again after a change of the members.
    #[inline]
    fn look_after(&self, group: &Arc<Group>, sequence: u64) {
        if is_next(&group.looked_at, sequence / FILTERS) {
            self.filters.look_after_filter(group);
            group.settle_writers(group.states.now());
        }
        self.failover.look_after_watermark(sequence);
    }
}
