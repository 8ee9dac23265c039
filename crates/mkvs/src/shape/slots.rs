//! Where a key belongs: a fixed slot by its hash, and for each slot the group that owns it.
//!
//! ```text
//!   key ─▶ hash ─▶ slot (one of 1024) ─▶ owner: a group
//! ```
//!
//! Slots are dealt to groups by *rendezvous* with equal shares: a new group makes a pseudo-random throw for every
//! slot and takes the slots with its highest throws, each from the group that has the most slots then, until it has
//! as many as the others. So no other slot moves, all groups have the same number of slots to within one, and a
//! matrix that was made with four groups is like one that grew to four. The durable table is authoritative, though:
//! this module only computes the target, and slots move a few at a time.

/// Slots of a matrix.
pub const SLOTS: usize = 1024;

/// The slot of a key with this hash.
#[inline]
pub fn slot_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// The owner of each slot in a matrix of so many groups, at least one.
pub fn deal(groups: u16) -> Vec<u16> {
    let mut owners = vec![0; SLOTS];
    for group in 1..groups {
        share_of(group, &owners).into_iter().for_each(|slot| owners[slot] = group);
    }
    owners
}

/// The slots that `group` is to take from the groups before it, which own all; in ascending order.
pub fn share_of(group: u16, owners: &[u16]) -> Vec<usize> {
    let mut of: Vec<Vec<usize>> = vec![Vec::new(); usize::from(group)];
    for (slot, owner) in owners.iter().enumerate() {
        of[usize::from(*owner)].push(slot);
    }
    // The highest throw last.
    let throw = |slot: &usize| mix((*slot as u64) << 16 | u64::from(group));
    of.iter_mut().for_each(|slots| slots.sort_by_key(throw));
    let mut share: Vec<usize> = (0..owners.len() / (usize::from(group) + 1))
        .filter_map(|_| of.iter_mut().rev().max_by_key(|slots| slots.len())?.pop())
        .collect();
    share.sort_unstable();
    share
}

/// A throw: all bits of the result depend on all bits of the argument.
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_groups_have_the_same_share() {
        for groups in 1..=64_u16 {
            let mut owned = vec![0_usize; usize::from(groups)];
            deal(groups).into_iter().for_each(|owner| owned[usize::from(owner)] += 1);
            let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
            assert!(most - least <= 1, "{owned:?} of {groups} groups");
        }
    }

    #[test]
    fn a_new_group_takes_slots_and_no_other_moves() {
        for groups in 1..16_u16 {
            for (before, after) in deal(groups).into_iter().zip(deal(groups + 1)) {
                assert!(after == before || after == groups, "moved from {before} to {after}");
            }
        }
    }

    #[test]
    fn whoever_has_more_gives_more() {
        // As a table that was dealt otherwise.
        let owners: Vec<u16> = (0..SLOTS).map(|slot| u16::from(slot % 4 == 0)).collect();
        let share = share_of(2, &owners);
        assert_eq!(share.len(), SLOTS / 3);
        assert!(share.iter().all(|slot| owners[*slot] == 0), "the other has a quarter only");
        assert!(share.is_sorted());
    }

    #[test]
    fn every_slot_has_keys() {
        let mut keys = vec![0_u32; SLOTS];
        (0..100_000_u64).for_each(|key| keys[slot_of(mix(key))] += 1);
        assert!(keys.iter().all(|count| *count > 40), "{:?}", keys.iter().min());
    }
}
