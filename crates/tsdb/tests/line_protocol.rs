//! The parser of line protocol compared with another parser, and with the writer.
//!
//! The oracle is the crate `influxdb-line-protocol`, which InfluxData wrote for InfluxDB 3. Where both accept a
//! line, they read the same from it. They do not accept the same lines, since ours follows InfluxDB 1.6:
//!
//! | line | ours | the oracle | why |
//! |---|---|---|---|
//! | `m a\\b=1` | name `a\\b` | name `a\b` | in 1.6 a backslash escapes no backslash in names |
//! | `m,t=1,t=2 a=1` | refused | both tags | a tag that comes twice is an error in 1.6 |
//! | `m,t=a=b a=1`, `m a,b=1` | refused | taken | an equals sign or a comma must be escaped there in 1.6 |
//! | `m a=1.`, `m a=.5` | taken | refused | floats of Go |
//! | `m a=1e400` | refused | infinite | out of range in 1.6 |
//! | `m a=1 9223372036854775807` | refused | taken | 1.6 keeps the last times for itself |
//! | `m\tn a=1` | taken | refused | a tab is no space in 1.6 |
//! | `m a=1\r\n` | taken | refused | lines of Windows |
//! | `m a=1 1 2`, `m a="x"y` | refused | refused | |
//! | `m\=n a=1` | measurement `m=n` | `m\=n` | 1.6 escapes equals signs there, too |
//! | `m a\"b=1` | name `a"b` | name `a\"b` | and quotes in names of fields |

use coreplane_tsdb::line::{Precision, points, write_point};
use coreplane_tsdb::{Point, SeriesKey, Value};
use influxdb_line_protocol::{FieldValue, ParsedLine, parse_lines};
use proptest::prelude::*;
use std::sync::Arc;

/// The meaning of a line, in the types of neither parser.
#[derive(Debug, PartialEq)]
struct Meaning {
    measurement: String,
    /// Ascending by key.
    tags: Vec<(String, String)>,
    fields: Vec<(String, Value)>,
    time: Option<i64>,
}

/// The time of lines without one.
const NOW: i64 = 77;

fn ours(text: &str) -> Option<Meaning> {
    let mut lines = points(text.as_bytes(), Precision::Nanosecond, NOW);
    let (_, point) = lines.next()?.ok()?;
    if lines.next().is_some() {
        return None;
    }
    let tags = point.series.tags().map(|(key, value)| (key.into(), value.into()));
    let fields = point.fields.iter().map(|(name, value)| (name.to_string(), value.to_value()));
    Some(Meaning {
        measurement: point.series.measurement().into(),
        tags: tags.collect(),
        fields: fields.collect(),
        time: Some(point.time).filter(|time| *time != NOW),
    })
}

fn oracle(text: &str) -> Option<Meaning> {
    let mut lines = parse_lines(text);
    let line: ParsedLine<'_> = lines.next()?.ok()?;
    if lines.next().is_some() {
        return None;
    }
    let tags = line.series.tag_set.iter().flatten();
    let mut tags: Vec<_> = tags.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    tags.sort();
    let fields = line.field_set.iter().map(|(name, value)| {
        let value = match value {
            FieldValue::I64(value) => Value::Integer(*value),
            FieldValue::U64(value) => Value::Unsigned(*value),
            FieldValue::F64(value) => Value::Float(*value),
            FieldValue::Boolean(value) => Value::Boolean(*value),
            FieldValue::String(value) => Value::String(value.as_str().into()),
        };
        (name.replace("\\\"", "\""), value)
    });
    Some(Meaning {
        measurement: line.series.measurement.replace("\\=", "="),
        tags,
        fields: fields.collect(),
        time: line.timestamp.filter(|time| *time != NOW),
    })
}

/// Names in which special characters are escaped.
fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z_é\"]([a-z0-9._\"é-]|\\\\[,= ]){0,6}"
}

/// A measurement; its equals signs need no escape.
fn measurement() -> impl Strategy<Value = String> {
    "[a-zA-Z_é]([a-z0-9._=é-]|\\\\[, ]){0,6}"
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|it| format!("{it}i")),
        any::<u64>().prop_map(|it| format!("{it}u")),
        "-?[0-9]{1,12}(\\.[0-9]{1,12})?",
        "-?[0-9]{15,25}(\\.[0-9]{1,25})?",
        "-?[0-9]\\.[0-9]{1,5}[eE][+-]?[0-9]{1,2}",
        "t|T|true|True|TRUE|f|F|false|False|FALSE",
        "\"([ -~é\n--[\"\\\\]]|\\\\[\\\\\"]){0,8}\"",
    ]
}

/// A line that both parsers accept.
fn line() -> impl Strategy<Value = String> {
    let tags = prop::collection::btree_map(name(), name(), 0..4).prop_shuffle_pairs();
    let fields = prop::collection::vec((name(), value()), 1..4);
    let time = prop::option::of(-9_223_372_036_854_775_806_i64..9_223_372_036_854_775_807);
    (measurement(), tags, fields, " {1,2}", time).prop_map(|(head, tags, fields, gap, time)| {
        let tags: String = tags.iter().map(|(key, value)| format!(",{key}={value}")).collect();
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let time = time.map(|time| format!("{gap}{time}")).unwrap_or_default();
        format!("{head}{tags}{gap}{}{time}", fields.join(","))
    })
}

/// Pairs of a map in any order.
trait Shuffle: Strategy<Value = std::collections::BTreeMap<String, String>> + Sized {
    fn prop_shuffle_pairs(self) -> impl Strategy<Value = Vec<(String, String)>> {
        self.prop_map(Vec::from_iter).prop_shuffle()
    }
}

impl<S: Strategy<Value = std::collections::BTreeMap<String, String>>> Shuffle for S {}

/// A piece that a mutation inserts into a line.
fn scrap() -> impl Strategy<Value = String> {
    prop_oneof!["[,= \"\\\\\n\t#]", "[0-9.eEiutTfn+-]", "[a-zé]", Just(String::new())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_line_means_the_same_to_both(line in line()) {
        let expected = oracle(&line);
        prop_assert!(expected.is_some(), "the oracle refuses {line:?}");
        prop_assert_eq!(ours(&line), expected, "{}", line);
    }

    #[test]
    fn what_both_take_of_a_broken_line_means_the_same(
        line in line(),
        scraps in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, scrap()), 1..4),
    ) {
        let mut characters: Vec<char> = line.chars().collect();
        for (at, cut, scrap) in scraps {
            let at = at.index(characters.len() + 1);
            let end = (at + cut).min(characters.len());
            characters.splice(at..end, scrap.chars());
        }
        let text = String::from_iter(characters);
        // Where two backslashes stand together, the oracle reads one in names.
        if let (false, Some(ours), Some(oracle)) = (text.contains(r"\\"), ours(&text), oracle(&text)) {
            prop_assert_eq!(ours, oracle, "{:?}", text);
        }
    }

    #[test]
    fn what_is_written_is_read(
        tags in prop::collection::btree_map("[ -~é]{1,5}", "[ -~é]{1,5}", 0..4),
        measurement in "[!-~é&&[^#]][ -~é]{0,5}",
        fields in prop::collection::vec(("[!-~é][ -~é]{0,4}", any_value()), 1..4),
        time in -9_223_372_036_854_775_806_i64..9_223_372_036_854_775_807,
    ) {
        let pairs = tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let Ok(key) = SeriesKey::new(&measurement, pairs) else { return Ok(()) };
        prop_assume!(fields.iter().all(|(name, _)| !name.ends_with('\\')));
        let mut text = Vec::new();
        let written = fields.iter().map(|(name, value)| (name.as_str(), value));
        write_point(&mut text, key.as_str(), written, time);
        let mut lines = points(&text, Precision::Nanosecond, 0);
        let point: Point<'_> = lines.next().unwrap().unwrap().1;
        prop_assert!(lines.next().is_none());
        prop_assert_eq!(&point.series, &key);
        prop_assert_eq!(point.time, time);
        prop_assert_eq!(point.fields.len(), fields.len());
        for ((name, value), (expected_name, expected)) in point.fields.iter().zip(&fields) {
            prop_assert_eq!(&**name, expected_name);
            match (value.to_value(), expected) {
                (Value::Float(value), Value::Float(expected)) => {
                    prop_assert_eq!(value.to_bits(), expected.to_bits());
                }
                (value, expected) => prop_assert_eq!(&value, expected),
            }
        }
    }

    #[test]
    fn whatever_bytes_come_each_line_is_answered(
        bytes in prop::collection::vec(
            prop_oneof![8 => prop::sample::select(&b"m,= \"\\\n\r\t#1.eiut-\0"[..]), 1 => any::<u8>()],
            0..60,
        ),
    ) {
        let newlines = bytes.iter().filter(|byte| **byte == b'\n').count();
        let mut last = 0;
        for outcome in points(&bytes, Precision::Second, 5) {
            let line = outcome.map_or_else(|error| error.line, |(line, _)| line);
            prop_assert!(line > last && line <= newlines + 1);
            last = line;
        }
    }
}

/// Any value that a store can hold.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<f64>().prop_filter("finite", |it| it.is_finite()).prop_map(Value::Float),
        any::<i32>().prop_map(|it| Value::Float(f64::from(it) / 1e3)),
        any::<i64>().prop_map(Value::Integer),
        any::<u64>().prop_map(Value::Unsigned),
        any::<bool>().prop_map(Value::Boolean),
        "[ -~\n\r\té]{0,10}".prop_map(|it| Value::String(Arc::from(it))),
    ]
}

#[test]
fn the_differences_are_those_that_are_listed() {
    let taken_by = |line: &str| (ours(line).is_some(), oracle(line).is_some());
    for line in
        ["m,t=1,t=2 a=1", "m,t=a=b a=1", "m a,b=1", "m a=1e400", "m a=1 9223372036854775807"]
    {
        assert_eq!(taken_by(line), (false, true), "{line:?}");
    }
    for line in ["m a=1.", "m a=.5", "m\tn a=1", "m a=1\r\n"] {
        assert_eq!(taken_by(line), (true, false), "{line:?}");
    }
    for line in ["m a=1 1 2", "m a=\"x\"y"] {
        assert_eq!(taken_by(line), (false, false), "{line:?}");
    }
    let name = |meaning: Option<Meaning>| meaning.unwrap().fields.remove(0).0;
    assert_eq!(name(ours(r"m a\\b=1")), r"a\\b");
    assert_eq!(name(oracle(r"m a\\b=1")), r"a\b");
    assert_eq!(name(ours(r#"m a\"b=1"#)), "a\"b");
    assert_eq!(ours(r"m\=n a=1").unwrap().measurement, "m=n");
}
