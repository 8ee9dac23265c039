//! A request, as the paper calls it, and who makes it.

use crate::error::Result;
use std::time::Duration;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The bytes of the range are read.
    Read,
    /// The bytes are written.
    Write,
    /// The range reads as zeroes, and gives its blocks back.
    Zero,
}

/// A request: the paper's structure of this name (section 4), whose device and interval are its [`Source`]'s.
#[derive(Debug)]
pub struct Tio {
    /// What is to be done.
    pub op: Op,
    /// Where on the disk, in bytes.
    pub place: u64,
    /// Bytes of the range.
    pub len: u64,
    /// Those of a write; filled by a read.
    pub bytes: Vec<u8>,
    /// Of a write: durable when it is done, whatever the medium.
    pub fua: bool,
    /// What came of it.
    pub outcome: Result<()>,
}

impl Tio {
    /// A read of so many bytes.
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

    /// So many bytes are to read as zeroes.
    #[must_use]
    pub fn zero(place: u64, len: u64) -> Self {
        Self { op: Op::Zero, place, len, bytes: Vec::new(), fua: false, outcome: Ok(()) }
    }

    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.place..self.place.saturating_add(self.len)
    }
}

/// Who makes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The connection, which stands in for the paper's process.
    pub connection: u64,
    /// The IoT device whose data it is, if that was said.
    pub device: Option<u64>,
    /// The device's sampling interval, if that was said; otherwise it is estimated from arrivals.
    pub interval: Option<Duration>,
}

impl Source {
    /// A connection that says nothing of devices.
    #[must_use]
    pub fn of_connection(connection: u64) -> Self {
        Self { connection, device: None, interval: None }
    }

    pub(crate) fn key(&self) -> (bool, u64) {
        self.device.map_or((false, self.connection), |device| (true, device))
    }
}
