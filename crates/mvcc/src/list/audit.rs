//! Counts the live records again, for tests: the counts that every write updates must not drift.

use super::{List, Versions};
use coreplane_pmem::epoch::Guard;
use coreplane_record::Kind;
use std::collections::BTreeMap;

impl List {
    /// Bytes of the newest versions except tombstones, large values included; an error if the counts of a page, or of
    /// the records, differ from those of all records that are led to.
    pub(super) fn count_again(&self, guard: &Guard) -> Result<u64, String> {
        // A log trims with its commits.
        let is_left = match self.is_log {
            true => self.aged.len_examined() > 0,
            false => self.aged.len() > 0 || !self.archives.is_empty(),
        };
        if self.pins.is_empty() && is_left {
            return Err("there are versions that no pin sees".to_owned());
        }
        let aged = self.index.values().filter(|it| matches!(it, Versions::Many(_))).count();
        if aged != self.aged.len() {
            return Err(format!("{aged} keys have several versions, {} wait", self.aged.len()));
        }
        let volume = &self.stream.volume;
        let size = volume.space.page_size();
        let mut pages: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut needed, mut records) = (0, 0);
        let forgotten = self.tombstones.all().map(|it| (it.offset, false));
        let forgotten = forgotten.chain(self.of_log().map(|offset| (offset, false)));
        let marker = self.damage.doubt.and_then(|doubt| doubt.record);
        let forgotten = forgotten.chain(marker.map(|(offset, _)| (offset, false)));
        let archived = self.archives.iter().flat_map(|(_, index)| index.values());
        let archived = archived.flat_map(|it| it.all().iter().map(|offset| (*offset, false)));
        let indexed = self.index.values().flat_map(|versions| {
            let newest = versions.newest();
            versions.all().iter().map(move |offset| (*offset, *offset == newest))
        });
        for (offset, is_newest) in forgotten.chain(archived).chain(indexed) {
            let view = volume.view(guard, offset).map_err(|error| error.to_string())?;
            *pages.entry(volume.space.page_of(offset)).or_default() += view.len();
            let mut bytes = u64::from(view.len());
            if view.header.large {
                let chain = volume.chain(guard, view.value(), false);
                for (page, _) in chain.map_err(|error| error.to_string())? {
                    *pages.entry(page).or_default() += size;
                    bytes += u64::from(size);
                }
            }
            if is_newest && view.header.kind == Kind::Put {
                (needed, records) = (needed + bytes, records + 1);
            }
        }
        let all = volume.table.data_pages(0);
        let wrong = all.map(|page| (page, pages.get(&page).copied().unwrap_or_default()));
        let wrong = wrong.map(|(page, live)| (page, live, self.stream.pages.live_of(page)));
        if let Some((page, live, counted)) = wrong.into_iter().find(|it| it.1 != it.2) {
            return Err(format!("in page {page} {live} bytes live, and not {counted}"));
        }
        let live: u64 = pages.values().map(|live| u64::from(*live)).sum();
        if live != self.stream.pages.live() || records != self.records {
            let counted = (self.stream.pages.live(), self.records);
            return Err(format!("{live} bytes and {records} records, and not {counted:?}"));
        }
        Ok(needed)
    }
}
