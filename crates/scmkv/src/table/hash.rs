//! Where a key belongs.
//!
//! ```text
//!   64-bit XXH3 of the key, seeded by the pool
//!     bits 63..32  u ── stagger ──▶ y: the directory takes its top bits, slots keep the next 7
//!     bits 31..20  tag (12 bits)
//!     bits 19..16  home bucket in the group
//!     bits 13..8   group in the segment
//! ```
//!
//! **Stagger.** With evenly spread hashes all segments of an extendible index fill up, and so
//! split, at the same time: its load swings between full and half full, and so does its memory
//! per key. `y` is `u` bent so that the density of keys at `y` falls smoothly by a factor of two
//! over its range; segments then come to their split one after the other, and the load stays at
//! its mean while the store grows.
//!
//! The seed is drawn from the pool's uuid, so that no outsider can choose keys that collide.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits of `y` that a slot keeps for the splits to come.
pub(crate) const WINDOW_BITS: u32 = 7;

/// The place of a key in any index of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Staggered hash: the directory's bits from the top.
    pub(crate) y: u32,
    /// Tag (12 bits) and home bucket (4 bits): the top 16 bits of the slot.
    pub(crate) tag: u16,
    /// Group bits; masked by the geometry.
    pub(crate) group_bits: u32,
}

impl Place {
    /// A placeholder.
    pub(crate) const NOWHERE: Self = Self { y: 0, tag: 0, group_bits: 0 };

    #[inline(always)]
    pub(crate) fn of(key: &[u8], seed: u64) -> Self {
        let hash = xxh3_64_with_seed(key, seed);
        Self {
            y: stagger((hash >> 32) as u32),
            tag: (hash >> 16) as u16,
            group_bits: (hash >> 8) as u32 & 0x3f,
        }
    }

    /// The home bucket among `buckets` (a power of two).
    #[inline]
    pub(crate) fn home(self, buckets: u32) -> u32 {
        home_of(self.tag, buckets)
    }

    /// The 23 bits that a slot must have at the top in a segment whose window starts at bit `start`.
    #[inline]
    pub(crate) fn signature(self, start: u32) -> u32 {
        u32::from(self.tag) << WINDOW_BITS | window(self.y, start)
    }
}

/// The home bucket that a slot's tag names.
#[inline]
pub(crate) fn home_of(tag: u16, buckets: u32) -> u32 {
    u32::from(tag) & (buckets - 1)
}

/// The first bit (from the top) of `y` that slots keep in segments of depth `depth`. It moves on
/// by a whole window at a time: only then a split must read the records.
#[inline]
pub(crate) fn window_start(depth: u32, origin: u32) -> u32 {
    origin + (depth.saturating_sub(origin)) / WINDOW_BITS * WINDOW_BITS
}

/// The window of `y` that starts at bit `start` from the top; bits past the end are 0.
#[inline]
pub(crate) fn window(y: u32, start: u32) -> u32 {
    ((u64::from(y) << 32 << start) >> (64 - WINDOW_BITS)) as u32 & ((1 << WINDOW_BITS) - 1)
}

/// `y = u + u(1 - u)/3` on the unit interval: monotone, onto, with slope from 4/3 down to 2/3.
#[inline]
fn stagger(u: u32) -> u32 {
    let u = u64::from(u);
    let bend = (u * ((1 << 32) - u)) >> 32;
    (u + bend / 3).min(u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stagger_is_monotone_and_spans_the_range() {
        let mut last = 0;
        for step in 0..=10_000_u64 {
            let y = stagger((step * u64::from(u32::MAX) / 10_000) as u32);
            assert!(y >= last);
            last = y;
        }
        assert_eq!(stagger(0), 0);
        assert!(stagger(u32::MAX) >= u32::MAX - 1);
        let low = f64::from(stagger(1 << 28)) / f64::from(1_u32 << 28);
        let high =
            f64::from(stagger(u32::MAX) - stagger(u32::MAX - (1 << 28))) / f64::from(1_u32 << 28);
        assert!((1.2..1.4).contains(&low) && (0.6..0.8).contains(&high), "{low} {high}");
    }

    #[test]
    fn a_window_shows_the_bits_that_follow_the_depth() {
        let y = 0b1010_1100_1110_0011_0000_1111_0101_0011;
        assert_eq!(window(y, 0), 0b101_0110);
        assert_eq!(window(y, 7), 0b011_1000);
        assert_eq!(window(y, 28), 0b001_1000);
        assert_eq!(window_start(3, 3), 3);
        assert_eq!(window_start(9, 3), 3);
        assert_eq!(window_start(10, 3), 10);
    }
}
