//! Requests are done: by their callers where a set is idle, by its thread where it is not.

use super::{Disk, Mode, Shared};
use crate::error::{Error, Result};
use crate::queue::{Group, Job};
use crate::tio::{Op, Source, Tio};
use crate::volume::{Change, Volume};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl Disk {
    /// Does requests, which came in this order, and returns when all are done; each has its outcome. Those that overlap keep
    /// their order. A write is durable when it is done, or, where a fence is a sync, after a [`Disk::flush`] or if it is
    /// [`fua`](Tio::fua). Each sector is written as a whole.
    pub fn run(&self, source: &Source, tios: &mut [Tio]) {
        self.shared.run(source, tios);
    }
}

impl Shared {
    fn run(&self, source: &Source, tios: &mut [Tio]) {
        let mut is_split = false;
        for tio in tios.iter_mut() {
            tio.outcome = self.check(tio).and_then(|()| self.place_all(tio, source));
            is_split |= tio.outcome.is_ok() && self.owners_of(tio).1;
        }
        if is_split {
            return self.run_split(source, tios);
        }
        self.run_whole(tios);
        let has_written = |tio: &&Tio| tio.op == Op::Write && tio.outcome.is_ok();
        if source.interval.is_none() && tios.iter().any(|tio| has_written(&tio)) {
            coreplane_pmem::spin::lock(&self.balance).note_write(source, Instant::now());
        }
        self.commit_some(tios);
    }

    fn check(&self, tio: &Tio) -> Result<()> {
        let Range { start, end } = tio.range();
        let is_whole = tio.op != Op::Write || tio.bytes.len() as u64 == tio.len;
        match end <= self.len && is_whole && start.checked_add(tio.len).is_some() {
            true => Ok(()),
            false => Err(Error::OutOfRange { from: start, to: end, len: self.len }),
        }
    }

    fn extents(&self, tio: &Tio) -> Range<u64> {
        let extent_len = self.volumes.first().map_or(1, Volume::extent_len);
        let range = tio.range();
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

    /// The partition that a request is for, if any, and whether it is for others too.
    fn owners_of(&self, tio: &Tio) -> (Option<usize>, bool) {
        let mut owners = self.extents(tio).filter_map(|extent| self.owner(extent));
        let first = owners.next();
        (first, owners.any(|owner| Some(owner) != first))
    }

    /// Does requests of which some are for several partitions, piece by piece.
    fn run_split(&self, source: &Source, tios: &mut [Tio]) {
        let extent_len = self.volumes.first().map_or(1, Volume::extent_len);
        for tio in tios.iter_mut().filter(|tio| tio.outcome.is_ok()) {
            let Range { start, end } = tio.range();
            let mut pieces = Vec::new();
            for extent in self.extents(tio) {
                let from = start.max(extent * extent_len);
                let to = end.min((extent + 1) * extent_len);
                let (place, len) = (from, to - from);
                let bytes = match tio.op {
                    Op::Write => {
                        let part = (from - start) as usize..(to - start) as usize;
                        tio.bytes.get(part).unwrap_or_default().to_vec()
                    }
                    _ => Vec::new(),
                };
                pieces.push(Tio { op: tio.op, place, len, bytes, fua: tio.fua, outcome: Ok(()) });
            }
            self.run(source, &mut pieces);
            if tio.op == Op::Read {
                tio.bytes.clear();
                pieces.iter().for_each(|piece| tio.bytes.extend_from_slice(&piece.bytes));
            }
            let failed = pieces.into_iter().find_map(|piece| piece.outcome.err());
            tio.outcome = failed.map_or(Ok(()), Err);
        }
    }

    /// Does requests each of which is for one partition.
    fn run_whole(&self, tios: &mut [Tio]) {
        if self.mode == Mode::Sync {
            let mut all: SmallVec<[&mut Tio; 8]> = tios.iter_mut().collect();
            return self.execute(&mut all);
        }
        let group = Arc::default();
        let mut handed = 0;
        for (number, set) in self.sets.iter().enumerate() {
            let is_of_set = |tio: &Tio| {
                tio.outcome.is_ok()
                    && self.owners_of(tio).0.unwrap_or(0) % self.sets.len() == number
            };
            if !tios.iter().any(is_of_set) {
                continue;
            }
            if set.begin() {
                let own = tios.iter_mut().filter(|tio| is_of_set(tio));
                self.execute(&mut own.collect::<SmallVec<[&mut Tio; 8]>>());
                set.end();
                continue;
            }
            for (index, tio) in tios.iter_mut().enumerate().filter(|(_, tio)| is_of_set(tio)) {
                // Nobody's, until it comes back.
                let away = Tio { outcome: Err(Error::Closed), ..Tio::read(0, 0) };
                set.push(index, std::mem::replace(tio, away), &group);
                handed += 1;
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
            let mut all: SmallVec<[&mut Tio; 8]> =
                jobs.iter_mut().map(|job| &mut job.tio).collect();
            self.execute(&mut all);
        });
    }

    /// Does requests in their order: reads at once, writes that follow each other as one batch.
    fn execute(&self, tios: &mut [&mut Tio]) {
        let mut begun = 0;
        for at in 0..tios.len() {
            let Some((before, [tio, ..])) = tios.split_at_mut_checked(at) else { return };
            if tio.op != Op::Read || tio.outcome.is_err() {
                continue;
            }
            let range = tio.range();
            let waiting = before.get_mut(begun..).unwrap_or_default();
            let is_overlapped = waiting.iter().any(|write| {
                let of = write.range();
                write.op != Op::Read && of.start < range.end && range.start < of.end
            });
            if is_overlapped && !coreplane_pmem::mutant!("tio.read.overtakes") {
                self.write(waiting);
                begun = at;
            }
            self.read(tio);
        }
        self.write(tios.get_mut(begun..).unwrap_or_default());
    }

    fn read(&self, tio: &mut Tio) {
        let mut bytes = std::mem::take(&mut tio.bytes);
        bytes.resize(usize::try_from(tio.len).unwrap_or(0), 0);
        let volume = self.owners_of(tio).0.and_then(|owner| self.volumes.get(owner));
        tio.outcome = match volume {
            Some(volume) => volume.read(tio.place, &mut bytes),
            None => {
                bytes.fill(0);
                Ok(())
            }
        };
        tio.bytes = bytes;
    }

    /// Does the writes among requests, those for one partition as one batch.
    fn write(&self, tios: &mut [&mut Tio]) {
        for (number, volume) in self.volumes.iter().enumerate() {
            let is_its = |tio: &Tio| {
                tio.op != Op::Read && tio.outcome.is_ok() && self.owners_of(tio).0 == Some(number)
            };
            let changes = tios.iter().filter(|tio| is_its(tio)).map(|tio| change_of(tio));
            let changes: SmallVec<[Change<'_>; 8]> = changes.collect();
            let is_done = changes.is_empty() || volume.write(&changes).is_ok();
            drop(changes);
            if is_done {
                continue;
            }
            // One of them has failed: each has its own outcome.
            for tio in tios.iter_mut().filter(|tio| is_its(tio)) {
                tio.outcome = volume.write(&[change_of(tio)]);
            }
        }
    }

    /// Makes durable what is to be at once, and what takes too many spare blocks.
    fn commit_some(&self, tios: &mut [Tio]) {
        for (number, volume) in self.volumes.iter().enumerate() {
            if volume.is_durable_at_once() {
                continue;
            }
            let is_its =
                |tio: &Tio| tio.fua && tio.outcome.is_ok() && self.owners_of(tio).0 == Some(number);
            let is_asked = tios.iter().any(is_its) && !coreplane_pmem::mutant!("tio.fua.late");
            if (is_asked || volume.is_crowded())
                && let Err(error) = volume.commit()
            {
                let what = error.to_string();
                let failed = tios.iter_mut().filter(|tio| is_its(tio));
                failed
                    .for_each(|tio| tio.outcome = Err(std::io::Error::other(what.clone()).into()));
            }
        }
    }
}

fn change_of(tio: &Tio) -> Change<'_> {
    match tio.op {
        Op::Zero => Change::Zero(tio.place, tio.len),
        _ => Change::Write(tio.place, &tio.bytes),
    }
}
