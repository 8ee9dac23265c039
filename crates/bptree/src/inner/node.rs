//! An inner node: which child serves a key.
//!
//! ```text
//!   version   odd while the node is being changed
//!   shape     children | level | length of the prefix
//!   prefix    common prefix of all separators, up to 32 bytes
//!   guides    every eighth head, repeated
//!   heads     of each separator the 8 bytes behind the prefix, as a number that sorts like them
//!   children  one more than heads
//! ```
//!
//! Each field takes one line or several: the guides say which line of heads to look at, so that a node of 64
//! children costs four lines, of which three can be prefetched at once.
//!
//! A reader takes no lock: it loads the version, reads, and loads the version again. All that it reads are atomic
//! words, so that a half-finished change gives it wrong values, which the version reveals. Eight bytes nearly
//! always decide. Where those of a key equal those of a separator that is longer, the whole separators decide; they
//! are behind a lock that only changes take for writing.
//!
//! Separators are as short as the keys on their sides allow, and their common prefix is left out, so that a node of
//! long keys that begin alike is as quick as one of short keys.

use crate::kernel;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The maximum number of children.
pub(crate) const FANOUT: usize = 64;

/// Lines of heads. Below: heads in a line.
const LINES: usize = 8;
const IN_LINE: usize = FANOUT / LINES;

/// The value of an unused head: no key has a greater one.
const UNUSED: u64 = u64::MAX;

/// The maximum length of the common prefix that is left out.
const PREFIX_MAX: usize = 32;

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    version: AtomicU64,
    shape: AtomicU64,
    prefix: [AtomicU64; PREFIX_MAX / 8],
    /// A bit for each separator that its head represents completely: behind the prefix it has at most eight bytes,
    /// and does not end with a zero. A key with the same head is not below it.
    told: AtomicU64,
    _rest_of_line: u64,
    guides: [AtomicU64; LINES],
    /// Behind the heads of the separators: [`UNUSED`], which the last one always is.
    heads: [AtomicU64; FANOUT],
    children: [AtomicU32; FANOUT],
    separators: RwLock<Vec<Box<[u8]>>>,
}

/// The new content of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// 0: its children are leaves.
    pub(crate) level: u8,
    /// The least key of each child but the first.
    pub(crate) separators: Vec<Box<[u8]>>,
    pub(crate) children: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    children: usize,
    level: u8,
    prefix_len: usize,
}

impl Shape {
    fn to_word(self) -> u64 {
        self.children as u64 | u64::from(self.level) << 16 | (self.prefix_len as u64) << 24
    }

    /// Decodes any word: a word read during a change must not lead out of bounds.
    fn from_word(word: u64) -> Self {
        Self {
            children: (word as usize & 0xffff).clamp(1, FANOUT),
            level: (word >> 16) as u8,
            prefix_len: ((word >> 24) as usize & 0xff).min(PREFIX_MAX),
        }
    }
}

/// The 8 bytes of `key` from `at` on, zeroes behind its end, so that words sort as bytes do.
#[inline]
pub(crate) fn word_at(key: &[u8], at: usize) -> u64 {
    match key.get(at..) {
        Some([a, b, c, d, e, f, g, h, ..]) => u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        Some(rest) => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
        None => 0,
    }
}

/// True if the head represents all of a separator: see [`Node::told`].
fn is_told(separator: &[u8], prefix_len: usize) -> bool {
    let rest = &separator[prefix_len..];
    rest.len() <= 8 && rest.last() != Some(&0)
}

/// A bit for each separator that its head represents completely.
fn told_of(separators: &[Box<[u8]>], prefix_len: usize) -> u64 {
    let bits = separators.iter().map(|separator| u64::from(is_told(separator, prefix_len)));
    bits.enumerate().map(|(at, bit)| bit << at).sum()
}

/// Bytes of DRAM that separators take.
fn bytes_of(separators: &[Box<[u8]>]) -> i64 {
    separators.iter().map(|it| (it.len() + size_of::<Box<[u8]>>()) as i64).sum()
}

/// The common prefix of all separators.
fn common_prefix(separators: &[Box<[u8]>]) -> &[u8] {
    let [first, .., last] = separators else {
        return separators.first().map_or(&[], |only| only);
    };
    // They are sorted.
    let len = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
    &first[..len]
}

impl Content {
    /// Takes the upper half off: returns its least key, and the rest.
    pub(crate) fn split_off(&mut self) -> (Box<[u8]>, Self) {
        let half = self.children.len() / 2;
        let children = self.children.split_off(half);
        let separators = self.separators.split_off(half);
        let middle = self.separators.pop().unwrap_or_default();
        (middle, Self { level: self.level, separators, children })
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            shape: AtomicU64::new(1),
            prefix: Default::default(),
            told: AtomicU64::new(0),
            _rest_of_line: 0,
            guides: std::array::from_fn(|_| AtomicU64::new(UNUSED)),
            heads: std::array::from_fn(|_| AtomicU64::new(UNUSED)),
            children: std::array::from_fn(|_| AtomicU32::new(0)),
            separators: RwLock::default(),
        }
    }

    /// A version at which no change was going on.
    #[inline]
    pub(crate) fn stable(&self) -> u64 {
        let mut backoff = coreplane_pmem::spin::Backoff::new();
        loop {
            let version = kernel::look(&self.version);
            if version & 1 == 0 {
                return version;
            }
            backoff.wait();
        }
    }

    /// True if nothing has changed since `version` was loaded.
    #[inline]
    pub(crate) fn is_at(&self, version: u64) -> bool {
        kernel::is_at(&self.version, version, 0)
    }

    /// The child that serves `key`, and the level of the node; valid if the version is unchanged.
    #[inline]
    pub(crate) fn child_of(&self, key: &[u8]) -> (u32, u8) {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        let at = self.position(shape, key).unwrap_or_else(|| self.exact_position(key));
        (self.children[at.min(FANOUT - 1)].load(Ordering::Relaxed), shape.level)
    }

    /// As [`Node::child_of`], of the child that serves the greatest keys below `key`.
    pub(crate) fn child_before(&self, key: &[u8]) -> (u32, u8) {
        let level = Shape::from_word(self.shape.load(Ordering::Relaxed)).level;
        let at = self.separators.read().partition_point(|separator| &**separator < key);
        (self.children[at.min(FANOUT - 1)].load(Ordering::Relaxed), level)
    }

    /// As [`Node::child_of`], of the last child.
    pub(crate) fn last_child(&self) -> (u32, u8) {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        (self.children[shape.children - 1].load(Ordering::Relaxed), shape.level)
    }

    /// The number of separators that are not above `key`; none if eight bytes do not decide.
    #[inline]
    fn position(&self, shape: Shape, key: &[u8]) -> Option<usize> {
        let separators = shape.children - 1;
        if key.len() < shape.prefix_len {
            return None;
        }
        for at in (0..shape.prefix_len).step_by(8) {
            let cut = 8 * (8 - (shape.prefix_len - at).min(8));
            let prefix = self.prefix[at / 8].load(Ordering::Relaxed);
            let mine = word_at(key, at) >> cut << cut;
            if mine != prefix {
                return Some(if mine < prefix { 0 } else { separators });
            }
        }
        let head = word_at(key, shape.prefix_len);
        // Counts the lines that end with a head that is not above it, and then the heads of one line: as many of
        // both in every node, so that there is no branch to predict. Heads behind the last separator count only for
        // a key that no head is above.
        let above = |word: &AtomicU64| word.load(Ordering::Relaxed) > head;
        let line = self.guides[..LINES - 1].iter().filter(|guide| !above(guide)).count();
        let first = line * IN_LINE;
        coreplane_pmem::arch::prefetch(&self.children[first]);
        let rest = &self.heads.as_chunks::<IN_LINE>().0[line];
        let from = (first + rest.iter().filter(|head| !above(head)).count()).min(separators);
        let is_tie = from > 0 && self.heads[from - 1].load(Ordering::Relaxed) == head;
        // Of several separators with that head the last is no shorter than the others.
        let is_told = || self.told.load(Ordering::Relaxed) >> (from - 1) & 1 == 1;
        (!is_tie || is_told()).then_some(from)
    }

    #[cold]
    fn exact_position(&self, key: &[u8]) -> usize {
        self.separators.read().partition_point(|separator| &**separator <= key)
    }

    /// The place of the child that serves `key`, that child, and the level of the node. Only for a caller that may
    /// change the node.
    pub(crate) fn step(&self, key: &[u8]) -> (usize, u32, u8) {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        let at = self.position(shape, key).unwrap_or_else(|| self.exact_position(key));
        (at, self.children[at].load(Ordering::Relaxed), shape.level)
    }

    /// Replaces one child by two, if there is room, and returns the bytes of the separator; otherwise gives the
    /// separator back.
    pub(crate) fn insert(
        &self,
        at: usize,
        left: u32,
        separator: Box<[u8]>,
        right: u32,
    ) -> Result<i64, Box<[u8]>> {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        if shape.children == FANOUT {
            return Err(separator);
        }
        let bytes = bytes_of(std::slice::from_ref(&separator));
        self.begin();
        let mut separators = self.separators.write();
        separators.insert(at, separator);
        let prefix = common_prefix(&separators);
        let prefix_len = prefix.len().min(PREFIX_MAX);
        let prefix = &prefix[..prefix_len];
        // The other heads stay as they are, unless the common prefix is shorter now. Those behind the new one are
        // moved instead of computed, since the separators themselves are in no cache.
        let from = if prefix_len == shape.prefix_len { at } else { 0 };
        if prefix_len == shape.prefix_len {
            for head in (at..shape.children - 1).rev() {
                let moved = self.heads[head].load(Ordering::Relaxed);
                self.heads[head + 1].store(moved, Ordering::Relaxed);
            }
            self.heads[at].store(word_at(&separators[at], prefix_len), Ordering::Relaxed);
        } else {
            for (head, separator) in self.heads.iter().zip(separators.iter()) {
                head.store(word_at(separator, prefix_len), Ordering::Relaxed);
            }
        }
        let told = if from == 0 {
            told_of(&separators, prefix_len)
        } else {
            let before = self.told.load(Ordering::Relaxed);
            let below = before & ((1 << at) - 1);
            below | u64::from(is_told(&separators[at], prefix_len)) << at | (before - below) << 1
        };
        self.told.store(told, Ordering::Relaxed);
        self.set_guides();
        for (word, at) in self.prefix.iter().zip((0..).step_by(8)) {
            word.store(word_at(prefix, at), Ordering::Relaxed);
        }
        for child in (at + 1..shape.children).rev() {
            let moved = self.children[child].load(Ordering::Relaxed);
            self.children[child + 1].store(moved, Ordering::Relaxed);
        }
        self.children[at].store(left, Ordering::Relaxed);
        self.children[at + 1].store(right, Ordering::Relaxed);
        let children = shape.children + 1;
        let shape = Shape { children, level: shape.level, prefix_len };
        self.shape.store(shape.to_word(), Ordering::Relaxed);
        drop(separators);
        self.end();
        Ok(bytes)
    }

    /// The separator behind the child at a place; none if that is the last. As [`Node::step`].
    pub(crate) fn separator(&self, at: usize) -> Option<Box<[u8]>> {
        self.separators.read().get(at).cloned()
    }

    /// The level of the node, and its children. As [`Node::step`].
    pub(crate) fn children(&self) -> (u8, impl Iterator<Item = u32>) {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        let children = &self.children[..shape.children];
        (shape.level, children.iter().map(|child| child.load(Ordering::Relaxed)))
    }

    /// The content of the node. Only for a caller that may change the node.
    pub(crate) fn content(&self) -> Content {
        let shape = Shape::from_word(self.shape.load(Ordering::Relaxed));
        let children = &self.children[..shape.children];
        Content {
            level: shape.level,
            separators: self.separators.read().clone(),
            children: children.iter().map(|child| child.load(Ordering::Relaxed)).collect(),
        }
    }

    /// Changes one child.
    pub(crate) fn replace_child(&self, at: usize, child: u32) {
        self.begin();
        self.children[at].store(child, Ordering::Relaxed);
        self.end();
    }

    /// From here to [`Node::end`] readers wait. One thread changes nodes at a time.
    pub(crate) fn begin(&self) {
        let version = self.version.load(Ordering::Relaxed);
        debug_assert!(version & 1 == 0, "two changes at a time");
        kernel::begin(&self.version, version + 1);
    }

    /// Ends the change: a reader that has read in between looks again.
    pub(crate) fn end(&self) {
        let version = self.version.load(Ordering::Relaxed);
        kernel::end(&self.version, version + 1);
    }

    /// Replaces the whole content of a node whose change has begun. The content fits. Returns the bytes that its
    /// separators take more than before.
    pub(crate) fn set(&self, content: Content) -> i64 {
        debug_assert!((1..=FANOUT).contains(&content.children.len()));
        debug_assert_eq!(content.separators.len() + 1, content.children.len());
        debug_assert!(content.separators.is_sorted());
        let prefix = common_prefix(&content.separators);
        let prefix = &prefix[..prefix.len().min(PREFIX_MAX)];
        let shape = Shape {
            children: content.children.len(),
            level: content.level,
            prefix_len: prefix.len(),
        };
        self.shape.store(shape.to_word(), Ordering::Relaxed);
        for (at, word) in self.prefix.iter().enumerate() {
            word.store(word_at(prefix, 8 * at), Ordering::Relaxed);
        }
        let heads = content.separators.iter().map(|separator| word_at(separator, prefix.len()));
        for (word, head) in self.heads.iter().zip(heads.chain(std::iter::repeat(UNUSED))) {
            word.store(head, Ordering::Relaxed);
        }
        self.told.store(told_of(&content.separators, prefix.len()), Ordering::Relaxed);
        self.set_guides();
        for (to, child) in self.children.iter().zip(&content.children) {
            to.store(*child, Ordering::Relaxed);
        }
        let bytes = bytes_of(&content.separators);
        let before = std::mem::replace(&mut *self.separators.write(), content.separators);
        bytes - bytes_of(&before)
    }

    fn set_guides(&self) {
        for (guide, line) in self.guides.iter().zip(self.heads.chunks(IN_LINE)) {
            guide.store(line[IN_LINE - 1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Prefetches the lines with which every look at the node begins.
    #[inline]
    pub(crate) fn prefetch(&self) {
        coreplane_pmem::arch::prefetch(&self.version);
        coreplane_pmem::arch::prefetch(&self.guides);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node_of(mut separators: Vec<Vec<u8>>) -> (Node, Vec<Vec<u8>>) {
        separators.sort_unstable();
        separators.dedup();
        separators.truncate(FANOUT - 1);
        let node = Node::new();
        node.set(Content {
            level: 3,
            separators: separators.iter().map(|it| it.clone().into_boxed_slice()).collect(),
            children: (100..=100 + separators.len() as u32).collect(),
        });
        (node, separators)
    }

    /// Keys of few different bytes, zero among them, and prefixes of each other.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(b'a'), Just(255)];
        (0_usize..3, proptest::collection::vec(byte, 0..14)).prop_map(|(long, rest)| {
            let mut key = vec![b'p'; [0, 11, 40][long]];
            key.extend(rest);
            key
        })
    }

    proptest! {
        #[test]
        fn the_child_is_the_one_between_whose_separators_a_key_is(
            separators in proptest::collection::vec(key(), 0..63),
            keys in proptest::collection::vec(key(), 1..200),
        ) {
            let (grown, mut sorted) = (Node::new(), Vec::<Vec<u8>>::new());
            grown.set(Content { level: 0, separators: vec![], children: vec![0] });
            for separator in &separators {
                if let Err(at) = sorted.binary_search(separator) {
                    sorted.insert(at, separator.clone());
                    grown.insert(at, 0, separator.clone().into_boxed_slice(), 0).unwrap();
                }
            }
            for key in keys.iter().chain(&separators) {
                let at = sorted.partition_point(|separator| separator <= key);
                prop_assert_eq!(grown.step(key).0, at);
            }
            let (node, separators) = node_of(separators);
            for key in keys.iter().chain(&separators) {
                let at = separators.partition_point(|separator| separator <= key);
                prop_assert_eq!(node.child_of(key), (100 + at as u32, 3));
                let before = separators.partition_point(|separator| separator < key);
                prop_assert_eq!(node.child_before(key), (100 + before as u32, 3));
            }
            prop_assert_eq!(node.last_child(), (100 + separators.len() as u32, 3));
            let content = node.content();
            node.set(content.clone());
            prop_assert_eq!(node.content(), content);
        }
    }

    #[test]
    fn keys_that_begin_alike_need_no_lock() {
        let keys = (0..63_u32).map(|number| format!("device/sensor/{number:08}").into_bytes());
        let (node, separators) = node_of(keys.collect());
        let _changing = node.separators.write();
        for (at, separator) in separators.iter().enumerate() {
            let above = [separator, b"~".as_slice()].concat();
            assert_eq!(node.child_of(&above), (100 + at as u32 + 1, 3));
            assert_eq!(node.child_of(separator), (100 + at as u32 + 1, 3));
        }
        assert_eq!(node.child_of(b"device/r without an end"), (100, 3));
        assert_eq!(node.child_of(b"device/t without an end"), (163, 3));
    }

    #[test]
    fn the_greatest_heads_are_not_taken_for_those_that_are_none() {
        for below in 0..60_u32 {
            let greatest = [vec![255; 8], vec![255; 8 + 1]];
            let separators = (0..below).map(|it| it.to_be_bytes().to_vec()).chain(greatest);
            let (node, separators) = node_of(separators.collect());
            for len in 0..12 {
                let key = vec![255; len];
                let at = separators.partition_point(|separator| *separator <= key);
                assert_eq!(node.child_of(&key), (100 + at as u32, 3), "{len} over {below}");
            }
        }
    }

    #[test]
    fn a_change_is_seen_by_the_version() {
        let (node, _) = node_of(vec![b"m".to_vec()]);
        let version = node.stable();
        assert!(node.is_at(version));
        node.replace_child(1, 7);
        assert!(!node.is_at(version));
        assert_eq!(node.child_of(b"z"), (7, 3));
    }
}
