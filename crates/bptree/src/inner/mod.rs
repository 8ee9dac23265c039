//! The inner nodes: from a key to its leaf.
//!
//! ```text
//!                     ┌──────────┐
//!                     │   node   │ level 1        DRAM; nothing here survives
//!                     └─┬──────┬─┘
//!              ┌────────▼─┐  ┌─▼────────┐
//!              │   node   │  │   node   │ level 0
//!              └─┬──┬───┬─┘  └─┬──┬───┬─┘
//!                ▼  ▼   ▼      ▼  ▼   ▼
//!               leaves: pages of the pool        the store itself
//! ```
//!
//! **Readers** go down without a lock (*optimistic lock coupling*): of each node they load the version, find the
//! child, load the child's version, and then check that the parent's version is unchanged. So when a reader holds
//! the version of a child, it was the right child at that moment. The leaf is handled in the same way:
//! [`Inner::descend`] returns the node that named it, and [`Inner::is_current`], called after the leaf's own
//! version was loaded, tells whether that node still names it.
//!
//! **Changes** come one at a time, under one lock. They are rare: a leaf is split, merged or rewritten once in
//! dozens of writes, and the change of the node is the shortest part of that.
//!
//! An emptied node is reused for another; its version goes on counting, so that a late reader notices.

mod bounds;
mod node;
mod siblings;

use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::spin;
pub(crate) use node::word_at;
use node::{Content, FANOUT, Node};
use parking_lot::Mutex;
pub(crate) use siblings::Siblings;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Nodes that are allocated together, 4 MiB; fewer in a small pool.
pub(crate) const CHUNK: usize = 4096;

/// A leaf, and the node that named it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descent {
    /// The leaf's page.
    pub(crate) leaf: u32,
    node: u32,
    version: u64,
}

/// A separator and the leaf behind it.
pub(crate) type Bound = (Box<[u8]>, u32);

#[derive(Debug)]
pub(crate) struct Inner {
    id: u64,
    nodes: Chunked<Node>,
    root: AtomicU32,
    /// Bytes of all separators.
    separator_bytes: AtomicI64,
    spare: Mutex<Spare>,
}

/// Nodes that are not in use. The lock is held by the thread that changes the tree.
#[derive(Debug, Default)]
struct Spare {
    free: Vec<u32>,
    /// Nodes from this number on were never used.
    fresh: u32,
}

/// The path to a child that is about to change: for each level, from the root on, the node and the place of the
/// child in it.
type Path = Vec<(u32, usize)>;

impl Descent {
    /// A descent in no tree.
    pub(crate) const NOWHERE: Self = Self { leaf: 0, node: 0, version: 0 };
}

/// The number of trees so far.
static TREES: AtomicU64 = AtomicU64::new(0);

impl Inner {
    /// A number that no other tree of the process has had, and that is not 0.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// A tree of one leaf, with room for the inner nodes of `leaves_max` leaves, of which `chunk` are made at a time.
    pub(crate) fn new(leaf: u32, leaves_max: usize, chunk: usize) -> Self {
        // Enough even if each node has only one child.
        let nodes = Chunked::new(2 * leaves_max + 64, chunk, Node::new);
        let id = TREES.fetch_add(1, Ordering::Relaxed) + 1;
        let (root, separator_bytes) = (AtomicU32::new(0), AtomicI64::new(0));
        let inner = Self { id, nodes, root, separator_bytes, spare: Mutex::default() };
        inner.build(leaf, Vec::new());
        inner
    }

    fn node(&self, number: u32) -> &Node {
        self.nodes.get(number as usize)
    }

    fn set(&self, number: u32, content: Content) {
        self.count_separators(self.node(number).set(content));
    }

    /// Counts bytes of separators that have come, or gone.
    fn count_separators(&self, bytes: i64) {
        self.separator_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// As [`Inner::build`], of at least one leaf, each with its least key.
    pub(crate) fn build_all(&self, leaves: Vec<Bound>) {
        let mut leaves = leaves.into_iter();
        let first = leaves.next().map_or(0, |(_, page)| page);
        self.build(first, leaves.collect());
    }

    /// Replaces the whole tree: `first` serves all keys below the first bound, and the leaf of each bound the keys
    /// from it on. Bounds are sorted. Not called beside any reader.
    pub(crate) fn build(&self, first: u32, bounds: Vec<Bound>) {
        let mut spare = spin::lock(&self.spare);
        *spare = Spare::default();
        let (mut first, mut bounds, mut level) = (first, bounds, 0);
        loop {
            let (node, above) = self.build_level(&mut spare, first, bounds, level);
            if above.is_empty() {
                self.root.store(node, Ordering::Release);
                return;
            }
            (first, bounds, level) = (node, above, level + 1);
        }
    }

    /// Builds one level over the children; returns its nodes, as children of the next level.
    fn build_level(
        &self,
        spare: &mut Spare,
        first: u32,
        bounds: Vec<Bound>,
        level: u8,
    ) -> (u32, Vec<Bound>) {
        // Three quarters full, so that the first inserts do not split all of them.
        const FILL: usize = FANOUT * 3 / 4;
        let mut content = Content { level, separators: Vec::new(), children: vec![first] };
        let (mut leftmost, mut pending) = (None, None);
        let mut above = Vec::new();
        let mut finish = |pending: Option<Box<[u8]>>, content: Content| {
            let node = spare.take();
            self.set(node, content);
            match pending {
                None => leftmost = Some(node),
                Some(separator) => above.push((separator, node)),
            }
        };
        for (separator, child) in bounds {
            if content.children.len() == FILL {
                finish(pending.take(), std::mem::take(&mut content));
                content = Content { level, separators: Vec::new(), children: vec![child] };
                pending = Some(separator);
            } else {
                content.separators.push(separator);
                content.children.push(child);
            }
        }
        finish(pending, content);
        (leftmost.unwrap_or_default(), above)
    }

    /// The leaf that serves `key`.
    #[inline]
    pub(crate) fn descend(&self, key: &[u8]) -> Descent {
        self.descend_by(|node| node.child_of(key))
    }

    /// The leaf that serves the greatest keys below `key`, or the greatest of all if `key` is none.
    pub(crate) fn descend_before(&self, key: Option<&[u8]>) -> Descent {
        self.descend_by(|node| match key {
            Some(key) => node.child_before(key),
            None => node.last_child(),
        })
    }

    #[inline]
    fn descend_by(&self, choose: impl Fn(&Node) -> (u32, u8)) -> Descent {
        'again: loop {
            let mut number = self.root.load(Ordering::Acquire);
            let mut node = self.node(number);
            let mut version = node.stable();
            if self.root.load(Ordering::Acquire) != number {
                continue;
            }
            loop {
                let (child, level) = choose(node);
                // Checked before the child is visited: data read during a change names no child.
                if !node.is_at(version) {
                    continue 'again;
                }
                if level == 0 {
                    return Descent { leaf: child, node: number, version };
                }
                let below = self.node(child);
                below.prefetch();
                let seen = below.stable();
                if !node.is_at(version) {
                    continue 'again;
                }
                (number, node, version) = (child, below, seen);
            }
        }
    }

    /// True if the node that named the leaf has not changed since.
    #[inline]
    pub(crate) fn is_current(&self, descent: &Descent) -> bool {
        self.node(descent.node).is_at(descent.version)
    }

    /// The path to the child that serves `key`. Under the lock.
    fn path(&self, key: &[u8]) -> Path {
        let mut path = Path::new();
        let mut number = self.root.load(Ordering::Acquire);
        loop {
            let (at, child, level) = self.node(number).step(key);
            path.push((number, at));
            if level == 0 {
                return path;
            }
            number = child;
        }
    }

    /// Replaces the leaf that serves `key` by `leaf`, for the same keys.
    pub(crate) fn replace(&self, key: &[u8], leaf: u32) {
        let _spare = spin::lock(&self.spare);
        if let Some((node, at)) = self.path(key).pop() {
            self.node(node).replace_child(at, leaf);
        }
    }

    /// Replaces the leaf that serves `separator` by two: `left` for the keys below it, `right` for the others.
    pub(crate) fn split(&self, left: u32, separator: &[u8], right: u32) {
        let mut spare = spin::lock(&self.spare);
        let mut change = Change::default();
        let mut path = self.path(separator);
        let (mut left, mut right) = (left, right);
        let mut separator: Box<[u8]> = separator.into();
        if let Some((number, at)) = path.last() {
            match self.node(*number).insert(*at, left, separator, right) {
                Ok(bytes) => return self.count_separators(bytes),
                Err(unused) => separator = unused,
            }
        }
        loop {
            let Some((number, at)) = path.pop() else {
                let level = change.nodes.last().map_or(0, |(_, content)| content.level + 1);
                let (separators, children) = (vec![separator], vec![left, right]);
                let root = spare.take();
                change.nodes.push((root, Content { level, separators, children }));
                change.root = Some(root);
                break;
            };
            let mut content = self.node(number).content();
            content.children[at] = left;
            content.children.insert(at + 1, right);
            content.separators.insert(at, separator);
            if content.children.len() <= FANOUT {
                change.nodes.push((number, content));
                break;
            }
            let (middle, upper) = content.split_off();
            let above = spare.take();
            change.nodes.extend([(above, upper), (number, content)]);
            (left, separator, right) = (number, middle, above);
        }
        self.apply(change);
    }

    /// Replaces all leaves by `leaf`.
    pub(crate) fn replace_all(&self, leaf: u32) {
        let mut spare = spin::lock(&self.spare);
        let mut dropped = vec![self.root.load(Ordering::Acquire)];
        let mut next = 0;
        while let Some(number) = dropped.get(next) {
            let Content { level, children, .. } = self.node(*number).content();
            dropped.extend(children.into_iter().filter(|_| level > 0));
            next += 1;
        }
        let root = spare.take();
        let content = Content { level: 0, separators: Vec::new(), children: vec![leaf] };
        let change = Change { nodes: vec![(root, content)], dropped, root: Some(root) };
        self.apply(change.clone());
        spare.free.extend(change.dropped);
    }

    /// All leaves with their least keys, in the order of keys, as they are at one moment.
    pub(crate) fn leaves(&self) -> Vec<Bound> {
        let _spare = spin::lock(&self.spare);
        let mut level = vec![(Box::default(), self.root.load(Ordering::Acquire))];
        loop {
            let mut is_last = false;
            let mut below = Vec::with_capacity(level.len() * FANOUT / 2);
            for (least, number) in level {
                let content = self.node(number).content();
                is_last = content.level == 0;
                let leasts = std::iter::once(least).chain(content.separators);
                below.extend(leasts.zip(content.children));
            }
            if is_last {
                return below;
            }
            level = below;
        }
    }

    /// Replaces the two leaves on both sides of `separator` by `leaf`. They may be below two nodes by now, though
    /// [`Inner::pairs_of`] found them below one, which was split since.
    pub(crate) fn merge(&self, separator: &[u8], leaf: u32) {
        let mut spare = spin::lock(&self.spare);
        let mut change = Change::default();
        let mut path = self.path(separator);
        // The lowest node with children on both sides: in the nodes below it the right leaf is the first.
        let fork = path.iter().rposition(|(_, at)| *at > 0);
        debug_assert!(fork.is_some(), "the least key of all parts nothing");
        let Some(fork) = fork else { return };
        if fork + 1 < path.len() {
            self.replace_last_below(path[fork], leaf, &mut change);
        }
        let Some((mut number, mut at)) = path.pop() else { return };
        let mut content = self.node(number).content();
        while content.children.len() == 1 {
            change.drop_node(number);
            let Some(above) = path.pop() else { return };
            (number, at) = above;
            content = self.node(number).content();
        }
        content.children.remove(at);
        if at > 0 {
            let parted = content.separators.remove(at - 1);
            debug_assert_eq!(&*parted, separator);
            if content.level == 0 {
                content.children[at - 1] = leaf;
            }
        } else {
            let (node, at) = path[fork];
            let mut above = self.node(node).content();
            above.separators[at - 1] = content.separators.remove(0);
            change.put(node, above);
            // These nodes lead to fewer keys now, and readers on their way through them must notice that.
            for (node, _) in &path[fork + 1..] {
                change.put(*node, self.node(*node).content());
            }
        }
        self.join(path, (number, content), &mut change);
        self.shrink(&mut change);
        self.apply(change.clone());
        spare.free.extend(change.dropped);
    }

    /// Replaces, by `leaf`, the last leaf below the left neighbour of a node's child.
    fn replace_last_below(&self, (node, at): (u32, usize), leaf: u32, change: &mut Change) {
        let mut number = self.node(node).content().children[at - 1];
        loop {
            let mut content = self.node(number).content();
            let Some(last) = content.children.last_mut() else { return };
            if content.level == 0 {
                *last = leaf;
                return change.put(number, content);
            }
            number = *last;
        }
    }

    /// Joins a node that has few children left with a neighbour, and so on upwards.
    fn join(&self, mut path: Path, (mut number, mut content): (u32, Content), change: &mut Change) {
        while let Some((parent, at)) = path.pop() {
            let mut above = self.content_after(change, parent);
            if content.children.len() > FANOUT / 4 || above.children.len() == 1 {
                break;
            }
            // With its left neighbour; the first child with its right one.
            let left = at.saturating_sub(1);
            let other = above.children[if at == 0 { 1 } else { left }];
            let beside = self.content_after(change, other);
            if content.children.len() + beside.children.len() > FANOUT * 3 / 4 {
                break;
            }
            let (mut lower, upper) = if at == 0 { (content, beside) } else { (beside, content) };
            let (kept, dropped) = if at == 0 { (number, other) } else { (other, number) };
            lower.separators.push(above.separators.remove(left));
            above.children.remove(left + 1);
            lower.separators.extend(upper.separators);
            lower.children.extend(upper.children);
            change.put(kept, lower);
            change.drop_node(dropped);
            (number, content) = (parent, above);
        }
        change.put(number, content);
    }

    /// The content of a node after a change.
    fn content_after(&self, change: &Change, number: u32) -> Content {
        let mut changed = change.nodes.iter();
        let changed = changed.find(|(it, _)| *it == number);
        changed.map_or_else(|| self.node(number).content(), |(_, content)| content.clone())
    }

    /// A root whose only child is a node gives way to it.
    fn shrink(&self, change: &mut Change) {
        let mut root = self.root.load(Ordering::Acquire);
        while let Content { level: 1.., children, .. } = self.content_after(change, root)
            && let [only] = children[..]
        {
            change.drop_node(root);
            change.root = Some(only);
            root = only;
        }
    }

    /// Changes several nodes at once: a reader meets the whole change, or looks again.
    fn apply(&self, change: Change) {
        let touched = change.nodes.iter().map(|(number, _)| number).chain(&change.dropped);
        touched.clone().for_each(|number| self.node(*number).begin());
        let numbers: Vec<u32> = touched.copied().collect();
        for (number, content) in change.nodes {
            self.set(number, content);
        }
        if let Some(root) = change.root {
            self.root.store(root, Ordering::Release);
        }
        numbers.into_iter().for_each(|number| self.node(number).end());
    }

    /// Bytes of DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.nodes.bytes() + self.separator_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

/// The new contents of nodes, and the nodes that are dropped.
#[derive(Debug, Default, Clone)]
struct Change {
    nodes: Vec<(u32, Content)>,
    /// Nodes that no other node leads to any more.
    dropped: Vec<u32>,
    root: Option<u32>,
}

impl Change {
    /// Sets the new content of a node, in place of any content that was set before.
    fn put(&mut self, number: u32, content: Content) {
        match self.nodes.iter_mut().find(|(it, _)| *it == number) {
            Some((_, before)) => *before = content,
            None => self.nodes.push((number, content)),
        }
    }

    /// No node is to lead to this one any more.
    fn drop_node(&mut self, number: u32) {
        self.nodes.retain(|(it, _)| *it != number);
        self.dropped.push(number);
    }
}

impl Spare {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
}

#[cfg(test)]
mod tests;
