//! Ranges of keys of which acknowledged writes may be lost.
//!
//! Where a write waits for some members only, one may be the only holder of what was acknowledged when
//! the power goes. If that one has lost records then, its peers may have older ones: of keys that it may
//! have lost nobody knows what was written last. What is written since is newer than all of it; of the
//! rest reads fail, until somebody accepts the loss by opening the matrix so.
//!
//! So it is with a key whose record was damaged on every device that had it when another was filled: that one
//! has no record of it, and is not to say that there is none.
//!
//! The ranges are in the membership record.

use coreplane_engine::{Error, KeyRange};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostRange {
    group: u16,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    /// What has a greater sequence was written afterwards; 0: that is not known yet.
    since: u64,
}

impl LostRange {
    /// Of what a device of a group has lost.
    pub(crate) fn new(group: u16, doubt: KeyRange) -> Self {
        Self { group, start: doubt.start, end: doubt.end, since: 0 }
    }

    /// The key, if it is one.
    pub(crate) fn key(&self) -> Option<(u16, &[u8])> {
        let is_one = self.end.as_deref().is_some_and(|end| is_behind(end, &self.start));
        is_one.then_some((self.group, &self.start))
    }

    /// Bytes that a record has of it, about.
    pub(crate) fn len(&self) -> usize {
        const OTHERS: usize = 64;
        OTHERS + self.start.len() + self.end.as_ref().map_or(0, Vec::len)
    }

    /// From here on all sequences are greater.
    pub(crate) fn end(&mut self, newest: u64) {
        if self.since == 0 {
            self.since = newest;
        }
    }

    /// True if it is known already that nobody knows of these keys what had this sequence.
    pub(crate) fn covers(
        &self,
        group: u16,
        KeyRange { start, end }: &KeyRange,
        sequence: u64,
    ) -> bool {
        let ends_behind = match (&self.end, end) {
            (None, _) => true,
            (Some(own), other) => other.as_ref().is_some_and(|other| other <= own),
        };
        self.group == group && self.start <= *start && ends_behind && sequence <= self.since
    }

    /// True if what a key had with this sequence is not known.
    pub(crate) fn is_about(&self, group: u16, key: &[u8], sequence: u64) -> bool {
        self.group == group && self.has(key) && sequence <= self.since
    }

    /// True if some key from `start` to below `end` is one of these.
    fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        end.is_none_or(|end| self.start.as_slice() < end)
            && self.end.as_ref().is_none_or(|end| start < end.as_slice())
    }

    fn has(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }
}

/// One key.
pub(crate) fn just(key: &[u8]) -> KeyRange {
    KeyRange { start: key.to_vec(), end: Some([key, &[0]].concat()) }
}

/// The key, if a range is just one.
pub(crate) fn key_of(KeyRange { start, end }: &KeyRange) -> Option<&[u8]> {
    end.as_deref().is_some_and(|end| is_behind(end, start)).then_some(start)
}

/// True if the one is the first key behind the other.
fn is_behind(end: &[u8], start: &[u8]) -> bool {
    end.split_last() == Some((&0, start))
}

/// Those of a matrix.
#[derive(Debug)]
pub(crate) struct LostRanges {
    is_any: AtomicBool,
    ranges: RwLock<Vec<LostRange>>,
}

impl LostRanges {
    pub(crate) fn new(ranges: Vec<LostRange>) -> Self {
        Self { is_any: AtomicBool::new(!ranges.is_empty()), ranges: RwLock::new(ranges) }
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// The sequence above which a record of a key is newer than what may be lost; none: nothing is.
    #[inline]
    pub(crate) fn since(&self, group: u16, key: &[u8]) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let ranges = self.ranges.read();
        ranges.iter().filter(|it| it.group == group && it.has(key)).map(|it| it.since).max()
    }

    /// # Errors
    /// If whoever has gone through a group from `start` to below `end` may have missed something.
    #[inline]
    pub(crate) fn check(&self, group: u16, start: &[u8], end: Option<&[u8]>) -> Result<(), Error> {
        let is_hit = |it: &LostRange| it.group == group && it.overlaps(start, end);
        if self.is_any() && self.ranges.read().iter().any(is_hit) { Err(lost()) } else { Ok(()) }
    }

    /// More of them.
    pub(crate) fn add(&self, more: &[LostRange]) {
        let mut ranges = self.ranges.write();
        ranges.extend_from_slice(more);
        self.is_any.store(!ranges.is_empty(), Ordering::Release);
    }

    /// One key is lost up to another sequence.
    pub(crate) fn renew(&self, it: &LostRange) {
        let mut ranges = self.ranges.write();
        ranges.retain(|other| other.key() != it.key());
        ranges.push(it.clone());
    }

    /// One key is known again; true if it was not.
    pub(crate) fn forget_key(&self, group: u16, key: &[u8]) -> bool {
        let mut ranges = self.ranges.write();
        let before = ranges.len();
        ranges.retain(|it| it.key() != Some((group, key)));
        self.is_any.store(!ranges.is_empty(), Ordering::Release);
        ranges.len() < before
    }

    /// The keys that are lost ranges by themselves, and their groups.
    pub(crate) fn keys(&self) -> Vec<(u16, Vec<u8>)> {
        let ranges = self.ranges.read();
        ranges.iter().filter_map(LostRange::key).map(|(group, key)| (group, key.to_vec())).collect()
    }

    /// There is nothing any more that might be lost.
    pub(crate) fn forget(&self) {
        self.ranges.write().clear();
        self.is_any.store(false, Ordering::Release);
    }

    pub(crate) fn ranges(&self) -> Vec<KeyRange> {
        let doubt = |it: &LostRange| KeyRange { start: it.start.clone(), end: it.end.clone() };
        self.ranges.read().iter().map(doubt).collect()
    }
}

/// Nobody knows what was written last.
pub(crate) fn lost() -> Error {
    let what = "a device has lost records of such keys, or has them damaged, and may have been the only one \
                that had what was acknowledged last (write them again, or accept loss to read what its \
                peers have)";
    Error::Unusable(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_since_is_certain() {
        let doubt = KeyRange { start: b"b".to_vec(), end: Some(b"d".to_vec()) };
        let mut range = LostRange::new(1, doubt.clone());
        range.end(7);
        range.end(9);
        let all = LostRanges::new(vec![range]);
        let since = |group, key: &[u8]| all.since(group, key);
        assert_eq!((since(1, b"b"), since(1, b"cc"), since(1, b"d")), (Some(7), Some(7), None));
        assert_eq!((since(1, b"a"), since(0, b"c")), (None, None));
        let check = |start: &[u8], end: Option<&[u8]>| all.check(1, start, end).is_ok();
        assert!(check(b"", Some(b"b")) && check(b"d", None));
        assert!(!check(b"", Some(b"ba")) && !check(b"cz", None) && !check(b"", None));
        assert!(all.check(0, b"", None).is_ok());
        assert_eq!(all.ranges(), [doubt]);
        assert!(!LostRanges::new(Vec::new()).is_any());
    }
}
