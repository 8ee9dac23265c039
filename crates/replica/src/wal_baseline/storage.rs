//! The storage of the log and its checkpoints: the common interface of files in a directory and pages of a pool.

use coreplane_engine::Result;
use coreplane_pmem::Medium;
use std::sync::Arc;

/// A stream of bytes that is written from front to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The state, with everything in the logs before the one of this number.
    Checkpoint(u64),
    /// A piece of the log.
    Log(u64),
}

impl Part {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Checkpoint(number) | Self::Log(number) => number,
        }
    }
}

/// The bytes of a part that were read.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) bytes: Vec<u8>,
    /// The seeds of the checksums, each with the byte from which it applies, in order; 0 before the first.
    pub(super) seeds: Vec<(u64, u32)>,
    /// Nothing follows the written bytes, or zeroes. If false, older bytes may follow.
    pub(super) is_clean: bool,
}

impl Stored {
    /// The seed of a frame that begins at this byte.
    pub(super) fn seed_at(&self, at: usize) -> u32 {
        let behind = self.seeds.partition_point(|(from, _)| *from <= at as u64);
        self.seeds.get(behind.wrapping_sub(1)).map_or(0, |(_, seed)| *seed)
    }
}

/// Makes all earlier appends durable; the reason if it could not.
pub(super) type SyncCall = Arc<dyn Fn() -> std::result::Result<(), String> + Send + Sync>;

/// The end of a log, to append to.
pub(super) trait Tail: Send {
    /// Appends whole frames; durable after a sync. If it fails, none of them count.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// The seed of the checksums of new frames, which tells them from older ones in the same place.
    fn seed(&self) -> u32;

    /// Bytes of the log.
    fn len(&self) -> u64;

    /// The call that syncs it.
    fn syncer(&self) -> SyncCall;

    /// A sync takes less time than handing it to another thread, or must be made by the thread that appends.
    fn is_synced_at_once(&self) -> bool;

    /// Ends the log: no frame follows, and after a sync its end is known.
    fn finish(&mut self) -> Result<()>;
}

/// A checkpoint that is being written. It does not exist before it is published, and never if it is dropped.
pub(super) trait Draft {
    /// Appends whole frames.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// As [`Tail::seed`].
    fn seed(&self) -> u32;

    /// Publishes it: it is complete and durable when this returns.
    fn publish(self: Box<Self>) -> Result<()>;
}

/// The room for parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Bytes for all parts together.
    pub(super) all: u64,
    /// Bytes that are free.
    pub(super) left: u64,
    /// The fewest bytes that a part takes.
    pub(super) least: u64,
}

/// The storage of the log and its checkpoints, which is open only once.
pub(super) trait Storage: Send + Sync {
    /// The name of a node's map on it.
    fn name(&self) -> &'static str;

    /// The medium below.
    fn medium(&self) -> Medium;

    /// The existing parts, in order.
    fn parts(&self) -> Result<Vec<Part>>;

    /// The name of a part in an error.
    fn name_of(&self, part: Part) -> String;

    /// Reads a part.
    fn read(&self, part: Part) -> Result<Stored>;

    /// Continues a log, whose first `len` bytes are frames and are durable when this returns; or begins it, durably.
    /// Bytes behind these are void from now on.
    fn open_log(&self, number: u64, len: u64) -> Result<Box<dyn Tail>>;

    /// Begins a checkpoint. The log of the same number exists.
    fn begin_checkpoint(&self, number: u64) -> Result<Box<dyn Draft>>;

    /// Removes the parts that a checkpoint of this number has made void.
    fn remove_before(&self, number: u64) -> Result<()>;

    /// The room that there is; none if it is not known before it is used.
    fn room(&self) -> Option<Room>;
}
