//! Going through the records of pages by their bytes.

use crate::table::Ordering;
use crate::table::Table;
use crate::table::page::Kind as PageKind;
use coreplane_engine::{Damage, Error, VerifyReport};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::View;

/// A sound record in the logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'v> {
    pub(crate) view: View<'v>,
    pub(crate) page: u32,
    pub(crate) generation: u32,
    /// Its slot has been durable for long.
    pub(crate) is_settled: bool,
}

impl Table {
    /// True if the medium has lost a part of the page.
    pub(crate) fn is_lost(&self, page: u32, report: &mut VerifyReport) -> bool {
        self.lost_at(page, report).is_some()
    }

    /// Where the medium has lost a part of the page; none if it has not.
    pub(crate) fn lost_at(&self, page: u32, report: &mut VerifyReport) -> Option<u64> {
        let is_free = self.pages.cell(page).kind() == Some(PageKind::Free);
        let lost = (!is_free).then(|| self.space.probe(page).err()).flatten();
        if let Some(lost) = &lost {
            report.damages.push(Damage::new(lost.offset, lost.to_string()));
        }
        lost.map(|lost| lost.offset)
    }

    pub(crate) fn verify_page(&self, page: u32, report: &mut VerifyReport) {
        let damage = |error: &Error, at: u64| Damage::new(at, error.to_string());
        let start = self.space.start_of(page);
        let guard = epoch::pin();
        let element = match self.pages.element(page) {
            Ok(element) => element,
            Err(error) => return report.damages.push(damage(&error, start)),
        };
        if element.kind != PageKind::Log {
            return;
        }
        let Some((published, _)) = self.space.watermarks(page) else { return };
        if published == 0 && element.is_lost() {
            let what = format!("log page {page}: {}", crate::table::page::NONE_CAN_BE_READ);
            return report.damages.push(Damage::new(start, what));
        }
        let length = match element.length {
            Some(length) => length,
            None => published,
        };
        let mut at = start;
        while at < start + u64::from(length) {
            let Some(view) = self.view(&guard, at) else {
                if self.space.watermarks(page).is_some() {
                    let what = "no record where the log should have one".to_owned();
                    report.damages.push(Damage::new(at, what));
                }
                return;
            };
            if let Err(error) = view.check(self.seed(element.generation, at)) {
                report.damages.push(damage(&error, at));
                return;
            }
            report.bytes += u64::from(view.len());
            at += u64::from(view.len());
        }
    }

    /// Shows the records of all log pages that `skip` does not leave out, in the order of the pages' numbers.
    pub(crate) fn visit_all(&self, skip: &dyn Fn(u32) -> bool, visit: &mut dyn FnMut(&Seen<'_>)) {
        let pages = (0..self.pages.len()).filter(|page| !skip(*page));
        pages.for_each(|page| self.visit_page(page, visit));
    }

    /// Shows the records of a log page.
    pub(crate) fn visit_page(&self, page: u32, visit: &mut dyn FnMut(&Seen<'_>)) {
        self.visit_page_in(&epoch::pin(), page, &mut |seen| visit(seen));
    }

    /// As [`Table::visit_page`], with records that stay as they are while the guard lives.
    pub(crate) fn visit_page_in<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        visit: &mut dyn FnMut(&Seen<'g>),
    ) {
        let cell = self.pages.cell(page);
        if cell.kind() != Some(PageKind::Log) {
            return;
        }
        let Some((published, _)) = self.space.watermarks(page) else { return };
        let (start, generation) = (self.space.start_of(page), cell.generation());
        let is_settled = cell.length.load(Ordering::Acquire) > 0;
        let mut at = start;
        while at < start + u64::from(published) {
            // A page may be freed meanwhile.
            let Some(view) = self.view(guard, at) else { return };
            visit(&Seen { view, page, generation, is_settled });
            at += u64::from(view.len());
        }
    }
}
