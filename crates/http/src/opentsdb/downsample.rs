//! Downsampling: one value for each interval of a series; and rates.
//!
//! Intervals begin at multiples of their length since 1970. The first interval is the first that begins in the
//! range. The last one is complete, even if the range ends within it, as in OpenTSDB.

use super::aggregate::Function;
use std::ops::RangeInclusive;

/// Times in milliseconds since 1970, ascending, and values.
pub(super) type Samples = Vec<(i64, f64)>;

/// The content of an interval without points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// The interval is omitted.
    None,
    NotANumber,
    Null,
    Zero,
}

/// The way in which a series is downsampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Downsample {
    /// Milliseconds; none: the whole range is one interval.
    pub(super) interval: Option<i64>,
    pub(super) function: Function,
    pub(super) fill: Fill,
}

/// A length of time as OpenTSDB writes it, in milliseconds: `10s`, `1m`, `500ms`, `1n` (30 days), `1y` (365 days).
pub(super) fn duration(text: &str) -> Option<i64> {
    let end = text.find(|it: char| !it.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    let number: i64 = digits.parse().ok().filter(|number| *number > 0)?;
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        "n" => 30 * 86_400_000,
        "y" => 365 * 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

impl Downsample {
    /// Parses a specifier such as `1m-avg`, `1h-sum-zero`, `0all-max`.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let wrong = || format!("Invalid downsampling specifier: {text}");
        let mut parts = text.split('-');
        let (interval, function) =
            (parts.next().unwrap_or_default(), parts.next().ok_or_else(wrong)?);
        let fill = match parts.next() {
            None | Some("none") => Fill::None,
            Some("nan") => Fill::NotANumber,
            Some("null") => Fill::Null,
            Some("zero") => Fill::Zero,
            Some(other) => return Err(format!("Unrecognized fill policy: {other}")),
        };
        if parts.next().is_some() {
            return Err(wrong());
        }
        let interval = match interval {
            "0all" => None,
            text => Some(duration(text).ok_or_else(wrong)?),
        };
        let is_none = function.eq_ignore_ascii_case("none");
        let found = Function::of_name(function).filter(|_| !is_none);
        let function = found.ok_or_else(|| format!("No such downsampling function: {function}"))?;
        Ok(Self { interval, function, fill })
    }

    /// The range of the points in the intervals of `range`; the range of milliseconds is closed.
    pub(super) fn points(self, range: &RangeInclusive<i64>) -> RangeInclusive<i64> {
        let Some(interval) = self.interval else { return range.clone() };
        let start = range.start().saturating_add(interval - 1).div_euclid(interval);
        let end = range.end().div_euclid(interval).saturating_add(1);
        start.saturating_mul(interval)..=end.saturating_mul(interval) - 1
    }

    /// True if intervals without points get a value.
    pub(super) fn fills(self) -> bool {
        self.interval.is_some() && self.fill != Fill::None
    }

    /// Inserts the values of intervals without points.
    pub(super) fn fill(self, samples: Samples, range: &RangeInclusive<i64>) -> Samples {
        let (Some(interval), false) = (self.interval, self.fill == Fill::None) else {
            return samples;
        };
        let value = if self.fill == Fill::Zero { 0.0 } else { f64::NAN };
        let points = self.points(range);
        let mut given = samples.into_iter().peekable();
        let mut all = Vec::new();
        let mut time = *points.start();
        while time <= *points.end() {
            let found = given.next_if(|(it, _)| *it <= time);
            all.push(found.unwrap_or((time, value)));
            let Some(next) = time.checked_add(interval) else { break };
            time = next;
        }
        all
    }

    /// The number of intervals of the range.
    pub(super) fn count(self, range: &RangeInclusive<i64>) -> u64 {
        let points = self.points(range);
        let length = points.end().saturating_sub(*points.start()).max(0).unsigned_abs();
        self.interval.map_or(1, |interval| length / interval.unsigned_abs() + 1)
    }
}

/// The way in which rates are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rate {
    /// A value that is less than the previous one has wrapped at `max`.
    pub(super) is_counter: bool,
    pub(super) max: f64,
    /// A rate above this becomes 0; 0: there is no such bound.
    pub(super) reset: f64,
    /// A value that is less than the previous one has no rate.
    pub(super) drops_resets: bool,
}

impl Default for Rate {
    fn default() -> Self {
        Self { is_counter: false, max: i64::MAX as f64, reset: 0.0, drops_resets: false }
    }
}

impl Rate {
    /// Changes per second, at the later of two points.
    pub(super) fn of(self, samples: &Samples) -> Samples {
        let pairs = samples.iter().zip(samples.iter().skip(1));
        pairs
            .filter_map(|((before, earlier), (time, value))| {
                let seconds = (time - before) as f64 / 1000.0;
                let rate = (value - earlier) / seconds;
                if !self.is_counter || value >= earlier {
                    return Some((*time, rate));
                }
                if self.drops_resets {
                    return None;
                }
                let rate = (self.max - earlier + value) / seconds;
                let is_reset = self.reset > 0.0 && rate > self.reset;
                Some((*time, if is_reset { 0.0 } else { rate }))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_are_those_of_opentsdb() {
        let found = Downsample::of("1m-avg").unwrap();
        assert_eq!(
            (found.interval, found.function, found.fill),
            (Some(60_000), Function::Average, Fill::None)
        );
        assert_eq!(Downsample::of("0all-sum").unwrap().interval, None);
        assert_eq!(Downsample::of("500ms-p99-nan").unwrap().fill, Fill::NotANumber);
        for wrong in
            ["", "1m", "1x-avg", "0m-avg", "1m-mean", "1m-none", "1m-avg-x", "1m-avg-nan-x", "-avg"]
        {
            assert!(Downsample::of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration("99999999999999999y"), None);
        assert_eq!(duration("9999999999999y"), None);
    }

    #[test]
    fn intervals_begin_in_the_range_and_are_whole() {
        let minute = Downsample::of("1m-sum-zero").unwrap();
        assert_eq!(minute.points(&(60_000..=120_000)), 60_000..=179_999);
        assert_eq!(minute.points(&(60_001..=179_999)), 120_000..=179_999);
        assert_eq!(minute.count(&(1..=239_999)), 3);
        let filled = minute.fill(vec![(120_000, 7.0)], &(1..=239_999));
        assert_eq!(filled, [(60_000, 0.0), (120_000, 7.0), (180_000, 0.0)]);
        let all = Downsample::of("0all-sum-zero").unwrap();
        assert_eq!((all.points(&(5..=7)), all.fill(vec![], &(5..=7))), (5..=7, vec![]));
    }

    #[test]
    fn rates_are_changes_a_second() {
        let samples = vec![(0, 10.0), (2_000, 14.0), (3_000, 4.0)];
        assert_eq!(Rate::default().of(&samples), [(2_000, 2.0), (3_000, -10.0)]);
        let counter = Rate { is_counter: true, max: 20.0, ..Rate::default() };
        assert_eq!(counter.of(&samples), [(2_000, 2.0), (3_000, 10.0)]);
        assert_eq!(Rate { reset: 5.0, ..counter }.of(&samples), [(2_000, 2.0), (3_000, 0.0)]);
        assert_eq!(Rate { drops_resets: true, ..counter }.of(&samples), [(2_000, 2.0)]);
    }
}
