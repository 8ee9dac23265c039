//! The functions of columns, and the types of their results.

use super::ast::{Cast, Expr};
use crate::value::FieldType;

/// A function that is computed from summaries of parts of the points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Simple {
    /// The number of values.
    Count,
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The earliest.
    First,
    /// The latest.
    Last,
    /// The difference between the greatest and the least.
    Spread,
}

/// A function that needs all points of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Whole {
    /// Each value once.
    Distinct,
    /// The number of different values.
    CountDistinct,
    /// The value in the middle.
    Median,
    /// The most frequent value.
    Mode,
    /// The standard deviation.
    Stddev,
    /// The value below which this percentage of the values are.
    Percentile(f64),
    /// The greatest values (true) or the least, their number, and the tags each of whose sets counts once.
    Rank(bool, usize, Vec<String>),
}

/// A function from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The change by a unit of time (none: that of the bucket, or a second), and whether negative changes are
    /// omitted.
    Derivative(Option<i64>, bool),
    /// The change, and whether negative changes are omitted.
    Difference(bool),
    /// The mean of so many values.
    MovingAverage(usize),
    /// The sum of all so far.
    CumulativeSum,
    /// The time since the previous point, in a unit.
    Elapsed(i64),
    /// The area below, by a unit of time.
    Integral(i64),
}

/// A function and its input.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Function {
    /// See [`Simple`].
    Simple(Simple),
    /// See [`Whole`].
    Whole(Whole),
    /// Applied to a field.
    Step(Step),
    /// Applied to another function.
    StepOf(Step, Box<Call>),
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    /// The function.
    pub(super) function: Function,
    /// Its name, for errors.
    pub(super) name: String,
    /// The name of the field.
    pub(super) field: String,
    /// The kind of the field.
    pub(super) kind: Cast,
}

impl Call {
    /// The call that an expression stands for; `kind` determines the kind of a reference. None if it is not a call,
    /// which cannot happen with checked columns.
    pub(super) fn new(expr: &Expr, kind: &dyn Fn(&str, Cast) -> Cast) -> Option<Self> {
        let (name, arguments) = match expr {
            Expr::Distinct(field) => {
                return Self::of(
                    "distinct",
                    Function::Whole(Whole::Distinct),
                    &Expr::Reference(field.clone(), Cast::None),
                    kind,
                );
            }
            Expr::Call(name, arguments) => (name.as_str(), arguments.as_slice()),
            _ => return None,
        };
        let [of, rest @ ..] = arguments else { return None };
        if let Some(step) = step(name, rest) {
            return match of {
                Expr::Call(..) | Expr::Distinct(_) => {
                    let inner = Self::new(of, kind)?;
                    let (field, kind) = (inner.field.clone(), inner.kind);
                    let function = Function::StepOf(step, Box::new(inner));
                    Some(Self { function, name: name.to_owned(), field, kind })
                }
                of => Self::of(name, Function::Step(step), of, kind),
            };
        }
        if name == "count" {
            match of {
                Expr::Call(inner, of) if inner == "distinct" => {
                    return Self::of(
                        name,
                        Function::Whole(Whole::CountDistinct),
                        of.first()?,
                        kind,
                    );
                }
                Expr::Distinct(field) => {
                    let of = Expr::Reference(field.clone(), Cast::None);
                    return Self::of(name, Function::Whole(Whole::CountDistinct), &of, kind);
                }
                _ => {}
            }
        }
        let function = match name {
            "count" => Function::Simple(Simple::Count),
            "sum" => Function::Simple(Simple::Sum),
            "mean" => Function::Simple(Simple::Mean),
            "min" => Function::Simple(Simple::Min),
            "max" => Function::Simple(Simple::Max),
            "first" => Function::Simple(Simple::First),
            "last" => Function::Simple(Simple::Last),
            "spread" => Function::Simple(Simple::Spread),
            "distinct" => Function::Whole(Whole::Distinct),
            "median" => Function::Whole(Whole::Median),
            "mode" => Function::Whole(Whole::Mode),
            "stddev" => Function::Whole(Whole::Stddev),
            "percentile" => Function::Whole(Whole::Percentile(number(rest.first()?)?)),
            "top" | "bottom" => {
                let [tags @ .., Expr::Integer(count)] = rest else { return None };
                let tags = tags.iter().filter_map(|it| match it {
                    Expr::Reference(name, _) => Some(name.clone()),
                    _ => None,
                });
                let count = usize::try_from(*count).ok()?;
                Function::Whole(Whole::Rank(name == "top", count, tags.collect()))
            }
            _ => return None,
        };
        Self::of(name, function, of, kind)
    }

    fn of(
        name: &str,
        function: Function,
        of: &Expr,
        kind: &dyn Fn(&str, Cast) -> Cast,
    ) -> Option<Self> {
        let Expr::Reference(field, cast) = of else { return None };
        let kind = kind(field, *cast);
        Some(Self { function, name: name.to_owned(), field: field.clone(), kind })
    }

    /// True if it chooses points, which keep their times.
    pub(super) fn is_selector(&self) -> bool {
        matches!(
            self.function,
            Function::Simple(Simple::Min | Simple::Max | Simple::First | Simple::Last)
                | Function::Whole(Whole::Percentile(_) | Whole::Rank(..))
        )
    }

    /// The type of its result; none if its field is unknown.
    pub(super) fn result(&self) -> Option<FieldType> {
        let of_field = match self.kind {
            Cast::Type(it) => Some(it),
            Cast::Tag => Some(FieldType::String),
            Cast::None | Cast::Field => None,
        };
        match &self.function {
            Function::Simple(Simple::Count) => Some(FieldType::Integer),
            Function::Whole(Whole::CountDistinct) => Some(FieldType::Integer),
            Function::Step(Step::Elapsed(_)) | Function::StepOf(Step::Elapsed(_), _) => {
                Some(FieldType::Integer)
            }
            Function::Simple(Simple::Mean) | Function::Whole(Whole::Median | Whole::Stddev) => {
                Some(FieldType::Float)
            }
            Function::Step(step) if step.is_of_floats() => Some(FieldType::Float),
            Function::StepOf(step, _) if step.is_of_floats() => Some(FieldType::Float),
            Function::StepOf(_, inner) => inner.result(),
            _ => of_field,
        }
    }

    /// Refuses a field whose type the function does not accept.
    pub(super) fn check(&self, of: FieldType) -> Result<(), String> {
        let is_number = matches!(of, FieldType::Float | FieldType::Integer | FieldType::Unsigned);
        let is_fit = match &self.function {
            Function::Simple(Simple::Count | Simple::First | Simple::Last) => true,
            Function::Simple(Simple::Min | Simple::Max) => of != FieldType::String,
            Function::Whole(Whole::Distinct | Whole::CountDistinct | Whole::Mode) => true,
            Function::Step(Step::Elapsed(_)) => true,
            Function::StepOf(step, inner) => {
                inner.check(of)?;
                let result = inner.result().unwrap_or(FieldType::Float);
                let outer = Self { function: Function::Step(*step), ..self.clone() };
                return outer.check(result);
            }
            _ => is_number,
        };
        if is_fit {
            return Ok(());
        }
        let name = self.name.trim_start_matches("non_negative_").replace('_', " ");
        Err(format!("unsupported {name} iterator type: *query.{}InterruptIterator", of.name()))
    }

    /// The number of buckets before the range that it looks at.
    pub(super) fn buckets_before(&self) -> i64 {
        match &self.function {
            Function::StepOf(Step::CumulativeSum | Step::Integral(_), _) => 0,
            Function::StepOf(..) => 1,
            _ => 0,
        }
    }
}

impl Step {
    fn is_of_floats(self) -> bool {
        matches!(self, Self::Derivative(..) | Self::MovingAverage(_) | Self::Integral(_))
    }
}

fn number(of: &Expr) -> Option<f64> {
    match of {
        Expr::Integer(it) => Some(*it as f64),
        Expr::Number(it) => Some(*it),
        _ => None,
    }
}

fn step(name: &str, rest: &[Expr]) -> Option<Step> {
    let unit = match rest {
        [Expr::Duration(it)] => Some(*it),
        _ => None,
    };
    Some(match name {
        "derivative" => Step::Derivative(unit, false),
        "non_negative_derivative" => Step::Derivative(unit, true),
        "difference" => Step::Difference(false),
        "non_negative_difference" => Step::Difference(true),
        "cumulative_sum" => Step::CumulativeSum,
        "elapsed" => Step::Elapsed(unit.unwrap_or(1)),
        "integral" => Step::Integral(unit.unwrap_or(1_000_000_000)),
        "moving_average" => match rest {
            [Expr::Integer(width)] => Step::MovingAverage(usize::try_from(*width).ok()?),
            _ => return None,
        },
        _ => return None,
    })
}
