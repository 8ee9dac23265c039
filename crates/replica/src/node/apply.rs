//! Applying committed entries.

use super::{Node, Open, State};
use crate::members::{MemberChange, Members, NODES_MAX, NodeId, decode_change, to_conf_change};
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use raft::StateRole;
use raft::eraftpb::{Entry, EntryType};

impl Node {
    /// Applies committed entries: readers see them, and the members become those of the last one.
    pub(super) fn apply(&mut self, entries: Vec<Entry>) -> Result<()> {
        let Some(last) = entries.last().map(|entry| entry.index) else { return Ok(()) };
        for entry in &entries {
            if entry.get_entry_type() != EntryType::EntryNormal {
                self.change_members(entry)?;
            }
        }
        let passed = entries.iter().filter_map(|entry| proposer(entry)?.passed).max();
        if let Some(passed) = passed.filter(|_| !mutant!("replica.expiry.clock")) {
            self.view().change_notes(|notes| notes.passed = notes.passed.max(passed))?;
        }
        let cluster = entries.iter().find_map(|entry| proposer(entry)?.cluster);
        if let Some(cluster) = cluster.filter(|_| self.cluster() == 0) {
            self.view().change_notes(|notes| notes.cluster = cluster)?;
        }
        self.view().apply(last)?;
        for entry in entries {
            if let Some(number) = self.own_number(&entry).or_else(|| self.members_number(&entry))
                && self.proposals.remove(&number).is_some()
            {
                self.output.settled.push((number, entry.index));
            }
        }
        Ok(())
    }

    /// The number of the entry's proposal, if this node has made it since its start.
    fn own_number(&self, entry: &Entry) -> Option<u64> {
        let Proposer { node, start, number, .. } = proposer(entry)?;
        let is_own =
            node == self.settings.id && (start == self.start || mutant!("replica.proposal.start"));
        is_own.then_some(number)
    }

    /// The number of the entry's proposal, if this node has proposed this change of members.
    fn members_number(&self, entry: &Entry) -> Option<u64> {
        let is_it = |open: &Open| open.term == entry.term && open.index == Some(entry.index);
        self.proposals.iter().find(|(_, open)| is_it(open)).map(|(number, _)| *number)
    }

    fn change_members(&mut self, entry: &Entry) -> Result<()> {
        let changes = decode_change(&entry.context).unwrap_or_default();
        let State::Running(raw) = &mut self.state else { return Ok(()) };
        if entry.index <= self.view.0.lock().members().index {
            // The members were changed before a crash that lost the fact that the entry was applied.
            return Ok(());
        }
        let plain: Vec<MemberChange> = changes.iter().map(|it| it.0).collect();
        if self.view.0.lock().members().count_with(&plain) > NODES_MAX {
            // The control record has no room for so many nodes.
            return Ok(());
        }
        // A change that an earlier change has made impossible has no effect.
        let Ok(state) = raw.apply_conf_change(&to_conf_change(&changes)) else { return Ok(()) };
        let mut members = Members::of_state(&state, entry.index);
        for change in &plain {
            // The joining node may have another pool, without the contents of the pool before it.
            if let MemberChange::Join(node) = change
                && let Some(progress) = raw.raft.mut_prs().get_mut(*node)
                && !mutant!("replica.join.kept")
            {
                (progress.matched, progress.next_idx) = (0, 1);
                progress.become_probe();
                progress.recent_active = false;
            }
        }
        if raw.raft.state == StateRole::Leader && !members.elects(self.settings.id) {
            // The leader proposed its own removal before. It would go on as leader, which it no longer is.
            let term = raw.raft.term;
            raw.raft.become_follower(term, 0);
        }
        let learners = [members.learners.as_slice(), &members.learners_next].concat();
        members.joining = self.view.0.lock().members().joining_after(&plain, &learners);
        self.view.0.lock().change_notes(|notes| notes.note_members(members, &changes))
    }
}

/// The proposer of changes, and what else the entry states.
struct Proposer {
    node: NodeId,
    start: u64,
    number: u64,
    /// A time that has passed.
    passed: Option<u64>,
    /// The name of the cluster.
    cluster: Option<u64>,
}

fn proposer(entry: &Entry) -> Option<Proposer> {
    if entry.get_entry_type() != EntryType::EntryNormal {
        return None;
    }
    let (words, _) = entry.context.as_chunks::<8>();
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    let (node, start, number) = (word(0)?, word(1)?, word(2)?);
    Some(Proposer { node, start, number, passed: word(3), cluster: word(4) })
}
