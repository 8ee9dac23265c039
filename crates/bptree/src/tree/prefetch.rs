//! Prefetches ahead of a call.
//!
//! A caller that is about to read or write a key, and has something else to do first, announces the key
//! ([`Engine::prefetch`](coreplane_engine::Engine::prefetch)): the tree is descended then, and the lines of the
//! leaf are prefetched. The thread remembers where the descent ended, so that the call itself does not repeat it;
//! the call checks, as after any other descent, whether it still leads there
//! ([`Inner::is_current`](crate::inner::Inner::is_current)).

use crate::inner::Descent;
use crate::leaf::tag_of;
use crate::tree::Tree;
use coreplane_pmem::LINE;
use coreplane_record::HEADER;
use std::cell::Cell;

/// Keys up to this length are remembered.
const KEY_LEN_MAX: usize = 24;

/// The number of ways that a thread remembers.
const WAYS_MAX: usize = 4;

/// The number of keys whose leaves are prefetched before the first of them is examined.
const LANE: usize = 16;

/// Lines of a record that are prefetched before its length is known.
const RECORD_LINES: u64 = 2;

/// A key, and where its descent ended.
#[derive(Debug, Clone, Copy)]
struct Way {
    key: [u8; KEY_LEN_MAX],
    len: usize,
    descent: Descent,
}

impl Way {
    const NONE: Self = Self { key: [0; KEY_LEN_MAX], len: 0, descent: Descent::NOWHERE };
}

/// A tree, and the end of a key: these tell most ways apart. Tree 0: no way.
type Digest = (u64, u64);

const NO_DIGEST: Digest = (0, 0);

/// The last ways of a thread. A way is remembered while earlier ones are still to be used, which in a matrix lead
/// to the previous key on several devices.
struct Ways {
    /// The number of ways still to be used: none for a thread that prefetches nothing.
    len: Cell<usize>,
    digests: [Cell<Digest>; WAYS_MAX],
    ways: [Cell<Way>; WAYS_MAX],
    /// The place of the oldest way.
    oldest: Cell<usize>,
}

thread_local! {
    static WAYS: Ways = const { Ways::new() };
}

impl Ways {
    const fn new() -> Self {
        Self {
            len: Cell::new(0),
            digests: [const { Cell::new(NO_DIGEST) }; WAYS_MAX],
            ways: [const { Cell::new(Way::NONE) }; WAYS_MAX],
            oldest: Cell::new(0),
        }
    }

    fn remember(&self, tree: u64, key: &[u8], descent: Descent) {
        let mut way = Way { len: key.len(), descent, ..Way::NONE };
        let Some(room) = way.key.get_mut(..key.len()) else { return };
        room.copy_from_slice(key);
        let at = self.oldest.get();
        self.oldest.set((at + 1) % WAYS_MAX);
        let before = self.digests[at].replace(digest_of(tree, key));
        self.len.set(self.len.get() + usize::from(before == NO_DIGEST));
        self.ways[at].set(way);
    }

    fn recall(&self, tree: u64, key: &[u8], is_used: bool) -> Option<Descent> {
        let digest = digest_of(tree, key);
        let known = |at: &usize| {
            let way = self.ways[*at].get();
            way.key.get(..way.len) == Some(key)
        };
        let at = (0..WAYS_MAX).filter(|at| self.digests[*at].get() == digest).find(known)?;
        if is_used {
            self.digests[at].set(NO_DIGEST);
            self.len.set(self.len.get() - 1);
        }
        Some(self.ways[at].get().descent)
    }
}

#[inline]
fn digest_of(tree: u64, key: &[u8]) -> Digest {
    let end = key.last_chunk().map_or(key.len() as u64, |end| u64::from_le_bytes(*end));
    (tree, end)
}

fn remember(tree: u64, key: &[u8], descent: Descent) {
    WAYS.with(|ways| ways.remember(tree, key, descent));
}

/// Where the descent for a key has ended, if this thread remembers it; forgets it if `is_used`.
#[inline]
fn recall(tree: u64, key: &[u8], is_used: bool) -> Option<Descent> {
    WAYS.with(|ways| if ways.len.get() == 0 { None } else { ways.recall(tree, key, is_used) })
}

impl Tree {
    /// Descends to the leaf that serves `key`, and prefetches the lines that a look at it reads first.
    pub(crate) fn prefetch(&self, key: &[u8]) {
        let tree = self.inner.id();
        if recall(tree, key, false).is_some_and(|way| self.inner.is_current(&way)) {
            return;
        }
        // A stale way must not be found first.
        let _stale = recall(tree, key, true);
        remember(tree, key, self.ask_for(key));
    }

    /// Descends to the leaves of all keys, and prefetches the lines that a look at them reads first; then the
    /// records that they probably have.
    pub(crate) fn prefetch_all(&self, keys: &[&[u8]]) {
        for lane in keys.chunks(LANE).filter(|lane| lane.len() > 1) {
            let mut leaves = [0; LANE];
            for (leaf, key) in leaves.iter_mut().zip(lane) {
                *leaf = self.ask_for(key).leaf;
            }
            for (page, key) in leaves.iter().zip(lane) {
                self.ask_for_old(*page, tag_of(key), RECORD_LINES);
            }
        }
    }

    /// Descends to the leaf that serves `key`, and prefetches the lines that a look at it reads first.
    pub(crate) fn ask_for(&self, key: &[u8]) -> Descent {
        let descent = self.inner.descend(key);
        self.leaves.get(descent.leaf as usize).prefetch();
        self.space.prefetch_page(descent.leaf);
        self.space.prefetch(self.space.start_of(descent.leaf));
        descent
    }

    /// Prefetches the records of a leaf that have this tag.
    fn ask_for_old(&self, page: u32, tag: u8, lines: u64) {
        let leaf = self.leaves.get(page as usize);
        for place in leaf.candidates(tag) {
            let offset = leaf.offset(place);
            let old = self.space.start_of(page) + u64::from(offset);
            (0..lines).for_each(|line| self.space.prefetch(old + line * LINE as u64));
        }
    }

    /// Called a little after [`Tree::prefetch`]: prefetches the lines that a write of `len` bytes for `key` reads,
    /// and those that it writes.
    pub(crate) fn prefetch_to_write(&self, key: &[u8], len: usize) {
        if let Some(descent) = recall(self.inner.id(), key, false) {
            let leaf = self.leaves.get(descent.leaf as usize);
            self.prefetch_leaf((descent.leaf, leaf), (key, tag_of(key)), HEADER + key.len() + len);
        }
    }

    /// Where the remembered descent for `key` has ended; descends if there is none.
    #[inline]
    pub(crate) fn descend(&self, key: &[u8]) -> Descent {
        recall(self.inner.id(), key, true).unwrap_or_else(|| self.inner.descend(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_remembered_for_its_key_and_tree_and_used_once() {
        let is_known = |tree, key: &[u8], is_used| recall(tree, key, is_used).is_some();
        remember(7, b"key", Descent::NOWHERE);
        remember(8, b"other", Descent::NOWHERE);
        assert!(is_known(7, b"key", false) && is_known(7, b"key", true));
        assert!(!is_known(7, b"key", true), "it was used");
        assert!(!is_known(7, b"other", true) && !is_known(8, b"othe", true));
        assert!(is_known(8, b"other", true));
        remember(7, &[1; KEY_LEN_MAX + 1], Descent::NOWHERE);
        assert!(!is_known(7, &[1; KEY_LEN_MAX + 1], true), "too long");
        remember(7, b"", Descent::NOWHERE);
        assert!(is_known(7, b"", true) && !is_known(7, b"", true));
        // Keys with equal ends, and more than are remembered: the oldest are forgotten.
        let keys: Vec<[u8; 12]> = (0..6).map(|at| [at, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]).collect();
        keys.iter().for_each(|key| remember(7, key, Descent::NOWHERE));
        let known: Vec<bool> = keys.iter().map(|key| is_known(7, key, true)).collect();
        assert_eq!(known, [false, false, true, true, true, true]);
        assert_eq!(WAYS.with(|ways| ways.len.get()), 0);
    }
}
