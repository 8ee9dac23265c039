//! Records of a group, in the order of a scan, as a device has shown them.

use coreplane_engine::{Entry, Error, Record, Result, StorageEngine, Ticket, UnixMillis, Value};
use std::ops::Range;

/// Bounds of a scan and its direction.
pub(crate) type Bounds<'a> = (&'a [u8], Option<&'a [u8]>, bool);

/// A record that was fetched.
#[derive(Debug)]
struct Next {
    /// The place of the key and the value in the bytes of the stretch.
    key: Range<usize>,
    value: Range<usize>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

/// The records.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    records: Vec<Next>,
    bytes: Vec<u8>,
    /// The last key that was looked at, shown or not, if the scan has reached its count.
    pub(crate) last: Vec<u8>,
    /// How many records were looked at.
    pub(crate) seen: usize,
    /// The number of the device.
    pub(crate) by: u8,
}

impl Stretch {
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.last.clear();
        self.seen = 0;
    }

    pub(crate) fn push(&mut self, key: &[u8], record: &Record<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        record.value.append_to(&mut self.bytes);
        let (key, value) = (start..middle, middle..self.bytes.len());
        let (sequence, expires_at) = (record.sequence, record.expires_at);
        self.records.push(Next { key, value, sequence, expires_at });
    }

    /// Reads at most `count` records, and keeps those that `is_shown` accepts.
    ///
    /// # Errors
    /// As the engine, and if the engine has no order.
    pub(crate) fn fetch(
        &mut self,
        engine: &dyn StorageEngine,
        (start, end, reverse): Bounds<'_>,
        count: usize,
        is_shown: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let operation = "a scan of what has no order";
        let ordered = engine.ordered();
        let ordered =
            ordered.ok_or(Error::Unsupported { engine: crate::shape::NAME, operation })?;
        self.clear();
        ordered.scan(start, end, reverse, count, &mut |entry| {
            self.seen += 1;
            if self.seen == count {
                self.last.extend_from_slice(entry.key);
            }
            if let (true, Some(record)) = (is_shown(entry.key), &entry.record) {
                self.push(entry.key, record);
            }
            true
        })
    }

    /// How many records it has.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes of their keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The key of one of them.
    pub(crate) fn key(&self, at: usize) -> Option<&[u8]> {
        self.records.get(at).map(|next| &self.bytes[next.key.clone()])
    }

    /// One of them.
    pub(crate) fn entry(&self, at: usize) -> Option<Entry<'_>> {
        self.records.get(at).map(|next| self.show(next))
    }

    /// All of them, in the order in which they came.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.records.iter().map(|next| self.show(next))
    }

    fn show(&self, next: &Next) -> Entry<'_> {
        let record = Record {
            value: Value::Whole(&self.bytes[next.value.clone()]),
            sequence: next.sequence,
            expires_at: next.expires_at,
            ticket: Ticket::DURABLE,
        };
        let key = &self.bytes[next.key.clone()];
        Entry { key, record: Some(record), sequence: next.sequence }
    }
}
