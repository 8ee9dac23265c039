//! Checks which columns may stand together.
//!
//! InfluxDB refuses a SELECT that mixes functions and fields in ways that have no meaning; this module does the
//! same, with InfluxDB's words.

use super::ast::{Cast, Column, Expr, Fill};
use super::budget::Fallible;
use super::evaluate::math;
use super::text::duration;

/// The facts about a SELECT that are known before its columns are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// True if there is a `GROUP BY time`.
    pub(super) has_interval: bool,
    /// True if the `GROUP BY time` comes from the SELECT around.
    pub(super) is_inherited: bool,
    /// The LIMIT.
    pub(super) limit: usize,
    /// The fill.
    pub(super) fill: Fill,
}

/// The facts that were seen in the columns.
struct Seen {
    frame: Frame,
    calls: usize,
    has_aggregate: bool,
    has_distinct: bool,
    has_reference: bool,
    ranking: Option<String>,
    may_expand: bool,
}

/// Checks the columns of a SELECT, whose constants are folded.
pub(super) fn check(columns: &[Column], frame: Frame) -> Fallible<()> {
    let mut seen = Seen {
        frame,
        calls: 0,
        has_aggregate: false,
        has_distinct: false,
        has_reference: false,
        ranking: None,
        may_expand: true,
    };
    for column in columns {
        seen.may_expand = true;
        seen.expr(&column.expr)?;
    }
    seen.together(columns.len())
}

impl Seen {
    fn together(&self, columns: usize) -> Fallible<()> {
        if columns == 0 {
            return Err("at least 1 non-time field must be queried".to_owned());
        }
        match &self.ranking {
            Some(name) if self.calls > 1 => {
                return Err(format!(
                    "selector function {name}() cannot be combined with other functions"
                ));
            }
            _ => {}
        }
        if self.calls == 0 {
            match self.frame.fill {
                Fill::None => return Err("fill(none) must be used with a function".to_owned()),
                Fill::Linear => return Err("fill(linear) must be used with a function".to_owned()),
                _ => {}
            }
            if self.frame.has_interval && !self.frame.is_inherited {
                return Err("GROUP BY requires at least one aggregate function".to_owned());
            }
        }
        if self.has_distinct && (self.calls != 1 || self.has_reference) {
            return Err(
                "aggregate function distinct() cannot be combined with other functions or fields"
                    .to_owned(),
            );
        }
        if self.has_reference && self.has_aggregate {
            return Err("mixing aggregate and non-aggregate queries is not supported".to_owned());
        }
        if self.has_reference && self.calls > 1 {
            return Err("mixing multiple selector functions with tags or fields is not supported"
                .to_owned());
        }
        Ok(())
    }

    fn expr(&mut self, expr: &Expr) -> Fallible<()> {
        match expr {
            Expr::Reference(..) => self.has_reference = true,
            Expr::Wildcard(_) | Expr::Regex(_) if self.may_expand => self.has_reference = true,
            Expr::Wildcard(_) => {
                return Err("unable to use wildcard in a binary expression".to_owned());
            }
            Expr::Regex(_) => return Err("unable to use regex in a binary expression".to_owned()),
            Expr::Call(name, arguments) => return self.call(name, arguments),
            Expr::Distinct(_) => {
                self.calls += 1;
                self.has_distinct = true;
                self.has_aggregate = true;
            }
            Expr::Binary(_, left, right) => {
                self.may_expand = false;
                match (left.is_literal(), right.is_literal()) {
                    (true, true) => {
                        return Err("cannot perform a binary expression on two literals".to_owned());
                    }
                    (true, false) => self.expr(right)?,
                    (false, true) => self.expr(left)?,
                    (false, false) => {
                        self.expr(left)?;
                        self.expr(right)?;
                    }
                }
            }
            Expr::Group(inner) => self.expr(inner)?,
            _ => return Err("field must contain at least one variable".to_owned()),
        }
        Ok(())
    }

    fn call(&mut self, name: &str, arguments: &[Expr]) -> Fallible<()> {
        if math(name).is_some() {
            let wanted = if matches!(name, "atan2" | "pow" | "log") { 2 } else { 1 };
            if arguments.len() != wanted {
                return Err(count_of_arguments(name, wanted, arguments.len()));
            }
            let mut computed = arguments.iter().filter(|it| !it.is_literal());
            return computed.try_for_each(|it| self.expr(it));
        }
        self.calls += 1;
        match name {
            "top" | "bottom" => self.rank(name, arguments),
            "distinct" => {
                self.has_distinct = true;
                self.distinct(arguments)
            }
            "percentile" => {
                let [of, rank] = arguments else {
                    return Err(count_of_arguments(name, 2, arguments.len()));
                };
                if !matches!(rank, Expr::Integer(_) | Expr::Number(_)) {
                    return Err("expected float argument in percentile()".to_owned());
                }
                self.symbol(name, of)
            }
            "max" | "min" | "first" | "last" => self.simple(name, arguments),
            "count" | "sum" | "mean" | "median" | "mode" | "stddev" | "spread" => {
                self.has_aggregate = true;
                match arguments {
                    [Expr::Call(inner, of)] if name == "count" && inner == "distinct" => {
                        self.distinct(of)
                    }
                    [Expr::Distinct(_)] if name == "count" => Ok(()),
                    _ => self.simple(name, arguments),
                }
            }
            "integral" => {
                self.unit(name, arguments)?;
                arguments.first().map_or(Ok(()), |it| self.symbol(name, it))
            }
            "derivative" | "non_negative_derivative" | "elapsed" => {
                self.unit(name, arguments)?;
                self.transformation(name, arguments)
            }
            "difference" | "non_negative_difference" | "cumulative_sum" => {
                if arguments.len() != 1 {
                    return Err(count_of_arguments(name, 1, arguments.len()));
                }
                self.transformation(name, arguments)
            }
            "moving_average" => {
                let [_, width] = arguments else {
                    return Err(count_of_arguments(name, 2, arguments.len()));
                };
                match width {
                    Expr::Integer(it) if *it > 1 => self.transformation(name, arguments),
                    Expr::Integer(it) => {
                        Err(format!("moving_average window must be greater than 1, got {it}"))
                    }
                    other => Err(format!(
                        "second argument for moving_average must be an integer, got {}",
                        go_type(other)
                    )),
                }
            }
            "sample" | "holt_winters" | "holt_winters_with_fit" => {
                Err(format!("{name}() is not supported"))
            }
            _ => Err(format!("undefined function {name}()")),
        }
    }

    /// A function of one field.
    fn simple(&mut self, name: &str, arguments: &[Expr]) -> Fallible<()> {
        match arguments {
            [of] => self.symbol(name, of),
            _ => Err(count_of_arguments(name, 1, arguments.len())),
        }
    }

    /// Checks an argument that must be a field.
    fn symbol(&mut self, name: &str, of: &Expr) -> Fallible<()> {
        match of {
            Expr::Reference(..) => Ok(()),
            Expr::Wildcard(_) | Expr::Regex(_) if self.may_expand => {
                self.has_aggregate = true;
                Ok(())
            }
            Expr::Wildcard(_) => Err(format!("unsupported expression with wildcard: {name}()")),
            Expr::Regex(_) => Err(format!("unsupported expression with regex field: {name}()")),
            _ => Err(format!("expected field argument in {name}()")),
        }
    }

    /// A field or a function, and maybe a duration.
    fn unit(&mut self, name: &str, arguments: &[Expr]) -> Fallible<()> {
        self.has_aggregate = true;
        match arguments {
            [_] => Ok(()),
            [_, Expr::Duration(it)] if *it > 0 => Ok(()),
            [_, Expr::Duration(it)] => {
                Err(format!("duration argument must be positive, got {}", duration(*it)))
            }
            [_, _] if name == "integral" => Err("second argument must be a duration".to_owned()),
            [_, other] => {
                Err(format!("second argument to {name} must be a duration, got {}", go_type(other)))
            }
            _ => Err(format!(
                "invalid number of arguments for {name}, expected at least 1 but no more than 2, got {}",
                arguments.len()
            )),
        }
    }

    /// A function of the values of a field, or of an aggregate in buckets of time.
    fn transformation(&mut self, name: &str, arguments: &[Expr]) -> Fallible<()> {
        self.has_aggregate = true;
        match arguments.first() {
            Some(Expr::Call(..) | Expr::Distinct(_)) if !self.frame.has_interval => {
                Err(format!("{name} aggregate requires a GROUP BY interval"))
            }
            Some(Expr::Call(inner, of)) if inner == "distinct" => self.distinct(of),
            Some(Expr::Distinct(_)) => Ok(()),
            Some(inner @ Expr::Call(..)) => self.expr(inner),
            Some(_) if self.frame.has_interval && !self.frame.is_inherited => {
                Err(format!("aggregate function required inside the call to {name}"))
            }
            Some(of) => self.symbol(name, of),
            None => Err(format!("expected field argument in {name}()")),
        }
    }

    fn distinct(&mut self, arguments: &[Expr]) -> Fallible<()> {
        self.has_aggregate = true;
        match arguments {
            [Expr::Reference(..)] => Ok(()),
            [_] => Err("expected field argument in distinct()".to_owned()),
            [] => Err("distinct function requires at least one argument".to_owned()),
            _ => Err("distinct function can only have one argument".to_owned()),
        }
    }

    /// `top` and `bottom`.
    fn rank(&mut self, name: &str, arguments: &[Expr]) -> Fallible<()> {
        if let Some(before) = &self.ranking {
            return Err(format!(
                "selector function {before}() cannot be combined with other functions"
            ));
        }
        let [of, tags @ .., count] = arguments else {
            return Err(format!(
                "invalid number of arguments for {name}, expected at least 2, got {}",
                arguments.len()
            ));
        };
        let Expr::Integer(limit) = count else {
            return Err(format!("expected integer as last argument in {name}(), found {count}"));
        };
        if *limit <= 0 {
            return Err(format!("limit ({limit}) in {name} function must be at least 1"));
        }
        let most = self.frame.limit;
        if most > 0 && usize::try_from(*limit).is_ok_and(|it| it > most) {
            return Err(format!(
                "limit ({limit}) in {name} function can not be larger than the LIMIT ({most}) in the select statement"
            ));
        }
        if !matches!(of, Expr::Reference(..)) {
            return Err(format!("expected first argument to be a field in {name}(), found {of}"));
        }
        for tag in tags {
            if !matches!(tag, Expr::Reference(..)) {
                return Err(format!("only fields or tags are allowed in {name}(), found {tag}"));
            }
            self.has_reference = true;
        }
        self.ranking = Some(name.to_owned());
        Ok(())
    }
}

fn count_of_arguments(name: &str, wanted: usize, found: usize) -> String {
    format!("invalid number of arguments for {name}, expected {wanted}, got {found}")
}

/// InfluxDB's name for a kind of expression.
fn go_type(of: &Expr) -> &'static str {
    match of {
        Expr::Reference(..) => "*influxql.VarRef",
        Expr::Call(..) => "*influxql.Call",
        Expr::Binary(..) => "*influxql.BinaryExpr",
        Expr::Group(_) => "*influxql.ParenExpr",
        Expr::Wildcard(_) => "*influxql.Wildcard",
        Expr::Regex(_) => "*influxql.RegexLiteral",
        Expr::String(_) => "*influxql.StringLiteral",
        Expr::Number(_) => "*influxql.NumberLiteral",
        Expr::Integer(_) => "*influxql.IntegerLiteral",
        Expr::Unsigned(_) => "*influxql.UnsignedLiteral",
        Expr::Boolean(_) => "*influxql.BooleanLiteral",
        Expr::Duration(_) => "*influxql.DurationLiteral",
        Expr::Distinct(_) => "*influxql.Distinct",
    }
}

/// The columns without the time, which is there in any case, and the alias of the time.
pub(super) fn without_time(columns: &[Column]) -> (Vec<Column>, Option<String>) {
    let mut name = None;
    let mut kept = Vec::with_capacity(columns.len());
    for column in columns {
        match &column.expr {
            Expr::Reference(of, Cast::None) if of == "time" => {
                name = column.alias.clone().or(name);
            }
            expr => {
                kept.push(Column { expr: super::fold::fold(expr), alias: column.alias.clone() })
            }
        }
    }
    (kept, name)
}
