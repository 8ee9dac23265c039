//! Several changes that happen together or not at all.

use crate::{Error, Limits, Result, UnixMillis};
use std::ops::Range;

/// One change of a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write a record.
    Put {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Its expiry.
        expires_at: Option<UnixMillis>,
    },
    /// Delete a record, if it is there.
    Delete {
        /// Its key.
        key: Vec<u8>,
    },
}

impl Change {
    /// The key that it changes.
    pub fn key(&self) -> &[u8] {
        self.as_ref().key()
    }

    /// The same change with borrowed bytes.
    pub fn as_ref(&self) -> ChangeRef<'_> {
        match self {
            Self::Put { key, value, expires_at } => {
                ChangeRef::Put { key, value, expires_at: *expires_at }
            }
            Self::Delete { key } => ChangeRef::Delete { key },
        }
    }
}

/// One change with borrowed bytes: from a [`Batch`] or a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeRef<'b> {
    /// Write a record.
    Put {
        /// Its key.
        key: &'b [u8],
        /// Its value.
        value: &'b [u8],
        /// Its expiry.
        expires_at: Option<UnixMillis>,
    },
    /// Delete a record, if it is there.
    Delete {
        /// Its key.
        key: &'b [u8],
    },
}

impl<'b> ChangeRef<'b> {
    /// The key that it changes.
    #[inline]
    pub fn key(&self) -> &'b [u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    /// Its value; none for a delete.
    #[inline]
    pub fn value(&self) -> Option<&'b [u8]> {
        match self {
            Self::Put { value, .. } => Some(value),
            Self::Delete { .. } => None,
        }
    }

    /// The same change with owned bytes.
    pub fn to_change(self) -> Change {
        let key = self.key().to_vec();
        match self {
            Self::Put { value, expires_at, .. } => {
                Change::Put { key, value: value.to_vec(), expires_at }
            }
            Self::Delete { .. } => Change::Delete { key },
        }
    }
}

/// The place of a change in the bytes of its batch: the key, and behind it the value.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    value: usize,
    end: usize,
    expires_at: Option<UnixMillis>,
    is_put: bool,
}

/// Changes in order; of several changes of a key the last wins.
///
/// All bytes lie in one buffer, one change after the other: batches tend to have many small changes,
/// and an allocation for each key and value took longer than all other work for a small record.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for `changes` changes, with `bytes` bytes of keys and values in
    /// total.
    pub fn with_capacity(changes: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), entries: Vec::with_capacity(changes) }
    }

    /// Adds a write.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.put_until(key, value, None)
    }

    /// Adds a write of a record that expires, if a time is given.
    #[inline]
    pub fn put_until(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at: Option<UnixMillis>,
    ) -> &mut Self {
        self.add(key, value, expires_at, true)
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.add(key, &[], None, false)
    }

    /// Adds a change.
    pub fn push(&mut self, change: ChangeRef<'_>) -> &mut Self {
        match change {
            ChangeRef::Put { key, value, expires_at } => self.put_until(key, value, expires_at),
            ChangeRef::Delete { key } => self.delete(key),
        }
    }

    #[inline]
    fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at: Option<UnixMillis>,
        is_put: bool,
    ) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let end = self.bytes.len();
        self.entries.push(Entry { start, value: middle, end, expires_at, is_put });
        self
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    fn change_of(&self, entry: &Entry) -> ChangeRef<'_> {
        let key = self.slice(entry.start..entry.value);
        if entry.is_put {
            let value = self.slice(entry.value..entry.end);
            ChangeRef::Put { key, value, expires_at: entry.expires_at }
        } else {
            ChangeRef::Delete { key }
        }
    }

    /// The change with index `at`, if there is one.
    #[inline]
    pub fn get(&self, at: usize) -> Option<ChangeRef<'_>> {
        self.entries.get(at).map(|entry| self.change_of(entry))
    }

    /// The changes, in order.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = ChangeRef<'_>> + ExactSizeIterator {
        self.entries.iter().map(|entry| self.change_of(entry))
    }

    /// The change, if it is the only one.
    pub fn only(&self) -> Option<ChangeRef<'_>> {
        self.get(0).filter(|_| self.len() == 1)
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all keys and values.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Checks the batch against the limits of an engine.
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] and [`Error::BatchTooLong`] if the batch exceeds a limit.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let (len, max) = (self.len(), limits.batch_len_max);
        if len > max {
            return Err(Error::BatchTooLarge { len, max });
        }
        let (bytes, max) = (self.bytes_len(), limits.batch_bytes_max);
        if bytes > max {
            return Err(Error::BatchTooLong { bytes, max });
        }
        Ok(())
    }

    /// Removes all changes; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// True if there is no change.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_out_as_they_went_in() {
        let (key, expires_at) = (b"ab".to_vec(), Some(UnixMillis(7)));
        let all = [
            Change::Put { key: key.clone(), value: b"xyz".to_vec(), expires_at },
            Change::Delete { key },
            Change::Put { key: Vec::new(), value: Vec::new(), expires_at: None },
        ];
        let mut batch = Batch::new();
        for change in &all {
            batch.push(change.as_ref());
        }
        let found: Vec<_> = batch.changes().map(ChangeRef::to_change).collect();
        assert_eq!(found, all);
        assert_eq!((batch.len(), batch.bytes_len(), batch.only()), (3, 7, None));
        assert_eq!(batch.get(1), Some(ChangeRef::Delete { key: b"ab" }));
        batch.clear();
        assert_eq!((batch.is_empty(), batch.bytes_len()), (true, 0));
        assert_eq!(batch.delete(b"k").only(), Some(ChangeRef::Delete { key: b"k" }));
    }

    #[test]
    fn a_batch_is_within_both_limits() {
        let mut batch = Batch::new();
        batch.put(b"ab", b"xyz").delete(b"c");
        let check = |batch_len_max, batch_bytes_max| {
            let (key_len_max, value_len_max) = (9, 9);
            batch.check(&Limits { key_len_max, value_len_max, batch_len_max, batch_bytes_max })
        };
        assert!(check(2, 6).is_ok());
        assert!(matches!(check(1, 6), Err(Error::BatchTooLarge { len: 2, max: 1 })));
        assert!(matches!(check(2, 5), Err(Error::BatchTooLong { bytes: 6, max: 5 })));
    }
}
