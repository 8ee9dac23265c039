//! Counts the live records again, for tests: the counts that every write updates must not drift.

use super::Tree;
use super::fresh::LinkRef;
use super::look::NodeRef;
use super::seal::Gone;
use crate::volume::Volume;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_record::Kind;
use std::collections::BTreeMap;

/// The live records that were found, page by page.
struct Tally<'v> {
    volume: &'v Volume,
    guard: &'v Guard,
    pages: BTreeMap<u32, u32>,
    records: u64,
    /// Bytes of nodes and of records that are no tombstones, large values included.
    needed: u64,
}

impl Tally<'_> {
    fn add(&mut self, gone: Gone) -> Result<u64> {
        let Gone { offset, len, is_large } = gone;
        let size = self.volume.space.page_size();
        *self.pages.entry(self.volume.space.page_of(offset)).or_default() += len;
        let mut bytes = u64::from(len);
        if is_large {
            let view = self.volume.view(self.guard, offset)?;
            for (page, _) in self.volume.chain(self.guard, view.value(), false)? {
                *self.pages.entry(page).or_default() += size;
                bytes += u64::from(size);
            }
        }
        Ok(bytes)
    }

    fn take_node(&mut self, node: &NodeRef<'_>) -> Result<()> {
        if let NodeRef::Sealed(node) = node {
            let (offset, len) = (node.offset, node.record_len());
            self.needed += self.add(Gone { offset, len, is_large: false })?;
        }
        for at in 0..if node.level() == 0 { node.len() } else { 0 } {
            let view = self.volume.view(self.guard, node.record(at))?;
            let (offset, len, is_large) = (view.offset, view.len(), view.header.large);
            let bytes = self.add(Gone { offset, len, is_large })?;
            if view.header.kind == Kind::Put {
                (self.records, self.needed) = (self.records + 1, self.needed + bytes);
            }
        }
        Ok(())
    }
}

impl Tree {
    /// Bytes of all nodes and of the newest versions except tombstones; an error if the counts of a page, or of the
    /// records, differ from those of all records that are led to, or were replaced and are kept.
    pub(super) fn count_again(&self, guard: &Guard) -> std::result::Result<u64, String> {
        if self.pins.is_empty() && self.kept.len() > self.kept_due {
            return Err("there are versions that no pin sees".to_owned());
        }
        let said = |error: Error| error.to_string();
        let volume = &*self.stream.volume;
        let mut tally = Tally { volume, guard, pages: BTreeMap::new(), records: 0, needed: 0 };
        if let Some(root) = self.root() {
            self.look(volume, guard)
                .nodes(root, &mut |node| tally.take_node(&node?))
                .map_err(said)?;
        }
        let replaced =
            self.late.iter().chain(&self.kept).map(|it| it.gone).chain(self.gone.iter().copied());
        for gone in replaced.chain(self.pending_records()) {
            tally.add(gone).map_err(said)?;
        }
        self.look_at_pins(guard)?;
        if let Some((offset, len)) = self.last.commit {
            tally.add(Gone { offset, len, is_large: false }).map_err(said)?;
        }
        for page in volume.table.data_pages(0) {
            let live = tally.pages.get(&page).copied().unwrap_or_default();
            let counted = self.stream.pages.live_of(page);
            if live != counted {
                return Err(format!("in page {page} {live} bytes live, and not {counted}"));
            }
        }
        let live: u64 = tally.pages.values().map(|live| u64::from(*live)).sum();
        if live != self.stream.pages.live() || tally.records != self.records {
            let counted = (self.stream.pages.live(), self.records);
            return Err(format!("{live} bytes and {} records, and not {counted:?}", tally.records));
        }
        Ok(tally.needed)
    }
    /// All records that a pin leads to were written before it, or they would not be kept for it.
    fn look_at_pins(&self, guard: &Guard) -> std::result::Result<(), String> {
        let look = self.look(&self.stream.volume, guard);
        for (version, pin) in &self.pins {
            let mut later = 0;
            let mut take = |node: Result<NodeRef<'_>>| {
                let node = node?;
                if let NodeRef::Sealed(sealed) = node {
                    later += u64::from(self.written(sealed.offset) >= pin.end);
                }
                let records = if node.level() == 0 { node.len() } else { 0 };
                let is_later = |at: &usize| self.written(node.record(*at)) >= pin.end;
                later += (0..records).filter(is_later).count() as u64;
                Ok(())
            };
            if let Some(root) = pin.root {
                look.nodes(LinkRef::Sealed(root), &mut take).map_err(|error| error.to_string())?;
            }
            if later > 0 {
                return Err(format!(
                    "{later} records that version {version} has are later than it"
                ));
            }
        }
        Ok(())
    }
}
