//! Writes that return before they are durable.
//!
//! The ticket of one device means nothing to another, and a write is on several devices. So such a write gets
//! a ticket of the matrix: a number that counts up. A sync covers all members, and makes every write durable
//! that had a number before.

use super::Keyspace;
use coreplane_engine::{Durability, Horizon, Outcome, Result, Ticket, WriteOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of such writes.
#[derive(Debug)]
pub(crate) struct Relaxed {
    /// The durability of writes that name none.
    usual: Durability,
    made: AtomicU64,
    durable: AtomicU64,
    /// The membership record notes that there are such writes.
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

    /// True if a write may be durable on another member before it is on the primary, and the membership
    /// record does not note such writes yet.
    #[inline]
    pub(crate) fn is_first(&self, options: &WriteOptions) -> bool {
        self.is_asked(options) && !self.is_noted()
    }

    /// True if the membership record notes that there may be such writes.
    pub(crate) fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Acquire)
    }

    /// The membership record notes now that there are such writes.
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_asked(&self, options: &WriteOptions) -> bool {
        is_unordered(options.durability.unwrap_or(self.usual))
    }

    /// The durability of a batch. An open after a crash, which checks whether the whole batch is there, must
    /// find every write that was there when the intent was deleted.
    pub(crate) fn raised(&self, options: &WriteOptions) -> Option<Durability> {
        if self.is_asked(options) { Some(Durability::Strict) } else { options.durability }
    }

    /// True if there is something to sync.
    pub(crate) fn is_behind(&self) -> bool {
        self.durable.load(Ordering::Acquire) < self.made.load(Ordering::Acquire)
    }
}

impl Keyspace {
    /// Gives a ticket to a write that is on all devices that it waits for, and in the rings of the others.
    /// The caller has the key lock.
    #[inline]
    pub(crate) fn with_ticket(&self, outcome: Outcome, options: &WriteOptions) -> Outcome {
        if !self.relaxed.is_asked(options) {
            return outcome;
        }
        let number = self.relaxed.made.fetch_add(1, Ordering::AcqRel) + 1;
        outcome.resting_on(Ticket::new(0, number))
    }

    /// Makes all earlier writes durable on every member. A device that fails to is no longer a member.
    ///
    /// # Errors
    /// If a group would have no member left.
    pub(crate) fn sync(&self) -> Result<()> {
        let made = self.relaxed.made.load(Ordering::Acquire);
        for group in self.groups.iter() {
            for device in group.of(group.followers()) {
                device.drain();
                if let Err(error) = device.engine.call(|it| it.sync()) {
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
    /// As [`Self::sync`], and if a group has no member that surely has all of the writes.
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
