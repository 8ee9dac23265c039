//! Walking over the keys.

use super::{Answer, Call, Failure, SYNTAX, is};
use crate::glob;
use crate::resp::number::{parse_cursor, parse_i64};
use crate::resp::reply::Reply;
use coreplane_engine::Entry;
use std::hash::{BuildHasher, RandomState};

/// Records looked at in one call of the engine.
const STEP: usize = 1024;

/// `KEYS pattern`, alone among the event loops
pub(super) fn keys(call: &mut Call<'_, '_>) -> Answer {
    let pattern = call.word(1);
    let mut found = Found::new(Some(pattern), true);
    let mut cursor = 0;
    loop {
        cursor = call.store.iterate(cursor, STEP, &mut |entry| found.see(&entry))?;
        if cursor == 0 {
            break;
        }
    }
    // An iteration may show a record twice, an answer may not.
    found.remove_repeated();
    found.answer(&mut call.reply);
    Ok(())
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(super) fn scan(call: &mut Call<'_, '_>) -> Answer {
    let cursor = parse_cursor(call.word(1)).ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut is_kind) = (None, 10, true);
    let mut words = call.words.from(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        if is(word, "COUNT") {
            count = scan_count(value)?;
        } else if is(word, "MATCH") {
            pattern = Some(value);
        } else if is(word, "TYPE") {
            // All records are strings.
            is_kind = is(value, "STRING");
        } else {
            return Err(SYNTAX.into());
        }
    }
    let mut found = Found::new(pattern, is_kind);
    let next = call.store.iterate(cursor, count, &mut |entry| found.see(&entry))?;
    call.reply.array(2);
    call.reply.bulk(itoa::Buffer::new().format(next).as_bytes());
    found.answer(&mut call.reply);
    Ok(())
}

fn scan_count(value: &[u8]) -> Result<usize, Failure> {
    let count = parse_i64(value).ok_or(super::NOT_INTEGER)?;
    if count < 1 {
        return Err(SYNTAX.into());
    }
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Keys that match.
struct Found<'a> {
    pattern: Option<&'a [u8]>,
    is_kind: bool,
    keys: Vec<Vec<u8>>,
}

impl<'a> Found<'a> {
    fn new(pattern: Option<&'a [u8]>, is_kind: bool) -> Self {
        Self { pattern: pattern.filter(|pattern| *pattern != b"*"), is_kind, keys: Vec::new() }
    }

    fn see(&mut self, entry: &Entry<'_>) {
        let matches = |pattern| glob::matches(pattern, entry.key, false);
        if self.is_kind && self.pattern.is_none_or(matches) {
            self.keys.push(entry.key.to_vec());
        }
    }

    fn remove_repeated(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
    }

    fn answer(&self, reply: &mut Reply<'_>) {
        reply.array(self.keys.len());
        for key in &self.keys {
            reply.bulk(key);
        }
    }
}

/// `RANDOMKEY`
pub(super) fn random_key(call: &mut Call<'_, '_>) -> Answer {
    const CHOICE: usize = 16;
    let random = RandomState::new().hash_one(call.store.now.0);
    // An engine's cursors may end far below the largest number: try shorter and shorter ones.
    let starts = (0..u64::BITS).map(|bits| random >> bits).chain([0]);
    let mut keys = Vec::new();
    for start in starts {
        let mut cursor = start;
        while keys.is_empty() {
            cursor = call.store.iterate(cursor, CHOICE, &mut |entry| {
                if entry.record.is_some() {
                    keys.push(entry.key.to_vec());
                }
            })?;
            if cursor == 0 {
                break;
            }
        }
        if !keys.is_empty() {
            break;
        }
    }
    let choice = random.rotate_left(32).checked_rem(keys.len() as u64);
    match choice.and_then(|index| keys.get(usize::try_from(index).ok()?)) {
        Some(key) => call.reply.bulk(key),
        None => call.reply.null(),
    }
    Ok(())
}
