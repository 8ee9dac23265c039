//! The value of an expression for a row.
//!
//! An expression becomes a [`Formula`], in which references are slots of the row. Missing values and values of
//! different types are handled as in InfluxDB: a comparison with a missing value is false, arithmetic with a
//! missing value has no value, a division by zero is zero. Integers divide to floats in columns, and to integers in
//! conditions. A missing value beside a boolean counts as `false`; but a missing field in a condition on series is
//! not even unequal to the boolean.

use super::ast::Expr;
use super::budget::{Budget, Fallible};
use super::token::Operator;
use crate::value::{FieldType, Value};
use regex::Regex;
use std::sync::Arc;

/// An expression with its references resolved.
#[derive(Debug, Clone)]
pub(super) enum Formula {
    /// A constant; none if it has no value.
    Literal(Option<Value>),
    /// The value in a slot of the row.
    Slot(usize),
    /// Two operands.
    Binary(Operator, Box<Formula>, Box<Formula>),
    /// Whether a regular expression is found in the operand (true), or is not found.
    Match(Box<Formula>, Regex, bool),
    /// A function of numbers.
    Math(Math, Vec<Formula>),
}

/// The place in which a formula is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a column.
    Column,
    /// In a condition on the points of series.
    Series,
    /// In a condition on the rows of a sub-query.
    Rows,
}

/// A function of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Math {
    /// A function of one number; an integer stays an integer.
    Whole(fn(f64) -> f64),
    /// The absolute value.
    Abs,
    /// A function of one number.
    One(fn(f64) -> f64),
    /// A function of two numbers.
    Two(fn(f64, f64) -> f64),
}

/// The function with this name.
pub(super) fn math(name: &str) -> Option<Math> {
    Some(match name {
        "abs" => Math::Abs,
        "floor" => Math::Whole(f64::floor),
        "ceil" => Math::Whole(f64::ceil),
        "round" => Math::Whole(f64::round),
        "sin" => Math::One(f64::sin),
        "cos" => Math::One(f64::cos),
        "tan" => Math::One(f64::tan),
        "asin" => Math::One(f64::asin),
        "acos" => Math::One(f64::acos),
        "atan" => Math::One(f64::atan),
        "exp" => Math::One(f64::exp),
        "ln" => Math::One(f64::ln),
        "log2" => Math::One(f64::log2),
        "log10" => Math::One(f64::log10),
        "sqrt" => Math::One(f64::sqrt),
        "atan2" => Math::Two(f64::atan2),
        "pow" => Math::Two(f64::powf),
        "log" => Math::Two(|value, base| value.ln() / base.ln()),
        _ => return None,
    })
}

impl Formula {
    /// The formula of an expression. `resolve` handles references, and calls of other functions than those of
    /// numbers.
    pub(super) fn new(expr: &Expr, resolve: &mut dyn FnMut(&Expr) -> Self) -> Self {
        match expr {
            Expr::Reference(..) | Expr::Distinct(_) => resolve(expr),
            Expr::Call(name, arguments) => match math(name) {
                Some(function) => {
                    let arguments = arguments.iter().map(|it| Self::new(it, resolve)).collect();
                    Self::Math(function, arguments)
                }
                None => resolve(expr),
            },
            Expr::Group(inner) => Self::new(inner, resolve),
            Expr::Binary(operator, left, right) => {
                let left = Box::new(Self::new(left, resolve));
                match (&**right, operator) {
                    (Expr::Regex(pattern), Operator::Match) => {
                        Self::Match(left, pattern.0.clone(), true)
                    }
                    (Expr::Regex(pattern), Operator::NotMatch) => {
                        Self::Match(left, pattern.0.clone(), false)
                    }
                    _ => Self::Binary(*operator, left, Box::new(Self::new(right, resolve))),
                }
            }
            Expr::String(text) => Self::Literal(Some(Value::String(text.as_str().into()))),
            Expr::Number(it) => Self::Literal(Some(Value::Float(*it))),
            Expr::Integer(it) => Self::Literal(Some(Value::Integer(*it))),
            Expr::Unsigned(it) => Self::Literal(Some(Value::Unsigned(*it))),
            Expr::Boolean(it) => Self::Literal(Some(Value::Boolean(*it))),
            Expr::Duration(_) | Expr::Wildcard(_) | Expr::Regex(_) => Self::Literal(None),
        }
    }

    /// The value for a row.
    ///
    /// # Errors
    /// An error if the query has to end: an expression may be looked for in long texts.
    pub(super) fn value(
        &self,
        row: &[Option<Value>],
        place: Place,
        budget: &Budget<'_>,
    ) -> Fallible<Option<Value>> {
        Ok(match self {
            Self::Literal(value) => value.clone(),
            Self::Slot(at) => row.get(*at).cloned().flatten(),
            Self::Binary(operator, left, right) => {
                let (a, b) = (left.value(row, place, budget)?, right.value(row, place, budget)?);
                let is_known = |it: &Self| place != Place::Series || !it.is_reference();
                let (a, b) = match (a, b) {
                    (None, b @ Some(Value::Boolean(_))) if is_known(left) => {
                        (Some(Value::Boolean(false)), b)
                    }
                    (a @ Some(Value::Boolean(_)), None) if is_known(right) => {
                        (a, Some(Value::Boolean(false)))
                    }
                    other => other,
                };
                binary(*operator, a, b, place == Place::Column)
            }
            Self::Match(inner, regex, is_wanted) => match inner.value(row, place, budget)? {
                Some(Value::String(text)) => {
                    Some(Value::Boolean(budget.finds(regex, &text)? == *is_wanted))
                }
                _ => None,
            },
            Self::Math(function, arguments) => {
                let mut values = arguments.iter().map(|it| it.value(row, place, budget));
                let first = values.next().transpose()?.flatten();
                let second = values.next().transpose()?.flatten();
                first.and_then(|first| applied(*function, first, second))
            }
        })
    }

    /// True for a field or a tag.
    fn is_reference(&self) -> bool {
        matches!(self, Self::Slot(_) | Self::Literal(None))
    }

    /// True if the formula is true for a row.
    ///
    /// # Errors
    /// As [`Formula::value`].
    pub(super) fn is_true(
        &self,
        row: &[Option<Value>],
        place: Place,
        budget: &Budget<'_>,
    ) -> Fallible<bool> {
        Ok(self.value(row, place, budget)? == Some(Value::Boolean(true)))
    }
}

/// A number as a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(it) => Some(*it),
        Value::Integer(it) => Some(*it as f64),
        Value::Unsigned(it) => Some(*it as f64),
        Value::Boolean(_) | Value::String(_) => None,
    }
}

fn applied(function: Math, first: Value, second: Option<Value>) -> Option<Value> {
    match (function, first) {
        (Math::Abs, Value::Float(it)) => Some(Value::Float(it.abs())),
        (Math::Whole(function), Value::Float(it)) => Some(Value::Float(function(it))),
        (Math::Abs | Math::Whole(_), it @ (Value::Integer(_) | Value::Unsigned(_))) => Some(it),
        (Math::One(function), it) => as_float(&it).map(|it| Value::Float(function(it))),
        (Math::Two(function), it) => {
            let (first, second) = (as_float(&it)?, as_float(&second?)?);
            Some(Value::Float(function(first, second)))
        }
        _ => None,
    }
}

/// A value as one of a type of numbers; values that are not numbers stay as they are.
pub(super) fn cast(value: Value, to: FieldType) -> Value {
    match (to, &value) {
        (FieldType::Float, _) => as_float(&value).map_or(value, Value::Float),
        (FieldType::Integer, Value::Float(it)) => Value::Integer(*it as i64),
        (FieldType::Integer, Value::Unsigned(it)) => Value::Integer(it.cast_signed()),
        (FieldType::Unsigned, Value::Float(it)) => Value::Unsigned(*it as u64),
        (FieldType::Unsigned, Value::Integer(it)) => Value::Unsigned(it.cast_unsigned()),
        _ => value,
    }
}

/// The result of an operator for two values; none if it has none.
pub(super) fn binary(
    operator: Operator,
    left: Option<Value>,
    right: Option<Value>,
    is_column: bool,
) -> Option<Value> {
    let found = match (&left, &right) {
        (Some(Value::Boolean(left)), Some(Value::Boolean(right))) => {
            of_booleans(operator, *left, *right).map(Value::Boolean)
        }
        (Some(Value::String(left)), Some(Value::String(right))) => {
            of_strings(operator, left, right).map(Value::Boolean)
        }
        (Some(Value::Integer(left)), Some(Value::Integer(right))) => {
            of_integers(operator, *left, *right, is_column)
        }
        (Some(Value::Unsigned(left)), Some(Value::Unsigned(right))) => {
            of_unsigned(operator, *left, *right)
        }
        (Some(Value::Integer(left)), Some(Value::Unsigned(right))) => match operator {
            Operator::Less | Operator::LessEqual if *left < 0 => Some(Value::Boolean(true)),
            Operator::Greater | Operator::GreaterEqual if *left < 0 => Some(Value::Boolean(false)),
            _ => of_unsigned(operator, left.cast_unsigned(), *right),
        },
        (Some(Value::Unsigned(left)), Some(Value::Integer(right))) => match operator {
            Operator::Less | Operator::LessEqual if *right < 0 => Some(Value::Boolean(false)),
            Operator::Greater | Operator::GreaterEqual if *right < 0 => Some(Value::Boolean(true)),
            _ => of_unsigned(operator, *left, right.cast_unsigned()),
        },
        (Some(left), Some(right)) => match (as_float(left), as_float(right)) {
            (Some(left), Some(right)) => of_floats(operator, left, right),
            _ => None,
        },
        _ => None,
    };
    found.or(match operator {
        Operator::Equal | Operator::NotEqual | Operator::Less => Some(Value::Boolean(false)),
        Operator::LessEqual | Operator::Greater => Some(Value::Boolean(false)),
        Operator::GreaterEqual => Some(Value::Boolean(false)),
        _ => None,
    })
}

fn of_booleans(operator: Operator, left: bool, right: bool) -> Option<bool> {
    match operator {
        Operator::And | Operator::BitAnd => Some(left && right),
        Operator::Or | Operator::BitOr => Some(left || right),
        Operator::BitXor | Operator::NotEqual => Some(left != right),
        Operator::Equal => Some(left == right),
        _ => None,
    }
}

fn of_strings(operator: Operator, left: &Arc<str>, right: &Arc<str>) -> Option<bool> {
    match operator {
        Operator::Equal => Some(left == right),
        Operator::NotEqual => Some(left != right),
        _ => None,
    }
}

fn compared<T: PartialOrd>(operator: Operator, left: T, right: T) -> Option<Value> {
    let is_so = match operator {
        Operator::Equal => left == right,
        Operator::NotEqual => left != right,
        Operator::Less => left < right,
        Operator::LessEqual => left <= right,
        Operator::Greater => left > right,
        Operator::GreaterEqual => left >= right,
        _ => return None,
    };
    Some(Value::Boolean(is_so))
}

fn of_floats(operator: Operator, left: f64, right: f64) -> Option<Value> {
    let value = match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide if right == 0.0 => 0.0,
        Operator::Divide => left / right,
        Operator::Modulo => left % right,
        _ => return compared(operator, left, right),
    };
    Some(Value::Float(value))
}

fn of_integers(operator: Operator, left: i64, right: i64, is_column: bool) -> Option<Value> {
    let value = match operator {
        Operator::Add => left.wrapping_add(right),
        Operator::Subtract => left.wrapping_sub(right),
        Operator::Multiply => left.wrapping_mul(right),
        Operator::Divide if is_column => {
            return of_floats(operator, left as f64, right as f64);
        }
        Operator::Divide | Operator::Modulo if right == 0 => 0,
        Operator::Divide => left.wrapping_div(right),
        Operator::Modulo => left.wrapping_rem(right),
        Operator::BitAnd => left & right,
        Operator::BitOr => left | right,
        Operator::BitXor => left ^ right,
        _ => return compared(operator, left, right),
    };
    Some(Value::Integer(value))
}

fn of_unsigned(operator: Operator, left: u64, right: u64) -> Option<Value> {
    let value = match operator {
        Operator::Add => left.wrapping_add(right),
        Operator::Subtract => left.wrapping_sub(right),
        Operator::Multiply => left.wrapping_mul(right),
        Operator::Divide => left.checked_div(right).unwrap_or(0),
        Operator::Modulo => left.checked_rem(right).unwrap_or(0),
        Operator::BitAnd => left & right,
        Operator::BitOr => left | right,
        Operator::BitXor => left ^ right,
        _ => return compared(operator, left, right),
    };
    Some(Value::Unsigned(value))
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;
    use std::time::{Duration, Instant};

    fn of(text: &str, place: Place) -> Option<Value> {
        of_row(text, &[None], place, false).unwrap()
    }

    fn of_row(
        text: &str,
        row: &[Option<Value>],
        place: Place,
        is_cancelled: bool,
    ) -> Fallible<Option<Value>> {
        let (text, soon) = (format!("SELECT x FROM m WHERE {text}"), Duration::from_secs(100));
        let statements = super::super::parse::query(&text, Instant::now() + soon);
        let Some(super::super::ast::Statement::Select(select)) = statements.unwrap().pop() else {
            unreachable!("a SELECT");
        };
        let formula = Formula::new(&select.condition.unwrap(), &mut |_| Formula::Slot(0));
        let limits = Limits {
            rows_max: 0,
            buckets_max: 0,
            bytes_max: 0,
            deadline: Instant::now() + soon,
            cancel: Some(Arc::new(is_cancelled.into())),
            threads_max: 1,
        };
        formula.value(row, place, &Budget::new(&limits))
    }

    /// However few rows there are.
    #[test]
    fn a_query_that_nobody_wants_ends_before_a_long_text() {
        let of = |len: usize, is_cancelled| {
            let row = [Some(Value::String("x".repeat(len).into()))];
            of_row("1 = 1 AND (x =~ /y/ OR x =~ /x$/)", &row, Place::Series, is_cancelled)
        };
        let is_true = Ok(Some(Value::Boolean(true)));
        assert_eq!((of(10, true), of(10_000, false)), (is_true.clone(), is_true));
        assert_eq!(of(10_000, true), Err("query interrupted".to_owned()));
    }

    #[test]
    fn nothing_is_equal_to_nothing() {
        assert_eq!(of("x = 1", Place::Rows), Some(Value::Boolean(false)));
        assert_eq!(of("x != 1", Place::Rows), Some(Value::Boolean(false)));
        assert_eq!(of("x != true", Place::Rows), Some(Value::Boolean(true)));
        assert_eq!(of("x != true", Place::Series), Some(Value::Boolean(false)));
        assert_eq!(of("(x + 1) != true", Place::Series), Some(Value::Boolean(true)));
        assert_eq!(of("x + 1", Place::Rows), None);
        assert_eq!(of("x =~ /a/ OR 1 = 1", Place::Rows), Some(Value::Boolean(true)));
    }

    #[test]
    fn integers_divide_to_floats_in_columns_alone() {
        assert_eq!(of("7 / 2", Place::Column), Some(Value::Float(3.5)));
        assert_eq!(of("7 / 2", Place::Rows), Some(Value::Integer(3)));
        assert_eq!(of("7 / 0", Place::Column), Some(Value::Float(0.0)));
        assert_eq!(of("7 % 0", Place::Column), Some(Value::Integer(0)));
        assert_eq!(of("-9223372036854775808 % -1", Place::Column), Some(Value::Integer(0)));
    }

    #[test]
    fn signs_of_mixed_integers_count() {
        assert_eq!(of("-1 < 18446744073709551615", Place::Rows), Some(Value::Boolean(true)));
        assert_eq!(of("18446744073709551615 > -1", Place::Rows), Some(Value::Boolean(true)));
    }

    #[test]
    fn precedence_is_that_of_the_grammar() {
        assert_eq!(
            of("1 + 2 * 3 - 4 = 3 AND 10 - 2 - 3 = 5", Place::Rows),
            Some(Value::Boolean(true))
        );
    }
}
