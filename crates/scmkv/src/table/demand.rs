//! The demands for free pages, and how many pages each leaves to the demands before it.
//!
//! ```text
//!   free pages       1   2   3   4   5 …
//!   cleaner          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//!   deletes                  ▓▓▓▓▓▓▓▓▓▓▓   in a pool of fewer than 256 pages from 2 on, and so forth
//!   overwrites                   ▓▓▓▓▓▓▓
//!   inserts, index                   ▓▓▓   one page later for every 128 of the pool
//! ```
//!
//! [`reserve`](crate::clean::reserve) gives the reasons, and the way out when there is no free
//! page.

use crate::table::Table;
use coreplane_record::Kind;

/// The purpose of a request for pages. Each leaves some pages to the demands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Deletes, and other work that must not fail for lack of space.
    Reserve,
    /// A value in the place of another one.
    Overwrite,
    /// One more record.
    Insert,
}

impl Demand {
    /// The demand of a record, given whether its key already has another one.
    pub(crate) fn of(kind: Kind, is_overwrite: bool) -> Self {
        match kind {
            Kind::Delete => Self::Reserve,
            _ if is_overwrite => Self::Overwrite,
            _ => Self::Insert,
        }
    }
}

impl Table {
    /// Free pages that are left to the cleaner: one for the copies of a page; and another, where that is little of the
    /// pool, in case a crash leaves that page and the copies both partly in use.
    pub(crate) fn cleaners(&self) -> u32 {
        (self.pages.len() / 128).clamp(1, 2)
    }

    /// Free pages that `demand` leaves alone.
    pub(crate) fn reserve(&self, demand: Demand) -> u32 {
        match demand {
            Demand::Reserve => self.cleaners(),
            Demand::Overwrite => self.cleaners() + 1,
            Demand::Insert => 2 + (self.pages.len() / 128).max(1),
        }
    }

    /// With fewer free pages than these, pages are short.
    pub(crate) fn pages_ample(&self) -> u32 {
        self.reserve(Demand::Insert) + 2 + self.pages.len() / 64
    }

    /// Bytes of a newly opened page that must be paid for when `free` pages are free.
    pub(crate) fn due(&self, free: u32) -> u32 {
        if free < self.pages_ample() { self.geometry.page_size } else { 0 }
    }
}
