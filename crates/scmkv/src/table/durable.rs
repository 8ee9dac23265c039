//! What is durable, and waiting for it, where a fence is a sync.
//!
//! On media that fence by an instruction every write is durable when it is visible; what has no
//! ticket is durable already, and what has one is [`staged`](crate::table::stage). On `file` media a
//! write is visible early, in an index that does not outlive a crash, and its ticket is the
//! generation of the sync that will cover it.
//!
//! ```text
//!   append ─▶ flush ─▶ draw the generation, note it ─▶ watermark, slot ─▶ ticket
//! ```
//!
//! The generation is noted *before* anything can be seen: whoever sees the record then finds a
//! generation that covers it, and can never take that of an older sync, which has ended, for it.
//! The same holds for absences, and for the clock's mark that an expiry rests on.

use crate::table::Table;
use crate::table::log::{Log, Order};
use crate::table::page::sync_failed;
use coreplane_engine::{Durability, Horizon, Result, Ticket, WriteOptions};
use coreplane_pmem::Space;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What was published before it was durable.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// The generation that covers all that is visible.
    last: AtomicU64,
    /// Up to where a page is durable once a generation is: of open pages alone, and one a page
    /// and generation.
    pending: Mutex<VecDeque<Pending>>,
}

impl Early {
    /// What was flushed is about to be seen: the generation that covers it.
    pub(crate) fn cover(&self, space: &Space) -> u64 {
        let generation = space.sync_generation();
        self.last.fetch_max(generation, Ordering::AcqRel);
        generation
    }
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    generation: u64,
    page: u32,
    tail: u32,
}

impl Table {
    /// An early write that was flushed is about to be seen, up to `tail` of `page`: the generation
    /// that covers it.
    pub(crate) fn note_early(&self, page: u32, tail: u32) -> u64 {
        let generation = self.early.cover(&self.space);
        let mut pending = self.early.pending.lock();
        let mut of_page = pending
            .iter_mut()
            .rev()
            .take_while(|it| it.generation >= generation)
            .filter(|it| it.generation == generation && it.page == page);
        match of_page.next() {
            Some(known) => known.tail = known.tail.max(tail),
            None => {
                // Those that are done go now, whether or not anybody ever asks.
                self.raise_done(&mut pending);
                pending.push_back(Pending { generation, page, tail });
            }
        }
        generation
    }

    /// `page` is full and settled: what was early in it is done with, before the page can be used
    /// again.
    pub(crate) fn end_early(&self, page: u32) {
        if !self.space.fences_at_once() {
            self.early.pending.lock().retain(|it| it.page != page);
        }
    }

    /// The ticket of a write that was just made in `log`.
    #[inline]
    pub(crate) fn written_ticket(&self, order: Order, log: &Log) -> Ticket {
        if order != Order::Early {
            return Ticket::DURABLE;
        }
        Ticket::new(0, log.early_generation().max(1))
    }

    /// The bound of a write's durability on how long it may wait for others, if it has one.
    #[inline]
    pub(crate) fn max_delay(&self, options: &WriteOptions) -> Option<Duration> {
        match options.durability.unwrap_or(self.durability) {
            Durability::Group { max_delay, .. } => Some(max_delay),
            _ => None,
        }
    }

    /// Where a fence is a sync: sees to it that what an early write rests on is durable within
    /// its bound, should its caller never ask. (A staged one has been seen to.)
    #[inline]
    pub(crate) fn bound_early(&self, ticket: Ticket, options: &WriteOptions) {
        if !ticket.is_durable()
            && !self.space.fences_at_once()
            && let Some(max_delay) = self.max_delay(options)
        {
            self.windows.opened(max_delay);
        }
    }

    /// Asks for the sync of all that is visible early, without waiting for it.
    pub(crate) fn request_early(&self) {
        // A locked instruction: a write that was noted before it opened its window is seen, as its
        // own note is one.
        let last = self.early.last.fetch_max(0, Ordering::AcqRel);
        if last > 0 && !matches!(self.space.sync_is_done(last), Ok(true)) {
            self.space.sync_request(last);
        }
    }

    /// The ticket of everything that is visible now, absences too.
    pub(crate) fn early_ticket(&self) -> Ticket {
        let last = self.early.last.load(Ordering::Acquire);
        if last == 0 || matches!(self.space.sync_is_done(last), Ok(true)) {
            return Ticket::DURABLE;
        }
        Ticket::new(0, last)
    }

    /// As [`Table::early_ticket`]; nothing is early where a fence is an instruction.
    pub(crate) fn visible_ticket(&self) -> Ticket {
        if self.space.fences_at_once() { Ticket::DURABLE } else { self.early_ticket() }
    }

    /// Makes `horizon` durable where a fence is an instruction, asks for the sync of all where it
    /// is one; says whether it is durable.
    pub(crate) fn commit(&self, horizon: &Horizon) -> Result<bool> {
        if self.space.fences_at_once() {
            self.commit_tickets(horizon)?;
        } else if let Some(last) = horizon.tickets().iter().map(|ticket| ticket.position()).max() {
            self.space.sync_request(last);
        }
        self.is_durable(horizon)
    }

    pub(crate) fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        if self.space.fences_at_once() {
            return self.are_committed(horizon);
        }
        for ticket in horizon.tickets() {
            if !self.space.sync_is_done(ticket.position()).map_err(sync_failed)? {
                return Ok(false);
            }
        }
        self.mark_done();
        Ok(true)
    }

    pub(crate) fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        if self.space.fences_at_once() {
            return self.commit_tickets(horizon);
        }
        for ticket in horizon.tickets() {
            if !self.space.sync_is_done(ticket.position()).map_err(sync_failed)? {
                self.space.fence().map_err(sync_failed)?;
            }
        }
        self.mark_done();
        Ok(())
    }

    /// Makes everything durable that was written before the call, whatever its durability.
    pub(crate) fn sync(&self) -> Result<()> {
        self.end_windows()?;
        self.space.fence().map_err(sync_failed)
    }

    /// Raises the durable watermarks of pages whose sync has ended.
    fn mark_done(&self) {
        if let Some(mut pending) = self.early.pending.try_lock() {
            self.raise_done(&mut pending);
        }
    }

    fn raise_done(&self, pending: &mut VecDeque<Pending>) {
        while let Some(first) = pending.front() {
            if !matches!(self.space.sync_is_done(first.generation), Ok(true)) {
                return;
            }
            self.space.mark_durable(first.page, first.tail);
            pending.pop_front();
        }
    }
}
