//! Changes of names, and their bytes.
//!
//! A change is a record of a log: a kind, numbers of fixed width, and a text at the end. The log adds the checksum
//! and the length. Records are independent of each other, so a log is their concatenation in any frame.
//!
//! Numbers ascend by kind: the number of a new object is greater than all numbers given to its kind before. Where
//! the log is written anew, [`Change::Next`] preserves the numbers of dropped objects. So no number names two
//! objects, not even in an old page.

use super::policy::Policy;
use super::{DatabaseId, FieldId, MeasurementId, PolicyId, SeriesId, ShardId};
use crate::value::FieldType;
use std::sync::Arc;

/// A change of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The numbers to be given next are at least these.
    Next(Next),
    /// A database is made, without a policy.
    Database { id: DatabaseId, name: Arc<str> },
    /// A database is dropped with all that is in it.
    DatabaseDropped { id: DatabaseId },
    /// A policy is made, or altered if it is there. If it is the default one, no other of the database is.
    Policy { database: DatabaseId, id: PolicyId, policy: Policy },
    /// A policy is dropped with its shards.
    PolicyDropped { id: PolicyId },
    /// A measurement is made.
    Measurement { id: MeasurementId, database: DatabaseId, name: Arc<str> },
    /// A measurement is dropped with its fields and series.
    MeasurementDropped { id: MeasurementId },
    /// A field is made.
    Field { id: FieldId, measurement: MeasurementId, name: Arc<str>, field_type: FieldType },
    /// A series is made; the key is the text of a `SeriesKey`.
    Series { id: SeriesId, measurement: MeasurementId, set: u32, key: Box<str> },
    /// Series are dropped; none twice.
    SeriesDropped { ids: Vec<SeriesId> },
    /// A shard is made: the points of a policy whose times are in `[start, end)`, in nanoseconds.
    Shard { id: ShardId, policy: PolicyId, start: i64, end: i64 },
    /// A shard is dropped.
    ShardDropped { id: ShardId },
}

/// The numbers to be given next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Next {
    /// Of databases.
    pub(crate) database: DatabaseId,
    /// Of policies.
    pub(crate) policy: PolicyId,
    /// Of measurements.
    pub(crate) measurement: MeasurementId,
    /// Of fields.
    pub(crate) field: FieldId,
    /// Of series.
    pub(crate) series: SeriesId,
    /// Of shards.
    pub(crate) shard: ShardId,
}

impl Change {
    /// True if the change drops something, so that room can be given back.
    pub(crate) fn is_drop(&self) -> bool {
        let is_of_points = matches!(self, Self::PolicyDropped { .. } | Self::ShardDropped { .. });
        is_of_points || self.drops_series()
    }

    /// True if the change may reduce the number of series.
    pub(crate) fn drops_series(&self) -> bool {
        matches!(
            self,
            Self::DatabaseDropped { .. }
                | Self::MeasurementDropped { .. }
                | Self::SeriesDropped { .. }
        )
    }
}

/// Bytes of the records of live objects, without their texts.
pub(super) const NEXT_BYTES: u64 = 1 + 6 * 4;
pub(super) const DATABASE_BYTES: u64 = 1 + 4 + 4;
pub(super) const POLICY_BYTES: u64 = 1 + 4 + 4 + 8 + 8 + 1 + 4;
pub(super) const MEASUREMENT_BYTES: u64 = 1 + 4 + 4 + 4;
pub(super) const FIELD_BYTES: u64 = 1 + 4 + 4 + 1 + 4;
pub(super) const SERIES_BYTES: u64 = 1 + 4 + 4 + 4 + 4;
pub(super) const SHARD_BYTES: u64 = 1 + 4 + 4 + 8 + 8;
/// Bytes of a drop record, without the numbers of many series.
const DROP_BYTES: u64 = 1 + 4;

// media-format: begin pool
const NEXT: u8 = 1;
const DATABASE: u8 = 2;
const DATABASE_DROPPED: u8 = 3;
const POLICY: u8 = 4;
const POLICY_DROPPED: u8 = 5;
const MEASUREMENT: u8 = 6;
const MEASUREMENT_DROPPED: u8 = 7;
const FIELD: u8 = 8;
const SERIES: u8 = 9;
const SERIES_DROPPED: u8 = 10;
const SHARD: u8 = 11;
const SHARD_DROPPED: u8 = 12;

/// Appends a kind and numbers.
fn put(out: &mut Vec<u8>, kind: u8, numbers: &[u32]) {
    out.push(kind);
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Names are checked to be far shorter; a wrong length would be refused.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Change {
    /// Appends its bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Next(next) => {
                let Next { database, policy, measurement, field, series, shard } = *next;
                put(out, NEXT, &[database, policy, measurement, field, series, shard]);
            }
            Self::Database { id, name } => {
                put(out, DATABASE, &[*id]);
                put_text(out, name);
            }
            Self::DatabaseDropped { id } => put(out, DATABASE_DROPPED, &[*id]),
            Self::Policy { database, id, policy } => {
                put(out, POLICY, &[*database, *id]);
                out.extend_from_slice(&policy.duration_ns.to_le_bytes());
                out.extend_from_slice(&policy.shard_ns.to_le_bytes());
                out.push(u8::from(policy.is_default));
                put_text(out, &policy.name);
            }
            Self::PolicyDropped { id } => put(out, POLICY_DROPPED, &[*id]),
            Self::Measurement { id, database, name } => {
                put(out, MEASUREMENT, &[*id, *database]);
                put_text(out, name);
            }
            Self::MeasurementDropped { id } => put(out, MEASUREMENT_DROPPED, &[*id]),
            Self::Field { id, measurement, name, field_type } => {
                put(out, FIELD, &[*id, *measurement]);
                out.push(field_type.code());
                put_text(out, name);
            }
            Self::Series { id, measurement, set, key } => {
                put(out, SERIES, &[*id, *measurement, *set]);
                put_text(out, key);
            }
            Self::SeriesDropped { ids } => {
                put(out, SERIES_DROPPED, &[u32::try_from(ids.len()).unwrap_or(u32::MAX)]);
                out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            }
            Self::Shard { id, policy, start, end } => {
                put(out, SHARD, &[*id, *policy]);
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
            Self::ShardDropped { id } => put(out, SHARD_DROPPED, &[*id]),
        }
    }

    /// The change of these bytes; none if they are not exactly one change.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let change = match input.byte()? {
            NEXT => Self::Next(Next {
                database: input.number()?,
                policy: input.number()?,
                measurement: input.number()?,
                field: input.number()?,
                series: input.number()?,
                shard: input.number()?,
            }),
            DATABASE => Self::Database { id: input.number()?, name: input.text()?.into() },
            DATABASE_DROPPED => Self::DatabaseDropped { id: input.number()? },
            POLICY => Self::Policy {
                database: input.number()?,
                id: input.number()?,
                policy: input.policy()?,
            },
            POLICY_DROPPED => Self::PolicyDropped { id: input.number()? },
            MEASUREMENT => Self::Measurement {
                id: input.number()?,
                database: input.number()?,
                name: input.text()?.into(),
            },
            MEASUREMENT_DROPPED => Self::MeasurementDropped { id: input.number()? },
            FIELD => Self::Field {
                id: input.number()?,
                measurement: input.number()?,
                field_type: FieldType::of_code(input.byte()?)?,
                name: input.text()?.into(),
            },
            SERIES => Self::Series {
                id: input.number()?,
                measurement: input.number()?,
                set: input.number()?,
                key: input.text()?.into(),
            },
            SERIES_DROPPED => Self::SeriesDropped { ids: input.numbers()? },
            SHARD => Self::Shard {
                id: input.number()?,
                policy: input.number()?,
                start: i64::from_le_bytes(input.take()?),
                end: i64::from_le_bytes(input.take()?),
            },
            SHARD_DROPPED => Self::ShardDropped { id: input.number()? },
            _ => return None,
        };
        input.0.is_empty().then_some(change)
    }
}

/// The bytes that are still to be decoded.
struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'b str> {
        let length = usize::try_from(self.number()?).ok()?;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(head).ok()
    }

    fn policy(&mut self) -> Option<Policy> {
        Some(Policy {
            duration_ns: u64::from_le_bytes(self.take()?),
            shard_ns: u64::from_le_bytes(self.take()?),
            is_default: match self.byte()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            name: self.text()?.to_owned(),
        })
    }

    /// A count, and that many numbers; they must be all that is left.
    fn numbers(&mut self) -> Option<Vec<u32>> {
        let count = usize::try_from(self.number()?).ok()?;
        let (numbers, rest) = self.0.as_chunks();
        self.0 = rest;
        (numbers.len() == count)
            .then(|| numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }
}
// media-format: end

impl Change {
    /// How many bytes [`Change::encode`] appends.
    pub(super) fn encoded_bytes(&self) -> u64 {
        match self {
            Self::Next(_) => NEXT_BYTES,
            Self::Database { name, .. } => DATABASE_BYTES + name.len() as u64,
            Self::Policy { policy, .. } => POLICY_BYTES + policy.name.len() as u64,
            Self::Measurement { name, .. } => MEASUREMENT_BYTES + name.len() as u64,
            Self::Field { name, .. } => FIELD_BYTES + name.len() as u64,
            Self::Series { key, .. } => SERIES_BYTES + key.len() as u64,
            Self::SeriesDropped { ids } => DROP_BYTES + 4 * ids.len() as u64,
            Self::Shard { .. } => SHARD_BYTES,
            Self::DatabaseDropped { .. }
            | Self::PolicyDropped { .. }
            | Self::MeasurementDropped { .. }
            | Self::ShardDropped { .. } => DROP_BYTES,
        }
    }
}
