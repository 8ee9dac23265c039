//! What is durable, and waiting for it, where a fence is a sync.
//!
//! On media that fence by an instruction every write is durable when it is visible, and there is
//! nothing to do here. On `file` media a write is visible early, in an index that does not
//! outlive a crash, and its ticket is the generation of the sync that will cover it.

use crate::log::{Log, Order};
use crate::page::sync_failed;
use crate::store::Store;
use coreplane_engine::{Horizon, Result, Ticket};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was published before it was durable.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// The generation of the last early write.
    last: AtomicU64,
    /// Up to where a page is durable once a generation is.
    pending: Mutex<VecDeque<Pending>>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    generation: u64,
    page: u32,
    tail: u32,
}

impl Store {
    /// The ticket of a write that was just made in `log`.
    #[inline]
    pub(crate) fn written_ticket(&self, order: Order, log: &Log) -> Ticket {
        if order != Order::Early {
            return Ticket::DURABLE;
        }
        let generation = self.space.sync_begin();
        self.early.last.fetch_max(generation, Ordering::AcqRel);
        if let Some((page, tail)) = log.tail() {
            let mut pending = self.early.pending.lock();
            match pending.back_mut() {
                Some(last) if last.generation == generation && last.page == page => {
                    last.tail = last.tail.max(tail);
                }
                _ => pending.push_back(Pending { generation, page, tail }),
            }
        }
        Ticket::new(0, generation.max(1))
    }

    /// The ticket of everything that is visible now.
    pub(crate) fn early_ticket(&self) -> Ticket {
        let last = self.early.last.load(Ordering::Acquire);
        if last == 0 || matches!(self.space.sync_is_done(last), Ok(true)) {
            return Ticket::DURABLE;
        }
        Ticket::new(0, last)
    }

    pub(crate) fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        for ticket in horizon.tickets() {
            if !self.space.sync_is_done(ticket.position()).map_err(sync_failed)? {
                return Ok(false);
            }
        }
        self.mark_done();
        Ok(true)
    }

    pub(crate) fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        for ticket in horizon.tickets() {
            if !self.space.sync_is_done(ticket.position()).map_err(sync_failed)? {
                self.space.fence().map_err(sync_failed)?;
            }
        }
        self.mark_done();
        Ok(())
    }

    /// Raises the durable watermarks of pages whose sync has ended.
    pub(crate) fn mark_done(&self) {
        let Some(mut pending) = self.early.pending.try_lock() else { return };
        while let Some(first) = pending.front() {
            if !matches!(self.space.sync_is_done(first.generation), Ok(true)) {
                return;
            }
            self.space.mark_durable(first.page, first.tail);
            pending.pop_front();
        }
    }
}
