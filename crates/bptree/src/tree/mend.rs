//! A superseded mark of which one bit is damaged.
//!
//! Records superseded by a mark count in the successors alone, so that a damaged mark would lose everything that
//! the successors have. A mark has few bytes and a checksum, and no other mark differs from it by so little: if it
//! is sound with one bit flipped, that is the mark that was written. So it still tells which leaf is next in its
//! commit, and so whether the successors count.

use crate::tree::multi_leaf_commit::{CommitLink, LEN};
use coreplane_record::{HEADER, Header, Kind};

/// A superseded mark, as it was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SupersededMark {
    pub(crate) header: Header,
    pub(crate) link: CommitLink,
}

impl SupersededMark {
    /// The superseded mark that equals these bytes but for one bit; none if there is none. `seed`: of a record at
    /// this place.
    pub(crate) fn mended(damaged: &[u8; LEN], seed: u32) -> Option<Self> {
        (0..8 * LEN).find_map(|bit| {
            let mut bytes = *damaged;
            bytes[bit / 8] ^= 1 << (bit % 8);
            Self::of(&bytes, seed)
        })
    }

    fn of(bytes: &[u8; LEN], seed: u32) -> Option<Self> {
        let (head, value) = bytes.split_at(HEADER);
        let link = CommitLink::from_value(value).filter(|it| it.is_superseded)?;
        let version = u64::from_le_bytes(*head.last_chunk()?);
        [false, true].into_iter().find_map(|follows| {
            let header =
                Header { kind: Kind::Commit, batched: true, follows, ..Header::put(version) };
            let is_it = header.encode(seed, &[], &[value]).bytes() == head;
            is_it.then_some(Self { header, link })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::Life;

    #[test]
    fn a_superseded_mark_with_one_bit_flipped_is_what_it_was_and_nothing_else_is_one() {
        let bytes = |kind: Kind, is_superseded: bool| {
            let next = Life { page: 7, birth: 77 };
            let link = CommitLink { next, next_at: 4048, is_superseded };
            let header = Header { kind, batched: true, follows: true, ..Header::put(99) };
            let value = link.to_value();
            let bytes = [header.encode(5, &[], &[&value]).bytes(), &value[..]].concat();
            (SupersededMark { header, link }, <[u8; LEN]>::try_from(bytes).unwrap())
        };
        let others = [bytes(Kind::Commit, false).1, bytes(Kind::Put, true).1];
        let (mark, written) = bytes(Kind::Commit, true);
        for bit in 0..8 * LEN {
            let flipped = |bytes: &[u8; LEN]| {
                let mut bytes = *bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert_eq!(SupersededMark::mended(&flipped(&written), 5).as_ref(), Some(&mark));
            assert_eq!(SupersededMark::mended(&flipped(&written), 6), None, "of another place");
            assert!(others.iter().all(|it| SupersededMark::mended(&flipped(it), 5).is_none()));
            let mut two = flipped(&written);
            two[(bit / 8 + 11) % LEN] ^= 4;
            assert_eq!(SupersededMark::mended(&two, 5), None, "two bits");
        }
    }
}
