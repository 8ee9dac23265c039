//! The state of the file of an open store.

/// The file of an open store, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backing {
    /// The file has its full length and a name; or the store has no file.
    #[default]
    Whole,
    /// The file has no name any more: its contents are gone when the store is closed.
    Removed,
    /// The file was truncated under the store.
    Shortened {
        /// Its length now.
        len: u64,
        /// The length that the store needs.
        expected: u64,
    },
}
