//! Keys of slots that move: every write to the owner is also made in the group that the slot moves to.

use super::Keyspace;
use crate::device::Decided;
use crate::filter::hash_of;
use crate::group::{Group, Item};
use crate::shape::{Route, slot_of};
use coreplane_engine::Result;
use coreplane_pmem::mutant;

impl Keyspace {
    /// Makes a write of a key in a moving slot, made by the slot's owner, also in the group that the slot
    /// moves to. The caller has the key lock. If the write fails there, the slot stays with its owner.
    pub(crate) fn write_ahead(&self, to: usize, hash: u64, decided: &Decided<'_>, sequence: u64) {
        let put = decided.put.map(|(value, at)| (value.to_vec(), at));
        let item = Item { key: decided.key.to_vec(), put, sequence };
        if mutant!("mkvs.move.write_ahead") {
            return;
        }
        if self.groups[to].give(hash, &item).is_err() {
            let slot = slot_of(hash);
            self.owners.settle(slot, self.owners.of_slot(slot).owner() as u16);
        }
    }

    /// True if a list of an owner's records may show a write that was refused: it was taken back on the primary, or
    /// its key is in doubt. `before` is the number of writes that were taken back before it. The caller has the key
    /// lock.
    pub(crate) fn may_be_listed(&self, owner: &Group, key: &[u8], before: u64) -> bool {
        let members = owner.members();
        self.in_flight.taken_back() != before
            || self.in_flight.sure_of(owner.number, members, |it| it == key) != members
    }

    /// A write of a key in a moving slot was refused: the owner's record is made anew in the group that the
    /// slot moves to, which may have received the refused write. The caller has the key lock.
    pub(crate) fn give_anew_after_refusal(&self, hash: u64, key: &[u8]) {
        let route = self.owners.of(hash);
        if route.to().is_some() && self.give_anew(route, key).is_err() {
            self.owners.settle(slot_of(hash), route.owner() as u16);
        }
    }

    /// Makes the owner's record of a key anew in both groups, with a sequence above all that either has.
    pub(crate) fn give_anew(&self, route: Route, key: &[u8]) -> Result<()> {
        let hash = hash_of(key);
        let item = self.groups[route.owner()].give_anew(hash, key)?;
        self.in_flight.keep_tombstones(u64::from(item.put.is_none()));
        match route.to() {
            Some(to) => self.groups[to].give_instead(hash, &item).map(|_| ()),
            None => Ok(()),
        }
    }
}
