//! Reads of several keys at one moment.
//!
//! The keys of a lane are sorted by their groups. One device of each group is asked in one call for all keys
//! of which it has the newest write, so that the engine fetches all of their cache lines at once:
//!
//! ```text
//!   keys ─ by group ─▶ one device: found, and no write has begun ─▶ copied
//!              └───── all others ─▶ as a read of one key
//! ```
//!
//! Only records that were found are taken from there, each after the same two checks of the in-flight word as
//! in a read of a single key. A key that is absent, is being written, may be lost or is damaged is read by
//! itself. No record is shown before all are read without a batch published meanwhile. A thread whose reads
//! often miss asks the filters first, so that absent keys are not looked up twice.

use super::Keyspace;
use crate::filter::{bypass, hash_of};
use crate::group::Group;
use crate::in_flight::Seen;
use crate::shape::is_reserved;
use crate::stats::{Said, latency};
use coreplane_engine::{Record, Result, Ticket, UnixMillis, Value, Visibility};
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys that are read side by side: few enough that hardly any write begins meanwhile.
const LANE: usize = 64;

/// Tries to read the keys before their key locks are taken.
const TRIES: usize = 8;

/// A lane with more bytes takes long even if the device does not stall.
const STEADY_BYTES_MAX: usize = 64 << 10;

/// Answers with more bytes, or of more keys, are not kept for the next call.
const KEPT_BYTES_MAX: usize = 1 << 20;
const KEPT_KEYS_MAX: usize = 1 << 14;

thread_local! {
    /// The answers of the last call, for the next one.
    static ANSWERS: Cell<Answers> = const { Cell::new(Answers::NONE) };
}

/// Copied records, by the numbers of their keys.
#[derive(Default)]
pub(crate) struct Answers {
    bytes: Vec<u8>,
    found: Vec<Option<Copied>>,
}

/// A record: where its value begins among the bytes of all, and its length.
struct Copied {
    start: usize,
    len: usize,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

/// A key of a lane: its group, and its number among all keys.
struct LaneKey {
    group: u16,
    at: usize,
    hash: u64,
}

impl Answers {
    const NONE: Self = Self { bytes: Vec::new(), found: Vec::new() };

    fn begin(&mut self, keys: usize) {
        self.bytes.clear();
        self.found.clear();
        self.found.resize_with(keys, || None);
    }

    fn keep(&mut self, at: usize, record: &Record<'_>) {
        let start = self.bytes.len();
        record.value.append_to(&mut self.bytes);
        let (len, sequence) = (self.bytes.len() - start, record.sequence);
        self.found[at] = Some(Copied { start, len, sequence, expires_at: record.expires_at });
    }

    /// Shows each record, or that there is none, and leaves the buffers to the next call of the thread.
    pub(crate) fn show(self, visit: &mut dyn FnMut(usize, Option<Record<'_>>)) {
        for (at, found) in self.found.iter().enumerate() {
            let record = found.as_ref().map(|it| Record {
                value: Value::Whole(&self.bytes[it.start..it.start + it.len]),
                sequence: it.sequence,
                expires_at: it.expires_at,
                ticket: Ticket::DURABLE,
            });
            visit(at, record);
        }
        if self.bytes.capacity() <= KEPT_BYTES_MAX && self.found.capacity() <= KEPT_KEYS_MAX {
            ANSWERS.set(self);
        }
    }
}

impl Keyspace {
    /// A key is about to be read.
    pub(crate) fn prefetch(&self, key: &[u8]) {
        self.group_of(hash_of(key)).prefetch_to_read(key);
    }

    /// The records of keys, as they were at one moment as far as batches go.
    ///
    /// # Errors
    /// As a read of each.
    pub(crate) fn answers(&self, keys: &[&[u8]]) -> Result<Answers> {
        let mut answers = ANSWERS.take();
        let mut backoff = Backoff::new();
        for _ in 0..TRIES {
            let Some(quiet) = self.isolation.quiet() else {
                backoff.wait();
                continue;
            };
            let read = self.read_all(keys, &mut answers);
            if self.isolation.is_quiet_since(quiet) {
                return read.map(|()| answers);
            }
        }
        let _turns = self.lock_keys(keys.iter().map(|key| hash_of(key)));
        self.read_all(keys, &mut answers).map(|()| answers)
    }

    fn read_all(&self, keys: &[&[u8]], answers: &mut Answers) -> Result<()> {
        answers.begin(keys.len());
        let starts = (0..keys.len()).step_by(LANE);
        starts.into_iter().try_for_each(|start| self.read_lane(keys, start, answers))
    }

    /// Reads up to [`LANE`] keys, beginning with the key of number `start`.
    fn read_lane(&self, keys: &[&[u8]], start: usize, answers: &mut Answers) -> Result<()> {
        let end = keys.len().min(start + LANE);
        let ask = |at| {
            let hash = hash_of(keys[at]);
            LaneKey { group: self.owners.of(hash).owner() as u16, at, hash }
        };
        let mut asks: SmallVec<[LaneKey; LANE]> = (start..end).map(ask).collect();
        let mut rest: SmallVec<[usize; LANE]> = SmallVec::new();
        if self.is_empty.load(Ordering::Acquire) || self.lost_ranges.is_any() {
            rest.extend(start..end);
        } else {
            if bypass::is_worth_it() {
                self.leave_denied(keys, &mut asks);
            }
            asks.sort_by_key(|ask| ask.group);
            for asks in asks.chunk_by(|one, other| one.group == other.group) {
                let group = &self.groups[usize::from(asks[0].group)];
                self.read_on_one(group, keys, asks, answers, &mut rest);
            }
        }
        rest.iter().skip(1).for_each(|at| self.prefetch(keys[*at]));
        for at in rest {
            self.get_with(keys[at], &mut |record| answers.keep(at, &record))?;
        }
        Ok(())
    }

    /// Copies the records that one device has, of those keys of which it has the newest write. All others go
    /// to `rest`.
    fn read_on_one(
        &self,
        group: &Arc<Group>,
        keys: &[&[u8]],
        asks: &[LaneKey],
        answers: &mut Answers,
        rest: &mut SmallVec<[usize; LANE]>,
    ) {
        let Some((device, members, moment)) = group.lane_reader() else {
            return rest.extend(asks.iter().map(|ask| ask.at));
        };
        let mut known: SmallVec<[(&LaneKey, Seen); LANE]> = SmallVec::new();
        for ask in asks {
            match group.see_current((ask.hash, keys[ask.at]), device.number, members) {
                Some(seen) if !is_reserved(keys[ask.at]) => known.push((ask, seen)),
                _ => rest.push(ask.at),
            }
        }
        // A device that is no longer a member may lack writes acknowledged since. A device that has become a
        // member may lack lost writes, which are noted before.
        if group.states.now() != moment || self.lost_ranges.is_any() {
            return rest.extend(known.iter().map(|(ask, _)| ask.at));
        }
        if known.is_empty() {
            return;
        }
        let lane: SmallVec<[&[u8]; LANE]> = known.iter().map(|(ask, _)| keys[ask.at]).collect();
        let before = answers.bytes.len();
        let timer = latency::timer();
        let mut keep = |number: usize, record: Option<Record<'_>>| {
            let (ask, seen) = &known[number];
            if let Some(record) = record
                && (!group.in_flight.has_begun_since(ask.hash, *seen)
                    || mutant!("mkvs.multi_get.second_look"))
            {
                answers.keep(ask.at, &record);
            }
        };
        let read = device.engine.call(|it| it.multi_get(&lane, Visibility::Durable, &mut keep));
        let bytes = answers.bytes.len() - before;
        if let Some(begun_at) = timer
            && bytes <= STEADY_BYTES_MAX
        {
            device.pace.note_here(begun_at.elapsed(), lane.len(), group.is_watching());
        }
        let mut hits = 0;
        for (ask, _) in &known {
            let found = &mut answers.found[ask.at];
            if read.is_err() && !mutant!("mkvs.multi_get.failed") {
                // Records that a device shows while its medium is being lost are not to be believed.
                *found = None;
            }
            match found {
                Some(_) => hits += 1,
                None => rest.push(ask.at),
            }
        }
        group.asked.note_hits(hits);
        (0..hits).for_each(|_| bypass::note(true));
    }

    /// Leaves out the keys that the filters of their groups deny.
    fn leave_denied(&self, keys: &[&[u8]], asks: &mut SmallVec<[LaneKey; LANE]>) {
        let filter = |ask: &LaneKey| &self.groups[usize::from(ask.group)].filter;
        asks.iter().for_each(|ask| filter(ask).prefetch_to_read(ask.hash));
        asks.retain(|ask| {
            let group = &self.groups[usize::from(ask.group)];
            // A group that the key has left meanwhile does not know where the key is, and a filter does not know
            // lost keys.
            let is_denied = group.denies((ask.hash, keys[ask.at]))
                && self.is_of(ask.group, ask.hash)
                && !self.lost_ranges.is_any();
            if is_denied {
                bypass::note(false);
                group.asked.note(false, Said::No);
            }
            !is_denied
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_shown_by_the_numbers_of_their_keys() {
        for round in 0..2 {
            let mut answers = ANSWERS.take();
            answers.begin(3);
            let record = |value, sequence| Record {
                value: Value::Whole(value),
                sequence,
                expires_at: (sequence == 7).then_some(UnixMillis(9)),
                ticket: Ticket::DURABLE,
            };
            answers.keep(2, &record(b"third", 7));
            answers.keep(0, &record(b"", 8 + round));
            let mut shown = Vec::new();
            answers.show(&mut |at, record| {
                let told = |it: Record<'_>| (it.value.to_vec(), it.sequence, it.expires_at);
                shown.push((at, record.map(told)));
            });
            let third = (b"third".to_vec(), 7, Some(UnixMillis(9)));
            assert_eq!(shown, [(0, Some((vec![], 8 + round, None))), (1, None), (2, Some(third))]);
        }
    }
}
