//! The fill: tells bytes that have not arrived from bytes that are damaged.
//!
//! When a leaf is written, the rest of its page is filled with one word, the *fill*, before the leaf counts. No two
//! lives of a page have the same fill. Records are appended over it in whole words, each written once. From then on
//! a word is the fill, and has not arrived; or it has the written value; or it is damaged.
//!
//! ```text
//!   head │ image │ record │ record │ re░░rd │ ░░░░░░░░░░░░      power cut: some of it never came
//!   head │ image │ record │ record │ rexord │ ░░░░░░░░░░░░      all of it came: one word is damaged
//! ```
//!
//! So for the last record of a leaf, too, it is known whether it may be discarded, without any extra write or wait
//! in a put. Where a fence is a sync this holds for all that was written since the last sync. No other bytes ever
//! come to lie there: a recovery restores the fill over the bytes that it discards, and so does a writer that fails
//! to publish an appended record.
//!
//! Damage in the length of a record can make it seem to extend into words that have not arrived. So other lengths
//! that differ in one bit are tried.

use crate::leaf::{Life, generation};
use crate::tree::leaf_page::Found;
use crate::tree::mend::SupersededMark;
use crate::tree::multi_leaf_commit::LEN;
use crate::tree::{SUPERSEDED_MARK_LEN, Tree};
use coreplane_engine::Result;
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageBytes, PageWriter, Pen};
use coreplane_record::{self as record, Form, HEADER};

/// The words that hold the lengths of a record and its version; every record has them.
const HEADER_WORDS: u32 = HEADER.div_ceil(8) as u32;

/// The word that fills the rest of a page; no record begins with it.
// media-format: begin pool
pub(crate) fn fill_of(pool_seed: u32, birth: u64) -> u64 {
    let mut word = (birth ^ u64::from(pool_seed) << 32).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) & !(7 << (32 + 17)) | 1
}

// media-format: end

/// The part of a leaf's page behind its image, and its fill.
pub(crate) struct Filled<'b, 'g> {
    bytes: &'b PageBytes<'g>,
    fill: u64,
    /// The seed of the pool.
    seed: u32,
    birth: u64,
}

impl<'b, 'g> Filled<'b, 'g> {
    pub(crate) fn new(bytes: &'b PageBytes<'g>, seed: u32, birth: u64) -> Self {
        Self { bytes, fill: fill_of(seed, birth), seed, birth }
    }

    fn rest(&self, from: u32) -> Option<&'g [u8]> {
        self.bytes.get(from, self.bytes.published().checked_sub(from)? as usize)
    }

    /// True if nothing that was appended from a place on has arrived.
    pub(crate) fn is_blank(&self, from: u32) -> bool {
        let fill = self.fill.to_le_bytes();
        self.rest(from).is_none_or(|rest| rest.as_chunks().0.iter().all(|word| *word == fill))
    }

    /// The end of the last word behind a place that has arrived; the place itself if none has.
    fn end(&self, from: u32) -> u32 {
        let fill = self.fill.to_le_bytes();
        let words = self.rest(from).unwrap_or_default().as_chunks().0;
        let last = words.iter().rposition(|word| *word != fill);
        from + last.map_or(0, |last| 8 * (last as u32 + 1))
    }

    /// True if all of an unsound record has arrived, so that it is damaged. `nothing_is_torn`: every write that was
    /// begun has arrived.
    pub(crate) fn has_arrived(&self, at: u32, nothing_is_torn: bool) -> bool {
        let fill = self.fill.to_le_bytes();
        let words = self.rest(at).unwrap_or_default().as_chunks().0;
        let arrived = words.iter().take_while(|word| **word != fill).count() as u32;
        if arrived < HEADER_WORDS {
            return false;
        }
        let Some(header) = self.bytes.get(at, HEADER).and_then(|it| it.first_chunk()) else {
            return false;
        };
        // Bytes that cannot be a header are damaged.
        let is_there = |form: &Form| form.len().div_ceil(8) <= arrived as usize;
        nothing_is_torn
            || Form::of(header).as_ref().is_none_or(is_there)
            || self.is_sound_but_for_its_length(header, (at, 8 * arrived as usize))
    }

    /// The superseded mark at a place, if all of it has arrived and one bit of it is damaged.
    pub(crate) fn mended_mark(&self, at: u32) -> Option<SupersededMark> {
        let bytes: &[u8; LEN] = self.bytes.get(at, LEN)?.first_chunk()?;
        let fill = self.fill.to_le_bytes();
        if bytes.as_chunks().0.contains(&fill) {
            return None;
        }
        SupersededMark::mended(bytes, self.record_seed(at))
    }

    /// The seed of a record at a place.
    fn record_seed(&self, at: u32) -> u32 {
        let offset = self.bytes.start() + u64::from(at);
        record::seed(self.seed, generation(self.birth), offset)
    }

    /// True if the record is sound with one bit of its lengths flipped, and has at most `arrived` bytes.
    fn is_sound_but_for_its_length(
        &self,
        header: &[u8; HEADER],
        (at, arrived): (u32, usize),
    ) -> bool {
        let seed = self.record_seed(at);
        let [a, b, c, d, ..] = *header;
        let stored = u32::from_le_bytes([a, b, c, d]);
        (32..96).any(|bit| {
            let mut other = *header;
            other[bit / 8] ^= 1 << (bit % 8);
            let len = Form::of(&other).map_or(0, |form| form.len());
            if len < HEADER || len > arrived {
                return false;
            }
            let body = self.bytes.get(at + HEADER as u32, len - HEADER).unwrap_or_default();
            crc32c_append(crc32c_append(seed, &other[4..]), body) == stored
        })
    }
}

impl Tree {
    /// Where a superseded mark may be appended to a leaf as it was found: behind the bytes that show the damage. If
    /// it overwrote them, nothing would show the damage if the power went before all of the mark arrived. Only a
    /// damaged superseded mark at the end of its page leaves no room for another.
    pub(crate) fn end_with_damage(&self, guard: &Guard, found: &Found) -> u32 {
        if found.doubt <= found.end {
            return found.end;
        }
        let Some(bytes) = self.space.page_bytes(guard, found.page) else { return found.end };
        let end = Filled::new(&bytes, self.seed, found.head.birth).end(found.end);
        if end as usize + SUPERSEDED_MARK_LEN > self.space.page_size() as usize {
            found.end
        } else {
            end
        }
    }

    /// Fills a page from the position of its writer to its end; durable after a fence.
    ///
    /// # Errors
    /// If the last record does not end at a word boundary.
    pub(crate) fn fill_rest(&self, writer: &mut PageWriter, birth: u64) -> Result<()> {
        let page = writer.page();
        let is_filled = writer.fill_rest(fill_of(self.seed, birth), self.space.fill_mode());
        if is_filled { Ok(()) } else { Err(self.not_a_leaf(page)) }
    }

    /// Restores the fill behind the published bytes of a page; durable after a fence.
    ///
    /// # Errors
    /// If the page has a writer.
    pub(crate) fn refill(&self, life: Life) -> Result<()> {
        let pen = Pen::new(&self.space);
        let mut writer = pen.take_up(life.page).map_err(|_| self.not_a_leaf(life.page))?;
        self.fill_rest(&mut writer, life.birth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_begins_with_a_fill_and_no_two_lives_have_one() {
        let fills: std::collections::HashSet<u64> = (0..9000).map(|it| fill_of(7, it)).collect();
        assert_eq!(fills.len(), 9000);
        assert!(fills.iter().all(|fill| !Form::may_begin(&fill.to_le_bytes())));
        assert_ne!(fill_of(7, 1), fill_of(8, 1));
    }
}
