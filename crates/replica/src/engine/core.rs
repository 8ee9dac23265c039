//! The state behind the lock: the node, and the open proposals and reads.

use super::effects::Effects;
use super::follower::Age;
use super::settlement::Settlement;
use crate::codec::Envelope;
use crate::node::{Node, Role};
use coreplane_engine::{Batch, Error, Record, Result, Ticket, UnixMillis, Value, Visibility};
use coreplane_pmem::mutant;

/// Counters of the calls on this node.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) batches: u64,
    pub(super) expired: u64,
    pub(super) user_bytes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, changes: &Batch) {
        for change in changes.changes() {
            match change.value() {
                Some(_) => self.puts += 1,
                None => self.deletes += 1,
            }
        }
        self.user_bytes += changes.bytes_len() as u64;
    }
}

/// The node, and its open proposals and reads.
pub(super) struct Core {
    pub(super) node: Node,
    pub(super) effects: Effects,
    pub(super) open: Settlement,
    /// Messages to send.
    pub(super) envelopes: Vec<Envelope>,
    /// The term in which it leads, as far as it was noticed here.
    leads_in: Option<u64>,
    /// A caller may wait for a result of the last turn.
    is_news: bool,
    pub(super) is_closed: bool,
    /// An entry with an expiry was seen, or may have been.
    pub(super) may_expire: bool,
    pub(super) counts: Counts,
    pub(super) age: Age,
    /// The applied entry that listeners were told of last.
    told_applied: u64,
}

/// The newest state of a key.
pub(super) enum Seen<'a> {
    Absent,
    Live(Record<'a>),
    /// It expired at this time, and is still stored.
    Expired(UnixMillis),
}

impl Core {
    pub(super) fn new(node: Node) -> Self {
        Self {
            node,
            effects: Effects::default(),
            open: Settlement::default(),
            envelopes: Vec::new(),
            leads_in: None,
            is_news: false,
            is_closed: false,
            may_expire: true,
            counts: Counts::default(),
            age: Age::default(),
            told_applied: 0,
        }
    }

    /// True if more is applied than at the last call.
    pub(super) fn note_applied(&mut self) -> bool {
        let applied = self.node.applied();
        std::mem::replace(&mut self.told_applied, applied) != applied
    }

    /// Takes the output of the node; true if a caller may have waited for it.
    pub(super) fn take_output(&mut self) -> bool {
        let output = self.node.take_output();
        self.envelopes.extend(output.envelopes);
        // Each turn asks a majority for the reads that had arrived.
        if !mutant!("replica.read.late") {
            self.open.asked();
        }
        let leads_in = self.node.leads_in();
        let is_other = leads_in != self.leads_in;
        let is_news = std::mem::take(&mut self.is_news)
            || is_other
            || [&output.lost, &output.reads, &output.reads_lost].iter().any(|it| !it.is_empty())
            || !output.settled.is_empty();
        for (number, _) in &output.settled {
            self.open.settle(*number);
            self.effects.applied(*number);
        }
        output.reads.iter().for_each(|number| self.open.confirm(*number));
        output.fresh.iter().for_each(|number| self.age.told(*number));
        if is_other || !output.lost.is_empty() || !output.reads_lost.is_empty() {
            self.open.lose(&output.lost, &output.reads_lost);
        }
        if is_other {
            self.leads_in = leads_in;
            self.open.begin_leadership();
            self.effects.clear();
            // It is not known whether other leaders have proposed expiries.
            self.may_expire = true;
        }
        is_news
    }

    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Busy`] if it leads and does not know yet everything that was acknowledged.
    pub(super) fn check_leads(&self) -> Result<()> {
        if self.is_closed {
            return Err(Error::Closed);
        }
        self.node.check_running()?;
        if self.leads_in.is_some() {
            return Ok(());
        }
        let status = self.node.status();
        match status.role {
            Role::Leader => Err(Error::Busy),
            _ => Err(Error::NotLeader { leader: status.leader }),
        }
    }

    /// Shows the newest state of a key at this time; the number of the proposal that made it, or 0.
    pub(super) fn look(
        &self,
        key: &[u8],
        now: UnixMillis,
        visit: &mut dyn FnMut(Seen<'_>),
    ) -> Result<u64> {
        let mut show = |record: Record<'_>| {
            visit(match record.expires_at.filter(|at| *at <= now) {
                Some(at) => Seen::Expired(at),
                None => Seen::Live(record),
            });
        };
        if let Some(newest) = self.effects.get(key) {
            let sequence = newest.index;
            match &newest.value {
                None => visit(Seen::Absent),
                Some(value) => show(Record {
                    value: Value::Whole(value),
                    sequence,
                    expires_at: newest.expires_at,
                    ticket: Ticket::DURABLE,
                }),
            }
            return Ok(newest.number);
        }
        // Applied entries are durable with a majority.
        let found = self.node.with_map(|map| map.get_with(key, Visibility::Early, &mut show))?;
        if !found.hit {
            visit(Seen::Absent);
        }
        Ok(0)
    }

    /// Proposes changes that are made together, perhaps with those of other calls of this turn: their index, and
    /// their ticket.
    ///
    /// # Errors
    /// As [`Node::propose`]; [`Error::Busy`] also if there is no room for deletes until earlier proposals are applied.
    pub(super) fn propose(
        &mut self,
        changes: &Batch,
        passed: Option<UnixMillis>,
    ) -> Result<(u64, Ticket)> {
        if self.node.is_turn_due() {
            let turned = self.node.flush();
            self.is_news |= self.take_output();
            turned?;
        }
        let proposal = match passed {
            Some(_) => self.node.propose(changes, passed),
            None => self.node.propose_to_join(changes),
        };
        let frees_room = || changes.changes().all(|change| change.value().is_none());
        let proposal = proposal.map_err(|error| match error {
            // Earlier proposals free room when they are applied.
            Error::NoSpace { .. } if self.effects.last() > 0 && frees_room() => Error::Busy,
            error => error,
        })?;
        self.may_expire |= changes.changes().any(|change| {
            matches!(change, coreplane_engine::ChangeRef::Put { expires_at: Some(_), .. })
        });
        if !mutant!("replica.effect.unseen") {
            self.effects.add((proposal.number, proposal.index), changes.changes());
        }
        Ok((proposal.index, self.open.ticket_of_proposal(proposal.number)))
    }

    /// Proposes to delete keys that have expired by `at`, before a caller is told that they are absent. So they are
    /// absent for the next leader, too, whatever its clock says. The number of the last proposal.
    ///
    /// # Errors
    /// As [`Core::propose`].
    pub(super) fn expire(&mut self, keys: &[Vec<u8>], at: UnixMillis) -> Result<u64> {
        if mutant!("replica.expiry.told") {
            return Ok(0);
        }
        for keys in keys.chunks(EXPIRED_MAX) {
            let mut deletes = Batch::new();
            for key in keys {
                deletes.delete(key);
            }
            self.propose(&deletes, Some(at))?;
            self.counts.expired += keys.len() as u64;
        }
        Ok(self.effects.last())
    }

    /// The ticket of a read that has seen all proposals.
    ///
    /// # Errors
    /// [`Error::NotLeader`].
    pub(super) fn visible_ticket(&mut self) -> Result<Ticket> {
        let last = self.effects.last();
        self.read_ticket(last)
    }

    /// The ticket of a read that has seen this proposal: a majority confirms the term, once for all reads of a turn.
    ///
    /// # Errors
    /// [`Error::NotLeader`].
    pub(super) fn read_ticket(&mut self, proposal: u64) -> Result<Ticket> {
        let read = match self.open.joins() {
            Some(read) => read,
            None => {
                let read = self.node.read()?;
                self.open.begin(read);
                read
            }
        };
        let proposal = if mutant!("replica.cas.early") { 0 } else { proposal };
        Ok(self.open.rest(read, proposal))
    }
}

/// Most expired keys of an entry.
pub(super) const EXPIRED_MAX: usize = 1024;
