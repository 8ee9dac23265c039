//! Going through all records: group after group, each on a device that has all of it.

use crate::bloom::hash_of;
use crate::matrix::{Shared, is_reserved};
use coreplane_engine::{Entry, Error, Ordered, Result, WriteOptions};
use coreplane_pmem::spin;
use std::sync::atomic::Ordering;

/// Where an iteration goes on: a group, one of the devices that have ever come to it, and the cursor
/// of that one's engine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    group: usize,
    device: Option<u8>,
    inner: u64,
}

/// Records that a scan asks of a group at a time.
const AT_A_TIME: usize = 64;

impl Shared {
    /// True for a record that a group shows: not the matrix's own, and of a slot of the group.
    pub(crate) fn is_shown(&self, group: usize, key: &[u8]) -> bool {
        !is_reserved(key) && self.owners.of(hash_of(key)).owner() == group
    }

    pub(crate) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let _still = self.moves.read_recursive();
        let Place { mut group, mut device, mut inner } = spin::lock(&self.cursors).place_of(cursor);
        let mut shown = 0;
        while let Some(of) = self.groups.get(group) {
            let on = of.settled()?;
            // Another than before, in its place or in another, begins with the group again.
            let index = of.index_of(on.number);
            if device != Some(index) {
                (device, inner) = (Some(index), 0);
            }
            let (wanted, mut held) = (count.max(1) - shown, Vec::new());
            inner = on.engine.iterate(inner, wanted, &mut |entry| {
                if !self.is_shown(group, entry.key) {
                    return;
                }
                shown += 1;
                if self.is_held(entry.key) {
                    held.push(entry.key.to_vec());
                } else {
                    visit(entry);
                }
            })?;
            for key in held {
                // Readers of single keys wait for it, and so it is here.
                if let Some(answer) = self.answer(&key)? {
                    let (record, sequence) = (Some(answer.record()), answer.sequence);
                    visit(Entry { key: &key, record, sequence });
                }
            }
            if inner == 0 {
                (group, device) = (group + 1, None);
            }
            if shown >= count.max(1) && group < self.groups.len() {
                return Ok(spin::lock(&self.cursors).remember(Place { group, device, inner }));
            }
        }
        Ok(0)
    }

    /// True if a batch over several groups writes the key, which may be refused still.
    fn is_held(&self, key: &[u8]) -> bool {
        self.pending.entry(hash_of(key)).is_some_and(|entry| entry.is_held)
    }

    pub(crate) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        let horizon = self.tombstone_horizon();
        if sequence < horizon {
            return Err(Error::HistoryGone { asked: sequence, horizon });
        }
        let _still = self.moves.read_recursive();
        for (number, group) in self.groups.iter().enumerate() {
            group.settled()?.engine.changes_since(sequence, &mut |entry| {
                if self.is_shown(number, entry.key) {
                    visit(entry);
                }
            })?;
        }
        Ok(())
    }

    pub(crate) fn tombstone_horizon(&self) -> u64 {
        let devices = self.groups.iter().flat_map(|group| group.of(group.members()));
        let of_devices = devices.map(|device| device.engine.tombstone_horizon()).max();
        of_devices.unwrap_or(0).max(self.horizon.load(Ordering::Acquire))
    }

    pub(crate) fn len(&self) -> Result<u64> {
        let mut len = 0;
        let has_guests = self.has_guests.load(Ordering::Acquire);
        for (number, group) in self.groups.iter().enumerate() {
            let engine = &group.settled()?.engine;
            if has_guests {
                len += self.count_shown(number, &**engine)?;
                continue;
            }
            let own = crate::open::own_records(&**engine)?;
            len += engine.len()?.saturating_sub(own);
        }
        Ok(len)
    }

    /// The records that a group shows, one by one: while slots move it has others too.
    fn count_shown(&self, group: usize, engine: &dyn coreplane_engine::Engine) -> Result<u64> {
        let _still = self.moves.read_recursive();
        let (mut count, mut cursor) = (0, 0);
        loop {
            cursor = engine.iterate(cursor, 1024, &mut |entry| {
                count += u64::from(self.is_shown(group, entry.key));
            })?;
            if cursor == 0 {
                return Ok(count);
            }
        }
    }

    pub(crate) fn clear(&self) -> Result<()> {
        let mut cursor = 0;
        loop {
            let mut keys = Vec::new();
            cursor = self.iterate(cursor, 256, &mut |entry| keys.push(entry.key.to_vec()))?;
            for key in keys {
                self.delete(&key, &WriteOptions::default())?;
            }
            if cursor == 0 {
                break;
            }
        }
        // No reader finds those, and they are counted.
        self.sweep_expired().map(|_| ())
    }

    /// Removes what has expired, on every device.
    pub(crate) fn sweep_expired(&self) -> Result<u64> {
        self.check_writable()?;
        let mut swept = 0;
        for group in self.groups.iter() {
            let mut most = 0;
            for device in group.of(group.members()) {
                device.drain();
                most = most.max(device.engine.sweep_expired()?);
            }
            swept += most;
        }
        Ok(swept)
    }

    /// True if every device has access in key order.
    pub(crate) fn is_ordered(&self) -> bool {
        let mut devices = self.groups.iter().flat_map(|group| group.devices());
        devices.all(|device| device.engine.ordered().is_some())
    }
}

/// A record that a group has next.
struct Next {
    key: Vec<u8>,
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<coreplane_engine::UnixMillis>,
}

/// What a group still has for a scan.
struct Stream<'a> {
    shared: &'a Shared,
    group: usize,
    /// Those that were fetched, the next one last.
    fetched: Vec<Next>,
    /// Where to go on: from this key (or below it, on the way down).
    from: Option<Vec<u8>>,
    is_over: bool,
}

impl Stream<'_> {
    fn peek(
        &mut self,
        (start, end, reverse): (&[u8], Option<&[u8]>, bool),
    ) -> Result<Option<&Next>> {
        while self.fetched.is_empty() && !self.is_over {
            let (low, high) = match (&self.from, reverse) {
                (None, _) => (start, end),
                (Some(from), false) => (from.as_slice(), end),
                (Some(from), true) => (start, Some(from.as_slice())),
            };
            let engine = &self.shared.groups[self.group].settled()?.engine;
            let ordered: &dyn Ordered = engine.ordered().ok_or(Error::Unsupported {
                engine: crate::NAME,
                operation: "a scan of what has no order",
            })?;
            let (mut seen, mut last) = (0, Vec::new());
            let (shared, group, fetched) = (self.shared, self.group, &mut self.fetched);
            ordered.scan(low, high, reverse, AT_A_TIME, &mut |entry| {
                seen += 1;
                last = entry.key.to_vec();
                if let (true, Some(record)) = (shared.is_shown(group, entry.key), &entry.record) {
                    fetched.push(Next {
                        key: entry.key.to_vec(),
                        value: record.value.to_vec(),
                        sequence: record.sequence,
                        expires_at: record.expires_at,
                    });
                }
                true
            })?;
            for at in (0..self.fetched.len()).rev() {
                if !shared.is_held(&self.fetched[at].key) {
                    continue;
                }
                match shared.answer(&self.fetched[at].key)? {
                    Some(answer) => {
                        let next = &mut self.fetched[at];
                        (next.sequence, next.expires_at) = (answer.sequence, answer.expires_at);
                        next.value = answer.value;
                    }
                    None => drop(self.fetched.remove(at)),
                }
            }
            self.is_over = seen < AT_A_TIME;
            if !reverse {
                // Just above the last one.
                last.push(0);
            }
            self.from = Some(last);
            self.fetched.reverse();
        }
        Ok(self.fetched.last())
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
        let stream = |group| {
            let (fetched, from) = (Vec::new(), None);
            Stream { shared: self, group, fetched, from, is_over: false }
        };
        let mut streams: Vec<Stream<'_>> = (0..self.groups.len()).map(stream).collect();
        for _ in 0..limit {
            let mut best: Option<(usize, Vec<u8>)> = None;
            for (at, stream) in streams.iter_mut().enumerate() {
                let Some(next) = stream.peek((start, end, reverse))? else { continue };
                let is_better = best.as_ref().is_none_or(|(_, key)| (next.key < *key) != reverse);
                if is_better {
                    best = Some((at, next.key.clone()));
                }
            }
            let Some(next) = best.and_then(|(at, _)| streams[at].fetched.pop()) else {
                return Ok(());
            };
            let record = coreplane_engine::Record {
                value: coreplane_engine::Value::Whole(&next.value),
                sequence: next.sequence,
                expires_at: next.expires_at,
                ticket: coreplane_engine::Ticket::DURABLE,
            };
            let (key, sequence) = (next.key.as_slice(), next.sequence);
            if !visit(Entry { key, record: Some(record), sequence }) {
                return Ok(());
            }
        }
        Ok(())
    }
}
