//! Constants of an expression, computed before it is run.
//!
//! As in InfluxDB, integers divide to numbers here, and operands beside `true` or `false` in AND and OR are
//! removed.

use super::ast::Expr;
use super::token::Operator;

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
        (_, Expr::Integer(a), Expr::Integer(b)) => {
            of_integers(operator, *a, *b).unwrap_or_else(|| Expr::binary(operator, left, right))
        }
        (_, Expr::Number(a), Expr::Number(b)) => of(operator, *a, *b, left, right),
        (_, Expr::Number(a), Expr::Integer(b)) => of(operator, *a, *b as f64, left, right),
        (_, Expr::Integer(a), Expr::Number(b)) => of(operator, *a as f64, *b, left, right),
        (Operator::Equal, Expr::String(a), Expr::String(b)) => Expr::Boolean(a == b),
        (Operator::NotEqual, Expr::String(a), Expr::String(b)) => Expr::Boolean(a != b),
        _ => Expr::binary(operator, left, right),
    }
}

fn of(operator: Operator, a: f64, b: f64, left: Expr, right: Expr) -> Expr {
    of_numbers(operator, a, b).unwrap_or_else(|| Expr::binary(operator, left, right))
}

fn compared<T: PartialOrd>(operator: Operator, a: T, b: T) -> Option<Expr> {
    Some(Expr::Boolean(match operator {
        Operator::Equal => a == b,
        Operator::NotEqual => a != b,
        Operator::Less => a < b,
        Operator::LessEqual => a <= b,
        Operator::Greater => a > b,
        Operator::GreaterEqual => a >= b,
        _ => return None,
    }))
}

fn of_numbers(operator: Operator, a: f64, b: f64) -> Option<Expr> {
    Some(Expr::Number(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide if b == 0.0 => 0.0,
        Operator::Divide => a / b,
        Operator::Modulo => a % b,
        _ => return compared(operator, a, b),
    }))
}

fn of_integers(operator: Operator, a: i64, b: i64) -> Option<Expr> {
    Some(Expr::Integer(match operator {
        Operator::Add => a.wrapping_add(b),
        Operator::Subtract => a.wrapping_sub(b),
        Operator::Multiply => a.wrapping_mul(b),
        Operator::Divide => return of_numbers(operator, a as f64, b as f64),
        Operator::Modulo => a.checked_rem(b).unwrap_or(0),
        Operator::BitAnd => a & b,
        Operator::BitOr => a | b,
        Operator::BitXor => a ^ b,
        _ => return compared(operator, a, b),
    }))
}
