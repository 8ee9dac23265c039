//! One series out of several, as OpenTSDB makes it.
//!
//! ```text
//!   a:  1 ────── 3 ────── 5            the times of all series, ascending; at each time a series has its value there,
//!   b:       2 ────── 4                or one between its neighbours, and none before its first and after its last
//! ```
//!
//! The value between its neighbours depends on the aggregator, and is the earlier one for all of them if the series
//! are rates.

use super::downsample::Samples;

/// The names of aggregators.
pub(super) const NAMES: [&str; 27] = [
    "avg",
    "count",
    "dev",
    "diff",
    "first",
    "last",
    "max",
    "median",
    "mimmax",
    "mimmin",
    "min",
    "multiply",
    "none",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p999",
    "ep50r7",
    "ep75r7",
    "ep90r7",
    "ep95r7",
    "ep99r7",
    "squareSum",
    "sum",
    "zimsum",
];

/// The aggregate of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Function {
    Sum,
    Min,
    Max,
    Average,
    Count,
    Deviation,
    Median,
    First,
    Last,
    Product,
    Difference,
    SquareSum,
    /// A percentile, as a part of 1; the second is true if it is estimated by R's default method (R-7).
    Percentile(f64, bool),
}

/// The value of a series between its points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// A value on the line from the previous point to the next one.
    Line,
    /// The value of the previous point.
    Previous,
    Zero,
    Nothing,
}

/// The way in which series become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Aggregator {
    pub(super) function: Function,
    between: Between,
    /// True if every series stays as it is.
    pub(super) is_none: bool,
}

impl Function {
    /// The percentile with this name: `p95`, `p999`, `ep95r7`.
    fn percentile(name: &str) -> Option<Self> {
        let (digits, is_r7) = match name.strip_prefix("ep") {
            Some(rest) => (rest.strip_suffix("r7")?, true),
            None => (name.strip_prefix('p')?, false),
        };
        let number: f64 =
            digits.parse().ok().filter(|_| digits.bytes().all(|it| it.is_ascii_digit()))?;
        let part = if digits.len() > 2 { number / 1000.0 } else { number / 100.0 };
        (2..=3).contains(&digits.len()).then_some(Self::Percentile(part, is_r7))
    }

    /// The function with this name, ignoring case.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "sum" | "zimsum" | "pfsum" => Self::Sum,
            "min" | "mimmin" => Self::Min,
            "max" | "mimmax" => Self::Max,
            "avg" => Self::Average,
            "count" => Self::Count,
            "dev" => Self::Deviation,
            "median" => Self::Median,
            "first" => Self::First,
            "last" | "none" => Self::Last,
            "multiply" | "mult" => Self::Product,
            "diff" => Self::Difference,
            "squaresum" => Self::SquareSum,
            other => Self::percentile(other)?,
        })
    }

    /// The aggregate of values, none of which is NaN; NaN if there are none. The values are sorted if necessary.
    pub(super) fn of(self, values: &mut [f64]) -> f64 {
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return f64::NAN };
        let count = values.len() as f64;
        match self {
            Self::Sum => values.iter().sum(),
            Self::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Self::Average => values.iter().sum::<f64>() / count,
            Self::Count => count,
            Self::Deviation => {
                let mean = values.iter().sum::<f64>() / count;
                (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
            }
            Self::Median => median(values),
            Self::First => first,
            Self::Last => last,
            Self::Product => values.iter().product(),
            Self::Difference => last - first,
            Self::SquareSum => values.iter().map(|value| value * value).sum(),
            Self::Percentile(part, is_r7) => percentile(values, part, is_r7),
        }
    }
}

/// The value in the middle, the greater one of two, as OpenTSDB chooses it.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A percentile, interpolated: at `part (n - 1)` from the first (R-7), or at `part (n + 1) - 1` (R-6, OpenTSDB's
/// own).
fn percentile(values: &mut [f64], part: f64, is_r7: bool) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len() as f64;
    let place = if is_r7 { part * (count - 1.0) } else { part * (count + 1.0) - 1.0 };
    let place = place.clamp(0.0, (count - 1.0).max(0.0));
    let at = place.floor() as usize;
    let Some(low) = values.get(at) else { return f64::NAN };
    let high = values.get(at + 1).unwrap_or(low);
    low + (high - low) * place.fract()
}

impl Aggregator {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let function = Function::of_name(name)?;
        let between = match name.to_ascii_lowercase().as_str() {
            "zimsum" | "count" | "squaresum" | "first" | "last" => Between::Zero,
            "mimmax" | "mimmin" => Between::Nothing,
            "pfsum" => Between::Previous,
            _ => Between::Line,
        };
        Some(Self { function, between, is_none: name.eq_ignore_ascii_case("none") })
    }

    /// The same for series of rates: between two rates a series has the earlier one, as in OpenTSDB.
    pub(super) fn of_rates(self) -> Self {
        Self { between: Between::Previous, ..self }
    }

    /// Aggregates series, whose times ascend, into one. `check` is called now and then, and may end it.
    pub(super) fn aggregate<E>(
        self,
        series: &[Samples],
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Samples, E> {
        // The aggregate of one value is that value, except for these.
        let is_other = matches!(
            self.function,
            Function::Count | Function::Deviation | Function::Difference | Function::SquareSum
        );
        if let ([one], false) = (series, is_other) {
            return Ok(one.clone());
        }
        let mut times: Vec<i64> = series.iter().flatten().map(|(time, _)| *time).collect();
        times.sort_unstable();
        times.dedup();
        let mut places = vec![0; series.len()];
        let (mut values, mut all) =
            (Vec::with_capacity(series.len()), Vec::with_capacity(times.len()));
        for (at, time) in times.into_iter().enumerate() {
            if at % 256 == 0 {
                check()?;
            }
            values.clear();
            for (samples, place) in series.iter().zip(&mut places) {
                while samples.get(*place).is_some_and(|(it, _)| *it < time) {
                    *place += 1;
                }
                values.extend(self.value_at(samples, *place, time).filter(|it| !it.is_nan()));
            }
            all.push((time, self.function.of(&mut values)));
        }
        Ok(all)
    }

    /// The value of a series at a time; `place` is its first sample that is not before that time.
    fn value_at(self, samples: &Samples, place: usize, time: i64) -> Option<f64> {
        let (behind, value) = *samples.get(place)?;
        if behind == time {
            return Some(value);
        }
        let (before, earlier) = *samples.get(place.checked_sub(1)?)?;
        match self.between {
            Between::Nothing => None,
            Between::Previous => Some(earlier),
            Between::Zero => Some(0.0),
            Between::Line => {
                let part = (time - before) as f64 / (behind - before) as f64;
                Some(earlier + (value - earlier) * part)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aggregated(name: &str, series: &[Samples]) -> Samples {
        let never = &mut || Ok::<(), ()>(());
        Aggregator::of_name(name).unwrap().aggregate(series, never).unwrap()
    }

    #[test]
    fn series_are_interpolated_between_their_points() {
        let one = vec![(0, 10.0), (20, 30.0), (40, 50.0)];
        let other = vec![(10, 5.0), (30, 7.0)];
        let both = [one.clone(), other];
        let sum = [(0, 10.0), (10, 25.0), (20, 36.0), (30, 47.0), (40, 50.0)];
        assert_eq!(aggregated("sum", &both), sum);
        let average = [(0, 10.0), (10, 12.5), (20, 18.0), (30, 23.5), (40, 50.0)];
        assert_eq!(aggregated("avg", &both), average);
        let zero = [(0, 10.0), (10, 5.0), (20, 30.0), (30, 7.0), (40, 50.0)];
        assert_eq!(aggregated("zimsum", &both), zero);
        assert_eq!(aggregated("mimmin", &both), zero);
        let count: Vec<f64> = aggregated("count", &both).into_iter().map(|it| it.1).collect();
        assert_eq!(count, [1.0, 2.0, 2.0, 2.0, 1.0]);
        let previous = [(0, 10.0), (10, 15.0), (20, 35.0), (30, 37.0), (40, 50.0)];
        assert_eq!(aggregated("pfsum", &both), previous);
        assert_eq!(aggregated("max", std::slice::from_ref(&one)), one);
        // The last value less the first one, of a single series.
        assert_eq!(
            aggregated("diff", std::slice::from_ref(&one)),
            [(0, 0.0), (20, 0.0), (40, 0.0)]
        );
        assert_eq!(aggregated("sum", &[]), []);
    }

    #[test]
    fn a_rate_lasts_until_the_next_one() {
        let both = [vec![(10, 10.0), (30, 0.0)], vec![(15, 5.0), (25, 1.0)]];
        let never = &mut || Ok::<(), ()>(());
        let of = |name: &str, never: &mut dyn FnMut() -> Result<(), ()>| {
            Aggregator::of_name(name).unwrap().of_rates().aggregate(&both, never).unwrap()
        };
        let sum = [(10, 10.0), (15, 15.0), (25, 11.0), (30, 0.0)];
        assert_eq!(of("sum", never), sum);
        assert_eq!(of("zimsum", never), sum);
        assert_eq!(of("mimmax", never), [(10, 10.0), (15, 10.0), (25, 10.0), (30, 0.0)]);
        assert_eq!(of("count", never), [(10, 1.0), (15, 2.0), (25, 2.0), (30, 1.0)]);
    }

    #[test]
    fn what_is_no_number_does_not_count() {
        let both = [vec![(0, f64::NAN), (1, 2.0)], vec![(0, 3.0), (1, f64::NAN)]];
        assert_eq!(aggregated("avg", &both), [(0, 3.0), (1, 2.0)]);
        assert!(aggregated("sum", &[vec![(0, f64::NAN)], vec![(0, f64::NAN)]])[0].1.is_nan());
    }

    #[test]
    fn functions_come_to_what_they_should() {
        let of =
            |name: &str, values: &[f64]| Function::of_name(name).unwrap().of(&mut values.to_vec());
        let values = [4.0, 1.0, 3.0, 2.0];
        for (name, value) in [
            ("sum", 10.0),
            ("min", 1.0),
            ("max", 4.0),
            ("avg", 2.5),
            ("count", 4.0),
            ("dev", 1.25_f64.sqrt()),
            ("median", 3.0),
            ("first", 4.0),
            ("last", 2.0),
            ("multiply", 24.0),
            ("diff", -2.0),
            ("squareSum", 30.0),
            ("p50", 2.5),
            ("p99", 4.0),
            ("p75", 3.75),
            ("ep75r7", 3.25),
            ("p999", 4.0),
        ] {
            assert_eq!(of(name, &values), value, "{name}");
        }
        assert!(NAMES.iter().all(|name| Aggregator::of_name(name).is_some()));
        for wrong in ["", "p", "p5", "p9999", "p9x", "ep50", "ep50r3", "ep50r9", "mean"] {
            assert!(Aggregator::of_name(wrong).is_none(), "{wrong}");
        }
    }
}
