//! Points as OpenTSDB's clients write them, in JSON and in lines, and their errors in OpenTSDB's words.

use super::FIELD;
use crate::influx::{float, string};
use coreplane_tsdb::{FieldValue, Point, SeriesKey};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use smallvec::smallvec;
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// The maximum number of tags of a point.
const TAGS_MAX: usize = 64;

/// The maximum length of a text that is told in an error or beside it, in bytes.
const QUOTE_MAX: usize = 256;

/// The maximum length of an error, in bytes.
pub(super) const WHY_MAX: usize = 1_000;

/// A text for an error, cut if it is long.
fn quoted(text: &str) -> Cow<'_, str> {
    cut(text, QUOTE_MAX)
}

/// A text of at most `max` bytes; if it is longer, its beginning and `…`.
pub(super) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    match text.get(..text.floor_char_boundary(max)) {
        Some(begin) if begin.len() < text.len() => Cow::Owned(format!("{begin}…")),
        _ => Cow::Borrowed(text),
    }
}

/// What is wrong with a JSON text. The error repeats pieces of the text, so it is cut while it is written.
pub(super) fn wrong_json(error: &serde_json::Error) -> String {
    let mut message = Message(String::new());
    // It ends with the message's room.
    let _whole = write!(message, "Unable to parse the given JSON: {error}").is_ok();
    message.0
}

/// A text of at most [`WHY_MAX`] bytes, and `…` if there is no room for the rest.
struct Message(String);

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let begin = cut(text, WHY_MAX.saturating_sub(self.0.len()));
        self.0.push_str(&begin);
        if matches!(begin, Cow::Owned(_)) { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The error for a text where none may be. Unlike that of serde, it has no copy of the text.
pub(super) fn no_text<E: de::Error>(expected: &dyn de::Expected) -> E {
    E::invalid_type(de::Unexpected::Other("string"), expected)
}

/// A JSON value that is neither a list nor an object.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Scalar<'a> {
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    /// A list or an object.
    Other,
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a number or a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Unsigned(value))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Other)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ScalarVisitor)
    }
}

impl Scalar<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Absent | Self::Other => out.extend_from_slice(b"null"),
            Self::Text(text) => string(&quoted(text), out),
            Self::Float(value) => float(*value, out),
            Self::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Unsigned(value) => out.extend_from_slice(value.to_string().as_bytes()),
        }
    }

    /// The value as a name; a number is accepted, too.
    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Absent | Self::Other => None,
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Float(value) => Some(value.to_string().into()),
            Self::Integer(value) => Some(value.to_string().into()),
            Self::Unsigned(value) => Some(value.to_string().into()),
        }
    }
}

/// Tag keys and tag values; at most [`TAGS_MAX`] are kept, and one more, which shows that there are too many.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tags<'a>(pub(super) Vec<(Cow<'a, str>, Scalar<'a>)>);

struct TagsVisitor;

impl<'de> Visitor<'de> for TagsVisitor {
    type Value = Tags<'de>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an object of tags")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(no_text(&self))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Tags::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut tags = Vec::new();
        while let Some((key, value)) = object.next_entry::<Name<'de>, Scalar<'de>>()? {
            if tags.len() <= TAGS_MAX {
                tags.push((key.0, value));
            }
        }
        Ok(Tags(tags))
    }
}

/// A name that is borrowed if possible.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Tags<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TagsVisitor)
    }
}

/// A point as it was sent.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(remote = "Self")]
pub(super) struct Datapoint<'a> {
    #[serde(default, borrow)]
    pub(super) metric: Scalar<'a>,
    #[serde(default, borrow)]
    pub(super) timestamp: Scalar<'a>,
    #[serde(default, borrow)]
    pub(super) value: Scalar<'a>,
    #[serde(default, borrow)]
    pub(super) tags: Tags<'a>,
}

struct DatapointVisitor;

impl<'de> Visitor<'de> for DatapointVisitor {
    type Value = Datapoint<'de>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a data point")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(no_text(&self))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        // This is what is derived for the fields.
        Datapoint::deserialize(MapAccessDeserializer::new(object))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Datapoint<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DatapointVisitor)
    }
}

impl Datapoint<'_> {
    /// Appends it as JSON; its texts are cut if they are long.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"metric\":");
        self.metric.write(out);
        out.extend_from_slice(b",\"timestamp\":");
        self.timestamp.write(out);
        out.extend_from_slice(b",\"value\":");
        self.value.write(out);
        out.extend_from_slice(b",\"tags\":{");
        for (at, (key, value)) in self.tags.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            string(&quoted(key), out);
            out.push(b':');
            value.write(out);
        }
        out.extend_from_slice(b"}}");
    }

    /// The point, or an error. With `takes_strings` a string that contains a number is that number.
    pub(super) fn point(&self, takes_strings: bool) -> Result<Point<'static>, String> {
        let metric = self.metric.text().filter(|metric| !metric.is_empty());
        let metric = metric.ok_or("Metric name was empty")?;
        check_name("metric name", &metric)?;
        let time = match &self.timestamp {
            Scalar::Unsigned(time) => i64::try_from(*time).ok().and_then(nanoseconds),
            Scalar::Integer(time) => nanoseconds(*time),
            Scalar::Text(text) => time_of(text),
            _ => None,
        };
        let time = time.ok_or("Invalid timestamp")?;
        let value = match &self.value {
            Scalar::Float(value) => Some(*value),
            Scalar::Integer(value) => Some(*value as f64),
            Scalar::Unsigned(value) => Some(*value as f64),
            Scalar::Text(text) if text.is_empty() => return Err("Empty value".to_owned()),
            Scalar::Text(text) if takes_strings => number(text),
            Scalar::Absent => return Err("Empty value".to_owned()),
            _ => None,
        };
        let value = value.filter(|value| value.is_finite());
        let value = value.ok_or("Unable to parse value to a number")?;
        let tags = self.tags.0.iter().map(|(key, value)| Some((key.as_ref(), value.text()?)));
        let tags = tags.collect::<Option<Vec<_>>>().ok_or("Invalid tag value")?;
        let tags: Vec<(&str, &str)> =
            tags.iter().map(|(key, value)| (*key, value.as_ref())).collect();
        assemble(&metric, &tags, value, time)
    }
}

fn assemble(
    metric: &str,
    tags: &[(&str, &str)],
    value: f64,
    time: i64,
) -> Result<Point<'static>, String> {
    if tags.is_empty() {
        return Err("Missing tags".to_owned());
    }
    if tags.len() > TAGS_MAX {
        return Err(format!("Too many tags: more than {TAGS_MAX}"));
    }
    for (key, value) in tags {
        check_name("tag name", key)?;
        check_name("tag value", value)?;
    }
    let series = SeriesKey::new(metric, tags.iter().copied()).map_err(|error| error.to_string())?;
    Ok(Point { series, fields: smallvec![(Cow::Borrowed(FIELD), FieldValue::Float(value))], time })
}

/// OpenTSDB's names: letters, digits, `-`, `_`, `.`, `/`.
fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("Invalid {what}: empty string"));
    }
    match name.chars().find(|it| !it.is_alphanumeric() && !matches!(it, '-' | '_' | '.' | '/')) {
        Some(wrong) => {
            let name = quoted(name);
            Err(format!("Invalid {what} (\"{name}\"): illegal character: {wrong}"))
        }
        None => Ok(()),
    }
}

/// Converts a time to nanoseconds; it is in seconds, or in milliseconds if it needs more than 32 bits.
pub(super) fn nanoseconds(time: i64) -> Option<i64> {
    let unit = if time > i64::from(u32::MAX) { 1_000_000 } else { 1_000_000_000 };
    if time <= 0 { None } else { time.checked_mul(unit) }
}

/// Parses a time: seconds, milliseconds, or seconds with up to three digits behind a point.
pub(super) fn time_of(text: &str) -> Option<i64> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let Some((seconds, fraction)) = text.split_once('.') else {
        return if is_number(text) { nanoseconds(text.parse().ok()?) } else { None };
    };
    if !is_number(seconds) || !is_number(fraction) || fraction.len() > 3 {
        return None;
    }
    let milliseconds: i64 = format!("{fraction:0<3}").parse().ok()?;
    let seconds: i64 = seconds.parse().ok().filter(|it| *it > 0 && *it <= i64::from(u32::MAX))?;
    seconds.checked_mul(1000)?.checked_add(milliseconds)?.checked_mul(1_000_000)
}

fn number(text: &str) -> Option<f64> {
    let is_number = |it: u8| it.is_ascii_digit() || matches!(it, b'+' | b'-' | b'.' | b'e' | b'E');
    if text.bytes().all(is_number) { text.parse().ok() } else { None }
}

/// Parses a line `put METRIC TIME VALUE TAG=VALUE…`; returns its point, or an error.
pub(super) fn of_line(line: &str) -> Result<Point<'static>, String> {
    let words: Vec<&str> =
        line.split(' ').filter(|word| !word.is_empty()).take(TAGS_MAX + 5).collect();
    let [_, metric, time, value, tags @ ..] = words.as_slice() else {
        return Err(few(words.len()));
    };
    if tags.is_empty() {
        return Err(few(words.len()));
    }
    check_name("metric name", metric).map_err(illegal)?;
    let time = time_of(time).ok_or_else(|| illegal(format!("invalid timestamp: {time}")))?;
    let value = number(value).filter(|value| value.is_finite());
    let Some(value) = value else {
        let text = words.get(3).copied().unwrap_or_default();
        return Err(format!("invalid value: For input string: \"{text}\""));
    };
    let pair = |tag: &&'_ str| {
        let pair = tag.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
        pair.map(|(key, value)| (key.to_owned(), value.to_owned()))
            .ok_or_else(|| illegal(format!("invalid tag: {tag}")))
    };
    let tags = tags.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    let tags: Vec<(&str, &str)> =
        tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assemble(metric, &tags, value, time).map_err(illegal)
}

fn few(words: usize) -> String {
    illegal(format!("not enough arguments (need least 4, got {})", words.saturating_sub(1)))
}

fn illegal(what: impl fmt::Display) -> String {
    format!("illegal argument: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(json: &str, takes_strings: bool) -> Result<Point<'static>, String> {
        serde_json::from_str::<Datapoint<'_>>(json).unwrap().point(takes_strings)
    }

    #[test]
    fn points_are_taken_as_opentsdb_takes_them() {
        let json = r#"{"metric":"sys.cpu","timestamp":1346846400,"value":"18.5","tags":{"host":"web01","dc":1}}"#;
        let found = point(json, true).unwrap();
        assert_eq!(found.series.as_str(), "sys.cpu,dc=1,host=web01");
        assert_eq!(found.time, 1_346_846_400_000_000_000);
        assert_eq!(found.fields[0].1, FieldValue::Float(18.5));
        assert_eq!(point(json, false).unwrap_err(), "Unable to parse value to a number");
        let line = of_line("put sys.cpu 1346846400.5 42 host=web01 dc=1").unwrap();
        assert_eq!(
            (line.series.as_str(), line.time),
            ("sys.cpu,dc=1,host=web01", 1_346_846_400_500_000_000)
        );
        assert_eq!(
            of_line("put m 1346846400123 -1e3 a=b").unwrap().time,
            1_346_846_400_123_000_000
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (json, wrong) in [
            ("{}", "Metric name was empty"),
            (r#"{"metric":"m"}"#, "Invalid timestamp"),
            (r#"{"metric":"m","timestamp":-5,"value":1}"#, "Invalid timestamp"),
            (r#"{"metric":"m","timestamp":1,"value":""}"#, "Empty value"),
            (r#"{"metric":"m","timestamp":1,"value":[1,{}]}"#, "Unable to parse value to a number"),
            (r#"{"metric":"m","timestamp":1,"value":"NaN"}"#, "Unable to parse value to a number"),
            (r#"{"metric":"m","timestamp":1,"value":1}"#, "Missing tags"),
            (
                r#"{"metric":"a b","timestamp":1,"value":1,"tags":{"a":"b"}}"#,
                "Invalid metric name (\"a b\"): illegal character:  ",
            ),
            (
                r#"{"metric":"m","timestamp":1,"value":1,"tags":{"a":""}}"#,
                "Invalid tag value: empty string",
            ),
        ] {
            assert_eq!(point(json, true).unwrap_err(), wrong, "{json}");
        }
        for (line, wrong) in [
            ("put", "illegal argument: not enough arguments (need least 4, got 0)"),
            ("put m 1 1", "illegal argument: not enough arguments (need least 4, got 3)"),
            ("put m x 1 a=b", "illegal argument: invalid timestamp: x"),
            ("put m 1 x a=b", "invalid value: For input string: \"x\""),
            ("put m 1 inf a=b", "invalid value: For input string: \"inf\""),
            ("put m 1 1 a", "illegal argument: invalid tag: a"),
        ] {
            assert_eq!(of_line(line).unwrap_err(), wrong, "{line}");
        }
    }

    #[test]
    fn times_are_bounded() {
        for wrong in [
            "",
            "-1",
            "0",
            "1.2345",
            "1e3",
            "99999999999999999999",
            "9223372036854775807",
            ".5",
            "5.",
        ] {
            assert_eq!(time_of(wrong), None, "{wrong}");
        }
    }
}
