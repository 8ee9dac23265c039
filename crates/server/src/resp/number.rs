//! Integers as Redis reads them: no plus sign, no leading zero, no space, no `-0`.

/// The integer that `text` is the canonical spelling of.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // 19 digits stay below 10^19, which fits.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The cursor that `text` spells, as `strtoul` reads it: a sign and leading zeros are allowed, a negative number
/// counts down from 2^64, and empty text is 0.
pub(crate) fn parse_cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// The number that `text` spells, as `strtod` reads it, in full and finite.
pub(crate) fn parse_f64(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_an_integer() {
        assert_eq!(parse_i64(b"0"), Some(0));
        assert_eq!(parse_i64(b"-1"), Some(-1));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        for bad in [
            &b""[..],
            b"-",
            b"+1",
            b"01",
            b"-0",
            b"-01",
            b" 1",
            b"1 ",
            b"1a",
            b"0x1",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"99999999999999999999",
            b"\xff",
        ] {
            assert_eq!(parse_i64(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn every_i64_is_read_back() {
        for value in [i64::MIN, i64::MIN + 1, -10, 7, 10, 99, 1 << 40, i64::MAX] {
            assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
        }
    }

    #[test]
    fn cursors_are_unsigned() {
        assert_eq!(parse_cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"18446744073709551616"), None);
        assert_eq!(parse_cursor(b"-1"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"+007"), Some(7));
        assert_eq!(parse_cursor(b""), Some(0));
        assert_eq!(parse_cursor(b"-"), None);
        assert_eq!(parse_cursor(b"1x"), None);
    }
}
