//! An element of the page information table, read.

/// The use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Free = 1,
    /// The page information table itself.
    Table = 2,
    Log = 3,
    Index = 4,
    Checkpoint = 5,
}

impl Kind {
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        [Self::Free, Self::Table, Self::Log, Self::Index, Self::Checkpoint]
            .into_iter()
            .find(|kind| *kind as u64 == bits)
    }
}

/// The durable element of a page, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) kind: Kind,
    pub(crate) log: u16,
    pub(crate) generation: u32,
    /// Bytes of records; none while the page is open.
    pub(crate) length: Option<u32>,
    pub(crate) birth: u64,
    /// A recovery ended the page: records behind its last one may be lost.
    pub(crate) is_cut: bool,
    /// The page held a durable record.
    pub(crate) is_proven: bool,
}

/// The message for a page that is lost ([`Element::is_lost`]).
pub(crate) const NONE_CAN_BE_READ: &str =
    "records were written here before the store stopped, and none can be read";

impl Element {
    /// For a page without any sound record: true if it had one.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_proven && self.length.is_none()
    }
}

// media-format: begin pool
pub(super) const ELEMENT_LEN: u64 = 32;
/// In the length of a page that a recovery ended.
pub(super) const CUT: u64 = 1 << 32;
// media-format: end
