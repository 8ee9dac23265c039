//! A word that proves itself: 48 bits of content and a 16-bit check that is bound to the place
//! of the word, so that a flipped bit, or a word copied elsewhere, is seen. It is stored
//! atomically, as every aligned 8-byte word is.

use coreplane_pmem::{checksum, mutant};

const CONTENT_BITS: u32 = 48;

/// The greatest content.
pub const CONTENT_MAX: u64 = (1 << CONTENT_BITS) - 1;

/// `content`, sealed for the word at `offset`.
// media-format: begin pool
pub fn seal(content: u64, offset: u64) -> u64 {
    debug_assert!(content <= CONTENT_MAX);
    content | u64::from(check(content, offset)) << CONTENT_BITS
}
// media-format: end

/// The content of the sealed `word` at `offset`; none if it was not sealed for there.
pub fn open(word: u64, offset: u64) -> Option<u64> {
    let content = word & CONTENT_MAX;
    let is_sealed = check(content, offset) == (word >> CONTENT_BITS) as u16;
    (is_sealed || mutant!("record.seal")).then_some(content)
}

fn check(content: u64, offset: u64) -> u16 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&content.to_le_bytes());
    if !mutant!("record.seal_place") {
        bytes[8..].copy_from_slice(&offset.to_le_bytes());
    }
    let crc = checksum::crc32c_append(0, &bytes);
    (crc ^ crc >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_flipped_bit_is_seen() {
        for (content, offset) in [(0, 64), (CONTENT_MAX, 8), (0x1234_5678_9abc, 4096)] {
            let word = seal(content, offset);
            assert_eq!(open(word, offset), Some(content));
            assert_eq!(open(word, offset + 8), None);
            for bit in 0..64 {
                assert_eq!(open(word ^ 1 << bit, offset), None, "bit {bit}");
            }
        }
        assert_eq!(open(0, 64), None, "a word that was never sealed");
    }
}
