//! The contents of a log, and of a checkpoint.
//!
//! ```text
//!   len (4)  crc (4)  [kind (1)  body]  zeroes up to 8 bytes     a frame; a length of 0 ends the file
//! ```
//!
//! The checksum is begun with a seed where older bytes may follow a frame (`pages`).

use crate::entry::{Reader, decode_changes, encode_changes};
use coreplane_engine::{Batch, UnixMillis};
use coreplane_mvcc::Control;

/// Bytes before the kind of a frame.
const HEAD: usize = 8;

// media-format: begin pool
const ENTRY: u8 = 1;
const ROLL_BACK: u8 = 2;
const CONTROL: u8 = 3;
const RECORD: u8 = 4;
const END: u8 = 5;
// media-format: end

/// A frame to write.
pub(super) enum Frame<'f> {
    Entry {
        timestamp: u64,
        header: &'f [u8],
        changes: &'f Batch,
    },
    RollBack {
        to: u64,
    },
    Control(&'f Control),
    /// Of a checkpoint.
    Record {
        key: &'f [u8],
        value: &'f [u8],
        timestamp: u64,
        expires_at: Option<UnixMillis>,
    },
    /// The end of a checkpoint with so many records, or of a log that another one follows.
    End {
        count: u64,
    },
}

/// A frame that was read.
#[derive(Debug)]
pub(super) enum Read<'f> {
    Entry { timestamp: u64, header: &'f [u8], changes: Batch },
    RollBack { to: u64 },
    Control(Control),
    Record { key: &'f [u8], value: &'f [u8], timestamp: u64, expires_at: Option<UnixMillis> },
    End { count: u64 },
}

fn put_part(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
    bytes.extend_from_slice(part);
}

fn put_words(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
}

impl Frame<'_> {
    // media-format: begin pool
    /// Appends the frame.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>, seed: u32) {
        let start = bytes.len();
        bytes.extend_from_slice(&[0; HEAD]);
        match self {
            Self::Entry { timestamp, header, changes } => {
                bytes.push(ENTRY);
                put_words(bytes, &[*timestamp]);
                put_part(bytes, header);
                bytes.extend_from_slice(&encode_changes(changes.changes()));
            }
            Self::RollBack { to } => {
                bytes.push(ROLL_BACK);
                put_words(bytes, &[*to]);
            }
            Self::Control(control) => {
                bytes.push(CONTROL);
                let Control { term, vote, applied, applied_header, members, .. } = control;
                put_words(bytes, &[*term, *vote, *applied]);
                put_part(bytes, applied_header);
                put_part(bytes, members);
            }
            Self::Record { key, value, timestamp, expires_at } => {
                bytes.push(RECORD);
                put_words(bytes, &[*timestamp, expires_at.map_or(u64::MAX, |at| at.0)]);
                put_part(bytes, key);
                put_part(bytes, value);
            }
            Self::End { count } => {
                bytes.push(END);
                put_words(bytes, &[*count]);
            }
        }
        let crc = crc32c::crc32c_append(seed, bytes.get(start + HEAD..).unwrap_or_default());
        let len = (bytes.len() - start - HEAD) as u32;
        if let Some(head) = bytes.get_mut(start..start + HEAD) {
            let (first, second) = head.split_at_mut(4);
            first.copy_from_slice(&len.to_le_bytes());
            second.copy_from_slice(&crc.to_le_bytes());
        }
        bytes.resize(bytes.len() + padding(len as usize), 0);
    }
    // media-format: end
}

/// The number of zeroes behind a body of `len` bytes, so that each frame begins at a word.
fn padding(len: usize) -> usize {
    len.next_multiple_of(8) - len
}

/// The frame at the front of `bytes`, and the bytes behind it; none if there is no whole frame.
pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<(Read<'_>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let (zeroes, rest) = rest.split_at_checked(padding(body.len()))?;
    let is_whole = crc32c::crc32c_append(seed, body) == u32::from_le_bytes(*crc);
    if body.is_empty() || !is_whole || zeroes.iter().any(|it| *it != 0) {
        return None;
    }
    Some((read_body(body)?, rest))
}

fn read_body(body: &[u8]) -> Option<Read<'_>> {
    let mut reader = Reader(body);
    match reader.byte()? {
        ENTRY => {
            let (timestamp, header) = (reader.word()?, reader.part()?);
            Some(Read::Entry { timestamp, header, changes: decode_changes(reader.0)? })
        }
        ROLL_BACK => Some(Read::RollBack { to: reader.word()? }),
        CONTROL => {
            let (term, vote, applied) = (reader.word()?, reader.word()?, reader.word()?);
            let (applied_header, members) = (reader.part()?.to_vec(), reader.part()?.to_vec());
            let (newest, purged) = (applied, applied);
            Some(Read::Control(Control {
                term,
                vote,
                members,
                newest,
                applied,
                applied_header,
                purged,
                is_installing: false,
            }))
        }
        RECORD => {
            let (timestamp, at) = (reader.word()?, reader.word()?);
            let expires_at = (at != u64::MAX).then_some(UnixMillis(at));
            let (key, value) = (reader.part()?, reader.part()?);
            Some(Read::Record { key, value, timestamp, expires_at })
        }
        END => Some(Read::End { count: reader.word()? }),
        _ => None,
    }
}

/// Bytes of the frames at the beginning of a file, according to their own lengths.
pub(super) fn frames_len(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first_chunk::<4>()
        && let Some(next) =
            behind.get(HEAD - 4 + (u32::from_le_bytes(*len) as usize).next_multiple_of(8)..)
        && *len != [0; 4]
    {
        rest = next;
    }
    bytes.len() - rest.len()
}
