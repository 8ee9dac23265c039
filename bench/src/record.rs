//! Keys and values that can be checked.
//!
//! ```text
//!   key    [ mix(number), big-endian ][ filler from the number ]     at least 8 bytes
//!   value  [ version ][ words from number and version ]              at least 8 bytes
//! ```
//!
//! `mix` is a bijection, so that keys are scattered and no two numbers have one key, and so that
//! a key can be turned back into its number. Whoever has key and value can tell whether the value
//! was ever written for that key; only its version is not known beforehand.

/// The shortest key and the shortest value, in bytes.
pub const LEN_MIN: usize = 8;

/// A bijection that scatters (the finalizer of `SplitMix64`).
#[inline]
pub fn mix(number: u64) -> u64 {
    let mut bits = number;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The inverse of [`mix`].
#[inline]
pub fn unmix(bits: u64) -> u64 {
    let mut number = bits ^ (bits >> 31) ^ (bits >> 62);
    number = number.wrapping_mul(0x3196_42b2_d24d_8ec3);
    number ^= number >> 27 ^ number >> 54;
    number = number.wrapping_mul(0x96de_1b17_3f11_9089);
    number ^ (number >> 30) ^ (number >> 60)
}

/// Fills `key` (at least [`LEN_MIN`] bytes) with the key of record `number`.
#[inline]
pub fn write_key(number: u64, key: &mut [u8]) {
    let bits = mix(number);
    let (head, rest) = key.split_at_mut(LEN_MIN);
    head.copy_from_slice(&bits.to_be_bytes());
    fill(rest, bits ^ 0x6b65_7900);
}

/// The number of the record with this key; none if no record has it.
#[inline]
pub fn number_of(key: &[u8]) -> Option<u64> {
    let head = key.first_chunk::<LEN_MIN>()?;
    Some(unmix(u64::from_be_bytes(*head)))
}

/// Fills `value` (at least [`LEN_MIN`] bytes) with version `version` of record `number`.
#[inline]
pub fn write_value(number: u64, version: u64, value: &mut [u8]) {
    let (head, rest) = value.split_at_mut(LEN_MIN);
    head.copy_from_slice(&version.to_le_bytes());
    fill(rest, begin(number, version));
}

/// What a value of record `number` says its version is.
///
/// # Errors
/// In words, if `value` is no version of that record with `len` bytes.
#[inline]
pub fn check_value(number: u64, value: &[u8], len: usize) -> Result<u64, &'static str> {
    if value.len() != len {
        return Err("it has another length");
    }
    let Some((head, rest)) = value.split_first_chunk::<LEN_MIN>() else {
        return Err("it is too short to hold a version");
    };
    let version = u64::from_le_bytes(*head);
    let mut word = begin(number, version);
    let (whole, tail) = rest.as_chunks::<8>();
    let mut wrong = 0;
    for chunk in whole {
        word = word.wrapping_add(STEP);
        wrong |= u64::from_le_bytes(*chunk) ^ word;
    }
    if !tail.is_empty() {
        wrong |= match rest.last_chunk::<8>() {
            Some(last) => u64::from_le_bytes(*last) ^ overlap(word, tail.len()),
            None => tail.iter().zip(next(word)).fold(0, |all, (a, b)| all | u64::from(a ^ b)),
        };
    }
    if wrong != 0 {
        return Err("its bytes do not belong to the key and the version that it carries");
    }
    Ok(version)
}

/// Records of a pool that is measured have smaller numbers than this. A key of eight bytes that nobody has made by
/// [`write_key`] has the number of a record too, but such a small one by a chance of one in 16 million.
const NUMBER_MAX: u64 = 1 << 40;

/// True if `key` and `value` are those of some version of some record.
pub fn is_record(key: &[u8], value: &[u8]) -> bool {
    let Some(number) = number_of(key).filter(|number| *number < NUMBER_MAX) else { return false };
    let mut same = vec![0; key.len()];
    write_key(number, &mut same);
    same == key && check_value(number, value, value.len()).is_ok()
}

#[inline]
fn begin(number: u64, version: u64) -> u64 {
    mix(number ^ 0x7661_6c75_6500) ^ version.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// From one word to the next. An addition, of which a processor does several at once: what the driver
/// does between two operations of a store stands between their misses, too, and the less it is, the
/// more of them overlap.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn fill(bytes: &mut [u8], seed: u64) {
    let mut word = seed;
    let (whole, tail) = bytes.as_chunks_mut::<8>();
    for chunk in whole {
        word = word.wrapping_add(STEP);
        *chunk = word.to_le_bytes();
    }
    let len = tail.len();
    if len > 0 {
        match bytes.last_chunk_mut::<8>() {
            Some(last) => *last = overlap(word, len).to_le_bytes(),
            None => bytes.copy_from_slice(&next(word)[..len]),
        }
    }
}

/// The bytes of the word after `word`.
#[inline]
fn next(word: u64) -> [u8; 8] {
    word.wrapping_add(STEP).to_le_bytes()
}

/// The last bytes of `word` and the first `tail` (below 8, not 0) of the one after it: 8 together.
#[inline]
fn overlap(word: u64, tail: usize) -> u64 {
    word >> (8 * tail) | word.wrapping_add(STEP) << (64 - 8 * tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_turn_back_into_numbers() {
        for number in (0..10_000).chain([u64::MAX, u64::MAX - 1, 1 << 63]) {
            assert_eq!(unmix(mix(number)), number);
            let mut key = [0; 19];
            write_key(number, &mut key);
            assert_eq!(number_of(&key), Some(number));
        }
        assert_eq!(number_of(b"short"), None);
    }

    #[test]
    fn records_are_told_from_those_of_others() {
        for (key_len, value_len) in [(8, 8), (16, 100), (19, 9)] {
            let (mut key, mut value) = (vec![0; key_len], vec![0; value_len]);
            write_key(123_456, &mut key);
            write_value(123_456, 7, &mut value);
            assert!(is_record(&key, &value), "{key_len} {value_len}");
            *key.last_mut().unwrap() ^= 1;
            assert!(!is_record(&key, &value), "{key_len} {value_len}");
        }
        for (key, value) in
            [(&b"greeting"[..], &b"eight by"[..]), (b"k", b"v"), (b"user:1000", b"")]
        {
            assert!(!is_record(key, value), "{}", key.escape_ascii());
        }
    }

    #[test]
    fn every_flipped_bit_of_a_value_shows() {
        for len in [16, 17, 23, 24, 100] {
            let mut value = vec![0; len];
            write_value(7, 42, &mut value);
            assert_eq!(check_value(7, &value, len), Ok(42));
            for bit in 0..8 * len {
                value[bit / 8] ^= 1 << (bit % 8);
                assert!(check_value(7, &value, len).is_err(), "bit {bit} of {len} bytes");
                value[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(check_value(7, &value, len + 1).is_err());
            assert!(check_value(8, &value, len).is_err());
        }
    }
}
