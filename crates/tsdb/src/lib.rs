//! The time-series store of TS-PMEM (`ts-pmem.txt`; the paper calls it TS-NSM and has its own, reference 8).
//!
//! # The problem
//!
//! IoT devices write small points at fixed intervals, many at a time, and nobody changes them afterwards. A database over a
//! file system writes each of them several times, through a log, a cache and files, and waits for a block device to sync. On
//! persistent memory a point is durable after one fence, if nothing stands between.
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
//! - A point that was acknowledged is durable, and every reader sees it: *fence, then publish*. On a file system a fence is a
//!   sync, which writers share.
//! - Of points of one series, field and time the last one that was acknowledged counts, before and after an opening.
//! - What was dropped (a database, a policy, a shard, a measurement, a series) is gone from all sets with one record and one
//!   fence, and no number is given twice: it does not come back.
//! - What is read proves itself by checksums; what was durable once and is damaged is told from what was never acknowledged.
//! - Memory is bounded: by the series that may be, by heads, by what a query may cost.
//!
//! # Departures from the paper
//!
//! - It measures TS-NSM below a driver with queues. Here the store has the queue sets itself, each with a log: who writes does
//!   it in his own thread, and waits only for those who write to the same set.
//! - A device's interval need not be stated: it is what the points have that the device comes with.
//! - A duplicate of a point replaces it; nothing else can be changed or deleted by itself, as the paper has it.
//!
//! # Rooms
//!
//! | room | what it is |
//! |---|---|
//! | `error` | what can go wrong |
//! | `pace` | whether who reads has to end |
//! | `value` | values, columns, blocks of points |
//! | `point` | points as they come in, and the names of series |
//! | `line` | line protocol: read and written |
//! | `codec` | columns as bytes |
//! | `summary` | what points come to |
//! | `merge` | points of several sources as one |
//! | `catalogue` | names: databases, policies, shards, measurements, fields, series |
//! | `rows` | points as logs have them |
//! | `pages` | what each page of a pool is used for |
//! | `log` | records that are found again |
//! | `names` | the catalogue, durable |
//! | `head` | points that are not sealed |
//! | `segment` | sealed chunks |
//! | `manifest` | which segments there are |
//! | `set` | a queue set |
//! | `read` | what a query reads |
//! | `store` | all queue sets together |
//! | `influxql` | InfluxDB's query language |

mod catalogue;
mod codec;
mod error;
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

pub use catalogue::{Field, FieldId, Policy, Series, SeriesId, SeriesTags, TagFilter};
pub use error::{Error, Result};
pub use point::{FieldValue, KEY_MAX, Point, SeriesKey};
pub use read::{Points, Reader};
pub use store::{Findings, Options, Outcome, Patience, Scrub, Stats, Store};
pub use summary::{Buckets, Summary};
pub use value::{Block, Column, FieldType, STRING_MAX, Value};
