//! Pages that a crash seems to have left empty, and pages that lack the record of a slot.
//!
//! A page that was open at a crash and holds no sound record is nearly always one without an
//! acknowledged record, and is free. But the medium may also have lost the page. The index can
//! tell: no slot points into a free page. Reading the whole index, however, takes time in proportion
//! to the records, and an open must not. So such a page is put into *quarantine*: it stays a log page
//! without a readable byte, so that a slot that points into it leads to an error and never to an
//! absence. The [`census`](crate::clean::census) visits every slot anyway, and sees whether one
//! points into the page. If none does, the page is free.
//!
//! The census checks every slot: a slot that points at no record of its kind and hash is evidence
//! that the page has lost the record. That page is pinned, since the cleaner must not free it: in
//! its next life another record could lie where the slot points, and the lost key would look as if
//! it had never been there. If the slot is damaged, and not the page,
//! [`reindex`](crate::clean::reindex) mends the slot, and the page is released.
//!
//! ```text
//!   open at the crash ─▶ sound up to …  ─ something ─▶ sealed there
//!                              └─ nothing ─▶ quarantine ─ slot or proof ─▶ stays
//!                                                └─────── neither ───────▶ free
//! ```
//!
//! The *proof* is in the page information table ([`page`](crate::table::page)). An index that is
//! built from the logs, or from a checkpoint, has no slots for the last writes. There the proof is
//! the only evidence, and the open is refused, since the lost keys are unknown.

use crate::table::Ordering;
use crate::table::Table;
use crate::table::counters::Count;
use crate::table::index::{GroupLock, Slot};
use crate::table::page;
use coreplane_engine::Result;
use coreplane_pmem::Recovery;
use coreplane_record::{Kind, View};
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The pages that are kept from being used again.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Open at the crash, and apparently empty.
    empty: Mutex<Vec<u32>>,
    /// Damaged pages, and pages that lack the record of a slot.
    lossy: Mutex<BTreeSet<u32>>,
    /// The offsets of damaged records that are surely dead.
    pub(crate) dead: Mutex<BTreeSet<u64>>,
}

impl Table {
    /// Puts a page that was open at the crash into quarantine; for good, if it is surely lost.
    pub(crate) fn quarantine(&self, recovery: &mut Recovery, page: u32, is_lost: bool) {
        recovery.cut(page, 0);
        let cell = self.pages.cell(page);
        cell.length.store(0, std::sync::atomic::Ordering::Release);
        cell.pin();
        self.quarantine.empty.lock().push(page);
        if is_lost {
            self.keep_lossy(page);
        }
    }

    /// The record that a slot of a locked group points at; none if it cannot be that of the slot.
    /// Then the page is kept as it is.
    pub(crate) fn vouched<'g>(
        &self,
        held: &GroupLock<'_>,
        slot: Slot,
        view: Option<View<'g>>,
    ) -> Option<View<'g>> {
        let expected = if slot.is_tombstone() { Kind::Delete } else { Kind::Put };
        let view = view.filter(|view| {
            view.header.kind == expected
                && held.signature(self.place(view.key())) == slot.signature()
        });
        if view.is_none() {
            self.keep_lossy(self.space.page_of(slot.offset()));
            self.doubt_index();
        }
        view
    }

    fn keep_lossy(&self, page: u32) {
        if self.keep(page) {
            self.counters.add(Count::DamagedPages, 1);
        }
    }

    /// Keeps the cleaner away from a log page until the index is known to be whole; true if it was not
    /// kept before.
    #[cold]
    pub(crate) fn keep(&self, page: u32) -> bool {
        if page >= self.pages.len() || self.pages.cell(page).kind() != Some(page::Kind::Log) {
            return false;
        }
        let is_new = self.quarantine.lossy.lock().insert(page);
        if is_new {
            self.pages.cell(page).pin();
        }
        is_new
    }

    /// Lets the page be cleaned again.
    pub(crate) fn release(&self, page: u32) {
        if self.quarantine.lossy.lock().remove(&page) {
            self.pages.cell(page).unpin();
        }
    }

    /// Lets kept pages be cleaned, except those of which nothing can be read: the logs are sound,
    /// and no slot lacks its record.
    pub(crate) fn release_kept(&self) {
        self.quarantine.lossy.lock().retain(|page| {
            let cell = self.pages.cell(*page);
            let is_readable = cell.length.load(std::sync::atomic::Ordering::Acquire) > 0;
            if is_readable {
                cell.unpin();
            }
            !is_readable
        });
    }

    /// Frees the quarantined pages that no slot points into. All slots have been seen.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn end_quarantine(&self) -> Result<()> {
        let mut empty = std::mem::take(&mut *self.quarantine.empty.lock());
        let lossy = self.quarantine.lossy.lock();
        empty.retain(|page| !lossy.contains(page));
        for page in &empty {
            self.pages.cell(*page).unpin();
        }
        self.pages.free_all(&empty)
    }

    /// Notes a misfit: the index is checked against the logs before any page is freed.
    #[cold]
    pub(crate) fn doubt_index(&self) {
        self.is_index_doubted.store(true, Ordering::Release);
    }
}
