//! Writing, and making room for it. A write reads what it takes the place of, so that this layer is
//! above the [reader](crate::read).

mod batch;
mod clear;
mod compact;
mod merge;
pub(crate) mod plan;
mod put;
mod room;
mod short;

use crate::read::Reader;
use compact::Compaction;
use coreplane_engine::{Error, KEY_LEN_MAX, Result};
use parking_lot::Mutex;
use std::ops::Deref;

/// All that writes.
pub(crate) struct Writer {
    reader: Reader,
    compaction: Compaction,
    /// Held by who closes or empties the store, while all leaves are shut.
    pub(crate) whole: Mutex<()>,
}

impl Deref for Writer {
    type Target = Reader;

    #[inline(always)]
    fn deref(&self) -> &Reader {
        &self.reader
    }
}

/// Sequences that callers give are below this.
const SEQUENCE_MAX: u64 = 1 << 61;

impl Writer {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, compaction: Compaction::default(), whole: Mutex::new(()) }
    }

    /// # Errors
    /// If the value is too long.
    pub(crate) fn check_value(&self, len: usize) -> Result<()> {
        let max = coreplane_engine::VALUE_LEN_MAX;
        if len > max {
            return Err(Error::ValueTooLong { len, max });
        }
        Ok(())
    }

    /// # Errors
    /// If the key is too long.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = KEY_LEN_MAX;
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    /// # Errors
    /// If a sequence is given that is too great.
    pub(crate) fn check_sequence(&self, given: Option<u64>) -> Result<()> {
        if given.is_some_and(|given| given >= SEQUENCE_MAX) {
            let operation = "a given sequence of 2^61 or more";
            return Err(Error::Unsupported { engine: crate::volume::KIND, operation });
        }
        Ok(())
    }
}
