//! What a server allows, and its budget of memory.
//!
//! Bodies and answers are the memory that clients decide about. Each holds a share of one budget, in pages of 4 KiB; a
//! request that the budget has no room for is refused before its bytes are kept. Shares return what they hold when they
//! are dropped.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How a server serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads for connections.
    pub threads: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of a request's line and headers at most.
    pub head_max: usize,
    /// Bytes of a body at most, before and after it is decoded.
    pub body_max: usize,
    /// Bytes of all bodies and answers together at most, about.
    pub memory_max: usize,
    /// Bytes of the body of a write that is done in the thread of its connection. 0 if the medium waits for syncs.
    pub inline_max: usize,
    /// Other writes at a time.
    pub writes_max: usize,
    /// Queries at a time.
    pub queries_max: usize,
    /// How long a query waits for others.
    pub query_wait: Duration,
    /// How long a query runs.
    pub query_time_max: Duration,
    /// Bytes that a query holds at most, about.
    pub query_bytes_max: usize,
    /// Buckets of time of a statement at most.
    pub query_buckets_max: usize,
    /// Threads that read for a query at a time; 0: as many as there are cores.
    pub query_threads: usize,
    /// Rows of an answer that is not in chunks, beyond which it is cut off and said to be partial; 0: all.
    pub rows_max: usize,
    /// How long the head of a request may take from its first byte.
    pub head_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// How long a body or an answer may make no progress.
    pub stall_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long requests that run have when the server stops.
    pub stop_within: Duration,
    /// The user that has the password; none: whatever name is given.
    pub user: Option<String>,
    /// The password; none: everybody may ask.
    pub password: Option<String>,
    /// Without a password clients of other machines are refused.
    pub is_protected: bool,
    /// The database of OpenTSDB's points.
    pub opentsdb_database: String,
    /// Numbers that OpenTSDB's clients write as strings are taken as numbers.
    pub opentsdb_strings_as_numbers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 2,
            connections_max: 4096,
            head_max: 64 << 10,
            body_max: 25_000_000,
            memory_max: 512 << 20,
            inline_max: 0,
            writes_max: 32,
            queries_max: 4,
            query_wait: Duration::from_secs(10),
            query_time_max: Duration::from_secs(60),
            query_bytes_max: 256 << 20,
            query_buckets_max: 10_000_000,
            query_threads: 0,
            rows_max: 0,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(180),
            stall_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(300),
            stop_within: Duration::from_secs(10),
            user: None,
            password: None,
            is_protected: true,
            opentsdb_database: "opentsdb".to_owned(),
            opentsdb_strings_as_numbers: true,
        }
    }
}

/// Bytes of a permit.
const PAGE: usize = 4096;

/// Memory that bodies and answers share.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    pages: Arc<Semaphore>,
    pages_max: usize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        let pages_max = (bytes / PAGE).clamp(1, Semaphore::MAX_PERMITS);
        Self { pages: Arc::new(Semaphore::new(pages_max)), pages_max }
    }

    /// Bytes that all shares hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.pages_max.saturating_sub(self.pages.available_permits()) * PAGE) as u64
    }

    /// A share of nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), held: None }
    }
}

/// The budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What one body or answer holds.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Holds so many bytes at least from now on, or no more than before.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(PAGE).saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).map_err(|_| NoRoom)?;
        let pages = Arc::clone(&self.budget.pages);
        let permit = pages.try_acquire_many_owned(more).map_err(|_| NoRoom)?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_together_and_returned() {
        let budget = Budget::new(10 * PAGE);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert_eq!(one.grow_to(6 * PAGE), Ok(()));
        assert_eq!(other.grow_to(5 * PAGE), Err(NoRoom));
        assert_eq!(other.grow_to(4 * PAGE), Ok(()));
        assert_eq!(other.grow_to(3 * PAGE), Ok(()), "it has them");
        assert_eq!(other.grow_to(4 * PAGE + 1), Err(NoRoom));
        assert_eq!(budget.held_bytes(), 10 * PAGE as u64);
        drop(one);
        assert_eq!(budget.held_bytes(), 4 * PAGE as u64);
        assert_eq!(other.grow_to(10 * PAGE), Ok(()));
        assert_eq!(other.grow_to(usize::MAX), Err(NoRoom));
    }
}
