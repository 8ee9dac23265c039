//! Reading: no lock, one line of the index, the record.

pub(crate) mod gate;
pub(crate) mod get;
pub(crate) mod history;

use crate::table::Table;
use gate::Gate;
use std::ops::Deref;

/// A table to be read.
pub(crate) struct Reader {
    pub(crate) table: Table,
    pub(crate) gate: Gate,
    /// [`Options::check_reads`](crate::Options::check_reads).
    pub(crate) check_reads: bool,
}

impl Deref for Reader {
    type Target = Table;

    #[inline(always)]
    fn deref(&self) -> &Table {
        &self.table
    }
}
