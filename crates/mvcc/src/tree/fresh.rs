//! Nodes that were made or changed since the last commit: in DRAM, and changed in place.
//!
//! A link leads to the record or node below an entry: a sealed record, or a fresh node. No sealed node leads to a
//! fresh one, so the fresh nodes are the top of the tree.

use super::node::{self, HEAD, PER_ENTRY};
use crate::key::Key;
use coreplane_record::Header;

/// The target of an entry. In a leaf it is a record of a key, and always sealed.
#[derive(Debug)]
pub(super) enum Link {
    Sealed(u64),
    Fresh(Box<Node>),
}

impl Link {
    pub(super) fn as_ref(&self) -> LinkRef<'_> {
        match self {
            Self::Sealed(offset) => LinkRef::Sealed(*offset),
            Self::Fresh(node) => LinkRef::Fresh(node),
        }
    }
}

/// The same, borrowed.
#[derive(Debug, Clone, Copy)]
pub(super) enum LinkRef<'a> {
    Sealed(u64),
    Fresh(&'a Node),
}

/// A key and its target: in a leaf the record of the key, above it the node with this key and greater ones.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) to: Link,
}

/// A fresh node. It has at least one entry, except while it is changed.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Levels below it; a leaf has level 0.
    pub(super) level: u32,
    /// In the order of their keys.
    pub(super) entries: Vec<Entry>,
}

/// Nodes for reuse.
pub(super) type Spare = Vec<Box<Node>>;

/// The limits of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Entries.
    pub(super) fan_out: usize,
    /// Bytes of its record, which has to fit one page.
    pub(super) bytes: usize,
}

impl Node {
    pub(super) fn least(&self) -> &[u8] {
        self.entries.first().map_or(&[], |entry| &entry.key)
    }

    /// Bytes of its record.
    pub(super) fn record_len(&self) -> usize {
        record_len(&self.entries)
    }

    /// Encodes the value of its record.
    pub(super) fn encode(&self, value: &mut Vec<u8>) {
        let offset_of = |entry: &Entry| match &entry.to {
            Link::Sealed(offset) => *offset,
            Link::Fresh(_) => 0,
        };
        let entries = self.entries.iter().map(|entry| (&*entry.key, offset_of(entry)));
        node::encode(self.level, entries, value);
    }

    /// The entry under which a key belongs; the first if it belongs under none.
    pub(super) fn child_for(&self, key: &[u8]) -> usize {
        self.not_above(key).saturating_sub(1)
    }

    /// The number of entries whose keys are not above `key`.
    pub(super) fn not_above(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|entry| !node::is_above(&entry.key, key))
    }

    /// Takes off the greater half if the node is too large, as an entry for the node above.
    ///
    /// A node that fitted has got one more entry, of at most a quarter of a page: so there is a place where both
    /// halves fit and have at least two entries, and the most even one is taken.
    pub(super) fn split(&mut self, limits: Limits) -> Option<Entry> {
        let fits = self.entries.len() <= limits.fan_out && self.record_len() <= limits.bytes;
        if fits || self.entries.len() < 4 {
            return None;
        }
        let len = |range: &[Entry]| record_len(range);
        let larger = |at: &usize| {
            let (left, right) = self.entries.split_at(*at);
            let count = left.len().max(right.len());
            // Too many entries are better than too many bytes.
            let (bytes, many) = (len(left).max(len(right)), count > limits.fan_out);
            (bytes > limits.bytes, many, bytes, count)
        };
        let at = (2..self.entries.len() - 1).min_by_key(larger)?;
        let entries = self.entries.split_off(at);
        let key = entries.first().map(|entry| entry.key.clone())?;
        Some(Entry { key, to: Link::Fresh(Box::new(Self { level: self.level, entries })) })
    }

    /// Shows the lengths of the records of all fresh nodes from here on down.
    pub(super) fn lengths(&self, show: &mut dyn FnMut(usize)) {
        show(self.record_len());
        for entry in &self.entries {
            if let Link::Fresh(node) = &entry.to {
                node.lengths(show);
            }
        }
    }
}

fn record_len(entries: &[Entry]) -> usize {
    let keys: usize = entries.iter().map(|entry| entry.key.len()).sum();
    Header::put(0).record_len(&[], HEAD + PER_ENTRY * entries.len() + keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(lengths: &[usize]) -> Node {
        let entry = |(at, len): (usize, &usize)| {
            let mut key = vec![0; (*len).max(2)];
            key[..2].copy_from_slice(&(at as u16).to_be_bytes());
            Entry { key: Key::new(&key), to: Link::Sealed(8 * at as u64) }
        };
        Node { level: 0, entries: lengths.iter().enumerate().map(entry).collect() }
    }

    const LIMITS: Limits = Limits { fan_out: 7, bytes: 1024 };

    #[test]
    fn a_node_of_eight_is_split_in_the_middle() {
        assert!(leaf(&[9; 7]).split(LIMITS).is_none());
        let mut left = leaf(&[9; 8]);
        let right = left.split(LIMITS).unwrap();
        let Link::Fresh(node) = &right.to else { panic!("sealed") };
        assert_eq!((left.entries.len(), node.entries.len()), (4, 4));
        assert_eq!(&*right.key, node.least());
    }

    #[test]
    fn a_node_that_fits_no_page_is_split_where_both_halves_do() {
        let longest = (LIMITS.bytes - 28 - 8) / 4 - PER_ENTRY;
        assert!(leaf(&[longest; 4]).split(LIMITS).is_none(), "four of the longest fit a page");
        let short = [9, 9, longest, longest, longest, longest];
        let mixed = [longest, 9, longest, longest, longest, longest, 9];
        for lengths in [&[longest; 5][..], &[longest; 6], &short, &mixed] {
            let mut left = leaf(lengths);
            let right = left.split(LIMITS).unwrap();
            let Link::Fresh(node) = right.to else { panic!("sealed") };
            for half in [&left, &node] {
                assert!(half.record_len() <= LIMITS.bytes && half.entries.len() > 1, "{lengths:?}");
            }
            assert_eq!(left.entries.len() + node.entries.len(), lengths.len());
        }
    }
}
