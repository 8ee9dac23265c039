//! Iteration over places, some of which are empty, instead of keys.

use super::ModelEngine;
use super::state::State;
use coreplane_engine::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Empty places that a call passes, unless it is asked for more records.
const PASSED_MAX: usize = 128;

impl ModelEngine {
    /// Shows the records of whole places, of which there are `2^bits`, and returns the next cursor.
    pub(super) fn iterate_places(
        &self,
        state: &State,
        bits: u32,
        (cursor, count): (u64, usize),
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> u64 {
        let shift = u64::BITS - bits;
        let (mut met, mut passed) = (0, 0);
        for place in cursor >> shift..1 << bits {
            self.looked_at.fetch_add(1, Ordering::Relaxed);
            let before = met;
            let start = (place << shift, Arc::from([].as_slice()));
            let of_place =
                state.order.range(start..).take_while(|(hash, _)| hash >> shift == place);
            for (_, key) in of_place {
                // An expired record is a step, too.
                met += usize::from(state.cells.get(key).is_some_and(|cell| cell.value.is_some()));
                if let Some(cell) = state.live(key) {
                    let record = cell.record(state.ticket_of(cell));
                    visit(Entry { key, record, sequence: cell.sequence });
                }
            }
            passed += usize::from(met == before);
            let is_last = place + 1 == 1 << bits;
            if !is_last && (met >= count || passed >= count.max(PASSED_MAX)) {
                return (place + 1) << shift | 1;
            }
        }
        0
    }
}
