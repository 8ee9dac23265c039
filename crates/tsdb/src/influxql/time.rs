//! Times and durations as text.
//!
//! Time is UTC, without leap seconds.

use crate::calendar;
/// The least and the greatest time that a query can state. (In InfluxDB the two times below mark an absent time.)
pub(super) use crate::point::{TIME_MAX, TIME_MIN};

const SECOND: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Reads a duration, such as `1h30m`.
pub(super) fn duration(text: &str) -> Result<i64, String> {
    let invalid = || "invalid duration".to_owned();
    let mut total: i64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !it.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, behind) = rest.split_at(digits);
        let number: i64 = number.parse().map_err(|_| invalid())?;
        const UNITS: [(&str, i64); 9] = [
            ("ns", 1),
            ("ms", 1_000_000),
            ("u", 1_000),
            ("µ", 1_000),
            ("s", SECOND),
            ("m", 60 * SECOND),
            ("h", 3600 * SECOND),
            ("d", DAY_SECONDS * SECOND),
            ("w", 7 * DAY_SECONDS * SECOND),
        ];
        let unit = UNITS.iter().find(|(name, _)| behind.starts_with(name));
        let (name, nanoseconds) = unit.ok_or_else(invalid)?;
        total = number.checked_mul(*nanoseconds).and_then(|it| total.checked_add(it)).ok_or_else(
            || format!("overflowed duration {number}{name}: choose a smaller duration or INF"),
        )?;
        rest = behind.strip_prefix(name).unwrap_or_default();
    }
    Ok(total)
}

/// True if a text begins like a date, so that it must be one where a time is expected.
pub(super) fn looks_like_time(text: &str) -> bool {
    let mut bytes = text.bytes();
    "dddd-dd-dd".bytes().all(|wanted| match (wanted, bytes.next()) {
        (b'd', Some(found)) => found.is_ascii_digit(),
        (wanted, found) => found == Some(wanted),
    })
}

/// Digits of a text that is read from the left.
struct Digits<'a>(&'a str);

impl Digits<'_> {
    /// A number of `digits` digits, of at most `most`.
    fn number(&mut self, digits: usize, most: i64) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        if !number.bytes().all(|it| it.is_ascii_digit()) {
            return None;
        }
        self.0 = rest;
        number.parse().ok().filter(|it| *it <= most)
    }

    /// Takes this character if it comes next; true if it did.
    fn mark(&mut self, wanted: char) -> bool {
        let rest = self.0.strip_prefix(wanted);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// A fraction of a second, in nanoseconds; 0 if there is none.
    fn fraction(&mut self) -> Option<i64> {
        if !self.mark('.') {
            return Some(0);
        }
        let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        let kept = number.get(..number.len().min(9)).filter(|it| !it.is_empty())?;
        let scale = u32::try_from(9 - kept.len()).ok()?;
        Some(kept.parse::<i64>().ok()? * 10_i64.pow(scale))
    }
}

/// Days from 1970-01-01 to a date; none if there is no such day.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let days = calendar::days(year, month, day);
    (calendar::date(days) == (year, month, day)).then_some(days)
}

/// Reads `YYYY-MM-DD`, `YYYY-MM-DD HH:MM:SS.n` or RFC 3339 as nanoseconds since 1970.
pub(super) fn moment(text: &str) -> Option<i128> {
    let mut digits = Digits(text);
    let year = digits.number(4, 9999)?;
    let month = digits.mark('-').then(|| digits.number(2, 12))??;
    let day = digits.mark('-').then(|| digits.number(2, 31))??;
    let mut seconds = days(year, month, day)? * DAY_SECONDS;
    let mut nanoseconds = 0;
    if !digits.0.is_empty() {
        let is_rfc = digits.mark('T');
        if !is_rfc && !digits.mark(' ') {
            return None;
        }
        seconds += digits.number(2, 23)? * 3600;
        seconds += digits.mark(':').then(|| digits.number(2, 59))?? * 60;
        seconds += digits.mark(':').then(|| digits.number(2, 59))??;
        nanoseconds = digits.fraction()?;
        if is_rfc && !digits.mark('Z') {
            let sign = if digits.mark('+') { -1 } else { 1 };
            if sign == 1 && !digits.mark('-') {
                return None;
            }
            seconds += sign * digits.number(2, 23)? * 3600;
            seconds += sign * digits.mark(':').then(|| digits.number(2, 59))?? * 60;
        }
    }
    digits.0.is_empty().then(|| i128::from(seconds) * i128::from(SECOND) + i128::from(nanoseconds))
}

/// A time as RFC 3339 with whole seconds.
pub(super) fn rfc3339(nanoseconds: i128) -> String {
    let seconds = nanoseconds.div_euclid(i128::from(SECOND));
    let of_day = seconds.rem_euclid(i128::from(DAY_SECONDS));
    let days = i64::try_from(seconds.div_euclid(i128::from(DAY_SECONDS)));
    // A sum of all times that a query can state has far fewer.
    let (year, month, day) = calendar::date(days.unwrap_or_default());
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A duration as Go prints it, such as `168h0m0s`.
pub(super) fn go_duration(nanoseconds: u64) -> String {
    let second = SECOND.unsigned_abs();
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    let (seconds, rest) = (nanoseconds / second, nanoseconds % second);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{rest:09}").trim_end_matches('0').to_owned(),
    };
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) if rest < 1_000 => format!("{rest}ns"),
        (0, 0, 0) if rest < 1_000_000 => format!("{}µs", rest as f64 / 1e3),
        (0, 0, 0) => format!("{}ms", rest as f64 / 1e6),
        (0, 0, s) => format!("{s}{fraction}s"),
        (0, m, s) => format!("{m}m{s}{fraction}s"),
        (h, m, s) => format!("{h}h{m}m{s}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        assert_eq!(duration("1h30m"), Ok(5400 * SECOND));
        assert_eq!(duration("2w3d4ms5u6ns"), Ok(17 * DAY_SECONDS * SECOND + 4_005_006));
        assert!(duration("10").is_err());
        assert!(duration("1x").is_err());
        assert!(duration("15251w").is_err_and(|it| it.starts_with("overflowed duration 15251w")));
        assert_eq!(go_duration(168 * 3600 * 1_000_000_000), "168h0m0s");
        assert_eq!(go_duration(90_500_000_000), "1m30.5s");
    }

    #[test]
    fn moments() {
        assert_eq!(moment("1970-01-01"), Some(0));
        assert_eq!(moment("2000-02-29 12:00:00.5"), Some(951_825_600_500_000_000));
        assert_eq!(moment("2000-02-29T12:00:00+01:30"), Some(951_820_200_000_000_000));
        assert_eq!(moment("1969-12-31T23:59:59.999999999Z"), Some(-1));
        for wrong in ["2001-02-29", "2000-13-01", "2000-01-01T00:00:00", "2000-01-01 00:00", "x"] {
            assert_eq!(moment(wrong), None, "{wrong}");
        }
        assert!(looks_like_time("2000-13-01"));
        assert!(!looks_like_time("2000-1-01"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in -60_000_000_000_i64..250_000_000_000) {
            let time = i128::from(seconds) * i128::from(SECOND);
            prop_assert_eq!(moment(&rfc3339(time)), Some(time));
        }
    }
}
