//! Which members of a group together have every acknowledged write.
//!
//! A write is acknowledged when *W* of the *n* current members have it durably, the primary always among
//! them. So the primary alone has every such write; and among any n - W + 1 members at least one has each
//! write, since no more than n - W members can lack it.

use crate::shape::{Ack, Devices};
use coreplane_pmem::mutant;

/// The rule of one group, as its membership record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quorum {
    primary: u8,
    /// The least number of members that is enough without the primary.
    others: u32,
}

impl Quorum {
    pub(crate) fn new(ack: Ack, members: Devices, primary: u8) -> Self {
        let count = members.count_ones();
        Self { primary, others: count - ack.copies(count) + 1 }
    }

    /// Any member is enough, because the loss of other writes was accepted, or all members were equal.
    pub(crate) fn any(self) -> Self {
        Self { others: 1, ..self }
    }

    /// True if these members together have every acknowledged write.
    pub(crate) fn suffices(self, members: Devices) -> bool {
        let others = if mutant!("mkvs.quorum.any") { 1 } else { self.others };
        members & 1 << self.primary != 0 || members.count_ones() >= others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_is_enough_and_so_are_as_many_as_no_write_can_pass_by() {
        // A number of members, and how many without the primary are enough at each level.
        for (count, first, majority, all) in
            [(0, 1, 1, 1), (1, 1, 1, 1), (2, 2, 1, 1), (3, 3, 2, 1), (5, 5, 3, 1)]
        {
            let members = (1 << count) - 1;
            for (ack, least) in [(Ack::First, first), (Ack::Majority, majority), (Ack::All, all)] {
                let quorum = Quorum::new(ack, members, 0);
                assert!(quorum.suffices(1) && !quorum.suffices(0), "{ack:?} of {count}");
                for set in (0..=members).filter(|set| set & 1 == 0) {
                    assert_eq!(quorum.suffices(set), set.count_ones() >= least, "{ack:?}: {set:b}");
                    assert_eq!(quorum.any().suffices(set), set != 0);
                }
            }
        }
    }
}
