//! Reads that see everything acknowledged before they arrived.
//!
//! ```text
//!   read ─▶ new ─▶ asked: does a majority know of no newer term? ─▶ confirmed, at an index ─▶ applied ─▶ answered
//! ```
//!
//! All reads that arrive in a turn ask together. A leader that has not committed an entry of its own term yet does
//! not know the committed index: its reads wait until it has.
//!
//! A follower that serves reads from its own state asks the leader from time to time for the committed index, which
//! the leader finds out in the same way. Once that index is applied here, the follower has everything that was
//! acknowledged before it asked: so it knows by its own clock how old its state is at most.

use super::{Node, Open, Role, State, mix};
use crate::codec::Body;
use crate::members::NodeId;
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use raft::StateRole;

impl Node {
    /// Asks for a read: the number by which the output calls it. When the output has that number, the map shows
    /// everything that was acknowledged before this call, by any node.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; if the node has stopped.
    pub fn read(&mut self) -> Result<u64> {
        self.check_running()?;
        if self.role() != Role::Leader {
            return Err(Error::NotLeader { leader: self.leader() });
        }
        let number = self.next_number;
        self.next_number += 1;
        self.reads_new.push(number);
        Ok(number)
    }

    /// Asks a majority about all reads that have arrived, at once.
    pub(super) fn begin_reads(&mut self) {
        let State::Running(raw) = &mut self.state else { return };
        let is_leader = raw.raft.state == StateRole::Leader;
        if is_leader && mutant!("replica.read.unconfirmed") {
            self.output.reads.append(&mut self.reads_new);
            return;
        }
        if self.reads_new.is_empty() || !is_leader || !raw.raft.commit_to_current_term() {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let open = Open { term: raw.raft.term, index: None };
        self.reads_asked.insert(number, (open, std::mem::take(&mut self.reads_new)));
        let mut context = self.start.to_le_bytes().to_vec();
        context.extend_from_slice(&number.to_le_bytes());
        raw.read_index(context);
    }

    pub(super) fn confirm_read(&mut self, context: &[u8], index: u64) {
        let number = context.get(8..).and_then(<[u8]>::first_chunk);
        let number = number.map_or(0, |word| u64::from_le_bytes(*word));
        if let Some((open, reads)) = self.reads_asked.remove(&number) {
            self.reads_confirmed.push((index, open, reads));
        }
    }

    pub(super) fn answer_reads(&mut self) {
        let applied = self.view().control().applied;
        let (ready, waiting) = std::mem::take(&mut self.reads_confirmed)
            .into_iter()
            .partition::<Vec<_>, _>(|(index, ..)| *index <= applied);
        self.reads_confirmed = waiting;
        self.output.reads.extend(ready.into_iter().flat_map(|(_, _, reads)| reads));
    }

    /// Of a follower: asks the leader for the committed index; the number by which the output calls it once that
    /// index is applied here. None if no leader is known. The question or the answer may be lost.
    pub fn ask(&mut self) -> Option<u64> {
        let leader = self.leader().filter(|leader| *leader != self.settings.id)?;
        let State::Running(raw) = &self.state else { return None };
        if raw.raft.state != StateRole::Follower || self.stopped.is_some() || self.is_waiting() {
            return None;
        }
        // An answer to an earlier life of this node must not count for this one.
        let number = mix(self.life) ^ self.next_number;
        self.next_number += 1;
        self.send(leader, Body::Ask(number));
        Some(number)
    }

    /// Of a leader: takes the question of a follower.
    pub(super) fn take_ask(&mut self, from: NodeId, number: u64) {
        if let Ok(read) = self.read() {
            self.asks.insert(read, (from, number));
        }
    }

    /// Answers the followers that have asked, and reports the answers that this node has got.
    pub(super) fn settle_asks(&mut self) {
        let applied = self.view().control().applied;
        if !self.asks.is_empty() {
            let asks = &mut self.asks;
            let answered = self.output.reads.extract_if(.., |read| asks.contains_key(read));
            let answered: Vec<u64> = answered.collect();
            self.output.reads_lost.retain(|read| asks.remove(read).is_none());
            for read in answered {
                if let Some((from, number)) = self.asks.remove(&read) {
                    self.send(from, Body::Told(number, applied));
                }
            }
        }
        let fresh = self.told.extract_if(.., |_, index| *index <= applied);
        self.output.fresh.extend(fresh.map(|(number, _)| number));
        while self.told.len() > TOLD_MAX {
            self.told.pop_first();
        }
    }
}

/// Answers that a follower keeps until it has applied up to their index.
const TOLD_MAX: usize = 64;
