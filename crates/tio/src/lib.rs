//! TS-PMEM's driver (`ts-pmem.txt`): several queue sets over persistent memory, to which IoT devices are bound by their
//! sampling intervals.
//!
//! # The problem
//!
//! A driver with one queue does one request after the other, though a DIMM has channels and a machine has processors. The
//! paper's driver has several *queue sets*, each with a write and a read ring and a thread, and a *partition* of the medium;
//! a device is bound to a set, so that its requests keep their order and no load has to be measured.
//!
//! # The picture
//!
//! ```text
//!   sources (device, interval) ─▶ Balance: which set takes the newcomer
//!        │ requests (Tio)
//!        ▼
//!   Disk ─▶ the extents' sets ─▶ QueueSet: idle? the caller does it : rings, thread ─▶ Volume: blocks, names, two fences
//! ```
//!
//! A partition is a pool, since a pool has one sync and one count of writers: within one nothing could be gained by queues.
//!
//! # What holds
//!
//! - A sector is what it was, or what it is now, after a power cut at any moment, and what is read is what was written: each
//!   sector has a checksum that every read looks at.
//! - What was acknowledged is durable, on memory; where a fence is a sync, after a [`Disk::flush`], or if it was
//!   [`Tio::fua`]. A flush covers what any set has acknowledged.
//! - A read sees what was acknowledged before it came, and the writes before it that overlap it.
//!
//! # Departures from the paper
//!
//! - It resolves conflicts of reads and writes by the timestamps of the data. A block device has none: here all requests for
//!   an extent are one set's, and a read waits for the writes before it that overlap it.
//! - An idle set has its work done by the caller: to hand a request to a thread costs more than to do it.
//! - It binds a device for ever. Here one whose interval nobody states is bound anew when that is known; what it has written
//!   stays where it is.
//! - Its K is a mean and no load ([`Policy::Paper`]); [`Policy::Rate`] is the default.
//!
//! # Rooms
//!
//! | room | what it is |
//! |---|---|
//! | `error` | what can go wrong |
//! | `tio` | requests, and who makes them |
//! | `volume` | a partition: sectors that are remapped |
//! | `balance` | which set a device is bound to |
//! | `queue` | a queue set |
//! | `disk` | all of them together |

mod balance;
mod disk;
mod error;
mod queue;
mod tio;
mod volume;

pub use balance::{Balance, Load, Policy};
pub use disk::{Disk, Mode, Options};
pub use error::{Error, Result};
pub use tio::{Op, Source, Tio};
pub use volume::Findings;
