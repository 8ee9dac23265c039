//! The tree of a query as the text that InfluxDB would write.
//!
//! Errors quote this text, columns with equal expressions are found by it, and the golden scripts compare it.

use super::ast::{
    Cast, Column, Counted, Expr, Fill, Keys, Measurement, Name, PolicyChange, Scope, Select,
    Source, Statement, Window,
};
use super::keyword::keyword;
use std::fmt::{Display, Formatter, Result};

/// A name as it is written in a query: in quotes if necessary.
pub(super) fn quoted_name(name: &str) -> String {
    let starts_well = name.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_');
    let is_word = name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
    let is_operator = name.eq_ignore_ascii_case("and") || name.eq_ignore_ascii_case("or");
    if starts_well && is_word && !is_operator && keyword(name).is_none() {
        return name.to_owned();
    }
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

fn quoted_text(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
    format!("'{escaped}'")
}

/// A duration in the greatest unit of which it is a multiple.
pub(super) fn duration(nanoseconds: i64) -> String {
    const UNITS: [(i64, &str); 7] = [
        (7 * 24 * 3_600_000_000_000, "w"),
        (24 * 3_600_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "u"),
    ];
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    match UNITS.iter().find(|(unit, _)| nanoseconds % unit == 0) {
        Some((unit, name)) => format!("{}{name}", nanoseconds / unit),
        None => format!("{nanoseconds}ns"),
    }
}

fn pattern(text: &str) -> String {
    format!("/{}/", text.replace('/', "\\/"))
}

impl Display for Cast {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::None => Ok(()),
            Self::Field => to.write_str("::field"),
            Self::Tag => to.write_str("::tag"),
            Self::Type(of) => write!(to, "::{}", of.name()),
        }
    }
}

impl Display for Expr {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::Reference(name, cast) => write!(to, "{}{cast}", quoted_name(name)),
            Self::Call(name, arguments) => write!(to, "{name}({})", list(arguments)),
            Self::Binary(operator, left, right) => {
                write!(to, "{left} {} {right}", operator.text())
            }
            Self::Group(inner) => write!(to, "({inner})"),
            Self::Wildcard(cast) => write!(to, "*{cast}"),
            Self::Regex(it) => to.write_str(&pattern(&it.1)),
            Self::String(text) => to.write_str(&quoted_text(text)),
            Self::Number(it) if it.fract() == 0.0 => write!(to, "{it:.1}"),
            Self::Number(it) => write!(to, "{it}"),
            Self::Integer(it) => write!(to, "{it}"),
            Self::Unsigned(it) => write!(to, "{it}"),
            Self::Boolean(it) => write!(to, "{it}"),
            Self::Duration(it) => to.write_str(&duration(*it)),
            Self::Distinct(name) => write!(to, "DISTINCT {}", quoted_name(name)),
        }
    }
}

impl Display for Name {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::Is(name) => to.write_str(&quoted_name(name)),
            Self::Match(it) => to.write_str(&pattern(&it.1)),
        }
    }
}

impl Display for Measurement {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        if let Some(database) = &self.database {
            write!(to, "{}.", quoted_name(database))?;
        }
        match &self.policy {
            Some(policy) => write!(to, "{}.", quoted_name(policy))?,
            None if self.database.is_some() => to.write_str(".")?,
            None => {}
        }
        write!(to, "{}", self.name)
    }
}

impl Display for Source {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::Measurement(it) => write!(to, "{it}"),
            Self::Select(it) => write!(to, "({it})"),
        }
    }
}

impl Display for Column {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        write!(to, "{}", self.expr)?;
        match &self.alias {
            Some(alias) => write!(to, " AS {}", quoted_name(alias)),
            None => Ok(()),
        }
    }
}

/// Items with commas between them.
pub(super) fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn window(to: &mut Formatter<'_>, of: Window, prefix: &str) -> Result {
    if of.limit > 0 {
        write!(to, " {prefix}LIMIT {}", of.limit)?;
    }
    if of.offset > 0 {
        write!(to, " {prefix}OFFSET {}", of.offset)?;
    }
    Ok(())
}

impl Display for Select {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        write!(to, "SELECT {}", list(&self.columns))?;
        if let Some(into) = &self.into {
            write!(to, " INTO {into}")?;
        }
        write!(to, " FROM {}", list(&self.sources))?;
        if let Some(condition) = &self.condition {
            write!(to, " WHERE {condition}")?;
        }
        if !self.dimensions.is_empty() {
            write!(to, " GROUP BY {}", list(&self.dimensions))?;
        }
        match self.fill {
            Fill::Null => {}
            Fill::None => to.write_str(" fill(none)")?,
            Fill::Previous => to.write_str(" fill(previous)")?,
            Fill::Linear => to.write_str(" fill(linear)")?,
            Fill::Integer(it) => write!(to, " fill({it})")?,
            Fill::Number(it) => write!(to, " fill({it})")?,
        }
        match self.descending {
            None => {}
            Some(true) => to.write_str(" ORDER BY time DESC")?,
            Some(false) => to.write_str(" ORDER BY time ASC")?,
        }
        window(to, self.rows, "")?;
        window(to, self.series, "S")
    }
}

impl Display for Scope {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        if let Some(database) = &self.database {
            write!(to, " ON {}", quoted_name(database))?;
        }
        if !self.sources.is_empty() {
            write!(to, " FROM {}", list(&self.sources))?;
        }
        Ok(())
    }
}

/// Writes the clauses behind the sources.
fn tail(to: &mut Formatter<'_>, scope: &Scope) -> Result {
    if let Some(condition) = &scope.condition {
        write!(to, " WHERE {condition}")?;
    }
    if !scope.dimensions.is_empty() {
        write!(to, " GROUP BY {}", list(&scope.dimensions))?;
    }
    window(to, scope.rows, "")?;
    window(to, scope.series, "S")
}

impl Display for Keys {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::In(names) => {
                let names: Vec<_> = names.iter().map(|it| quoted_name(it)).collect();
                write!(to, " WITH KEY IN ({})", names.join(", "))
            }
            Self::Is(name, true) => write!(to, " WITH KEY = {}", quoted_name(name)),
            Self::Is(name, false) => write!(to, " WITH KEY != {}", quoted_name(name)),
            Self::Match(it, true) => write!(to, " WITH KEY =~ {}", pattern(&it.1)),
            Self::Match(it, false) => write!(to, " WITH KEY !~ {}", pattern(&it.1)),
        }
    }
}

impl Display for PolicyChange {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        let shown = |it: i64| if it == 0 { "INF".to_owned() } else { duration(it) };
        if let Some(it) = self.duration {
            write!(to, " DURATION {}", shown(it))?;
        }
        if let Some(it) = self.replication {
            write!(to, " REPLICATION {it}")?;
        }
        if let Some(it) = self.shard {
            write!(to, " SHARD DURATION {}", duration(it))?;
        }
        if self.is_default {
            to.write_str(" DEFAULT")?;
        }
        if let Some(name) = &self.name {
            write!(to, " NAME {}", quoted_name(name))?;
        }
        Ok(())
    }
}

impl Display for Counted {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        to.write_str(match self {
            Self::Series => "SERIES",
            Self::Measurement => "MEASUREMENT",
            Self::TagKey => "TAG KEY",
            Self::TagValues => "TAG VALUES",
            Self::FieldKey => "FIELD KEY",
        })
    }
}

/// A statement about names.
fn about(to: &mut Formatter<'_>, words: &str, scope: &Scope) -> Result {
    write!(to, "{words}{scope}")?;
    tail(to, scope)
}

impl Display for Statement {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Self::Select(it) => write!(to, "{it}"),
            Self::Explain(true, it) => write!(to, "EXPLAIN ANALYZE {it}"),
            Self::Explain(false, it) => write!(to, "EXPLAIN {it}"),
            Self::Delete(scope) => about(to, "DELETE", scope),
            Self::ShowDatabases => to.write_str("SHOW DATABASES"),
            Self::ShowMeasurements(scope) => {
                let on = Scope { database: scope.database.clone(), ..Scope::default() };
                write!(to, "SHOW MEASUREMENTS{on}")?;
                match scope.sources.first() {
                    Some(it @ Measurement { name: Name::Match(_), .. }) => {
                        write!(to, " WITH MEASUREMENT =~ {it}")?;
                    }
                    Some(it) => write!(to, " WITH MEASUREMENT = {it}")?,
                    None => {}
                }
                tail(to, scope)
            }
            Self::ShowTagKeys(scope) => about(to, "SHOW TAG KEYS", scope),
            Self::ShowTagValues(scope, keys) => {
                write!(to, "SHOW TAG VALUES{scope}{keys}")?;
                tail(to, scope)
            }
            Self::ShowFieldKeys(scope) => about(to, "SHOW FIELD KEYS", scope),
            Self::ShowSeries(scope) => about(to, "SHOW SERIES", scope),
            Self::ShowCardinality(counted, is_exact, scope, keys) => {
                let exact = if *is_exact { " EXACT" } else { "" };
                write!(to, "SHOW {counted}{exact} CARDINALITY{scope}")?;
                keys.iter().try_for_each(|it| write!(to, "{it}"))?;
                tail(to, scope)
            }
            Self::ShowPolicies(None) => to.write_str("SHOW RETENTION POLICIES"),
            Self::ShowPolicies(Some(on)) => {
                write!(to, "SHOW RETENTION POLICIES ON {}", quoted_name(on))
            }
            Self::ShowNothing(words) => write!(to, "SHOW {words}"),
            other => change(to, other),
        }
    }
}

/// A statement that changes something.
fn change(to: &mut Formatter<'_>, statement: &Statement) -> Result {
    match statement {
        Statement::CreateDatabase(name, policy) => {
            write!(to, "CREATE DATABASE {}", quoted_name(name))?;
            policy.iter().try_for_each(|it| write!(to, " WITH{it}"))
        }
        Statement::DropDatabase(name) => write!(to, "DROP DATABASE {}", quoted_name(name)),
        Statement::CreatePolicy(name, on, it) => {
            let (name, on) = (quoted_name(name), quoted_name(on));
            write!(to, "CREATE RETENTION POLICY {name} ON {on}{it}")
        }
        Statement::AlterPolicy(name, on, it) => {
            let (name, on) = (quoted_name(name), quoted_name(on));
            write!(to, "ALTER RETENTION POLICY {name} ON {on}{it}")
        }
        Statement::DropPolicy(name, on) => {
            write!(to, "DROP RETENTION POLICY {} ON {}", quoted_name(name), quoted_name(on))
        }
        Statement::DropSeries(scope) => about(to, "DROP SERIES", scope),
        Statement::DropMeasurement(name) => write!(to, "DROP MEASUREMENT {}", quoted_name(name)),
        _ => Ok(()),
    }
}
