//! Which record it was, if only one byte of it has changed.
//!
//! A record of a few hundred bytes with one changed byte is one of some ten thousand; that any of
//! them has the right checksum by chance is a matter of one in some hundred thousand. So if one has
//! it, that is what was written. It is used to tell the *key* of a damaged record and its version,
//! never to restore a value.
//!
//! Of a longer record only the first bytes are looked at, that say what it is and of which key.
//!
//! A record that was written somewhere else (a block that a device has put into the wrong place) is
//! sound but for the seed of its checksum, and where the seeds of two places differ in one byte it
//! looks as if one byte of its lengths had changed: its kind, say. So that is believed only next to
//! something sound in the same block.
//!
//! A changed byte in the record's lengths is found by trying all of them. For the others the
//! checksum is linear: the difference between stored and computed is that of the changed byte
//! alone, carried on through as many zeroes as bytes follow it.

/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What a record was, with its padding, and which of its bytes has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Amended {
    pub(super) bytes: Vec<u8>,
    pub(super) at: usize,
}

impl Amended {
    /// True if the record would be sound as it is, had it been written somewhere else: a checksum
    /// that begins with another place's seed is that of other lengths.
    pub(super) fn may_be_of_elsewhere(&self) -> bool {
        (4..8).contains(&self.at)
    }
}

/// Longer records have too many bytes to tell by its checksum which has changed.
const LEN_MAX: usize = 1024;

/// Of those it can be told if it is one of the first: header and the begin of the key.
const HEAD_MAX: usize = 128;

/// The header's bytes with the lengths.
const LENGTHS: std::ops::Range<usize> = 4..12;

const fn step(mut word: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        word = if word & 1 == 1 { word >> 1 ^ POLYNOMIAL } else { word >> 1 };
        bit += 1;
    }
    word
}

/// Where one of the first `count` bytes, but for the lengths, has changed, and by which bits, if a
/// record of `len` bytes (from the checksum to the end of the value) has the difference `syndrome`
/// between its checksums.
fn changed_byte(len: usize, syndrome: u32, count: usize) -> Option<(usize, u8)> {
    // The stored checksum itself: one byte of it.
    if let Some(at) = (0..4).find(|at| syndrome & !(0xff << (8 * at)) == 0) {
        return Some((at, (syndrome >> (8 * at)) as u8));
    }
    // The difference that each bit of the byte makes; that of several is their sum.
    let mut differences: [u32; 8] = std::array::from_fn(|bit| step(1 << bit));
    for at in (4..len).rev() {
        if at < count && !LENGTHS.contains(&at) {
            let mut sum = 0;
            for number in 1..=255_u8 {
                // Numbers in an order in which each differs from the last in one bit.
                sum ^= differences[number.trailing_zeros() as usize];
                if sum == syndrome {
                    return Some((at, number ^ number >> 1));
                }
            }
        }
        for difference in &mut differences {
            *difference = step(*difference & 0xff) ^ *difference >> 8;
        }
    }
    None
}

/// The record at the start of `raw`, with its padding, as it was before one of its bytes changed;
/// none if it is not to be told. `len_of` reads a record's length without its padding off its first
/// bytes.
pub(super) fn amend(
    raw: &[u8],
    seed: u32,
    len_of: &dyn Fn(&[u8]) -> Option<usize>,
) -> Option<Amended> {
    if raw.len() < LENGTHS.end {
        return None;
    }
    let padded = |len: usize| len.next_multiple_of(8);
    // One that is long must be all that there is.
    let fits = |bytes: &[u8]| {
        let is_meant = |len: &usize| match padded(*len) {
            short @ ..=LEN_MAX => short <= raw.len(),
            long => long == raw.len(),
        };
        len_of(bytes).filter(is_meant)
    };
    // A copy of no more than what is changed for a try.
    let mut head = raw[..raw.len().min(HEAD_MAX)].to_vec();
    let checksums = |head: &[u8], len: usize| {
        let stored = u32::from_le_bytes(std::array::from_fn(|at| head[at]));
        let begun = crc32c::crc32c_append(seed, &head[4..len.min(head.len())]);
        let rest = raw.get(head.len()..len).unwrap_or_default();
        (stored, crc32c::crc32c_append(begun, rest))
    };
    let changed = |at: usize, bits: u8, len: usize| {
        let mut amended = raw[..padded(len)].to_vec();
        amended[at] ^= bits;
        Amended { bytes: amended, at }
    };
    if let Some(len) = fits(&head) {
        let (stored, computed) = checksums(&head, len);
        let count = if padded(len) <= LEN_MAX { len } else { HEAD_MAX };
        if let Some((at, bits)) = changed_byte(len, stored ^ computed, count) {
            return Some(changed(at, bits, len));
        }
    }
    for at in LENGTHS {
        for bits in 1..=255 {
            head[at] ^= bits;
            if let Some(len) = fits(&head) {
                let (stored, computed) = checksums(&head, len);
                if stored == computed {
                    return Some(changed(at, bits, len));
                }
            }
            head[at] ^= bits;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as this module sees it: checksum, length, whatever.
    fn record(len: usize, seed: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.next_multiple_of(8)).map(|at| (at * 7) as u8).collect();
        bytes[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[len..].fill(0);
        let crc = crc32c::crc32c_append(seed, &bytes[4..len]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn len_of(bytes: &[u8]) -> Option<usize> {
        let len = u32::from_le_bytes(std::array::from_fn(|at| bytes[4 + at])) as usize;
        (24..4096).contains(&len).then_some(len)
    }

    fn amended(raw: &[u8]) -> Option<Vec<u8>> {
        amend(raw, 99, &len_of).map(|amended| amended.bytes)
    }

    #[test]
    fn every_changed_byte_is_found() {
        for len in [24, 61, 200] {
            let sound = record(len, 99);
            for at in 0..len {
                for bits in [1, 0x80, 0xff, 0x5a] {
                    let mut changed = sound.clone();
                    changed[at] ^= bits;
                    let found = amended(&changed);
                    assert_eq!(found.as_ref(), Some(&sound), "byte {at} of {len} by {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn what_has_changed_more_is_not_guessed_at() {
        let sound = record(120, 99);
        let mut more = sound.clone();
        more[7 * 8] ^= 1;
        more.extend([9; 40]);
        assert_eq!(amended(&more), Some(sound.clone()), "something lies behind it");
        for at in 0..100 {
            let mut changed = sound.clone();
            changed[at..at + 16].fill(0xe7);
            assert_eq!(amend(&changed, 99, &len_of), None, "from {at} on");
        }
        assert_eq!(amend(&record(2000, 99), 98, &len_of), None, "too long to tell");
        let mut long = record(2000, 99);
        long[1500] ^= 1;
        assert_eq!(amend(&long, 99, &len_of), None, "a byte of a long value");
    }

    #[test]
    fn what_a_long_record_is_can_be_told() {
        let sound = record(3001, 99);
        for at in 0..HEAD_MAX {
            for bits in [1, 0x80, 0xff, 0x5a] {
                let mut changed = sound.clone();
                changed[at] ^= bits;
                assert_eq!(amended(&changed).as_ref(), Some(&sound), "byte {at}");
                changed.extend([7; 8]);
                assert!(amended(&changed).is_none_or(|it| it == sound), "something behind it");
            }
        }
    }
}
