//! Views of one moment.

use crate::{Entry, Record, Result};

/// Views of the store as it was at one moment.
pub trait Snapshots {
    /// A read-only view of now.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>>;
}

/// A view of one moment; dropping it releases the versions that it pinned.
pub trait Snapshot: Send + Sync {
    /// Shows the record that `key` had at that moment; false if it had none.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool>;

    /// The sequence of the last write in the view: that of every later write is greater.
    fn sequence(&self) -> u64;

    /// Shows the records of that moment, as [`Ordered::scan`](crate::Ordered::scan) does. A scan may take any
    /// time: writes go on meanwhile.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()>;
}
