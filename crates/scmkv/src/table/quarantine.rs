//! Pages that a crash seems to have left empty, and pages that a slot misses a record in.
//!
//! A page that was open at a crash and holds no sound record is nearly always one in which nothing
//! had been acknowledged yet, and is free. It may also be one that the medium has lost. Which it
//! is, the index knows: no slot points into the former. But to ask the whole index takes as long as
//! there are records, and an open must not. So such a page is put into *quarantine*: it stays a
//! log page without a readable byte, so that a slot that points into it leads to an error and never
//! to an absence, until the [`census`](crate::clean::census), which comes by every slot anyway, has seen
//! whether there is one. If not, the page is free.
//!
//! The census asks the same of every slot: one that points at no record of its kind and hash is
//! evidence that its page has lost it. That page is pinned, since the cleaner must not free it: in
//! its next life another record could lie where the slot points, and the lost key would look as if
//! it had never been there. If it is the slot that is damaged, and not the page,
//! [`reindex`](crate::clean::reindex) mends it, and the page is released.
//!
//! ```text
//!   open at the crash ─▶ sound up to …  ─ something ─▶ sealed there
//!                              └─ nothing ─▶ quarantine ─ slot or proof ─▶ stays
//!                                                └─────── neither ───────▶ free
//! ```
//!
//! The *proof* is in the page information table ([`page`](crate::table::page)). An index that comes from
//! the logs, or from a checkpoint, has no slots for what was written last. There the proof is all
//! that there is, and the open is refused, since nobody could tell which keys are meant.

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
    /// Open at the crash, and empty as it seems.
    empty: Mutex<Vec<u32>>,
    /// Slots miss a record in them, or they are damaged.
    lossy: Mutex<BTreeSet<u32>>,
    /// Where damaged records are that are surely dead.
    pub(crate) dead: Mutex<BTreeSet<u64>>,
}

impl Table {
    /// Puts a page that was open at the crash aside; for good, if it is surely lost.
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

    /// The record that a slot of a locked group points at; none if it cannot be that of the slot,
    /// whose page is then kept as it is.
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

    /// The page may be cleaned again.
    pub(crate) fn release(&self, page: u32) {
        if self.quarantine.lossy.lock().remove(&page) {
            self.pages.cell(page).unpin();
        }
    }

    /// The logs are sound, and no slot misses its record: pages that were kept may be cleaned, but for
    /// those of which nothing can be read.
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

    /// Frees what was put aside and what no slot points into. All slots have been seen.
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

    /// Something does not fit: the index is held against the logs before anything is freed.
    #[cold]
    pub(crate) fn doubt_index(&self) {
        self.is_index_doubted.store(true, Ordering::Release);
    }
}
