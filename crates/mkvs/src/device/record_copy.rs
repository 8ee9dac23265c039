//! A copy of a record that a device has shown, in buffers that are used again.

use coreplane_engine::{Record, Ticket, UnixMillis, Value};

/// Bytes of a buffer that is kept, at most.
const SMALL: usize = 64 << 10;

/// A record as a device has found it, in buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct RecordCopy {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
    pub(crate) is_hit: bool,
    /// The device that has found the record, or has found none.
    pub(crate) device: u8,
}

impl RecordCopy {
    /// True if the buffer may be kept for the next record: it has not become large.
    pub(crate) fn is_small(&self) -> bool {
        self.value.capacity() <= SMALL
    }

    /// Drops the buffer if it has become large.
    pub(crate) fn keep_if_small(&mut self) {
        if !self.is_small() {
            *self = Self::default();
        }
    }

    pub(crate) fn keep(&mut self, record: &Record<'_>) {
        self.value.clear();
        record.value.append_to(&mut self.value);
        (self.sequence, self.expires_at) = (record.sequence, record.expires_at);
        self.is_hit = true;
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            value: Value::Whole(&self.value),
            sequence: self.sequence,
            expires_at: self.expires_at,
            ticket: Ticket::DURABLE,
        }
    }
}
