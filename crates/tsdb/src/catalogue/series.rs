//! Series, and the text of their keys.
//!
//! A key is `measurement,key=value,…` in the canonical form of [`SeriesKey`](crate::SeriesKey): commas and spaces (and the
//! equals signs of keys and values of tags) have a backslash before them, other backslashes are plain, keys ascend, and
//! nothing is empty. A text that deviates is refused, for two texts of one series would be two series.

use super::{MeasurementId, SeriesId};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;

/// A series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Its number.
    pub id: SeriesId,
    /// The queue set that has its points.
    pub set: u32,
    /// Its measurement.
    pub(crate) measurement: MeasurementId,
    /// The text of its [`SeriesKey`](crate::SeriesKey).
    pub key: Box<str>,
    /// Keys and values, ascending by key; the texts are shared by the series of the measurement.
    pub tags: Box<[(Arc<str>, Arc<str>)]>,
}

impl Series {
    /// The value of a tag; empty if the series has none of that key.
    #[must_use]
    pub fn tag(&self, key: &str) -> &str {
        self.tags.iter().find(|(name, _)| **name == *key).map_or("", |(_, value)| value)
    }
}

/// Keys and values, ascending by key.
pub(super) type Tags<'k> = SmallVec<[(Cow<'k, str>, Cow<'k, str>); 8]>;

/// The measurement and the tags of a key; none if the text is not canonical.
pub(super) fn parts(key: &str) -> Option<(Cow<'_, str>, Tags<'_>)> {
    if key.contains('\n') {
        return None;
    }
    let (measurement, mut rest) = part(key, b',', b", ")?;
    let mut tags = Tags::new();
    while let Some(text) = rest {
        let (name, value) = part(text, b'=', b", =")?;
        let (value, behind) = part(value?, b',', b", =")?;
        if tags.last().is_some_and(|(last, _)| *last >= name) {
            return None;
        }
        tags.push((name, value));
        rest = behind;
    }
    Some((measurement, tags))
}

/// The text up to a separator, without its escapes, and what is behind the separator. None if the text is empty or has another
/// one of the escaped characters bare.
fn part<'k>(
    text: &'k str,
    separator: u8,
    escaped: &[u8],
) -> Option<(Cow<'k, str>, Option<&'k str>)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut has_escapes = false;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'\\' && bytes.get(at + 1).is_some_and(|next| escaped.contains(next)) {
            has_escapes = true;
            at += 2;
        } else if *byte == separator {
            break;
        } else if escaped.contains(byte) {
            return None;
        } else {
            at += 1;
        }
    }
    let (head, tail) = text.split_at_checked(at)?;
    if head.is_empty() {
        return None;
    }
    let head = if has_escapes { unescape(head, escaped).into() } else { head.into() };
    Some((head, tail.get(1..)))
}

fn unescape(text: &str, escaped: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        let is_escape = char == '\\'
            && rest.peek().is_some_and(|next| escaped.iter().any(|it| char::from(*it) == *next));
        if !is_escape {
            out.push(char);
        } else if let Some(next) = rest.next() {
            out.push(next);
        }
    }
    out
}
