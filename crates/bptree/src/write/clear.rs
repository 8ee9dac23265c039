//! Empties the store: all of it at once, or none.
//!
//! ```text
//!   1  every leaf is shut: writers wait
//!   2  a new leaf for all keys, as a successor of the first    flush
//!   3  root: leaves born before the new one do not count   ◀── from here on the store is empty
//!   4  the tree leads to the new leaf; the pages of the others are given back
//! ```
//!
//! So it costs a look at each leaf and not at each record. No tombstones are written: a reader of the changes is
//! told that the history is gone, after a restart too.

use crate::inner::Bound;
use crate::leaf::{Head, Life, PlaceSet};
use crate::volume::counters::Count;
use crate::volume::keys::Edge;
use crate::volume::pages::Patience;
use crate::volume::root::{Root, STEP};
use crate::write::Writer;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{epoch, mutant, spin};
use coreplane_record::Kind;
use std::sync::atomic::Ordering;

impl Writer {
    /// Removes every record, durably when it returns: a crash finds all of them or none.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::NoSpace`], and if the medium fails.
    pub(crate) fn clear(&self) -> Result<()> {
        self.check_writable()?;
        // Pages that readers may still use come back soon.
        let page = self.pages.in_time(&mut Patience::default(), || self.pages.take(1, 0))?[0];
        let _whole = spin::lock(&self.whole);
        let guard = epoch::pin();
        let leaves = self.shut_leaves();
        let emptied = match self.prepare(&guard, &leaves) {
            Ok((overflow, first)) => self.empty(&leaves, page, first).map(|()| overflow),
            Err(error) => {
                self.pages.leave(page);
                Err(error)
            }
        };
        if emptied.is_err() && !self.closed.load(Ordering::Acquire) {
            leaves.iter().for_each(|(_, leaf)| self.leaves.get(*leaf as usize).unshut());
        }
        let overflow = emptied?;
        leaves.iter().map(|(_, leaf)| leaf).chain(&overflow).try_for_each(|page| self.retire(*page))
    }

    /// Collects from shut leaves the pages of their large values, which soon nothing leads to, and the first leaf.
    fn prepare(&self, guard: &Guard, leaves: &[Bound]) -> Result<(Vec<u32>, Life)> {
        // The store may have been closed before this call had shut all leaves.
        self.check_writable()?;
        Ok((self.overflow_in(guard, leaves)?, self.first_of(guard, leaves)?))
    }

    /// Puts an empty leaf in the place of all leaves, which are shut, as a successor of the first.
    fn empty(&self, leaves: &[Bound], page: u32, first: Life) -> Result<()> {
        // Greater than all versions that the leaves have given out.
        let version = self.version_base.load(Ordering::Acquire) + STEP;
        let head = Head { version, predecessor: Some(first), ..Head::default() };
        let image = self.write_image(page, (head, Edge::first()), &[])?;
        {
            // The first of a root's four fences makes the leaf durable, before any word of the root.
            let _changing = spin::lock(&self.root_change);
            let root = Root::from_words(self.pool.root());
            let held = if root.held > 0 { root.held.max(version + 1) } else { 0 };
            let version_base = root.version_base.max(version);
            let now =
                if mutant!("bptree.clear.births") { root.cleared_births } else { image.life.birth };
            let cleared_births = now;
            self.set_root(Root { version_base, cleared_births, held, ..root })?;
            self.version_base.store(version_base, Ordering::Release);
            // Before another thread writes to the root which tombstones are held.
            self.forgotten_tombstones.fetch_max(version, Ordering::AcqRel);
        }
        // Before any thread can write to the new leaf: all others are shut, and the counters do not change.
        let records = self.counters.get(Count::Records);
        self.counters.add(Count::Deletes, records);
        self.counters.add(Count::Records, -records);
        self.counters.add(Count::LiveBytes, -self.counters.get(Count::LiveBytes));
        let _publishing = self.isolation.begin();
        self.begin(image);
        self.inner.replace_all(page);
        for (_, leaf) in leaves {
            self.leaves.get(*leaf as usize).kill();
        }
        self.opened.unloaded.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The first leaf with a sound head. The new leaf names it as its predecessor, so that it counts when that one
    /// does not.
    fn first_of(&self, guard: &Guard, leaves: &[Bound]) -> Result<Life> {
        let mut lives = leaves.iter().map(|(_, page)| {
            let birth = self.head_of(guard, *page)?.birth;
            Ok(Life { page: *page, birth })
        });
        let first = lives.next().unwrap_or_else(|| Err(self.not_a_leaf(0)));
        first.or_else(|error| lives.find_map(Result::ok).ok_or(error))
    }

    /// The pages of all large values and rests of keys in leaves that are shut, as far as they are
    /// [known](crate::volume::Volume::known).
    fn overflow_in(&self, guard: &Guard, leaves: &[Bound]) -> Result<Vec<u32>> {
        let mut overflow = Vec::new();
        for (least, page) in leaves {
            let loaded = if self.opened.has_large { self.load_leaf(*page) } else { Ok(()) };
            match loaded {
                // The overflow pages of a damaged leaf are unknown.
                Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => {
                    self.counters.be_unsure();
                    continue;
                }
                loaded => loaded?,
            }
            if self.is_long(least) {
                let rest =
                    self.head_of(guard, *page).and_then(|head| self.rest_of(guard, &head.least));
                overflow.extend(self.known(rest.unwrap_or_default()));
            }
            let leaf = self.leaves.get(*page as usize);
            let has_overflow = leaf.has_large() || leaf.has_long();
            let used = if has_overflow { leaf.used() } else { PlaceSet::first(0) };
            for place in used {
                let Ok(view) = self.record_at(guard, *page, leaf, place) else {
                    // The pages of a record that is not there are unknown, too.
                    self.counters.be_unsure();
                    continue;
                };
                if view.header.large && view.header.kind == Kind::Put {
                    overflow.extend(self.known(self.pages_of(guard, &view)?));
                }
                if self.is_long(view.key()) {
                    overflow
                        .extend(self.known(self.rest_of(guard, view.key()).unwrap_or_default()));
                }
            }
        }
        Ok(overflow)
    }
}
