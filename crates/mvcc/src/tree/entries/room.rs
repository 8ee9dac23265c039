//! Room for what is pending to be applied.
//!
//! To apply entries makes nodes fresh, which the next commit writes. Who has appended an entry must be able to apply it:
//! so whoever takes pages leaves as many as that will take, of all that is pending, as if it were fresh already. The ways
//! to keys that several entries change are counted once.
//!
//! As a rule there is room for the worst that can be, and nobody has to look where the keys are. If there is not, who
//! appends is refused ([`Error::NoSpace`](coreplane_engine::Error::NoSpace)) before anything is written, and who applies or
//! votes takes no more than that takes of what was left.

use super::super::need::Need;
use super::Tree;
use crate::key::Key;
use crate::map::Group;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;

impl Tree {
    /// Pages for all that is fresh, that these keys and those that are pending make fresh, and a commit, at the worst.
    fn pages_at_worst(&self, keys: &[&[u8]]) -> u32 {
        let count = keys.len() + self.entries.keys.len();
        // A key makes the nodes on its way fresh, and splits each of them. In levels that come, there are far less.
        let nodes = self.fresh_max + count * (2 * self.height as usize + 2);
        let longest = keys.iter().map(|key| key.len()).max().unwrap_or(0);
        let node = self.node_len_max(longest.max(self.entries.longest_key));
        Need::most(nodes, node).pages(&self.stream.volume, self.commit_len_max())
    }

    /// The same, as it is.
    fn pages_as_is(&self, guard: &Guard, keys: &[&[u8]]) -> Result<u32> {
        let pending = self.entries.keys.keys().map(Key::bytes);
        let pending = pending.filter(|_| !mutant!("mvcc.pending.room"));
        self.pages_to_put(guard, keys.iter().copied().chain(pending).collect())
    }

    /// Pages for all that is fresh, that these keys make fresh, and a commit.
    pub(super) fn pages_to_put(&self, guard: &Guard, keys: Vec<&[u8]>) -> Result<u32> {
        let volume = &*self.stream.volume;
        let mut need = self.need();
        for key in &keys {
            need.add_path(self.look(volume, guard), self.root(), key)?;
        }
        need.grow(&keys, self.longest_key, self.limits);
        Ok(need.pages(volume, self.commit_len_max()))
    }

    /// Pages that are left to what is pending by who cleans.
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

    /// Pages for a group, with what the next commit writes, of who leaves `reserve` pages.
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
            // Most of the time there are as many, and nobody has to look; or there are not, in any case.
            if most.saturating_add(reserve) <= free || reserve >= total {
                return Ok(most);
            }
        }
        Ok(records + self.pages_as_is(guard, group.keys)?)
    }
}
