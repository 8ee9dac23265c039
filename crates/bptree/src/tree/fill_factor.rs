//! The fill factor: the share of its page that a rewritten leaf fills.
//!
//! The rest of the page is room for overwrites: the more there is, the less often the leaf is rewritten; and
//! nothing else can use it. So the factor depends on how many pages are free:
//!
//! | free pages | a leaf is split if it has more than |
//! |---|---|
//! | a quarter and more | 3/4 of its page, or 48 records |
//! | a sixteenth and more | 7/8, or 112 records |
//! | fewer | 15/16, or 120 records |
//!
//! With so few free pages, leaves are also rewritten as fewer ([`compact`](crate::write::compact)).

use crate::leaf::{FEW, PLACES};
use crate::tree::Tree;

/// The most that a leaf holds when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FillFactor {
    /// Sixteenths of the room for records.
    bytes: usize,
    /// Records.
    pub(crate) records: usize,
}

impl FillFactor {
    /// For two leaves with few records after deletes, which become one.
    pub(crate) const HALF: Self = Self { bytes: 8, records: FEW / 2 };
    /// While pages abound.
    pub(crate) const AMPLE: Self = Self { bytes: 12, records: FEW * 3 / 4 };
    /// For leaves that are compacted ahead of need: less than the size at which a leaf is split then.
    pub(crate) const DENSE: Self = Self { bytes: 13, records: PLACES * 13 / 16 };
    const SHORT: Self = Self { bytes: 14, records: PLACES * 7 / 8 };
    /// When there is no other page.
    pub(crate) const SCARCE: Self = Self { bytes: 15, records: PLACES * 15 / 16 };

    /// The factor that leaves room for `places` more records of `len` bytes together, of a page with room for
    /// `capacity`; none if hardly any other record has room beside them.
    pub(crate) fn leaving((len, places): (usize, usize), capacity: usize) -> Option<Self> {
        let bytes = capacity.saturating_sub(len) * 16 / capacity.max(1);
        let records = PLACES.saturating_sub(places.max(1));
        (bytes > 0 && records > 0).then_some(Self { bytes, records })
    }

    /// The bytes of this factor, of a page with room for `capacity`.
    pub(crate) fn of(self, capacity: usize) -> usize {
        capacity * self.bytes / 16
    }
}

impl Tree {
    /// The most that a leaf holds that is written now.
    pub(crate) fn fill_factor(&self) -> FillFactor {
        let (spare, all) = (self.pages.spare_len(), self.pages.count());
        match spare {
            _ if spare >= all / 4 => FillFactor::AMPLE,
            _ if spare >= all / 16 => FillFactor::SHORT,
            _ => FillFactor::SCARCE,
        }
    }
}
