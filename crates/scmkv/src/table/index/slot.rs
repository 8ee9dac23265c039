//! A slot: one 8-byte word that says "a key like this is there".
//!
//! ```text
//!   63        48 47       41 40      39       38               0
//!   ┌───────────┬───────────┬───────┬────────┬──────────────────┐
//!   │ tag  home │  window   │ tomb- │ expiry │    offset / 8    │
//!   │ 12    4   │  7 bits   │ stone │        │     39 bits      │
//!   └───────────┴───────────┴───────┴────────┴──────────────────┘
//! ```
//!
//! The paper's slot has a 16-bit tag and a 48-bit address. Records are 8-byte aligned and pools are
//! at most 4 TiB, which frees 9 bits: the next 7 bits of the hash, so that a segment splits without
//! reading a record, and two bits that save reading the records of deleted keys and find the
//! records with an expiry.

use crate::table::hash::WINDOW_BITS;

// media-format: begin pool
const OFFSET_BITS: u32 = 39;
const EXPIRES: u64 = 1 << OFFSET_BITS;
const TOMBSTONE: u64 = 1 << (OFFSET_BITS + 1);
const SIGNATURE_SHIFT: u32 = OFFSET_BITS + 2;
// media-format: end

/// The first offset that a slot cannot hold.
pub(crate) const OFFSET_MAX: u64 = 1 << (OFFSET_BITS + 3);

/// A slot's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    /// Never used: a probe ends here.
    pub(crate) const EMPTY: Self = Self(0);
    /// Used once and free again, but probes go on past it.
    pub(crate) const DELETED: Self = Self(1);

    #[inline]
    pub(crate) fn new(signature: u32, offset: u64, tombstone: bool, expires: bool) -> Self {
        debug_assert!(offset < OFFSET_MAX && offset & 7 == 0 && offset > 8);
        Self(
            u64::from(signature) << SIGNATURE_SHIFT
                | if tombstone { TOMBSTONE } else { 0 }
                | if expires { EXPIRES } else { 0 }
                | offset >> 3,
        )
    }

    /// True if it points at a record.
    #[inline]
    pub(crate) fn is_used(self) -> bool {
        self.0 > Self::DELETED.0
    }

    /// Tag, home and window: the top 23 bits.
    #[inline]
    pub(crate) fn signature(self) -> u32 {
        (self.0 >> SIGNATURE_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn tag(self) -> u16 {
        (self.0 >> (SIGNATURE_SHIFT + WINDOW_BITS)) as u16
    }

    #[inline]
    pub(crate) fn window(self) -> u32 {
        self.signature() & ((1 << WINDOW_BITS) - 1)
    }

    #[inline]
    pub(crate) fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE != 0
    }

    #[inline]
    pub(crate) fn expires(self) -> bool {
        self.0 & EXPIRES != 0
    }

    /// The offset of the record in the pool, if it is of a value without an expiry.
    #[inline]
    pub(crate) fn record_that_stays(self) -> Option<u64> {
        (self.0 & (TOMBSTONE | EXPIRES) == 0).then_some(self.offset())
    }

    /// The offset of the record in the pool.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        (self.0 & ((1 << OFFSET_BITS) - 1)) << 3
    }

    /// The same slot for another window.
    pub(crate) fn with_window(self, window: u32) -> Self {
        let keep = !(((1_u64 << WINDOW_BITS) - 1) << SIGNATURE_SHIFT);
        Self(self.0 & keep | u64::from(window) << SIGNATURE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_gives_back_what_was_put_in() {
        let signature = 0x5a5a5a & ((1 << 23) - 1);
        for (tombstone, expires) in [(false, false), (true, false), (false, true)] {
            let slot = Slot::new(signature, OFFSET_MAX - 8, tombstone, expires);
            assert!(slot.is_used());
            assert_eq!(slot.signature(), signature);
            assert_eq!(slot.offset(), OFFSET_MAX - 8);
            assert_eq!((slot.is_tombstone(), slot.expires()), (tombstone, expires));
            assert_eq!(u32::from(slot.tag()) << 7 | slot.window(), signature);
            let moved = slot.with_window(0x55);
            assert_eq!((moved.window(), moved.tag()), (0x55, slot.tag()));
            assert_eq!(moved.offset(), slot.offset());
        }
        assert!(!Slot::EMPTY.is_used() && !Slot::DELETED.is_used());
    }
}
