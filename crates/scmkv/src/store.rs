//! The open store: the highest layer, with its maintenance.
//!
//! ```text
//!   Store ─▶ Writer ─▶ Cleaner ─▶ Reader ─▶ Table
//! ```
//!
//! Each layer owns its own state, contains the layer below and dereferences to it. So a layer can
//! use the layers below and does not know those above: no reader can clean, and no cleaner can
//! write a record for a caller.

use crate::write::Writer;
use std::ops::Deref;

/// An open store: a writer with its maintenance (close, growth, checkpoints, scrub, verify,
/// repair).
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
