//! Going through the records of the whole matrix in the order of their keys.
//!
//! Each group has a part of the keys, in order; the parts are fetched a stretch at a time, and merged.
//! A stretch is what the group's *primary* shows: of every key it has what a reader was shown, and
//! no more. Some things are seen to:
//!
//! - What a batch over several groups has written, or deleted, may be taken back: a stretch that was
//!   read while there is one waits for it, and is read again if anything was taken back meanwhile.
//! - Where reads go through the rings, stretches do: while the primary is late, another member may answer
//!   that has the same ([`hedge::stretch`](crate::group::hedge::stretch)).
//! - A device that fails is gone without, and the stretch is read on another. One that has damaged
//!   records only is gone around: while nobody writes every member has the same.

use super::Keyspace;
use crate::device::Device;
use crate::device::decision::is_damage;
use crate::device::stretch::{Bounds, Stretch};
use crate::group::Group;
use crate::group::hedge::stretch;
use crate::stats::counters::Count;
use coreplane_engine::{Entry, Error, Ordered, Result};
use coreplane_pmem::mutant;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tries to read what nothing is taken back of, before nobody may write.
const READS: u32 = 8;

/// Tries through the rings, where that is the way.
const RING_READS: u32 = 2;

/// Records that a scan asks of a group at a time, at most.
const AT_A_TIME: usize = 64;

/// What a group still has for a scan.
struct Stream<'a> {
    keyspace: &'a Keyspace,
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
        self.stretch.key(self.at)
    }

    /// Sees to it that there is a next one, unless it is over.
    fn fill(&mut self, (start, end, reverse): Bounds<'_>, count: usize) -> Result<()> {
        while self.at == self.stretch.len() && !self.is_over {
            let bounds = match (&self.from, reverse) {
                (None, _) => (start, end, reverse),
                (Some(from), false) => (from.as_slice(), end, reverse),
                (Some(from), true) => (start, Some(from.as_slice()), reverse),
            };
            self.at = 0;
            self.keyspace.fetch(self.group, bounds, count, &mut self.stretch)?;
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
        let Some(entry) = self.stretch.entry(self.at) else { return false };
        self.at += 1;
        visit(entry)
    }
}

impl Keyspace {
    /// Reads on the primary of a group `into` something, until nothing was read that is taken back. If
    /// that meets damage, or is in doubt of a key that it `is_about`, it reads on another.
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
            // Where one write after the other is refused nobody writes for once.
            let turns = (tries >= READS).then(|| self.in_flight.all_turns());
            tries += 1;
            let taken_back = self.in_flight.taken_back();
            let on = if turns.is_some() { of.primary()? } else { of.settled()? };
            match read(on, into) {
                Ok(_) if !of.is_sure(on, |key| is_about(into, key)) => {
                    drop(turns);
                    return self.read_around(of, (on.number, of.gone()), into, read, is_about);
                }
                Ok(read) => {
                    let is_as_before = self.in_flight.is_as_before(taken_back);
                    if turns.is_some() || is_as_before || mutant!("mkvs.scan.taken_back") {
                        return Ok(read);
                    }
                }
                Err(error) if is_damage(&error) => {
                    drop(turns);
                    self.counters.add(Count::DamagedReads, 1);
                    return self.read_around(of, (on.number, error), into, read, is_about);
                }
                // Another may be in its place by now, which has not failed.
                Err(_) if !of.is_there(on) => {}
                Err(error) => of.go_on_without(on, error)?,
            }
        }
    }

    /// Reads on whichever member below one is neither damaged nor in doubt there, while nobody writes:
    /// then they have all the same. Always downwards, so that who goes on with another from its
    /// beginning comes to an end.
    pub(crate) fn read_around<'g, S, T>(
        &self,
        group: &'g Arc<Group>,
        (below, error): (u8, Error),
        into: &mut S,
        mut read: impl FnMut(&'g Arc<Device>, &mut S) -> Result<T>,
        is_about: impl Fn(&S, &[u8]) -> bool,
    ) -> Result<T> {
        let others = || group.of(group.members() & ((1 << below) - 1));
        // What takes long, first.
        others().for_each(|device| device.drain());
        let _turns = self.in_flight.all_turns();
        let others: Vec<&'g Arc<Device>> = others().collect();
        for device in others.into_iter().rev() {
            device.drain();
            // What a device that has failed says is looked at where somebody reads it by itself.
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
        // Of what lies behind its last key nothing is said.
        let is_about = |to: &Stretch, key: &[u8]| {
            let last = Some(to.last.as_slice()).filter(|_| to.seen == count);
            let is_ahead = last.is_none_or(|last| if reverse { key >= last } else { key <= last });
            is_ahead && key >= start && end.is_none_or(|end| key < end)
        };
        let of = &self.groups[group];
        if !self.fetch_by_rings(of, (bounds, count), to, is_about)? {
            let fetch =
                |on: &Arc<Device>, to: &mut Stretch| self.fetch_on((of, on), bounds, count, to);
            self.read_settled(of, to, fetch, is_about)?;
        }
        if !self.lost_ranges.is_any() {
            return Ok(());
        }
        // As far as it has come.
        let last = Some(to.last.as_slice()).filter(|_| to.seen == count);
        let behind = last.map(|last| [last, &[0]].concat());
        let (from, to) =
            if reverse { (last.unwrap_or(start), end) } else { (start, behind.as_deref().or(end)) };
        self.lost_ranges.check(group as u16, from, to)
    }

    /// The same through the rings; false if that is not the way, or it must be read otherwise, as where
    /// it is damaged.
    fn fetch_by_rings(
        &self,
        of: &Arc<Group>,
        asked: (Bounds<'_>, usize),
        to: &mut Stretch,
        is_about: impl Fn(&Stretch, &[u8]) -> bool,
    ) -> Result<bool> {
        for _ in 0..RING_READS {
            let taken_back = self.in_flight.taken_back();
            let (primary, settled) = of.settled_now()?;
            if !of.reads_by_rings(primary) {
                return Ok(false);
            }
            if !stretch::read(of, (primary, settled), &self.owners, asked, to)? {
                continue;
            }
            if !of.is_sure(of.device(to.by)?, |key| is_about(to, key)) {
                return Ok(false);
            }
            // Another than the primary has seen to that by itself.
            if to.by != primary.number || self.in_flight.is_as_before(taken_back) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same in this thread.
    fn fetch_on(
        &self,
        (of, device): (&Group, &Device),
        bounds: Bounds<'_>,
        count: usize,
        to: &mut Stretch,
    ) -> Result<()> {
        let timer = of.is_watching().then(Instant::now);
        to.fetch(&*device.engine, bounds, count, |key| self.owners.shows(of.number, key))?;
        if let Some(begun_at) = timer {
            // But for the time that it takes to copy so much.
            let copying = Duration::from_nanos(to.bytes());
            device.pace.look(begun_at.elapsed().saturating_sub(copying));
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
        let _still = self.moves.read_recursive();
        let groups = self.groups.len();
        // Its share and some: the groups have about as many each.
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
