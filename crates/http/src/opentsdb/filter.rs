//! Filters of tags, and their translation for the store.
//!
//! A filter of a tag lets no series through that does not have the tag, whatever its condition on the value.

use coreplane_tsdb::TagFilter;
use regex::{Regex, RegexBuilder};

/// The kinds of filters, and the values that each lets through.
pub(super) const KINDS: [(&str, &str); 8] = [
    ("literal_or", "values between pipes"),
    ("iliteral_or", "values between pipes, in whatever case"),
    ("not_literal_or", "all but values between pipes"),
    ("not_iliteral_or", "all but values between pipes, in whatever case"),
    ("wildcard", "values of a pattern with stars"),
    ("iwildcard", "values of a pattern with stars, in whatever case"),
    ("regexp", "values that an expression is found in"),
    ("not_key", "series without the tag"),
];

/// The maximum number of values of a list.
const VALUES_MAX: usize = 1_000;

/// The maximum size of a compiled expression, in bytes.
const EXPRESSION_MAX: usize = 1 << 20;

/// The maximum number of expressions in the filters of a query.
const EXPRESSIONS_MAX: usize = 32;

/// The maximum size of the filters of a query without their expressions, in bytes.
const BYTES_MAX: usize = 8 << 20;

/// Bytes of a value of a list beside its text and the key, about.
const VALUE_BYTES: usize = 192;

/// A filter of one tag.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pub(super) key: String,
    /// The bytes that it takes without an expression, about.
    bytes: usize,
    /// Series that differ in this tag are not aggregated with each other.
    pub(super) is_group: bool,
    pub(super) passes: TagFilter,
}

fn both(one: TagFilter, other: TagFilter) -> TagFilter {
    TagFilter::And(Box::new(one), Box::new(other))
}

fn has(key: &str) -> TagFilter {
    TagFilter::NotEqual(key.to_owned(), String::new())
}

fn expression(text: &str, is_any_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(text)
        .case_insensitive(is_any_case)
        .size_limit(EXPRESSION_MAX)
        .build()
        .map_err(|error| format!("Invalid regular expression: {error}"))
}

fn values(text: &str) -> Result<Vec<&str>, String> {
    let values: Vec<&str> = text.split('|').filter(|value| !value.is_empty()).collect();
    match values.len() {
        0 => Err("Filter must not be empty".to_owned()),
        1..=VALUES_MAX => Ok(values),
        _ => Err(format!("A filter has at most {VALUES_MAX} values")),
    }
}

fn literal(key: &str, values: &[&str]) -> TagFilter {
    let equal = |value: &&str| TagFilter::Equal(key.to_owned(), (*value).to_owned());
    let or = |one, other| TagFilter::Or(Box::new(one), Box::new(other));
    values.iter().map(equal).reduce(or).unwrap_or(TagFilter::All)
}

fn not_literal(key: &str, values: &[&str]) -> TagFilter {
    let other = |value: &&str| TagFilter::NotEqual(key.to_owned(), (*value).to_owned());
    values.iter().map(other).fold(has(key), both)
}

/// An expression that matches any of these values, ignoring case.
fn any_case(values: &[&str]) -> Result<Regex, String> {
    let values: Vec<String> = values.iter().map(|value| regex::escape(value)).collect();
    expression(&format!("^(?:{})$", values.join("|")), true)
}

fn wildcard(key: &str, pattern: &str, is_any_case: bool) -> Result<TagFilter, String> {
    if !pattern.contains('*') {
        return Err("Filter must contain a wildcard".to_owned());
    }
    if pattern.bytes().all(|byte| byte == b'*') {
        return Ok(has(key));
    }
    let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
    let expression = expression(&format!("^(?s:{})$", parts.join(".*")), is_any_case)?;
    Ok(both(has(key), TagFilter::Match(key.to_owned(), expression)))
}

fn expressions_in(filter: &TagFilter) -> usize {
    match filter {
        TagFilter::Match(..) | TagFilter::NotMatch(..) => 1,
        TagFilter::And(one, other) | TagFilter::Or(one, other) => {
            expressions_in(one) + expressions_in(other)
        }
        TagFilter::All | TagFilter::Equal(..) | TagFilter::NotEqual(..) => 0,
    }
}

impl Filter {
    /// The bytes that it takes while a query runs, about: it is copied, except for its expression.
    pub(super) fn bytes_at_work(&self) -> usize {
        2 * self.bytes + EXPRESSION_MAX * expressions_in(&self.passes)
    }

    /// A filter by the name of its kind.
    pub(super) fn of(kind: &str, key: &str, text: &str, is_group: bool) -> Result<Self, String> {
        if key.is_empty() {
            return Err("Missing tagk".to_owned());
        }
        // Each value has the key beside it.
        let values_max = text.bytes().filter(|it| *it == b'|').count() + 3;
        let bytes = values_max.saturating_mul(key.len() + VALUE_BYTES) + text.len();
        check_bytes(bytes)?;
        let owned = || key.to_owned();
        let passes = match kind {
            "literal_or" => literal(key, &values(text)?),
            "not_literal_or" => not_literal(key, &values(text)?),
            "iliteral_or" => TagFilter::Match(owned(), any_case(&values(text)?)?),
            "not_iliteral_or" => {
                both(has(key), TagFilter::NotMatch(owned(), any_case(&values(text)?)?))
            }
            "wildcard" => wildcard(key, text, false)?,
            "iwildcard" => wildcard(key, text, true)?,
            "regexp" => both(has(key), TagFilter::Match(owned(), expression(text, false)?)),
            "not_key" => TagFilter::Equal(owned(), String::new()),
            _ => return Err(format!("Unrecognized filter: {kind}")),
        };
        Ok(Self { key: owned(), bytes, is_group, passes })
    }

    /// A filter as it is written in `{tag=…}`: `*`, values between pipes, or `kind(text)`.
    pub(super) fn of_tag(key: &str, text: &str, is_group: bool) -> Result<Self, String> {
        if let Some((kind, rest)) = text.split_once('(')
            && let Some(inner) = rest.strip_suffix(')')
        {
            return Self::of(kind, key, inner, is_group);
        }
        let kind = if text.contains('*') { "wildcard" } else { "literal_or" };
        // With a single value there is one group, but it is still a group.
        Self::of(kind, key, text, is_group)
    }
}

/// # Errors
/// If the filters of a query take so many bytes.
fn check_bytes(bytes: usize) -> Result<(), String> {
    if bytes > BYTES_MAX {
        return Err(format!("The filters of a query take at most {BYTES_MAX} bytes"));
    }
    Ok(())
}

/// # Errors
/// If the filters of a query take too many bytes, or have too many expressions.
pub(super) fn check<'f>(filters: impl IntoIterator<Item = &'f Filter>) -> Result<(), String> {
    let of_one = |it: &Filter| (it.bytes, expressions_in(&it.passes));
    let (bytes, expressions) =
        filters.into_iter().map(of_one).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    if expressions > EXPRESSIONS_MAX {
        return Err(format!("A query has at most {EXPRESSIONS_MAX} expressions"));
    }
    check_bytes(bytes)
}

/// The series that all of the filters let through.
pub(super) fn all(filters: &[Filter]) -> TagFilter {
    filters.iter().map(|filter| filter.passes.clone()).reduce(both).unwrap_or(TagFilter::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_let_through(filter: &TagFilter, value: &str) -> bool {
        match filter {
            TagFilter::All => true,
            TagFilter::Equal(_, it) => it == value,
            TagFilter::NotEqual(_, it) => it != value,
            TagFilter::Match(_, it) => it.is_match(value),
            TagFilter::NotMatch(_, it) => !it.is_match(value),
            TagFilter::And(a, b) => is_let_through(a, value) && is_let_through(b, value),
            TagFilter::Or(a, b) => is_let_through(a, value) || is_let_through(b, value),
        }
    }

    fn passing(text: &str) -> Vec<&'static str> {
        let filter = Filter::of_tag("host", text, true).unwrap();
        let values = ["", "web01", "WEB01", "web02", "db.1"];
        values.into_iter().filter(|value| is_let_through(&filter.passes, value)).collect()
    }

    #[test]
    fn filters_are_those_of_opentsdb() {
        assert_eq!(passing("web01"), ["web01"]);
        assert_eq!(passing("web01|db.1"), ["web01", "db.1"]);
        assert_eq!(passing("*"), ["web01", "WEB01", "web02", "db.1"]);
        assert_eq!(passing("web*"), ["web01", "web02"]);
        assert_eq!(passing("iwildcard(*0*)"), ["web01", "WEB01", "web02"]);
        assert_eq!(passing("iliteral_or(Web01|DB.1)"), ["web01", "WEB01", "db.1"]);
        assert_eq!(passing("not_literal_or(web01|web02)"), ["WEB01", "db.1"]);
        assert_eq!(passing("not_iliteral_or(web01)"), ["web02", "db.1"]);
        assert_eq!(passing("regexp(^web0(1|3))"), ["web01"]);
        assert_eq!(passing("not_key()"), [""]);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for wrong in ["", "|", "regexp(()", "nonsense(x)", "wildcard(x)", "regexp((a{9999}){9999})"]
        {
            assert!(Filter::of_tag("host", wrong, true).is_err(), "{wrong}");
        }
        assert!(Filter::of_tag("", "x", true).is_err());
        let many = vec!["v"; VALUES_MAX + 1].join("|");
        assert!(Filter::of_tag("host", &many, true).is_err());
    }

    #[test]
    fn expressions_are_few() {
        let of = |text| Filter::of_tag("host", text, true).unwrap();
        let (found, all) = (of("regexp(a)"), of("*"));
        assert!(check(vec![&found; EXPRESSIONS_MAX]).is_ok());
        assert!(check(vec![&found; EXPRESSIONS_MAX + 1]).is_err());
        assert!(check(vec![&all; EXPRESSIONS_MAX + 1]).is_ok(), "without an expression");
        assert!(found.bytes_at_work() > EXPRESSION_MAX && all.bytes_at_work() < EXPRESSION_MAX);
    }

    /// Each value of a list takes a copy of the key.
    #[test]
    fn filters_are_small() {
        let many = vec!["v"; VALUES_MAX].join("|");
        let filter = Filter::of("literal_or", &"k".repeat(100), &many, true).unwrap();
        assert!(check([&filter; 20]).is_ok() && check([&filter; 100]).is_err());
        let long = "k".repeat(900_000);
        assert!(Filter::of("literal_or", &long, "v", true).is_ok());
        for kind in ["literal_or", "not_literal_or"] {
            let wrong = Filter::of(kind, &long, &many, true).unwrap_err();
            assert!(wrong.contains("8388608 bytes"), "{wrong}");
        }
    }
}
