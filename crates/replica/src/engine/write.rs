//! Writes: the newest record decides, and the effect is proposed.

use super::Replica;
use super::core::{Core, Seen};
use coreplane_engine::{
    Batch, ChangeRef, Clear, Completion, Durability, Error, Horizon, Limits, Outcome, Record,
    Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::mutant;
use std::borrow::Cow;

/// The decision of a write about the record that it has found.
pub(super) enum Plan<'p> {
    Put {
        value: Cow<'p, [u8]>,
        expires_at: Option<UnixMillis>,
    },
    Delete,
    /// No change; the caller is told so.
    Refuse(fn(Ticket) -> Outcome),
}

/// Refuses options that a cluster does not support.
fn check_options(options: &WriteOptions) -> Result<()> {
    let engine = "a cluster";
    if matches!(options.durability, Some(Durability::Relaxed { .. })) {
        return Err(Error::Unsupported { engine, operation: "writes that are relaxed" });
    }
    if options.sequence.is_some() {
        return Err(Error::Unsupported { engine, operation: "sequences that are given" });
    }
    Ok(())
}

impl Replica {
    /// Lets `decide` choose what to do about the existing record. The value, if it is known before, has `value_len`
    /// bytes.
    pub(super) fn write<'p>(
        &self,
        (key, value_len): (&[u8], usize),
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Plan<'p>,
    ) -> Result<Outcome> {
        check_options(options)?;
        self.check_lengths(key, value_len)?;
        let outcome = {
            let mut core = self.core.lock();
            core.check_leads()?;
            let now = self.now(&core);
            self.write_with(&mut core, key, now, decide)?
        };
        if options.completion == Completion::Early {
            return Ok(outcome);
        }
        self.wait_done(&Horizon::from(outcome.ticket()))?;
        Ok(outcome.resting_on(Ticket::DURABLE))
    }

    fn check_lengths(&self, key: &[u8], value_len: usize) -> Result<()> {
        let Limits { key_len_max, value_len_max, .. } = self.limits;
        if key.len() > key_len_max {
            return Err(Error::KeyTooLong { len: key.len(), max: key_len_max });
        }
        if value_len > value_len_max {
            return Err(Error::ValueTooLong { len: value_len, max: value_len_max });
        }
        Ok(())
    }

    fn write_with<'p>(
        &self,
        core: &mut Core,
        key: &[u8],
        now: UnixMillis,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Plan<'p>,
    ) -> Result<Outcome> {
        let (mut plan, mut replaced, mut expired) = (None, false, None);
        let proposal = core.look(key, now, &mut |seen| match seen {
            Seen::Absent => plan = Some(decide(None)),
            Seen::Expired(at) => {
                expired = Some(at);
                plan = Some(decide(None));
            }
            Seen::Live(record) => {
                replaced = true;
                plan = Some(decide(Some(record)));
            }
        })?;
        let mut batch = Batch::new();
        match plan {
            Some(Plan::Put { value, expires_at }) if expires_at.is_none_or(|at| at > now) => {
                self.check_lengths(key, value.len())?;
                batch.put_until(key, &value, expires_at);
            }
            // A value that has expired by now is absent.
            Some(Plan::Put { .. } | Plan::Delete) => {
                batch.delete(key);
            }
            Some(Plan::Refuse(outcome)) => {
                let expired = match expired {
                    Some(at) => core.expire(&[key.to_vec()], at)?,
                    None => 0,
                };
                return Ok(outcome(core.read_ticket(proposal.max(expired))?));
            }
            None => return Err(Error::Busy),
        }
        let (sequence, ticket) = core.propose(&batch, expired)?;
        core.counts.add(&batch);
        Ok(Outcome::Written(Written { sequence, ticket, replaced }))
    }

    /// Proposes all changes of a batch as one entry; within this leadership, if one is given.
    pub(super) fn write_batch(
        &self,
        batch: &Batch,
        options: &WriteOptions,
        leadership: Option<u64>,
    ) -> Result<Written> {
        check_options(options)?;
        batch.check(&self.limits)?;
        for change in batch.changes() {
            self.check_lengths(change.key(), change.value().map_or(0, <[u8]>::len))?;
        }
        let written = {
            let mut core = self.core.lock();
            core.check_leads()?;
            if leadership.is_some_and(|it| it != core.open.leaderships()) {
                return Err(Error::Busy);
            }
            let now = self.now(&core);
            core.counts.batches += 1;
            apply(&mut core, batch, now)?
        };
        if options.completion == Completion::Early {
            return Ok(written);
        }
        self.wait_done(&Horizon::from(written.ticket))?;
        Ok(Written { ticket: Ticket::DURABLE, ..written })
    }

    /// Proposes to delete some of the keys that were proposed before the first step; the ticket for all if none is
    /// left.
    ///
    /// # Errors
    /// As [`Core::propose`].
    pub(super) fn clear_some(&self, clear: &mut Clear) -> Result<Option<Ticket>> {
        let mut core = self.core.lock();
        core.check_leads()?;
        let leadership = core.open.leaderships();
        let until = match clear.until {
            Some((of, until)) if of == leadership => until,
            // Writes of other leaders since then are not known here: the clear begins anew.
            _ => {
                // Later writes have later indices.
                if !mutant!("replica.draft.clear") {
                    core.node.end_draft();
                }
                core.node.newest()
            }
        };
        if clear.until != Some((leadership, until)) {
            *clear = Clear { next: Vec::new(), until: Some((leadership, until)) };
        }
        let mut count = CLEARED_MAX;
        loop {
            let (mut deletes, mut looked, mut next) = (Batch::new(), 0, None);
            core.walk((&clear.next, None), false, &mut |key, record| {
                if deletes.len() == count || looked == LOOKED_MAX {
                    next = Some(key.to_vec());
                    return false;
                }
                looked += 1;
                if record.sequence <= until {
                    deletes.delete(key);
                }
                true
            })?;
            let proposed = match deletes.is_empty() {
                true => Ok(()),
                false => core.propose(&deletes, None).map(drop),
            };
            match proposed {
                Ok(()) => {
                    core.counts.add(&deletes);
                    let Some(next) = next else { return core.visible_ticket().map(Some) };
                    clear.next = next;
                    return Ok(None);
                }
                // The deletes take room for as many records, until the entry is applied.
                Err(Error::NoSpace { .. } | Error::Busy) if count > 1 => count = (count / 8).max(1),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Keys that are deleted with one entry.
const CLEARED_MAX: usize = 2048;

/// Keys that are looked at for it: those written since the clear began stay, and there may be many in a row.
const LOOKED_MAX: usize = 4 * CLEARED_MAX;

fn apply(core: &mut Core, batch: &Batch, now: UnixMillis) -> Result<Written> {
    let mut changes = Batch::with_capacity(batch.len(), batch.bytes_len());
    let mut replaced = false;
    for change in batch.changes() {
        core.look(change.key(), now, &mut |seen| replaced |= matches!(seen, Seen::Live(_)))?;
        match change {
            ChangeRef::Put { key, expires_at: Some(at), .. } if at <= now => changes.delete(key),
            change => changes.push(change),
        };
    }
    if changes.is_empty() {
        let ticket = core.visible_ticket()?;
        return Ok(Written { sequence: 0, ticket, replaced: false });
    }
    let (sequence, ticket) = core.propose(&changes, None)?;
    core.counts.add(&changes);
    Ok(Written { sequence, ticket, replaced })
}
