//! Which instruction makes stores durable here, and which lines a range touches.
//!
//! The choice is made once per process by measurement: on some processors clflushopt beats clwb
//! (clwb that evicts all the same), on others the reverse. `COREPLANE_FLUSH` (clwb, clflushopt,
//! clflush, none) overrides it; valgrind, for one, stops at clwb.

use crate::arch;
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
    static CHOSEN: OnceLock<Instruction> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let available = arch::available();
        let wanted = std::env::var("COREPLANE_FLUSH").ok();
        if wanted.as_deref() == Some("none") {
            return Instruction::None;
        }
        available
            .iter()
            .copied()
            .find(|instruction| Some(instruction.name()) == wanted.as_deref())
            .or_else(|| available.iter().copied().min_by_key(|it| append_time(*it)))
            .unwrap_or(Instruction::None)
    })
}

/// True if this processor can make a mapped store durable at all.
pub fn can_flush() -> bool {
    !arch::available().is_empty()
}

/// Time of appending and persisting 128-byte records: the best of three rounds.
fn append_time(instruction: Instruction) -> Duration {
    const RECORD: usize = 128;
    let mut area = vec![0_u8; 256 << 10];
    let len = area.len();
    (0..3)
        .map(|round| {
            let start = Instant::now();
            for at in (0..len).step_by(RECORD) {
                area[at..at + RECORD].fill(round);
                for line in (at..at + RECORD).step_by(LINE) {
                    // SAFETY: the address is inside `area`; the caller passes only instructions
                    // out of `available()`.
                    unsafe { arch::flush_line(area.as_ptr().add(line), instruction) };
                }
                arch::fence();
            }
            start.elapsed()
        })
        .min()
        .unwrap_or(Duration::MAX)
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
