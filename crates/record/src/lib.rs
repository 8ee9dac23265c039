//! The records of a log. A record is self-validating, so that a log can be read without an index.
//!
//! ```text
//!   0   crc       CRC-32C of all that follows up to the end of the value, begun with a seed of
//!                 pool, page generation and offset
//!   4   lengths   key length (17) | kind (3) | flags (6) | zeroes
//!   8   value length (32)
//!   12  version   orders all writes of a key
//!   20  [expiry, milliseconds since 1970]  [sequence given by the caller]     8 bytes each
//!       key, value, zeroes up to a multiple of 8
//! ```
//!
//! The paper's record also refers to the record that it replaces (`addr_of_oldobj`), for rollback. Here recovery
//! reads the logs and takes the greatest sound version, so that a write does not need the old record. The seed makes
//! a record valid only where and when it was written: bytes of an earlier use of the page are never taken for a
//! record.
//!
//! *Follows*: a record states whether everything before it in its page was durable when it was written. So an unsound
//! record with a following record behind it is damage, and not the place where a crash cut off the log.
//!
//! *Doubtful*: a newer record of its key may have been lost, so that this one must not be relied on.
//!
//! | kind | value |
//! |---|---|
//! | `Put` | the value, or with `LARGE` its length and the offsets of its overflow records |
//! | `Delete` | the data with which the engine can drop it later |
//! | `Overflow` | its index among the overflow records of the value, then a part of the value |
//! | `Commit` | the records that count from now on: the runs of a batch, the leaves that replace another |
//! | `Lost` | remains of the records here; in a list: nothing with a key, else the end of the part in doubt |
//! | `Node` | a node of a tree: keys, and the places that they lead to |
//! | `Entry` | the end of the changes of an entry of a log: their number, and a header |

mod errors;
mod expiries;
mod options;
mod original;
mod pair;
mod pool_file;
pub mod sealed;

pub use errors::{lost, outlive, pool_error, sync_failed};
pub use expiries::{Expiries, SWEEP_SLICE, SweepRest};
pub use options::Options;
pub use original::Original;
pub use pair::Pair;
pub use pool_file::backing_of;

use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageBytes, Space, mutant};

// media-format: begin pool
/// Bytes of a header without expiry and sequence.
pub const HEADER: usize = 20;
const KEY_BITS: u32 = 17;
/// The offset of the version in a header.
pub const VERSION: usize = 12;
// media-format: end

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A key and its value.
    Put = 1,
    /// A tombstone.
    Delete = 2,
    /// A piece of a large value.
    Overflow = 3,
    /// Makes other records count.
    Commit = 4,
    /// Describes lost bytes.
    Lost = 5,
    /// A node of a tree.
    Node = 6,
    /// The end of an entry of a log.
    Entry = 7,
}

impl Kind {
    #[inline]
    fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            1 => Some(Self::Put),
            2 => Some(Self::Delete),
            3 => Some(Self::Overflow),
            4 => Some(Self::Commit),
            5 => Some(Self::Lost),
            6 => Some(Self::Node),
            7 => Some(Self::Entry),
            _ => None,
        }
    }
}

// media-format: begin pool
const EXPIRES: u32 = 1;
const SEQUENCE: u32 = 2;
const LARGE: u32 = 4;
const BATCHED: u32 = 8;
const FOLLOWS: u32 = 16;
const DOUBTFUL: u32 = 32;
const FLAGS: u32 = 0x3f;
// media-format: end

/// The header before key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the record.
    pub kind: Kind,
    /// The value is a list of overflow records.
    pub large: bool,
    /// Valid only if the commit record of its batch is.
    pub batched: bool,
    /// All records before it in its page were durable when it was written.
    pub follows: bool,
    /// A newer record of its key may have been lost.
    pub doubtful: bool,
    /// Orders all writes of a key.
    pub version: u64,
    /// When the record ceases to exist.
    pub expires_at: Option<UnixMillis>,
    /// The sequence that the caller gave.
    pub sequence: Option<u64>,
}

#[allow(clippy::len_without_is_empty, reason = "there is no empty one")]
impl Header {
    /// The header of a plain record.
    pub fn put(version: u64) -> Self {
        Self {
            kind: Kind::Put,
            large: false,
            batched: false,
            follows: false,
            doubtful: false,
            version,
            expires_at: None,
            sequence: None,
        }
    }

    fn flags(&self) -> u32 {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        flag(self.expires_at.is_some(), EXPIRES)
            | flag(self.sequence.is_some(), SEQUENCE)
            | flag(self.large, LARGE)
            | flag(self.batched, BATCHED)
            | flag(self.follows, FOLLOWS)
            | flag(self.doubtful, DOUBTFUL)
    }

    /// Bytes before the key.
    #[inline]
    pub fn len(&self) -> usize {
        HEADER + 8 * (usize::from(self.expires_at.is_some()) + usize::from(self.sequence.is_some()))
    }

    /// Bytes of the whole record in the log.
    #[inline]
    pub fn record_len(&self, key: &[u8], value_len: usize) -> usize {
        (self.len() + key.len() + value_len).next_multiple_of(8)
    }

    /// The header's bytes, checksum included.
    #[inline]
    // media-format: begin pool
    pub fn encode(&self, seed: u32, key: &[u8], value: &[&[u8]]) -> Encoded {
        let value_len: usize = value.iter().map(|part| part.len()).sum();
        let lengths =
            key.len() as u32 | (self.kind as u32) << KEY_BITS | self.flags() << (KEY_BITS + 3);
        let mut bytes = [0; HEADER + 16];
        // Both in one store, as the checksum loads whole words: a load of a word that was stored in
        // parts waits until the parts have left the store buffer.
        let both = u64::from(lengths) | u64::from(value_len as u32) << 32;
        bytes[4..12].copy_from_slice(&both.to_le_bytes());
        bytes[VERSION..HEADER].copy_from_slice(&self.version.to_le_bytes());
        let mut len = HEADER;
        for extra in [self.expires_at.map(|at| at.0), self.sequence].into_iter().flatten() {
            bytes[len..len + 8].copy_from_slice(&extra.to_le_bytes());
            len += 8;
        }
        let mut crc = crc32c_append(seed, &bytes[4..len]);
        crc = crc32c_append(crc, key);
        for part in value {
            crc = crc32c_append(crc, part);
        }
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        Encoded { bytes, len }
    }
    // media-format: end
}

/// An encoded header.
#[derive(Debug)]
pub struct Encoded {
    bytes: [u8; HEADER + 16],
    len: usize,
}

impl Encoded {
    /// The same header with a wrong checksum: a copy of a damaged record stays damaged.
    #[must_use]
    pub fn spoiled(mut self) -> Self {
        self.bytes[0] ^= 0xff;
        self
    }

    /// The bytes before the key.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A record in the log.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Its offset in the pool.
    pub offset: u64,
    /// Its header.
    pub header: Header,
    /// From the header to the end of the value.
    bytes: &'a [u8],
    key_len: usize,
}

#[inline]
fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

#[allow(clippy::len_without_is_empty, reason = "there is no empty one")]
impl<'a> View<'a> {
    /// The record at offset `within` of a page; none if no possible record is published there. Its
    /// checksum is not checked.
    // A view returned in memory is stored field by field and loaded in larger pieces; such a load waits
    // until the fields have left the store buffer, which takes longer than making the view.
    #[inline(always)]
    pub fn of(page: &PageBytes<'a>, within: u32) -> Option<Self> {
        let form = Form::of(page.get(within, HEADER)?)?;
        let bytes = page.get(within, form.len())?;
        Some(Self::of_form(form, bytes, page.start() + u64::from(within)))
    }

    /// The record whose copy begins at the start of `bytes`. Its checksum is not checked.
    pub fn of_bytes(bytes: &'a [u8], offset: u64) -> Option<Self> {
        let form = Form::of(bytes)?;
        Some(Self::of_form(form, bytes.get(..form.len())?, offset))
    }

    /// The record with this form and these bytes.
    #[inline(always)]
    fn of_form(form: Form, bytes: &'a [u8], offset: u64) -> Self {
        let Form { kind, flags, key_len, .. } = form;
        let mut extra = HEADER;
        let mut next = |present: bool| {
            present.then(|| {
                extra += 8;
                word64(bytes, extra - 8)
            })
        };
        let expires_at = next(flags & EXPIRES != 0).map(UnixMillis);
        let sequence = next(flags & SEQUENCE != 0);
        let header = Header {
            kind,
            large: flags & LARGE != 0,
            batched: flags & BATCHED != 0,
            follows: flags & FOLLOWS != 0,
            doubtful: flags & DOUBTFUL != 0,
            version: word64(bytes, VERSION),
            expires_at,
            sequence,
        };
        Self { offset, header, bytes, key_len }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        let start = self.header.len();
        &self.bytes[start..start + self.key_len]
    }

    /// The value, as it is stored.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        &self.bytes[self.header.len() + self.key_len..]
    }

    /// Bytes in the log, padding included.
    #[inline]
    pub fn len(&self) -> u32 {
        self.bytes.len().next_multiple_of(8) as u32
    }

    /// The sequence that callers see.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.header.sequence.unwrap_or(self.header.version)
    }

    /// Stored and computed checksum.
    pub fn checksums(&self, seed: u32) -> (u32, u32) {
        (word32(self.bytes, 0), crc32c_append(seed, &self.bytes[4..]))
    }

    /// Checks the record against its checksum.
    ///
    /// # Errors
    /// If the bytes are not those that were written here.
    pub fn check(&self, seed: u32) -> Result<()> {
        let (stored, computed) = self.checksums(seed);
        if stored == computed || mutant!("record.checksum") {
            return Ok(());
        }
        Err(Error::ChecksumMismatch { offset: self.offset, stored, computed })
    }

    /// True if the record is sound except for its key, and its checksum is right with `key` in its place.
    #[cold]
    pub fn had_key(&self, seed: u32, key: &[u8]) -> bool {
        if self.key().len() != key.len() || self.key() == key {
            return false;
        }
        let (before, from_key) = self.bytes[4..].split_at(self.header.len() - 4);
        let crc = crc32c_append(crc32c_append(seed, before), key);
        crc32c_append(crc, &from_key[key.len()..]) == word32(self.bytes, 0)
    }

    /// The original for a copy of this record, whose checksum begins with `seed`.
    #[inline]
    pub fn original(&self, seed: u32) -> Original<'a> {
        Original { bytes: self.bytes, seed }
    }

    /// The `n`-th 8-byte word of the value.
    pub fn value_word(&self, n: usize) -> Option<u64> {
        let value = self.value();
        (value.len() >= 8 * n + 8).then(|| word64(value, 8 * n))
    }
}

/// The form of a record, from its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The kind of the record.
    pub kind: Kind,
    flags: u32,
    /// Bytes before the key.
    pub head: usize,
    /// Bytes of the key.
    pub key_len: usize,
    value_len: usize,
}

#[allow(clippy::len_without_is_empty, reason = "there is no empty one")]
impl Form {
    /// The form of the record that begins with these bytes; none if no record can.
    #[inline]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER {
            return None;
        }
        let lengths = word32(bytes, 4);
        let kind = Kind::from_bits(lengths >> KEY_BITS & 7)?;
        let flags = lengths >> (KEY_BITS + 3) & FLAGS;
        let extras = (flags & (EXPIRES | SEQUENCE)).count_ones() as usize;
        let key_len = (lengths & ((1 << KEY_BITS) - 1)) as usize;
        let value_len = word32(bytes, 8) as usize;
        Some(Self { kind, flags, head: HEADER + 8 * extras, key_len, value_len })
    }

    /// False if no record begins with these eight bytes: a quick check for a search for records among other bytes.
    #[inline]
    pub fn may_begin(first: &[u8]) -> bool {
        let Some(Ok(lengths)) = first.get(4..8).map(TryInto::try_into) else { return false };
        let lengths = u32::from_le_bytes(lengths);
        Kind::from_bits(lengths >> KEY_BITS & 7).is_some() && lengths >> (KEY_BITS + 3) <= FLAGS
    }

    /// Bytes of the record, without its padding.
    #[inline]
    pub fn len(&self) -> usize {
        self.head + self.key_len + self.value_len
    }
}

/// Reads records out of a space.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'s> {
    /// The space.
    pub space: &'s Space,
}

impl<'s> Reader<'s> {
    /// The record at `offset`; none if no possible record is published there. Its checksum is not
    /// checked.
    #[inline]
    pub fn view<'g>(&self, guard: &'g Guard, offset: u64) -> Option<View<'g>>
    where
        's: 'g,
    {
        let page = self.space.page_at(guard, offset)?;
        View::of(&page, (offset - page.start()) as u32)
    }

    /// As [`Reader::view`], for a record that is a plain pair.
    #[inline(always)]
    pub fn pair<'g>(&self, guard: &'g Guard, offset: u64) -> Option<Pair<'g>>
    where
        's: 'g,
    {
        let page = self.space.page_at(guard, offset)?;
        Pair::of(&page, (offset - page.start()) as u32)
    }
}

/// The seed of the checksum of a record at `offset`.
#[inline]
pub fn seed(pool: u32, generation: u32, offset: u64) -> u32 {
    let generation = if mutant!("record.seed_life") { 0 } else { generation };
    let offset = if mutant!("record.seed_place") { 0 } else { offset };
    pool ^ generation.wrapping_mul(0x9e37_79b1)
        ^ ((offset >> 3) as u32).rotate_left(7)
        ^ (offset >> 35) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_sound_in_its_pool_its_place_and_the_life_of_its_page_alone() {
        let header = Header::put(5);
        let encoded = header.encode(seed(7, 1, 4096), b"a key", &[b"value"]);
        let bytes = [encoded.bytes(), b"a key", b"value"].concat();
        let view = View::of_form(Form::of(&bytes).unwrap(), &bytes, 4096);
        assert!(view.check(seed(7, 1, 4096)).is_ok());
        for (pool, life, place) in [(6, 1, 4096), (7, 2, 4096), (7, 1, 4104), (7, 1, 1 << 40)] {
            assert!(view.check(seed(pool, life, place)).is_err(), "{pool} {life} {place}");
        }
    }

    #[test]
    fn a_copy_is_as_sound_as_its_original() {
        let (from, to) = (seed(7, 1, 4096), seed(7, 2, 640));
        let (key, value) = (b"a key".as_slice(), [9; 300]);
        let sequence = Some(3);
        for len in [0, 1, 90, 300] {
            let header = Header { follows: true, batched: true, sequence, ..Header::put(5) };
            let encoded = header.encode(from, key, &[&value[..len]]);
            let sound = [encoded.bytes(), key, &value[..len]].concat();
            let plain = Header { follows: false, batched: false, ..header };
            let expected = plain.encode(to, key, &[&value[..len]]);
            for damaged in [None, Some(30)] {
                let mut bytes = sound.clone();
                damaged.into_iter().for_each(|at: usize| bytes[at] ^= 1);
                let view = |bytes| View::of_form(Form::of(bytes).unwrap(), bytes, 0);
                let mut copy = vec![0; 8];
                view(&bytes).original(from).copy(&plain, to, &mut copy);
                assert_eq!(copy.len(), 8 + plain.record_len(key, len));
                let copied = view(&copy[8..8 + bytes.len()]);
                assert_eq!((copied.header, copied.key().len()), (plain, key.len()));
                assert_eq!(copied.check(to).is_ok(), damaged.is_none(), "{len} bytes");
                assert!(copy[8..].starts_with(expected.bytes()), "{len} bytes");
            }
        }
    }
}
