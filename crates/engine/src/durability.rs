//! When a write returns, and which tickets an answer depends on.

use std::time::Duration;

/// When a write is safe from a power cut. The names are the same in library, server and docs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Returns after its own durable fence.
    #[default]
    Strict,
    /// As `Strict`, but the waiting writes share fences; they are flushed at once when the queue
    /// drains. The bounds are only upper bounds.
    Group {
        /// The most writes that share a fence.
        max_ops: u32,
        /// The longest time that a write waits for others to join it; or for its caller to commit,
        /// if the caller does not wait ([`Completion::Early`]).
        max_delay: Duration,
    },
    /// On files: visible at once, durable within the window; after a crash each key is at its newest
    /// surviving version, never torn. Where a fence is an instruction it is the same as `Strict`, since
    /// it was nowhere faster (`docs/concepts.md`).
    Relaxed {
        /// The most bytes of one log that may be not yet durable.
        window_bytes: u64,
        /// The longest time until a write is durable.
        window: Duration,
    },
}

impl Durability {
    /// `group` with its usual bounds: 64 writes, 100 microseconds.
    pub const GROUP: Self = Self::Group { max_ops: 64, max_delay: Duration::from_micros(100) };

    /// `relaxed` with its usual window: 256 KiB per log, 10 milliseconds.
    pub const RELAXED: Self =
        Self::Relaxed { window_bytes: 256 << 10, window: Duration::from_millis(10) };
}

/// Whether a write waits until it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completion {
    /// Durable, then visible, then return.
    #[default]
    Wait,
    /// Visible at once; the caller withholds all answers that depend on it until the ticket is
    /// durable. That is no later than the caller's `Deferred::commit`; under `Group` the engine
    /// makes it durable within `max_delay` even without a commit.
    Early,
}

/// Which records a read may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    /// Only durable records: a read that meets a record which is not yet durable waits for it
    /// (records written `Relaxed` to a file are seen at once, as their writer requested).
    #[default]
    Durable,
    /// All visible records; the caller withholds its answer until the ticket is durable.
    Early,
}

/// The place of a write in its log: durable once the log is durable up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    const POSITION_BITS: u32 = 52;

    /// The ticket of a write that is already durable.
    pub const DURABLE: Self = Self(0);

    /// Position `position` (at least 1; counts up within a log) of log `log` (below 4096).
    pub fn new(log: u16, position: u64) -> Self {
        debug_assert!(u32::from(log) < 1 << (64 - Self::POSITION_BITS));
        debug_assert!(position > 0 && position < 1 << Self::POSITION_BITS);
        Self(u64::from(log) << Self::POSITION_BITS | position)
    }

    /// True for [`Ticket::DURABLE`].
    pub fn is_durable(self) -> bool {
        self.0 == 0
    }

    /// The log.
    pub fn log(self) -> u16 {
        (self.0 >> Self::POSITION_BITS) as u16
    }

    /// The position in it.
    pub fn position(self) -> u64 {
        self.0 & ((1 << Self::POSITION_BITS) - 1)
    }
}

/// The latest ticket per log of all writes that a reply, a batch or a reader depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Horizon {
    tickets: Vec<Ticket>,
}

impl Horizon {
    /// A horizon that is already durable.
    pub const fn new() -> Self {
        Self { tickets: Vec::new() }
    }

    /// Covers `ticket` too.
    pub fn include(&mut self, ticket: Ticket) {
        if ticket.is_durable() {
            return;
        }
        match self.tickets.iter_mut().find(|held| held.log() == ticket.log()) {
            Some(held) => *held = (*held).max(ticket),
            None => self.tickets.push(ticket),
        }
    }

    /// Covers all of `other` too.
    pub fn merge(&mut self, other: &Horizon) {
        for ticket in &other.tickets {
            self.include(*ticket);
        }
    }

    /// The latest ticket of each log.
    pub fn tickets(&self) -> &[Ticket] {
        &self.tickets
    }

    /// True if nothing is waited for.
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Removes all tickets; keeps the memory.
    pub fn clear(&mut self) {
        self.tickets.clear();
    }
}

impl From<Ticket> for Horizon {
    fn from(ticket: Ticket) -> Self {
        let mut horizon = Self::new();
        horizon.include(ticket);
        horizon
    }
}
