//! Room for what is pending to be applied.
//!
//! To apply entries makes nodes fresh, which the next commit writes. Who has appended an entry must be able to apply it:
//! so whoever takes pages leaves as many as that will take, of all that is pending, as if it were fresh already. The ways
//! to keys that several entries change are counted once.
//!
//! As a rule there is room for the worst that can be, and nobody has to look where the keys are.

use super::super::need::Need;
use super::Tree;
use crate::key::Key;
use crate::map::Group;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;

impl Tree {
    /// Pages for all that is fresh, that these keys and those that are pending make fresh, and a commit, at the worst.
    pub(in crate::tree) fn pages_at_worst(&self, keys: &[&[u8]]) -> u32 {
        let count = keys.len() + self.entries.keys.len();
        // The next level takes at least twice as many keys as the one before.
        let height = (self.height + count.checked_ilog2().unwrap_or(0)) as usize;
        let nodes = self.fresh_max + count * (2 * height + 2);
        let longest = keys.iter().map(|key| key.len()).max().unwrap_or(0);
        let node = self.node_len_max(longest.max(self.entries.longest_key));
        Need::most(nodes, node).pages(&self.stream.volume, self.commit_len_max())
    }

    /// The same, as it is.
    pub(in crate::tree) fn pages_as_is(&self, guard: &Guard, keys: &[&[u8]]) -> Result<u32> {
        let volume = &*self.stream.volume;
        let mut need = self.need();
        let pending = self.entries.keys.keys().map(Key::bytes);
        let keys: Vec<&[u8]> = keys.iter().copied().chain(pending).collect();
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

    /// Pages for a group, with what the next commit writes.
    pub(in crate::tree) fn pages_for_all(&self, guard: &Guard, group: Group<'_>) -> Result<u32> {
        let records = self.stream.pages_for(group.lengths.iter().copied());
        if self.is_log || group.keys.len() == 1 {
            let most = records + self.pages_at_worst(group.keys);
            // Most of the time there are as many, and nobody has to look.
            let reserve = crate::map::Map::reserve(self, crate::map::Purpose::Insert);
            if most + reserve <= self.stream.pages.total_and_free().1 {
                return Ok(most);
            }
        }
        Ok(records + self.pages_as_is(guard, group.keys)?)
    }
}
