//! Times of requests: absolute, relative, or dates.

use super::downsample::duration;
use super::point::{nanoseconds, time_of};
use coreplane_tsdb::calendar;
use serde::Deserialize;

/// A time: a number or a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Moment {
    Number(i64),
    Text(String),
}

impl Moment {
    pub(super) fn milliseconds(&self, now: i64) -> Result<i64, String> {
        match self {
            Self::Number(0) => Ok(0),
            Self::Number(time) => absolute(*time).ok_or_else(|| format!("Invalid time: {time}")),
            Self::Text(text) => moment(text, now),
        }
    }
}

fn absolute(time: i64) -> Option<i64> {
    if time == 0 { Some(0) } else { nanoseconds(time).map(|time| time / 1_000_000) }
}

/// Seconds or milliseconds since 1970, `1h-ago`, `now`, or a date as OpenTSDB writes it; in milliseconds.
pub(super) fn moment(text: &str, now: i64) -> Result<i64, String> {
    let wrong = || format!("Invalid time: {text}");
    if text == "now" {
        return Ok(now);
    }
    if let Some(length) = text.strip_suffix("-ago") {
        return duration(length).and_then(|length| now.checked_sub(length)).ok_or_else(wrong);
    }
    if text.contains(['/', '-', ':']) {
        return date(text).ok_or_else(wrong);
    }
    match text.split_once('.') {
        None => absolute(text.parse().map_err(|_| wrong())?),
        Some(_) => time_of(text).map(|time| time / 1_000_000),
    }
    .ok_or_else(wrong)
}

/// `yyyy/MM/dd[-HH:mm[:ss]]`, in UTC, in milliseconds.
fn date(text: &str) -> Option<i64> {
    let (day, time) = text.split_once(['-', ' ']).unwrap_or((text, "0:0"));
    let numbers = |text: &str, stop: char| -> Option<Vec<i64>> {
        let number = |part: &str| part.parse().ok().filter(|it: &i64| (0..=9999).contains(it));
        text.split(stop).map(number).collect()
    };
    let (day, time) = (numbers(day, '/')?, numbers(time, ':')?);
    let [year, month @ 1..=12, day @ 1..=31] = day[..] else { return None };
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // As in OpenTSDB, a day behind the end of its month is one of the next.
    let days = calendar::days(year, month, day);
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    #[test]
    fn times_are_absolute_or_relative() {
        for (text, milliseconds) in [
            ("1364410924", 1_364_410_924_000),
            ("1364410924250", 1_364_410_924_250),
            ("1364410924.25", 1_364_410_924_250),
            ("1h-ago", NOW - 3_600_000),
            ("now", NOW),
            ("0", 0),
            ("2013/03/27-19:02:04", 1_364_410_924_000),
            ("2013/03/27", 1_364_342_400_000),
            ("1970/01/01-00:01", 60_000),
        ] {
            assert_eq!(moment(text, NOW), Ok(milliseconds), "{text}");
        }
        for wrong in
            ["", "x", "-5", "1x-ago", "2013/13/01", "2013/03", "2013/03/27-24:00", "1/2/3/4"]
        {
            assert!(moment(wrong, NOW).is_err(), "{wrong}");
        }
    }
}
