//! The form of nearly every record that is read.

use crate::{EXPIRES, HEADER, KEY_BITS, Kind, LARGE, SEQUENCE, word32, word64};
use coreplane_pmem::PageBytes;

/// The bits of kind and flags that are the same for all pairs: neither expiry nor overflow records.
const PAIR_MASK: u32 = 7 | (EXPIRES | LARGE) << 3;

/// The parts of a record that a reader needs, for a record with its whole value and no expiry.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The sequence that callers see.
    pub sequence: u64,
    /// From the header to the end of the value.
    bytes: &'a [u8],
}

#[allow(clippy::len_without_is_empty, reason = "there is no empty one")]
impl<'a> Pair<'a> {
    /// The pair at offset `within` of a page; none if there is no record, or one of another form. Only
    /// its lengths are checked, not its checksum: the function is inlined where only the lengths are
    /// needed, and therefore small.
    #[inline(always)]
    pub fn of(page: &PageBytes<'a>, within: u32) -> Option<Self> {
        let head = page.get(within, HEADER)?.first_chunk::<HEADER>()?;
        let lengths = word32(head, 4);
        // The kind and these flags, compared as one number.
        if lengths >> KEY_BITS & PAIR_MASK != Kind::Put as u32 {
            return None;
        }
        let has_sequence = lengths >> (KEY_BITS + 3) & SEQUENCE != 0;
        let start = if has_sequence { HEADER + 8 } else { HEADER };
        let key_end = start + (lengths & ((1 << KEY_BITS) - 1)) as usize;
        let bytes = page.get(within, key_end + word32(head, 8) as usize)?;
        let key = bytes.get(start..key_end)?;
        let value = bytes.get(key_end..)?;
        let sequence = if has_sequence { word64(bytes, HEADER) } else { word64(head, 12) };
        Some(Self { key, value, sequence, bytes })
    }

    /// Bytes in the log, padding included.
    #[inline]
    pub fn len(&self) -> u32 {
        self.bytes.len().next_multiple_of(8) as u32
    }

    /// True if its key is `key`, compared word by word: most keys are too short for a call.
    #[inline(always)]
    pub fn is_of(&self, key: &[u8]) -> bool {
        if self.key.len() != key.len() || key.len() > 64 {
            return self.key == key;
        }
        let (mut mine, mut theirs) = (self.key, key);
        while let (Some((a, more_of_mine)), Some((b, more_of_theirs))) =
            (mine.split_first_chunk::<8>(), theirs.split_first_chunk::<8>())
        {
            if a != b {
                return false;
            }
            (mine, theirs) = (more_of_mine, more_of_theirs);
        }
        mine.is_empty() || mine == theirs
    }
}
