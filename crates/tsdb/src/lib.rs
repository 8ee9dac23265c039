//! The time-series store of TS-PMEM (`ts-pmem.txt`; the paper's own is called TS-NSM, reference 8).
//!
//! # The problem
//!
//! IoT devices write small points at fixed intervals, many at a time, and points are not changed afterwards. A
//! database over a file system writes each point several times, through a log, a cache and files, and waits for a
//! block device to sync. On persistent memory a point can be durable after one fence.
//!
//! # The picture
//!
//! ```text
//!   points ─▶ names (catalogue) ─▶ rows of each queue set
//!                                     │ a device is bound to a set by its sampling interval (tio's balance)
//!              ┌──────────────────────┼──────────────────────┐
//!           set 0                  set 1                  set 2 …        each has a pool: a DIMM, a file
//!           log ─ fence ─▶ head    log ─ fence ─▶ head    …              acknowledged
//!                  │ sealed                │
//!           segments: chunks       segments …                            by shard, by series, by field
//! ```
//!
//! # What holds
//!
//! - A point that was acknowledged is durable, and every reader sees it: *fence, then publish*. On a file system a
//!   fence is a sync, which writers share.
//! - Of points with the same series, field and time the last acknowledged one counts, before and after an opening.
//! - A dropped database, policy, shard, measurement or series is gone from all sets with one record and one fence.
//!   No number is given twice, so it does not come back.
//! - Checksums verify all data that is read. Damage to durable data is distinguished from data that was never
//!   acknowledged.
//! - Memory is bounded: by the limits of series and of the memory of names, by the size of heads, by the budget of a
//!   query.
//!
//! # Departures from the paper
//!
//! - The paper measures TS-NSM below a driver with queues. Here the store has the queue sets itself, each with a
//!   log: a caller writes in its own thread, and waits only for other writers to the same set.
//! - The interval of a device need not be stated: it is taken from the points with which the device first arrives.
//! - A duplicate of a point replaces it. As in the paper, single points cannot be changed or deleted in any other
//!   way.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `calendar` | days and dates |
//! | `error` | errors |
//! | `pace` | whether a reader has to end |
//! | `value` | values, columns, blocks of points |
//! | `point` | incoming points, and the names of series |
//! | `line` | line protocol: read and written |
//! | `codec` | columns as bytes |
//! | `summary` | aggregates of points |
//! | `merge` | points of several sources as one |
//! | `catalogue` | names: databases, policies, shards, measurements, fields, series |
//! | `rows` | points as they are in the log |
//! | `pages` | the use of each page of a pool |
//! | `log` | records that are found again |
//! | `names` | the catalogue, durable |
//! | `head` | points that are not sealed |
//! | `segment` | sealed chunks |
//! | `manifest` | the list of segments |
//! | `set` | a queue set |
//! | `read` | the data that a query reads |
//! | `store` | all queue sets together |
//! | `influxql` | InfluxDB's query language |

pub mod calendar;
mod catalogue;
mod codec;
mod error;
mod flip;
mod head;
pub mod influxql;
pub mod line;
mod log;
mod manifest;
mod merge;
mod names;
mod pace;
mod pages;
mod point;
mod read;
mod rows;
mod segment;
mod set;
mod store;
mod summary;
mod value;

pub use catalogue::Work;
pub use catalogue::{Field, FieldId, Permission, Policy, Series, SeriesId, SeriesTags, TagFilter};
pub use error::{Error, Result};
pub use point::{FIELDS_MAX, FieldValue, KEY_MAX, Point, SeriesKey};
pub use read::{Points, Reader};
pub use store::{Findings, Options, Outcome, Patience, Scrub, Stats, Store};
pub use summary::{Buckets, Summary};
pub use value::{Block, Column, FieldType, STRING_MAX, Value};
