//! Views of one moment.

use crate::{Record, Result};

/// Views of the store as it was at one moment.
pub trait Snapshots {
    /// A read-only view of now.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>>;
}

/// A view of one moment; dropping it releases what it pinned.
pub trait Snapshot: Send + Sync {
    /// Shows the record that `key` had then; false if it had none.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool>;
}
