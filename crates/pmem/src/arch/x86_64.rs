//! x86-64: clwb, clflushopt, clflush, movnti, sfence, crc32. `core::arch` has neither clwb nor
//! clflushopt, so they are inline assembly.

use crate::order::{Instruction, LINE};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, __m512i, _mm_cmpeq_epi8, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32,
    _mm_crc32_u64, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8, _mm_sfence, _mm_stream_si64,
    _mm512_loadu_si512, _mm512_stream_si512,
};

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

/// Writes back the line that holds `address`.
///
/// # Safety
/// `address` is mapped, and the processor has `instruction` ([`available`]).
#[inline(always)]
pub(crate) unsafe fn flush_line(address: *const u8, instruction: Instruction) {
    // SAFETY: the caller guarantees that the address is mapped and that the instruction exists;
    // none of them changes memory as the program sees it.
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
/// Whole lines in one store each, where the processor can: later instructions then wait less than
/// for eight words a line.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, `from` for reads, they do not overlap; `to` and `len`
/// are multiples of 8.
#[inline]
pub(crate) unsafe fn copy_nt(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(to.addr().is_multiple_of(8) && len.is_multiple_of(8));
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: as the caller's, and the processor has the instructions.
        unsafe { copy_lines_nt(to, from, len) };
    } else {
        // SAFETY: as the caller's.
        unsafe { copy_words_nt(to, from, len) };
    }
}

/// As [`copy_nt`], word by word.
///
/// # Safety
/// As [`copy_nt`].
#[inline]
unsafe fn copy_words_nt(to: *mut u8, from: *const u8, len: usize) {
    for at in (0..len).step_by(8) {
        // SAFETY: `at + 8 <= len`, within what the caller vouches for; `to` is 8-aligned.
        unsafe {
            let word = from.add(at).cast::<i64>().read_unaligned();
            #[expect(clippy::cast_ptr_alignment, reason = "the caller vouches for 8")]
            _mm_stream_si64(to.add(at).cast::<i64>(), word);
        }
    }
}

/// As [`copy_nt`], whole lines in one store each.
///
/// # Safety
/// As [`copy_nt`]; the processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the target is at a line, the source may be anywhere"
)]
unsafe fn copy_lines_nt(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: `at + LINE <= len` or `at + 8 <= len`, within what the caller vouches for; a
        // line is stored where `to + at` is at one, a word where it is 8-aligned.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            if to.addr().is_multiple_of(LINE) && at + LINE <= len {
                _mm512_stream_si512(
                    to.cast::<__m512i>(),
                    _mm512_loadu_si512(from.cast::<__m512i>()),
                );
                at += LINE;
            } else {
                copy_words_nt(to, from, 8);
                at += 8;
            }
        }
    }
}

/// A bit for each byte of `words` that equals `byte`.
#[inline]
pub(crate) fn equal_bytes(words: [u64; 8], byte: u8) -> u64 {
    // SAFETY: every x86-64 processor has the instructions.
    let of_pair = |[low, high]: &[u64; 2]| unsafe {
        let pair = _mm_set_epi64x(*high as i64, *low as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(pair, _mm_set1_epi8(byte as i8))) as u64
    };
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().enumerate().map(|(at, pair)| of_pair(pair) << (16 * at)).sum()
}

/// The CRC-32C of the bytes whose checksum is `crc`, followed by `bytes`: word by word.
#[inline]
pub(crate) fn crc32c_words(crc: u32, bytes: &[u8]) -> u32 {
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        unsafe { crc32c_by_instruction(crc, bytes) }
    } else {
        crc32c::crc32c_append(crc, bytes)
    }
}

/// The CRC-32C of inputs of two words each.
#[inline]
pub(crate) fn crc32c_pairs<const COUNT: usize>(pairs: [[u64; 2]; COUNT]) -> [u32; COUNT] {
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        unsafe { crc32c_pairs_by_instruction(pairs) }
    } else {
        super::crc32c_pairs_by_bytes(pairs)
    }
}

/// The inputs do not depend on each other, so that the processor works on several at once.
#[target_feature(enable = "sse4.2")]
fn crc32c_pairs_by_instruction<const COUNT: usize>(pairs: [[u64; 2]; COUNT]) -> [u32; COUNT] {
    let begun = pairs.map(|[first, _]| _mm_crc32_u64(u64::from(!0_u32), first));
    std::array::from_fn(|at| !(_mm_crc32_u64(begun[at], pairs[at][1]) as u32))
}

#[target_feature(enable = "sse4.2")]
fn crc32c_by_instruction(crc: u32, bytes: &[u8]) -> u32 {
    let mut wide = u64::from(!crc);
    // Four words a turn: with one, a third of the instructions would be those of the loop.
    let (fours, rest) = bytes.as_chunks::<32>();
    for four in fours {
        for word in four.as_chunks::<8>().0 {
            wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
        }
    }
    let (words, mut rest) = rest.as_chunks::<8>();
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    // The instruction leaves the upper half zero.
    let mut crc = wide as u32;
    if let Some((half, after)) = rest.split_first_chunk::<4>() {
        crc = _mm_crc32_u32(crc, u32::from_le_bytes(*half));
        rest = after;
    }
    if let Some((quarter, after)) = rest.split_first_chunk::<2>() {
        crc = _mm_crc32_u16(crc, u16::from_le_bytes(*quarter));
        rest = after;
    }
    if let [byte] = rest {
        crc = _mm_crc32_u8(crc, *byte);
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_past_the_caches_is_what_was_given_and_no_byte_more() {
        // SAFETY: as required by `copy_words_nt`; every call below conforms to it.
        let by_words = |to, from, len| unsafe { copy_words_nt(to, from, len) };
        // SAFETY: as above.
        let as_chosen = |to, from, len| unsafe { copy_nt(to, from, len) };
        check(by_words);
        check(as_chosen);
    }

    fn check(copy: impl Fn(*mut u8, *const u8, usize)) {
        let from: Vec<u8> = (0..410).map(|at| at as u8).collect();
        let mut memory = vec![0xee_u8; 1024];
        let skip = memory.as_ptr().align_offset(LINE);
        for start in (0..2 * LINE).step_by(8) {
            for len in (0..400).step_by(8) {
                memory.fill(0xee);
                let area = &mut memory[skip..skip + 900];
                // The source is at any address.
                let source = &from[len % 10..][..len];
                // `start + len` is within the area, which begins at a line; `from` is another
                // vector.
                copy(area.as_mut_ptr().wrapping_add(start), source.as_ptr(), len);
                fence();
                assert!(area[start..start + len] == *source, "{len} bytes at {start}");
                let rest = area[..start].iter().chain(&area[start + len..]);
                assert!(rest.copied().all(|byte| byte == 0xee), "{len} bytes at {start}: beside");
            }
        }
    }
}
