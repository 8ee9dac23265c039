//! The results of the proposals and reads behind tickets.
//!
//! A ticket is the number of a proposal or of a read on this node, never an index: a later leader may put another
//! entry at that index. Proposals of one leadership settle in the order of their numbers. Proposals and reads that
//! are open when it ends are reported as lost.

use coreplane_engine::{Error, Result, Ticket};
use std::collections::BTreeMap;

/// The kinds of tickets. The log of a ticket is its kind and leadership, so that tickets of one do not hide those of
/// another in a horizon, which keeps the last ticket of each log.
const PROPOSALS: u16 = 0;
const READS: u16 = 1;
const KINDS: u16 = 2;
const LEADERSHIPS: u64 = 2000;

/// A number that no read has, and that is always lost.
const NO_READ: u64 = 1;

/// An open read.
#[derive(Debug, Default)]
struct Read {
    /// The last proposal that it has seen.
    rests_on: u64,
    is_confirmed: bool,
}

/// Proposals and reads, and their results.
#[derive(Debug)]
pub(super) struct Settlement {
    /// Leaderships that have begun or ended here.
    leaderships: u64,
    /// The last applied proposal.
    settled: u64,
    reads: BTreeMap<u64, Read>,
    /// The read that new reads join: its majority is asked after they have arrived.
    joins: Option<u64>,
    /// Ranges of numbers, of proposals and of reads, whose result is unknown.
    lost: Vec<(u16, u64, u64)>,
}

impl Default for Settlement {
    fn default() -> Self {
        let lost = vec![(READS, NO_READ, NO_READ)];
        Self { leaderships: 0, settled: 0, reads: BTreeMap::new(), joins: None, lost }
    }
}

impl Settlement {
    fn ticket(&self, kind: u16, number: u64) -> Ticket {
        Ticket::new((self.leaderships % LEADERSHIPS) as u16 * KINDS + kind, number)
    }

    pub(super) fn ticket_of_proposal(&self, number: u64) -> Ticket {
        self.ticket(PROPOSALS, number)
    }

    /// The ticket for a state that was seen and does not hold any more.
    pub(super) fn lost_ticket(&self) -> Ticket {
        self.ticket(READS, NO_READ)
    }

    /// A leadership has begun, or ended.
    pub(super) fn begin_leadership(&mut self) {
        self.leaderships += 1;
    }

    pub(super) fn leaderships(&self) -> u64 {
        self.leaderships
    }

    pub(super) fn settle(&mut self, proposal: u64) {
        self.settled = self.settled.max(proposal);
        let settled = self.settled;
        self.reads.retain(|_, read| !read.is_confirmed || read.rests_on > settled);
    }

    pub(super) fn confirm(&mut self, number: u64) {
        if let Some(read) = self.reads.get_mut(&number) {
            read.is_confirmed = true;
            if read.rests_on <= self.settled {
                self.reads.remove(&number);
            }
        }
    }

    /// A leadership has ended.
    pub(super) fn lose(&mut self, proposals: &[u64], reads: &[u64]) {
        let ends = |numbers: &[u64]| Some((*numbers.iter().min()?, *numbers.iter().max()?));
        if let Some((first, last)) = ends(proposals) {
            self.lost.push((PROPOSALS, first, last));
        }
        // This includes confirmed reads that have seen a lost proposal.
        let open: Vec<u64> = self.reads.keys().copied().chain(reads.iter().copied()).collect();
        if let Some((first, last)) = ends(&open) {
            self.lost.push((READS, first, last));
        }
        self.reads.clear();
        self.joins = None;
    }

    /// The read that a new one may join, if there is any.
    pub(super) fn joins(&self) -> Option<u64> {
        self.joins
    }

    /// Begins a read that others may join.
    pub(super) fn begin(&mut self, read: u64) {
        self.reads.insert(read, Read::default());
        self.joins = Some(read);
    }

    /// A majority is being asked: reads that arrive from now on are too late for it.
    pub(super) fn asked(&mut self) {
        self.joins = None;
    }

    /// The ticket of a read that has seen proposals up to this one.
    pub(super) fn rest(&mut self, read: u64, proposal: u64) -> Ticket {
        if let Some(open) = self.reads.get_mut(&read) {
            open.rests_on = open.rests_on.max(proposal);
        }
        self.ticket(READS, read)
    }

    /// True if the proposal or the read of the ticket is done.
    ///
    /// # Errors
    /// [`Error::Indeterminate`] if its result will never be known.
    pub(super) fn is_done(&self, ticket: Ticket) -> Result<bool> {
        if ticket.is_durable() {
            return Ok(true);
        }
        let (kind, number) = (ticket.log() % KINDS, ticket.position());
        let is_lost = |(lost, first, last): &(u16, u64, u64)| {
            *lost == kind && (*first..=*last).contains(&number)
        };
        if self.lost.iter().any(is_lost) {
            return Err(Error::Indeterminate);
        }
        Ok(match kind {
            PROPOSALS => number <= self.settled,
            _ => self.reads.first_key_value().is_none_or(|(first, _)| *first > number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_its_majority_and_for_what_it_has_seen() {
        let mut settlement = Settlement::default();
        settlement.begin(3);
        let ticket = settlement.rest(3, 2);
        settlement.asked();
        assert_eq!(settlement.joins(), None);
        settlement.confirm(3);
        assert!(!settlement.is_done(ticket).unwrap());
        settlement.settle(2);
        assert!(settlement.is_done(ticket).unwrap());
        settlement.begin(4);
        settlement.begin(5);
        let (first, second) = (settlement.rest(4, 0), settlement.rest(5, 0));
        settlement.confirm(5);
        assert!(!settlement.is_done(second).unwrap(), "one that came before is open");
        settlement.confirm(4);
        assert!(settlement.is_done(first).unwrap() && settlement.is_done(second).unwrap());
    }

    #[test]
    fn what_is_lost_is_lost_for_ever() {
        let mut settlement = Settlement::default();
        settlement.settle(1);
        settlement.begin(4);
        let read = settlement.rest(4, 3);
        settlement.lose(&[2, 3], &[4]);
        settlement.settle(6);
        let is_done = |number| settlement.is_done(settlement.ticket_of_proposal(number));
        assert!(is_done(1).unwrap());
        assert!(matches!(is_done(3), Err(Error::Indeterminate)));
        assert!(matches!(settlement.is_done(read), Err(Error::Indeterminate)));
        assert!(matches!(settlement.is_done(settlement.lost_ticket()), Err(Error::Indeterminate)));
        assert!(is_done(6).unwrap());
        assert!(!is_done(7).unwrap());
    }
}
