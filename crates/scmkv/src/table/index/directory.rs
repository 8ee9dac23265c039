//! Which segment serves which range of `y`.
//!
//! ```text
//!   y = 0110 1…   depth 2:  entries[01] ──▶ leaf: segment at offset, its own depth, its number
//! ```
//!
//! The directory is in DRAM and is built at every open from the header words of the segments. It
//! doubles by building the next level beside the old one, which stays (all old levels together are
//! as large as the new one). So a reader needs two loads to reach its leaf. A reader that still has
//! the old level finds at worst a stale leaf, and sees the change when it looks again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The deepest directory: 2^24 segments.
pub(crate) const DEPTH_MAX: u32 = 24;

const OFFSET_BITS: u32 = 36;
const DEPTH_BITS: u32 = 5;

/// A segment as the directory names it, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaf(u64);

impl Leaf {
    pub(crate) fn new(offset: u64, depth: u32, number: u32) -> Self {
        debug_assert!(offset & 0xff == 0 && offset >> 8 < 1 << OFFSET_BITS);
        debug_assert!(depth <= DEPTH_MAX);
        Self(
            u64::from(number) << (OFFSET_BITS + DEPTH_BITS)
                | u64::from(depth) << OFFSET_BITS
                | offset >> 8,
        )
    }

    /// Where the segment is in the index's space.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        (self.0 & ((1 << OFFSET_BITS) - 1)) << 8
    }

    /// How many bits of `y` its keys share.
    #[inline]
    pub(crate) fn depth(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32 & ((1 << DEPTH_BITS) - 1)
    }

    /// Its number, by which its locks are found.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        (self.0 >> (OFFSET_BITS + DEPTH_BITS)) as u32
    }
}

#[derive(Debug)]
pub(crate) struct Directory {
    depth: AtomicU32,
    levels: [OnceLock<Box<[AtomicU64]>>; DEPTH_MAX as usize + 1],
}

/// The top `depth` bits of `y`.
#[inline]
pub(crate) fn prefix(y: u32, depth: u32) -> u32 {
    (u64::from(y) >> (32 - depth)) as u32
}

impl Directory {
    /// A directory of `depth` without leaves: [`Directory::set`] all before use.
    pub(crate) fn new(depth: u32) -> Self {
        let directory =
            Self { depth: AtomicU32::new(depth), levels: std::array::from_fn(|_| OnceLock::new()) };
        directory.levels[depth as usize]
            .get_or_init(|| (0..1_usize << depth).map(|_| AtomicU64::new(0)).collect());
        directory
    }

    #[inline]
    fn level(&self, depth: u32) -> &[AtomicU64] {
        self.levels[depth as usize].get().map_or(&[], |level| level)
    }

    /// The leaf that serves `y`.
    #[inline]
    pub(crate) fn leaf(&self, y: u32) -> Leaf {
        let depth = self.depth();
        Leaf(self.level(depth)[prefix(y, depth) as usize].load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire)
    }

    /// Makes `leaf` serve all `y` that begin with the bits of `prefix`, as many as its depth. One
    /// caller at a time.
    pub(crate) fn set(&self, prefix: u32, leaf: Leaf) {
        while self.depth() < leaf.depth() {
            self.double();
        }
        let spare = self.depth() - leaf.depth();
        let first = (prefix as usize) << spare;
        for entry in &self.level(self.depth())[first..first + (1 << spare)] {
            entry.store(leaf.0, Ordering::Release);
        }
    }

    fn double(&self) {
        let depth = self.depth();
        self.levels[depth as usize + 1].get_or_init(|| {
            self.level(depth)
                .iter()
                .flat_map(|entry| {
                    let word = entry.load(Ordering::Acquire);
                    [AtomicU64::new(word), AtomicU64::new(word)]
                })
                .collect()
        });
        self.depth.store(depth + 1, Ordering::Release);
    }

    /// True if every `y` has a leaf.
    pub(crate) fn is_complete(&self) -> bool {
        self.level(self.depth()).iter().all(|entry| entry.load(Ordering::Acquire) != 0)
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        self.levels.iter().filter_map(OnceLock::get).map(|level| size_of_val(&**level) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_of_unlike_depths_serve_their_ranges() {
        let directory = Directory::new(0);
        directory.set(0, Leaf::new(256, 0, 0));
        assert_eq!(directory.leaf(u32::MAX).offset(), 256);
        directory.set(0b0, Leaf::new(256, 1, 0));
        directory.set(0b1, Leaf::new(512, 1, 1));
        directory.set(0b10, Leaf::new(512, 2, 1));
        directory.set(0b11, Leaf::new(1024, 2, 2));
        assert!(directory.is_complete());
        let at = |y: u32| (directory.leaf(y).offset(), directory.leaf(y).depth());
        assert_eq!(at(0x0000_0000), (256, 1));
        assert_eq!(at(0x7fff_ffff), (256, 1));
        assert_eq!(at(0x8000_0000), (512, 2));
        assert_eq!(at(0xffff_ffff), (1024, 2));
        assert_eq!(directory.leaf(u32::MAX).number(), 2);
    }
}
