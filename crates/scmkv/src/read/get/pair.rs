//! The get of nearly every key.

use super::AHEAD;
use crate::read::Reader;
use crate::read::gate::Gate;
use crate::table::hash::Place;
use coreplane_engine::{Record, Ticket, Value};
use coreplane_pmem::epoch::Guard;

impl Reader {
    /// The live record of `key` as a reader may see it, if one look suffices: the first slot with
    /// its signature leads to it, it is durable, whole and has no expiry, and no batch is published
    /// meanwhile. None proves nothing.
    ///
    /// This is the get of nearly every key, and all of it is here: short enough that the processor
    /// begins the next get while the lines of this one are on their way.
    #[inline(always)]
    pub(super) fn find_pair<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
        place: Place,
    ) -> Option<Record<'g>> {
        if self.check_reads {
            return None;
        }
        let before = self.gate.look()?;
        let offset = self.index.likely(place)?.record_that_stays()?;
        // Prefetch before the first line, which has the length, has arrived.
        (1..AHEAD).for_each(|line| self.space.prefetch(offset + 64 * line));
        let pair = self.pair(guard, offset)?;
        self.prefetch_rest(offset, pair.len());
        if !pair.is_of(key) || !self.gate.is_unchanged(before) {
            return None;
        }
        if !self.is_covered(offset, pair.len()) {
            return None;
        }
        let value = Value::Whole(pair.value);
        Some(Record { value, sequence: pair.sequence, expires_at: None, ticket: Ticket::DURABLE })
    }
}

impl Gate {
    /// The count to compare with afterwards, unless a batch is being published.
    #[inline]
    fn look(&self) -> Option<u64> {
        let count = self.count();
        (count & 1 == 0).then_some(count)
    }
}
