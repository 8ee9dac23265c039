//! Where the log and its checkpoints lie: what the files of a directory and the pages of a pool have in common.

use coreplane_engine::Result;
use coreplane_pmem::Medium;
use std::sync::Arc;

/// Something that is written from front to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The state, and all that is in logs before the one of this number.
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

/// What was read of a part.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) bytes: Vec<u8>,
    /// From which byte on which seed is that of the checksums, in order; 0 if none is said.
    pub(super) seeds: Vec<(u64, u32)>,
    /// Nothing is behind what was written, or zeroes. Where it is not so, there may be what was there before.
    pub(super) is_clean: bool,
}

impl Stored {
    /// The seed of a frame that begins at this byte.
    pub(super) fn seed_at(&self, at: usize) -> u32 {
        let behind = self.seeds.partition_point(|(from, _)| *from <= at as u64);
        self.seeds.get(behind.wrapping_sub(1)).map_or(0, |(_, seed)| *seed)
    }
}

/// Makes durable what was appended before; why it could not.
pub(super) type SyncCall = Arc<dyn Fn() -> std::result::Result<(), String> + Send + Sync>;

/// The end of a log, to append to.
pub(super) trait Tail: Send {
    /// Appends whole frames; durable after a sync. If it fails, none of them count.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Begun with this, the checksums of frames tell them from those that were there before.
    fn seed(&self) -> u32;

    /// Bytes of the log.
    fn len(&self) -> u64;

    /// Syncs it.
    fn syncer(&self) -> SyncCall;

    /// A sync takes less time than to have another thread do it, or has to be made by the thread that appends.
    fn is_synced_at_once(&self) -> bool;

    /// Nothing more is appended: after a sync it is known where it ends.
    fn finish(&mut self) -> Result<()>;
}

/// A checkpoint that is being written. It is not there before it is published, and never if it is dropped.
pub(super) trait Draft {
    /// Appends whole frames.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// As [`Tail::seed`].
    fn seed(&self) -> u32;

    /// It is there as a whole, durably, when this returns.
    fn publish(self: Box<Self>) -> Result<()>;
}

/// How much there is to write on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Bytes for all parts.
    pub(super) all: u64,
    /// Bytes that are left.
    pub(super) left: u64,
    /// Bytes that a part takes at least.
    pub(super) least: u64,
}

/// Where the log and its checkpoints lie. Nobody else has it open.
pub(super) trait Storage: Send + Sync {
    /// What a node calls its map.
    fn name(&self) -> &'static str;

    /// What it rests on.
    fn medium(&self) -> Medium;

    /// The parts that are there, in order.
    fn parts(&self) -> Result<Vec<Part>>;

    /// How an error calls a part.
    fn name_of(&self, part: Part) -> String;

    /// Reads a part.
    fn read(&self, part: Part) -> Result<Stored>;

    /// Goes on with a log, of which the first `len` bytes are frames and durable when this returns; or begins it, durably.
    /// What is behind is none from now on.
    fn open_log(&self, number: u64, len: u64) -> Result<Box<dyn Tail>>;

    /// Begins a checkpoint. The log of the same number is there.
    fn begin_checkpoint(&self, number: u64) -> Result<Box<dyn Draft>>;

    /// Removes what a checkpoint of this number has made void.
    fn remove_before(&self, number: u64) -> Result<()>;

    /// What there is to write on; none if nobody can tell before it is asked for.
    fn room(&self) -> Option<Room>;
}
