//! The writes of an open that has read a list: they remove damaged records, and records that do not count, from the
//! pool, and record what is known of the damage.
//!
//! ```text
//!   stream   [a₁ ✗ b₂] [c₃ d₄ ✂]                         damage, and later a torn end
//!         ─▶ [a₁ ✗ b₂] [c₃ d₄ ✂] [lost  c₃ d₄ …          records behind ✂ are void as long as ✂ is there
//!         ─▶ [a₁ ✗ b₂]           [lost  c₃ d₄ …          the lost record states that ✗ is before ✂, so no torn end
//!         ─▶                     [lost  c₃ d₄ a₁ b₂ …
//! ```
//!
//! Whatever a power cut leaves of that, the next open comes to the same result. If there is no page for the live
//! records of a damaged page, the page stays, and the damage is found again. If there is none for the lost records
//! either, the pool is refused as full; the pages that writes leave to clears and deletes are enough for the lost
//! records of one page.

use super::List;
use super::damage::Doubt;
use crate::key::Key;
use crate::map::Map;
use crate::volume::stream::Position;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{epoch, mutant};
use coreplane_record::{Header, Kind};

/// A key whose newest record is damaged, and the header of that record.
pub(super) struct Lost {
    pub(super) key: Key,
    pub(super) header: Header,
}

/// The work that is left of an open that has read everything.
pub(super) struct Left {
    /// Void pages, each from some offset on.
    pub(super) voids: Vec<(u32, u64)>,
    pub(super) lost: Vec<Lost>,
    /// Pages with damage, and their births, in the order of the births.
    pub(super) damaged: Vec<(u64, u32)>,
}

/// Moves the live records out of the page with the torn end, and out of the damaged pages, and frees these and all
/// void pages; durable when it returns.
pub(super) fn finish(mut list: List, left: Left) -> Result<List> {
    if mutant!("mvcc.list.void_stays") {
        return Ok(list);
    }
    list.stream.is_settled = false;
    let Left { voids, lost, damaged } = left;
    if !damaged.is_empty() || !lost.is_empty() {
        let void_from = voids.first().map(|(_, at)| list.stream.position(*at));
        list.write_lost(lost, void_from)?;
    }
    let is_last = !mutant!("mvcc.damage.order");
    let and_void = |it: &&(u64, u32)| voids.iter().any(|void| void.0 == it.1);
    if is_last {
        list.free_voids(&voids, &damaged)?;
    }
    for (_, page) in damaged.iter().filter(|it| !and_void(it)) {
        list.free_damaged(*page)?;
    }
    if !is_last {
        list.free_voids(&voids, &damaged)?;
    }
    list.stream.is_settled = true;
    list.settle();
    Ok(list)
}

impl List {
    /// Writes the lost records.
    fn write_lost(&mut self, lost: Vec<Lost>, void_from: Option<Position>) -> Result<()> {
        // A full pool may have a free page now.
        let _found = self.stream.await_free();
        let proven = match void_from {
            _ if mutant!("mvcc.damage.proof") => Position::default(),
            Some(from) => from,
            None => self.stream.end_position(),
        };
        let until = self.damage.doubt.map_or(Position::default(), |doubt| doubt.until);
        let doubt = Doubt { until, proven, record: None };
        let lost_record = Header { kind: Kind::Lost, ..Header::put(0) };
        let offset = self.stream.append(lost_record, &[], &[&doubt.encode()])?;
        let len = lost_record.record_len(&[], doubt.encode().len()) as u32;
        let before = match &mut self.damage.doubt {
            Some(it) => it.record.replace((offset, len)),
            // It proves that there was damage, and states nothing else.
            None => Some((offset, len)),
        };
        if let Some((offset, len)) = before {
            self.stream.supersede(offset, len);
        }
        for Lost { key, header } in lost {
            let Header { version, sequence, .. } = header;
            let header = Header { version, sequence, ..lost_record };
            let offset = self.stream.append(header, key.bytes(), &[])?;
            if let Some(versions) = self.index.get_mut(&key) {
                versions.all_mut().iter_mut().for_each(|it| *it = offset);
            }
        }
        Ok(())
    }

    fn free_voids(&mut self, voids: &[(u32, u64)], damaged: &[(u64, u32)]) -> Result<()> {
        let is_first_last = !mutant!("mvcc.recover.void_order");
        let rest: Vec<u32> = voids.iter().skip(1).map(|(page, _)| *page).collect();
        if is_first_last {
            rest.iter().for_each(|page| self.stream.pages.close(*page));
        }
        self.stream.settle()?;
        if let Some((page, until)) = voids.first() {
            // A full pool without any other free page has one now.
            let _found = self.stream.await_free();
            let guard = epoch::pin();
            if damaged.iter().any(|it| it.1 == *page) {
                self.clean_damaged(&guard, *page, *until)?;
            } else {
                self.clean_page(&guard, *page, *until)?;
            }
            drop(guard);
            self.stream.settle()?;
            self.stream.pages.close(*page);
            self.stream.settle()?;
        }
        if !is_first_last {
            rest.iter().for_each(|page| self.stream.pages.close(*page));
            self.stream.settle()?;
        }
        Ok(())
    }

    fn free_damaged(&mut self, page: u32) -> Result<()> {
        let _found = self.stream.await_free();
        let guard = epoch::pin();
        match self.clean_damaged(&guard, page, u64::MAX) {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => {
                self.stream.pages.keep(page);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        drop(guard);
        self.stream.settle()?;
        self.stream.pages.close(page);
        self.stream.settle()
    }
}
