//! The logs of the threads: which log a thread takes, in which order its writes become durable, and
//! how writes that no caller waits for are settled.

use crate::table::Table;
use crate::table::demand::Demand;
use crate::table::log::{Log, Order};
use coreplane_engine::{Completion, Durability, Error, Result, WriteOptions};
use coreplane_pmem::spin::{self, Backoff};
use coreplane_pmem::thread_number;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The delay until the next attempt at a log that its owner keeps for long.
const AGAIN: Duration = Duration::from_millis(1);

impl Table {
    /// How a write with these options becomes durable.
    #[inline(always)]
    pub(crate) fn order(&self, options: &WriteOptions) -> Result<Order> {
        let durability = options.durability.unwrap_or(self.durability);
        let is_usual = durability == Durability::Strict && options.completion == Completion::Wait;
        if is_usual && self.space.fences_at_once() {
            return Ok(Order::Strict);
        }
        self.order_of(options)
    }

    /// The same for any options.
    #[inline(never)]
    fn order_of(&self, options: &WriteOptions) -> Result<Order> {
        Ok(match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => {
                // Where a fence is a sync, no writer waits for it under the lock of a group (unless it fills
                // pages under it: a long batch, a large value that was overtaken). The record is
                // published early, and a caller that needs it durable waits for its ticket.
                match (self.space.fences_at_once(), options.completion) {
                    (true, Completion::Wait) => Order::Strict,
                    (true, Completion::Early) => Order::Staged,
                    (false, _) => Order::Early,
                }
            }
            // `relaxed` gains nothing where a fence is an instruction.
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
    /// As [`Table::my_log_staging`], and if staged writes cannot be committed.
    #[inline]
    pub(crate) fn my_log(&self) -> Result<spin::Held<'_, Log>> {
        let mut log = self.my_log_staging()?;
        self.commit_staged(&mut log)?;
        Ok(log)
    }

    /// As [`Table::my_log`], if no other thread holds it and a put of `len` bytes fits its open
    /// page.
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

    /// Makes all writes durable for which no caller waits; waits for the owner of each log.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn end_windows(&self) -> Result<()> {
        self.settle_all(|_| true).map(drop)
    }

    /// As [`Table::end_windows`], except for logs that their owners keep for long. Such an owner
    /// waits for pages; it has made its log durable before, and no other log is to wait for it. A
    /// window for these logs is opened again.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn end_windows_at_hand(&self) -> Result<()> {
        if !self.settle_all(|backoff| !backoff.is_long())? {
            self.windows.opened(AGAIN);
        }
        Ok(())
    }

    /// Settles each log when its owner lets go of it, as long as `waits` is true: no log waits for
    /// the owner of another. True if all are settled.
    fn settle_all(&self, waits: impl Fn(&Backoff) -> bool) -> Result<bool> {
        let mut busy: Vec<_> = self.logs.iter().collect();
        let mut backoff = Backoff::new();
        loop {
            let mut settled = Ok(());
            busy.retain(|log| {
                let Some(mut log) = log.try_lock() else { return true };
                if settled.is_ok() && log.is_unsettled() {
                    settled = log.settle(self);
                }
                false
            });
            settled?;
            if busy.is_empty() || !waits(&backoff) {
                return Ok(busy.is_empty());
            }
            backoff.wait();
        }
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
