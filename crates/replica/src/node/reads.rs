//! Reads that see all that was acknowledged before they came.
//!
//! ```text
//!   read ─▶ new ─▶ asked: does a majority know of no newer term? ─▶ confirmed, at an index ─▶ applied ─▶ answered
//! ```
//!
//! All that have come in a turn ask together. A leader that has not committed an entry of its own term yet does not know
//! what is committed: they wait for that.

use super::{Node, Open, Role, State};
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use raft::StateRole;

impl Node {
    /// Asks for a read: the number by which the output calls it. Whoever has it may read from the map all that was
    /// acknowledged before this call, by any node.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; if the node has stopped.
    pub fn read(&mut self) -> Result<u64> {
        self.check_running()?;
        if self.status_role() != Role::Leader {
            return Err(Error::NotLeader { leader: self.leader() });
        }
        let number = self.next_number;
        self.next_number += 1;
        self.reads_new.push(number);
        Ok(number)
    }

    /// Asks a majority for all reads that have come, at once.
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
}
