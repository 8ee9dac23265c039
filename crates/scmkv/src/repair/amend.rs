//! Which record it was, if only one byte of it has changed.
//!
//! A record of a few hundred bytes with one changed byte is one of some ten thousand; that any of
//! them has the right checksum by chance is a matter of one in some hundred thousand. So if one has
//! it, that is what was written. It is used to tell the *key* of a damaged record and its version,
//! never to restore a value.
//!
//! A changed byte in the record's lengths is found by trying all of them. For the others the
//! checksum is linear: the difference between stored and computed is that of the changed byte
//! alone, carried on through as many zeroes as bytes follow it.

/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Longer records have too many changed bytes to tell one by its checksum.
const LEN_MAX: usize = 1024;

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

/// Where a byte has changed, and by which bits, if that makes `bytes` (from the checksum to the end
/// of the value) a record with the difference `syndrome` between its checksums.
fn changed_byte(bytes: &[u8], syndrome: u32) -> Option<(usize, u8)> {
    // The stored checksum itself: one byte of it.
    if let Some(at) = (0..4).find(|at| syndrome & !(0xff << (8 * at)) == 0) {
        return Some((at, (syndrome >> (8 * at)) as u8));
    }
    (1..=255_u8).find_map(|bits| {
        let mut difference = step(u32::from(bits));
        for at in (4..bytes.len()).rev() {
            if difference == syndrome {
                return Some((at, bits));
            }
            difference = step(difference & 0xff) ^ difference >> 8;
        }
        None
    })
}

/// The record at the start of `raw`, with its padding, as it was before one of its bytes changed;
/// none if it is not to be told. `len_of` reads a record's length without its padding off its first
/// bytes.
pub(super) fn amend(
    raw: &[u8],
    seed: u32,
    len_of: &dyn Fn(&[u8]) -> Option<usize>,
) -> Option<Vec<u8>> {
    let raw = &raw[..raw.len().min(LEN_MAX)];
    if raw.len() < LENGTHS.end {
        return None;
    }
    let padded = |len: usize| len.next_multiple_of(8);
    let fits = |bytes: &[u8]| len_of(bytes).filter(|len| padded(*len) <= raw.len());
    let checksums = |bytes: &[u8]| {
        let stored = u32::from_le_bytes(std::array::from_fn(|at| bytes[at]));
        (stored, crc32c::crc32c_append(seed, &bytes[4..]))
    };
    let mut amended = raw.to_vec();
    if let Some(len) = fits(raw) {
        let (stored, computed) = checksums(&raw[..len]);
        if let Some((at, bits)) = changed_byte(&raw[..len], stored ^ computed) {
            amended[at] ^= bits;
            amended.truncate(padded(len));
            return Some(amended);
        }
    }
    for at in LENGTHS {
        for bits in 1..=255 {
            amended[at] ^= bits;
            if let Some(len) = fits(&amended) {
                let (stored, computed) = checksums(&amended[..len]);
                if stored == computed {
                    amended.truncate(padded(len));
                    return Some(amended);
                }
            }
            amended[at] ^= bits;
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

    #[test]
    fn every_changed_byte_is_found() {
        for len in [24, 61, 200] {
            let sound = record(len, 99);
            for at in 0..len {
                for bits in [1, 0x80, 0xff, 0x5a] {
                    let mut changed = sound.clone();
                    changed[at] ^= bits;
                    let amended = amend(&changed, 99, &len_of);
                    assert_eq!(amended.as_ref(), Some(&sound), "byte {at} of {len} by {bits:#x}");
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
        assert_eq!(amend(&more, 99, &len_of), Some(sound.clone()), "something lies behind it");
        for at in 0..100 {
            let mut changed = sound.clone();
            changed[at..at + 16].fill(0xe7);
            assert_eq!(amend(&changed, 99, &len_of), None, "from {at} on");
        }
        assert_eq!(amend(&record(2000, 99), 98, &len_of), None, "too long to tell");
    }
}
