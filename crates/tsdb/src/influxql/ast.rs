//! What a query says, as a tree.
//!
//! The parser bounds the depth of every tree ([`parse`](super::parse)), so walks over it recurse.

use super::token::Operator;
use crate::value::FieldType;
use regex::Regex;

/// A regular expression; equal if the texts are.
#[derive(Debug, Clone)]
pub(super) struct Pattern(pub(super) Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// What a reference is said to be by `::`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cast {
    /// Nothing is said.
    None,
    /// A field of any type.
    Field,
    /// A tag.
    Tag,
    /// A field, as a value of this type.
    Type(FieldType),
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    /// A field, a tag or the time.
    Reference(String, Cast),
    /// A call of a function; its name is in small letters.
    Call(String, Vec<Expr>),
    /// Two operands.
    Binary(Operator, Box<Expr>, Box<Expr>),
    /// In parentheses.
    Group(Box<Expr>),
    /// All fields and tags, or those of one kind.
    Wildcard(Cast),
    /// A regular expression.
    Regex(Pattern),
    /// Text.
    String(String),
    /// With a fraction.
    Number(f64),
    /// Without.
    Integer(i64),
    /// More than a signed one can be.
    Unsigned(u64),
    /// True or false.
    Boolean(bool),
    /// Nanoseconds.
    Duration(i64),
    /// `DISTINCT name`
    Distinct(String),
}

impl Expr {
    /// Two operands.
    pub(super) fn binary(operator: Operator, left: Self, right: Self) -> Self {
        Self::Binary(operator, Box::new(left), Box::new(right))
    }

    /// True of the time.
    pub(super) fn is_time(&self) -> bool {
        matches!(self, Self::Reference(name, _) if name.eq_ignore_ascii_case("time"))
    }

    /// True of what has a value of its own.
    pub(super) fn is_literal(&self) -> bool {
        !matches!(
            self,
            Self::Reference(..)
                | Self::Call(..)
                | Self::Binary(..)
                | Self::Group(_)
                | Self::Wildcard(_)
                | Self::Distinct(_)
        )
    }

    /// Gives each expression in it to a visitor, those around others first.
    pub(super) fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Self)) {
        visit(self);
        match self {
            Self::Call(_, arguments) => arguments.iter().for_each(|it| it.walk(visit)),
            Self::Binary(_, left, right) => {
                left.walk(visit);
                right.walk(visit);
            }
            Self::Group(inner) => inner.walk(visit),
            _ => {}
        }
    }
}

/// A measurement, or those that an expression is found in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// The database, if it is said.
    pub(super) database: Option<String>,
    /// The policy, if it is said.
    pub(super) policy: Option<String>,
    /// Which.
    pub(super) name: Name,
}

/// A name, or those that an expression is found in.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Name {
    /// One.
    Is(String),
    /// Any of them.
    Match(Pattern),
}

/// What a SELECT reads.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// Measurements.
    Measurement(Measurement),
    /// The answer to another SELECT.
    Select(Box<Select>),
}

/// A column that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// What is in it.
    pub(super) expr: Expr,
    /// The name after AS.
    pub(super) alias: Option<String>,
}

/// What stands in buckets of time without points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fill {
    /// Nothing in a row.
    Null,
    /// No row.
    None,
    /// The value before.
    Previous,
    /// On the line between the values around.
    Linear,
    /// An integer.
    Integer(i64),
    /// A number.
    Number(f64),
}

/// How many, and from which on; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Window {
    /// At most.
    pub(super) limit: usize,
    /// So many are left out before.
    pub(super) offset: usize,
}

/// A SELECT statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Select {
    /// The columns.
    pub(super) columns: Vec<Column>,
    /// The measurement that it would write, which is refused.
    pub(super) into: Option<Measurement>,
    /// What it reads.
    pub(super) sources: Vec<Source>,
    /// The WHERE clause.
    pub(super) condition: Option<Expr>,
    /// The GROUP BY clause.
    pub(super) dimensions: Vec<Expr>,
    /// The fill.
    pub(super) fill: Fill,
    /// The direction, if it is said: true is descending.
    pub(super) descending: Option<bool>,
    /// Of rows.
    pub(super) rows: Window,
    /// Of series.
    pub(super) series: Window,
}

/// What the statements about names have in common.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Scope {
    /// The database, if it is said.
    pub(super) database: Option<String>,
    /// Of which measurements; none is all.
    pub(super) sources: Vec<Measurement>,
    /// The WHERE clause.
    pub(super) condition: Option<Expr>,
    /// The GROUP BY clause of cardinalities.
    pub(super) dimensions: Vec<Expr>,
    /// Of rows.
    pub(super) rows: Window,
    /// Of series.
    pub(super) series: Window,
}

/// Which keys of tags.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Keys {
    /// Those in a list.
    In(Vec<String>),
    /// This one, or all but this one.
    Is(String, bool),
    /// Those that an expression is found in, or all but those.
    Match(Pattern, bool),
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Series.
    Series,
    /// Measurements.
    Measurement,
    /// Keys of tags.
    TagKey,
    /// Values of tags.
    TagValues,
    /// Fields.
    FieldKey,
}

/// Durations of a policy, in nanoseconds; 0 is for ever.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PolicyChange {
    /// How long points are kept.
    pub(super) duration: Option<i64>,
    /// Copies, which have no effect.
    pub(super) replication: Option<i64>,
    /// The time of a shard.
    pub(super) shard: Option<i64>,
    /// True if it becomes the default one.
    pub(super) is_default: bool,
    /// Its name, where that may be left out.
    pub(super) name: Option<String>,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Statement {
    /// SELECT
    Select(Box<Select>),
    /// EXPLAIN, with ANALYZE or without
    Explain(bool, Box<Select>),
    /// DELETE
    Delete(Scope),
    /// SHOW DATABASES
    ShowDatabases,
    /// SHOW MEASUREMENTS; the measurement after WITH is the only source
    ShowMeasurements(Scope),
    /// SHOW TAG KEYS
    ShowTagKeys(Scope),
    /// SHOW TAG VALUES
    ShowTagValues(Scope, Keys),
    /// SHOW FIELD KEYS
    ShowFieldKeys(Scope),
    /// SHOW SERIES
    ShowSeries(Scope),
    /// SHOW … CARDINALITY, EXACT or not
    ShowCardinality(Counted, bool, Scope, Option<Keys>),
    /// SHOW RETENTION POLICIES
    ShowPolicies(Option<String>),
    /// SHOW of what there is none of: its words
    ShowNothing(&'static str),
    /// CREATE DATABASE
    CreateDatabase(String, Option<PolicyChange>),
    /// DROP DATABASE
    DropDatabase(String),
    /// CREATE RETENTION POLICY: name and database
    CreatePolicy(String, String, PolicyChange),
    /// ALTER RETENTION POLICY: name and database
    AlterPolicy(String, String, PolicyChange),
    /// DROP RETENTION POLICY: name and database
    DropPolicy(String, String),
    /// DROP SERIES
    DropSeries(Scope),
    /// DROP MEASUREMENT
    DropMeasurement(String),
}
