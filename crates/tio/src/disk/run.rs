//! Execution of requests: by their callers if a set is idle, and by its thread otherwise.
//!
//! ```text
//!   check ─▶ assign a partition to written extents ─▶ look up each request's partition, once
//!                                                             │ several: piece by piece, in order
//!         ┌─ idle set: here ◀────────── by sets ◀─────────────┘
//!         └─ busy set: its rings, its thread
//! ```
//!
//! The partition of a request is looked up only once: another connection may assign an unassigned extent a moment
//! later.

use super::{Disk, Mode, Shared, begin_syncs};
use crate::error::{Error, Result};
use crate::queue::{Group, Job, overlap};
use crate::tio::{Op, Source, Tio};
use crate::volume::{Change, Failed, Volume};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A request and its partition.
struct Placed<'t> {
    tio: &'t mut Tio,
    partition: usize,
}

/// The place of the extents of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In no partition: it is all zeroes.
    Nowhere,
    /// All assigned extents are in this partition.
    In(usize),
    /// In several partitions, or too long for one call of a queue set, or the request has failed.
    Apart,
}

/// Bytes of zeroes that a queue set makes before it turns to others.
const ZERO_MAX: u64 = 4 << 20;

impl Disk {
    /// Executes requests in the order of their arrival, and returns when all are done; each has its outcome.
    /// Overlapping requests keep their order. A write is durable when it is done, or, where a fence is a sync, after
    /// a [`Disk::flush`] or if it is [`fua`](Tio::fua). Each sector is written as a whole.
    pub fn run(&self, source: &Source, tios: &mut [Tio]) {
        self.shared.run(source, tios);
    }
}

impl Shared {
    fn run(&self, source: &Source, tios: &mut [Tio]) {
        for tio in tios.iter_mut() {
            tio.outcome = self.check(tio).and_then(|()| self.place_all(tio, source));
        }
        let places: SmallVec<[Where; 8]> = tios.iter().map(|tio| self.place_of(tio)).collect();
        self.run_in_order(tios, &places);
        let is_done = |tio: &&Tio| tio.op == Op::Write && tio.outcome.is_ok();
        let written = tios.iter().filter(is_done).count() as u64;
        if source.interval.is_none() && written > 0 {
            coreplane_pmem::spin::lock(&self.balance).note_writes(source, written, Instant::now());
        }
    }

    /// Executes requests step by step: as many successive ones as queue sets may make before they turn to others, or
    /// one that is apart, in pieces.
    fn run_in_order(&self, mut tios: &mut [Tio], mut places: &[Where]) {
        while !tios.is_empty() {
            let count = self.together(tios, places).max(1);
            let (step, later) = tios.split_at_mut(count);
            let (step_places, later_places) = places.split_at(count);
            match step {
                [tio] if step_places == [Where::Apart] => {
                    if tio.outcome.is_ok() {
                        self.run_pieces(tio);
                    }
                }
                _ => {
                    self.run_step(step, step_places);
                    self.commit_some(step, step_places);
                }
            }
            (tios, places) = (later, later_places);
        }
    }

    /// The number of requests up to the first that is apart, or with which a partition would have more changes than
    /// its queue set makes at once.
    fn together(&self, tios: &[Tio], places: &[Where]) -> usize {
        let mut changed: SmallVec<[u64; 8]> = smallvec![0_u64; self.volumes.len()];
        let ends = |(tio, place): (&Tio, &Where)| match *place {
            Where::Apart => true,
            Where::In(partition) if tio.op != Op::Read => {
                let Some(sum) = changed.get_mut(partition) else { return true };
                *sum = sum.saturating_add(tio.len);
                *sum > self.most_of(tio.op)
            }
            Where::Nowhere | Where::In(_) => false,
        };
        tios.iter().zip(places).position(ends).unwrap_or(places.len())
    }

    fn check(&self, tio: &Tio) -> Result<()> {
        let Range { start, end } = tio.range();
        let is_whole = tio.op != Op::Write || tio.bytes.len() as u64 == tio.len;
        match end <= self.len && is_whole && start.checked_add(tio.len).is_some() {
            true => Ok(()),
            false => Err(Error::OutOfRange { from: start, to: end, len: self.len }),
        }
    }

    pub(super) fn extent_len(&self) -> u64 {
        self.volumes.first().map_or(1, Volume::extent_len)
    }

    fn extents(&self, tio: &Tio) -> Range<u64> {
        let (range, extent_len) = (tio.range(), self.extent_len());
        range.start / extent_len..range.end.div_ceil(extent_len)
    }

    fn place_all(&self, tio: &Tio, source: &Source) -> Result<()> {
        if tio.op == Op::Write && tio.len > 0 {
            for extent in self.extents(tio) {
                self.place(extent, source)?;
            }
        }
        Ok(())
    }

    fn place_of(&self, tio: &Tio) -> Where {
        if tio.outcome.is_err() || tio.len > self.most_of(tio.op) {
            return Where::Apart;
        }
        let mut owners = self.extents(tio).filter_map(|extent| self.owner(extent));
        let Some(first) = owners.next() else { return Where::Nowhere };
        if owners.all(|owner| owner == first) { Where::In(first) } else { Where::Apart }
    }

    /// The most bytes of a request that a queue set executes before it turns to others.
    fn most_of(&self, op: Op) -> u64 {
        match op {
            Op::Read => u64::MAX,
            Op::Write => self.write_max,
            Op::Zero => self.write_max.min(ZERO_MAX),
        }
    }

    /// Executes a request in pieces, each in one extent: as many together as a queue set may execute before it turns
    /// to others.
    fn run_pieces(&self, tio: &mut Tio) {
        let (extent_len, most) = (self.extent_len(), self.most_of(tio.op));
        let Range { start, end } = tio.range();
        let (mut pieces, mut from) = (Vec::new(), start);
        while from < end {
            let next = |step: u64| (from / step + 1).saturating_mul(step);
            let to = end.min(next(extent_len)).min(next(most));
            let part = (from - start) as usize..(to - start) as usize;
            let is_write = tio.op == Op::Write;
            let bytes = tio.bytes.get(part).filter(|_| is_write).unwrap_or_default().to_vec();
            let (op, fua, outcome) = (tio.op, tio.fua, Ok(()));
            pieces.push(Tio { op, place: from, len: to - from, bytes, fua, outcome });
            from = to;
        }
        let places: SmallVec<[Where; 8]> =
            pieces.iter().map(|piece| self.place_of(piece)).collect();
        let (mut left, mut left_places) = (&mut pieces[..], &places[..]);
        while !left.is_empty() {
            let count = self.together(left, left_places).max(1);
            let (step, later) = left.split_at_mut(count);
            let (step_places, later_places) = left_places.split_at(count);
            self.run_step(step, step_places);
            if step.iter().any(|piece| piece.outcome.is_err()) {
                break;
            }
            (left, left_places) = (later, later_places);
        }
        self.commit_some(&mut pieces, &places);
        if tio.op == Op::Read {
            tio.bytes.clear();
            pieces.iter().for_each(|piece| tio.bytes.extend_from_slice(&piece.bytes));
        }
        let failed = pieces.into_iter().find_map(|piece| piece.outcome.err());
        tio.outcome = failed.map_or(Ok(()), Err);
    }

    /// Executes the requests of a step. A partition whose journal has no room for its changes is committed before, so
    /// that this thread waits, and not a queue set.
    fn run_step(&self, tios: &mut [Tio], places: &[Where]) {
        for (number, volume) in self.volumes.iter().enumerate() {
            let sector_len = u64::from(volume.geometry().sector_len);
            let sectors = |tio: &Tio| {
                let Range { start, end } = tio.range();
                (end.div_ceil(sector_len) - start / sector_len) as usize
            };
            let all = tios.iter().zip(places);
            let its = all.filter(|(tio, it)| tio.op != Op::Read && **it == Where::In(number));
            // The write that follows reports a failure.
            let _has_room = volume.make_room(its.map(|(tio, _)| sectors(tio)).sum()).is_ok();
        }
        self.run_whole(tios, places);
    }

    /// Executes requests, each of which is for at most one partition.
    fn run_whole(&self, tios: &mut [Tio], places: &[Where]) {
        for (tio, _) in tios.iter_mut().zip(places).filter(|(_, it)| **it == Where::Nowhere) {
            if tio.op == Op::Read {
                tio.bytes.clear();
                tio.bytes.resize(usize::try_from(tio.len).unwrap_or(0), 0);
            }
        }
        if self.mode == Mode::Sync {
            let mut all: SmallVec<[Placed<'_>; 8]> = placed(tios, places).collect();
            self.execute(&mut all);
        } else {
            self.run_by_sets(tios, places);
        }
    }

    fn run_by_sets(&self, tios: &mut [Tio], places: &[Where]) {
        let group = Arc::default();
        let mut handed = 0;
        let set_of = |partition: usize| partition % self.sets.len();
        for (number, set) in self.sets.iter().enumerate() {
            let is_of_set = |place: &Where| matches!(place, Where::In(it) if set_of(*it) == number);
            if !places.iter().any(is_of_set) {
                continue;
            }
            if let Some(running) = set.begin() {
                let own = placed(tios, places).filter(|it| set_of(it.partition) == number);
                self.execute(&mut own.collect::<SmallVec<[Placed<'_>; 8]>>());
                drop(running);
                continue;
            }
            for (index, (tio, place)) in tios.iter_mut().zip(places).enumerate() {
                if let Where::In(partition) = *place
                    && set_of(partition) == number
                {
                    // A placeholder until the request comes back.
                    let away = Tio { outcome: Err(Error::Closed), ..Tio::read(0, 0) };
                    set.push((index, partition), std::mem::replace(tio, away), &group);
                    handed += 1;
                }
            }
        }
        if handed > 0 {
            for (index, tio) in Group::wait(&group, handed) {
                if let Some(place) = tios.get_mut(index) {
                    *place = tio;
                }
            }
        }
    }

    /// The work of a set's thread.
    pub(super) fn serve(&self, set: usize) {
        let Some(set) = self.sets.get(set) else { return };
        set.serve(|jobs: &mut Vec<Job>| {
            let all = jobs.iter_mut().filter_map(|job| {
                let partition = job.partition;
                job.tio().map(|tio| Placed { tio, partition })
            });
            self.execute(&mut all.collect::<SmallVec<[Placed<'_>; 8]>>());
        });
    }

    /// Executes requests in their order: reads at once, successive writes as one batch.
    fn execute(&self, all: &mut [Placed<'_>]) {
        let mut begun = 0;
        for at in 0..all.len() {
            let Some((before, [placed, ..])) = all.split_at_mut_checked(at) else { return };
            if placed.tio.op != Op::Read {
                continue;
            }
            let range = placed.tio.range();
            let waiting = before.get_mut(begun..).unwrap_or_default();
            let is_overlapped =
                waiting.iter().any(|it| it.tio.op != Op::Read && overlap(&it.tio.range(), &range));
            if is_overlapped && !coreplane_pmem::mutant!("tio.read.overtakes") {
                self.write(waiting);
                begun = at;
            }
            self.read(placed);
        }
        self.write(all.get_mut(begun..).unwrap_or_default());
    }

    fn read(&self, placed: &mut Placed<'_>) {
        let Placed { tio, partition } = placed;
        let mut bytes = std::mem::take(&mut tio.bytes);
        bytes.resize(usize::try_from(tio.len).unwrap_or(0), 0);
        if let Some(volume) = self.volumes.get(*partition) {
            tio.outcome = volume.read(tio.place, &mut bytes);
        }
        tio.bytes = bytes;
    }

    /// Executes the writes among requests, those for one partition as one batch; after a failure, the rest as another.
    fn write(&self, all: &mut [Placed<'_>]) {
        for (number, volume) in self.volumes.iter().enumerate() {
            let is_its = |it: &Placed<'_>| it.tio.op != Op::Read && it.partition == number;
            let mut done = 0;
            loop {
                let changes = all.iter().filter(|it| is_its(it)).map(|it| change_of(it.tio));
                let changes: SmallVec<[Change<'_>; 8]> = changes.skip(done).collect();
                if changes.is_empty() {
                    break;
                }
                let Err(Failed { at, error }) = volume.write(&changes) else { break };
                drop(changes);
                if let Some(it) = all.iter_mut().filter(|it| is_its(it)).nth(done + at) {
                    it.tio.outcome = Err(error);
                }
                done += at + 1;
            }
        }
    }

    /// Makes `fua` writes durable, and commits partitions whose waiting writes take too many spare blocks.
    fn commit_some(&self, tios: &mut [Tio], places: &[Where]) {
        let is_write = |tio: &Tio, place: &Where, number: usize| {
            tio.op != Op::Read && tio.outcome.is_ok() && *place == Where::In(number)
        };
        let is_fua = |tio: &Tio, place: &Where, number| tio.fua && is_write(tio, place, number);
        // The last member is true if a write has to become durable now.
        let mut asked: SmallVec<[(usize, &Volume, bool); 8]> = SmallVec::new();
        for (number, volume) in self.volumes.iter().enumerate() {
            if volume.is_durable_at_once() {
                continue;
            }
            let mut all = tios.iter().zip(places);
            let is_asked = all.clone().any(|(tio, place)| is_fua(tio, place, number))
                && !coreplane_pmem::mutant!("tio.fua.late");
            let is_written = all.any(|(tio, place)| is_write(tio, place, number));
            if is_asked || is_written && volume.is_crowded() {
                asked.push((number, volume, is_asked));
            }
        }
        begin_syncs(&asked.iter().map(|(_, volume, _)| *volume).collect::<SmallVec<[_; 8]>>());
        for (number, volume, is_asked) in asked.into_iter().rev() {
            if let Err(error) = volume.commit_or_flush(is_asked) {
                let what = error.to_string();
                for (tio, place) in tios.iter_mut().zip(places) {
                    if is_fua(tio, place, number) {
                        tio.outcome = Err(std::io::Error::other(what.clone()).into());
                    }
                }
            }
        }
    }
}

/// The requests that have a partition.
fn placed<'t>(tios: &'t mut [Tio], places: &[Where]) -> impl Iterator<Item = Placed<'t>> {
    tios.iter_mut().zip(places).filter_map(|(tio, place)| match *place {
        Where::In(partition) => Some(Placed { tio, partition }),
        Where::Nowhere | Where::Apart => None,
    })
}

fn change_of(tio: &Tio) -> Change<'_> {
    match tio.op {
        Op::Zero => Change::Zero(tio.place, tio.len),
        _ => Change::Write(tio.place, &tio.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Options};

    #[test]
    fn changes_of_a_partition_are_together_up_to_the_limit_of_one() {
        let place = tempfile::tempdir().expect("a place");
        let options = Options { size: 64 << 20, partitions: 2, ..Options::default() };
        let disk = Disk::create(&place.path().join("disk"), &options).expect("a disk");
        let most = disk.shared.most_of(Op::Zero);
        let together = |partitions: usize, tios: Vec<Tio>| {
            let places: Vec<Where> = (0..tios.len()).map(|it| Where::In(it % partitions)).collect();
            disk.shared.together(&tios, &places)
        };
        let zeroes = |count| (0..count).map(|_| Tio::zero(0, most / 4));
        assert_eq!(together(1, zeroes(16).collect()), 4);
        assert_eq!(together(2, zeroes(16).collect()), 8);
        // A write is a change, and a read is none.
        let write = || Tio::write(0, vec![1; 4096]);
        assert_eq!(together(1, [write()].into_iter().chain(zeroes(16)).collect()), 4);
        assert_eq!(together(1, zeroes(4).chain([Tio::read(0, most)]).collect()), 5);
        assert_eq!(together(1, vec![Tio::zero(0, most), write()]), 1);
    }
}
