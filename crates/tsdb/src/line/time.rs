//! The time of a line.

use super::Fault;
use super::text::Cursor;
use crate::point::{check_time, outside_range};

/// The unit of the times of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Nanoseconds.
    #[default]
    Nanosecond,
    /// Microseconds.
    Microsecond,
    /// Milliseconds.
    Millisecond,
    /// Seconds.
    Second,
    /// Minutes.
    Minute,
    /// Hours.
    Hour,
}

impl Precision {
    /// The precision with this InfluxDB name: `n`, `ns`, `u`, `µ`, `us`, `ms`, `s`, `m` or `h`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "n" | "ns" => Self::Nanosecond,
            // The micro sign, and the letter mu.
            "u" | "us" | "\u{b5}" | "\u{3bc}" => Self::Microsecond,
            "ms" => Self::Millisecond,
            "s" => Self::Second,
            "m" => Self::Minute,
            "h" => Self::Hour,
            _ => return None,
        })
    }

    /// The unit in nanoseconds.
    #[must_use]
    pub fn nanoseconds(self) -> i64 {
        match self {
            Self::Nanosecond => 1,
            Self::Microsecond => 1_000,
            Self::Millisecond => 1_000_000,
            Self::Second => 1_000_000_000,
            Self::Minute => 60 * 1_000_000_000,
            Self::Hour => 3_600 * 1_000_000_000,
        }
    }
}

/// Any number of so many digits fits in a `u64`.
const DIGITS_MAX: usize = 19;

/// The time at the end of a line, in nanoseconds; none if there is none. Moves to the end of the line.
pub(super) fn time(text: &mut Cursor<'_>, precision: Precision) -> Result<Option<i64>, Fault> {
    if text.is_end() {
        return Ok(None);
    }
    let is_negative = text.peek() == Some(b'-');
    if is_negative {
        text.advance(1);
    }
    let mut magnitude = 0_u64;
    let mut digits = 0_usize;
    let mut has_digits = false;
    while let Some(digit @ b'0'..=b'9') = text.peek() {
        magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        // Leading zeroes do not count.
        digits += usize::from(digits > 0 || digit > b'0');
        has_digits = true;
        text.advance(1);
    }
    if !has_digits || (!text.is_end() && text.peek() != Some(b' ')) {
        return Err("bad timestamp".into());
    }
    while text.peek() == Some(b' ') {
        text.advance(1);
    }
    if !text.is_end() {
        return Err("point is invalid".into());
    }
    let count = if is_negative {
        0_i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    };
    count
        .filter(|_| digits <= DIGITS_MAX)
        .and_then(|count| count.checked_mul(precision.nanoseconds()))
        .filter(|time| check_time(*time).is_ok())
        .map(Some)
        .ok_or_else(|| outside_range().into())
}
