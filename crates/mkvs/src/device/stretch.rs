//! Records of a group, in the order of a scan, as a device has shown them.

use super::fault_guard::Guarded;
use coreplane_engine::{Entry, Error, Record, Result, Ticket, UnixMillis, Value};
use std::ops::Range;

/// Bytes of keys and values with which a stretch ends: one more value may follow.
const BYTES_MAX: usize = 8 << 20;

/// Bounds of a scan and its direction.
pub(crate) type Bounds<'a> = (&'a [u8], Option<&'a [u8]>, bool);

/// A record that was fetched.
#[derive(Debug)]
struct Next {
    /// The place of the key and the value in the bytes of the stretch; none: its value was left out.
    key: Range<usize>,
    value: Option<Range<usize>>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

/// The records.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    records: Vec<Next>,
    bytes: Vec<u8>,
    /// The last key that was looked at, shown or not, if the stretch `is_cut`.
    pub(crate) last: Vec<u8>,
    /// The scan has reached its count, or the stretch its bytes: there may be more records.
    pub(crate) is_cut: bool,
}

impl Stretch {
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.last.clear();
        self.is_cut = false;
    }

    /// Adds a record, whose value is left out behind [`BYTES_MAX`].
    pub(crate) fn push(&mut self, key: &[u8], record: &Record<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        if start < BYTES_MAX {
            record.value.append_to(&mut self.bytes);
        }
        let value = (start < BYTES_MAX).then_some(middle..self.bytes.len());
        let key = start..middle;
        let (sequence, expires_at) = (record.sequence, record.expires_at);
        self.records.push(Next { key, value, sequence, expires_at });
    }

    /// Reads at most `count` records, and not many more bytes than [`BYTES_MAX`], and keeps those that `is_shown`
    /// accepts.
    ///
    /// # Errors
    /// As the engine, and if the engine has no order.
    pub(crate) fn fetch(
        &mut self,
        engine: &Guarded,
        (start, end, reverse): Bounds<'_>,
        count: usize,
        is_shown: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        self.clear();
        let mut seen = 0;
        let mut keep = |entry: Entry<'_>| {
            seen += 1;
            if let (true, Some(record)) = (is_shown(entry.key), &entry.record) {
                self.push(entry.key, record);
            }
            self.is_cut = seen == count || self.bytes.len() >= BYTES_MAX;
            if self.is_cut {
                self.last.extend_from_slice(entry.key);
            }
            !self.is_cut
        };
        let scanned = engine.call_ordered(|it| it.scan(start, end, reverse, count, &mut keep))?;
        let operation = "a scan of what has no order";
        scanned.ok_or(Error::Unsupported { engine: crate::shape::NAME, operation })
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

    /// All of them, in the order in which they came; without its record one whose value was left out.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.records.iter().map(|next| self.show(next))
    }

    fn show(&self, next: &Next) -> Entry<'_> {
        let record = next.value.clone().map(|value| Record {
            value: Value::Whole(&self.bytes[value]),
            sequence: next.sequence,
            expires_at: next.expires_at,
            ticket: Ticket::DURABLE,
        });
        Entry { key: &self.bytes[next.key.clone()], record, sequence: next.sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_bptree::{Bptree, Options};
    use coreplane_engine::{Engine, WriteOptions};
    use coreplane_pmem::MediaChoice;
    use std::sync::Arc;

    #[test]
    fn a_stretch_of_long_values_ends_before_its_count() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let (path, options) = (directory.path().join("pool"), Options::default());
        let engine = Bptree::create(&path, 32 << 20, 8192, MediaChoice::Auto, &options);
        let engine = engine.expect("create");
        for key in 0..12_u8 {
            let value = vec![key; 1 << 20];
            let _outcome = engine.put(&[key], &value, &WriteOptions::default()).expect("put");
        }
        let engine = Guarded::new(Arc::new(engine)).expect("a device");
        let (mut stretch, mut from, mut keys) = (Stretch::default(), vec![], vec![]);
        for len in [8, 4] {
            stretch.fetch(&engine, (&from, None, false), 64, |_| true).expect("fetch");
            assert_eq!((stretch.len(), stretch.is_cut), (len, len == 8));
            keys.extend(stretch.entries().map(|entry| entry.key[0]));
            from = [&stretch.last[..], &[0]].concat();
        }
        assert!(keys.into_iter().eq(0..12));
    }

    #[test]
    fn values_behind_the_bytes_of_a_stretch_are_left_out() {
        let (mut stretch, value) = (Stretch::default(), vec![7; 1 << 20]);
        for sequence in 0..12_u8 {
            let (value, ticket) = (Value::Whole(&value), Ticket::DURABLE);
            let record = Record { value, sequence: sequence.into(), expires_at: None, ticket };
            stretch.push(&[sequence], &record);
        }
        assert!(stretch.bytes() <= 9 << 20, "{}", stretch.bytes());
        let with_values = stretch.entries().filter(|entry| entry.record.is_some()).count();
        assert_eq!((stretch.len(), with_values), (12, 8));
        assert!(stretch.entries().map(|entry| entry.key[0]).eq(0..12));
    }
}
