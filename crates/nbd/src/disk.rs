//! What is exported: a disk, as the server sees it.

use std::time::Duration;

/// A sector in bytes: what a disk writes atomically, and the smallest block that clients are told of.
pub const SECTOR: u32 = 4096;

/// A disk that is exported.
///
/// The server has checked what it asks for: ranges are inside the disk, lengths are above zero. Neither
/// offsets nor lengths need be multiples of [`SECTOR`].
pub trait Disk: Send + Sync + 'static {
    /// Bytes of the disk, a multiple of [`SECTOR`], the same for ever.
    fn len(&self) -> u64;

    /// True if it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does all requests of a batch, which came through one connection in this order. Requests that
    /// overlap keep their order, others may run in any. When it returns all are done and each has its
    /// outcome: a read has filled its bytes, a request with `fua` is durable.
    fn run(&self, source: &Source, batch: &mut [Request]);

    /// Calls `done`, here or later from another thread, when all that [`Disk::run`] had done before,
    /// for whichever connection, is durable. `done` waits for nobody; one that is dropped says that
    /// the flush has failed.
    fn flush(&self, done: FlushDone);

    /// Shows which parts of a range hold data and which are holes: their lengths in bytes, in order,
    /// from `offset` on, until `visit` says no or all of the range was shown.
    ///
    /// # Errors
    /// What keeps the disk from knowing.
    fn status(
        &self,
        offset: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<(), Errno>;

    /// A connection has gone, with all its requests done. It began with the first request of its
    /// `source`, or never asked for anything.
    fn leave(&self, source: &Source);
}

/// What a flush tells when it is done.
pub type FlushDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Where requests come from: a connection, and what its client said with the export's name. It stands
/// in for the process that the kernel would know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The connection's number, which no other of this server has.
    pub connection: u64,
    /// `device=N` of the export's name.
    pub device: Option<u64>,
    /// `interval=T` of the export's name.
    pub interval: Option<Duration>,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
    /// Of a write what to write; of a read `len` bytes to fill; of others empty.
    pub bytes: Vec<u8>,
    /// What became of it. It is [`Errno::Io`] at first, so that what a disk passes over is not
    /// acknowledged.
    pub outcome: Result<(), Errno>,
}

/// What a request asks for. `fua`: it is done when it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Fills the bytes.
    Read,
    /// Writes the bytes.
    Write {
        /// Done when durable.
        fua: bool,
    },
    /// What is there is not needed any more. Reads may find it or zeroes.
    Trim {
        /// Done when durable.
        fua: bool,
    },
    /// Reads find zeroes.
    WriteZeroes {
        /// Done when durable.
        fua: bool,
        /// It must take space, so that a later write finds some.
        no_hole: bool,
    },
    /// It will be read soon.
    Cache,
}

impl Op {
    /// True if it changes the disk.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Read | Self::Cache)
    }
}

/// What a part of the disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// It takes space.
    Data,
    /// It takes none, and reads find zeroes.
    Hole,
}

/// Why a request failed: the errors that the protocol has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum Errno {
    /// The export may not be written.
    #[error("operation not permitted")]
    NotPermitted = 1,
    /// The medium failed.
    #[error("input/output error")]
    Io = 5,
    /// There is no memory for it.
    #[error("cannot allocate memory")]
    OutOfMemory = 12,
    /// The request is wrong.
    #[error("invalid argument")]
    Invalid = 22,
    /// It does not fit.
    #[error("no space left on device")]
    NoSpace = 28,
    /// The answer is too large for one piece.
    #[error("value too large")]
    Overflow = 75,
    /// The server does not do that.
    #[error("operation not supported")]
    NotSupported = 95,
    /// The server ends.
    #[error("server is shutting down")]
    Shutdown = 108,
}

impl Errno {
    /// Its number in the protocol.
    pub fn code(self) -> u32 {
        self as u32
    }
}
