//! The limits of a server, and its budget of memory.
//!
//! Bodies and answers are the memory whose size clients control. Each holds a share of one budget, in pages of 4
//! KiB; if the budget has no room for a request it is refused before its bytes are kept. Shares return their memory
//! when they are dropped.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads for connections.
    pub threads: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// The maximum length of a request's line and headers, in bytes.
    pub head_max: usize,
    /// The maximum length of a body, before and after it is decoded, in bytes.
    pub body_max: usize,
    /// The maximum bytes of all bodies and answers together, about.
    pub memory_max: usize,
    /// Writes with bodies of at most so many bytes are executed in the thread of their connection. 0 if the medium
    /// waits for syncs.
    pub inline_max: usize,
    /// Other writes at a time.
    pub writes_max: usize,
    /// Queries at a time.
    pub queries_max: usize,
    /// The time for which a query waits for others.
    pub query_wait: Duration,
    /// The maximum run time of a query.
    pub query_time_max: Duration,
    /// The maximum bytes that a query holds, about.
    pub query_bytes_max: usize,
    /// The maximum number of buckets of time of a statement.
    pub query_buckets_max: usize,
    /// Threads that read for a query at a time; 0: as many as there are cores.
    pub query_threads: usize,
    /// Rows of an answer that is not in chunks; beyond that it is cut off and marked as partial. 0: all rows.
    pub rows_max: usize,
    /// The maximum time from the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// The maximum time that a connection is idle between requests.
    pub idle_timeout: Duration,
    /// The maximum time without progress of a body or an answer.
    pub stall_timeout: Duration,
    /// The maximum time of a body.
    pub body_timeout: Duration,
    /// The time that running requests have when the server stops.
    pub stop_within: Duration,
    /// The user that has the password; none: any user name.
    pub user: Option<String>,
    /// The password; none: no authentication.
    pub password: Option<String>,
    /// Refuses clients of other machines if no password is set.
    pub is_protected: bool,
    /// The database of OpenTSDB's points.
    pub opentsdb_database: String,
    /// Accepts numbers that OpenTSDB's clients write as strings.
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

/// The bytes that one permit stands for.
const PAGE: usize = 4096;

/// The memory that bodies and answers share.
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

    /// A share that holds nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), held: None }
    }
}

/// The budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// The memory that one body or answer holds.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Holds at least `bytes` from now on; on an error no more than before.
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
