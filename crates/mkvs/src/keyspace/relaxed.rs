//! Writes that return before they are durable.
//!
//! A ticket of a device says nothing to others, and a write is on several devices. So such a write
//! gets a ticket of the matrix, a number that counts up; and what is synced is all members, which
//! makes everything durable that had a number before.

use super::Keyspace;
use coreplane_engine::{Durability, Horizon, Outcome, Result, Ticket, WriteOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far such writes are.
#[derive(Debug)]
pub(crate) struct Relaxed {
    /// Of writes that name none.
    usual: Durability,
    made: AtomicU64,
    durable: AtomicU64,
    /// The membership record says that there are such writes.
    is_noted: AtomicBool,
}

/// True for writes that are given to other members before they are durable on the primary.
pub(crate) fn is_unordered(durability: Durability) -> bool {
    matches!(durability, Durability::Relaxed { .. })
}

impl Relaxed {
    pub(crate) fn new(usual: Durability) -> Self {
        let [made, durable] = [const { AtomicU64::new(0) }; 2];
        Self { usual, made, durable, is_noted: AtomicBool::new(is_unordered(usual)) }
    }

    /// True if a write may be durable on another member before it is on the primary, and no record says yet that
    /// there are such.
    #[inline]
    pub(crate) fn is_first(&self, options: &WriteOptions) -> bool {
        is_unordered(options.durability.unwrap_or(self.usual))
            && !self.is_noted.load(Ordering::Acquire)
    }

    /// The membership record says that there are such writes.
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_asked(&self, options: &WriteOptions) -> bool {
        matches!(options.durability.unwrap_or(self.usual), Durability::Relaxed { .. })
    }

    /// What a batch is made with: whoever looks after a crash whether all of it is there must find
    /// what was there when its intent went.
    pub(crate) fn raised(&self, options: &WriteOptions) -> Option<Durability> {
        if self.is_asked(options) { Some(Durability::Strict) } else { options.durability }
    }

    /// True if there is something to sync.
    pub(crate) fn is_behind(&self) -> bool {
        self.durable.load(Ordering::Acquire) < self.made.load(Ordering::Acquire)
    }
}

impl Keyspace {
    /// What is said of a write that has come to all that it waits for, and to the rings of the others.
    /// The caller has the key's lock.
    #[inline]
    pub(crate) fn with_ticket(&self, outcome: Outcome, options: &WriteOptions) -> Outcome {
        if !self.relaxed.is_asked(options) {
            return outcome;
        }
        let number = self.relaxed.made.fetch_add(1, Ordering::AcqRel) + 1;
        outcome.resting_on(Ticket::new(0, number))
    }

    /// Makes everything durable that was written before the call, on every member. Who cannot is a
    /// member no more.
    ///
    /// # Errors
    /// If a group would have no member left.
    pub(crate) fn sync(&self) -> Result<()> {
        let made = self.relaxed.made.load(Ordering::Acquire);
        for group in self.groups.iter() {
            for device in group.of(group.followers()) {
                device.drain();
                if let Err(error) = group.call(device, |engine| engine.sync()) {
                    group.go_on_without(device, error)?;
                }
            }
        }
        self.relaxed.durable.fetch_max(made, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn is_durable(&self, horizon: &Horizon) -> bool {
        let durable = self.relaxed.durable.load(Ordering::Acquire);
        horizon.tickets().iter().all(|ticket| ticket.position() <= durable)
    }

    /// # Errors
    /// As [`Self::sync`], and if nobody knows who has one of the writes.
    pub(crate) fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        if self.is_durable(horizon) {
            return Ok(());
        }
        self.sync()?;
        self.groups.iter().try_for_each(|group| {
            let is_sure = self.in_flight.sure_of(group.number, group.members(), |_| true) != 0;
            if is_sure { Ok(()) } else { Err(group.gone()) }
        })
    }
}
