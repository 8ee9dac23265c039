//! How an open matrix behaves.

use crate::shape::ReadPath;
use coreplane_engine::{Durability, TimeSource, UnixMillis};
use std::sync::Arc;
use std::time::Duration;

/// Filters of fewer keys are not kept, since the keys are read quickly.
pub(crate) const SNAPSHOT_KEYS_MIN: u64 = 1 << 16;

/// How an open matrix behaves.
#[derive(Clone)]
pub struct Options {
    /// The clock by which records expire.
    pub time: TimeSource,
    /// Opens the matrix although missing devices may be the only ones that have acknowledged writes. Those
    /// are lost then, and [`Matrix::losses`](crate::Matrix::losses) describes them. A group without any
    /// current device continues with the newest of its other devices.
    pub accept_loss: bool,
    /// The path of reads to a device.
    pub read_path: ReadPath,
    /// The longest time that a device's processor may spend in one call; none: no limit. A device whose
    /// processor takes longer is left out as if it had failed, within the same time again at most, and
    /// threads that wait for it continue without it. The limit covers requests in the rings: writes that nobody
    /// waits for, and lookups while they go there. It does not cover calls that a caller makes itself (writes that
    /// wait for the device, counts, iterations, scans), since these cannot be taken from it. By default half a minute.
    pub answers_within: Option<Duration>,
    /// The most bytes of keys and values that may wait for a device's processor, those in its ring included:
    /// a writer that would exceed them waits. A larger write proceeds when nothing else waits. By default 16
    /// MiB.
    pub queue_bytes_max: u64,
    /// The durability of writes that name none: by default the devices' own. Batches are durable when they return.
    pub durability: Durability,
    /// The matrix is only read: writes fail as after a close, a close changes nothing, and no filter is
    /// filled. For devices that are copies.
    pub looks_only: bool,
    /// Filters of at least so many keys are kept at a close, so that the next open need not read every
    /// key.
    pub keeps_filters_from: u64,
    /// Filters of at most so many keys are filled before an open returns, unless they were kept. Larger ones
    /// are filled in the background, and until then devices are asked for every key.
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
    pub(crate) fn threads(&self) -> usize {
        let processors = coreplane_pmem::processors::available;
        if self.threads == 0 { processors() } else { self.threads }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("accept_loss", &self.accept_loss).finish_non_exhaustive()
    }
}
