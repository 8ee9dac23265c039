//! Expressions.

use super::{Parsed, Parser, at, unexpected};
use crate::influxql::ast::{Cast, Expr};
use crate::influxql::time;
use crate::influxql::token::{Operator, Place, Token};
use crate::value::FieldType;

impl Parser<'_> {
    /// An expression.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        let first = self.operand()?;
        self.operation(first, 1)
    }

    /// Parses operators of at least a precedence, and their operands.
    fn operation(&mut self, mut left: Expr, least: u8) -> Parsed<Expr> {
        loop {
            let before = self.lexer;
            let operator = match self.next().0 {
                Token::Operator(it) if it.precedence() >= least => it,
                _ => {
                    self.lexer = before;
                    return Ok(left);
                }
            };
            self.part()?;
            let mut right =
                if operator.is_of_regex() { self.regex_operand()? } else { self.operand()? };
            while let Token::Operator(next) = self.ahead().0 {
                if next.precedence() <= operator.precedence() {
                    break;
                }
                right = self.operation(right, operator.precedence() + 1)?;
            }
            left = Expr::binary(operator, left, right);
        }
    }

    /// Parses the right side of `=~` and `!~`.
    fn regex_operand(&mut self) -> Parsed<Expr> {
        if let Some(pattern) = self.regex()? {
            return Ok(Expr::Regex(pattern));
        }
        let (token, place) = self.next();
        Err(unexpected(&token, "regex", place))
    }

    /// An operand.
    fn operand(&mut self) -> Parsed<Expr> {
        let before = self.lexer;
        let (token, place) = self.next();
        match token {
            Token::Mark("(") => {
                self.part()?;
                let inner = self.expression()?;
                self.expect(&Token::Mark(")"))?;
                Ok(Expr::Group(Box::new(inner)))
            }
            Token::Name(name) => {
                if self.raw().0 == Token::Mark("(") {
                    return self.call(&name);
                }
                self.lexer = before;
                self.reference()
            }
            Token::Keyword("DISTINCT") => self.distinct(),
            Token::Operator(Operator::Multiply) => self.wildcard(),
            Token::Operator(sign @ (Operator::Add | Operator::Subtract)) => {
                self.signed(sign == Operator::Subtract)
            }
            Token::Parameter(name) if name.len() > 1 => {
                Err(format!("missing parameter: {}", name.trim_start_matches('$')))
            }
            Token::Parameter(_) => Err("empty bound parameter".to_owned()),
            token => literal(token, place),
        }
    }

    /// `DISTINCT name` or `distinct(…)`, whose first word was taken.
    fn distinct(&mut self) -> Parsed<Expr> {
        match self.raw() {
            (Token::Mark("("), _) => self.call("distinct"),
            (Token::Space, _) => self.name().map(Expr::Distinct),
            (token, place) => Err(unexpected(&token, "(, identifier", place)),
        }
    }

    /// `*`, `*::field` or `*::tag`, whose star was taken.
    fn wildcard(&mut self) -> Parsed<Expr> {
        let before = self.lexer;
        if self.raw().0 != Token::Mark("::") {
            self.lexer = before;
            return Ok(Expr::Wildcard(Cast::None));
        }
        match self.raw() {
            (Token::Keyword("FIELD"), _) => Ok(Expr::Wildcard(Cast::Field)),
            (Token::Keyword("TAG"), _) => Ok(Expr::Wildcard(Cast::Tag)),
            (token, place) => Err(unexpected(&token, "field, tag", place)),
        }
    }

    /// Parses an operand behind a sign.
    fn signed(&mut self, is_negative: bool) -> Parsed<Expr> {
        let (token, place) = self.ahead();
        match token {
            Token::Number(_)
            | Token::Integer(_)
            | Token::Duration(_)
            | Token::Mark("(")
            | Token::Name(_) => {}
            token => {
                return Err(unexpected(&token, "identifier, number, duration, (", place));
            }
        }
        self.part()?;
        let inner = self.operand()?;
        if !is_negative {
            return Ok(match inner {
                Expr::Reference(..) | Expr::Call(..) | Expr::Group(_) => {
                    Expr::binary(Operator::Multiply, Expr::Integer(1), inner)
                }
                literal => literal,
            });
        }
        match inner {
            Expr::Number(it) => Ok(Expr::Number(-it)),
            Expr::Integer(it) => Ok(Expr::Integer(it.wrapping_neg())),
            Expr::Duration(it) => Ok(Expr::Duration(it.wrapping_neg())),
            Expr::Unsigned(it) if it == i64::MIN.unsigned_abs() => Ok(Expr::Integer(i64::MIN)),
            Expr::Unsigned(it) => Err(format!("constant -{it} underflows int64")),
            other => Ok(Expr::binary(Operator::Multiply, Expr::Integer(-1), other)),
        }
    }

    /// Parses a reference, whose name comes next.
    fn reference(&mut self) -> Parsed<Expr> {
        let name = self.segments()?.join(".");
        let before = self.lexer;
        if self.raw().0 != Token::Mark("::") {
            self.lexer = before;
            return Ok(Expr::Reference(name, Cast::None));
        }
        let (token, place) = self.raw();
        let cast = match &token {
            Token::Keyword("FIELD") => Cast::Field,
            Token::Keyword("TAG") => Cast::Tag,
            Token::Name(word) => match word.to_ascii_lowercase().as_str() {
                "float" => Cast::Type(FieldType::Float),
                "integer" => Cast::Type(FieldType::Integer),
                "unsigned" => Cast::Type(FieldType::Unsigned),
                "string" => Cast::Type(FieldType::String),
                "boolean" => Cast::Type(FieldType::Boolean),
                _ => {
                    let expected = "float, integer, unsigned, string, boolean, field, tag";
                    return Err(unexpected(&token, expected, place));
                }
            },
            _ => {
                let expected = "float, integer, string, boolean, field, tag";
                return Err(unexpected(&token, expected, place));
            }
        };
        Ok(Expr::Reference(name, cast))
    }

    /// A call, whose name and first parenthesis were taken.
    fn call(&mut self, name: &str) -> Parsed<Expr> {
        self.part()?;
        let mut arguments = Vec::new();
        let before = self.lexer;
        if self.raw().0 == Token::Mark(")") {
            return Ok(Expr::Call(name.to_ascii_lowercase(), arguments));
        }
        self.lexer = before;
        loop {
            let argument = match self.regex()? {
                Some(pattern) => Expr::Regex(pattern),
                None => self.expression()?,
            };
            arguments.push(argument);
            if !self.take_if(&Token::Mark(",")) {
                break;
            }
        }
        self.expect(&Token::Mark(")"))?;
        Ok(Expr::Call(name.to_ascii_lowercase(), arguments))
    }
}

/// A literal.
fn literal(token: Token, place: Place) -> Parsed<Expr> {
    match token {
        Token::String(text) => Ok(Expr::String(text)),
        Token::Number(text) => match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Expr::Number(value)),
            _ => Err(at("unable to parse number", place)),
        },
        Token::Integer(text) => match (text.parse(), text.parse()) {
            (Ok(value), _) => Ok(Expr::Integer(value)),
            (_, Ok(value)) => Ok(Expr::Unsigned(value)),
            _ => Err(at("unable to parse integer", place)),
        },
        Token::Duration(text) => time::duration(&text).map(Expr::Duration),
        Token::Keyword("TRUE") => Ok(Expr::Boolean(true)),
        Token::Keyword("FALSE") => Ok(Expr::Boolean(false)),
        token => Err(unexpected(&token, "identifier, string, number, bool", place)),
    }
}
