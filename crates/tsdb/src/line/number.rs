//! The numbers of a line.
//!
//! Digits are added up in one scan. A number of few digits is then exact with one division at most: both the digits
//! and the power of ten are floats without rounding, and the division rounds once. All other numbers go to the
//! standard library.

use super::Fault;
use super::text::Cursor;
use crate::point::FieldValue;

/// The message for an invalid number.
pub(super) const INVALID_NUMBER: Fault = Fault::Borrowed("invalid number");

/// Any number of so many digits fits in a `u64`.
const DIGITS_MAX: usize = 19;

/// Powers of ten that are exact as floats.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The next number of the text; moves past it.
#[inline]
pub(super) fn number<'a>(text: &mut Cursor<'a>) -> Result<FieldValue<'a>, Fault> {
    let bytes = text.rest();
    let is_negative = bytes.first() == Some(&b'-');
    let start = usize::from(is_negative);
    let (mut magnitude, whole) = digits(bytes, start, 0);
    let mut at = start + whole;
    let mut decimals = 0;
    let has_point = bytes.get(at) == Some(&b'.');
    if has_point {
        (magnitude, decimals) = digits(bytes, at + 1, magnitude);
        at += 1 + decimals;
    }
    let count = whole + decimals;
    if count == 0 {
        return Err(INVALID_NUMBER);
    }
    match bytes.get(at) {
        Some(b'i') if !has_point => {
            text.advance(at + 1);
            return integer(bytes, at, is_negative, (count <= DIGITS_MAX).then_some(magnitude));
        }
        Some(b'u') if !has_point && !is_negative => {
            text.advance(at + 1);
            return unsigned(bytes, at, (count <= DIGITS_MAX).then_some(magnitude));
        }
        Some(b'e' | b'E') => at = exponent_end(bytes, at + 1),
        _ if count <= DIGITS_MAX && magnitude < 1 << f64::MANTISSA_DIGITS => {
            if let Some(power) = POWERS.get(decimals) {
                text.advance(at);
                let value = magnitude as f64 / power;
                return Ok(FieldValue::Float(if is_negative { -value } else { value }));
            }
        }
        _ => {}
    }
    text.advance(at);
    let value: Option<f64> = ascii(bytes, at).parse().ok();
    match value.filter(|value| value.is_finite()) {
        Some(value) => Ok(FieldValue::Float(value)),
        None if text.is_value_end() => Err("invalid float".into()),
        None => Err(INVALID_NUMBER),
    }
}

/// The digits from a place on: their value, appended to the digits before them (it wraps), and their count.
#[inline]
fn digits(bytes: &[u8], start: usize, before: u64) -> (u64, usize) {
    let mut magnitude = before;
    let mut count = 0;
    while let Some(digit @ b'0'..=b'9') = bytes.get(start + count) {
        magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        count += 1;
    }
    (magnitude, count)
}

/// The end of the exponent that begins at a place.
fn exponent_end(bytes: &[u8], start: usize) -> usize {
    let sign = usize::from(matches!(bytes.get(start), Some(b'+' | b'-')));
    start + sign + digits(bytes, start + sign, 0).1
}

/// The bytes before a place, which are ASCII.
fn ascii(bytes: &[u8], end: usize) -> &str {
    bytes.get(..end).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

fn integer<'a>(
    bytes: &[u8],
    end: usize,
    is_negative: bool,
    magnitude: Option<u64>,
) -> Result<FieldValue<'a>, Fault> {
    let value = match magnitude {
        Some(magnitude) if is_negative => 0_i64.checked_sub_unsigned(magnitude),
        Some(magnitude) => i64::try_from(magnitude).ok(),
        None => ascii(bytes, end).parse().ok(),
    };
    value.map(FieldValue::Integer).ok_or_else(|| out_of_range("integer", "Int", bytes, end))
}

fn unsigned<'a>(bytes: &[u8], end: usize, magnitude: Option<u64>) -> Result<FieldValue<'a>, Fault> {
    let value = magnitude.or_else(|| ascii(bytes, end).parse().ok());
    value.map(FieldValue::Unsigned).ok_or_else(|| out_of_range("unsigned", "Uint", bytes, end))
}

fn out_of_range(what: &str, function: &str, bytes: &[u8], end: usize) -> Fault {
    // The message quotes the cut line before this text; a number of any length must be cut, too.
    let text = ascii(bytes, end.min(64));
    format!(
        "unable to parse {what} {text}: strconv.Parse{function}: parsing \"{text}\": value out of range"
    )
    .into()
}
