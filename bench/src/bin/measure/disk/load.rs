//! The load: sectors at random, read or written, by so many connections that have so many requests under way each.
//!
//! Each worker has its share of the disk, where nobody else writes, so that it knows what must be there. A client of NBD
//! keeps its requests under way on one connection; a block device is used by a thread for each request, since that is how
//! a program has several under way by plain calls.

use hdrhistogram::Histogram;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::client::Client;
use super::wire::{self, Head};
use crate::Outcome;
use crate::sector::{SECTOR, Sectors};
use crate::span::Span;

/// How a disk is reached.
#[derive(Debug, Clone)]
pub(super) enum Access {
    /// A socket, and the name of the export.
    Socket(PathBuf, &'static str),
    /// A block device, past the page cache.
    Device(PathBuf),
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Every sector is written once.
    Fill,
    /// Every sector is read once.
    Verify,
    /// Sectors are read, as they come.
    Read,
    /// Sectors are written.
    Write,
}

impl Work {
    fn is_write(self) -> bool {
        matches!(self, Self::Fill | Self::Write)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// A load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) work: Work,
    pub(super) connections: usize,
    /// Requests that each has under way.
    pub(super) depth: usize,
    /// For so long, if it is at random.
    pub(super) time: Duration,
    /// Each write is durable when it is answered, on whatever medium.
    pub(super) fua: bool,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) per_second: f64,
    /// Nanoseconds of each.
    pub(super) times: Histogram<u64>,
}

/// The sectors of a worker, one after the other or at random.
#[derive(Debug)]
struct Draw {
    share: Range<u64>,
    state: u64,
    at: u64,
    is_random: bool,
    end: Instant,
}

impl Draw {
    /// The next sector that is none of those under way; none when it is time to end.
    fn next(&mut self, now: Instant, is_under_way: impl Fn(u64) -> bool) -> Option<u64> {
        if !self.is_random {
            self.at += 1;
            return Some(self.at - 1).filter(|at| *at < self.share.end);
        }
        if now >= self.end {
            return None;
        }
        loop {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let count = self.share.end - self.share.start;
            let sector = self.share.start + (self.state >> 16) % count;
            if !is_under_way(sector) {
                return Some(sector);
            }
        }
    }
}

fn wrong(sector: u64) -> Box<dyn std::error::Error + Send + Sync> {
    format!("sector {sector} has not what was written").into()
}

/// Requests over a connection.
fn converse(
    client: &mut Client,
    load: &Load,
    sectors: &Sectors,
    draw: &mut Draw,
) -> Outcome<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let mut under_way: Vec<Option<(u64, Instant)>> = vec![None; load.depth];
    let (mut bytes, mut now) = ([0; SECTOR], Instant::now());
    let is_write = load.work.is_write();
    let mut begin =
        |client: &mut Client, slot: usize, now: Instant, under_way: &mut [Option<_>]| {
            let is_under_way = |sector| {
                under_way.iter().flatten().any(|(other, _): &(u64, Instant)| *other == sector)
            };
            let sector = draw.next(now, is_under_way)?;
            let flags = if load.fua && is_write { wire::FUA } else { 0 };
            let command = if is_write { wire::WRITE } else { wire::READ };
            let (place, len) = (sector * SECTOR as u64, SECTOR as u32);
            let head = Head { flags, command, cookie: slot as u64, place, len };
            if is_write {
                sectors.next(sector, &mut bytes);
            }
            client.push(head, if is_write { &bytes } else { &[] });
            *under_way.get_mut(slot)? = Some((sector, now));
            Some(())
        };
    let mut left = 0;
    for slot in 0..load.depth {
        left += usize::from(begin(client, slot, now, &mut under_way).is_some());
    }
    let answer_len = if is_write { 0 } else { SECTOR };
    while left > 0 {
        if !client.has_answer(answer_len) {
            client.send()?;
        }
        let (slot, read) = client.answer(answer_len)?;
        let slot = usize::try_from(slot)?;
        let asked = under_way.get_mut(slot).and_then(Option::take);
        let (sector, since) = asked.ok_or("an answer to nothing")?;
        if !is_write && !sectors.is_right(sector, read) {
            return Err(wrong(sector));
        }
        now = Instant::now();
        times.record((now - since).as_nanos() as u64)?;
        if begin(client, slot, now, &mut under_way).is_none() {
            left -= 1;
        }
    }
    Ok(times)
}

/// One request after the other on a device.
fn call(device: &File, load: &Load, sectors: &Sectors, draw: &mut Draw) -> Outcome<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    // Past the page cache memory must begin at a sector.
    let mut room = vec![0; 2 * SECTOR];
    let from = room.as_ptr().align_offset(SECTOR);
    let bytes = room.get_mut(from..from + SECTOR).ok_or("no memory that is aligned")?;
    let mut now = Instant::now();
    while let Some(sector) = draw.next(now, |_| false) {
        let since = now;
        if load.work.is_write() {
            sectors.next(sector, bytes);
            device.write_all_at(bytes, sector * SECTOR as u64)?;
        } else {
            device.read_exact_at(bytes, sector * SECTOR as u64)?;
            if !sectors.is_right(sector, bytes) {
                return Err(wrong(sector));
            }
        }
        now = Instant::now();
        times.record((now - since).as_nanos() as u64)?;
    }
    Ok(times)
}

fn open(device: &Path, load: &Load) -> Outcome<File> {
    let mut flags = rustix::fs::OFlags::DIRECT;
    if load.fua && load.work.is_write() {
        flags |= rustix::fs::OFlags::DSYNC;
    }
    let flags = flags.bits().cast_signed();
    Ok(File::options().read(true).write(true).custom_flags(flags).open(device)?)
}

/// What a worker reaches the disk by.
enum Way {
    Socket(Client),
    Device(File),
}

/// Runs a load, and waits for all of it.
pub(super) fn run(access: &Access, load: &Load, sectors: &Sectors) -> Outcome<Done> {
    let mut ways = Vec::new();
    match access {
        Access::Socket(path, export) => {
            for _ in 0..load.connections {
                let client = Client::connect(path, export)?;
                if client.len / (SECTOR as u64) < sectors.len() {
                    return Err(format!("the export has {} bytes", client.len).into());
                }
                ways.push(Way::Socket(client));
            }
        }
        Access::Device(path) => {
            for _ in 0..load.connections * load.depth {
                ways.push(Way::Device(open(path, load)?));
            }
        }
    }
    let (count, begin) = (ways.len() as u64, Barrier::new(ways.len()));
    let worker = |number: u64, way: &mut Way| -> Outcome<(Histogram<u64>, Span)> {
        let share = sectors.len() * number / count..sectors.len() * (number + 1) / count;
        begin.wait();
        let begun = Instant::now();
        let end = begun + load.time;
        let state = (load.seed << 32 | number << 8 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (at, is_random) = (share.start, load.work.is_random());
        let mut draw = Draw { share, state, at, is_random, end };
        let times = match way {
            Way::Socket(client) => converse(client, load, sectors, &mut draw)?,
            Way::Device(device) => call(device, load, sectors, &mut draw)?,
        };
        Ok((times, Span::since(begun)))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut ways)
            .map(|(number, way)| scope.spawn(move || worker(number, way)))
            .collect();
        let (mut times, mut spans) = (Histogram::new(3)?, Vec::new());
        for thread in threads {
            let (some, span) = thread.join().map_err(|_| "a worker has panicked")??;
            times.add(some)?;
            spans.push(span);
        }
        Ok(Done { per_second: times.len() as f64 / Span::seconds_of(spans), times })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::floor;

    #[test]
    fn a_load_checks_what_it_reads() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let (len, path) = (1 << 20, socket.clone());
        std::thread::spawn(move || floor::serve(&path, len).unwrap());
        // The file of the socket is there before it accepts connections.
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sectors = Sectors::new(len / SECTOR as u64);
        let access = Access::Socket(socket, "disk");
        let with = |work, connections, depth| Load {
            work,
            connections,
            depth,
            time: Duration::from_millis(20),
            fua: true,
            seed: 3,
        };
        for (work, connections, depth) in [
            (Work::Verify, 1, 1),
            (Work::Fill, 2, 4),
            (Work::Write, 4, 16),
            (Work::Read, 3, 16),
            (Work::Write, 1, 1),
            (Work::Verify, 1, 16),
        ] {
            let done = run(&access, &with(work, connections, depth), &sectors).unwrap();
            assert!(!done.times.is_empty());
            assert!(work.is_random() || done.times.len() == sectors.len());
        }
        // Somebody else writes what he should not.
        run(&access, &with(Work::Fill, 1, 1), &Sectors::new(len / SECTOR as u64)).unwrap();
        let refused = run(&access, &with(Work::Verify, 1, 16), &sectors).unwrap_err();
        assert!(refused.to_string().contains("has not what was written"), "{refused}");
    }
}
