//! SELECT.

use super::{Parsed, Parser, at, unexpected};
use crate::influxql::ast::{Column, Expr, Fill, Select, Source};
use crate::influxql::token::Token;

impl Parser<'_> {
    /// Parses a SELECT, whose first word was taken.
    pub(super) fn select(&mut self, is_inner: bool) -> Parsed<Select> {
        let columns = self.columns()?;
        let into = if self.take_word("INTO") { Some(self.measurement()?) } else { None };
        self.expect_word("FROM")?;
        let mut sources = vec![self.source(is_inner)?];
        while self.take_if(&Token::Mark(",")) {
            self.part()?;
            sources.push(self.source(is_inner)?);
        }
        let condition = self.condition()?;
        let dimensions = self.dimensions()?;
        let fill = self.fill()?;
        let descending = self.order()?;
        let rows = self.rows()?;
        let series = self.series()?;
        self.zone()?;
        Ok(Select { columns, into, sources, condition, dimensions, fill, descending, rows, series })
    }

    /// The columns.
    fn columns(&mut self) -> Parsed<Vec<Column>> {
        let mut columns = Vec::new();
        loop {
            let expr = match self.regex()? {
                Some(pattern) => Expr::Regex(pattern),
                None => self.column()?,
            };
            let alias = if self.take_word("AS") { Some(self.name()?) } else { None };
            columns.push(Column { expr, alias });
            if !self.take_if(&Token::Mark(",")) {
                return Ok(columns);
            }
        }
    }

    /// An expression that makes a column.
    fn column(&mut self) -> Parsed<Expr> {
        let place = self.ahead().1;
        let expr = self.expression()?;
        let mut wrong = None;
        expr.walk(&mut |it| {
            if let Expr::Binary(operator, ..) = it
                && operator.is_comparison()
                && wrong.is_none()
            {
                wrong = Some(operator.text());
            }
        });
        match wrong {
            None => Ok(expr),
            Some(text) => {
                let message = at(&format!("invalid operator {text} in SELECT clause"), place);
                Err(format!("{message}; operator is intended for WHERE clause"))
            }
        }
    }

    /// A measurement, or a SELECT in parentheses.
    fn source(&mut self, is_inner: bool) -> Parsed<Source> {
        let place = self.ahead().1;
        if !self.take_if(&Token::Mark("(")) {
            return self.measurement().map(Source::Measurement);
        }
        if is_inner {
            return Err(at("a sub-query may have no sub-query", place));
        }
        self.part()?;
        self.expect_word("SELECT")?;
        let inner = self.select(true)?;
        self.expect(&Token::Mark(")"))?;
        Ok(Source::Select(Box::new(inner)))
    }

    /// `GROUP BY …`
    pub(super) fn dimensions(&mut self) -> Parsed<Vec<Expr>> {
        let mut dimensions = Vec::new();
        if !self.take_word("GROUP") {
            return Ok(dimensions);
        }
        self.expect_word("BY")?;
        loop {
            dimensions.push(match self.regex()? {
                Some(pattern) => Expr::Regex(pattern),
                None => self.expression()?,
            });
            if !self.take_if(&Token::Mark(",")) {
                return Ok(dimensions);
            }
            self.part()?;
        }
    }

    /// True if a call of this function comes next.
    fn is_call_of(&self, wanted: &str) -> bool {
        matches!(self.ahead().0, Token::Name(name) if name.eq_ignore_ascii_case(wanted))
    }

    /// `fill(…)`
    fn fill(&mut self) -> Parsed<Fill> {
        if !self.is_call_of("fill") {
            return Ok(Fill::Null);
        }
        let Expr::Call(_, arguments) = self.expression()? else {
            return Err("fill must be a function call".to_owned());
        };
        let [argument] = arguments.as_slice() else {
            let known = "0, null, none, previous, linear";
            return Err(format!("fill requires an argument, e.g.: {known}"));
        };
        match argument {
            Expr::Integer(it) => Ok(Fill::Integer(*it)),
            Expr::Number(it) => Ok(Fill::Number(*it)),
            other => match other.to_string().as_str() {
                "null" => Ok(Fill::Null),
                "none" => Ok(Fill::None),
                "previous" => Ok(Fill::Previous),
                "linear" => Ok(Fill::Linear),
                _ => Err("expected number argument in fill()".to_owned()),
            },
        }
    }

    /// Parses `tz('…')`; only UTC is supported.
    fn zone(&mut self) -> Parsed<()> {
        if !self.is_call_of("tz") {
            return Ok(());
        }
        let Expr::Call(_, arguments) = self.expression()? else {
            return Err("tz must be a function call".to_owned());
        };
        match arguments.as_slice() {
            [Expr::String(name)] if matches!(name.as_str(), "" | "UTC" | "Etc/UTC") => Ok(()),
            [Expr::String(name)] => {
                Err(format!("the time zone {name} is not supported: only UTC is"))
            }
            [_] => Err("expected string argument in tz()".to_owned()),
            _ => Err("tz requires exactly one argument".to_owned()),
        }
    }

    /// `ORDER BY time`, with a direction or without: true is descending.
    pub(super) fn order(&mut self) -> Parsed<Option<bool>> {
        const ONLY_TIME: &str = "only ORDER BY time supported at this time";
        if !self.take_word("ORDER") {
            return Ok(None);
        }
        self.expect_word("BY")?;
        let descending = match self.next() {
            (Token::Keyword("ASC"), _) => false,
            (Token::Keyword("DESC"), _) => true,
            (Token::Name(name), _) => {
                let descending = self.take_word("DESC");
                if !descending {
                    self.take_word("ASC");
                }
                if name != "time" {
                    return Err(ONLY_TIME.to_owned());
                }
                descending
            }
            (token, place) => return Err(unexpected(&token, "identifier, ASC, DESC", place)),
        };
        if self.take_if(&Token::Mark(",")) {
            self.name()?;
            return Err(ONLY_TIME.to_owned());
        }
        Ok(Some(descending))
    }
}
