//! Ranges of keys of which acknowledged writes may be lost.
//!
//! Where a write waits for some members only, one member may be the only holder of acknowledged writes when
//! the power fails. If that member has then lost records, its peers may have older ones: the last write of a
//! key that it may have lost is unknown. Reads of such a key fail until a later write, which is newer than
//! all of those, or until an operator accepts the loss by opening the matrix with that option.
//!
//! The same holds for a key whose record was damaged on every device that had it when another device was
//! filled: the filled device has no record of the key, and must not report it as absent.
//!
//! The ranges are in the membership record; a copy of those in force is at hand for readers.

use coreplane_engine::{Error, KeyRange};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// The form of a range of keys in a record.
#[derive(Serialize, Deserialize)]
#[serde(remote = "KeyRange")]
struct Keys {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

/// Keys of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostRange {
    group: u16,
    #[serde(flatten, with = "Keys")]
    keys: KeyRange,
    /// Records with a greater sequence were written afterwards; 0: that sequence is not known yet.
    since: u64,
}

impl LostRange {
    /// The range that a device of a group has lost.
    pub(crate) fn new(group: u16, keys: KeyRange) -> Self {
        Self { group, keys, since: 0 }
    }

    /// The key, if the range has just one.
    pub(crate) fn key(&self) -> Option<(u16, &[u8])> {
        self.keys.only_key().map(|key| (self.group, key))
    }

    /// Bytes that it takes in a membership record, roughly.
    pub(crate) fn len(&self) -> usize {
        const OTHERS: usize = 64;
        OTHERS + self.keys.start.len() + self.keys.end.as_ref().map_or(0, Vec::len)
    }

    /// All later sequences are greater.
    pub(crate) fn end(&mut self, newest: u64) {
        if self.since == 0 {
            self.since = newest;
        }
    }

    /// True if the range already covers these keys up to this sequence.
    pub(crate) fn covers(&self, group: u16, keys: &KeyRange, sequence: u64) -> bool {
        self.group == group && self.keys.covers(keys) && sequence <= self.since
    }

    /// True if the write of a key with this sequence may be lost.
    pub(crate) fn is_about(&self, group: u16, key: &[u8], sequence: u64) -> bool {
        self.group == group && self.keys.has(key) && sequence <= self.since
    }
}

/// The range of one key.
pub(crate) fn just(key: &[u8]) -> KeyRange {
    KeyRange { start: key.to_vec(), end: Some([key, &[0]].concat()) }
}

/// The lost ranges of the membership record in force.
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

    /// The sequence above which a record of a key is newer than the lost writes; none: no write of the key is lost.
    #[inline]
    pub(crate) fn since(&self, group: u16, key: &[u8]) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let ranges = self.ranges.read();
        ranges.iter().filter(|it| it.group == group && it.keys.has(key)).map(|it| it.since).max()
    }

    /// # Errors
    /// If a reader of the group's keys from `start` to below `end` may have missed something.
    #[inline]
    pub(crate) fn check(&self, group: u16, start: &[u8], end: Option<&[u8]>) -> Result<(), Error> {
        let is_hit = |it: &LostRange| it.group == group && it.keys.overlaps(start, end);
        if self.is_any() && self.ranges.read().iter().any(is_hit) { Err(lost()) } else { Ok(()) }
    }

    /// Takes the lost ranges of a record that comes in force.
    pub(crate) fn set(&self, ranges: &[LostRange]) {
        let mut known = self.ranges.write();
        ranges.clone_into(&mut known);
        self.is_any.store(!known.is_empty(), Ordering::Release);
    }

    /// True if a key is a lost range by itself.
    pub(crate) fn has_key(&self, group: u16, key: &[u8]) -> bool {
        self.ranges.read().iter().any(|it| it.key() == Some((group, key)))
    }

    /// The keys that are lost ranges by themselves, with their groups.
    pub(crate) fn keys(&self) -> Vec<(u16, Vec<u8>)> {
        let ranges = self.ranges.read();
        ranges.iter().filter_map(LostRange::key).map(|(group, key)| (group, key.to_vec())).collect()
    }

    pub(crate) fn ranges(&self) -> Vec<KeyRange> {
        self.ranges.read().iter().map(|it| it.keys.clone()).collect()
    }
}

/// The last write of a key is unknown.
pub(crate) fn lost() -> Error {
    let what = "a device has lost records of such keys, or has them damaged, and may have been the only one \
                that had what was acknowledged last (put each of them again, by itself and not in a batch, or \
                accept loss to read what its peers have)";
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

    #[test]
    fn the_form_in_a_record_stays() {
        let range = LostRange::new(1, just(b"b"));
        let text = serde_json::to_string(&range).expect("text");
        assert_eq!(text, r#"{"group":1,"start":[98],"end":[98,0],"since":0}"#);
        assert_eq!(serde_json::from_str::<LostRange>(&text).expect("a range"), range);
    }
}
