//! A query as a tree.
//!
//! The parser bounds the depth of every tree ([`parse`](super::parse)), so walks over a tree may recurse.

use super::token::Operator;
use crate::value::FieldType;
use regex::Regex;

/// A regular expression, and its text; equal if the texts are.
#[derive(Debug, Clone)]
pub(super) struct Pattern(pub(super) Regex, pub(super) String);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

/// The kind of a reference as stated with `::`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Cast {
    /// No kind is stated.
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
    /// A number with a fraction.
    Number(f64),
    /// A number without a fraction.
    Integer(i64),
    /// A number too large for a signed integer.
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

    /// True for the time.
    pub(super) fn is_time(&self) -> bool {
        matches!(self, Self::Reference(name, _) if name.eq_ignore_ascii_case("time"))
    }

    /// True for an expression that has a value of its own.
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

    /// Bytes of the tree in memory, about, without compiled expressions, which all its copies share.
    pub(super) fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.walk(&mut |it| {
            let text = match it {
                Self::Reference(text, _)
                | Self::Call(text, _)
                | Self::String(text)
                | Self::Distinct(text)
                | Self::Regex(Pattern(_, text)) => text.len(),
                _ => 0,
            };
            bytes += size_of::<Self>() + text;
        });
        bytes
    }

    /// Visits each expression of the tree, outer ones first.
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

/// A measurement, or all whose names match an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// The database, if it is stated.
    pub(super) database: Option<String>,
    /// The policy, if it is stated.
    pub(super) policy: Option<String>,
    /// The name.
    pub(super) name: Name,
}

/// A name, or all names in which an expression is found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Name {
    /// One.
    Is(String),
    /// All names that match.
    Match(Pattern),
}

/// An input of a SELECT.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// Measurements.
    Measurement(Measurement),
    /// The answer to another SELECT.
    Select(Box<Select>),
}

/// A requested column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// Its content.
    pub(super) expr: Expr,
    /// The name after AS.
    pub(super) alias: Option<String>,
}

/// The content of buckets of time without points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fill {
    /// Null.
    Null,
    /// No row.
    None,
    /// The value before.
    Previous,
    /// A value on the line between the neighbouring values.
    Linear,
    /// An integer.
    Integer(i64),
    /// A number.
    Number(f64),
}

/// A limit, and an offset; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Window {
    /// The maximum number.
    pub(super) limit: usize,
    /// The number of items that are skipped before.
    pub(super) offset: usize,
}

/// A SELECT statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Select {
    /// The columns.
    pub(super) columns: Vec<Column>,
    /// The measurement to write, which is refused.
    pub(super) into: Option<Measurement>,
    /// Its inputs.
    pub(super) sources: Vec<Source>,
    /// The WHERE clause.
    pub(super) condition: Option<Expr>,
    /// The GROUP BY clause.
    pub(super) dimensions: Vec<Expr>,
    /// The fill.
    pub(super) fill: Fill,
    /// The direction, if it is stated: true is descending.
    pub(super) descending: Option<bool>,
    /// Of rows.
    pub(super) rows: Window,
    /// Of series.
    pub(super) series: Window,
}

/// The common part of the statements about names.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Scope {
    /// The database, if it is stated.
    pub(super) database: Option<String>,
    /// The measurements; an empty list is all.
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

/// A choice of tag keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Keys {
    /// Those in a list.
    In(Vec<String>),
    /// This one, or all but this one.
    Is(String, bool),
    /// Keys in which an expression is found, or all others.
    Match(Pattern, bool),
}

/// The items that are counted.
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
    /// The time for which points are kept.
    pub(super) duration: Option<i64>,
    /// Copies, which have no effect.
    pub(super) replication: Option<i64>,
    /// The length of the time of a shard.
    pub(super) shard: Option<i64>,
    /// True if it becomes the default one.
    pub(super) is_default: bool,
    /// Its name, where the statement may omit it.
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
    /// SHOW of something that does not exist here: its words
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
