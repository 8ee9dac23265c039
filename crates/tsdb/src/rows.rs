//! Rows: points as they are in the log of a queue set.
//!
//! ```text
//!   │ series │ shard │ time │ count │ field, type │ value │ field, type │ value │ …
//!       4        4       8      2         4           8
//! ```
//!
//! A boolean has one byte; a string has its length in four bytes, then its bytes. Nothing is padded. A record of
//! the log has whole rows.

use crate::catalogue::{FieldId, SeriesId};
use crate::point::FieldValue;
use crate::value::{FieldType, STRING_MAX};

/// A shard: a window of time of a policy. No number is given twice.
pub(crate) type ShardId = u32;

// media-format: begin pool
/// Bits of a field's number; above are those of its type.
const FIELD_BITS: u32 = 29;
/// Numbers of fields are less than this.
pub(crate) const FIELDS_MAX: u32 = 1 << FIELD_BITS;

/// Appends a value of a row.
fn write_value(out: &mut Vec<u8>, field: FieldId, value: &FieldValue<'_>) {
    let mut put = |of: FieldType, bytes: &[u8]| {
        out.extend((field | u32::from(of.code()) << FIELD_BITS).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        FieldValue::Float(value) => put(FieldType::Float, &value.to_le_bytes()),
        FieldValue::Integer(value) => put(FieldType::Integer, &value.to_le_bytes()),
        FieldValue::Unsigned(value) => put(FieldType::Unsigned, &value.to_le_bytes()),
        FieldValue::Boolean(value) => put(FieldType::Boolean, &[u8::from(*value)]),
        FieldValue::String(value) => {
            put(FieldType::String, &(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value.as_bytes());
        }
    }
}

/// Bytes of a row without its values.
const ROW: usize = 18;

/// Bytes that a value takes in a row.
fn value_len(value: &FieldValue<'_>) -> usize {
    match value {
        FieldValue::Boolean(_) => 5,
        FieldValue::String(value) => 8 + value.len(),
        _ => 12,
    }
}

/// The series, shard and time of the values of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) series: SeriesId,
    pub(crate) shard: ShardId,
    pub(crate) time: i64,
}

impl Place {
    fn write(self, out: &mut Vec<u8>, count: u16) {
        out.extend(self.series.to_le_bytes());
        out.extend(self.shard.to_le_bytes());
        out.extend(self.time.to_le_bytes());
        out.extend(count.to_le_bytes());
    }
}
// media-format: end

/// Rows to be written, cut into records.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Where records end.
    ends: Vec<usize>,
}

/// A record of this many bytes gets no more rows.
const RECORD: usize = 16 << 10;

impl Batch {
    /// Adds the values of a point. If its row would be longer than `record_max` they are split into several rows.
    /// False if one value alone would be longer, or is a string longer than [`STRING_MAX`]: then nothing was added,
    /// and nothing has to be undone.
    pub(crate) fn push<'v>(
        &mut self,
        place: Place,
        fields: impl Iterator<Item = (FieldId, &'v FieldValue<'v>)> + Clone,
        record_max: usize,
    ) -> bool {
        let longest = value_len(&FieldValue::String("".into())) + STRING_MAX;
        let value_max = longest.min(record_max.saturating_sub(ROW));
        if fields.clone().any(|(_, value)| value_len(value) > value_max) {
            return false;
        }
        let (mut row, mut count) = (self.bytes.len(), 0_u16);
        place.write(&mut self.bytes, 0);
        for (field, value) in fields {
            let len = value_len(value);
            if self.bytes.len() - row + len > record_max || count == u16::MAX {
                self.count(row, count);
                self.end(row, record_max);
                row = self.bytes.len();
                count = 0;
                place.write(&mut self.bytes, 0);
            }
            write_value(&mut self.bytes, field, value);
            count += 1;
        }
        self.count(row, count);
        self.end(row, record_max);
        true
    }

    fn count(&mut self, row: usize, count: u16) {
        if let Some(place) = self.bytes.get_mut(row + ROW - 2..row + ROW) {
            place.copy_from_slice(&count.to_le_bytes());
        }
    }

    /// The row that begins at `row` is complete: it joins the record before it, or begins another.
    fn end(&mut self, row: usize, record_max: usize) {
        let start = self.ends.iter().rev().nth(1).copied().unwrap_or(0);
        let limit = RECORD.min(record_max);
        match self.ends.last_mut() {
            Some(last) if *last == row && self.bytes.len() - start <= limit => {
                *last = self.bytes.len();
            }
            _ => self.ends.push(self.bytes.len()),
        }
    }

    /// Its records.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).filter_map(|(from, to)| self.bytes.get(from..*to))
    }

    /// Keeps the first records alone.
    pub(crate) fn truncate(&mut self, records: usize) {
        self.ends.truncate(records);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Bytes of all rows.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if it has no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A value of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RowValue<'r> {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Boolean(bool),
    String(&'r str),
}

impl RowValue<'_> {
    /// The type of its field.
    pub(crate) fn field_type(&self) -> FieldType {
        match self {
            Self::Float(_) => FieldType::Float,
            Self::Integer(_) => FieldType::Integer,
            Self::Unsigned(_) => FieldType::Unsigned,
            Self::Boolean(_) => FieldType::Boolean,
            Self::String(_) => FieldType::String,
        }
    }
}

/// Reads rows of a record.
#[derive(Debug, Clone)]
pub(crate) struct Rows<'r> {
    rest: &'r [u8],
    values: u16,
}

impl<'r> Rows<'r> {
    pub(crate) fn new(record: &'r [u8]) -> Self {
        Self { rest: record, values: 0 }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (found, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*found)
    }

    /// The next row; unread values of the current row are skipped.
    pub(crate) fn next_row(&mut self) -> Option<Place> {
        while self.values > 0 {
            self.next_value()?;
        }
        let series = u32::from_le_bytes(self.take()?);
        let shard = u32::from_le_bytes(self.take()?);
        let time = i64::from_le_bytes(self.take()?);
        self.values = u16::from_le_bytes(self.take()?);
        Some(Place { series, shard, time })
    }

    /// The next value of the row.
    #[inline]
    pub(crate) fn next_value(&mut self) -> Option<(FieldId, RowValue<'r>)> {
        self.values = self.values.checked_sub(1)?;
        let word = u32::from_le_bytes(self.take()?);
        let field = word & ((1 << FIELD_BITS) - 1);
        let value = match FieldType::of_code((word >> FIELD_BITS) as u8)? {
            FieldType::Float => RowValue::Float(f64::from_le_bytes(self.take()?)),
            FieldType::Integer => RowValue::Integer(i64::from_le_bytes(self.take()?)),
            FieldType::Unsigned => RowValue::Unsigned(u64::from_le_bytes(self.take()?)),
            FieldType::Boolean => RowValue::Boolean(self.take::<1>()? != [0]),
            FieldType::String => {
                let len = u32::from_le_bytes(self.take()?) as usize;
                let (bytes, rest) = self.rest.split_at_checked(len)?;
                self.rest = rest;
                RowValue::String(std::str::from_utf8(bytes).ok()?)
            }
        };
        Some((field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written_and_records_have_whole_ones() {
        let text = "x".repeat(300);
        let values = [
            (1, FieldValue::Float(-0.5)),
            (2, FieldValue::Integer(i64::MIN)),
            (3, FieldValue::Unsigned(u64::MAX)),
            (4, FieldValue::Boolean(true)),
            (5, FieldValue::String(text.as_str().into())),
        ];
        let mut batch = Batch::default();
        for time in 0..200 {
            let place = Place { series: 7, shard: 9, time };
            let fields = values.iter().map(|(field, value)| (*field, value));
            assert!(batch.push(place, fields, 340), "two rows each");
            assert!(!batch.push(place, values.iter().map(|(f, v)| (*f, v)), 100));
        }
        let (mut rows, mut seen) = (0, 0);
        for record in batch.records() {
            assert!(record.len() <= 340, "{}", record.len());
            let mut reader = Rows::new(record);
            while let Some(place) = reader.next_row() {
                assert_eq!((place.series, place.shard), (7, 9));
                rows += 1;
                while let Some((field, value)) = reader.next_value() {
                    seen += 1;
                    let (_, expected) = &values[field as usize - 1];
                    match (value, expected) {
                        (RowValue::Float(a), FieldValue::Float(b)) => assert_eq!(a, *b),
                        (RowValue::Integer(a), FieldValue::Integer(b)) => assert_eq!(a, *b),
                        (RowValue::Unsigned(a), FieldValue::Unsigned(b)) => assert_eq!(a, *b),
                        (RowValue::Boolean(a), FieldValue::Boolean(b)) => assert_eq!(a, *b),
                        (RowValue::String(a), FieldValue::String(b)) => assert_eq!(a, b),
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(reader.rest.is_empty());
        }
        assert_eq!((rows, seen), (400, 1000));
    }

    /// By the time the too long string is found, the first row of the refused point would be complete, in one record
    /// with the point before it.
    #[test]
    fn a_point_that_is_refused_leaves_those_before_it_as_they_were() {
        let (short, long) = ("x".repeat(300), "x".repeat(400));
        let [known, short, long] = [
            FieldValue::Float(1.0),
            FieldValue::String(short.into()),
            FieldValue::String(long.into()),
        ];
        let place = |time| Place { series: 7, shard: 9, time };
        let mut batch = Batch::default();
        assert!(batch.push(place(1), [(1, &known)].into_iter(), 340));
        let values = [(1, &known), (2, &short), (3, &long)];
        assert!(!batch.push(place(2), values.into_iter(), 340));
        assert!(batch.push(place(3), [(1, &known)].into_iter(), 340));
        let mut times = Vec::new();
        for record in batch.records() {
            let mut rows = Rows::new(record);
            while let Some(place) = rows.next_row() {
                times.push(place.time);
                while rows.next_value().is_some() {}
            }
            assert!(rows.rest.is_empty());
        }
        assert_eq!(times, [1, 3]);
        assert_eq!(batch.records().map(<[u8]>::len).sum::<usize>(), batch.len());
    }
}
