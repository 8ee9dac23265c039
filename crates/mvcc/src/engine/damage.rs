//! Keys whose newest record is damaged, for callers that have copies elsewhere.

use super::Store;
use super::walk::Place;
use crate::volume::flip::one_bit_off;
use coreplane_engine::{DamagedKey, KeyRange, Result, Ticket};
use coreplane_pmem::epoch::Guard;
use coreplane_record::Kind;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

impl Store {
    /// The keys whose newest record is damaged and is, or may be, newer than `sequence`.
    ///
    /// # Errors
    /// If the map cannot be read, and if the medium fails.
    pub(super) fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        let mut damaged = Vec::new();
        let all = (u64::MAX, usize::MAX);
        self.walk(Place::Up(Vec::new()), all, &mut |guard, met| {
            let its = match met.view {
                // The checksum of a record that means absence was verified.
                Ok(view) if view.sequence() <= sequence || !met.is_live => None,
                Ok(view) => {
                    let checked = self.show(guard, &view, Ticket::DURABLE, true, &mut |_| {});
                    checked.is_err().then(|| self.sequence_of_damaged(guard, met.key, met.offset))
                }
                // Of what its keys were nothing is known, and no write there would replace it.
                Err(error) if met.gap.is_some() => return Err(error),
                Err(_) if self.is_doubtful(guard, met.offset) => None,
                Err(_) => Some(self.sequence_of_damaged(guard, met.key, met.offset)),
            };
            if let Some(sequence) = its.filter(|its| *its > sequence) {
                let (start, end) = (met.key.to_vec(), Some([met.key, &[0]].concat()));
                damaged.push(DamagedKey { within: KeyRange { start, end }, sequence });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(damaged)
    }

    /// True if a record is sound, so that nothing but a lost record of an unknown key may be newer.
    fn is_doubtful(&self, guard: &Guard, offset: u64) -> bool {
        let view = self.volume.view(guard, offset);
        view.is_ok_and(|it| it.header.kind != Kind::Lost && self.volume.check(&it).is_ok())
    }

    /// The sequence of a damaged record: that of the record with one bit flipped; if more are, one that is not below
    /// it.
    pub(super) fn sequence_of_damaged(&self, guard: &Guard, key: &[u8], offset: u64) -> u64 {
        let (volume, space) = (&self.volume, &self.volume.space);
        if let Ok(view) = volume.view(guard, offset)
            && volume.check(&view).is_ok()
        {
            // Its value, in pages of its own, is damaged.
            return view.sequence();
        }
        let page = space.page_of(offset);
        let end = space.start_of(page) + u64::from(space.page_size());
        let bytes = space.bytes(guard, offset, end - offset).unwrap_or_default();
        let life = volume.table.life(page).ok().flatten();
        let seed = life.map(|life| volume.seed_at(life.birth, offset));
        let hurt = seed.and_then(|seed| one_bit_off(bytes, seed, offset));
        match hurt.filter(|(hurt, _)| &*hurt.key == key) {
            Some((hurt, _)) => hurt.header.sequence.unwrap_or(hurt.header.version),
            None => self.next_version.load(Ordering::Relaxed).saturating_sub(1),
        }
    }
}
