//! Times as InfluxDB reads and writes them.

use coreplane_tsdb::calendar;

/// A unit of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit(i64);

impl Unit {
    /// The unit of the parameter `epoch`: an unknown name means nanoseconds, as in InfluxDB.
    pub(crate) fn of(name: &str) -> Self {
        Self(match name {
            "u" | "us" | "µ" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => 1,
        })
    }

    /// A time in this unit, rounded towards 1970, as Go divides.
    pub(crate) fn count(self, nanoseconds: i64) -> i64 {
        nanoseconds / self.0
    }
}

const DAY: i64 = 86_400;

/// Appends a time in UTC as RFC 3339, with as many digits of the second as needed: Go's `RFC3339Nano`.
pub(crate) fn write_rfc3339(nanoseconds: i64, out: &mut Vec<u8>) {
    let (seconds, fraction) =
        (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let (day, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // Years of an `i64` of nanoseconds have four digits.
    let (year, month, day) = calendar::date(day);
    number(year, 4, out);
    out.push(b'-');
    number(month, 2, out);
    out.push(b'-');
    number(day, 2, out);
    out.push(b'T');
    number(second / 3600, 2, out);
    out.push(b':');
    number(second / 60 % 60, 2, out);
    out.push(b':');
    number(second % 60, 2, out);
    if fraction > 0 {
        out.push(b'.');
        number(fraction, 9, out);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
    out.push(b'Z');
}

/// Appends a number with `digits` digits.
fn number(mut value: i64, digits: usize, out: &mut Vec<u8>) {
    let mut text = [b'0'; 9];
    for digit in text[..digits.min(9)].iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
    out.extend_from_slice(&text[..digits.min(9)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(nanoseconds: i64) -> String {
        let mut out = Vec::new();
        write_rfc3339(nanoseconds, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn times_are_those_of_go() {
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(1_422_568_543_702_900_257), "2015-01-29T21:55:43.702900257Z");
        assert_eq!(text(1_456_704_000_500_000_000), "2016-02-29T00:00:00.5Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(text(951_868_800_000_000_000), "2000-03-01T00:00:00Z");
        assert_eq!(text(i64::MAX), "2262-04-11T23:47:16.854775807Z");
        assert_eq!(text(i64::MIN), "1677-09-21T00:12:43.145224192Z");
    }

    #[test]
    fn units_divide_towards_1970() {
        for (name, count) in [("", -1500), ("n", -1500), ("ns", -1500), ("u", -1), ("ms", 0)] {
            assert_eq!(Unit::of(name).count(-1500), count, "{name}");
        }
        assert_eq!(Unit::of("h").count(7_300_000_000_000), 2);
        assert_eq!(Unit::of("m").count(121_000_000_000), 2);
    }
}
