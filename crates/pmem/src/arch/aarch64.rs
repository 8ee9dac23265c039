//! AArch64: `dc cvap` (clean to the point of persistence, ARMv8.2 DPB) and `dsb ish`.

use crate::order::Instruction;
use std::arch::asm;
use std::sync::OnceLock;

/// `dc cvap` where the kernel says that the processor has it (HWCAP bit 16).
pub(crate) fn available() -> Vec<Instruction> {
    const HWCAP_DCPOP: usize = 1 << 16;
    let (hwcap, _) = rustix::param::linux_hwcap();
    if hwcap & HWCAP_DCPOP != 0 { vec![Instruction::DcCvap] } else { Vec::new() }
}

/// Writes back the line that holds `address`.
///
/// # Safety
/// `address` is mapped, and the processor has `instruction` ([`available`]).
#[inline(always)]
pub(crate) unsafe fn flush_line(address: *const u8, instruction: Instruction) {
    if instruction == Instruction::DcCvap {
        // The line may hold another thread's stores, which this one has seen: the barrier orders
        // the cleaning behind them.
        // SAFETY: the caller vouches for address and instruction; memory does not change as the
        // program sees it. The encoding is `dmb ish`, `dc cvap`.
        unsafe {
            asm!("dmb ish", "sys #3, c7, c12, #1, {}", in(reg) address, options(nostack, preserves_flags));
        }
    }
}

/// Orders earlier flushes of this thread before its later stores.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: a barrier without operands.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) }
}

/// Copies `len` bytes and cleans their lines: there is no store that is both non-temporal and
/// ordered by a barrier alone.
///
/// # Safety
/// As on x86-64: valid, not overlapping, multiples of 8.
pub(crate) unsafe fn copy_nt(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    // Not by the choice of `order`, which measures this function.
    static INSTRUCTION: OnceLock<Instruction> = OnceLock::new();
    let first_of_all = || available().first().copied().unwrap_or(Instruction::None);
    let instruction = *INSTRUCTION.get_or_init(first_of_all);
    let first = to.addr() & !(crate::LINE - 1);
    for line in (first..to.addr() + len).step_by(crate::LINE) {
        // SAFETY: each line overlaps the range that was just written; where there is no
        // `dc cvap` nothing is power-safe and nothing is flushed.
        unsafe { flush_line(to.with_addr(line), instruction) };
    }
}
