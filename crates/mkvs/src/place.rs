//! Where a key belongs: a fixed slot by its hash, and for each slot the group that owns it.
//!
//! ```text
//!   key ─▶ hash ─▶ slot (one of 1024) ─▶ owner: a group
//! ```
//!
//! Slots are dealt to groups by *rendezvous*: every group throws for every slot, and the highest
//! throw has it. So a group that is added takes its share of slots, each from whoever had it, and
//! no other slot moves. The table is what counts, though, and is kept durably: the rendezvous only
//! says how it should be, and slots move one at a time.

/// Slots of a matrix.
pub const SLOTS: usize = 1024;

/// The slot of a key with this hash.
#[inline]
pub fn slot_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// The group that should own `slot`, of groups 0 to `groups` - 1.
pub fn rendezvous(slot: usize, groups: u16) -> u16 {
    let throw = |group: &u16| mix((slot as u64) << 16 | u64::from(*group));
    (0..groups).max_by_key(throw).unwrap_or(0)
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
    fn each_group_has_its_share() {
        for groups in 1..=8_u16 {
            let mut owned = vec![0_usize; usize::from(groups)];
            (0..SLOTS).for_each(|slot| owned[usize::from(rendezvous(slot, groups))] += 1);
            let fair = SLOTS / usize::from(groups);
            for count in &owned {
                assert!(count.abs_diff(fair) <= fair / 3, "{owned:?} of {groups} groups");
            }
        }
    }

    #[test]
    fn a_new_group_takes_slots_and_no_other_moves() {
        for groups in 1..8_u16 {
            let moved = (0..SLOTS).filter(|slot| {
                let (before, after) = (rendezvous(*slot, groups), rendezvous(*slot, groups + 1));
                assert!(after == before || after == groups, "slot {slot} moved between the others");
                after != before
            });
            let fair = SLOTS / usize::from(groups + 1);
            assert!(moved.count().abs_diff(fair) <= fair / 3);
        }
    }

    #[test]
    fn every_slot_has_keys() {
        let mut keys = vec![0_u32; SLOTS];
        (0..100_000_u64).for_each(|key| keys[slot_of(mix(key))] += 1);
        assert!(keys.iter().all(|count| *count > 40), "{:?}", keys.iter().min());
    }
}
