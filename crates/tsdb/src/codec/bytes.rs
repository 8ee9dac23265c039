//! Numbers as bytes: with eight bytes, or with as many as they need.

// media-format: begin pool
/// Appends a number, seven bits a byte, the lowest first; the highest bit of a byte states that another byte
/// follows.
pub(super) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number of bytes that [`push_number`] appends.
pub(super) fn number_length(number: u64) -> usize {
    let bits = u64::BITS - (number | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Maps signed numbers so that those near zero are small: 0, -1, 1, -2, …
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Bytes that have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'b>(pub(super) &'b [u8]);

impl<'b> Bytes<'b> {
    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number that [`push_number`] has written.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The next eight bytes as a number, the lowest first.
    pub(super) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// The remaining bytes as numbers of eight bytes; none if they are not exactly `count`.
    pub(super) fn words(self, count: usize) -> Option<impl Iterator<Item = u64> + use<'b>> {
        let (words, rest) = self.0.as_chunks();
        let is_whole = rest.is_empty() && words.len() == count;
        is_whole.then(|| words.iter().map(|word| u64::from_le_bytes(*word)))
    }
}
// media-format: end

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_what_they_need_and_come_back() {
        for shift in 0..64 {
            for number in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                push_number(&mut out, number);
                assert_eq!(out.len(), number_length(number), "{number}");
                let mut bytes = Bytes(&out);
                assert_eq!((bytes.number(), bytes.0.len()), (Some(number), 0));
                assert_eq!(zigzag(unzigzag(number)), number);
            }
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let mut too_great = [0xff; 10];
        too_great[9] = 2;
        for bytes in [&[][..], &[0x80], &too_great, &[0x80; 11]] {
            assert_eq!(Bytes(bytes).number(), None, "{bytes:?}");
        }
    }
}
