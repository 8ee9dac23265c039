//! How a leaf's page begins.
//!
//! ```text
//!   0   crc            CRC-32C of the rest of the head, begun with a seed of pool and page
//!   4   kind | 1 if no key is too great for it | 1 if records of its keys were lost | zeroes
//!   8   length of the least key | length of the bound
//!   12  bytes of the page that were written before it became a leaf
//!   16  birth          of the page; no two pages of a pool, and no two uses of a page, have the same
//!   24  version        no key of the leaf has had a greater one before
//!   32  predecessor    page number of the leaf that had these records before (of several, the one with the
//!                      lowest keys); all ones: none
//!   36  zeroes
//!   40                 and its birth
//!   48  zeroes
//!   64  least key, bound (of long ones the fields), zeroes up to a multiple of 8; then records, and
//!       the fill
//! ```
//!
//! A leaf serves the keys from its least key up to its bound, which is the least key of the next leaf. It keeps
//! both for as long as it lives: a split or a merge makes new leaves. So there are no sibling pointers to keep up
//! to date, and none that dangle: the next leaf is the one that serves the bound. In recovery the leaves must tile
//! the whole range of keys, so that no leaf can be lost unnoticed.

use coreplane_engine::{Error, Result};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_pmem::{PageBytes, Space};

// media-format: begin pool
const FIXED: usize = 64;
const LEAF: u32 = 0x4c;
const UNBOUNDED: u32 = 1 << 8;
const LOST: u32 = 1 << 9;
const NOBODY: u32 = u32::MAX;
// media-format: end

/// One use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) page: u32,
    pub(crate) birth: u64,
}

/// The part of a page's birth in the checksums of its records: below 2^32 the birth itself. The upper bits are
/// folded in and not cut off. Otherwise, after 256 opens, the births of one open would give the same values as
/// those of an earlier open, and records left by an earlier use of a page would look sound.
#[inline]
pub(crate) fn generation(birth: u64) -> u32 {
    birth as u32 ^ ((birth >> 32) as u32).wrapping_mul(0x85eb_ca6b)
}

/// The head of a leaf's page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) birth: u64,
    /// No key of the leaf had a greater version before.
    pub(crate) version: u64,
    /// The leaf that had these records before; of several the one with the lowest keys.
    pub(crate) predecessor: Option<Life>,
    /// The [field](crate::volume::keys) of the least key.
    pub(crate) least: Box<[u8]>,
    /// The field of the bound, the least key that is too great for the leaf.
    pub(crate) bound: Option<Box<[u8]>>,
    /// Bytes of the page that were written before it became a leaf.
    pub(crate) image_len: u32,
    /// Records were lost: a key that the leaf lacks may have been there.
    pub(crate) is_lost: bool,
}

impl Head {
    /// Bytes in the page.
    pub(crate) fn len(&self) -> usize {
        Self::len_of(&self.least, self.bound.as_deref())
    }

    /// Bytes in the page of a head with these bounds.
    pub(crate) fn len_of(least: &[u8], bound: Option<&[u8]>) -> usize {
        (FIXED + least.len() + bound.map_or(0, <[u8]>::len)).next_multiple_of(8)
    }

    /// The fields of the least key of a leaf and of its bound, in the page, unchecked; none if they are not
    /// completely published.
    pub(crate) fn bounds<'g>(page: &PageBytes<'g>) -> Option<(&'g [u8], Option<&'g [u8]>)> {
        let fixed = page.get(0, FIXED)?;
        let (least_len, bound_len, _) = lens_in(fixed);
        let keys = page.get(FIXED as u32, least_len + bound_len)?;
        let (least, bound) = keys.split_at(least_len);
        Some((least, (word32(fixed, 4) & UNBOUNDED == 0).then_some(bound)))
    }

    /// Checks the head of the leaf in page `number` against its checksum.
    ///
    /// # Errors
    /// If it is damaged, or not all of it is published.
    pub(crate) fn check(page: &PageBytes<'_>, pool_seed: u32, number: u32) -> Result<()> {
        let offset = page.start();
        let not_there = || Error::Corrupt { offset, what: "no head of a leaf".to_owned() };
        let fixed = page.get(0, FIXED).ok_or_else(not_there)?;
        let (.., len) = lens_in(fixed);
        let bytes = page.get(0, len).ok_or_else(not_there)?;
        let (stored, computed) =
            (word32(bytes, 0), crc32c_append(seed(pool_seed, number), &bytes[4..]));
        if stored != computed {
            return Err(Error::ChecksumMismatch { offset, stored, computed });
        }
        Ok(())
    }

    /// The bytes of the head of `page`.
    // media-format: begin pool
    pub(crate) fn encode(&self, pool_seed: u32, page: u32) -> Vec<u8> {
        let bound = self.bound.as_deref().unwrap_or_default();
        let mut bytes = vec![0; self.len()];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let unbounded = if self.bound.is_none() { UNBOUNDED } else { 0 };
        let lost = if self.is_lost { LOST } else { 0 };
        put(4, &(LEAF | unbounded | lost).to_le_bytes());
        put(8, &(self.least.len() as u16).to_le_bytes());
        put(10, &(bound.len() as u16).to_le_bytes());
        put(12, &self.image_len.to_le_bytes());
        put(16, &self.birth.to_le_bytes());
        put(24, &self.version.to_le_bytes());
        let Life { page: of, birth } = self.predecessor.unwrap_or(Life { page: NOBODY, birth: 0 });
        put(32, &of.to_le_bytes());
        put(40, &birth.to_le_bytes());
        put(FIXED, &self.least);
        put(FIXED + self.least.len(), bound);
        let crc = crc32c_append(seed(pool_seed, page), &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
    // media-format: end

    /// The head of `page`, as far as it is published; none if it holds no leaf.
    ///
    /// # Errors
    /// If it begins like one and is damaged.
    pub(crate) fn read(
        space: &Space,
        guard: &Guard,
        pool_seed: u32,
        page: u32,
    ) -> Result<Option<Self>> {
        let offset = space.start_of(page);
        let Some(fixed) = space.bytes(guard, offset, FIXED as u64) else { return Ok(None) };
        if word32(fixed, 4) & 0xff != LEAF {
            return Ok(None);
        }
        let (least_len, bound_len, len) = lens_in(fixed);
        let Some(bytes) = space.bytes(guard, offset, len as u64) else { return Ok(None) };
        let (stored, computed) =
            (word32(bytes, 0), crc32c_append(seed(pool_seed, page), &bytes[4..]));
        if stored != computed && !mutant!("bptree.head.checksum") {
            return Err(Error::ChecksumMismatch { offset, stored, computed });
        }
        let keys = &bytes[FIXED..];
        let is_bounded = word32(bytes, 4) & UNBOUNDED == 0;
        let of = word32(bytes, 32);
        Ok(Some(Self {
            birth: word64(bytes, 16),
            version: word64(bytes, 24),
            predecessor: (of != NOBODY).then(|| Life { page: of, birth: word64(bytes, 40) }),
            least: keys[..least_len].into(),
            bound: is_bounded.then(|| keys[least_len..least_len + bound_len].into()),
            image_len: word32(bytes, 12),
            is_lost: word32(bytes, 4) & LOST != 0,
        }))
    }
}

/// The lengths of the least key, of the bound and of the whole head.
fn lens_in(fixed: &[u8]) -> (usize, usize, usize) {
    let lens = word32(fixed, 8) as usize;
    let (least, bound) = (lens & 0xffff, lens >> 16);
    (least, bound, (FIXED + least + bound).next_multiple_of(8))
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}

/// The seed of the checksum of a page's head: a head copied to another page is invalid.
fn seed(pool: u32, page: u32) -> u32 {
    pool.rotate_left(9) ^ page.wrapping_mul(0x9e37_79b1) ^ LEAF
}
