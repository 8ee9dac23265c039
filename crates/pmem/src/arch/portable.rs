//! Any other processor: no flush instruction is known, so that no mapping is power-safe, and only
//! `file` media (which sync by system call) can make writes durable.

use crate::order::Instruction;

/// None.
pub(crate) fn available() -> Vec<Instruction> {
    Vec::new()
}

/// Does nothing.
///
/// # Safety
/// None needed; unsafe as on the other architectures.
#[inline(always)]
pub(crate) unsafe fn flush_line(_address: *const u8, _instruction: Instruction) {}

/// A full fence of the memory model.
#[inline(always)]
pub(crate) fn fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Copies.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, `from` for reads, they do not overlap.
pub(crate) unsafe fn copy_nt(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}
