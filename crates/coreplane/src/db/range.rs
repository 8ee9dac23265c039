//! Entries in the order of their keys, from both ends.
//!
//! ```text
//!   keys   ├── front ──┼········ low … high ········┼── back ──┤
//!           next() ──▶      not read yet              ◀── next_back()
//! ```
//!
//! A page is read at the end that is asked for, and `low` or `high` moves to the end of that page. So the two pages
//! and the unread part never overlap, even with concurrent writes, and no entry is shown twice. Once nothing is
//! unread, each end takes from the other's page.

use super::Db;
use super::page::{Filler, Page, Pair, Size};
use coreplane_engine::{Error, Result, end_of_prefix};
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};

/// Entries in the order of the bytes of their keys, from [`Db::range`] or [`Db::prefix`].
///
/// It has at most one page of entries of each end in memory. A concurrent write is shown if it is in the unread part:
/// an entry is shown at most once, with the value that it had at some moment since the start, and an entry that
/// exists all the time is not left out. An error is the last item: behind it there are entries that cannot be shown.
#[derive(Debug)]
#[must_use = "iterators are lazy and do nothing unless consumed"]
pub struct Range {
    db: Db,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    front: Page,
    back: Page,
    size: Size,
    is_read: bool,
    failed: Option<Error>,
}

impl Db {
    /// The entries whose keys are in `bounds`, in order, as `Result<(key, value)>`; from the end with `rev()`. Shown
    /// entries are durable. Bounds without a key between them have no entries.
    ///
    /// ```
    /// # use coreplane::{Db, EngineChoice, StoreConfig};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let config = StoreConfig::at(dir.path().join("p")).size(16 << 20);
    /// # let db = config.engine(EngineChoice::Bptree).create_db()?;
    /// db.batch().put("a", "1").put("b", "2").put("c", "3").commit()?;
    /// let keys = db.range("b"..)?.map(|entry| Ok(entry?.0));
    /// assert_eq!(keys.collect::<coreplane::Result<Vec<_>>>()?, [b"b", b"c"]);
    /// assert_eq!(db.range(.."b")?.next_back().transpose()?, Some((b"a".to_vec(), b"1".to_vec())));
    /// # Ok::<(), coreplane::Error>(())
    /// ```
    ///
    /// For `..` the compiler asks for the type of the absent keys: use [`Db::iter`] instead.
    ///
    /// # Errors
    /// [`Error::NotOrdered`] for an engine that keeps its keys in no order (scmkv, or a matrix of it).
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<Range> {
        let low = match bounds.start_bound() {
            Bound::Included(key) => key.as_ref().to_vec(),
            Bound::Excluded(key) => successor(key.as_ref()),
            Bound::Unbounded => Vec::new(),
        };
        let high = match bounds.end_bound() {
            Bound::Included(key) => Some(successor(key.as_ref())),
            Bound::Excluded(key) => Some(key.as_ref().to_vec()),
            Bound::Unbounded => None,
        };
        self.between(low, high)
    }

    /// The entries whose keys begin with `prefix`, in order, as from [`Db::range`]; all entries if it is empty.
    ///
    /// # Errors
    /// As [`Db::range`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Range> {
        let prefix = prefix.as_ref();
        self.between(prefix.to_vec(), end_of_prefix(prefix))
    }

    /// The entries with `low <= key < high`.
    pub(super) fn between(&self, low: Vec<u8>, high: Option<Vec<u8>>) -> Result<Range> {
        if !self.is_ordered() {
            return Err(Error::NotOrdered { engine: self.engine().name() });
        }
        let (front, back, size, failed) = (Page::new(), Page::new(), Size::first(), None);
        Ok(Range { db: self.clone(), low, high, front, back, size, is_read: false, failed })
    }
}

/// The least key that is greater than `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

impl Range {
    /// Reads a page at the front or at the back; the result is in `is_read` and `failed`, too.
    fn read(&mut self, at_back: bool) {
        let is_nothing = self.high.as_ref().is_some_and(|high| *high <= self.low);
        let engine = self.db.engine();
        let Some(ordered) = engine.ordered().filter(|_| !is_nothing) else {
            self.is_read = true;
            return;
        };
        let len = self.size.take();
        let page = if at_back { &mut self.back } else { &mut self.front };
        let mut filler = Filler::new(page);
        let (low, high) = (&self.low, self.high.as_deref());
        let scanned = ordered.scan(low, high, at_back, len, &mut |entry| filler.add(&entry));
        let is_full = filler.is_full();
        if let Err(error) = filler.settle(&self.db) {
            // Entries that may not be durable must not be shown.
            page.clear();
            (self.is_read, self.failed) = (true, Some(error));
            return;
        }
        self.is_read = scanned.is_err() || (page.len() < len && !is_full);
        self.failed = scanned.err();
        match page.back() {
            Some((last, _)) if at_back => {
                let high = self.high.get_or_insert_default();
                high.clear();
                high.extend_from_slice(last);
            }
            Some((last, _)) => {
                self.low.clear();
                self.low.extend_from_slice(last);
                self.low.push(0);
            }
            None => {}
        }
    }

    /// The next item when everything is read and the own page is empty: the error, else the rest of the other page.
    fn rest(&mut self, at_back: bool) -> Option<Result<Pair>> {
        if let Some(error) = self.failed.take() {
            self.front.clear();
            self.back.clear();
            return Some(Err(error));
        }
        let other = if at_back { &mut self.front } else { &mut self.back };
        other.pop_back().map(Ok)
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.front.is_empty() && !self.is_read {
            self.read(false);
        }
        match self.front.pop_front() {
            Some(pair) => Some(Ok(pair)),
            None => self.rest(false),
        }
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.back.is_empty() && !self.is_read {
            self.read(true);
        }
        match self.back.pop_front() {
            Some(pair) => Some(Ok(pair)),
            None => self.rest(true),
        }
    }
}

impl FusedIterator for Range {}
