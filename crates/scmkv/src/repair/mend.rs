//! Writing what a repair has decided on, in an order that may be cut short anywhere.

use super::survey::{Gap, Surveyed};
use super::verdict::Plan;
use super::{Fate, Finding, Repair, Tell};
use crate::fragments::fragment_offsets;
use crate::index::Position;
use crate::log::{Log, Order};
use crate::page::sync_failed;
use crate::put::Plan as WritePlan;
use crate::store::{Root, Store};
use coreplane_engine::{Error, Result, WriteOptions};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{HEADER, Header, Kind, View};

impl Store {
    /// Writes it all; durable when it returns.
    pub(super) fn carry_out(&self, plan: Plan) -> Result<()> {
        self.write_records(&plan)?;
        // What the gaps told is durable. Now they may go.
        for page in &plan.surveyed {
            self.mend(page)?;
        }
        // And what the index told.
        let root = self.root();
        let lax = if root.has(Root::IN_POOL) { Root::LAX } else { 0 };
        let flags = root.flags & !Root::CLEAN | lax;
        self.set_root(Root { flags, checkpoint: 0, replay_birth: 0, ..root })
    }

    /// Tombstones for the keys that are lost, copies of what is saved, commit records of batches.
    fn write_records(&self, plan: &Plan) -> Result<()> {
        if plan.tombstones.is_empty() && plan.saved.is_empty() && plan.batches.is_empty() {
            return Ok(());
        }
        let base = self.raise_version_base()?;
        let mut log = self.logs[0].lock();
        let birth = self.pages.next_birth().to_le_bytes();
        for (key, newest) in &plan.tombstones {
            let version = base.max(*newest) + 1;
            let header = Header { kind: Kind::Delete, ..Header::put(version) };
            self.write_record(&mut log, &header, key, &birth)?;
        }
        for copied in &plan.saved {
            self.write_record(&mut log, &copied.header, &copied.key, &copied.value)?;
        }
        // So many to a record that any page has room for it.
        for runs in plan.batches.chunks(16) {
            let header = Header { kind: Kind::Commit, ..Header::put(0) };
            let value: Vec<u8> = runs.iter().flat_map(|run| run.to_bytes()).collect();
            self.write_record(&mut log, &header, &[], &value)?;
        }
        log.seal(self)?;
        self.space.fence().map_err(sync_failed)
    }

    fn write_record(&self, log: &mut Log, header: &Header, key: &[u8], value: &[u8]) -> Result<()> {
        let len = header.record_len(key, value.len());
        if !log.make_room(self, len, 0)? {
            return Err(Error::NoSpace { needed: len as u64, reclaimable: 0 });
        }
        let appended = log.append(self, header, key, &[value], Order::Strict)?;
        log.commit(self, appended.offset, Order::Strict)
    }

    /// Puts `Lost` records over the gaps of a page, and ends it where its records end.
    fn mend(&self, surveyed: &Surveyed) -> Result<()> {
        let Surveyed { log, gaps, is_gone, .. } = surveyed;
        if *is_gone {
            return self.pages.free(log.page);
        }
        if gaps.is_empty() {
            return Ok(());
        }
        let (mut tail, start) = (surveyed.tail, self.space.start_of(log.page));
        let mut bytes = {
            let guard = epoch::pin();
            let bytes = self.space.bytes(&guard, start, u64::from(tail));
            bytes.map(<[u8]>::to_vec).unwrap_or_default()
        };
        for gap in gaps {
            let at = (gap.start - start) as usize;
            if gap.has_room() {
                self.cover(gap, &mut bytes[at..(gap.end - start) as usize]);
            } else {
                // Only at the end of a page.
                tail = at as u32;
            }
        }
        self.rewrite(log.page, &bytes[..tail as usize])?;
        if log.element.length == Some(tail) { Ok(()) } else { self.pages.seal_cut(log.page, tail) }
    }

    /// A `Lost` record in the place of what is in `bytes`; what is behind its header stays, for
    /// whoever wants to look at it.
    fn cover(&self, gap: &Gap, bytes: &mut [u8]) {
        let header = Header { kind: Kind::Lost, ..Header::put(0) };
        let rest = bytes[HEADER..].to_vec();
        let encoded = header.encode(self.seed(gap.generation, gap.start), &[], &[&rest]);
        bytes[..HEADER].copy_from_slice(encoded.bytes());
    }

    /// Writes a page once more, the same but for its gaps: wherever that ends, what was sound is.
    fn rewrite(&self, page: u32, bytes: &[u8]) -> Result<()> {
        let space = &self.space;
        if !space.retire(page) {
            return Err(Error::Unusable(format!("page {page} is in use")));
        }
        super::reclaim_all(space)?;
        let writer = space.claim_log(page);
        let mut writer = writer.ok_or_else(|| Error::Unusable(format!("page {page} is in use")))?;
        writer.append(&[bytes]);
        writer.flush_from(space.start_of(page));
        space.fence().map_err(sync_failed)?;
        writer.publish();
        Ok(())
    }

    /// Deletes the large values that miss a piece: the last step, in the store that was opened.
    ///
    /// # Errors
    /// If the store cannot be written to.
    pub(crate) fn drop_broken(&self, repair: &mut Repair, tell: Tell<'_>) -> Result<()> {
        let mut position = Some(Position::default());
        let mut broken = Vec::new();
        while let Some(here) = position {
            let (leaf, group, next) = self.index.step(here);
            let guard = epoch::pin();
            let Some(held) = self.index.lock_group(leaf, here.y, group) else { continue };
            for found in self.index.slots(leaf, group)? {
                let view = self.reader().view(&guard, found.slot.offset());
                if let Some(view) = view.filter(|view| view.header.large)
                    && !found.slot.is_tombstone()
                    && !self.is_whole(&guard, &view)
                {
                    broken.push((view.key().to_vec(), view.offset, u64::from(view.len())));
                }
            }
            drop(held);
            position = next;
        }
        for (key, offset, len) in broken {
            let page = self.space.page_of(offset);
            let what = "a large value that misses a piece".to_owned();
            let keys = vec![(key.clone(), Fate::Lost)];
            repair.add(tell, Finding { page, offset, len, what, keys });
            let write = WriteOptions::default();
            let _outcome = self.write(&key, &write, &mut |_, _, _| Ok(WritePlan::Delete))?;
        }
        Ok(())
    }

    /// True if every piece of a large value is there and sound.
    fn is_whole(&self, guard: &Guard, view: &View<'_>) -> bool {
        self.pieces(guard, view, false).is_ok()
            && fragment_offsets(view).all(|offset| {
                let page = self.space.page_of(offset);
                self.sound(guard, self.pages.cell(page).generation(), offset).is_ok()
            })
    }
}
