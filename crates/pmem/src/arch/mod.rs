//! The instructions that write lines back, one file per architecture with the same interface: `available`,
//! `flush_line`, `fence`, `copy_nt`; instructions for checksums (`crc32c_words`, `crc32c_pairs`), for
//! prefetching a line, and for comparing many bytes (`equal_bytes`).
//!
//! `RUSTFLAGS="--cfg coreplane_portable"` builds the variant for unknown processors on any
//! processor, so that it can be tested.

use crate::order::LINE;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(target_arch = "aarch64", not(coreplane_portable)))]
mod aarch64;
#[cfg(any(coreplane_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(coreplane_portable)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(coreplane_portable)))]
pub(crate) use aarch64::{available, copy_nt, fence, flush_line};
#[cfg(any(coreplane_portable, not(target_arch = "x86_64")))]
pub(crate) use crc32c::crc32c_append as crc32c_words;
#[cfg(any(coreplane_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) use portable::{available, copy_nt, fence, flush_line};
#[cfg(all(target_arch = "x86_64", not(coreplane_portable)))]
pub(crate) use x86_64::{available, copy_nt, crc32c_pairs, crc32c_words, fence, flush_line};

#[cfg(any(coreplane_portable, not(target_arch = "x86_64")))]
pub(crate) use crc32c_pairs_by_bytes as crc32c_pairs;

/// The CRC-32C of inputs of two words each.
pub(crate) fn crc32c_pairs_by_bytes<const COUNT: usize>(pairs: [[u64; 2]; COUNT]) -> [u32; COUNT] {
    pairs.map(|pair| {
        pair.into_iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
    })
}

/// A bit for each byte of `words`, the least first, that equals `byte`.
#[inline]
pub fn equal_bytes(words: &[AtomicU64; 8], byte: u8) -> u64 {
    let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    #[cfg(all(target_arch = "x86_64", not(coreplane_portable)))]
    return x86_64::equal_bytes(words, byte);
    #[cfg(any(coreplane_portable, not(target_arch = "x86_64")))]
    return equal_bytes_of_words(words, byte);
}

/// As [`equal_bytes`], word by word.
#[cfg(any(test, coreplane_portable, not(target_arch = "x86_64")))]
fn equal_bytes_of_words(words: [u64; 8], byte: u8) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let mut found = 0;
    for (at, word) in words.into_iter().enumerate() {
        let differences = word ^ (LOW * u64::from(byte));
        // The high bit of each byte that differs: no carry leaves a byte.
        let others = ((differences & !(LOW << 7)) + LOW * 0x7f) | differences;
        // The bits of the eight equal bytes, gathered in the topmost byte.
        let gathered = ((!others & (LOW << 7)) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        found |= gathered << (8 * at);
    }
    found
}

/// Prefetches the line at an address; has no effect at an address that is not mapped.
#[inline]
pub(crate) fn prefetch_address(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program could see, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the line where `of` begins.
#[inline]
pub fn prefetch<T>(of: &T) {
    prefetch_address(std::ptr::from_ref(of).cast());
}

/// Prefetches the line where `of` begins for a store, which takes it from other processors.
#[inline]
pub fn prefetch_to_write<T>(of: &T) {
    prefetch_address_to_write(std::ptr::from_ref(of).cast());
}

/// Prefetches all lines of `of` for stores.
#[inline]
pub fn prefetch_all_to_write<T>(of: &T) {
    let start = std::ptr::from_ref(of).cast::<u8>();
    (0..size_of::<T>())
        .step_by(LINE)
        .for_each(|at| prefetch_address_to_write(start.wrapping_add(at)));
}

/// As [`prefetch_to_write`], at an address; has no effect at an address that is not mapped.
#[inline]
pub(crate) fn prefetch_address_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program could see, and never faults. A processor
    // that lacks this instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bytes_that_are_equal_are_found_and_no_others(
            bytes in prop::collection::vec(prop_oneof![0_u8..3, 126_u8..130, Just(255)], 64),
            byte in prop_oneof![0_u8..3, 126_u8..130, Just(255)],
        ) {
            let (words, _) = bytes.as_chunks::<8>();
            let words: [u64; 8] = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
            let expected: u64 =
                bytes.iter().enumerate().map(|(at, it)| u64::from(*it == byte) << at).sum();
            prop_assert_eq!(equal_bytes(&words.map(AtomicU64::new), byte), expected);
            prop_assert_eq!(equal_bytes_of_words(words, byte), expected);
        }
    }
}
