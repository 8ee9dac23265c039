//! The form of an entry, in the log and on the wire.
//!
//! ```text
//!   header   kind  term  context                     in the map, and at most 256 bytes
//!   changes  count [op  expiry?  key  value?] …      on the wire; in the map they are records
//! ```
//!
//! The map keeps an entry's changes as versions of their keys, and its header beside them. Raft wants an entry as
//! bytes: these are made again from the contents of the map. The changes are then in the order of their keys, each
//! key once, which has the same effect.

use bytes::Bytes;
use coreplane_engine::{Batch, ChangeRef, UnixMillis};
use coreplane_mvcc::ENTRY_HEADER_MAX;
use std::collections::BTreeMap;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes of the map; none in the entry with which a leader begins.
    Changes = 1,
    /// Another set of members.
    Members = 2,
}

/// Bytes of an entry's changes at most.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// Bytes of a header before its context.
const HEAD: usize = 9;
/// Bytes of a context at most.
pub(crate) const CONTEXT_MAX: usize = ENTRY_HEADER_MAX - HEAD;

/// The part of an entry beside its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) term: u64,
    /// The proposer of changes, or the change of members.
    pub(crate) context: Bytes,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.context.len());
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&self.term.to_le_bytes());
        bytes.extend_from_slice(&self.context);
        bytes
    }

    /// None if the bytes are not a header.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (term, context) = rest.split_first_chunk::<8>()?;
        let kind = match kind {
            1 => Kind::Changes,
            2 => Kind::Members,
            _ => return None,
        };
        let context = Bytes::copy_from_slice(context);
        Some(Self { kind, term: u64::from_le_bytes(*term), context })
    }
}

// media-format: begin pool
const DELETE: u8 = 0;
const PUT: u8 = 1;
const PUT_UNTIL: u8 = 2;

/// Changes as bytes; no bytes if there are none.
pub(crate) fn encode_changes<'c>(changes: impl Iterator<Item = ChangeRef<'c>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let put = |bytes: &mut Vec<u8>, part: &[u8]| {
        bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        bytes.extend_from_slice(part);
    };
    for change in changes {
        match change {
            ChangeRef::Delete { key } => {
                bytes.push(DELETE);
                put(&mut bytes, key);
            }
            ChangeRef::Put { key, value, expires_at } => {
                bytes.push(if expires_at.is_some() { PUT_UNTIL } else { PUT });
                if let Some(UnixMillis(at)) = expires_at {
                    bytes.extend_from_slice(&at.to_le_bytes());
                }
                put(&mut bytes, key);
                put(&mut bytes, value);
            }
        }
    }
    bytes
}
// media-format: end

/// The last change of each key, in the order of keys, as they are read back from the map.
pub(crate) fn encode_last_changes(batch: &Batch) -> Vec<u8> {
    if batch.len() < 2 {
        return encode_changes(batch.changes());
    }
    let last: BTreeMap<&[u8], ChangeRef<'_>> =
        batch.changes().map(|change| (change.key(), change)).collect();
    encode_changes(last.into_values())
}

/// The reverse of [`encode_changes`]; none if the bytes are not changes.
pub(crate) fn decode_changes(bytes: &[u8]) -> Option<Batch> {
    let (mut batch, mut reader) = (Batch::new(), Reader(bytes));
    while !reader.0.is_empty() {
        match reader.byte()? {
            DELETE => batch.push(ChangeRef::Delete { key: reader.part()? }),
            op @ (PUT | PUT_UNTIL) => {
                let at = if op == PUT_UNTIL { Some(UnixMillis(reader.word()?)) } else { None };
                let (key, value) = (reader.part()?, reader.part()?);
                batch.push(ChangeRef::Put { key, value, expires_at: at })
            }
            _ => return None,
        };
    }
    Some(batch)
}

/// How many changes there are in bytes that [`decode_changes`] understands.
pub(crate) fn count_changes(bytes: &[u8]) -> u64 {
    let (mut reader, mut count) = (Reader(bytes), 0);
    let mut skip = || {
        match reader.byte()? {
            DELETE => reader.part()?,
            PUT => (reader.part()?, reader.part()?).1,
            _ => (reader.word()?, reader.part()?, reader.part()?).2,
        };
        Some(())
    };
    while skip().is_some() {
        count += 1;
    }
    count
}

/// Takes numbers and parts from the front of bytes.
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// A count of the parts that follow, which cannot be more than there are bytes.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let (count, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        let count = u32::from_le_bytes(*count) as usize;
        (count <= self.0.len()).then_some(count)
    }

    pub(crate) fn part(&mut self) -> Option<&'b [u8]> {
        let len = self.count()?;
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_what_they_were() {
        let mut batch = Batch::new();
        batch.put(b"a", b"1").delete(b"b").put_until(b"c", b"", Some(UnixMillis(7)));
        let bytes = encode_changes(batch.changes());
        let again = decode_changes(&bytes).unwrap();
        assert!(again.changes().eq(batch.changes()));
        assert_eq!((count_changes(&bytes), count_changes(&[])), (3, 0));
        assert!(decode_changes(&[]).unwrap().is_empty());
        for cut in 1..bytes.len() {
            // Bytes that are cut after a whole change are a shorter list of changes.
            if let Some(fewer) = decode_changes(&bytes[..cut]) {
                assert!(fewer.len() < batch.len());
            }
        }
        assert!(decode_changes(&[9]).is_none());
    }

    #[test]
    fn a_header_is_what_it_was() {
        let context = Bytes::from_static(b"who");
        let header = Header { kind: Kind::Members, term: 1 << 40, context };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(Header::decode(&[3; 20]), None);
        assert_eq!(Header::decode(&[1; 8]), None);
    }
}
