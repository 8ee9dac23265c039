//! Entries: the places of the chunks of a segment, and their summaries.

use crate::catalogue::{FieldId, SeriesId};
use crate::summary::{Summary, of_bits, to_bits};
use crate::value::{Block, FieldType, Value};
use coreplane_pmem::checksum::crc32c_append;

/// A chunk: points of a field of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Entry {
    pub(crate) series: SeriesId,
    pub(crate) field: FieldId,
    pub(crate) field_type: FieldType,
    /// The first time and the last.
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) count: u32,
    /// The place of its bytes: the page of the segment, bytes within it, their number, and their checksum.
    pub(crate) page: u32,
    pub(crate) within: u32,
    pub(crate) len: u32,
    pub(crate) crc: u32,
    /// As bits: the sum, the least and the greatest with their times, the first and the last.
    sum: u64,
    min: (i64, u64),
    max: (i64, u64),
    first: u64,
    last: u64,
}

/// Chunks, each with its origin.
pub(crate) type Chunks<'c, T> = &'c [(T, Entry)];

/// Splits chunks, which ascend by their first time, behind those that overlap the first one or each other in a row;
/// the third part is the last time of these.
pub(crate) fn overlapping<T>(chunks: Chunks<'_, T>) -> (Chunks<'_, T>, Chunks<'_, T>, i64) {
    let (mut to, mut count) = (i64::MIN, 0);
    while let Some((_, next)) = chunks.get(count).filter(|it| count == 0 || it.1.from <= to) {
        to = to.max(next.to);
        count += 1;
    }
    let (cluster, behind) = chunks.split_at(count);
    (cluster, behind, to)
}

/// The order of entries.
pub(crate) type Key = (SeriesId, FieldId, i64);

// media-format: begin pool
/// Bytes of an entry.
pub(crate) const ENTRY: usize = 112;

impl Entry {
    pub(crate) fn encode(&self, seed: u32) -> [u8; ENTRY] {
        let words = [
            u64::from(self.series) | u64::from(self.field) << 32,
            self.from as u64,
            self.to as u64,
            u64::from(self.count) | u64::from(self.field_type.code()) << 32,
            u64::from(self.page) | u64::from(self.within) << 32,
            u64::from(self.len) | u64::from(self.crc) << 32,
            self.sum,
            self.min.0 as u64,
            self.min.1,
            self.max.0 as u64,
            self.max.1,
            self.first,
            self.last,
        ];
        let mut bytes = [0; ENTRY];
        let (place, rest) = bytes.as_chunks_mut::<8>();
        debug_assert!(rest.is_empty());
        for (place, word) in place.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let crc = crc32c_append(seed, bytes.get(..ENTRY - 8).unwrap_or_default());
        if let Some(last) = place_of_crc(&mut bytes) {
            last.copy_from_slice(&u64::from(crc).to_le_bytes());
        }
        bytes
    }

    /// None if the entry is damaged.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let (whole, rest) = bytes.as_chunks::<8>();
        let whole: &[[u8; 8]; ENTRY / 8] = whole.try_into().ok().filter(|_| rest.is_empty())?;
        let [key, from, to, count, place, len, sum, min, min_bits, max, max_bits, first, last, crc] =
            whole.map(u64::from_le_bytes);
        let low = |word: u64| (word & 0xffff_ffff) as u32;
        if u64::from(crc32c_append(seed, bytes.get(..ENTRY - 8)?)) != crc {
            return None;
        }
        Some(Self {
            series: low(key),
            field: low(key >> 32),
            field_type: FieldType::of_code(u8::try_from(low(count >> 32)).ok()?)?,
            from: from as i64,
            to: to as i64,
            count: low(count),
            page: low(place),
            within: low(place >> 32),
            len: low(len),
            crc: low(len >> 32),
            sum,
            min: (min as i64, min_bits),
            max: (max as i64, max_bits),
            first,
            last,
        })
    }
}

fn place_of_crc(bytes: &mut [u8; ENTRY]) -> Option<&mut [u8]> {
    bytes.get_mut(ENTRY - 8..)
}
// media-format: end

impl Entry {
    /// The entry of a block, without the place of its bytes; none if the block is empty.
    pub(crate) fn of(series: SeriesId, field: FieldId, block: &Block) -> Option<Self> {
        let summary = Summary::of(block, 0..block.len())?;
        let bits = |(time, value): &(i64, Value)| (*time, to_bits(value));
        Some(Self {
            series,
            field,
            field_type: block.values.field_type(),
            from: summary.first.0,
            to: summary.last.0,
            count: block.len() as u32,
            page: 0,
            within: 0,
            len: 0,
            crc: 0,
            sum: to_bits(&summary.sum),
            min: bits(&summary.min),
            max: bits(&summary.max),
            first: to_bits(&summary.first.1),
            last: to_bits(&summary.last.1),
        })
    }

    /// The same entry, with its bytes at this place: the page of the segment, and bytes within it.
    pub(super) fn placed(self, (page, within): (u32, u32), len: u32, crc: u32) -> Self {
        Self { page, within, len, crc, ..self }
    }

    /// True if the entry states the summary of these points.
    pub(crate) fn is_of(&self, block: &Block) -> bool {
        let found = Self::of(self.series, self.field, block);
        let found = found.map(|it| it.placed((self.page, self.within), self.len, self.crc));
        found.is_some_and(|it| it.encode(0) == self.encode(0))
    }

    pub(crate) fn key(&self) -> Key {
        (self.series, self.field, self.from)
    }

    /// The summary of its points; none for strings, whose first and last value are not in the entry.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let of = self.field_type;
        let sum = match of {
            FieldType::String => return None,
            FieldType::Boolean => Value::Integer(0),
            _ => of_bits(of, self.sum),
        };
        let at = |(time, bits): (i64, u64)| (time, of_bits(of, bits));
        Some(Summary {
            count: u64::from(self.count),
            sum,
            min: at(self.min),
            max: at(self.max),
            first: at((self.from, self.first)),
            last: at((self.to, self.last)),
        })
    }
}
