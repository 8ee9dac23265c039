//! The header of a page of a pool, and the seeds of the checksums in it.
//!
//! ```text
//!   crc (4)  kind (4)  number (8)  life (8)  offset (8)  zeroes (32)     the header of a page, then frames
//! ```
//!
//! The header states to which part the page belongs, and from which byte of the part on. A *life* is the number of an
//! opening of the pool. A page is reused for another part as it is, so that older bytes may follow its last frame,
//! with whole frames among them. Hence the checksum of each frame is begun with a seed, another one for each part and
//! for each life: a part of an earlier life may have had frames behind the end that was found.

use super::storage::Part;
use coreplane_pmem::mutant;

/// Bytes of a header.
pub(super) const LEN: usize = 64;

// media-format: begin pool
const LOG: u32 = 1;
const CHECKPOINT: u32 = 2;

fn words_of(part: Part, life: u64) -> [u8; 20] {
    let (kind, number) = match part {
        Part::Log(number) => (LOG, number),
        Part::Checkpoint(number) => (CHECKPOINT, number),
    };
    let mut bytes = [0; 20];
    let (first, rest) = bytes.split_at_mut(4);
    first.copy_from_slice(&kind.to_le_bytes());
    let (second, third) = rest.split_at_mut(8);
    second.copy_from_slice(&number.to_le_bytes());
    third.copy_from_slice(&life.to_le_bytes());
    bytes
}

/// The seed of the checksums of frames in a part, given the pool's own seed.
pub(super) fn seed_of(pool: u32, part: Part, life: u64) -> u32 {
    let life = if mutant!("replica.wal.life") { 1 } else { life };
    crc32c::crc32c_append(pool, &words_of(part, life))
}

/// A page of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) part: Part,
    pub(super) life: u64,
    /// The first byte of the part that is in the page.
    pub(super) offset: u64,
}

impl PageHeader {
    pub(super) fn encode(&self, pool: u32) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (crc, rest) = bytes.split_at_mut(4);
        let (words, rest) = rest.split_at_mut(20);
        words.copy_from_slice(&words_of(self.part, self.life));
        let (offset, _) = rest.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(pool, words), offset);
        crc.copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}
// media-format: end

fn word_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl PageHeader {
    /// The header in these bytes; none if there is no valid one.
    pub(super) fn decode(bytes: &[u8], pool: u32) -> Option<Self> {
        let number = u64::from_le_bytes(word_at(bytes, 8)?);
        let part = match u32::from_le_bytes(word_at(bytes, 4)?) {
            LOG => Part::Log(number),
            CHECKPOINT => Part::Checkpoint(number),
            _ => return None,
        };
        let life = u64::from_le_bytes(word_at(bytes, 16)?);
        let offset = u64::from_le_bytes(word_at(bytes, 24)?);
        let header = Self { part, life, offset };
        (header.encode(pool) == bytes).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_or_not_at_all() {
        let header = PageHeader { part: Part::Checkpoint(7), life: 3, offset: 123 << 40 };
        let mut bytes = header.encode(99);
        assert_eq!(PageHeader::decode(&bytes, 99), Some(header));
        assert_eq!(PageHeader::decode(&bytes, 98), None);
        for at in 0..LEN {
            bytes[at] ^= 4;
            assert_eq!(PageHeader::decode(&bytes, 99), None, "byte {at}");
            bytes[at] ^= 4;
        }
    }

    #[test]
    fn each_part_has_a_seed_of_its_own_in_each_life() {
        let parts = (1..50).flat_map(|number| [Part::Log(number), Part::Checkpoint(number)]);
        let seeds = parts.flat_map(|part| (1..50).map(move |life| seed_of(5, part, life)));
        let seeds: Vec<u32> = seeds.collect();
        let different: std::collections::BTreeSet<u32> = seeds.iter().copied().collect();
        assert_eq!(different.len(), seeds.len());
    }
}
