//! Scans of the whole matrix in key order.
//!
//! Each group has a part of the keys, in order. The parts are fetched a stretch at a time, and merged. A
//! stretch comes from the group's *primary*: of every key it has the record that a reader was shown, and no
//! other. Some cases need care:
//!
//! - A batch may be taken back, its deletes included. A stretch that was read during a batch waits
//!   for it, and is read again if anything was taken back meanwhile.
//! - If a device fails, the group continues without it, and the stretch is read on another. If it only has
//!   damaged records, another member is read instead: while no writer is active every member has the same.

use super::Keyspace;
use crate::device::{Bounds, Device, Stretch, is_damage};
use crate::group::Group;
use crate::shape::Devices;
use crate::stats::Count;
use coreplane_engine::{Entry, Error, Ordered, Result};
use coreplane_pmem::mutant;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tries to read without any write being taken back, before all writers are kept out.
const READS: u32 = 8;

/// The most records that a scan asks of a group at a time.
const AT_A_TIME: usize = 64;

/// The records of a group that a scan has still to show.
struct Stream<'a> {
    keyspace: &'a Keyspace,
    group: usize,
    stretch: Stretch,
    /// The next record of the stretch.
    at: usize,
    /// Where to continue: from this key (or below it, in reverse).
    from: Option<Vec<u8>>,
    is_over: bool,
}

impl Stream<'_> {
    /// The key of the next record.
    fn key(&self) -> Option<&[u8]> {
        self.stretch.key(self.at)
    }

    /// Fetches a stretch if no next record is left, unless the group is exhausted.
    fn fill(&mut self, (start, end, reverse): Bounds<'_>, count: usize) -> Result<()> {
        while self.at == self.stretch.len() && !self.is_over {
            let bounds = match (&self.from, reverse) {
                (None, _) => (start, end, reverse),
                (Some(from), false) => (from.as_slice(), end, reverse),
                (Some(from), true) => (start, Some(from.as_slice()), reverse),
            };
            self.at = 0;
            self.keyspace.fetch(self.group, bounds, count, &mut self.stretch)?;
            self.is_over = !self.stretch.is_cut;
            let from = self.from.get_or_insert_default();
            std::mem::swap(from, &mut self.stretch.last);
            if !reverse {
                // The first key behind the last one.
                from.push(0);
            }
        }
        Ok(())
    }

    /// Shows the next record; false to stop.
    fn show(&mut self, visit: &mut dyn FnMut(Entry<'_>) -> bool) -> bool {
        let Some(entry) = self.stretch.entry(self.at) else { return false };
        self.at += 1;
        visit(entry)
    }
}

impl Keyspace {
    /// Reads on the primary of a group `into` a target, until the read has seen no write that is taken back.
    /// If it meets damage, or a key that it `is_about` is in doubt there, it reads on another member.
    ///
    /// # Errors
    /// As `read` if no member can do it, and if the group has no member left.
    pub(crate) fn read_settled<'g, S, T>(
        &self,
        of: &'g Arc<Group>,
        into: &mut S,
        mut read: impl FnMut(&'g Arc<Device>, &mut S) -> Result<T>,
        is_about: impl Fn(&S, &[u8]) -> bool,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            // If refused writes keep following each other, all writers are kept out for one read.
            let turns = (tries >= READS).then(|| self.in_flight.all_turns());
            tries += 1;
            let taken_back = self.in_flight.taken_back();
            let on = if turns.is_some() { of.primary()? } else { of.settled()? };
            let others = !(1 << on.number);
            match read(on, into) {
                Ok(_) if !of.is_sure(on, |key| is_about(into, key)) => {
                    drop(turns);
                    return self.read_around(of, (others, of.gone()), into, read, is_about);
                }
                Ok(read) => {
                    let is_as_before = self.in_flight.is_as_before(taken_back, &self.isolation);
                    if turns.is_some() || is_as_before || mutant!("mkvs.scan.taken_back") {
                        return Ok(read);
                    }
                }
                Err(error) if is_damage(&error) => {
                    drop(turns);
                    self.counters.add(Count::DamagedReads, 1);
                    return self.read_around(of, (others, error), into, read, is_about);
                }
                // The device has been replaced, and the one in its place has not failed.
                Err(_) if !of.is_there(on) => {}
                Err(error) => of.go_on_without(on, error)?,
            }
        }
    }

    /// Reads on a member of a set, the greatest number first, that is neither damaged nor in doubt there, while no
    /// writer is active: then all members have the same.
    pub(crate) fn read_around<'g, S, T>(
        &self,
        group: &'g Arc<Group>,
        (set, error): (Devices, Error),
        into: &mut S,
        mut read: impl FnMut(&'g Arc<Device>, &mut S) -> Result<T>,
        is_about: impl Fn(&S, &[u8]) -> bool,
    ) -> Result<T> {
        let others = || group.of(group.members() & set);
        // Most of the draining, before the writers are kept out.
        others().for_each(|device| device.drain());
        let _turns = self.in_flight.all_turns();
        let mut others: Vec<&'g Arc<Device>> = others().collect();
        others.sort_by_key(|device| Reverse(device.number));
        for device in others {
            device.drain();
            // The failure of a device is handled by the next read that asks that device alone.
            if let Ok(read) = read(device, into)
                && group.is_member(device)
                && group.is_sure(device, |key| is_about(into, key))
            {
                return Ok(read);
            }
        }
        Err(error)
    }

    /// Reads the next stretch of a group.
    fn fetch(
        &self,
        group: usize,
        bounds: Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let (start, end, reverse) = bounds;
        // Nothing is claimed about keys behind the last one.
        let is_about = |to: &Stretch, key: &[u8]| {
            let last = Some(to.last.as_slice()).filter(|_| to.is_cut);
            let is_ahead = last.is_none_or(|last| if reverse { key >= last } else { key <= last });
            is_ahead && key >= start && end.is_none_or(|end| key < end)
        };
        let of = &self.groups[group];
        let fetch = |on: &Arc<Device>, to: &mut Stretch| self.fetch_on((of, on), bounds, count, to);
        self.read_settled(of, to, fetch, is_about)?;
        if !self.lost_ranges.is_any() {
            return Ok(());
        }
        // Only the part that was read.
        let last = Some(to.last.as_slice()).filter(|_| to.is_cut);
        let behind = last.map(|last| [last, &[0]].concat());
        let (from, to) =
            if reverse { (last.unwrap_or(start), end) } else { (start, behind.as_deref().or(end)) };
        self.lost_ranges.check(group as u16, from, to)
    }

    /// Fetches a stretch in this thread.
    fn fetch_on(
        &self,
        (of, device): (&Group, &Device),
        bounds: Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let timer = of.is_watching().then(Instant::now);
        to.fetch(&device.engine, bounds, count, |key| self.owners.shows(of.number, key))?;
        if let Some(begun_at) = timer {
            // Without the time that copying so much takes.
            let copying = Duration::from_nanos(to.bytes());
            device.pace.look(begun_at.elapsed().saturating_sub(copying), 1);
        }
        Ok(())
    }
}

impl Ordered for Keyspace {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let _still = self.moves.read();
        let groups = self.groups.len();
        // The share of a group, and a few more: the groups have about as many each.
        let count = limit.div_ceil(groups).saturating_add(8).min(AT_A_TIME);
        let stream = |group| {
            let (stretch, from) = (Stretch::default(), None);
            Stream { keyspace: self, group, stretch, at: 0, from, is_over: false }
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
