//! Incoming points, and the names of series.
//!
//! # The problem
//!
//! The tags of a series can be written in any order, and the store looks the series up for every point of every
//! line. So its key has one canonical spelling. Line protocol that is already written that way, as clients write
//! it, is used as the key without a copy.
//!
//! # The picture
//!
//! ```text
//!   weather,city=New\ York,station=a\b temp=21.5
//!   └─────────────── the text of the key ──────┘ up to the first space that no backslash escapes
//! ```
//!
//! # What holds
//!
//! - A backslash escapes a following comma, space or equals sign; before any other character it is an ordinary
//!   character. So a name has one spelling, except for equals signs in measurements, which need no escape: there
//!   the backslash is removed, unless another backslash stands before it.
//! - Names that a line cannot express are refused: a name that ends with a backslash (it would escape the next
//!   character), a name with a newline, and a measurement that begins with a character that makes a line be skipped
//!   (`#`, a tab, a zero byte).

use crate::error::{Error, Result};
use crate::value::{FieldType, Value};
use smallvec::SmallVec;
use std::borrow::Cow;

/// The maximum length of the text of a [`SeriesKey`], in bytes.
pub const KEY_MAX: usize = 65_535;

/// The maximum number of fields of a measurement, and of a line.
pub const FIELDS_MAX: usize = 65_535;

/// InfluxDB's least and greatest times of a point, in nanoseconds since 1970.
pub(crate) const TIME_MIN: i64 = i64::MIN + 2;
pub(crate) const TIME_MAX: i64 = i64::MAX - 1;

/// Checks that a point can have this time.
pub(crate) fn check_time(time: i64) -> std::result::Result<(), String> {
    if (TIME_MIN..=TIME_MAX).contains(&time) { Ok(()) } else { Err(outside_range()) }
}

/// The message for a time that no point can have.
pub(crate) fn outside_range() -> String {
    format!("time outside range {TIME_MIN} - {TIME_MAX}")
}

/// The name of a series: its measurement and its tags.
///
/// Its text is that of line protocol: `measurement,key=value,…`, with commas and spaces (and the equals signs of
/// tag keys and tag values) escaped by a backslash. Tags ascend by the bytes of their unescaped keys, no key comes
/// twice, and no key or value is empty. Equal series have equal texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SeriesKey<'a>(Cow<'a, str>);

/// An incoming value.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue<'a> {
    /// Finite.
    Float(f64),
    /// Signed.
    Integer(i64),
    /// Unsigned.
    Unsigned(u64),
    /// True or false.
    Boolean(bool),
    /// UTF-8.
    String(Cow<'a, str>),
}

impl FieldValue<'_> {
    /// The type of its field.
    #[must_use]
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Float(_) => FieldType::Float,
            Self::Integer(_) => FieldType::Integer,
            Self::Unsigned(_) => FieldType::Unsigned,
            Self::Boolean(_) => FieldType::Boolean,
            Self::String(_) => FieldType::String,
        }
    }

    /// A copy of the value that owns its string.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Float(value) => Value::Float(*value),
            Self::Integer(value) => Value::Integer(*value),
            Self::Unsigned(value) => Value::Unsigned(*value),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::String(value) => Value::String((**value).into()),
        }
    }
}

/// A point: the values of some fields of a series at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Point<'a> {
    /// The series.
    pub series: SeriesKey<'a>,
    /// Names and values; at least one. If a name comes twice its last value counts.
    pub fields: SmallVec<[(Cow<'a, str>, FieldValue<'a>); 8]>,
    /// Nanoseconds since 1970.
    pub time: i64,
}

impl SeriesKey<'static> {
    /// The key of a measurement and tags, which may be in any order; tags with an empty value are left out.
    ///
    /// # Errors
    /// [`Error::Input`]: the measurement or a key is empty, a key comes twice, the text is longer than [`KEY_MAX`],
    /// or a line cannot express a name.
    pub fn new<'t>(
        measurement: &str,
        tags: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Self> {
        if measurement.is_empty() {
            return Err(Error::Input(MISSING_MEASUREMENT.into()));
        }
        if measurement.starts_with(is_skipped) {
            return Err(Error::Input(format!("invalid measurement: {measurement:?}")));
        }
        let mut text = String::with_capacity(64);
        push_measurement(&mut text, measurement)?;
        let mut tags: SmallVec<[(&str, &str); 16]> =
            tags.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        tags.sort_unstable();
        let mut last = "";
        for (key, value) in tags {
            if key.is_empty() {
                return Err(Error::Input(MISSING_TAG_KEY.into()));
            }
            if key == last {
                return Err(Error::Input(DUPLICATE_TAGS.into()));
            }
            last = key;
            text.push(',');
            push_name(&mut text, key)?;
            text.push('=');
            push_name(&mut text, value)?;
        }
        check_length(text.len())?;
        Ok(Self(Cow::Owned(text)))
    }
}

impl<'a> SeriesKey<'a> {
    /// The key with which a line begins, up to the first unescaped space. Nothing is copied if its tags ascend.
    ///
    /// # Errors
    /// [`Error::Input`]: the text is no key, a key comes twice, or the text is longer than [`KEY_MAX`].
    pub fn of_text(text: &'a str) -> Result<Self> {
        let extent = scan(text.as_bytes()).map_err(|fault| Error::Input(fault.into()))?;
        if extent.length != text.len() || text.ends_with('\\') {
            return Err(Error::Input("invalid series key".into()));
        }
        check_length(text.len())?;
        Self::of_extent(text, extent).map_err(|fault| Error::Input(fault.into()))
    }

    /// The key in a text of at most [`KEY_MAX`] bytes, whose extent [`scan`] has found.
    pub(crate) fn of_extent(
        text: &'a str,
        extent: Extent,
    ) -> std::result::Result<Self, &'static str> {
        if extent.is_canonical {
            return Ok(Self(Cow::Borrowed(text)));
        }
        let (measurement, tags) = halves(text, is_comma);
        let mut tags: SmallVec<[(&str, &str); 16]> = RawTags(tags).collect();
        tags.sort_by(|(a, _), (b, _)| plain(a).cmp(plain(b)));
        if tags.iter().zip(tags.iter().skip(1)).any(|((a, _), (b, _))| a == b) {
            return Err(DUPLICATE_TAGS);
        }
        let mut sorted = String::with_capacity(text.len());
        push_plain_equals(&mut sorted, measurement);
        for (key, value) in tags {
            for part in [",", key, "=", value] {
                sorted.push_str(part);
            }
        }
        Ok(Self(Cow::Owned(sorted)))
    }

    /// Its measurement.
    #[must_use]
    pub fn measurement(&self) -> Cow<'_, str> {
        unescape(halves(&self.0, is_comma).0, is_special)
    }

    /// Its keys and values, ascending by key.
    pub fn tags(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        RawTags(halves(&self.0, is_comma).1)
            .map(|(key, value)| (unescape(key, is_special), unescape(value, is_special)))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same key, which owns its text.
    #[must_use]
    pub fn into_owned(self) -> SeriesKey<'static> {
        SeriesKey(Cow::Owned(self.0.into_owned()))
    }
}

const MISSING_MEASUREMENT: &str = "missing measurement";
const MISSING_TAG_KEY: &str = "missing tag key";
const MISSING_TAG_VALUE: &str = "missing tag value";
const DUPLICATE_TAGS: &str = "duplicate tags";

/// The message for a key that is too long.
pub(crate) fn too_long(length: usize) -> String {
    format!("max key length exceeded: {length} > {KEY_MAX}")
}

fn check_length(length: usize) -> Result<()> {
    if length > KEY_MAX { Err(Error::Input(too_long(length))) } else { Ok(()) }
}

/// True if a backslash escapes this byte.
pub(crate) fn is_special(byte: u8) -> bool {
    matches!(byte, b',' | b' ' | b'=')
}

/// True if a backslash escapes this byte in the name of a field.
pub(crate) fn is_special_in_field(byte: u8) -> bool {
    is_special(byte) || byte == b'"'
}

/// True if this byte ends a measurement.
fn is_measurement_end(byte: u8) -> bool {
    matches!(byte, b',' | b' ')
}

fn is_comma(byte: u8) -> bool {
    byte == b','
}

/// True if a line that begins with this character is skipped.
fn is_skipped(first: char) -> bool {
    matches!(first, '#' | '\t' | '\0')
}

/// How far a key goes in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes: up to a space, a newline or the end.
    pub(crate) length: usize,
    /// True if the text is canonical as described at [`SeriesKey`]: its tags ascend, none comes twice, and its
    /// measurement has no needless escape.
    is_canonical: bool,
}

/// Finds the key with which a text begins, in one pass.
pub(crate) fn scan(text: &[u8]) -> std::result::Result<Extent, &'static str> {
    match text.first() {
        None | Some(b',' | b' ' | b'\n') => return Err(MISSING_MEASUREMENT),
        Some(byte) if is_skipped(char::from(*byte)) => return Err("invalid measurement"),
        Some(_) => {}
    }
    let mut at = name_end(text, 0, is_measurement_end);
    let measurement = text.get(..at).unwrap_or_default();
    let mut is_canonical = !measurement.windows(2).any(|pair| pair == br"\=");
    let mut last: &[u8] = &[];
    while text.get(at) == Some(&b',') {
        let start = at + 1;
        let equals = name_end(text, start, is_special);
        let key = text.get(start..equals).unwrap_or_default();
        if key.is_empty() {
            return Err(MISSING_TAG_KEY);
        }
        if text.get(equals) != Some(&b'=') {
            return Err(MISSING_TAG_VALUE);
        }
        is_canonical = is_canonical && is_less(last, key);
        last = key;
        at = name_end(text, equals + 1, is_special);
        if text.get(at) == Some(&b'=') {
            return Err("invalid tag format");
        }
        if at == equals + 1 {
            return Err(MISSING_TAG_VALUE);
        }
    }
    Ok(Extent { length: at, is_canonical })
}

/// The end of the name that begins at `start`: an unescaped byte that ends it, a newline, or the end of the text.
#[inline]
pub(crate) fn name_end(text: &[u8], start: usize, is_end: impl Fn(u8) -> bool) -> usize {
    let mut at = start;
    while let Some(&byte) = text.get(at) {
        if byte == b'\\' {
            at += 1 + usize::from(text.get(at + 1).is_some_and(|next| is_special(*next)));
        } else if is_end(byte) || byte == b'\n' {
            return at;
        } else {
            at += 1;
        }
    }
    at
}

/// Compares keys of tags, which may have escapes.
fn is_less(a: &[u8], b: &[u8]) -> bool {
    if a.contains(&b'\\') || b.contains(&b'\\') {
        plain_bytes(a, is_special).lt(plain_bytes(b, is_special))
    } else {
        a < b
    }
}

/// The bytes of a name without the escaping backslashes.
fn plain_bytes(name: &[u8], is_special: fn(u8) -> bool) -> impl Iterator<Item = u8> {
    name.iter().enumerate().filter_map(move |(at, byte)| {
        let next = name.get(at + 1).copied();
        let is_escape = *byte == b'\\' && next.is_some_and(is_special);
        (!is_escape).then_some(*byte)
    })
}

fn plain(name: &str) -> impl Iterator<Item = u8> {
    plain_bytes(name.as_bytes(), is_special)
}

/// A name without its escapes.
pub(crate) fn unescape(name: &str, is_special: fn(u8) -> bool) -> Cow<'_, str> {
    if !name.contains('\\') {
        return Cow::Borrowed(name);
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        if !after.bytes().next().is_some_and(is_special) {
            plain.push('\\');
        }
        rest = after;
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// True if a line can express this name of a tag or a field, or this tag value.
pub(crate) fn is_name(name: &str) -> bool {
    !name.ends_with('\\') && !name.contains('\n')
}

fn push_name(text: &mut String, name: &str) -> Result<()> {
    if !is_name(name) {
        return Err(Error::Input(format!("invalid name in a series key: {name:?}")));
    }
    for character in name.chars() {
        if u8::try_from(character).is_ok_and(is_special) {
            text.push('\\');
        }
        text.push(character);
    }
    Ok(())
}

fn push_measurement(text: &mut String, measurement: &str) -> Result<()> {
    let mut escaped = String::with_capacity(measurement.len());
    push_name(&mut escaped, measurement)?;
    push_plain_equals(text, &escaped);
    Ok(())
}

/// Appends a measurement without the needless backslashes before equals signs.
fn push_plain_equals(text: &mut String, measurement: &str) {
    let mut rest = measurement;
    while let Some((before, after)) = rest.split_once(r"\=") {
        text.push_str(before);
        text.push_str(if text.ends_with('\\') { r"\=" } else { "=" });
        rest = after;
    }
    text.push_str(rest);
}

/// The text before the first unescaped stop byte, and the text behind it.
fn halves(text: &str, is_stop: fn(u8) -> bool) -> (&str, &str) {
    let mut at = 0;
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' && bytes.get(at + 1).is_some_and(|next| is_special(*next)) {
            at += 2;
        } else if is_stop(byte) {
            break;
        } else {
            at += 1;
        }
    }
    (text.get(..at).unwrap_or(text), text.get(at + 1..).unwrap_or_default())
}

/// Tag keys and values with their escapes, from the text behind the measurement.
struct RawTags<'k>(&'k str);

impl<'k> Iterator for RawTags<'k> {
    type Item = (&'k str, &'k str);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (tag, rest) = halves(self.0, is_comma);
        self.0 = rest;
        Some(halves(tag, |byte| byte == b'='))
    }
}

#[cfg(test)]
mod tests;
