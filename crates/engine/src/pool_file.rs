//! What there is beneath an open store.

/// The file of an open store, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backing {
    /// It is as long as it has to be, and has a name; or there is none.
    #[default]
    Whole,
    /// It has no name any more: what it has is gone when the store is closed.
    Removed,
    /// It was cut short under the store.
    Shortened {
        /// Bytes that are left of it.
        len: u64,
        /// Bytes that it has to have.
        expected: u64,
    },
}
