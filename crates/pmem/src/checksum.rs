//! The checksum of short inputs: CRC-32C, the same as the crate `crc32c` computes.
//!
//! That crate is made for long inputs. It goes byte by byte to an aligned address, then by three
//! streams at once, then byte by byte to the end: for the header, key and value of a small record
//! 440 instructions, a sixth of a put. Here short inputs are processed word by word from their
//! first byte, in 70. Long inputs are left to the crate, whose streams are faster for them.

use crate::arch;

/// Longer inputs are left to the crate: from about this length on three streams are faster than one.
const SHORT: usize = 256;

/// The checksum of the bytes whose checksum is `crc`, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() <= SHORT {
        arch::crc32c_words(crc, bytes)
    } else {
        crc32c::crc32c_append(crc, bytes)
    }
}

/// The checksums of inputs of two words each, equal to those of [`crc32c_append`] over their little-endian bytes.
/// Several inputs take little more time than one.
#[inline]
pub fn crc32c_pairs<const COUNT: usize>(pairs: [[u64; 2]; COUNT]) -> [u32; COUNT] {
    arch::crc32c_pairs(pairs)
}

/// The xor of the checksums of two inputs of the same length. `seeds` is the xor of their initial
/// checksums, `first` the xor of their first bytes; the `zeroes` bytes behind those are equal in
/// both. So the checksum of a slightly changed copy can be computed without reading its bytes, and
/// that of a copy of damaged bytes stays wrong.
#[inline]
pub fn crc32c_difference(seeds: u32, first: &[u8], zeroes: usize) -> u32 {
    const ZEROES: [u8; SHORT] = [0; SHORT];
    // A checksum is inverted before and after; the part in between is linear.
    let mut crc = crc32c_append(!seeds, first);
    let mut rest = zeroes;
    while rest > 0 {
        let len = rest.min(SHORT);
        crc = crc32c_append(crc, &ZEROES[..len]);
        rest -= len;
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_check_value_comes_out() {
        assert_eq!(crc32c_append(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_length_at_every_address_is_as_the_crate_has_it() {
        let bytes: Vec<u8> = (0..SHORT + 40).map(|at| (at * 31 + 7) as u8).collect();
        for start in 0..16 {
            for len in 0..SHORT + 20 {
                let part = &bytes[start..start + len];
                let expected = crc32c::crc32c_append(0x1234_5678, part);
                assert_eq!(crc32c_append(0x1234_5678, part), expected, "{len} bytes at {start}");
            }
        }
    }

    /// The definition: the remainder of the bits, the lowest of each byte first, by the polynomial of
    /// Castagnoli.
    fn bit_by_bit(crc: u32, bytes: &[u8]) -> u32 {
        let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        let of_byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
        !bytes.iter().fold(!crc, of_byte)
    }

    proptest! {
        /// Lengths for one stream and for several: the crate uses three, of 256 bytes or of 8 KiB each.
        #[test]
        fn the_checksum_is_as_it_is_defined(
            len in prop_oneof![0..800_usize, 800..9_000_usize, 24_000..27_000_usize],
            start in 0..64_usize,
            factor in any::<u64>(),
            seed in any::<u32>(),
        ) {
            let byte = |at: usize| ((at as u64 + 1).wrapping_mul(factor) >> 56) as u8;
            let bytes: Vec<u8> = (0..start + len).map(byte).collect();
            prop_assert_eq!(crc32c_append(seed, &bytes[start..]), bit_by_bit(seed, &bytes[start..]));
        }

        #[test]
        fn pairs_of_words_have_the_checksums_of_their_bytes(pairs in any::<[[u64; 2]; 8]>()) {
            let of_bytes = |[first, second]: [u64; 2]| {
                let first = crc32c_append(0, &first.to_le_bytes());
                crc32c_append(first, &second.to_le_bytes())
            };
            prop_assert_eq!(crc32c_pairs(pairs), pairs.map(of_bytes));
            prop_assert_eq!(crc32c_pairs([pairs[0]]), [of_bytes(pairs[0])]);
        }

        #[test]
        fn parts_make_the_checksum_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            cut in any::<prop::sample::Index>(),
            seed in any::<u32>(),
        ) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let whole = crc32c::crc32c_append(seed, &bytes);
            prop_assert_eq!(crc32c_append(crc32c_append(seed, head), tail), whole);
        }

        #[test]
        fn what_differs_in_the_inputs_says_what_differs_in_the_checksums(
            bytes in prop::collection::vec(any::<u8>(), 8..600),
            first in any::<[u8; 8]>(),
            seeds in any::<[u32; 2]>(),
        ) {
            let mut other = bytes.clone();
            other.iter_mut().zip(first).for_each(|(byte, by)| *byte ^= by);
            let difference = crc32c_difference(seeds[0] ^ seeds[1], &first, bytes.len() - 8);
            let expected = crc32c_append(seeds[1], &other);
            prop_assert_eq!(crc32c_append(seeds[0], &bytes) ^ difference, expected);
        }
    }
}
