//! A read of very many keys in slices, whose answer shows one moment nevertheless.
//!
//! ```text
//!   slice 1..n   read the keys, some hundred at a step         others write; written keys are marked
//!   slice ..     read the keys written meanwhile again         others write; marked, too
//!   the last     alone among the event loops: read the keys marked now, a few at most
//! ```
//!
//! A key that was not written since it was read has the same value in the last slice; all other keys are read in the
//! last slice. So the answer is the same as one step would have shown at that moment. Each round of the second kind
//! is shorter than the one before, since its length depends on the number of keys written in that one. If writers are
//! quicker than this reader, which [`ATTEMPTS_MAX`] rounds show, the last slice reads all remaining keys: atomicity
//! is worth more than the delay of the others.
//!
//! Marks are of buckets of keys ([`Marks`]), twice as many buckets as keys. A bucket's keys are a list.

use super::Pieces;
use crate::host::Host;
use crate::resp::frame::Words;
use crate::resp::reply::{Proto, Reply};
use crate::slice::Slice;
use crate::store::Store;
use crate::watch::{Marked, Marks};
use coreplane_engine::{Record, Result, UnixMillis};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Keys of a step at most and at first, and bytes of values above which its remaining keys are left for the next.
const STEP_KEYS: usize = 128;
const FIRST_STEP_KEYS: usize = 16;
const STEP_BYTES: usize = 512 << 10;

/// Keys that are read in the last slice.
const LAST_KEYS: usize = 256;

/// So many rounds are made before the last slice takes as long as it needs.
const ATTEMPTS_MAX: u32 = 8;

/// The result that is wanted of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Their values.
    Values(Proto),
    /// The number of existing keys; a key that is named twice counts twice.
    Count,
}

/// A read in the making.
#[derive(Debug)]
pub(crate) struct ManyKeys {
    kind: Kind,
    /// Marks of the keys written meanwhile; none once all is read.
    marks: Option<Arc<Marks>>,
    leadership: u64,
    /// By bucket: its last key's number plus one. By key: the number plus one of the previous key in its bucket.
    last_of: Vec<u32>,
    before: Vec<u32>,
    found: Vec<Found>,
    values: Values,
    /// Keys of the next step: fewer where values are large, since an engine may read all of them.
    step: usize,
    /// Keys still to be read, since their step was full, and keys to be read again.
    left_out: Vec<u32>,
    written: Vec<u32>,
    /// The expiries of the existing keys, the next one first. A later read of a key may have replaced its expiry.
    expiries: BinaryHeap<Reverse<(u64, u32)>>,
    attempts: u32,
    is_complete: bool,
    /// The number of keys in the output; none: nothing is in the output.
    answered: Option<usize>,
}

/// The result for a key.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Where its value is: piece, first byte and length.
    place: (u32, u32, u32),
    is_there: bool,
    /// When it expires; [`NEVER`].
    expires_at: u64,
}

const NEVER: u64 = u64::MAX;
const ABSENT: Found = Found { place: (0, 0, 0), is_there: false, expires_at: NEVER };

impl ManyKeys {
    /// A read of so many keys, none of which is read yet. All writes that begin later are marked.
    pub(crate) fn begin(kind: Kind, keys: usize, host: &Host, member: usize) -> Self {
        // No loop is between a write and its mark, or between the check whether to mark and the write.
        let alone = host.isolation.alone(member);
        let marks = host.watched.mark_writes(keys.saturating_mul(2));
        drop(alone);
        Self {
            kind,
            leadership: host.engine.leaderships(),
            last_of: vec![0; marks.buckets()],
            marks: Some(marks),
            before: Vec::new(),
            found: Vec::new(),
            values: Values::default(),
            step: FIRST_STEP_KEYS,
            left_out: Vec::new(),
            written: Vec::new(),
            expiries: BinaryHeap::new(),
            attempts: 0,
            is_complete: false,
            answered: None,
        }
    }

    /// Bytes of the answer so far, with values that were read again.
    pub(crate) fn bytes(&self) -> usize {
        self.values.len
    }

    /// True if the answer is too long to be read at once.
    pub(crate) fn is_much(&self) -> bool {
        self.values.len >= Pieces::OUTPUT_MAX
    }

    /// True if all is read.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Reads further keys, which are the words from the second on; true if all is read.
    ///
    /// # Errors
    /// As [`Engine::multi_get`](coreplane_engine::Engine::multi_get).
    pub(crate) fn read_on(
        &mut self,
        (store, words): (&mut Store<'_>, Words<'_>),
        (host, member): (&Host, usize),
        slice: &mut Slice,
    ) -> Result<bool> {
        while !self.is_complete {
            if !slice.has_time() {
                return Ok(false);
            }
            let keys = self.next_keys(words);
            if !keys.is_empty() {
                self.read(store, words, &keys)?;
                continue;
            }
            let alone = host.isolation.alone(member);
            self.is_complete = self.read_last(store, words)?;
            if self.is_complete {
                // The client may take its time with the answer: writers no longer pay for marks.
                (self.marks, self.last_of, self.before) = (None, Vec::new(), Vec::new());
            }
            drop(alone);
        }
        Ok(true)
    }

    /// Keys for a step; none if all were read except those for the last slice.
    fn next_keys(&mut self, words: Words<'_>) -> Vec<u32> {
        let known = self.found.len();
        let end = words.len().saturating_sub(1).min(known + self.step);
        if known < end {
            // They are entered before they are read.
            (known..end).for_each(|key| self.enter(words.at(key + 1)));
            return (known..end).filter_map(|key| u32::try_from(key).ok()).collect();
        }
        if !self.left_out.is_empty() {
            return some_of(&mut self.left_out, self.step);
        }
        if self.written.len() > LAST_KEYS {
            return some_of(&mut self.written, self.step);
        }
        Vec::new()
    }

    /// Puts the next key in its bucket.
    fn enter(&mut self, key: &[u8]) {
        let number = u32::try_from(self.found.len() + 1).unwrap_or(u32::MAX);
        let bucket = self.marks.as_ref().map(|marks| marks.bucket_of(key));
        let before = bucket.and_then(|bucket| self.last_of.get_mut(bucket));
        self.before.push(before.map_or(0, |last| std::mem::replace(last, number)));
        self.found.push(ABSENT);
    }

    /// Reads these keys, but leaves out those whose values exceed the room of a step.
    fn read(&mut self, store: &mut Store<'_>, words: Words<'_>, keys: &[u32]) -> Result<()> {
        let named: Vec<&[u8]> = keys.iter().map(|key| words.at(*key as usize + 1)).collect();
        let Self { kind, found, values, left_out, expiries, .. } = self;
        let (mut bytes, left_before) = (0, left_out.len());
        let read = store.read_many(&named, &mut |index, record| {
            let Some(key) = keys.get(index) else { return };
            let Some(found) = found.get_mut(*key as usize) else { return };
            if record.is_some() && bytes >= STEP_BYTES {
                left_out.push(*key);
                return;
            }
            if found.is_there && *kind != Kind::Count {
                values.give_back(found.place);
            }
            let Some(record) = record else {
                *found = ABSENT;
                return;
            };
            let expires_at = record.expires_at.map_or(NEVER, |at| at.0);
            if expires_at != NEVER {
                expiries.push(Reverse((expires_at, *key)));
            }
            let mut place = (0, 0, 0);
            if let Kind::Values(proto) = *kind {
                bytes += record.value.len();
                place = values.add(&record, proto);
            }
            *found = Found { place, is_there: true, expires_at };
        });
        if let Err(error) = read {
            // The step may be repeated.
            self.left_out.truncate(left_before);
            self.left_out.extend(keys);
            return Err(error);
        }
        let left = self.left_out.len() - left_before;
        self.step = match left {
            0 => STEP_KEYS.min(2 * self.step),
            _ => keys.len().saturating_sub(left).max(1),
        };
        Ok(())
    }

    /// Reads the keys written since they were read, if they are not too many; true if the answer then shows this
    /// moment. The event loop is alone.
    fn read_last(&mut self, store: &mut Store<'_>, words: Words<'_>) -> Result<bool> {
        self.take_marked(store.leaderships());
        let takes_its_time = self.attempts >= ATTEMPTS_MAX;
        self.attempts += 1;
        loop {
            self.take_expired(store.now());
            if self.written.len() > LAST_KEYS && !takes_its_time {
                return Ok(false);
            }
            if self.written.is_empty() {
                break;
            }
            // Meanwhile some more may expire.
            self.read_written(store, words, takes_its_time)?;
            if !self.left_out.is_empty() {
                return Ok(false);
            }
        }
        if self.leadership != store.leaderships() {
            return Ok(false);
        }
        store.rest_on_all();
        Ok(true)
    }

    /// Reads the written keys again, and, if `takes_its_time`, also those that a full step left out.
    fn read_written(
        &mut self,
        store: &mut Store<'_>,
        words: Words<'_>,
        takes_its_time: bool,
    ) -> Result<()> {
        loop {
            let keys = some_of(&mut self.written, self.step);
            if keys.is_empty() {
                return Ok(());
            }
            self.read(store, words, &keys)?;
            while takes_its_time && !self.left_out.is_empty() {
                let keys = some_of(&mut self.left_out, self.step);
                self.read(store, words, &keys)?;
            }
        }
    }

    /// Keys that have expired by now are read again: the engine must know that their absence was shown.
    fn take_expired(&mut self, now: UnixMillis) {
        while let Some(Reverse((at, key))) = self.expiries.peek().copied()
            && at <= now.0
        {
            self.expiries.pop();
            if self.found.get(key as usize).is_some_and(|found| found.expires_at == at) {
                self.written.push(key);
            }
        }
    }

    /// Finds the keys to be read again.
    fn take_marked(&mut self, leadership: u64) {
        match self.marks.as_ref().map_or(Marked::All, |marks| marks.take()) {
            Marked::Buckets(buckets) if leadership == self.leadership => {
                for bucket in buckets {
                    let mut next = self.last_of.get(bucket as usize).copied().unwrap_or(0);
                    while let Some(key) = next.checked_sub(1) {
                        self.written.push(key);
                        next = self.before.get(key as usize).copied().unwrap_or(0);
                    }
                }
            }
            // Another leader may have written, or everything was removed.
            Marked::Buckets(_) | Marked::All => {
                self.leadership = leadership;
                self.written = (0..).take(self.found.len()).collect();
            }
        }
    }

    /// Moves as much of the answer to `reply` as a slice may; true if all is moved.
    pub(crate) fn answer(&mut self, reply: &mut Reply<'_>, slice: &mut Slice) -> bool {
        if self.kind == Kind::Count {
            reply.count(self.found.iter().filter(|found| found.is_there).count());
            return true;
        }
        let start = reply.out.len();
        if self.answered.is_none() {
            reply.array(self.found.len());
        }
        let answered = self.answered.get_or_insert(0);
        let mut left = self.found.get(*answered..).unwrap_or_default().iter();
        while left.len() > 0 {
            if reply.out.len() - start >= Pieces::OUTPUT_MAX || !slice.has_time() {
                return false;
            }
            let before = reply.out.len();
            for found in left.by_ref().take(STEP_KEYS) {
                match found.is_there {
                    true => {
                        reply.out.extend_from_slice(self.values.at(found.place));
                        self.values.give_back(found.place);
                    }
                    false => reply.null(),
                }
                *answered += 1;
                if reply.out.len() - before > STEP_BYTES {
                    break;
                }
            }
        }
        true
    }
}

/// Takes `count` keys out.
fn some_of(keys: &mut Vec<u32>, count: usize) -> Vec<u32> {
    keys.split_off(keys.len().saturating_sub(count))
}

/// Encoded values in pieces. The memory of a piece is freed with the last of its values that is needed.
#[derive(Debug, Default)]
struct Values {
    pieces: Vec<Vec<u8>>,
    /// By piece: the number of its values that are needed.
    wanted: Vec<u32>,
    len: usize,
}

impl Values {
    /// Adds the value of `record`; its place.
    fn add(&mut self, record: &Record<'_>, proto: Proto) -> (u32, u32, u32) {
        if self.pieces.last().is_none_or(|last| last.len() >= Pieces::PIECE) {
            self.pieces.push(Vec::new());
            self.wanted.push(0);
        }
        let piece = u32::try_from(self.pieces.len() - 1).unwrap_or(u32::MAX);
        let Some(last) = self.pieces.last_mut() else { return (0, 0, 0) };
        let start = last.len();
        Reply { out: last, proto }.value(&record.value);
        let len = last.len() - start;
        self.len += len;
        if let Some(wanted) = self.wanted.last_mut() {
            *wanted += 1;
        }
        (piece, u32::try_from(start).unwrap_or(u32::MAX), u32::try_from(len).unwrap_or(u32::MAX))
    }

    /// The value at this place is not needed any more.
    fn give_back(&mut self, (piece, ..): (u32, u32, u32)) {
        let at = piece as usize;
        let Some(wanted) = self.wanted.get_mut(at) else { return };
        *wanted = wanted.saturating_sub(1);
        let is_last = at + 1 == self.pieces.len();
        if *wanted == 0
            && let Some(piece) = self.pieces.get_mut(at)
        {
            self.len -= piece.len();
            piece.clear();
            // More values may be added to the last piece.
            if !is_last {
                *piece = Vec::new();
            }
        }
    }

    fn at(&self, (piece, start, len): (u32, u32, u32)) -> &[u8] {
        let piece = self.pieces.get(piece as usize).map_or(&[][..], Vec::as_slice);
        piece.get(start as usize..start as usize + len as usize).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_engine::{Ticket, Value};

    #[test]
    fn a_value_that_is_read_again_and_again_takes_the_room_of_one() {
        let (value, mut values) = (vec![7; 1 << 20], Values::default());
        let record = || Record {
            value: Value::Whole(&value),
            sequence: 1,
            expires_at: None,
            ticket: Ticket::DURABLE,
        };
        let mut place = values.add(&record(), Proto::Two);
        let one = values.len;
        for _ in 0..100 {
            values.give_back(place);
            place = values.add(&record(), Proto::Two);
            assert_eq!((values.len, values.pieces.len()), (one, 1));
        }
        let other = values.add(&record(), Proto::Two);
        values.give_back(place);
        assert_eq!(values.at(other).len(), one);
        assert_eq!(values.len, one);
    }
}
