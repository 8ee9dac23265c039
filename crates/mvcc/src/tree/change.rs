//! Changing a tree: the path from the root is made fresh, and changed in place.
//!
//! A node that has too many entries, or no longer fits a page, is split; the root grows a level. A node that has
//! become small stays until its last entry is removed: then it is removed, too, and a root with one entry is replaced
//! by the node below. So each leaf has at least one record, deletes make nothing larger, and puts between the
//! remaining keys fill the nodes again.

use super::fresh::{Entry, Limits, Link, Node, Spare};
use super::look::Look;
use super::seal::Gone;
use coreplane_engine::{Error, Result};

/// A change of a tree.
pub(super) struct Change<'c> {
    pub(super) look: Look<'c>,
    pub(super) limits: Limits,
    /// Sealed nodes that fresh ones replace.
    pub(super) gone: &'c mut Vec<Gone>,
    /// Former nodes, for reuse.
    pub(super) spare: &'c mut Spare,
}

impl Change<'_> {
    /// The node that a link leads to, made fresh.
    fn fresh<'n>(&mut self, link: &'n mut Link) -> Result<&'n mut Node> {
        if let Link::Sealed(offset) = *link {
            let sealed = self.look.sealed(offset)?;
            self.gone.push(Gone { offset, len: sealed.record_len(), is_large: false });
            let mut node = self.spare.pop().unwrap_or_default();
            sealed.to_fresh(&mut node);
            *link = Link::Fresh(node);
        }
        match link {
            Link::Fresh(node) => Ok(node),
            Link::Sealed(offset) => {
                Err(Error::Corrupt { offset: *offset, what: "no fresh node".to_owned() })
            }
        }
    }

    /// Makes the tree lead from a key to a record; returns the record that it led to before.
    ///
    /// # Errors
    /// If a node cannot be read; then nothing is changed, except that nodes are fresh.
    pub(super) fn put(
        &mut self,
        root: &mut Option<Link>,
        key: &[u8],
        record: u64,
    ) -> Result<Option<u64>> {
        let Some(link) = root else {
            let entries = vec![Entry { key: key.into(), to: Link::Sealed(record) }];
            *root = Some(Link::Fresh(Box::new(Node { level: 0, entries })));
            return Ok(None);
        };
        let (node, mut old) = (self.fresh(link)?, None);
        if let Some(right) = self.put_below(node, key, record, &mut old)? {
            let (key, level) = (node.least().into(), node.level + 1);
            if let Some(left) = root.take() {
                let entries = vec![Entry { key, to: left }, right];
                *root = Some(Link::Fresh(Box::new(Node { level, entries })));
            }
        }
        Ok(old)
    }

    /// Returns the node that was split off, if one was.
    fn put_below(
        &mut self,
        node: &mut Node,
        key: &[u8],
        record: u64,
        old: &mut Option<u64>,
    ) -> Result<Option<Entry>> {
        let at = node.child_for(key);
        if node.level > 0 {
            let Some(entry) = node.entries.get_mut(at) else { return Ok(None) };
            let child = self.fresh(&mut entry.to)?;
            let right = self.put_below(child, key, record, old)?;
            // The key of an entry is not above any key in its subtree.
            if *key < *entry.key {
                entry.key = key.into();
            }
            if let Some(right) = right {
                node.entries.insert(at + 1, right);
            }
            return Ok(node.split(self.limits));
        }
        let to = Link::Sealed(record);
        match node.entries.binary_search_by(|entry| (*entry.key).cmp(key)) {
            Ok(at) => {
                if let Link::Sealed(offset) = std::mem::replace(&mut node.entries[at].to, to) {
                    *old = Some(offset);
                }
            }
            Err(at) => node.entries.insert(at, Entry { key: key.into(), to }),
        }
        Ok(node.split(self.limits))
    }

    /// Removes a key; returns the record that it led to before.
    ///
    /// # Errors
    /// As [`Change::put`].
    pub(super) fn remove(&mut self, root: &mut Option<Link>, key: &[u8]) -> Result<Option<u64>> {
        let Some(link) = root else { return Ok(None) };
        let node = self.fresh(link)?;
        let old = self.remove_below(node, key)?;
        while let Some(Link::Fresh(node)) = root
            && (node.entries.is_empty() || node.level > 0 && node.entries.len() == 1)
        {
            *root = node.entries.pop().map(|entry| entry.to);
        }
        Ok(old)
    }

    fn remove_below(&mut self, node: &mut Node, key: &[u8]) -> Result<Option<u64>> {
        let at = node.child_for(key);
        let Some(entry) = node.entries.get_mut(at) else { return Ok(None) };
        let (is_empty, old) = if node.level > 0 {
            let child = self.fresh(&mut entry.to)?;
            let old = self.remove_below(child, key)?;
            (child.entries.is_empty(), old)
        } else {
            let old = match entry.to {
                Link::Sealed(offset) if *entry.key == *key => Some(offset),
                _ => None,
            };
            (old.is_some(), old)
        };
        if is_empty {
            node.entries.remove(at);
        }
        Ok(old)
    }

    /// Makes the path to `key` fresh, down to this level.
    ///
    /// # Errors
    /// As [`Change::put`].
    pub(super) fn freshen(
        &mut self,
        root: &mut Option<Link>,
        key: &[u8],
        level: u32,
    ) -> Result<()> {
        let Some(mut link) = root.as_mut() else { return Ok(()) };
        loop {
            let node = self.fresh(link)?;
            let at = node.child_for(key);
            if node.level <= level {
                return Ok(());
            }
            let Some(entry) = node.entries.get_mut(at) else { return Ok(()) };
            link = &mut entry.to;
        }
    }
}
