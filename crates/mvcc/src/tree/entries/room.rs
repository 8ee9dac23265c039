//! Room for applying the pending entries.
//!
//! Applying entries makes nodes fresh, which the next commit writes. An entry that was appended must be applicable:
//! so each request for pages leaves as many as applying all pending entries will take, as if their nodes were fresh
//! already. Paths to keys that several entries change are counted once.
//!
//! As a rule there is room for the worst case, and the keys need not be looked up. If there is not, an append is
//! refused ([`Error::NoSpace`](coreplane_engine::Error::NoSpace)) before anything is written, and an apply or a vote
//! takes only what it needs of the pages that were left for it.

use super::super::need::Need;
use super::Tree;
use crate::key::Key;
use crate::map::Group;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;

impl Tree {
    /// Pages for all fresh nodes, those that these keys and the pending ones make fresh, and a commit, at the worst.
    fn pages_at_worst(&self, keys: &[&[u8]]) -> u32 {
        let count = keys.len() + self.entries.keys.len();
        // A key makes the nodes on its path fresh, and splits each of them. New levels have far fewer nodes.
        let nodes = self.fresh_max + count * (2 * self.height as usize + 2);
        let longest = keys.iter().map(|key| key.len()).max().unwrap_or(0);
        let node = self.node_len_max(longest.max(self.entries.longest_key));
        Need::most(nodes, node).pages(&self.stream.volume, self.commit_len_max())
    }

    /// The same for the tree as it is.
    fn pages_as_is(&self, guard: &Guard, keys: &[&[u8]]) -> Result<u32> {
        let pending = self.entries.keys.keys().map(Key::bytes);
        let pending = pending.filter(|_| !mutant!("mvcc.pending.room"));
        self.pages_to_put(guard, keys.iter().copied().chain(pending).collect())
    }

    /// Pages for all fresh nodes, those that these keys make fresh, and a commit.
    pub(super) fn pages_to_put(&self, guard: &Guard, keys: Vec<&[u8]>) -> Result<u32> {
        let volume = &*self.stream.volume;
        let mut need = self.need();
        for key in &keys {
            need.add_path(self.look(volume, guard), self.root(), key)?;
        }
        need.grow(&keys, self.longest_key, self.limits);
        Ok(need.pages(volume, self.commit_len_max()))
    }

    /// Pages that the cleaner leaves to pending entries.
    pub(in crate::tree) fn pages_for_pending(&self, guard: &Guard) -> Result<u32> {
        if self.entries.keys.is_empty() {
            return Ok(0);
        }
        let worst = self.pages_at_worst(&[]);
        if 2 * worst <= self.stream.pages.total_and_free().1 {
            return Ok(worst);
        }
        self.pages_as_is(guard, &[])
    }

    /// Pages for a group and for the next commit, for a caller that leaves `reserve` pages.
    pub(in crate::tree) fn pages_for_all(
        &self,
        guard: &Guard,
        group: Group<'_>,
        reserve: u32,
    ) -> Result<u32> {
        let records = self.stream.pages_for(group.lengths.iter().copied());
        if self.is_log || group.keys.len() == 1 {
            let most = records + self.pages_at_worst(group.keys);
            let (total, free) = self.stream.pages.total_and_free();
            // Most of the time there are as many, and no key is looked up; or there are too few in any case.
            if most.saturating_add(reserve) <= free || reserve >= total {
                return Ok(most);
            }
        }
        Ok(records + self.pages_as_is(guard, group.keys)?)
    }
}
