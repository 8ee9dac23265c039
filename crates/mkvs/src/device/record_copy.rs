//! A copy of a record that a device has shown.

use coreplane_engine::{Record, Ticket, UnixMillis, Value};

/// Bytes of a buffer that is kept, at most.
const SMALL: usize = 64 << 10;

/// A record as a device has found it, in a buffer that may be used again.
#[derive(Debug, Default)]
pub(crate) struct RecordCopy {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

impl RecordCopy {
    /// True if the buffer may be kept for the next record: it has not become large.
    pub(crate) fn is_small(&self) -> bool {
        self.value.capacity() <= SMALL
    }

    pub(crate) fn keep(&mut self, record: &Record<'_>) {
        self.value.clear();
        record.value.append_to(&mut self.value);
        (self.sequence, self.expires_at) = (record.sequence, record.expires_at);
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
