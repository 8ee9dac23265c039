//! Durability tickets, and waiting for them, where a fence is a sync.
//!
//! On media that fence by an instruction every write is durable when it is visible; only
//! [`staged`](crate::table::stage) writes have a ticket. On `file` media a write is visible early,
//! in an index that does not outlive a crash, and its ticket is the generation of the sync that
//! will cover it.
//!
//! ```text
//!   append ─▶ flush ─▶ draw the generation, note it ─▶ watermark, slot ─▶ ticket
//! ```
//!
//! The generation is noted *before* the record can be seen. A reader that sees the record then
//! finds a generation that covers it, and never the generation of an older sync that has ended. The
//! same holds for absences, and for the clock's mark on which an expiry rests.

use crate::table::Table;
use crate::table::log::{Log, Order};
use crate::table::page::sync_failed;
use coreplane_engine::{Durability, Horizon, Result, Ticket, WriteOptions};
use coreplane_pmem::Space;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The writes that were published before they were durable.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// The generation that covers everything visible.
    last: AtomicU64,
    /// Up to where a page is durable once a generation is. For open pages alone, with one entry for
    /// each page and generation.
    pending: Mutex<VecDeque<Pending>>,
}

impl Early {
    /// Returns the generation that covers the flushed bytes that are about to become visible.
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
    /// Notes that a flushed early write, up to `tail` of `page`, is about to become visible.
    /// Returns the generation that covers it.
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
                // Drop the entries that are done, since possibly no caller ever asks for them.
                self.raise_done(&mut pending);
                pending.push_back(Pending { generation, page, tail });
            }
        }
        generation
    }

    /// `page` is full and settled: drops its early entries before the page can be used again.
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

    /// How long a write may wait for others, if its durability level bounds that.
    #[inline]
    pub(crate) fn max_delay(&self, options: &WriteOptions) -> Option<Duration> {
        match options.durability.unwrap_or(self.durability) {
            Durability::Group { max_delay, .. } => Some(max_delay),
            _ => None,
        }
    }

    /// Where a fence is a sync: an early write, and all it rests on, becomes durable within its
    /// bound, even if its caller never asks. (Staged writes have been taken care of.)
    #[inline]
    pub(crate) fn bound_early(&self, ticket: Ticket, options: &WriteOptions) {
        if !ticket.is_durable()
            && !self.space.fences_at_once()
            && let Some(max_delay) = self.max_delay(options)
        {
            self.windows.opened(max_delay);
        }
    }

    /// Requests the sync of everything visible early, without waiting for it.
    pub(crate) fn request_early(&self) {
        // A locked instruction, as is the one that notes a write: a write that was noted before its
        // window was opened is seen here.
        let last = self.early.last.fetch_max(0, Ordering::AcqRel);
        if last > 0 && !matches!(self.space.sync_is_done(last), Ok(true)) {
            self.space.sync_request(last);
        }
    }

    /// The ticket of everything visible now, absences too.
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

    /// Makes `horizon` durable where a fence is an instruction; requests the sync where a fence is
    /// a sync. Returns whether `horizon` is durable.
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

    /// Makes all writes before the call durable, at every durability level.
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
