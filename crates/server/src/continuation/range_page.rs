//! A page of `RANGE`: records in the order of their keys, step by step, up to a number of records or bytes.

use crate::resp::reply::{Proto, Reply};
use crate::store::Store;
use coreplane_engine::{Entry, Result, UnixMillis};

/// Records looked at in a step, those included that have expired and that a cluster says so of.
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
    /// The last key that was met.
    last: Option<Vec<u8>>,
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
        let (body, last) = (Vec::new(), None);
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
        let (start, end) = self.rest_of((start, end));
        if end.as_ref().is_some_and(|end| start >= *end) {
            store.rest_on_all();
            return Ok(true);
        }
        // One more than is shown, to know whether a further one exists; and all of a step behind expired ones.
        let most = match self.last {
            None => STEP.min(self.limit.saturating_add(1)),
            Some(_) => STEP,
        };
        let mut met = 0;
        let before = (self.records, self.body.len(), self.last.clone());
        let shown = store.range((&start, end.as_deref()), self.reverse, most, &mut |entry| {
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

    /// The part of a range behind the last key that was met.
    fn rest_of(&self, (start, end): (&[u8], Option<&[u8]>)) -> (Vec<u8>, Option<Vec<u8>>) {
        match (&self.last, self.reverse) {
            (None, _) => (start.to_vec(), end.map(<[u8]>::to_vec)),
            (Some(last), false) => ([last, &[0][..]].concat(), end.map(<[u8]>::to_vec)),
            (Some(last), true) => (start.to_vec(), Some(last.clone())),
        }
    }

    /// Shows one more record, if it has not expired; false if that exceeds the page.
    fn show(&mut self, entry: &Entry<'_>) -> bool {
        let Some(record) = &entry.record else {
            self.note(entry.key);
            return true;
        };
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
        self.note(entry.key);
        true
    }

    fn note(&mut self, key: &[u8]) {
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
    }

    /// Answers with the bound to go on with, or null, and the records.
    pub(crate) fn write(&self, reply: &mut Reply<'_>) {
        let each = 1 + usize::from(self.shown.values) + usize::from(self.shown.expiries);
        reply.array(2);
        match self.last.as_ref().filter(|_| self.has_more) {
            Some(last) => reply.bulk(&[b"(", last.as_slice()].concat()),
            None => reply.null(),
        }
        reply.array(self.records * each);
        reply.out.extend_from_slice(&self.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step may end among records that have expired: the next one begins behind them.
    #[test]
    fn a_page_goes_on_behind_what_has_expired() {
        let whole: (&[u8], Option<&[u8]>) = (b"a", Some(b"z"));
        for (reverse, rest) in [
            (false, (b"k\0".to_vec(), Some(b"z".to_vec()))),
            (true, (b"a".to_vec(), Some(b"k".to_vec()))),
        ] {
            let mut page = RangePage::new(1, reverse, (Shown::default(), Proto::Two), 0);
            assert_eq!(page.rest_of(whole), (b"a".to_vec(), Some(b"z".to_vec())));
            assert!(page.show(&Entry { key: b"k", record: None, sequence: 0 }));
            assert_eq!(page.rest_of(whole), rest);
            let mut out = Vec::new();
            page.write(&mut Reply { out: &mut out, proto: Proto::Two });
            assert_eq!(out, b"*2\r\n$-1\r\n*0\r\n", "nothing was shown");
        }
    }
}
