//! Floating-point numbers with the 64-bit mantissa of x87, in which `INCRBYFLOAT` computes.
//!
//! Redis adds in C's `long double` and prints 17 digits after the point. Rust has no such type, and with an ordinary
//! `f64` the sum of 10.5 and 0.1 would print as 10.59999999999999964. So this module implements the type in plain
//! integers: a value is `mantissa * 2^exponent`. Text becomes an exact fraction and is rounded once, to nearest, ties
//! to even; a sum is exact and rounded once.

use num_bigint::BigUint;

/// A finite number or an infinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LongDouble {
    /// `mantissa * 2^exponent`, with the sign.
    Finite { negative: bool, mantissa: u64, exponent: i64 },
    /// Infinity.
    Infinite { negative: bool },
}

const MANTISSA_BITS: u64 = 64;
/// The exponents of the smallest denormal number's bit and of the largest number's last bit.
const EXPONENT_MIN: i64 = -16_445;
const EXPONENT_MAX: i64 = 16_383 - 63;
/// Longer text is no number.
const TEXT_LEN_MAX: usize = 5 * 1024;
/// Decimal exponents beyond this are out of range for any digits.
const DECIMAL_EXPONENT_MAX: i64 = 20_000;
const DIGITS_AFTER_POINT: u32 = 17;

impl LongDouble {
    /// Nought.
    pub(super) const ZERO: Self = Self::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// The number that `text` spells, as `strtold` reads it; none if that is not all of the text,
    /// or not a number, or out of range.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_LEN_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite { negative });
        }
        match rest {
            [b'0', b'x' | b'X', hex @ ..] => Self::parse_digits(negative, hex, 16),
            decimal => Self::parse_digits(negative, decimal, 10),
        }
    }

    fn parse_digits(negative: bool, text: &[u8], radix: u32) -> Option<Self> {
        let marks: &[u8] = if radix == 16 { b"pP" } else { b"eE" };
        let end = text.iter().position(|byte| marks.contains(byte));
        let (digits, power) = match end {
            Some(end) => (&text[..end], parse_power(&text[end + 1..])?),
            None => (text, 0),
        };
        let point = digits.iter().position(|byte| *byte == b'.');
        let (whole, fraction) = match point {
            Some(point) => (&digits[..point], &digits[point + 1..]),
            None => (digits, &[][..]),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let all = [whole, fraction].concat();
        if !all.iter().all(|byte| char::from(*byte).is_digit(radix)) {
            return None;
        }
        let number = BigUint::parse_bytes(&all, radix)?;
        let places = i64::try_from(fraction.len()).ok()?;
        if number == BigUint::ZERO {
            return Some(Self::Finite { negative, mantissa: 0, exponent: 0 });
        }
        let rounded = if radix == 16 {
            round(negative, &number, &BigUint::from(1u8), power - 4 * places)
        } else {
            let power = power - places;
            let scale = BigUint::from(10u8).pow(u32::try_from(power.unsigned_abs()).ok()?);
            if power >= 0 {
                round(negative, &(number * scale), &BigUint::from(1u8), 0)
            } else {
                round(negative, &number, &scale, 0)
            }
        };
        // A value that is too large, or rounds to nought, is out of range.
        match rounded {
            Self::Infinite { .. } | Self::Finite { mantissa: 0, .. } => None,
            finite => Some(finite),
        }
    }

    /// The sum, unless it is not a finite number.
    pub(super) fn add(&self, other: &Self) -> Option<Self> {
        let (
            Self::Finite { negative, mantissa, exponent },
            Self::Finite {
                negative: other_negative,
                mantissa: other_mantissa,
                exponent: other_exponent,
            },
        ) = (self, other)
        else {
            return None;
        };
        let base = (*exponent).min(*other_exponent);
        let aligned = |mantissa: u64, exponent: i64| {
            BigUint::from(mantissa) << (exponent - base).unsigned_abs()
        };
        let left = aligned(*mantissa, *exponent);
        let right = aligned(*other_mantissa, *other_exponent);
        let (negative, sum) = if negative == other_negative {
            (*negative, left + right)
        } else if left >= right {
            (*negative, left - right)
        } else {
            (*other_negative, right - left)
        };
        if sum == BigUint::ZERO {
            return Some(Self::ZERO);
        }
        match round(negative, &sum, &BigUint::from(1u8), base) {
            Self::Infinite { .. } => None,
            finite => Some(finite),
        }
    }

    /// Its digits, 17 after the point at most, without trailing noughts.
    pub(super) fn to_text(&self) -> String {
        let (negative, mantissa, exponent) = match self {
            Self::Infinite { negative: true } => return "-inf".to_owned(),
            Self::Infinite { negative: false } => return "inf".to_owned(),
            Self::Finite { negative, mantissa, exponent } => {
                (*negative, BigUint::from(*mantissa), *exponent)
            }
        };
        let scaled = mantissa * BigUint::from(10u8).pow(DIGITS_AFTER_POINT);
        let scaled = if exponent >= 0 {
            scaled << exponent.unsigned_abs()
        } else {
            divide_to_even(&scaled, &(BigUint::from(1u8) << exponent.unsigned_abs()))
        };
        let places = DIGITS_AFTER_POINT as usize;
        let digits = format!("{scaled:0>width$}", scaled = scaled.to_string(), width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let fraction = fraction.trim_end_matches('0');
        let sign = if negative { "-" } else { "" };
        match (whole, fraction) {
            ("0", "") => "0".to_owned(),
            (whole, "") => format!("{sign}{whole}"),
            (whole, fraction) => format!("{sign}{whole}.{fraction}"),
        }
    }
}

/// The power after `e` or `p`; a value beyond the range is clamped to its edge.
fn parse_power(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let power = digits.iter().fold(0i64, |power, digit| {
        (power * 10 + i64::from(digit - b'0')).min(DECIMAL_EXPONENT_MAX)
    });
    Some(if negative { -power } else { power })
}

/// `number / divisor * 2^exponent`, rounded to the nearest representable number.
fn round(negative: bool, number: &BigUint, divisor: &BigUint, exponent: i64) -> LongDouble {
    let length = |value: &BigUint| i64::try_from(value.bits()).unwrap_or(i64::MAX / 2);
    // The quotient has as many bits as this difference says, or one less.
    let quotient_bits = length(number) - length(divisor) + 1;
    let mantissa_bits = MANTISSA_BITS as i64;
    let mut last = (exponent + quotient_bits - mantissa_bits).max(EXPONENT_MIN);
    let mut mantissa = quotient(number, divisor, exponent - last);
    if mantissa.bits() < MANTISSA_BITS && last > EXPONENT_MIN {
        last -= 1;
        mantissa = quotient(number, divisor, exponent - last);
    }
    if mantissa.bits() > MANTISSA_BITS {
        // Rounded up to a power of two.
        mantissa >>= 1u8;
        last += 1;
    }
    match u64::try_from(&mantissa) {
        Ok(mantissa) if last <= EXPONENT_MAX => {
            LongDouble::Finite { negative, mantissa, exponent: last }
        }
        _ => LongDouble::Infinite { negative },
    }
}

/// `number / divisor * 2^shift`, rounded to an integer.
fn quotient(number: &BigUint, divisor: &BigUint, shift: i64) -> BigUint {
    let by = shift.unsigned_abs();
    if shift >= 0 {
        divide_to_even(&(number << by), divisor)
    } else {
        divide_to_even(number, &(divisor << by))
    }
}

fn divide_to_even(number: &BigUint, divisor: &BigUint) -> BigUint {
    let quotient = number / divisor;
    let twice_rest = (number - &quotient * divisor) << 1u8;
    let is_odd = quotient.bit(0);
    if twice_rest > *divisor || (twice_rest == *divisor && is_odd) {
        quotient + 1u8
    } else {
        quotient
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(left: &str, right: &str) -> String {
        let parse = |text: &str| LongDouble::parse(text.as_bytes()).unwrap();
        parse(left).add(&parse(right)).unwrap().to_text()
    }

    #[test]
    fn sums_are_those_of_long_double() {
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("3", "-5"), "-2");
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("1", "1e-18"), "1");
        assert_eq!(sum("-0", "0"), "0");
        assert_eq!(sum("0x10", "0x.8p1"), "17");
        assert_eq!(sum("9007199254740993", "0"), "9007199254740993");
        assert_eq!(sum("18446744073709551615", "1"), "18446744073709551616");
        assert_eq!(sum("1e4932", "0").len(), 4933);
    }

    #[test]
    fn numbers_as_strtold_reads_them() {
        for bad in [
            "", "-", ".", "e5", "1e", "1e+", " 1", "1 ", "nan", "0x", "1.2.3", "1f", "1e5000",
            "1e-5000", "abc", "--1",
        ] {
            assert_eq!(LongDouble::parse(bad.as_bytes()), None, "{bad}");
        }
        for good in ["1.", ".5", "+1", "1E5", "-1e-5", "1e4932", "3.6e-4951", "00012"] {
            assert!(LongDouble::parse(good.as_bytes()).is_some(), "{good}");
        }
    }

    #[test]
    fn there_is_no_sum_beyond_all() {
        let large = LongDouble::parse(b"1.1e4932").unwrap();
        assert_eq!(large.add(&large), None);
        assert_eq!(LongDouble::parse(b"inf").unwrap().add(&large), None);
    }
}
