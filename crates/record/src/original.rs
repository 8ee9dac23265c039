//! Copies of records.

use super::{FLAGS, Header, KEY_BITS, word32};
use coreplane_pmem::checksum::crc32c_difference;

/// A record that is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Original<'a> {
    /// From the header to the end of the value.
    pub(super) bytes: &'a [u8],
    /// The seed of its checksum.
    pub(super) seed: u32,
}

impl Original<'_> {
    /// Appends a padded copy with the flags of `header`; everything else in `header` must be as in the original. The
    /// checksum of the copy begins with `seed`; it is right if that of the original is, and wrong otherwise.
    #[inline]
    pub fn copy(&self, header: &Header, seed: u32, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(self.bytes);
        let (crc, lengths) = (word32(self.bytes, 0), word32(self.bytes, 4));
        let shift = KEY_BITS + 3;
        let flagged = lengths & !(FLAGS << shift) | header.flags() << shift;
        let first = (lengths ^ flagged).to_le_bytes();
        let difference = crc32c_difference(self.seed ^ seed, &first, self.bytes.len() - 8);
        to[start..start + 4].copy_from_slice(&(crc ^ difference).to_le_bytes());
        to[start + 4..start + 8].copy_from_slice(&flagged.to_le_bytes());
        to.resize(start + self.bytes.len().next_multiple_of(8), 0);
    }
}
