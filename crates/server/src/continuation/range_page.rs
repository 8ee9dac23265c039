//! A page of `RANGE`: records in the order of their keys, step by step, up to a number of records or bytes.

use crate::resp::reply::{Proto, Reply};
use crate::store::Store;
use coreplane_engine::{Entry, Result, UnixMillis};

/// Records looked at in a step.
const STEP: usize = 256;

/// A page of this length is not extended.
const BYTES_MAX: usize = 1 << 20;

/// The parts of a record that are shown beside its key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    pub values: bool,
    pub expiries: bool,
}

/// A page in the making.
#[derive(Debug)]
pub(crate) struct RangePage {
    limit: usize,
    reverse: bool,
    shown: Shown,
    proto: Proto,
    leadership: u64,
    /// The records shown, as they are sent.
    body: Vec<u8>,
    records: usize,
    last: Vec<u8>,
    has_more: bool,
}

impl RangePage {
    /// An empty page, of so many records at most, begun in this leadership.
    pub(crate) fn new(
        limit: usize,
        reverse: bool,
        (shown, proto): (Shown, Proto),
        leadership: u64,
    ) -> Self {
        let (body, last) = (Vec::new(), Vec::new());
        Self { limit, reverse, shown, proto, leadership, body, records: 0, last, has_more: false }
    }

    /// The leadership in which it began.
    pub(crate) fn leadership(&self) -> u64 {
        self.leadership
    }

    /// Bytes of the answer so far.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Reads some more records of the range from `start` up to `end`; true if the page is complete.
    ///
    /// # Errors
    /// As [`Ordered::scan`](coreplane_engine::Ordered::scan).
    pub(crate) fn step(
        &mut self,
        store: &mut Store<'_>,
        (start, end): (&[u8], Option<&[u8]>),
    ) -> Result<bool> {
        let above = [self.last.as_slice(), &[0]].concat();
        let left = match (self.records, self.reverse) {
            (0, _) => (start, end),
            (_, false) => (above.as_slice(), end),
            (_, true) => (start, Some(self.last.as_slice())),
        };
        if left.1.is_some_and(|end| left.0 >= end) {
            store.rest_on_all();
            return Ok(true);
        }
        let left = (left.0.to_vec(), left.1.map(<[u8]>::to_vec));
        // One more than is shown, to know whether a further one exists.
        let most = STEP.min((self.limit - self.records).saturating_add(1));
        let mut met = 0;
        let before = (self.records, self.body.len(), self.last.clone());
        let shown = store.range((&left.0, left.1.as_deref()), self.reverse, most, &mut |entry| {
            met += 1;
            self.show(&entry)
        });
        if let Err(error) = shown {
            // The step may be repeated as a whole: records that are not shown must be known to be absent.
            let len;
            (self.records, len, self.last) = before;
            self.body.truncate(len);
            self.has_more = false;
            return Err(error);
        }
        let is_complete = self.has_more || met < most;
        if is_complete {
            store.rest_on_all();
        }
        Ok(is_complete)
    }

    /// Shows one more record; false if that exceeds the page.
    fn show(&mut self, entry: &Entry<'_>) -> bool {
        let Some(record) = &entry.record else { return true };
        self.has_more = self.records == self.limit || self.body.len() >= BYTES_MAX;
        if self.has_more {
            return false;
        }
        let mut reply = Reply { out: &mut self.body, proto: self.proto };
        reply.bulk(entry.key);
        if self.shown.values {
            reply.value(&record.value);
        }
        if self.shown.expiries {
            let at = record.expires_at.map(|UnixMillis(at)| i64::try_from(at).unwrap_or(i64::MAX));
            reply.int(at.unwrap_or(-1));
        }
        self.records += 1;
        self.last.clear();
        self.last.extend_from_slice(entry.key);
        true
    }

    /// Answers with the bound to go on with, or null, and the records.
    pub(crate) fn write(&self, reply: &mut Reply<'_>) {
        let each = 1 + usize::from(self.shown.values) + usize::from(self.shown.expiries);
        reply.array(2);
        if self.has_more {
            reply.bulk(&[b"(", self.last.as_slice()].concat());
        } else {
            reply.null();
        }
        reply.array(self.records * each);
        reply.out.extend_from_slice(&self.body);
    }
}
