//! One driver under one load, in a process of its own: the work of `measure drivers-cell`.
//!
//! ```text
//!   source 0: threads 0 … 3    source 1: threads 4 … 7    …      each thread a region of the disk, where nobody else writes
//!        └── one device ──────────┴── one device                 (paced: each thread is a device)
//! ```
//!
//! All regions are written once before the clock starts, so that each extent has its partition; and read at the end, and held
//! against what was written last.

use coreplane_pmem::MediaChoice;
use coreplane_tio::{Disk, Options, Source, Tio};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::sector::{SECTOR, Sectors};
use crate::span::Span;
use crate::{Outcome, child};

/// Bytes of a thread's region: an extent.
const REGION: u64 = 2 << 20;
/// Threads of a source.
pub(super) const THREADS: u64 = 4;
/// What every source says of its interval where nothing is paced.
const INTERVAL: Duration = Duration::from_millis(10);

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) pool: PathBuf,
    pub(super) media: String,
    pub(super) driver: String,
    pub(super) policy: String,
    pub(super) partitions: u32,
    pub(super) sources: u64,
    /// Bytes of a write.
    pub(super) len: u64,
    pub(super) ms: u64,
    pub(super) seed: u64,
    /// Writes a second that all devices make together, and the longest interval over the shortest; none: as fast as it goes.
    pub(super) paced: Option<(f64, f64)>,
}

#[derive(Debug)]
struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % below.max(1)
    }
}

/// The intervals of so many devices, in the order in which they come: from 1 to `skew` evenly by their logarithms, and so that
/// all together write so often.
fn intervals(devices: u64, rate: f64, skew: f64, seed: u64) -> Vec<Duration> {
    let last = devices.saturating_sub(1).max(1) as f64;
    let mut all: Vec<f64> = (0..devices).map(|at| skew.powf(at as f64 / last)).collect();
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for at in (1..all.len()).rev() {
        all.swap(at, draw.next(at as u64 + 1) as usize);
    }
    let sum: f64 = all.iter().map(|it| 1.0 / it).sum();
    all.into_iter().map(|it| Duration::from_secs_f64(it * sum / rate)).collect()
}

/// A thread that writes.
#[derive(Debug)]
struct Writer {
    number: u64,
    source: Source,
    interval: Option<Duration>,
    /// To which set its device is bound.
    set: usize,
}

impl Cell {
    fn threads(&self) -> u64 {
        self.sources * THREADS
    }

    /// Makes the disk: in each partition there is room for all regions.
    fn disk(&self) -> Outcome<Disk> {
        let media: MediaChoice = format!("emulated:{}", self.media).parse()?;
        let options = Options {
            size: self.threads() * REGION * u64::from(self.partitions),
            partitions: self.partitions,
            media,
            policy: self.policy.parse()?,
            mode: self.driver.parse()?,
            ..Options::default()
        };
        Ok(Disk::create(&self.pool, &options)?)
    }

    /// All devices come, one after the other.
    fn join(&self, disk: &Disk) -> Vec<Writer> {
        let paced = self.paced.map(|(rate, skew)| intervals(self.threads(), rate, skew, self.seed));
        let mut writers: Vec<Writer> = Vec::new();
        for number in 0..self.threads() {
            let interval = paced.as_ref().and_then(|all| all.get(number as usize)).copied();
            let device = if interval.is_some() { number } else { number / THREADS };
            let source = Source {
                connection: number,
                device: Some(device),
                interval: Some(interval.unwrap_or(INTERVAL)),
            };
            let before = disk.loads();
            disk.join(&source);
            let after = disk.loads();
            // A device that was there already has its set.
            let took = before.iter().zip(&after).position(|(it, then)| it.devices < then.devices);
            let set = took.or_else(|| writers.last().map(|it| it.set)).unwrap_or(0);
            writers.push(Writer { number, source, interval, set });
        }
        writers
    }

    fn parts(&self) -> u64 {
        REGION / self.len
    }

    /// Writes parts `first` and on, `count` of them, by one request.
    fn write(
        &self,
        disk: &Disk,
        by: &Writer,
        parts: &Sectors,
        first: u64,
        count: u64,
    ) -> Outcome<()> {
        let first = by.number * self.parts() + first;
        let mut bytes = vec![0; (count * self.len) as usize];
        for (part, bytes) in (first..).zip(bytes.chunks_mut(self.len as usize)) {
            parts.next(part, bytes);
        }
        let mut tios = [Tio::write(first * self.len, bytes)];
        disk.run(&by.source, &mut tios);
        let [tio] = tios;
        Ok(tio.outcome?)
    }

    fn fill(&self, disk: &Disk, by: &Writer, parts: &Sectors) -> Outcome<()> {
        let at_once = SECTOR as u64 / self.len;
        (0..self.parts() / at_once)
            .try_for_each(|sector| self.write(disk, by, parts, sector * at_once, at_once))
    }

    /// Writes parts at random until it is time. What is paced is late from when it was due.
    fn work(&self, disk: &Disk, by: &Writer, parts: &Sectors) -> Outcome<Histogram<u64>> {
        let mut times = Histogram::new(3)?;
        let mut draw =
            Draw((self.seed << 32 | by.number << 8 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let begun = Instant::now();
        let end = begun + Duration::from_millis(self.ms);
        let mut since = begun;
        if let Some(interval) = by.interval {
            // Not all at the same time.
            since += interval.mul_f64(draw.next(1000) as f64 / 1000.0);
        }
        while since < end && Instant::now() < end {
            std::thread::sleep(since.saturating_duration_since(Instant::now()));
            self.write(disk, by, parts, draw.next(self.parts()), 1)?;
            let now = Instant::now();
            times.record(now.saturating_duration_since(since).as_nanos() as u64)?;
            since = by.interval.map_or(now, |interval| since + interval);
        }
        Ok(times)
    }

    fn verify(&self, disk: &Disk, by: &Writer, parts: &Sectors) -> Outcome<()> {
        let first = by.number * self.parts();
        let mut tios = [Tio::read(by.number * REGION, REGION)];
        disk.run(&by.source, &mut tios);
        let [tio] = tios;
        tio.outcome?;
        for (part, bytes) in (first..).zip(tio.bytes.chunks(self.len as usize)) {
            if !parts.is_right(part, bytes) {
                return Err(format!("part {part} has not what was written").into());
            }
        }
        Ok(())
    }

    /// All of it; what came out.
    pub(super) fn run(&self) -> Outcome<Value> {
        let disk = self.disk()?;
        let writers = self.join(&disk);
        let parts = Sectors::new(self.threads() * self.parts());
        let begin = Barrier::new(writers.len() + 1);
        let one = |writer: &Writer| -> Outcome<(Histogram<u64>, Span)> {
            let filled = self.fill(&disk, writer, &parts);
            // Once when all have filled, and once when the processor time until then is known.
            begin.wait();
            begin.wait();
            filled?;
            let begun = Instant::now();
            Ok((self.work(&disk, writer, &parts)?, Span::since(begun)))
        };
        let (mut all, mut by_set) = (Histogram::new(3)?, vec![0_u64; self.partitions as usize]);
        let (seconds, processor) = std::thread::scope(|scope| -> Outcome<_> {
            let threads: Vec<_> = writers.iter().map(|it| (it, scope.spawn(|| one(it)))).collect();
            begin.wait();
            let before = child::processor_seconds(std::process::id());
            begin.wait();
            let (before, mut spans) = (before?, Vec::new());
            for (writer, thread) in threads {
                let (times, span) = thread.join().map_err(|_| "a thread has panicked")??;
                if let Some(count) = by_set.get_mut(writer.set) {
                    *count += times.len();
                }
                all.add(times)?;
                spans.push(span);
            }
            let used = child::processor_seconds(std::process::id())? - before;
            Ok((Span::seconds_of(spans), used))
        })?;
        writers.iter().try_for_each(|writer| self.verify(&disk, writer, &parts))?;
        let rates: Vec<f64> = disk.loads().iter().map(|load| load.rate).collect();
        let counts: Vec<f64> = by_set.iter().map(|count| *count as f64).collect();
        disk.close()?;
        let micros = |at: f64| all.value_at_quantile(at) as f64 / 1e3;
        Ok(json!({
            "cell": self, "operations": all.len(), "per_second": all.len() as f64 / seconds,
            "mean_us": all.mean() / 1e3, "p50_us": micros(0.5), "p99_us": micros(0.99),
            "processor_us": processor * 1e6 / all.len().max(1) as f64,
            "rates": rates, "writes": counts, "rates_skew": skew(&rates), "writes_skew": skew(&counts),
        }))
    }
}

/// The greatest over the mean.
fn skew(loads: &[f64]) -> f64 {
    let sum: f64 = loads.iter().sum();
    loads.iter().copied().fold(0.0, f64::max) * loads.len() as f64 / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_skewed_and_write_as_often_as_they_are_to() {
        let all = intervals(24, 1000.0, 100.0, 7);
        let rate: f64 = all.iter().map(|it| 1.0 / it.as_secs_f64()).sum();
        assert!((rate - 1000.0).abs() < 1.0, "{rate}");
        let most =
            all.iter().max().unwrap().as_secs_f64() / all.iter().min().unwrap().as_secs_f64();
        assert!((most - 100.0).abs() < 0.1, "{most}");
        assert_ne!(all, intervals(24, 1000.0, 100.0, 8), "they come in another order");
        assert!((skew(&[2.0, 1.0, 1.0, 0.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_cell_runs_with_each_driver_and_checks_what_it_wrote() {
        for (driver, len, paced) in
            [("multi", 4096, None), ("single", 256, None), ("sync", 256, Some((2000.0, 10.0)))]
        {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let cell = Cell {
                pool: directory.path().join("disk"),
                media: "none".to_owned(),
                driver: driver.to_owned(),
                policy: "rate".to_owned(),
                partitions: 2,
                sources: 2,
                len,
                ms: 30,
                seed: 1,
                paced,
            };
            let line = cell.run().unwrap();
            assert!(paced.is_some() || line["operations"].as_u64() > Some(0), "{line}");
            assert!(line["rates_skew"].as_f64().unwrap() < 1.6, "{line}");
            let asked: Cell = serde_json::from_value(line["cell"].clone()).unwrap();
            assert_eq!(asked.paced, paced);
        }
    }
}
