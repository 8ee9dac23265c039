//! A node as a record.
//!
//! ```text
//!   key     the least key of the node
//!   value   level (32) | entries (32)
//!           offset (64) of what each entry leads to
//!           end (32) of each entry's key among the keys
//!           the keys one after the other, without the first
//! ```
//!
//! By level and least key the cleaner finds the way to a node from the root, if there is one.

use super::fresh::{Entry, Link, Node};
use coreplane_record::{Kind, View};

// media-format: begin pool
/// Bytes before the entries.
pub(super) const HEAD: usize = 8;
/// Bytes of an entry beside its key.
pub(super) const PER_ENTRY: usize = 12;

/// Puts the value of a node's record in place of what is in `value`.
pub(super) fn encode<'k>(
    level: u32,
    entries: impl ExactSizeIterator<Item = (&'k [u8], u64)> + Clone,
    value: &mut Vec<u8>,
) {
    value.clear();
    value.extend_from_slice(&level.to_le_bytes());
    value.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    entries.clone().for_each(|(_, offset)| value.extend_from_slice(&offset.to_le_bytes()));
    let mut end = 0;
    for (at, (key, _)) in entries.clone().enumerate() {
        end += if at == 0 { 0 } else { key.len() as u32 };
        value.extend_from_slice(&end.to_le_bytes());
    }
    entries.skip(1).for_each(|(key, _)| value.extend_from_slice(key));
}
// media-format: end

/// A level above which there is none: a tree of so many would not fit any medium.
const LEVEL_MAX: u32 = 64;

/// A sealed node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealed<'a> {
    pub(super) view: View<'a>,
    pub(super) level: u32,
    count: usize,
    offsets: &'a [u8],
    ends: &'a [u8],
    keys: &'a [u8],
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(4 * at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

impl<'a> Sealed<'a> {
    /// None if the record is no node.
    pub(super) fn of(view: View<'a>) -> Option<Self> {
        let value = view.value();
        if view.header.kind != Kind::Node || value.len() < HEAD {
            return None;
        }
        let (level, count) = (word32(value, 0), word32(value, 1) as usize);
        let entries = value.get(HEAD..)?;
        if count == 0 || level > LEVEL_MAX || entries.len() / PER_ENTRY < count {
            return None;
        }
        let (offsets, rest) = entries.split_at(8 * count);
        let (ends, keys) = rest.split_at(4 * count);
        let node = Self { view, level, count, offsets, ends, keys };
        let is_sound = word32(ends, count - 1) as usize == keys.len();
        is_sound.then_some(node)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn key(&self, at: usize) -> &'a [u8] {
        if at == 0 {
            return self.view.key();
        }
        let (from, to) = (word32(self.ends, at - 1) as usize, word32(self.ends, at) as usize);
        self.keys.get(from..to).unwrap_or_default()
    }

    /// The offset that an entry leads to.
    pub(super) fn offset(&self, at: usize) -> u64 {
        let word = self.offsets.get(8 * at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |it| u64::from_le_bytes(*it))
    }

    /// A fresh node that is the same.
    pub(super) fn to_fresh(self) -> Node {
        let entry = |at| Entry { key: self.key(at).into(), to: Link::Sealed(self.offset(at)) };
        Node { level: self.level, entries: (0..self.count).map(entry).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(level: u32, entries: &[(&[u8], u64)]) -> Vec<u8> {
        let mut value = vec![1, 2, 3];
        encode(level, entries.iter().copied(), &mut value);
        value
    }

    use coreplane_pmem::epoch;
    use coreplane_pmem::{Space, SpaceOptions};
    use coreplane_record::{Header, Reader};
    use std::sync::Arc;

    /// Writes a record to memory, and shows it.
    fn with_record(kind: Kind, key: &[u8], value: &[u8], show: impl FnOnce(View<'_>)) {
        let options = SpaceOptions { page_size: 4096, reserve: 1 << 20, own_epochs: false };
        let space = Arc::new(Space::dram(1 << 20, &options).unwrap());
        let mut writer = space.claim_log(1).unwrap();
        let header = Header { kind, ..Header::put(3) };
        let encoded = header.encode(0, key, &[value]);
        let offset = writer.append(&[encoded.bytes(), key, value]).unwrap();
        writer.publish();
        let guard = epoch::pin();
        show(Reader { space: &space }.view(&guard, offset).unwrap());
    }

    #[test]
    fn a_node_is_read_as_it_was_written() {
        let long = vec![7; 300];
        for keys in [vec![&b""[..]], vec![b"", b"a"], vec![b"a", b"aa", b"b"], vec![b"\0", &long]] {
            let entries: Vec<(&[u8], u64)> =
                keys.iter().enumerate().map(|(at, key)| (*key, 64 + 8 * at as u64)).collect();
            with_record(Kind::Node, keys[0], &encoded(2, &entries), |view| {
                let node = Sealed::of(view).unwrap();
                assert_eq!((node.level, node.len()), (2, keys.len()));
                for (at, (key, offset)) in entries.iter().enumerate() {
                    assert_eq!((node.key(at), node.offset(at)), (*key, *offset));
                }
                let fresh = node.to_fresh();
                let mut value = Vec::new();
                fresh.encode(&mut value);
                assert_eq!(value, encoded(2, &entries));
                assert_eq!(fresh.least(), keys[0]);
                assert_eq!(fresh.record_len(), view.len() as usize);
            });
        }
    }

    #[test]
    fn bytes_that_are_no_node_are_not_taken_for_one() {
        let sound = encoded(0, &[(b"a", 8), (b"bc", 16)]);
        with_record(Kind::Put, b"a", &sound, |view| assert!(Sealed::of(view).is_none()));
        for len in 0..sound.len() {
            with_record(Kind::Node, b"a", &sound[..len], |view| {
                assert!(Sealed::of(view).is_none())
            });
        }
        for (at, byte) in [(0, 65), (4, 0), (4, 200), (28, 1)] {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            with_record(Kind::Node, b"a", &bytes, |view| {
                assert!(Sealed::of(view).is_none(), "{at}")
            });
        }
    }
}
