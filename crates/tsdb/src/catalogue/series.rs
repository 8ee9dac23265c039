//! Series, and the text of their keys.
//!
//! A key is `measurement,key=value,…` in the canonical form of [`SeriesKey`](crate::SeriesKey): commas and spaces (and the
//! equals signs of keys and values of tags, and those behind a backslash) have a backslash before them, other backslashes are
//! plain, keys ascend, and nothing is empty. A text that deviates is refused, for two texts of one series would be two series.
//!
//! A series has the text of its key and not its tags beside it: they are read out of the text. The text is what a line is
//! compared with, and tags as pointers take twice as much as the text. Only keys with escapes have a second text:
//!
//! ```text
//!   key     cpu,host=a,rack=12        a separator is never behind a backslash, so nothing else is looked at
//!   key     cpu,host=a\ b,rack=1       ─▶  unescaped   host ⏎ a b ⏎ rack ⏎ 1        no name has a line break
//! ```

use super::{MeasurementId, SeriesId};
use crate::point::{is_special, unescape};
use smallvec::SmallVec;
use std::borrow::Cow;

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
    /// Its tags, if there are escapes in the key.
    unescaped: Option<Box<Unescaped>>,
}

/// Keys and values by turns, a line each. A box of it is one word, and most series have none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unescaped(Box<str>);

impl Series {
    /// A series whose key has these tags.
    pub(super) fn new(
        id: SeriesId,
        set: u32,
        measurement: MeasurementId,
        key: Box<str>,
        unescaped: Option<Box<str>>,
    ) -> Self {
        let unescaped = unescaped.map(|text| Box::new(Unescaped(text)));
        Self { id, set, measurement, key, unescaped }
    }

    /// Its keys and values, ascending by key.
    #[must_use]
    pub fn tags(&self) -> SeriesTags<'_> {
        match &self.unescaped {
            Some(unescaped) => SeriesTags { rest: &unescaped.0, between: '\n', behind: '\n' },
            None => SeriesTags { rest: tags_of(&self.key), between: '=', behind: ',' },
        }
    }

    /// The value of a tag; empty if the series has none of that key.
    #[must_use]
    pub fn tag(&self, key: &str) -> &str {
        self.tags().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    /// About the bytes of DRAM that it takes, with what finds it by its key, without postings.
    pub(super) fn cost(&self) -> usize {
        let unescaped = self.unescaped.as_ref().map_or(0, |it| UNESCAPED_COST + it.0.len());
        SERIES_COST + self.key.len() + unescaped
    }
}

/// What a series takes in DRAM beside its text, about: the object, its places in tables, and its device's.
const SERIES_COST: usize = 128;
/// What a second text takes in DRAM beside its bytes.
const UNESCAPED_COST: usize = 48;

/// Keys and values of a series, ascending by key.
#[derive(Debug, Clone)]
pub struct SeriesTags<'s> {
    rest: &'s str,
    /// What stands between a key and its value, and behind that.
    between: char,
    behind: char,
}

impl<'s> Iterator for SeriesTags<'s> {
    type Item = (&'s str, &'s str);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.rest.split_once(self.between)?;
        let (value, rest) = rest.split_once(self.behind).unwrap_or((rest, ""));
        self.rest = rest;
        Some((key, value))
    }
}

/// What is behind the measurement of a key: behind the first comma that has no backslash before it.
fn tags_of(key: &str) -> &str {
    let mut commas = key.match_indices(',').filter_map(|(at, _)| key.split_at_checked(at));
    let end = commas.find(|(measurement, _)| !measurement.ends_with('\\'));
    end.and_then(|(_, tags)| tags.get(1..)).unwrap_or_default()
}

/// Keys and values, ascending by key.
pub(super) type Tags<'k> = SmallVec<[(Cow<'k, str>, Cow<'k, str>); 8]>;

/// Tags as a text of lines, if one of them has escapes in its key.
pub(super) fn unescaped(tags: &Tags<'_>) -> Option<Box<str>> {
    let is_escaped = |it: &Cow<'_, str>| matches!(it, Cow::Owned(_));
    if !tags.iter().any(|(key, value)| is_escaped(key) || is_escaped(value)) {
        return None;
    }
    let texts: SmallVec<[&str; 16]> =
        tags.iter().flat_map(|(key, value)| [&**key, &**value]).collect();
    Some(texts.join("\n").into())
}

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
