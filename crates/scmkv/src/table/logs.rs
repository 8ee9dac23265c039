//! The logs of the threads: whose is taken, in which order a write of it becomes durable, and what
//! is left of writers that do not wait.

use crate::table::Table;
use crate::table::demand::Demand;
use crate::table::log::{Log, Order};
use coreplane_engine::{Completion, Durability, Error, Result, WriteOptions};
use coreplane_pmem::{spin, thread_number};
use std::sync::atomic::Ordering;

impl Table {
    /// How a write with these options becomes durable.
    pub(crate) fn order(&self, options: &WriteOptions) -> Result<Order> {
        Ok(match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => {
                // Where a fence is a sync nobody waits for it under a lock: the record is
                // published early, and whoever wants it durable waits for its ticket.
                match (self.space.fences_at_once(), options.completion) {
                    (true, Completion::Wait) => Order::Strict,
                    (true, Completion::Early) => Order::Staged,
                    (false, _) => Order::Early,
                }
            }
            // It gains nothing where a fence is an instruction.
            Durability::Relaxed { .. } if self.space.fences_at_once() => Order::Strict,
            Durability::Relaxed { window_bytes, window } => {
                self.note_non_strict()?;
                Order::Relaxed { window_bytes, window }
            }
        })
    }

    /// The log of this thread, to write to, with nothing staged in it.
    ///
    /// # Errors
    /// As [`Table::my_log_staging`], and if what was staged cannot be committed.
    #[inline]
    pub(crate) fn my_log(&self) -> Result<spin::Held<'_, Log>> {
        let mut log = self.my_log_staging()?;
        self.commit_staged(&mut log)?;
        Ok(log)
    }

    /// As [`Table::my_log`], if nobody else has it and a put of `len` bytes fits its open page.
    ///
    /// # Errors
    /// As [`Table::my_log`].
    #[inline]
    pub(crate) fn my_log_at_once(&self, len: usize) -> Result<Option<spin::Held<'_, Log>>> {
        let log = self.logs[thread_number() % self.logs.len()].try_lock();
        let Some(mut log) = log.filter(|log| log.room_for(Demand::Insert) >= len) else {
            return Ok(None);
        };
        self.check_open()?;
        self.commit_staged(&mut log)?;
        Ok(Some(log))
    }

    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// The log of this thread, to write to.
    ///
    /// # Errors
    /// If the store was closed while this thread waited for it: a closed store's logs are sealed.
    #[inline]
    pub(crate) fn my_log_staging(&self) -> Result<spin::Held<'_, Log>> {
        let log = self.logs[thread_number() % self.logs.len()].lock();
        self.check_open()?;
        Ok(log)
    }

    /// Makes durable what writers have left that do not wait. Logs that are in use come last, so
    /// that one whose owner is busy delays no other.
    pub(crate) fn end_windows(&self) -> Result<()> {
        let settle = |log: &mut Log| if log.is_unsettled() { log.settle(self) } else { Ok(()) };
        let mut busy = Vec::new();
        for log in &self.logs {
            match log.try_lock() {
                Some(mut log) => settle(&mut log)?,
                None => busy.push(log),
            }
        }
        busy.into_iter().try_for_each(|log| settle(&mut log.lock()))
    }

    /// Wakes the background threads.
    pub(crate) fn wake(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
        if self.closed.load(Ordering::Acquire) {
            self.windows.wake();
        }
    }
}
