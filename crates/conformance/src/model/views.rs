//! Ordered access, and views of one moment.

use super::ModelEngine;
use super::state::Cell;
use coreplane_engine::{Entry, Ordered, Record, Result, Snapshot, Snapshots, Ticket, UnixMillis};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

impl Ordered for ModelEngine {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let state = self.lock();
        let ticket = |cell: &Cell| state.ticket_of(cell);
        show((&state.cells, state.now), (start, end, reverse), limit, &ticket, visit);
        self.count_read()
    }
}

/// Shows cells of a range that are live.
fn show(
    (cells, now): (&BTreeMap<Arc<[u8]>, Cell>, UnixMillis),
    (start, end, reverse): (&[u8], Option<&[u8]>, bool),
    limit: usize,
    ticket: &dyn Fn(&Cell) -> Ticket,
    visit: &mut dyn FnMut(Entry<'_>) -> bool,
) {
    if end.is_some_and(|end| end <= start) {
        return;
    }
    let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
    let range = cells.range::<[u8], _>(bounds);
    let mut show = |(key, cell): (&Arc<[u8]>, &Cell)| {
        let record = cell.record(ticket(cell));
        visit(Entry { key, record, sequence: cell.sequence })
    };
    let live = |(_, cell): &(&Arc<[u8]>, &Cell)| cell.is_live(now);
    if reverse {
        range.rev().filter(live).take(limit).all(&mut show);
    } else {
        range.filter(live).take(limit).all(&mut show);
    }
}

/// A copy of all cells, and of the time.
struct View {
    cells: BTreeMap<Arc<[u8]>, Cell>,
    now: UnixMillis,
    sequence: u64,
}

impl Snapshots for ModelEngine {
    /// First makes everything that it shows durable.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        let mut state = self.lock();
        let grew = state.harden();
        state.is_durable_at(state.appended)?;
        let (cells, now) = (state.cells.clone(), state.now);
        let view = View { cells, now, sequence: state.next_sequence() };
        drop(state);
        self.announce(grew);
        Ok(Box::new(view))
    }
}

impl Snapshot for View {
    fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let cell = self.cells.get(key).filter(|cell| cell.is_live(self.now));
        let record = cell.and_then(|cell| cell.record(Ticket::DURABLE));
        let found = record.is_some();
        record.into_iter().for_each(visit);
        Ok(found)
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let durable = |_: &Cell| Ticket::DURABLE;
        show((&self.cells, self.now), (start, end, reverse), limit, &durable, visit);
        Ok(())
    }
}
