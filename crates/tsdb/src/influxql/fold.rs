//! Constants of an expression, computed before it is run.
//!
//! As in InfluxDB, integers divide to numbers here, and operands beside `true` or `false` in AND and OR are
//! removed.

use super::ast::Expr;
use super::evaluate::binary;
use super::token::Operator;
use crate::value::Value;

/// An expression without operations on two literals.
pub(super) fn fold(expr: &Expr) -> Expr {
    match expr {
        Expr::Binary(operator, left, right) => folded(*operator, fold(left), fold(right)),
        Expr::Group(inner) => match fold(inner) {
            inner @ Expr::Binary(..) => Expr::Group(Box::new(inner)),
            inner => inner,
        },
        Expr::Call(name, arguments) => {
            Expr::Call(name.clone(), arguments.iter().map(fold).collect())
        }
        other => other.clone(),
    }
}

fn folded(operator: Operator, left: Expr, right: Expr) -> Expr {
    match (operator, &left, &right) {
        (Operator::And, Expr::Boolean(false), _) | (Operator::And, _, Expr::Boolean(false)) => {
            Expr::Boolean(false)
        }
        (Operator::Or, Expr::Boolean(true), _) | (Operator::Or, _, Expr::Boolean(true)) => {
            Expr::Boolean(true)
        }
        (Operator::And, Expr::Boolean(true), _) | (Operator::Or, Expr::Boolean(false), _) => right,
        (Operator::And, _, Expr::Boolean(true)) | (Operator::Or, _, Expr::Boolean(false)) => left,
        _ => {
            computed(operator, &left, &right).unwrap_or_else(|| Expr::binary(operator, left, right))
        }
    }
}

/// The result for two numbers, or for two texts of which it asks whether they are equal.
fn computed(operator: Operator, left: &Expr, right: &Expr) -> Option<Expr> {
    let value = |of: &Expr| match of {
        Expr::Integer(it) => Some(Value::Integer(*it)),
        Expr::Number(it) => Some(Value::Float(*it)),
        Expr::String(it) if matches!(operator, Operator::Equal | Operator::NotEqual) => {
            Some(Value::String(it.as_str().into()))
        }
        _ => None,
    };
    let (left, right) = (value(left)?, value(right)?);
    if matches!(left, Value::String(_)) != matches!(right, Value::String(_)) {
        return None;
    }
    match binary(operator, Some(left), Some(right), true)? {
        Value::Integer(it) => Some(Expr::Integer(it)),
        Value::Float(it) => Some(Expr::Number(it)),
        Value::Boolean(it) => Some(Expr::Boolean(it)),
        _ => None,
    }
}
