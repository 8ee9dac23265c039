//! Policies: how long points are kept, and how their time is cut into shards.
//!
//! The rules are InfluxDB's. A shard begins at a multiple of the shard duration since the first of January of year
//! 1, a Monday, so that shards of 7 days are weeks. Shards of a policy never overlap: a time has one shard, whose
//! points alone decide which value was written last. After a change of the shard duration, new shards are cut at
//! the existing ones.

use super::{DatabaseId, PolicyId, ShardId};
use std::collections::BTreeMap;

/// A retention policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// How long points are kept, in nanoseconds; 0 is for ever.
    pub duration_ns: u64,
    /// The length of the time of a shard, in nanoseconds.
    pub shard_ns: u64,
    /// True if writes and queries that name no policy use it.
    pub is_default: bool,
}

/// A part of the time of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Its number.
    pub(crate) id: ShardId,
    /// Its policy.
    pub(crate) policy: PolicyId,
    /// The first nanosecond.
    pub(crate) start: i64,
    /// The nanosecond after the last.
    pub(crate) end: i64,
}

const HOUR: u64 = 3_600_000_000_000;
const DAY: u64 = 24 * HOUR;
/// From the first of January of year 1 to that of 1970.
const YEAR_1_NS: i128 = 62_135_596_800 * 1_000_000_000;

impl Policy {
    /// The policy of a database that has just been made.
    pub(super) fn autogen() -> Self {
        Self { name: "autogen".to_owned(), duration_ns: 0, shard_ns: 7 * DAY, is_default: true }
    }

    /// The policy with InfluxDB's shard duration: without a given one it depends on the duration; it is an hour at
    /// least.
    pub(super) fn normal(mut self) -> Self {
        self.shard_ns = match (self.shard_ns, self.duration_ns) {
            (0, duration) if duration == 0 || duration >= 180 * DAY => 7 * DAY,
            (0, duration) if duration >= 2 * DAY => DAY,
            (given, _) => given.max(HOUR),
        };
        self
    }

    /// Checks the durations.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.duration_ns != 0 && self.duration_ns < HOUR {
            Err("retention policy duration must be at least 1h0m0s".to_owned())
        } else if self.duration_ns != 0 && self.duration_ns < self.shard_ns {
            Err("retention policy duration must be greater than the shard duration".to_owned())
        } else if self.shard_ns < HOUR
            || i64::try_from(self.duration_ns.max(self.shard_ns)).is_err()
        {
            Err("retention policy has a shard duration below 1h0m0s or above 292y".to_owned())
        } else {
            Ok(())
        }
    }
}

/// A policy with its shards.
#[derive(Debug)]
pub(super) struct PolicyState {
    pub(super) database: DatabaseId,
    pub(super) policy: Policy,
    /// By their starts.
    pub(super) shards: BTreeMap<i64, Shard>,
}

impl PolicyState {
    /// The shard that contains a time.
    pub(super) fn shard_of(&self, time: i64) -> Option<&Shard> {
        self.shards.range(..=time).next_back().map(|(_, shard)| shard).filter(|it| time < it.end)
    }

    /// Start and end of the shard that contains a time, or would contain it.
    pub(super) fn window(&self, time: i64) -> (i64, i64) {
        if let Some(shard) = self.shard_of(time) {
            return (shard.start, shard.end);
        }
        let width = i128::from(self.policy.shard_ns.max(1));
        let start = i128::from(time) - (i128::from(time) + YEAR_1_NS).rem_euclid(width);
        let mut start_ns = i64::try_from(start).unwrap_or(i64::MIN);
        let mut end_ns = i64::try_from(start + width).unwrap_or(i64::MAX);
        if let Some((_, before)) = self.shards.range(..=time).next_back() {
            start_ns = start_ns.max(before.end);
        }
        if let Some((next, _)) = self.shards.range(time..).next() {
            end_ns = end_ns.min(*next);
        }
        (start_ns, end_ns)
    }

    /// True if no shard overlaps these times.
    pub(super) fn is_vacant(&self, start: i64, end: i64) -> bool {
        self.shards.range(..end).next_back().is_none_or(|(_, shard)| shard.end <= start)
    }

    /// The shards whose points are all older than the policy allows.
    pub(super) fn expired(&self, now: i64) -> impl Iterator<Item = ShardId> {
        let duration = i128::from(self.policy.duration_ns);
        self.shards
            .values()
            .filter(move |it| duration > 0 && i128::from(it.end) + duration < i128::from(now))
            .map(|shard| shard.id)
    }
}
