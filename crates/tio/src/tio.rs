//! A request, in the paper's term, and its source.

use crate::error::Result;
use std::time::Duration;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read the bytes of the range.
    Read,
    /// Write the bytes.
    Write,
    /// Make the range read as zeroes, and free its blocks.
    Zero,
}

/// A request: the paper's structure of this name (section 4); its device and interval are in the [`Source`].
#[derive(Debug)]
pub struct Tio {
    /// The operation.
    pub op: Op,
    /// The offset on the disk, in bytes.
    pub place: u64,
    /// Bytes of the range.
    pub len: u64,
    /// The bytes of a write; filled by a read.
    pub bytes: Vec<u8>,
    /// For a write: durable when it is done, on any medium.
    pub fua: bool,
    /// The outcome.
    pub outcome: Result<()>,
}

impl Tio {
    /// A read of `len` bytes.
    #[must_use]
    pub fn read(place: u64, len: u64) -> Self {
        Self { op: Op::Read, place, len, bytes: Vec::new(), fua: false, outcome: Ok(()) }
    }

    /// A write of these bytes.
    #[must_use]
    pub fn write(place: u64, bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { op: Op::Write, place, len, bytes, fua: false, outcome: Ok(()) }
    }

    /// Makes `len` bytes read as zeroes.
    #[must_use]
    pub fn zero(place: u64, len: u64) -> Self {
        Self { op: Op::Zero, place, len, bytes: Vec::new(), fua: false, outcome: Ok(()) }
    }

    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.place..self.place.saturating_add(self.len)
    }
}

/// The source of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The connection, which corresponds to the paper's process.
    pub connection: u64,
    /// The IoT device whose data it is, if stated.
    pub device: Option<u64>,
    /// The device's sampling interval, if stated; otherwise it is estimated from arrivals.
    pub interval: Option<Duration>,
}

impl Source {
    /// A connection without a stated device.
    #[must_use]
    pub fn of_connection(connection: u64) -> Self {
        Self { connection, device: None, interval: None }
    }

    pub(crate) fn key(&self) -> (bool, u64) {
        self.device.map_or((false, self.connection), |device| (true, device))
    }
}
