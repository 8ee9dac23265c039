//! A self-validating word: 48 bits of content and a 16-bit check that is bound to the place of the
//! word, so that a flipped bit, or a word copied to another place, is detected. It is stored
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

/// The content of the sealed `word` at `offset`; none if it was not sealed for this place.
#[inline]
pub fn open(word: u64, offset: u64) -> Option<u64> {
    let content = word & CONTENT_MAX;
    let is_sealed = check(content, offset) == (word >> CONTENT_BITS) as u16;
    (is_sealed || mutant!("record.seal")).then_some(content)
}

/// The contents of successive words from `offset` on, each of which is sealed for its place or 0;
/// none if one of them is neither.
#[inline]
pub fn open_line<const COUNT: usize>(words: [u64; COUNT], offset: u64) -> Option<[u64; COUNT]> {
    let contents = words.map(|word| word & CONTENT_MAX);
    let checks = checks(contents, offset);
    // Of all words at once: a branch for each would be mispredicted.
    let wrong = (0..COUNT).fold(false, |wrong, at| {
        wrong | (checks[at] != (words[at] >> CONTENT_BITS) as u16) & (words[at] != 0)
    });
    (!wrong || mutant!("record.seal")).then_some(contents)
}

#[inline]
fn check(content: u64, offset: u64) -> u16 {
    let [check] = checks([content], offset);
    check
}

/// The checks of successive words from `offset` on.
#[inline]
fn checks<const COUNT: usize>(contents: [u64; COUNT], offset: u64) -> [u16; COUNT] {
    let place = |at: usize| match mutant!("record.seal_place") {
        true => 0,
        false => offset + 8 * at as u64,
    };
    let pairs = std::array::from_fn(|at| [contents[at], place(at)]);
    checksum::crc32c_pairs(pairs).map(|crc| (crc ^ crc >> 16) as u16)
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

    /// Words on existing media were sealed byte by byte.
    #[test]
    fn words_are_sealed_as_ever() {
        assert_eq!(seal(0x1234_5678_9abc, 4096), 0xac58_1234_5678_9abc);
        assert_eq!(seal(CONTENT_MAX, 8), 0xa484_ffff_ffff_ffff);
    }

    #[test]
    fn a_line_is_opened_if_each_word_is_sealed_for_its_place_or_0() {
        let mut line: [u64; 8] =
            std::array::from_fn(|at| seal(at as u64 * 77, 128 + 8 * at as u64));
        line.swap(2, 5);
        line[7] ^= 1 << 60;
        assert_eq!(open_line(line, 128), None);
        line.swap(2, 5);
        assert_eq!(open_line(line, 128), None);
        line[7] = 0;
        assert_eq!(open_line(line, 128), Some([0, 77, 154, 231, 308, 385, 462, 0]));
    }
}
