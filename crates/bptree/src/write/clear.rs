//! Emptying the store: all of it at once, or none.
//!
//! ```text
//!   1  every leaf is shut: whoever comes to write waits
//!   2  a new leaf for all keys, as if made of the first    flush
//!   3  root: leaves born before the new one do not count   ◀── from here on the store is empty
//!   4  the tree leads to the new leaf; the pages of the others are given back
//! ```
//!
//! So it costs a look at each leaf and not at each record. No tombstones are written: whoever follows
//! the changes is told that they are gone, after a restart too.

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
        let mut patience = Patience::default();
        let page = loop {
            match self.pages.take(1, 0) {
                Ok(pages) => break pages[0],
                // Pages that somebody may still read come back soon.
                Err(Error::NoSpace { .. }) if self.pages.wait_for_more(&mut patience) => {}
                Err(error) => return Err(error),
            }
        };
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

    /// What is to be known of leaves that are shut: the pages of their large values, to which nothing
    /// leads soon, and the first of them.
    fn prepare(&self, guard: &Guard, leaves: &[Bound]) -> Result<(Vec<u32>, Life)> {
        // The store may have been closed before all leaves were shut by this.
        self.check_writable()?;
        Ok((self.overflow_in(guard, leaves)?, self.first_of(guard, leaves)?))
    }

    /// Puts an empty leaf in the place of all, which are shut, as if it were made of the first.
    fn empty(&self, leaves: &[Bound], page: u32, first: Life) -> Result<()> {
        // Greater than all versions that any leaf has given out.
        let version = self.version_base.load(Ordering::Acquire) + STEP;
        let head = Head {
            birth: 0,
            version,
            predecessor: Some(first),
            least: Box::default(),
            bound: None,
            image_len: 0,
            is_lost: false,
        };
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
            // Before anybody else writes to the root what is kept.
            self.forgotten_tombstones.fetch_max(version, Ordering::AcqRel);
        }
        // Before anybody can write to the new leaf: all others are shut, and what is counted stands still.
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

    /// The first leaf of which the head is sound. The new one names it, as if it were made of it: so it
    /// counts when that one does not.
    fn first_of(&self, guard: &Guard, leaves: &[Bound]) -> Result<Life> {
        let mut lives = leaves.iter().map(|(_, page)| {
            let birth = self.head_of(guard, *page)?.birth;
            Ok(Life { page: *page, birth })
        });
        let first = lives.next().unwrap_or_else(|| Err(self.not_a_leaf(0)));
        first.or_else(|error| lives.find_map(Result::ok).ok_or(error))
    }

    /// The pages of all large values and rests of keys in leaves that are shut. Those of a rest that
    /// is damaged are found by the next recovery.
    fn overflow_in(&self, guard: &Guard, leaves: &[Bound]) -> Result<Vec<u32>> {
        let mut overflow = Vec::new();
        for (least, page) in leaves {
            let loaded = if self.opened.has_large { self.load_leaf(*page) } else { Ok(()) };
            match loaded {
                // Of a leaf that is damaged nobody knows which they are: the next recovery finds them.
                Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => continue,
                loaded => loaded?,
            }
            if self.is_long(least) {
                let least = self.head_of(guard, *page)?.least;
                overflow.extend(self.rest_of(guard, &least).unwrap_or_default());
            }
            let leaf = self.leaves.get(*page as usize);
            let has_overflow = leaf.has_large() || leaf.has_long();
            let used = if has_overflow { leaf.used() } else { PlaceSet::first(0) };
            for place in used {
                let view = self.record_at(guard, *page, leaf, place)?;
                if view.header.large && view.header.kind == Kind::Put {
                    overflow.extend(self.pages_of(guard, &view)?);
                }
                overflow.extend(self.rest_of(guard, view.key()).unwrap_or_default());
            }
        }
        Ok(overflow)
    }
}
