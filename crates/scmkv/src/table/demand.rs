//! Who asks for free pages, and how many each leaves to those before him.
//!
//! ```text
//!   free pages       1   2   3   4 …
//!   cleaner          ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//!   deletes              ▓▓▓▓▓▓▓▓▓▓▓
//!   overwrites               ▓▓▓▓▓▓▓
//!   inserts, index               ▓▓▓   a page later, or one for every 128 of the pool
//! ```
//!
//! Why, and what is done when there are none: [`reserve`](crate::clean::reserve).

use crate::table::Table;
use coreplane_record::Kind;

/// Free pages that only the cleaner takes.
pub(crate) const CLEANERS: u32 = 1;

/// Who asks for room, each leaving some to those before him.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Deletes, and what must not fail for want of space.
    Reserve,
    /// A value in the place of another one.
    Overwrite,
    /// One record more.
    Insert,
}

impl Demand {
    /// That of a record, whose key has another one already or has none.
    pub(crate) fn of(kind: Kind, is_overwrite: bool) -> Self {
        match kind {
            Kind::Delete => Self::Reserve,
            _ if is_overwrite => Self::Overwrite,
            _ => Self::Insert,
        }
    }
}

impl Table {
    /// Free pages that are left by who asks for room.
    pub(crate) fn reserve(&self, demand: Demand) -> u32 {
        match demand {
            Demand::Reserve => CLEANERS,
            Demand::Overwrite => CLEANERS + 1,
            Demand::Insert => CLEANERS + 1 + (self.pages.len() / 128).max(1),
        }
    }

    /// With fewer free pages than these, pages are short.
    pub(crate) fn pages_ample(&self) -> u32 {
        self.reserve(Demand::Insert) + 2 + self.pages.len() / 64
    }

    /// Bytes of a page that is opened when so many are free that are to be paid for.
    pub(crate) fn due(&self, free: u32) -> u32 {
        if free < self.pages_ample() { self.geometry.page_size } else { 0 }
    }
}
