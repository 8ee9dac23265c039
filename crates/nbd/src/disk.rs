//! The exported disk, as the server sees it.

use std::time::Duration;

/// Bytes of a sector, which a disk writes atomically; also the minimum block size announced to clients.
pub const SECTOR: u32 = 4096;

/// An exported disk.
///
/// The server has checked all requests: ranges are inside the disk, lengths are above zero. Offsets and
/// lengths need not be multiples of [`SECTOR`].
pub trait Disk: Send + Sync + 'static {
    /// Bytes of the disk, a multiple of [`SECTOR`]; constant.
    fn len(&self) -> u64;

    /// True if it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Executes all requests of a batch, which came through one connection in this order. Overlapping
    /// requests keep their order, others may run in any order. When it returns, all are done and each
    /// has its outcome: a read has filled its bytes, a request with `fua` is durable.
    fn run(&self, source: &Source, batch: &mut [Request]);

    /// Calls `done`, here or later from another thread, when everything that [`Disk::run`] had done
    /// before, for all connections, is durable. `done` does not block; dropping it means that the
    /// flush has failed.
    fn flush(&self, done: FlushDone);

    /// Shows which parts of a range hold data and which are holes: their lengths in bytes, in order,
    /// from `offset` on, until `visit` returns false or the whole range was shown.
    ///
    /// # Errors
    /// If the disk cannot determine this.
    fn status(
        &self,
        offset: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<(), Errno>;

    /// Called before the first [`Disk::run`] of a connection.
    fn join(&self, source: &Source);

    /// Called when a connection that has joined has ended and all its requests are done.
    fn leave(&self, source: &Source);
}

/// Called with the result of a flush.
pub type FlushDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// The source of requests: a connection, and the parameters in the export's name. It takes the place
/// of the process that the kernel would know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The connection's number, unique in this server.
    pub connection: u64,
    /// `device=N` of the export's name.
    pub device: Option<u64>,
    /// `interval=T` of the export's name.
    pub interval: Option<Duration>,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The offset in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub len: u32,
    /// The bytes of a write; for a read, `len` bytes to fill; otherwise empty.
    pub bytes: Vec<u8>,
    /// The outcome. It is [`Errno::Io`] initially, so that a request that a disk skips is not
    /// acknowledged.
    pub outcome: Result<(), Errno>,
}

/// The operation of a request. `fua`: it is done when it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Fills the bytes.
    Read,
    /// Writes the bytes.
    Write {
        /// Done when durable.
        fua: bool,
    },
    /// The contents are not needed any more. Reads may return them or zeroes.
    Trim {
        /// Done when durable.
        fua: bool,
    },
    /// Reads return zeroes.
    WriteZeroes {
        /// Done when durable.
        fua: bool,
        /// The range must keep its space, so that later writes find some.
        no_hole: bool,
    },
    /// The range will be read soon.
    Cache,
}

/// The state of a part of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// It takes space.
    Data,
    /// It takes no space, and reads return zeroes.
    Hole,
}

/// The errors of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum Errno {
    /// The export may not be written.
    #[error("operation not permitted")]
    NotPermitted = 1,
    /// The medium failed.
    #[error("input/output error")]
    Io = 5,
    /// The request is wrong.
    #[error("invalid argument")]
    Invalid = 22,
    /// There is no space.
    #[error("no space left on device")]
    NoSpace = 28,
    /// The server does not support the request.
    #[error("operation not supported")]
    NotSupported = 95,
    /// The server is shutting down.
    #[error("server is shutting down")]
    Shutdown = 108,
}

impl Errno {
    /// Its number in the protocol.
    pub fn code(self) -> u32 {
        self as u32
    }
}
