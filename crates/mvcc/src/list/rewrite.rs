//! What an opening writes when it has read a list: so that what it has found not to count, and what is damaged, is not in
//! the pool any more, and what it knows of the damage is.
//!
//! ```text
//!   stream   [a₁ ✗ b₂] [c₃ d₄ ✂]                         damage, and later a torn end
//!         ─▶ [a₁ ✗ b₂] [c₃ d₄ ✂] [lost  c₃ d₄ …          what is behind ✂ is void as long as ✂ is there
//!         ─▶ [a₁ ✗ b₂]           [lost  c₃ d₄ …          the lost record says that ✗ is before ✂, and so no torn end
//!         ─▶                     [lost  c₃ d₄ a₁ b₂ …
//! ```
//!
//! Whatever the power leaves of that, the next opening comes to the same end. Where there is no page for what lives in a
//! damaged one, it stays: the damage speaks for itself. Where there is none for the lost records either, the pool is refused as
//! full; what writes leave to clears and deletes is enough for those of a page.

use super::List;
use super::damage::Doubt;
use crate::key::Key;
use crate::map::Map;
use crate::volume::stream::Position;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{epoch, mutant};
use coreplane_record::{Header, Kind};

/// A key whose newest record is damaged, and what that said of itself.
pub(super) struct Lost {
    pub(super) key: Key,
    pub(super) header: Header,
}

/// What is left to do of an opening that has read all.
pub(super) struct Left {
    /// Pages that are void, each from some place on.
    pub(super) voids: Vec<(u32, u64)>,
    pub(super) lost: Vec<Lost>,
    /// Pages with damage, and their births, in the order of these.
    pub(super) damaged: Vec<(u64, u32)>,
}

/// Moves what lives in the page that ends with what a cut has left, and in those that are damaged, and frees them and all
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
    /// Writes down what is lost.
    fn write_lost(&mut self, lost: Vec<Lost>, void_from: Option<Position>) -> Result<()> {
        // A pool that is full may have a page now.
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
            // It proves that there was damage, and says nothing else.
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
            // A pool that is full has a page now, if it has no other.
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
                self.stream.pages.keep(page, true);
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
