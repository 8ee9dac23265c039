//! The fill factor: how much of its page a leaf has that is written anew.
//!
//! What a leaf has not is room for what is written over its records: the more there is, the seldomer
//! it is written anew; and nothing else can be there. So it depends on how many pages are free:
//!
//! | free pages | a leaf is cut in two that has more than |
//! |---|---|
//! | a quarter and more | 3/4 of its page, or 48 records |
//! | a sixteenth and more | 7/8, or 112 records |
//! | fewer | 15/16, or 120 records |
//!
//! With so few as that, leaves are also put together as fewer ([`compact`](crate::write::compact)).

use crate::leaf::{FEW, PLACES};
use crate::tree::Tree;

/// How much a leaf has at most when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FillFactor {
    /// Sixteenths of the room for records.
    bytes: usize,
    /// Records.
    pub(crate) records: usize,
}

impl FillFactor {
    /// Of two leaves that deletes have left little in, and that become one.
    pub(crate) const HALF: Self = Self { bytes: 8, records: FEW / 2 };
    /// As long as pages abound.
    pub(crate) const AMPLE: Self = Self { bytes: 12, records: FEW * 3 / 4 };
    /// Of leaves that become fewer ahead of need: below what is cut in two then.
    pub(crate) const DENSE: Self = Self { bytes: 13, records: PLACES * 13 / 16 };
    const SHORT: Self = Self { bytes: 14, records: PLACES * 7 / 8 };
    /// When there is no other page.
    pub(crate) const SCARCE: Self = Self { bytes: 15, records: PLACES * 15 / 16 };

    /// What leaves room for so many records more of so many bytes, of a page with room for `capacity`; none if
    /// hardly anything beside them has any.
    pub(crate) fn leaving((len, places): (usize, usize), capacity: usize) -> Option<Self> {
        let bytes = capacity.saturating_sub(len) * 16 / capacity.max(1);
        let records = PLACES.saturating_sub(places.max(1));
        (bytes > 0 && records > 0).then_some(Self { bytes, records })
    }

    /// So many bytes of a page with room for `capacity`.
    pub(crate) fn of(self, capacity: usize) -> usize {
        capacity * self.bytes / 16
    }
}

impl Tree {
    /// How much a leaf has at most that is written now.
    pub(crate) fn fill_factor(&self) -> FillFactor {
        let (spare, all) = (self.pages.spare_len(), self.space.pages());
        match spare {
            _ if spare >= all / 4 => FillFactor::AMPLE,
            _ if spare >= all / 16 => FillFactor::SHORT,
            _ => FillFactor::SCARCE,
        }
    }
}
