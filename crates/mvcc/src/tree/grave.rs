//! Tombstones that are entries of the tree, until they are no longer needed.

use super::change::Change;
use super::{FOR_OPENINGS, Tree};
use crate::map::{Group, Map};
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most tombstones that are removed after one commit: each removal writes the path to it anew.
const AT_ONCE: usize = 64;

/// The most tombstones that are held no longer at a time.
const LET_GO: usize = 4096;

/// A tombstone that the tree had an entry for.
#[derive(Debug)]
struct Grave {
    key: Box<[u8]>,
    version: u64,
    sequence: u64,
}

/// Tombstones that may be removed when they are durable, and those that are held.
#[derive(Debug)]
pub(super) struct Graves {
    open: VecDeque<Grave>,
    /// Versions, by sequence and key.
    kept: BTreeMap<(u64, Box<[u8]>), u64>,
    /// Tombstones with a sequence above this are held.
    held: u64,
}

impl Graves {
    pub(super) fn new(held: u64) -> Self {
        Self { open: VecDeque::new(), kept: BTreeMap::new(), held }
    }

    /// True if a tombstone with this sequence is not held.
    pub(super) fn may_go(&self, sequence: u64) -> bool {
        sequence <= self.held || mutant!("mvcc.tree.held")
    }

    pub(super) fn dig(&mut self, key: &[u8], version: u64, sequence: u64) {
        if self.may_go(sequence) {
            self.open.push_back(Grave { key: key.into(), version, sequence });
        } else {
            self.keep(Grave { key: key.into(), version, sequence });
        }
    }

    fn keep(&mut self, Grave { key, version, sequence }: Grave) {
        let kept = self.kept.entry((sequence, key)).or_default();
        *kept = (*kept).max(version);
    }

    /// The tree has no entry for this record any more, which may be a tombstone.
    pub(super) fn replaced(&mut self, view: &View<'_>) {
        if view.header.kind == Kind::Delete && !self.kept.is_empty() {
            self.kept.remove(&(view.sequence(), view.key().into()));
        }
    }

    /// Holds those with a sequence above this; lets some of the others go. True if more are left.
    pub(super) fn hold(&mut self, sequence: u64) -> bool {
        self.held = sequence;
        for _ in 0..LET_GO {
            let Some(first) = self.kept.first_entry().filter(|it| it.key().0 <= sequence) else {
                return false;
            };
            let ((sequence, key), version) = first.remove_entry();
            self.open.push_back(Grave { key, version, sequence });
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.kept.clear();
    }
}

impl Tree {
    /// Removes the entries of durable tombstones, as long as there are pages for the nodes that this makes fresh. The
    /// others are removed by later calls. True if there were any to remove.
    pub(super) fn bury_graves(&mut self) -> bool {
        if self.stream.is_closed {
            return false;
        }
        let guard = epoch::pin();
        for count in 0..AT_ONCE {
            let Some(grave) = self.graves.open.pop_front() else { return count > 0 };
            if !self.graves.may_go(grave.sequence) {
                self.graves.keep(grave);
                continue;
            }
            match self.bury_grave(&guard, &grave) {
                // A tombstone that cannot be read, or the way to it, does no harm: `verify` reports the damage.
                Ok(true) | Err(_) => {}
                Ok(false) => {
                    self.graves.open.push_front(grave);
                    return count > 0;
                }
            }
        }
        true
    }

    /// False if the tombstone has to wait.
    fn bury_grave(&mut self, guard: &Guard, grave: &Grave) -> Result<bool> {
        let volume = Arc::clone(&self.stream.volume);
        let look = self.look(&volume, guard);
        let Some(offset) = look.find(self.root(), &grave.key)? else { return Ok(true) };
        if self.stream.is_hidden(offset) || self.stream.covering(offset).is_some() {
            return Ok(false);
        }
        let view = volume.view(guard, offset)?;
        if view.header.kind != Kind::Delete || view.header.version != grave.version {
            return Ok(true);
        }
        let group = Group { keys: &[&grave.key], ..Group::EMPTY };
        // A log reads the paths of pending keys, too, which may be damaged.
        let Ok(pages) = self.pages_for(guard, group) else { return Ok(false) };
        if self.stream.pages.total_and_free().1 < pages + FOR_OPENINGS {
            return Ok(false);
        }
        let (limits, gone, spare) = (self.limits, &mut self.gone, &mut self.spare);
        let mut change = Change { look, limits, gone, spare };
        self.fresh_max += self.height as usize;
        change.remove(&mut self.root, &grave.key)?;
        self.bury(Ok(view));
        // There is more to clean.
        self.cleaned_before = self.pages_cleaned;
        self.horizon = self.horizon.max(grave.sequence);
        Ok(true)
    }
}
