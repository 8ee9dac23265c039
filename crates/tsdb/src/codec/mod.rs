//! Columns as bytes: the times and the values of a sealed chunk.
//!
//! # The problem
//!
//! A sealed chunk is written once and read often, and most chunks are regular: times at a constant interval,
//! numbers that change by little, few decimal places. So each column has several *forms*, and the smallest one for
//! its content is used.
//!
//! # The picture
//!
//! ```text
//!   length of the times ▏ form ▏ times … ▏ form ▏ values …
//! ```
//!
//! | forms of | |
//! |---|---|
//! | times | a constant interval; deltas of deltas; deltas by `pco` (both in the greatest unit that divides them) |
//! | whole numbers | constant; as they are; bits above the least one, or above the least difference; `pco` |
//! | floats | constant; as they are; `pco`; decimal: as whole numbers, by a power of ten |
//! | booleans | constant; bits; lengths of runs |
//! | strings | one after the other; a dictionary and places in it; either of them compressed by `snap` |
//!
//! # What holds
//!
//! - Decoding gives exactly what was encoded, bit by bit: zeroes keep their sign. A float is decimal only if its
//!   division gives the same bits back.
//! - For any bytes [`decode`] returns `None`, or a block with the requested number of points and ascending times.
//!   Its allocations are proportional to that number and to the length of the bytes, and never follow lengths that
//!   the bytes claim.

mod bits;
mod boolean;
mod bytes;
mod float;
mod pcodec;
mod string;
mod times;
mod whole;

use crate::value::{Block, Column, FieldType};
use bytes::Bytes;

/// The maximum number of points of a chunk.
pub(crate) const COUNT_MAX: usize = 65_536;

// media-format: begin pool
/// Appends the bytes of points: as many times as values, at most [`COUNT_MAX`], times ascending and none twice.
pub(crate) fn encode(times: &[i64], values: &Column, out: &mut Vec<u8>) {
    let mut encoded = Vec::new();
    times::encode(times, &mut encoded);
    bytes::push_number(out, encoded.len() as u64);
    out.append(&mut encoded);
    match values {
        Column::Float(values) => float::encode(values, out),
        Column::Integer(values) => whole::encode(values, out),
        Column::Unsigned(values) => {
            let values: Vec<i64> = values.iter().map(|value| value.cast_signed()).collect();
            whole::encode(&values, out);
        }
        Column::Boolean(values) => boolean::encode(values, out),
        Column::String(values) => string::encode(values, out),
    }
}

/// The points that [`encode`] turned into these bytes; none if the bytes are not exactly `count` points of this
/// type.
pub(crate) fn decode(bytes: &[u8], count: usize, of: FieldType) -> Option<Block> {
    let (times, values) = parts(bytes, count)?;
    let times = times::decode(times, count)?;
    Some(Block { times, values: column(values, count, of)? })
}

/// Decodes `count` values of a type.
fn column(values: &[u8], count: usize, of: FieldType) -> Option<Column> {
    Some(match of {
        FieldType::Float => Column::Float(float::decode(values, count)?),
        FieldType::Integer => Column::Integer(whole::decode(values, count)?),
        FieldType::Unsigned => {
            let values = whole::decode(values, count)?;
            Column::Unsigned(values.into_iter().map(i64::cast_unsigned).collect())
        }
        FieldType::Boolean => Column::Boolean(boolean::decode(values, count)?),
        FieldType::String => Column::String(string::decode(values, count)?),
    })
}

/// The bytes of the times and those of the values.
fn parts(bytes: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
    if count == 0 || count > COUNT_MAX {
        return None;
    }
    let mut bytes = Bytes(bytes);
    let length = usize::try_from(bytes.number()?).ok()?;
    Some((bytes.take(length)?, bytes.0))
}
// media-format: end

/// The times that were decoded last, and their bytes: the fields of a series mostly have the same times.
#[derive(Debug, Default)]
pub(crate) struct Times<'b> {
    bytes: &'b [u8],
    times: Vec<i64>,
}

impl<'b> Times<'b> {
    /// As [`decode`], for these bytes. Times that were decoded last are not decoded again.
    pub(crate) fn decode(
        &mut self,
        bytes: &'b [u8],
        count: usize,
        of: FieldType,
    ) -> Option<(&[i64], Column)> {
        let (times, values) = parts(bytes, count)?;
        if self.times.len() != count || self.bytes != times {
            self.times = times::decode(times, count)?;
            self.bytes = times;
        }
        Some((&self.times, column(values, count, of)?))
    }
}

#[cfg(test)]
mod tests;
