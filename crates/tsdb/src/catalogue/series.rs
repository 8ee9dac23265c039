//! Series, and the text of their keys.
//!
//! A key is `measurement,key=value,…` in the canonical form of [`SeriesKey`](crate::SeriesKey): commas and spaces (and the
//! equals signs of keys and values of tags, and those behind a backslash) have a backslash before them, other backslashes are
//! plain, keys ascend, and nothing is empty. A text that deviates is refused, for two texts of one series would be two series.

use super::{MeasurementId, SeriesId};
use crate::point::{is_special, unescape};
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
    let (measurement, mut rest) = part(key, b',', |byte| byte == b'=')?;
    let mut tags = Tags::new();
    while let Some(text) = rest {
        let (name, value) = part(text, b'=', |_| false)?;
        let (value, behind) = part(value?, b',', |_| false)?;
        if tags.last().is_some_and(|(last, _)| *last >= name) {
            return None;
        }
        tags.push((name, value));
        rest = behind;
    }
    Some((measurement, tags))
}

/// The text up to a separator, without its escapes, and what is behind the separator. None if the text is empty, or a character
/// that needs an escape is bare, or one that needs none has it; behind another backslash it needs one.
fn part<'k>(
    text: &'k str,
    separator: u8,
    is_plain: impl Fn(u8) -> bool,
) -> Option<(Cow<'k, str>, Option<&'k str>)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut before = None;
    while let Some(byte) = bytes.get(at).copied() {
        if byte == b'\\'
            && let Some(next) = bytes.get(at + 1).copied().filter(|next| is_special(*next))
        {
            if is_plain(next) && before != Some(b'\\') {
                return None;
            }
            before = Some(next);
            at += 2;
            continue;
        }
        if byte == separator {
            break;
        }
        if is_special(byte) && !is_plain(byte) {
            return None;
        }
        before = Some(byte);
        at += 1;
    }
    let (head, tail) = text.split_at_checked(at)?;
    if head.is_empty() {
        return None;
    }
    Some((unescape(head, is_special), tail.get(1..)))
}
