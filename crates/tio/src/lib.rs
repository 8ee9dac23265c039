//! TS-PMEM's driver (`ts-pmem.txt`): several queue sets over persistent memory, to which IoT devices are bound by
//! their sampling intervals.
//!
//! # The problem
//!
//! A driver with one queue executes one request after the other, although a DIMM has several channels and a machine
//! several processors. The paper's driver has several *queue sets*, each with a write ring, a read ring, a thread,
//! and a *partition* of the medium. A device is bound to a set, so that its requests keep their order and no load has
//! to be measured.
//!
//! # The picture
//!
//! ```text
//!   sources (device, interval) ─▶ Balance: chooses the set of a new source
//!        │ requests (Tio)
//!        ▼
//!   Disk ─▶ the extents' sets ─▶ QueueSet: idle? the caller : rings, thread ─▶ Volume: blocks, names, two fences
//! ```
//!
//! A partition is a pool, since a pool has one sync and one count of writers: several queues for one pool would gain
//! nothing.
//!
//! # Guarantees
//!
//! - After a power cut at any moment a sector has either its old or its new contents, and a read returns the written
//!   bytes: each sector has a checksum that every read checks.
//! - On memory an acknowledged write is durable; where a fence is a sync, it is durable after a [`Disk::flush`],
//!   or if it was [`Tio::fua`]. A flush covers the acknowledged writes of all sets.
//! - A read sees all writes acknowledged before it arrived, and all earlier writes that overlap it.
//!
//! # Departures from the paper
//!
//! - It resolves conflicts of reads and writes by the timestamps of the data. A block device has none: here all
//!   requests for an extent belong to one set, and a read waits for earlier writes that overlap it.
//! - The work of an idle set is done by the caller: handing a request to a thread takes longer than executing it.
//! - It binds a device for ever. Here a device without a stated interval is bound anew when its interval is known;
//!   the data it has written stays in place.
//! - Its K is a mean and not a load ([`Policy::Paper`]); [`Policy::Rate`] is the default.
//!
//! # Rooms
//!
//! | room | contents |
//! |---|---|
//! | `error` | errors |
//! | `tio` | requests and their sources |
//! | `volume` | a partition: sectors that are remapped |
//! | `balance` | the binding of devices to sets |
//! | `queue` | a queue set |
//! | `disk` | a disk: all partitions and queue sets |

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
