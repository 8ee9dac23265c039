//! Series, and the text of their keys.
//!
//! A key is `measurement,key=value,…` in the canonical form of [`SeriesKey`](crate::SeriesKey): commas and spaces
//! are escaped by a backslash, and so are equals signs in tag keys, in tag values, and behind a backslash; other
//! backslashes are plain, keys ascend, and nothing is empty. Other spellings are refused: two texts of one series
//! would be two series.
//!
//! A series keeps the text of its key, and no separate tags: they are read out of the text. Lines are compared with
//! the text, and tags as pointers would take twice as much memory as the text. Only keys with escapes have a second
//! text:
//!
//! ```text
//!   key     cpu,host=a,rack=12        a separator is never behind a backslash, so nothing else is looked at
//!   key     cpu,host=a\ b,rack=1       ─▶  unescaped   host ⏎ a b ⏎ rack ⏎ 1        no name has a line break
//! ```

use super::{MeasurementId, SeriesId};
use crate::point::{is_special, unescape};
use coreplane_pmem::mutant;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};

/// A series.
#[derive(Debug)]
pub struct Series {
    /// Its number.
    pub id: SeriesId,
    /// The queue set that has its points.
    pub set: u32,
    /// Its measurement.
    pub(crate) measurement: MeasurementId,
    /// The text of its [`SeriesKey`](crate::SeriesKey).
    pub key: Box<str>,
    /// Its tags in plain text, if the key has escapes.
    unescaped: Option<Box<Unescaped>>,
    /// [`LIVE`], [`EMPTY`] or [`DOOMED`].
    state: AtomicU8,
}

/// A series as usual.
const LIVE: u8 = 0;
/// Retention has left it no point; the next write keeps it.
const EMPTY: u8 = 1;
/// Its drop is being logged: a write waits for the end of it, and makes a new series.
const DOOMED: u8 = 2;

/// Tag keys and tag values by turns, one in each line. A box of it is one word, and most series have none.
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
        Self { id, set, measurement, key, unescaped, state: AtomicU8::new(LIVE) }
    }

    /// Notes that it was found without a point. A write that does not see this note must have ended before the
    /// series is looked at again and doomed.
    pub(crate) fn note_empty(&self) {
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Keeps the series for a point to be written; false if it is doomed.
    #[inline]
    pub(crate) fn keep(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state == LIVE || mutant!("tsdb.series.kept") || self.change(EMPTY, LIVE)
    }

    /// Dooms the series, whose drop is to be logged; false if a write has kept it.
    pub(crate) fn doom(&self) -> bool {
        self.change(EMPTY, DOOMED)
    }

    /// Keeps the series, whatever it was. The caller has the lock of the log, so that no drop is being logged.
    pub(crate) fn revive(&self) {
        self.state.store(LIVE, Ordering::Release);
    }

    /// True if it is `to` afterwards.
    fn change(&self, from: u8, to: u8) -> bool {
        let changed = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.map_or_else(|found| found == to, |_| true)
    }

    /// Its tags, ascending by key.
    #[must_use]
    pub fn tags(&self) -> SeriesTags<'_> {
        match &self.unescaped {
            Some(unescaped) => SeriesTags { rest: &unescaped.0, between: '\n', behind: '\n' },
            None => SeriesTags { rest: tags_of(&self.key), between: '=', behind: ',' },
        }
    }

    /// The value of a tag; empty if the series does not have the tag.
    #[must_use]
    pub fn tag(&self, key: &str) -> &str {
        self.tags().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    /// The approximate bytes of DRAM of the series and of its place in the table of keys, without postings.
    pub(super) fn cost(&self) -> usize {
        cost_of(&self.key, self.unescaped.as_ref().map(|it| it.0.len()))
    }
}

/// The same of a series with this key, and bytes of an unescaped text if it has one.
pub(super) fn cost_of(key: &str, unescaped: Option<usize>) -> usize {
    SERIES_COST + key.len() + unescaped.map_or(0, |len| UNESCAPED_COST + len)
}

/// Bytes of DRAM of a series beside its text, about: the object, its places in tables, and the entry of its device.
const SERIES_COST: usize = 128;
/// Bytes of DRAM of a second text beside its characters.
const UNESCAPED_COST: usize = 48;

/// The tags of a series, ascending by key.
#[derive(Debug, Clone)]
pub struct SeriesTags<'s> {
    rest: &'s str,
    /// The separators between a key and its value, and behind the value.
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

/// The tags of a key: the text behind the first comma that has no backslash before it.
fn tags_of(key: &str) -> &str {
    let mut commas = key.match_indices(',').filter_map(|(at, _)| key.split_at_checked(at));
    let end = commas.find(|(measurement, _)| !measurement.ends_with('\\'));
    end.and_then(|(_, tags)| tags.get(1..)).unwrap_or_default()
}

/// Tags, ascending by key.
pub(super) type Tags<'k> = SmallVec<[(Cow<'k, str>, Cow<'k, str>); 8]>;

/// Tags as a text of lines, if one of them has escapes in the key.
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

/// The text up to a separator, without its escapes, and the text behind the separator. None if the text is empty,
/// if a character that needs an escape has none, or if one that needs none has it; behind another backslash it
/// needs one.
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
