//! Reading everything, and checking it against every checksum and against the index, and an index
//! in the pool against the logs ([`unindexed`](crate::clean::unindexed)).
//!
//! A load from a page that the medium has lost would end the process with a signal. So the kernel
//! is asked to read each page first, and lost pages are not read further.

use crate::clean::unindexed::{Kinds, unindexed};
use crate::store::Store;
use crate::table::index::{SlotRef, Verdict};
use crate::table::overflow::overflow_offsets;
use crate::table::page::Kind as PageKind;
use coreplane_engine::{Damage, Progress, Result, VerifyReport};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Kind, View};
use std::collections::BTreeMap;

/// Pages of which the medium has lost a part, and where.
type Lost = BTreeMap<u32, u64>;

impl Store {
    pub(crate) fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        if let Err(error) = self.pool.check() {
            report.damages.push(Damage::new(0, error.to_string()));
        }
        let pages = self.pages.len();
        let lost: Lost = (0..pages)
            .filter_map(|page| self.lost_at(page, &mut report).map(|offset| (page, offset)))
            .collect();
        let has_lost = |kind| lost.keys().any(|page| self.pages.cell(*page).kind() == Some(kind));
        // The table has the kinds of the other pages.
        let pages = if has_lost(PageKind::Table) { 0 } else { pages };
        for page in 0..pages {
            progress(Progress {
                stage: "checking pages",
                done: u64::from(page),
                total: u64::from(pages),
            });
            if !lost.contains_key(&page) {
                self.verify_page(page, &mut report);
            }
        }
        if !has_lost(PageKind::Checkpoint) {
            self.verify_checkpoint(&mut report);
        }
        if !has_lost(PageKind::Index) {
            self.verify_index(&lost, &mut report, progress)?;
        }
        // An index in DRAM is built from verified records.
        if report.is_sound() && self.index.in_pool() {
            self.verify_indexed(&mut report)?;
        }
        Ok(report.merged())
    }

    fn verify_index(
        &self,
        lost: &Lost,
        report: &mut VerifyReport,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.index.each_group(&mut |held, here| {
            let guard = epoch::pin();
            for found in self.index.slots(held.leaf(), here.group)? {
                self.verify_slot(&guard, found, lost, report);
            }
            // What is told may take as long as it likes.
            drop((guard, held));
            if here.group == 0 {
                let done = u64::from(here.y >> 16);
                progress(Progress { stage: "checking the index", done, total: 1 << 16 });
            }
            Ok(())
        })
    }

    /// The index, all of whose slots are sound, must have a slot for each key that has a record.
    fn verify_indexed(&self, report: &mut VerifyReport) -> Result<()> {
        let has = |view: &View<'_>| self.is_indexed(&epoch::pin(), view);
        for (generation, offset) in unindexed(self, &|_| false, Kinds::Puts, &has)? {
            let guard = epoch::pin();
            let cell = self.pages.cell(self.space.page_of(offset));
            let Some(view) = self.view(&guard, offset) else { continue };
            // Its page may have been freed since, and the key written.
            if cell.kind() != Some(PageKind::Log) || cell.generation() != generation {
                continue;
            }
            let _held = self.index.lock(self.place(view.key()));
            if !self.is_indexed(&guard, &view)? {
                let what =
                    "the index does not find the record, nor a later one of its key".to_owned();
                report.damages.push(Damage::new(offset, what).of(view.key()));
            }
        }
        Ok(())
    }

    /// Under the lock of its group a slot must point at a sound record whose key leads to the slot.
    fn verify_slot(&self, guard: &Guard, found: SlotRef, lost: &Lost, report: &mut VerifyReport) {
        let SlotRef { at, slot } = found;
        let mut damaged = |damage: Damage| report.damages.push(damage);
        let is_lost = |offset: u64| lost.contains_key(&self.space.page_of(offset));
        if let Some(place) = lost.get(&self.space.page_of(slot.offset())) {
            // This is the damage of the page.
            return damaged(Damage::new(*place, "a record in a page with lost bytes"));
        }
        let Some(view) = self.view(guard, slot.offset()) else {
            let what = format!("slot points at no record: {:#x}", slot.offset());
            return damaged(Damage::new(at, what));
        };
        let generation = self.pages.cell(self.space.page_of(slot.offset())).generation();
        if let Err(error) = view.check(self.seed(generation, slot.offset())) {
            let damage = Damage::new(slot.offset(), error.to_string());
            // A key that leads to the slot is the slot's key, even if the rest of the record is
            // damaged.
            let is_its = self.reaches(&view, slot.0);
            return damaged(if is_its { damage.of(view.key()) } else { damage });
        }
        let expected = if slot.is_tombstone() { Kind::Delete } else { Kind::Put };
        if view.header.kind != expected
            || slot.expires() != view.header.expires_at.is_some()
            || !self.reaches(&view, slot.0)
        {
            let what = format!(
                "slot {:#x} does not fit its record at {:#x}: {:?}",
                slot.0,
                slot.offset(),
                view.header.kind
            );
            return damaged(Damage::new(at, what).of(view.key()));
        }
        if view.header.large {
            for offset in overflow_offsets(&view) {
                let overflow = if is_lost(offset) { None } else { self.view(guard, offset) };
                let sound = overflow.is_some_and(|overflow| {
                    let page = self.space.page_of(offset);
                    let generation = self.pages.cell(page).generation();
                    overflow.header.kind == Kind::Overflow
                        && overflow.check(self.seed(generation, offset)).is_ok()
                });
                if !sound {
                    let what = format!("no overflow record for the value at {:#x}", view.offset);
                    damaged(Damage::new(offset, what).of(view.key()));
                }
            }
        }
        if !slot.is_tombstone() {
            report.records += 1;
        }
    }

    /// True if a lookup of the record's key finds the slot.
    fn reaches(&self, view: &View<'_>, word: u64) -> bool {
        let found = self.index.find(self.place(view.key()), |slot| {
            if slot.0 == word { Verdict::Mine } else { Verdict::Other }
        });
        matches!(found, Ok(Some(_)))
    }
}
