//! Numbers of a fixed width of bits, one behind the other.

// media-format: begin pool
/// The number of bits that the greatest of some numbers takes.
pub(super) fn width(greatest: u64) -> u32 {
    u64::BITS - greatest.leading_zeros()
}

/// The number of bytes that `count` numbers of a width take.
pub(super) fn length(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Appends numbers, none wider than `width` bits, from the lowest bit of each byte on. Unused bits of the last byte
/// are zero.
pub(super) fn push(out: &mut Vec<u8>, numbers: impl Iterator<Item = u64>, width: u32) {
    let mut held = 0_u128;
    let mut bits = 0;
    for number in numbers {
        held |= u128::from(number) << bits;
        bits += width;
        if bits >= u64::BITS {
            out.extend_from_slice(&(held as u64).to_le_bytes());
            held >>= u64::BITS;
            bits -= u64::BITS;
        }
    }
    let rest = (held as u64).to_le_bytes();
    out.extend(rest.iter().take(bits.div_ceil(8) as usize));
}

/// The numbers that [`push`] has written; none if the bytes are not exactly `count` numbers.
pub(super) fn numbers(
    bytes: &[u8],
    count: usize,
    width: u32,
) -> Option<impl Iterator<Item = u64> + '_> {
    if width > u64::BITS || bytes.len() != length(count, width) {
        return None;
    }
    let mask = u64::MAX.checked_shr(u64::BITS - width).unwrap_or(0);
    let mut words = bytes.chunks(8).map(word);
    let (mut held, mut bits) = (0_u128, 0);
    Some((0..count).map(move |_| {
        if bits < width {
            held |= u128::from(words.next().unwrap_or(0)) << bits;
            bits += u64::BITS;
        }
        let number = held as u64 & mask;
        held >>= width;
        bits -= width;
        number
    }))
}

/// At most eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let word = <[u8; 8]>::try_from(bytes).unwrap_or_else(|_| {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        word
    });
    u64::from_le_bytes(word)
}
// media-format: end

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_come_back() {
        for bits in 0..=64 {
            for count in [0, 1, 2, 7, 8, 9, 63, 64, 65, 200] {
                let mask = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
                let numbers: Vec<u64> =
                    (0..count).map(|at| mask.wrapping_mul(at as u64 * 7 + 1) & mask).collect();
                let mut out = Vec::new();
                push(&mut out, numbers.iter().copied(), bits);
                assert_eq!(out.len(), length(count, bits));
                let again: Vec<u64> = super::numbers(&out, count, bits).unwrap().collect();
                assert_eq!(again, numbers, "{bits} {count}");
                assert!(super::numbers(&out, count + 64, bits).is_none() || bits == 0);
            }
        }
        assert!(numbers(&[0; 65], 8, 65).is_none());
    }

    #[test]
    fn a_width_is_that_of_the_greatest() {
        assert_eq!([0, 1, 2, 255, u64::MAX].map(width), [0, 1, 2, 8, 64]);
    }
}
