//! x86-64: clwb, clflushopt, clflush, movnti, sfence. `core::arch` has neither clwb nor
//! clflushopt, so they are inline assembly.

use crate::order::Instruction;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence, _mm_stream_si64};

/// The instructions that this processor has, by CPUID leaf 7 (and leaf 1 for clflush).
pub(crate) fn available() -> Vec<Instruction> {
    let mut found = Vec::new();
    let leaves = __cpuid(0).eax;
    if leaves >= 7 {
        let features = __cpuid_count(7, 0).ebx;
        if features & (1 << 24) != 0 {
            found.push(Instruction::Clwb);
        }
        if features & (1 << 23) != 0 {
            found.push(Instruction::Clflushopt);
        }
    }
    if __cpuid(1).edx & (1 << 19) != 0 {
        found.push(Instruction::Clflush);
    }
    found
}

/// Writes the line that holds `address` back.
///
/// # Safety
/// `address` is mapped, and the processor has `instruction` ([`available`]).
#[inline(always)]
pub(crate) unsafe fn flush_line(address: *const u8, instruction: Instruction) {
    // SAFETY: the caller says that the address is mapped and that the instruction exists; none of
    // them changes memory as the program sees it.
    unsafe {
        match instruction {
            Instruction::Clwb => {
                asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
            }
            Instruction::Clflushopt => {
                asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
            }
            Instruction::Clflush => {
                asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags));
            }
            Instruction::DcCvap | Instruction::None => {}
        }
    }
}

/// Orders earlier flushes and non-temporal stores of this thread before its later stores.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: sfence is in every x86-64 processor and has no operand.
    unsafe { _mm_sfence() }
}

/// Copies `len` bytes past the caches. Durable after the next [`fence`].
///
/// # Safety
/// `to` is valid for writes of `len` bytes, `from` for reads, they do not overlap; `to` and `len`
/// are multiples of 8.
#[inline]
pub(crate) unsafe fn copy_nt(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(to.addr().is_multiple_of(8) && len.is_multiple_of(8));
    for at in (0..len).step_by(8) {
        // SAFETY: `at + 8 <= len`, within what the caller vouches for; `to` is 8-aligned.
        unsafe {
            let word = from.add(at).cast::<i64>().read_unaligned();
            #[expect(clippy::cast_ptr_alignment, reason = "the caller vouches for 8")]
            _mm_stream_si64(to.add(at).cast::<i64>(), word);
        }
    }
}
