//! The bytes of a checkpoint's page.
//!
//! ```text
//!   header (64 bytes) ─ [births of the log pages open then] ─ segment ─ segment ─ …
//!     0  4  CRC-32C of bytes 4 to length, begun with the seed of pool, page generation, offset
//!     4  4  length: bytes of the page that count
//!     8  8  number of the checkpoint
//!    16  4  place of the page in it, from 0
//!    20  4  segments in the page
//!    24  8  replay birth
//!    32  8  void birth
//!    40  4  births listed after the header (in page 0 alone)
//!    44  4  pages of the checkpoint, in the last of them; 0 in the others
//!    48 16  zero
//!   segment: depth (8 bits) and prefix (from bit 8 on) in a word, then its slots
//! ```

use crate::table::geometry::Geometry;
use crate::table::index::SegmentHeader;

const HEADER: usize = 64;

/// The state of the log when the copying of the index began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moment {
    /// Pages opened with this birth or later have records that the copy may lack.
    pub(crate) replay_birth: u64,
    /// Pages opened with this birth or later were opened after the copying began: slots of the copy
    /// that point into them may be about another use of the page.
    pub(crate) void_birth: u64,
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Bytes of a segment in a checkpoint.
fn segment_len(geometry: &Geometry) -> usize {
    8 + geometry.segment_bytes() as usize
}

/// Pages that `segments` segments take, with `open` births listed.
pub(crate) fn pages_for(geometry: &Geometry, segments: u64, open: usize) -> u64 {
    let page = geometry.page_size as usize;
    let in_first = ((page - HEADER - 8 * open) / segment_len(geometry)) as u64;
    let in_each = ((page - HEADER) / segment_len(geometry)) as u64;
    1 + segments.saturating_sub(in_first).div_ceil(in_each)
}

/// A page under construction, in DRAM.
#[derive(Debug)]
pub(crate) struct Draft {
    number: u64,
    moment: Moment,
    place: u32,
    open: u32,
    segments: u32,
    bytes: Vec<u8>,
}

impl Draft {
    /// The first page of checkpoint `number`, with the births of the log pages that were open.
    pub(crate) fn first(geometry: &Geometry, number: u64, moment: Moment, open: &[u64]) -> Self {
        let mut bytes = Vec::with_capacity(geometry.page_size as usize);
        bytes.resize(HEADER, 0);
        open.iter().for_each(|birth| bytes.extend_from_slice(&birth.to_le_bytes()));
        Self { number, moment, place: 0, open: open.len() as u32, segments: 0, bytes }
    }

    pub(crate) fn has_room(&self, geometry: &Geometry) -> bool {
        self.bytes.len() + segment_len(geometry) <= geometry.page_size as usize
    }

    /// Adds a segment, whose slots `copy` appends.
    pub(crate) fn add<E, R>(
        &mut self,
        copy: impl FnOnce(&mut Vec<u8>) -> Result<(SegmentHeader, R), E>,
    ) -> Result<R, E> {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 8]);
        let (SegmentHeader { prefix, depth }, result) = copy(&mut self.bytes)?;
        let head = u64::from(depth) | u64::from(prefix) << 8;
        self.bytes[at..at + 8].copy_from_slice(&head.to_le_bytes());
        self.segments += 1;
        Ok(result)
    }

    /// The bytes of the page, for the place that has `seed`; the last page holds the number of
    /// pages.
    pub(crate) fn seal(&mut self, seed: u32, is_last: bool) -> &[u8] {
        let total = if is_last { self.place + 1 } else { 0 };
        let len = self.bytes.len() as u32;
        let mut put = |at: usize, bytes: &[u8]| {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(4, &len.to_le_bytes());
        put(8, &self.number.to_le_bytes());
        put(16, &self.place.to_le_bytes());
        put(20, &self.segments.to_le_bytes());
        put(24, &self.moment.replay_birth.to_le_bytes());
        put(32, &self.moment.void_birth.to_le_bytes());
        put(40, &self.open.to_le_bytes());
        put(44, &total.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        &self.bytes
    }

    /// Goes on to the next page.
    pub(crate) fn next(&mut self) {
        self.bytes.truncate(HEADER);
        self.place += 1;
        self.open = 0;
        self.segments = 0;
    }
}

/// A page of a checkpoint whose checksum matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sheet<'a> {
    pub(crate) number: u64,
    pub(crate) place: u32,
    pub(crate) total: u32,
    pub(crate) moment: Moment,
    open: &'a [u8],
    body: &'a [u8],
}

impl<'a> Sheet<'a> {
    /// Reads the bytes of a page; none if they are not as they were written there.
    pub(crate) fn read(geometry: &Geometry, bytes: &'a [u8], seed: u32) -> Option<Self> {
        let sheet = Self::trusted(geometry, bytes)?;
        let counts = bytes.get(4..word32(bytes, 4) as usize)?;
        (word32(bytes, 0) == crc32c::crc32c_append(seed, counts)).then_some(sheet)
    }

    /// As [`Sheet::read`], for bytes whose checksum was verified before.
    pub(crate) fn trusted(geometry: &Geometry, bytes: &'a [u8]) -> Option<Self> {
        let bytes = bytes.get(..word32(bytes.get(..HEADER)?, 4) as usize)?;
        let births_end = HEADER + 8 * word32(bytes.get(..HEADER)?, 40) as usize;
        let (open, body) = (bytes.get(HEADER..births_end)?, bytes.get(births_end..)?);
        let whole = word32(bytes, 20) as usize * segment_len(geometry);
        (body.len() == whole).then(|| Self {
            number: word64(bytes, 8),
            place: word32(bytes, 16),
            total: word32(bytes, 44),
            moment: Moment { replay_birth: word64(bytes, 24), void_birth: word64(bytes, 32) },
            open,
            body,
        })
    }

    /// The births of the log pages that were open.
    pub(crate) fn open(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.open.chunks_exact(8).map(|bytes| word64(bytes, 0))
    }

    /// The segments and their slots.
    pub(crate) fn segments(
        &self,
        geometry: &Geometry,
    ) -> impl Iterator<Item = (SegmentHeader, &'a [u8])> + use<'a> {
        self.body.chunks_exact(segment_len(geometry)).map(|segment| {
            let head = word64(segment, 0);
            let header = SegmentHeader { prefix: (head >> 8) as u32, depth: head as u32 & 0xff };
            (header, &segment[8..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn draft(segments: u32) -> Draft {
        let geometry = Geometry::TINY;
        let moment = Moment { replay_birth: 7, void_birth: 9 };
        let mut draft = Draft::first(&geometry, 3, moment, &[5, 6]);
        for prefix in 0..segments {
            let added: Result<(), Infallible> = draft.add(|out| {
                out.extend((0..geometry.segment_bytes()).map(|at| (at * 7) as u8));
                Ok((SegmentHeader { prefix, depth: 4 }, ()))
            });
            assert!(added.is_ok());
        }
        draft
    }

    #[test]
    fn a_page_gives_back_what_was_put_in() {
        let geometry = Geometry::TINY;
        let mut draft = draft(5);
        let sheet = Sheet::read(&geometry, draft.seal(77, true), 77).expect("a sound page");
        assert_eq!((sheet.number, sheet.place, sheet.total), (3, 0, 1));
        assert_eq!(sheet.moment, Moment { replay_birth: 7, void_birth: 9 });
        assert_eq!(sheet.open().collect::<Vec<_>>(), [5, 6]);
        let prefixes: Vec<u32> =
            sheet.segments(&geometry).map(|(header, _)| header.prefix).collect();
        assert_eq!(prefixes, [0, 1, 2, 3, 4]);
        assert!(sheet.segments(&geometry).all(|(_, slots)| slots[1] == 7 && slots.len() == 256));
    }

    #[test]
    fn every_flipped_bit_and_another_place_are_seen() {
        let geometry = Geometry::TINY;
        let mut draft = draft(1);
        let bytes = draft.seal(77, true).to_vec();
        assert!(Sheet::read(&geometry, &bytes, 78).is_none());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Sheet::read(&geometry, &flipped, 77).is_none(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Sheet::read(&geometry, &bytes[..len], 77).is_none(), "{len} bytes");
        }
    }

    #[test]
    fn as_many_pages_are_needed_as_are_filled() {
        let geometry = Geometry::TINY;
        let mut draft = draft(0);
        let mut pages = 1;
        for segments in 1..50 {
            if !draft.has_room(&geometry) {
                draft.next();
                pages += 1;
            }
            let added: Result<(), Infallible> = draft.add(|out| {
                out.resize(out.len() + geometry.segment_bytes() as usize, 0);
                Ok((SegmentHeader { prefix: 0, depth: 0 }, ()))
            });
            assert!(added.is_ok());
            assert_eq!(pages_for(&geometry, segments, 2), pages, "{segments} segments");
        }
    }
}
