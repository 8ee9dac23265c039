//! Segments: sealed chunks of one shard of a queue set.
//!
//! ```text
//!   pages of the segment:  │ chunk chunk chunk … │ chunk … entries │ entries … │
//!
//!   entry: series, field, from, to, count, where the chunk is, its checksum, sum, min, max, first, last, checksum
//! ```
//!
//! Chunks are ascending by series, field and time, and so are their entries. A query finds its chunks by a binary
//! search in the pool; DRAM has only the list of pages. An aggregate over a whole chunk reads the entry alone.
//! Everything that is read has a checksum: those of chunks and entries begin with the pool and the segment.
//!
//! A segment is written once. It exists when a record of the manifest says so; until then its pages belong to
//! nothing.

mod entry;
mod near;
mod read;
pub(crate) mod window;
mod write;

pub(crate) use entry::{ENTRY, Entry, overlapping};
pub(crate) use near::Nears;
pub(crate) use read::{Garbage, LOST, Segment};
pub(crate) use write::{Fresh, POINTS_MAX, SegmentWriter};

use crate::pages::{Pages, Role, Use};
use crate::rows::ShardId;
use coreplane_pmem::checksum::crc32c_append;

/// Numbers of segments are less than this: the word of a page has no room for greater ones.
pub(crate) const NUMBERS_MAX: u32 = 1 << 28;

/// The description of a segment in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info {
    /// Its number; never given twice.
    pub(crate) number: u32,
    pub(crate) shard: ShardId,
    /// Of two segments of a shard that have a point of the same time the one with the greater age number wins.
    pub(crate) age: u64,
    pub(crate) pages: u32,
    /// The place where the entries begin: the page, and bytes within it; the number of entries.
    pub(crate) index_page: u32,
    pub(crate) index_within: u32,
    pub(crate) entries: u32,
    pub(crate) points: u64,
    /// Bytes of chunks.
    pub(crate) bytes: u64,
}

// media-format: begin pool
/// Bits of the number of a page within a segment.
const ORDINAL_BITS: u32 = 16;

/// The use of a page of a segment.
pub(crate) fn use_of(number: u32, ordinal: u32) -> Use {
    Use { role: Role::Segment, number: u64::from(number) << ORDINAL_BITS | u64::from(ordinal) }
}

/// The segment and the page within it.
pub(crate) fn of_use(use_of: Use) -> (u32, u32) {
    let ordinal = use_of.number & ((1 << ORDINAL_BITS) - 1);
    ((use_of.number >> ORDINAL_BITS) as u32, ordinal as u32)
}

/// Pages of a segment at most.
pub(crate) const PAGES_MAX: u32 = 1 << ORDINAL_BITS;

/// The initial value of the checksums of a segment.
fn seed_of(pages: &Pages, number: u32) -> u32 {
    crc32c_append(pages.seed(), &number.to_le_bytes())
}

/// The initial value of the checksum of a chunk.
fn chunk_seed(seed: u32, page: u32, within: u32) -> u32 {
    crc32c_append(seed, &(u64::from(page) << 32 | u64::from(within)).to_le_bytes())
}

/// The place of an entry: the page of the segment, and bytes within it.
fn entry_place(info: &Info, page_len: u32, entry: u32) -> (u32, u32) {
    let first = (page_len - info.index_within.min(page_len)) / ENTRY as u32;
    if entry < first {
        return (info.index_page, info.index_within + entry * ENTRY as u32);
    }
    let (per, entry) = (page_len / ENTRY as u32, entry - first);
    (info.index_page + 1 + entry / per, entry % per * ENTRY as u32)
}
// media-format: end
