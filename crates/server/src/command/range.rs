//! `RANGE`, which Redis does not have: records in the order of their keys.

use super::{Answer, Call, Failure, SYNTAX, is};
use crate::continuation::{Continuation, RangePage, Shown};
use crate::resp::number::parse_i64;

/// Records in one answer, at most.
const RECORDS_MAX: usize = 1024;

/// The parameters of a `RANGE`.
struct Range<'a> {
    /// None: above all keys.
    start: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    prefix: &'a [u8],
    limit: usize,
    reverse: bool,
    shown: Shown,
}

/// `RANGE min max [PREFIX prefix] [LIMIT count] [REV] [WITHVALUES] [WITHEXPIRIES]`
///
/// Bounds are written as for `ZRANGEBYLEX`: `-`, `+`, `[key`, `(key`. The answer has two elements: the bound to go on
/// with, in place of `min` (with `REV` of `max`), or null at the end; and the keys, each followed by its value, and
/// by the Unix time in milliseconds at which it expires or -1. The answer ends before the limit where it gets too
/// long.
pub(super) fn range(call: &mut Call<'_, '_>) -> Answer {
    let range = Range::parse(call)?;
    let mut page = match call.session.continuation.take() {
        Some(Continuation::Range(page)) => page,
        _ => {
            let form = (range.shown, call.reply.proto);
            let leadership = call.store.leaderships();
            Box::new(RangePage::new(range.limit, range.reverse, form, leadership))
        }
    };
    if let Some((start, end)) = range.bounds() {
        loop {
            if call.is_out_of_time() {
                return call.suspend(Continuation::Range(page));
            }
            match page.step(call.store, (&start, end.as_deref())) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => return Err(call.keep(Continuation::Range(page), error)),
            }
        }
    }
    page.write(&mut call.reply);
    Ok(())
}

impl<'a> Range<'a> {
    fn parse(call: &Call<'a, '_>) -> Result<Self, Failure> {
        let bad = "ERR min or max not valid string range item";
        let mut range = Self {
            start: lower(call.word(1)).ok_or(bad)?,
            end: upper(call.word(2)).ok_or(bad)?,
            prefix: b"",
            limit: RECORDS_MAX,
            reverse: false,
            shown: Shown::default(),
        };
        let mut words = call.words.from(3);
        while let Some(word) = words.next() {
            if is(word, "REV") {
                range.reverse = true;
            } else if is(word, "WITHVALUES") {
                range.shown.values = true;
            } else if is(word, "WITHEXPIRIES") {
                range.shown.expiries = true;
            } else if is(word, "PREFIX") {
                range.prefix = words.next().ok_or(SYNTAX)?;
            } else if is(word, "LIMIT") {
                let limit = parse_i64(words.next().ok_or(SYNTAX)?).ok_or(super::NOT_INTEGER)?;
                let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
                let limit = limit.ok_or("ERR value is out of range, must be positive")?;
                range.limit = limit.min(RECORDS_MAX);
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(range)
    }

    /// The first key that may be shown, and the first key beyond; none if the range is empty.
    fn bounds(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let start = self.start.as_deref()?.max(self.prefix).to_vec();
        let end = match (self.end.clone(), coreplane_engine::end_of_prefix(self.prefix)) {
            (Some(end), Some(other)) => Some(end.min(other)),
            (end, other) => end.or(other),
        };
        end.as_ref().is_none_or(|end| start < *end).then_some((start, end))
    }
}

fn just_above(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The first key that a lower bound admits: none if it admits none. None at all if the word is no bound.
fn lower(word: &[u8]) -> Option<Option<Vec<u8>>> {
    Some(match word {
        b"-" => Some(Vec::new()),
        b"+" => None,
        [b'[', key @ ..] => Some(key.to_vec()),
        [b'(', key @ ..] => Some(just_above(key)),
        _ => return None,
    })
}

/// The first key above an upper bound: none if there is no such key. None at all if the word is no bound.
fn upper(word: &[u8]) -> Option<Option<Vec<u8>>> {
    Some(match word {
        b"-" => Some(Vec::new()),
        b"+" => None,
        [b'[', key @ ..] => Some(just_above(key)),
        [b'(', key @ ..] => Some(key.to_vec()),
        _ => return None,
    })
}
