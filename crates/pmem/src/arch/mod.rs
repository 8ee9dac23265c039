//! The instructions that write lines back, one file per architecture behind one face:
//! `available`, `flush_line`, `fence`, `copy_nt`; the ones that make checksums (`crc32c_words`);
//! and the one that asks for a line.
//!
//! `RUSTFLAGS="--cfg coreplane_portable"` builds the twin for unknown processors anywhere, so
//! that it is tested on the processors that we have.

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
pub(crate) use x86_64::{available, copy_nt, crc32c_words, fence, flush_line};

/// Asks for the line at an address ahead of its use; of an address where nothing is, for nothing.
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

/// Asks for the line where `of` begins ahead of its use.
#[inline]
pub fn prefetch<T>(of: &T) {
    prefetch_address(std::ptr::from_ref(of).cast());
}

/// Asks for the line where `of` begins ahead of a store to it, which takes it from other processors.
#[inline]
pub fn prefetch_to_write<T>(of: &T) {
    prefetch_address_to_write(std::ptr::from_ref(of).cast());
}

/// As [`prefetch_to_write`], at an address; of one where nothing is, for nothing.
#[inline]
pub(crate) fn prefetch_address_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program could see, and never faults. Where the
    // processor does not know this one it does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
