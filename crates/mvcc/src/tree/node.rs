//! A node as a record.
//!
//! ```text
//!   key     the least key of the node
//!   value   level (32) | entries (32)
//!           offset (64) of the target of each entry
//!           end (32) of each entry's key among the keys
//!           the keys one after the other, without the first
//! ```
//!
//! The cleaner finds the path from the root to a node, if there is one, by the level and the least key.

use super::fresh::{Entry, Link, Node};
use coreplane_pmem::PageBytes;
use coreplane_record::{Form, HEADER, Kind, VERSION};

// media-format: begin pool
/// Bytes before the entries.
pub(super) const HEAD: usize = 8;
/// Bytes of an entry beside its key.
pub(super) const PER_ENTRY: usize = 12;

/// Replaces the contents of `value` with the value of a node's record.
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

/// The highest level: a tree of more levels would not fit any medium.
const LEVEL_MAX: u32 = 64;

/// A sealed node: its bytes, and the places of its parts in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealed<'a> {
    pub(super) offset: u64,
    pub(super) level: u32,
    count: u32,
    /// Where the offsets of the entries begin.
    entries: u32,
    /// From the header to the end of the value.
    bytes: &'a [u8],
}

#[inline(always)]
fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

#[inline(always)]
fn word64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}

impl<'a> Sealed<'a> {
    /// The node at `offset`, which is in this page; none if there is no node. Its checksum is not verified.
    #[inline(always)]
    pub(super) fn at(page: &PageBytes<'a>, offset: u64) -> Option<Self> {
        let within = (offset - page.start()) as u32;
        let form = Form::of(page.get(within, HEADER)?)?;
        // A node has neither expiry nor sequence.
        if form.kind != Kind::Node || form.head != HEADER {
            return None;
        }
        let bytes = page.get(within, form.len())?;
        let value = HEADER + form.key_len;
        let (level, count) = (word32(bytes, value), word32(bytes, value + 4));
        let entries = value + HEAD;
        let room = bytes.len().checked_sub(entries)?;
        if count == 0 || level > LEVEL_MAX || room / PER_ENTRY < count as usize {
            return None;
        }
        let node = Self { offset, level, count, entries: entries as u32, bytes };
        // The end of the last key is the end of the node.
        (node.end(count as usize - 1) + node.keys() == bytes.len()).then_some(node)
    }

    /// Where the keys begin.
    #[inline(always)]
    fn keys(&self) -> usize {
        self.entries as usize + PER_ENTRY * self.count as usize
    }

    /// Where the key of an entry ends among the keys.
    #[inline(always)]
    fn end(&self, at: usize) -> usize {
        word32(self.bytes, self.entries as usize + 8 * self.count as usize + 4 * at) as usize
    }

    /// The number of entries.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes of its record, padding included.
    #[inline]
    pub(super) fn record_len(&self) -> u32 {
        self.bytes.len().next_multiple_of(8) as u32
    }

    /// The version of its record.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        word64(self.bytes, VERSION)
    }

    #[inline(always)]
    pub(super) fn key(&self, at: usize) -> &'a [u8] {
        let (from, to) = match at {
            0 => (HEADER, self.entries as usize - HEAD),
            _ => (self.keys() + self.end(at - 1), self.keys() + self.end(at)),
        };
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// The offset that an entry leads to.
    #[inline(always)]
    pub(super) fn offset_of(&self, at: usize) -> u64 {
        word64(self.bytes, self.entries as usize + 8 * at)
    }

    /// The number of entries whose keys are not above `key`.
    #[inline(always)]
    pub(super) fn not_above(&self, key: &[u8]) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            if is_above(self.key(middle), key) { to = middle } else { from = middle + 1 }
        }
        from
    }

    /// Makes a fresh node a copy of this one.
    pub(super) fn to_fresh(self, node: &mut Node) {
        let entry = |at| Entry { key: self.key(at).into(), to: Link::Sealed(self.offset_of(at)) };
        node.level = self.level;
        node.entries.clear();
        // One more entry is inserted before a split.
        node.entries.reserve(self.len() + 1);
        node.entries.extend((0..self.len()).map(entry));
    }
}

/// True if the first key is above the second. Word by word: most keys are too short for a call.
#[inline(always)]
pub(super) fn is_above(mut this: &[u8], mut other: &[u8]) -> bool {
    while let (Some((a, rest)), Some((b, other_rest))) =
        (this.split_first_chunk::<8>(), other.split_first_chunk::<8>())
    {
        if a != b {
            return u64::from_be_bytes(*a) > u64::from_be_bytes(*b);
        }
        (this, other) = (rest, other_rest);
    }
    while let (Some((a, rest)), Some((b, other_rest))) = (this.split_first(), other.split_first()) {
        if a != b {
            return a > b;
        }
        (this, other) = (rest, other_rest);
    }
    this.len() > other.len()
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
    use coreplane_record::Header;
    use std::sync::Arc;

    /// Writes a record to memory, and shows it.
    fn with_record(kind: Kind, key: &[u8], value: &[u8], show: impl FnOnce(Option<Sealed<'_>>)) {
        let options = SpaceOptions { page_size: 4096, reserve: 1 << 20, own_epochs: false };
        let space = Arc::new(Space::dram(1 << 20, &options).unwrap());
        let mut writer = space.claim_log(1).unwrap();
        let header = Header { kind, ..Header::put(3) };
        let encoded = header.encode(0, key, &[value]);
        let offset = writer.append(&[encoded.bytes(), key, value]).unwrap();
        writer.publish();
        let guard = epoch::pin();
        show(Sealed::at(&space.page_at(&guard, offset).unwrap(), offset));
    }

    #[test]
    fn a_node_is_read_as_it_was_written() {
        let long = vec![7; 300];
        for keys in [vec![&b""[..]], vec![b"", b"a"], vec![b"a", b"aa", b"b"], vec![b"\0", &long]] {
            let entries: Vec<(&[u8], u64)> =
                keys.iter().enumerate().map(|(at, key)| (*key, 64 + 8 * at as u64)).collect();
            with_record(Kind::Node, keys[0], &encoded(2, &entries), |node| {
                let node = node.unwrap();
                assert_eq!((node.level, node.len()), (2, keys.len()));
                for (at, (key, offset)) in entries.iter().enumerate() {
                    assert_eq!((node.key(at), node.offset_of(at)), (*key, *offset));
                }
                let mut fresh = Node::default();
                node.to_fresh(&mut fresh);
                let mut value = Vec::new();
                fresh.encode(&mut value);
                assert_eq!(value, encoded(2, &entries));
                assert_eq!(fresh.least(), keys[0]);
                assert_eq!(fresh.record_len(), node.record_len() as usize);
            });
        }
    }

    #[test]
    fn bytes_that_are_no_node_are_not_taken_for_one() {
        let sound = encoded(0, &[(b"a", 8), (b"bc", 16)]);
        with_record(Kind::Put, b"a", &sound, |node| assert!(node.is_none()));
        for len in 0..sound.len() {
            with_record(Kind::Node, b"a", &sound[..len], |node| assert!(node.is_none()));
        }
        for (at, byte) in [(0, 65), (4, 0), (4, 200), (28, 1)] {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            with_record(Kind::Node, b"a", &bytes, |node| assert!(node.is_none(), "{at}"));
        }
    }

    #[test]
    fn keys_are_compared_as_their_bytes_are() {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for len in [0, 1, 7, 8, 9, 16, 17, 30] {
            for byte in [0, 1, 255] {
                all.push(vec![byte; len]);
                all.push([vec![byte; len], vec![0]].concat());
                all.push([vec![byte; len], vec![9, 0, 255]].concat());
            }
        }
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |it| (one, it))) {
            assert_eq!(is_above(one, other), one > other, "{one:?} {other:?}");
        }
    }
}
