//! Which instruction makes stores durable here, and which lines a range touches.
//!
//! The choice is made once per process by measurement: on some processors clflushopt beats clwb
//! (clwb that evicts all the same), on others the reverse. `COREPLANE_FLUSH` (clwb, clflushopt,
//! clflush, none) overrides it; valgrind, for one, stops at clwb. A measurement also decides
//! whether appending past the caches is faster still (`COREPLANE_APPEND`): a cached append first
//! reads the line.

use crate::arch;
use crate::space::WriteMode;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The bytes of a cache line.
pub const LINE: usize = 64;

/// An instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Write back, may keep the line.
    Clwb,
    /// Write back and evict, weakly ordered.
    Clflushopt,
    /// Write back and evict, ordered.
    Clflush,
    /// AArch64: clean to the point of persistence.
    DcCvap,
    /// None: the caches are in the persistence domain (eADR), or the medium syncs otherwise.
    None,
}

impl Instruction {
    /// Its name, as in `COREPLANE_FLUSH`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::None => "none",
        }
    }
}

/// The instruction of this process: `COREPLANE_FLUSH`, else the fastest by measurement, else
/// [`Instruction::None`] if the processor has none.
pub fn chosen() -> Instruction {
    choice().instruction
}

/// How records are appended in this process: `COREPLANE_APPEND` (cached, non-temporal), else the
/// faster by measurement.
#[inline]
pub fn append_mode() -> WriteMode {
    choice().append
}

#[derive(Debug, Clone, Copy)]
struct Choice {
    instruction: Instruction,
    append: WriteMode,
}

fn choice() -> Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let available = arch::available();
        let wanted = std::env::var("COREPLANE_FLUSH").ok();
        let mut memory = vec![0_u8; ROUNDS * RECORDS * RECORD + LINE];
        let skip = memory.as_ptr().align_offset(LINE).min(LINE);
        let area = &mut memory[skip..skip + ROUNDS * RECORDS * RECORD];
        let named = |it: &Instruction| Some(it.name()) == wanted.as_deref();
        let candidates = match available.iter().position(named) {
            Some(at) => &available[at..=at],
            None if wanted.as_deref() == Some("none") => &[],
            None => &available[..],
        };
        let wanted_mode = match std::env::var("COREPLANE_APPEND").as_deref() {
            Ok("cached") => Some(WriteMode::Cached),
            Ok("non-temporal") => Some(WriteMode::NonTemporal),
            _ => None,
        };
        // So that no page of it is touched for the first time in a measurement.
        area.fill(1);
        let (times, past_caches) = append_times(area, candidates, wanted_mode.is_none());
        let best = times.iter().zip(candidates).min_by_key(|(time, _)| **time);
        let append = wanted_mode.unwrap_or(match best {
            Some((time, _)) if is_clearly_less(past_caches, *time) => WriteMode::NonTemporal,
            _ => WriteMode::Cached,
        });
        let instruction = best.map_or(Instruction::None, |(_, instruction)| *instruction);
        Choice { instruction, append }
    })
}

/// True if `one` is less than `other` by more than a quarter of itself. Smaller differences occur
/// between runs of the same measurement, and bytes stored through the caches are still there for a
/// reader that comes soon.
fn is_clearly_less(one: Duration, other: Duration) -> bool {
    one.saturating_add(one / 4) < other
}

/// True if this processor can make a store to a mapping durable.
pub fn can_flush() -> bool {
    !arch::available().is_empty()
}

const ROUNDS: usize = 5;
/// So few that the measurement takes less than a millisecond: each process waits for it when it opens its first pool.
const RECORDS: usize = 120;
/// Not a multiple of the line: where a record ends in the middle of a line, the next one writes to
/// a line that was just flushed, and this is where the instructions differ.
const RECORD: usize = 144;

/// Times of appending and persisting records to lines that are in no cache: with a flush of their
/// lines by each of the instructions, and past the caches if that `is_asked` and there is an
/// instruction. The best of some rounds, each in its own part of `area` (line-aligned). All take
/// their turns in each round: a machine that is slow for a moment is slow for all of them.
fn append_times(
    area: &mut [u8],
    instructions: &[Instruction],
    is_asked: bool,
) -> (Vec<Duration>, Duration) {
    let (mut times, mut past_caches) = (vec![Duration::MAX; instructions.len()], Duration::MAX);
    let Some(evict) = arch::available().last().copied().filter(|_| !instructions.is_empty()) else {
        return (times, past_caches);
    };
    for part in area.chunks_mut(RECORDS * RECORD) {
        for (time, instruction) in times.iter_mut().zip(instructions) {
            *time = append_time(part, evict, Some(*instruction)).min(*time);
        }
        if is_asked {
            past_caches = append_time(part, evict, None).min(past_caches);
        }
    }
    (times, past_caches)
}

/// The time of one round of one of them. The lines are evicted before, by an instruction of
/// `available()`.
fn append_time(part: &mut [u8], evict: Instruction, instruction: Option<Instruction>) -> Duration {
    let record = [0x5a_u8; RECORD];
    for line in part.chunks(LINE) {
        // SAFETY: the address is inside `part`; the caller passes an instruction of `available()`.
        unsafe { arch::flush_line(line.as_ptr(), evict) };
    }
    arch::fence();
    let start = Instant::now();
    for place in part.chunks_exact_mut(RECORD) {
        match instruction {
            Some(instruction) => {
                place.copy_from_slice(&record);
                let lines = lines(place.as_ptr().addr() as u64, RECORD as u64);
                let before = place.as_ptr().addr() - lines.start as usize;
                for at in (0..(lines.end - lines.start) as usize).step_by(LINE) {
                    let line = place.as_ptr().wrapping_add(at).wrapping_sub(before);
                    // SAFETY: the line holds bytes of `place`, and so is mapped; the
                    // caller passes only instructions out of `available()`.
                    unsafe { arch::flush_line(line, instruction) };
                }
            }
            // SAFETY: source and target have `RECORD` bytes and do not overlap; `part`
            // starts at a line and records are multiples of 8.
            None => unsafe {
                arch::copy_nt(place.as_mut_ptr(), record.as_ptr(), RECORD);
            },
        }
        arch::fence();
    }
    start.elapsed()
}

/// The line-aligned range that covers `offset .. offset + len`; empty if `len` is 0. Both ends
/// are multiples of [`LINE`] (the end saturates at the last whole line).
#[inline]
pub fn lines(offset: u64, len: u64) -> Range<u64> {
    let line = LINE as u64;
    let start = offset & !(line - 1);
    if len == 0 {
        return start..start;
    }
    let end = offset.saturating_add(len - 1) & !(line - 1);
    start..end.saturating_add(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_byte_of_a_range_is_left_unflushed(
            offset in 0_u64..1 << 40,
            len in 0_u64..10_000,
        ) {
            let lines = lines(offset, len);
            prop_assert_eq!(lines.start % LINE as u64, 0);
            prop_assert_eq!(lines.end % LINE as u64, 0);
            if len == 0 {
                prop_assert!(lines.is_empty());
            } else {
                prop_assert!(lines.start <= offset && offset + len <= lines.end);
                prop_assert!(lines.end - lines.start < len + 2 * LINE as u64);
            }
        }
    }

    #[test]
    fn the_instruction_chosen_is_one_that_the_processor_has() {
        let chosen = chosen();
        assert!(chosen == Instruction::None || arch::available().contains(&chosen));
    }
}
