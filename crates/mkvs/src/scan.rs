//! Going through the records of the whole matrix in the order of their keys.
//!
//! Each group has a part of the keys, in order; the parts are fetched a stretch at a time, and merged.
//! A stretch is what the group's *anchor* shows: of every key it has what a reader was shown, and
//! no more. Two things are seen to:
//!
//! - A key that a batch over several groups is writing is read by itself, which waits for the batch;
//!   and if any write was taken back meanwhile the stretch is read again, since that may have been
//!   seen on the way.
//! - A device that fails is gone without, and the stretch is read on another. One that has damaged
//!   records only is gone around: while nobody writes every member has the same.

use crate::counters::Count;
use crate::decided::is_damage;
use crate::device::Device;
use crate::group::Group;
use crate::matrix::Shared;
use crate::pending::Pending;
use coreplane_engine::{Entry, Error, Ordered, Record, Result, Ticket, UnixMillis, Value};
use std::ops::Range;
use std::sync::Arc;

/// Records that a scan asks of a group at a time, at most.
const AT_A_TIME: usize = 64;

/// Bounds of a scan and its direction.
type Bounds<'a> = (&'a [u8], Option<&'a [u8]>, bool);

/// A record that was fetched.
struct Next {
    /// Where in the bytes of its stretch key and value are.
    key: Range<usize>,
    value: Range<usize>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

/// Records of a group, one after the other.
#[derive(Default)]
pub(crate) struct Stretch {
    records: Vec<Next>,
    bytes: Vec<u8>,
    /// The last key that was looked at, shown or not.
    last: Vec<u8>,
    /// How many were looked at.
    seen: usize,
}

impl Stretch {
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.last.clear();
        self.seen = 0;
    }

    pub(crate) fn push(&mut self, key: &[u8], record: &Record<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        record.value.append_to(&mut self.bytes);
        let (key, value) = (start..middle, middle..self.bytes.len());
        let (sequence, expires_at) = (record.sequence, record.expires_at);
        self.records.push(Next { key, value, sequence, expires_at });
    }

    /// How many records it has.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Its records, in the order in which they came.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.records.iter().map(|next| self.entry(next))
    }

    fn entry(&self, next: &Next) -> Entry<'_> {
        let record = Record {
            value: Value::Whole(&self.bytes[next.value.clone()]),
            sequence: next.sequence,
            expires_at: next.expires_at,
            ticket: Ticket::DURABLE,
        };
        let key = &self.bytes[next.key.clone()];
        Entry { key, record: Some(record), sequence: next.sequence }
    }
}

/// What a group still has for a scan.
struct Stream<'a> {
    shared: &'a Shared,
    group: usize,
    stretch: Stretch,
    /// The next one of the stretch.
    at: usize,
    /// Where to go on: from this key (or below it, on the way down).
    from: Option<Vec<u8>>,
    is_over: bool,
}

impl Stream<'_> {
    /// The key that it has next.
    fn key(&self) -> Option<&[u8]> {
        let next = self.stretch.records.get(self.at)?;
        Some(&self.stretch.bytes[next.key.clone()])
    }

    /// Sees to it that there is a next one, unless it is over.
    fn fill(&mut self, (start, end, reverse): Bounds<'_>, count: usize) -> Result<()> {
        while self.at == self.stretch.records.len() && !self.is_over {
            let bounds = match (&self.from, reverse) {
                (None, _) => (start, end, reverse),
                (Some(from), false) => (from.as_slice(), end, reverse),
                (Some(from), true) => (start, Some(from.as_slice()), reverse),
            };
            self.at = 0;
            self.shared.fetch(self.group, bounds, count, &mut self.stretch)?;
            self.is_over = self.stretch.seen < count;
            let from = self.from.get_or_insert_default();
            std::mem::swap(from, &mut self.stretch.last);
            if !reverse {
                // Just above the last one.
                from.push(0);
            }
        }
        Ok(())
    }

    /// Shows the next one; false to stop.
    fn show(&mut self, visit: &mut dyn FnMut(Entry<'_>) -> bool) -> bool {
        let Some(next) = self.stretch.records.get(self.at) else { return false };
        self.at += 1;
        visit(self.stretch.entry(next))
    }
}

impl Shared {
    /// Reads the next stretch of a group.
    fn fetch(
        &self,
        group: usize,
        bounds: Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let of = &self.groups[group];
        loop {
            let taken_back = self.pending.taken_back();
            let on = of.settled()?;
            match self.fetch_on(on, group, bounds, count, to) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    self.counters.add(Count::DamagedReads, 1);
                    return self.fetch_around(of, (on.number, error), bounds, count, to);
                }
                // Another may be in its place by now, which has not failed.
                Err(_) if !of.is_there(on) => continue,
                Err(error) => {
                    of.go_on_without(on, error)?;
                    continue;
                }
            }
            self.read_held(to)?;
            if self.pending.taken_back() == taken_back {
                return Ok(());
            }
        }
    }

    fn fetch_on(
        &self,
        device: &Device,
        group: usize,
        (start, end, reverse): Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let operation = "a scan of what has no order";
        let ordered = device.engine.ordered();
        let ordered = ordered.ok_or(Error::Unsupported { engine: crate::NAME, operation })?;
        to.clear();
        ordered.scan(start, end, reverse, count, &mut |entry| {
            to.seen += 1;
            if to.seen == count {
                to.last.extend_from_slice(entry.key);
            }
            if let (true, Some(record)) = (self.is_shown(group, entry.key), &entry.record) {
                to.push(entry.key, record);
            }
            true
        })
    }

    /// Reads a stretch on whichever member is not damaged there, while nobody writes: then they have
    /// all the same.
    fn fetch_around(
        &self,
        group: &Arc<Group>,
        (damaged, error): (u8, Error),
        bounds: Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let _turns: Vec<_> =
            (0..Pending::stripes()).map(|stripe| self.pending.turn(stripe)).collect();
        for device in group.of(group.members() & !(1 << damaged)) {
            device.drain();
            // What a device that has failed says is looked at where somebody reads it by itself.
            let is_read =
                self.fetch_on(device, usize::from(group.number), bounds, count, to).is_ok();
            if is_read && group.members() & 1 << device.number != 0 && group.is_there(device) {
                return Ok(());
            }
        }
        Err(error)
    }

    /// Reads what batches over several groups are writing, which waits for them.
    pub(crate) fn read_held(&self, stretch: &mut Stretch) -> Result<()> {
        let mut at = 0;
        while at < stretch.records.len() {
            let next = &stretch.records[at];
            let key = &stretch.bytes[next.key.clone()];
            if !self.is_held(key) {
                at += 1;
                continue;
            }
            match self.answer(key)? {
                Some(answer) => {
                    let start = stretch.bytes.len();
                    stretch.bytes.extend_from_slice(&answer.value);
                    let next = &mut stretch.records[at];
                    (next.sequence, next.expires_at) = (answer.sequence, answer.expires_at);
                    next.value = start..stretch.bytes.len();
                    at += 1;
                }
                None => drop(stretch.records.remove(at)),
            }
        }
        Ok(())
    }
}

impl Ordered for Shared {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let _still = self.moves.read_recursive();
        let groups = self.groups.len();
        // Its share and some: the groups have about as many each.
        let count = limit.div_ceil(groups).saturating_add(8).min(AT_A_TIME);
        let stream = |group| {
            let (stretch, from) = (Stretch::default(), None);
            Stream { shared: self, group, stretch, at: 0, from, is_over: false }
        };
        let mut streams: Vec<Stream<'_>> = (0..groups).map(stream).collect();
        for _ in 0..limit {
            let mut best = None;
            for at in 0..streams.len() {
                streams[at].fill((start, end, reverse), count)?;
                let is_better = match (streams[at].key(), best) {
                    (None, _) => false,
                    (Some(_), None) => true,
                    (Some(key), Some(best)) => {
                        let best: &Stream<'_> = &streams[best];
                        best.key().is_none_or(|other| (key < other) != reverse)
                    }
                };
                if is_better {
                    best = Some(at);
                }
            }
            let Some(best) = best else { return Ok(()) };
            if !streams[best].show(visit) {
                return Ok(());
            }
        }
        Ok(())
    }
}
