//! How an open matrix behaves.

use crate::shape::prototype::{Paths, ReadPath, WritePath};
use coreplane_engine::{Durability, TimeSource, UnixMillis};
use std::sync::Arc;
use std::time::Duration;

/// Filters of fewer keys are not kept: those are read in a moment.
pub(crate) const SNAPSHOT_KEYS_MIN: u64 = 1 << 16;

/// How an open matrix behaves.
#[derive(Clone)]
pub struct Options {
    /// Tells the time that expiries are held against.
    pub time: TimeSource,
    /// Open it although devices that are missing may be the only ones that have what was
    /// acknowledged: that is lost then, and [`Matrix::losses`](crate::Matrix::losses) says what it may be. A group of which
    /// no current device is left goes on with the newest of the others.
    pub accept_loss: bool,
    /// Which way reads take to a device.
    pub read_path: ReadPath,
    /// Which way writes take to a device.
    pub write_path: WritePath,
    /// How long a device's processor may be in one call. One that is longer is left out as if it had
    /// failed, within as long again at most, and whoever waits for it goes on without it; none: never. It
    /// covers what goes through the rings, and not a call that the caller makes himself: nobody can take
    /// that from him. Half a minute if nothing is said.
    pub answers_within: Option<Duration>,
    /// Bytes of keys and values that may wait for a device's processor, those of its ring among them: a
    /// writer whose write would be more waits. One that is larger goes when nothing else waits. 16 MiB if
    /// nothing is said.
    pub queue_bytes_max: u64,
    /// The durability of writes that name none: as the devices' own. Batches are durable when they
    /// return.
    pub durability: Durability,
    /// Whether it is only read: writes fail as after a close, which changes nothing, and no filter is
    /// filled. For devices that are copies.
    pub looks_only: bool,
    /// Filters of at least so many keys are kept at a close, so that the next open need not read every
    /// key.
    pub keeps_filters_from: u64,
    /// Filters of at most so many keys are filled before an open returns, unless they were kept; larger ones
    /// in the background, and devices are asked for every key until they are.
    pub lists_at_open: u64,
    /// Threads that open devices and fill filters; 0: one for each processor.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time: Arc::new(UnixMillis::now),
            accept_loss: false,
            read_path: ReadPath::default(),
            write_path: WritePath::default(),
            answers_within: Some(Duration::from_secs(30)),
            queue_bytes_max: 16 << 20,
            durability: Durability::default(),
            looks_only: false,
            keeps_filters_from: SNAPSHOT_KEYS_MIN,
            lists_at_open: SNAPSHOT_KEYS_MIN,
            threads: 0,
        }
    }
}

impl Options {
    pub(crate) fn paths(&self) -> Paths {
        Paths { reads: self.read_path, writes: self.write_path }
    }

    pub(crate) fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads == 0 { processors() } else { self.threads }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("accept_loss", &self.accept_loss).finish_non_exhaustive()
    }
}
