//! The open store: the highest layer, with what keeps it well.
//!
//! ```text
//!   Store ─▶ Writer ─▶ Cleaner ─▶ Reader ─▶ Table
//! ```
//!
//! Each layer owns the state that is its business, contains the one below and dereferences to it. So
//! a layer can use what is below, and what is above does not exist for it: no reader can clean, and
//! no cleaner can write a record for a caller.

use crate::write::Writer;
use std::ops::Deref;

/// An open store: a writer, and what keeps it well (close, growth, checkpoints, scrub, verify, repair).
pub(crate) struct Store {
    pub(crate) writer: Writer,
}

impl Deref for Store {
    type Target = Writer;

    #[inline(always)]
    fn deref(&self) -> &Writer {
        &self.writer
    }
}
