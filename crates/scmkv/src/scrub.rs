//! The scrub: reads what is at rest, so that damage is found while another copy may still exist.
//!
//! A read looks at checksums only where it is asked to ([`Options::check_reads`](crate::Options)),
//! and a record that nobody reads or cleans would be looked at by nobody. So in the background one full page after the other is held against its records'
//! checksums, a page a tick: a store of 100 GB takes some hours at a cost of a few thousandths of
//! a core. What is found is counted (`damaged_pages` among the statistics), named by `verify`, and
//! kept from the cleaner, so that it stays as it is for whoever repairs it. A page that the medium
//! has lost is found the same way, and without the signal that a load from it would be.

use crate::counters::Count;
use crate::page::Kind;
use crate::store::Store;
use coreplane_engine::{Scrub, VerifyReport};
use std::sync::atomic::Ordering;

impl Store {
    /// Checks the next full page.
    pub(crate) fn scrub_next(&self, scrub: &mut Scrub) {
        let look = |page: u32| {
            let cell = self.pages.cell(page);
            let is_full = cell.kind() == Some(Kind::Log) && cell.length.load(Ordering::Acquire) > 0;
            is_full.then(|| {
                let generation = cell.generation();
                let mut report = VerifyReport::default();
                if !self.is_lost(page, &mut report) {
                    self.verify_page(page, &mut report);
                }
                (u64::from(generation), report.is_sound())
            })
        };
        let Some(looked) = scrub.step(self.pages.len(), look) else { return };
        self.counters.add(Count::ScrubbedPages, 1);
        if looked.is_new_damage {
            self.pages.cell(looked.page).pin();
            self.counters.add(Count::DamagedPages, 1);
        }
    }
}
