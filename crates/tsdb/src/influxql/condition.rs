//! The WHERE clause: its bounds of time, and the rest.
//!
//! Bounds of time are taken out of the clause wherever they stand. Each narrows the range, even beneath an OR, as
//! in InfluxDB. The rest is settled for each series ([`settle`]): comparisons of tags become true or false, and
//! comparisons of fields stay. Before that, the postings give the series for which the rest can hold at all
//! ([`postings`]).

use super::ast::{Cast, Expr};
use super::budget::{Budget, Fallible};
use super::evaluate::math;
use super::fold::fold;
use super::time::{TIME_MAX, TIME_MIN, looks_like_time, moment, rfc3339};
use super::token::Operator;
use crate::catalogue::TagFilter;
use crate::read::Reader;

/// The stated bounds of time; both belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Said {
    /// The least time.
    pub(super) min: Option<i64>,
    /// The greatest time.
    pub(super) max: Option<i64>,
}

impl Said {
    /// The times that are within both bounds.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            min: self.min.into_iter().chain(other.min).max(),
            max: self.max.into_iter().chain(other.max).min(),
        }
    }
}

/// Splits a clause into its bounds of time, and the rest.
pub(super) fn split(condition: Option<&Expr>, now: i64) -> Fallible<(Option<Expr>, Said)> {
    let Some(condition) = condition else { return Ok((None, Said::default())) };
    let (rest, said) = split_inner(condition, now)?;
    let rest = match rest {
        Some(Expr::Group(inner)) => Some(*inner),
        other => other,
    };
    if let Some(rest) = &rest {
        check_calls(rest)?;
    }
    Ok((rest.filter(|it| *it != Expr::Boolean(true)), said))
}

fn split_inner(condition: &Expr, now: i64) -> Fallible<(Option<Expr>, Said)> {
    match condition {
        Expr::Binary(operator @ (Operator::And | Operator::Or), left, right) => {
            let (left, of_left) = split_inner(left, now)?;
            let (right, of_right) = split_inner(right, now)?;
            let rest = match (left, right) {
                (Some(left), Some(right)) => Some(fold(&Expr::binary(*operator, left, right))),
                (left, right) => left.or(right),
            };
            Ok((rest, of_left.and(of_right)))
        }
        Expr::Binary(operator, left, right) if left.is_time() => {
            Ok((None, bound(*operator, right, now)?))
        }
        Expr::Binary(operator, left, right) if right.is_time() => {
            Ok((None, bound(turned(*operator), left, now)?))
        }
        Expr::Binary(..) => Ok((Some(fold(condition)), Said::default())),
        Expr::Group(inner) => {
            let (rest, said) = split_inner(inner, now)?;
            Ok((rest.map(|it| fold(&Expr::Group(Box::new(it)))), said))
        }
        Expr::Boolean(_) => Ok((Some(condition.clone()), Said::default())),
        other => Err(format!("invalid condition expression: {other}")),
    }
}

/// Checks that calls in a condition are functions of numbers.
fn check_calls(rest: &Expr) -> Fallible<()> {
    let mut wrong = None;
    rest.walk(&mut |it| {
        if let Expr::Call(name, _) = it
            && math(name).is_none()
            && wrong.is_none()
        {
            wrong = Some(it);
        }
    });
    wrong.map_or(Ok(()), |it| Err(format!("invalid function call in condition: {it}")))
}

fn turned(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessEqual => Operator::GreaterEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterEqual => Operator::LessEqual,
        other => other,
    }
}

/// The bounds that a comparison of the time sets.
fn bound(operator: Operator, value: &Expr, now: i64) -> Fallible<Said> {
    let value = match constant(value, now)? {
        Constant::Time(it) if it > i128::from(TIME_MAX) => {
            return Err(format!("time {} overflows time literal", rfc3339(it)));
        }
        Constant::Time(it) if it <= i128::from(TIME_MIN) => {
            return Err(format!("time {} underflows time literal", rfc3339(it)));
        }
        Constant::Time(it) => i64::try_from(it).unwrap_or(TIME_MAX),
        Constant::Duration(it) | Constant::Integer(it) => it,
        Constant::Number(it) => it as i64,
        Constant::Text(_) => return Err(incompatible("StringLiteral")),
    };
    let (min, max) = match operator {
        Operator::Greater => (Some(value.saturating_add(1)), None),
        Operator::GreaterEqual => (Some(value), None),
        Operator::Less => (None, Some(value.saturating_sub(1))),
        Operator::LessEqual => (None, Some(value)),
        Operator::Equal => (Some(value), Some(value)),
        other => return Err(format!("invalid time comparison operator: {}", other.text())),
    };
    Ok(Said { min, max })
}

fn incompatible(what: &str) -> String {
    format!("invalid operation: time and *influxql.{what} are not compatible")
}

/// A constant that a time may be compared with.
#[derive(Debug, Clone, PartialEq)]
enum Constant {
    Time(i128),
    Duration(i64),
    Integer(i64),
    Number(f64),
    Text(String),
}

/// Reads a text as a time if it looks like one.
fn as_time(text: &str) -> Fallible<Constant> {
    if !looks_like_time(text) {
        return Ok(Constant::Text(text.to_owned()));
    }
    moment(text).map(Constant::Time).ok_or_else(|| "invalid timestamp string".to_owned())
}

fn constant(expr: &Expr, now: i64) -> Fallible<Constant> {
    match expr {
        Expr::Integer(it) => Ok(Constant::Integer(*it)),
        Expr::Number(it) => Ok(Constant::Number(*it)),
        Expr::Duration(it) => Ok(Constant::Duration(*it)),
        Expr::String(text) => as_time(text),
        Expr::Group(inner) => constant(inner, now),
        Expr::Call(name, arguments) if name == "now" && arguments.is_empty() => {
            Ok(Constant::Time(i128::from(now)))
        }
        Expr::Binary(operator, left, right) => {
            let (left, right) = (constant(left, now)?, constant(right, now)?);
            computed(*operator, left, right).ok_or_else(|| incompatible("BinaryExpr"))
        }
        Expr::Reference(..) => Err(incompatible("VarRef")),
        Expr::Boolean(_) => Err(incompatible("BooleanLiteral")),
        Expr::Regex(_) => Err(incompatible("RegexLiteral")),
        Expr::Unsigned(_) => Err(incompatible("UnsignedLiteral")),
        _ => Err(incompatible("Call")),
    }
}

fn computed(operator: Operator, left: Constant, right: Constant) -> Option<Constant> {
    use Constant::{Duration, Integer, Number, Time};
    match (operator, left, right) {
        (Operator::Add, Time(a), Duration(b) | Integer(b)) => Some(Time(a + i128::from(b))),
        (Operator::Subtract, Time(a), Duration(b) | Integer(b)) => Some(Time(a - i128::from(b))),
        (Operator::Add, Duration(a) | Integer(a), Time(b)) => Some(Time(i128::from(a) + b)),
        (Operator::Subtract, Time(a), Time(b)) => Some(Duration(i64::try_from(a - b).ok()?)),
        (Operator::Add, Duration(a), Duration(b)) => Some(Duration(a.checked_add(b)?)),
        (Operator::Subtract, Duration(a), Duration(b)) => Some(Duration(a.checked_sub(b)?)),
        (Operator::Add, Integer(a), Duration(b)) => Some(Time(i128::from(a) + i128::from(b))),
        (Operator::Subtract, Integer(a), Duration(b)) => Some(Time(i128::from(a) - i128::from(b))),
        (Operator::Multiply, Duration(a), Integer(b)) => Some(Duration(a.checked_mul(b)?)),
        (Operator::Multiply, Duration(a), Number(b)) => Some(Duration(a.checked_mul(b as i64)?)),
        (Operator::Divide, Duration(a), Integer(b)) => {
            Some(Duration(a.checked_div(b).unwrap_or(0)))
        }
        (operator, Integer(a), Integer(b)) => {
            literal(&fold(&Expr::binary(operator, Expr::Integer(a), Expr::Integer(b))))
        }
        (operator, Number(a), Number(b)) => {
            literal(&fold(&Expr::binary(operator, Expr::Number(a), Expr::Number(b))))
        }
        (operator, Integer(a), Number(b)) => {
            literal(&fold(&Expr::binary(operator, Expr::Integer(a), Expr::Number(b))))
        }
        (operator, Number(a), Integer(b)) => {
            literal(&fold(&Expr::binary(operator, Expr::Number(a), Expr::Integer(b))))
        }
        _ => None,
    }
}

fn literal(expr: &Expr) -> Option<Constant> {
    match expr {
        Expr::Integer(it) => Some(Constant::Integer(*it)),
        Expr::Number(it) => Some(Constant::Number(*it)),
        _ => None,
    }
}

/// The same expression with the kind of each reference, as determined by `kind`.
pub(super) fn resolved(expr: &Expr, kind: &dyn Fn(&str, Cast) -> Cast) -> Expr {
    match expr {
        Expr::Reference(name, cast) => Expr::Reference(name.clone(), kind(name, *cast)),
        Expr::Call(name, arguments) => {
            Expr::Call(name.clone(), arguments.iter().map(|it| resolved(it, kind)).collect())
        }
        Expr::Binary(operator, left, right) => {
            Expr::binary(*operator, resolved(left, kind), resolved(right, kind))
        }
        Expr::Group(inner) => Expr::Group(Box::new(resolved(inner, kind))),
        other => other.clone(),
    }
}

/// The result of a resolved condition for a series.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Settled {
    /// True for all of its points.
    Always,
    /// True for none of its points.
    Never,
    /// True for the points for which this expression is true.
    If(Expr),
}

fn is_field(expr: &Expr) -> bool {
    matches!(expr, Expr::Reference(_, Cast::Field | Cast::Type(_)))
}

fn tag_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Reference(name, Cast::None | Cast::Tag) => Some(name),
        _ => None,
    }
}

/// The tag of a comparison, and the other operand.
fn of_tag<'e>(left: &'e Expr, right: &'e Expr) -> Option<(&'e str, &'e Expr)> {
    if matches!(left, Expr::Binary(..)) || matches!(right, Expr::Binary(..)) {
        return None;
    }
    if is_field(left) || is_field(right) {
        return None;
    }
    match tag_name(left) {
        Some(name) => Some((name, right)),
        None => tag_name(right).map(|name| (name, left)),
    }
}

/// Settles a resolved condition for a series with the given tags.
pub(super) fn settle<'t>(
    condition: &Expr,
    tag: &dyn Fn(&str) -> &'t str,
    budget: &Budget<'_>,
) -> Fallible<Settled> {
    Ok(match condition {
        Expr::Group(inner) => settle(inner, tag, budget)?,
        Expr::Boolean(true) => Settled::Always,
        Expr::Binary(operator @ (Operator::And | Operator::Or), left, right) => {
            let is_and = *operator == Operator::And;
            match (settle(left, tag, budget)?, settle(right, tag, budget)?) {
                (Settled::Never, _) | (_, Settled::Never) if is_and => Settled::Never,
                (Settled::Always, other) | (other, Settled::Always) if is_and => other,
                (Settled::Always, _) | (_, Settled::Always) => Settled::Always,
                (Settled::Never, other) | (other, Settled::Never) => other,
                (Settled::If(left), Settled::If(right)) => {
                    Settled::If(Expr::binary(*operator, left, right))
                }
            }
        }
        Expr::Binary(operator, left, right) if operator.is_comparison() => {
            let is_so = match of_tag(left, right) {
                None => return Ok(Settled::If(condition.clone())),
                Some((name, Expr::String(text))) => match operator {
                    Operator::Equal => tag(name) == text,
                    Operator::NotEqual => tag(name) != text,
                    _ => false,
                },
                Some((name, Expr::Regex(pattern))) => {
                    budget.finds(&pattern.0, tag(name))? == (*operator == Operator::Match)
                }
                Some((name, other)) => match tag_name(other) {
                    None => return Ok(Settled::If(condition.clone())),
                    Some(other) => {
                        let is_equal = !tag(name).is_empty() && tag(name) == tag(other);
                        match operator {
                            Operator::Equal => is_equal,
                            Operator::NotEqual => !is_equal,
                            _ => false,
                        }
                    }
                },
            };
            if is_so { Settled::Always } else { Settled::Never }
        }
        Expr::Binary(..) => Settled::Always,
        _ => Settled::Never,
    })
}

/// A filter that lets through all series for which a resolved condition can be true, and whether it lets no others
/// through.
pub(super) fn postings(condition: &Expr) -> (TagFilter, bool) {
    match condition {
        Expr::Group(inner) => postings(inner),
        Expr::Binary(Operator::And, left, right) => {
            let ((left, of_left), (right, of_right)) = (postings(left), postings(right));
            let filter = match (left, right) {
                (TagFilter::All, other) | (other, TagFilter::All) => other,
                (left, right) => TagFilter::And(Box::new(left), Box::new(right)),
            };
            (filter, of_left && of_right)
        }
        Expr::Binary(Operator::Or, left, right) => {
            let ((left, of_left), (right, of_right)) = (postings(left), postings(right));
            let filter = match (left, right) {
                (TagFilter::All, _) | (_, TagFilter::All) => TagFilter::All,
                (left, right) => TagFilter::Or(Box::new(left), Box::new(right)),
            };
            (filter, of_left && of_right)
        }
        Expr::Binary(operator, left, right) => match (operator, of_tag(left, right)) {
            (Operator::Equal, Some((name, Expr::String(text)))) => {
                (TagFilter::Equal(name.to_owned(), text.clone()), true)
            }
            (Operator::NotEqual, Some((name, Expr::String(text)))) => {
                (TagFilter::NotEqual(name.to_owned(), text.clone()), true)
            }
            (Operator::Match, Some((name, Expr::Regex(pattern)))) => {
                (TagFilter::Match(name.to_owned(), pattern.0.clone()), true)
            }
            (Operator::NotMatch, Some((name, Expr::Regex(pattern)))) => {
                (TagFilter::NotMatch(name.to_owned(), pattern.0.clone()), true)
            }
            _ => (TagFilter::All, false),
        },
        _ => (TagFilter::All, false),
    }
}

/// The series of a measurement for which a condition on names can hold: their filter, and the condition itself if it
/// has to be settled for each of them.
pub(super) fn of_measurement(
    reader: &Reader<'_>,
    name: &str,
    condition: Option<&Expr>,
) -> (TagFilter, Option<Expr>) {
    let Some(condition) = condition else { return (TagFilter::All, None) };
    let kind = |wanted: &str, cast: Cast| match cast {
        // A field may have the same name.
        Cast::Tag => cast,
        _ if reader.has_field(name, wanted) => Cast::Field,
        _ => cast,
    };
    let condition = resolved(condition, &kind);
    let (filter, is_all) = postings(&condition);
    (filter, (!is_all).then_some(condition))
}
