//! The records that a repair writes to the logs.

use super::survey::{RECORD_MIN, Surveyed};
use crate::store::Store;
use crate::table::log::{Log, Order};
use crate::table::page::sync_failed;
use crate::table::run::Run;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use coreplane_record::{HEADER, Header, Kind};
use std::ops::Range;

impl Store {
    /// Writes commit records for these members of batches, so many in each that any page has room
    /// for it; durable when it returns.
    pub(super) fn write_commits(&self, runs: &[Run]) -> Result<()> {
        let mut log = self.logs[0].lock();
        for runs in runs.chunks(16) {
            let header = Header { kind: Kind::Commit, ..Header::put(0) };
            let value: Vec<u8> = runs.iter().flat_map(|run| run.to_bytes()).collect();
            self.write_record(&mut log, &header, &[], &value)?;
        }
        log.seal(self)?;
        self.space.fence().map_err(sync_failed)
    }

    /// Appends a record, durable when it returns, in a page of the reserve if there is no other.
    pub(super) fn write_record(
        &self,
        log: &mut Log,
        header: &Header,
        key: &[u8],
        value: &[u8],
    ) -> Result<u64> {
        let len = header.record_len(key, value.len());
        if !log.make_room(self, len, 0)? {
            return Err(Error::NoSpace { needed: len as u64, reclaimable: 0 });
        }
        let appended = log.append(self, header, key, &[value], Order::Strict)?;
        log.forget_live(appended.len);
        log.commit(self, appended.offset, Order::Strict)?;
        Ok(appended.offset)
    }

    /// Puts `Lost` records over the gaps of a page, and ends it where its records end.
    pub(super) fn mend(&self, surveyed: &Surveyed) -> Result<()> {
        let Surveyed { log, start, mut tail, ref gaps } = *surveyed;
        let bytes = self.space.bytes(&epoch::pin(), start, tail - start).map(<[u8]>::to_vec);
        let mut bytes = bytes.unwrap_or_default();
        for Range { start: at, end } in gaps {
            if end - at < RECORD_MIN {
                // Only at the end of a page.
                tail = *at;
                continue;
            }
            // The bytes behind the header stay, for an inspection.
            let header = Header { kind: Kind::Lost, ..Header::put(0) };
            let range = (at - start) as usize..(end - start) as usize;
            let (head, rest) = bytes[range].split_at_mut(HEADER);
            let seed = self.seed(log.element.generation, *at);
            head.copy_from_slice(header.encode(seed, &[], &[rest]).bytes());
        }
        let len = (tail - start) as u32;
        self.rewrite(log.page, &bytes[..len as usize])?;
        if log.element.length == Some(len) { Ok(()) } else { self.pages.seal_cut(log.page, len) }
    }

    /// Writes a page once more, unchanged except for its gaps: if a crash ends that, sound records
    /// stay sound.
    fn rewrite(&self, page: u32, bytes: &[u8]) -> Result<()> {
        let (space, in_use) = (&self.space, || Error::Unusable(format!("page {page} is in use")));
        if !space.retire(page) {
            return Err(in_use());
        }
        super::reclaim_all(space)?;
        let mut writer = space.claim_log(page).ok_or_else(in_use)?;
        writer.append(&[bytes]);
        writer.flush_from(space.start_of(page));
        space.fence().map_err(sync_failed)?;
        writer.publish();
        Ok(())
    }
}
