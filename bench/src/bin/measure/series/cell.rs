//! One store under one load, in a process of its own: the work of `measure series-cell`.

use coreplane_pmem::MediaChoice;
use coreplane_tsdb::line::{self, Precision};
use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store, TagFilter, Value as Found};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::walk::{FIELDS, INTERVAL, Kind, Walks, tags_of, time_of, two_tags_of};
use crate::{Outcome, child};
use coreplane_bench::Dram;

/// Lines of a batch.
const BATCH: u64 = 5000;
const DATABASE: &str = "bench";

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Part {
    /// Points one by one, each durable before the next one of its thread.
    Single,
    /// Batches of lines, parsed and written.
    Batch { is_sorted: bool },
    /// The same by one thread, then all sealed: bytes of chunks.
    Space(Kind),
    /// So many series with a point each, and ten tags or two: DRAM.
    Series { has_two_tags: bool },
    /// Batches; then the process ends without closing the store.
    Fill,
    /// The store is opened, and asked; since when it has been waited for (nanoseconds since 1970), and what the sum of the
    /// first device's first field must be.
    Reopen { since: u64, sum: i64 },
}

/// A store, and a part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) part: Part,
    pub(super) directory: PathBuf,
    pub(super) media: String,
    pub(super) sets: u32,
    /// Bytes of a set's pool.
    pub(super) size: u64,
    pub(super) seed: u64,
    pub(super) devices: u64,
    pub(super) threads: u64,
    /// Values of fields.
    pub(super) points: u64,
    pub(super) ms: u64,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What the points of a thread, or of all, took.
#[derive(Debug)]
struct Times {
    all: Histogram<u64>,
    parse: Duration,
    write: Duration,
}

impl Times {
    fn new() -> Outcome<Self> {
        Ok(Self { all: Histogram::new(3)?, parse: Duration::ZERO, write: Duration::ZERO })
    }

    fn add(&mut self, other: &Self) -> Outcome<()> {
        self.all.add(&other.all)?;
        self.parse += other.parse;
        self.write += other.write;
        Ok(())
    }
}

impl Cell {
    fn store(&self) -> Outcome<Store> {
        let media: MediaChoice = self.media.parse()?;
        let options = Options {
            sets: self.sets,
            size: self.size,
            media,
            series_max: self.devices * 2 + 1,
            ..Options::default()
        };
        let store = Store::open(&self.directory, &options)?;
        store.create_database(DATABASE)?;
        Ok(store)
    }

    fn steps(&self) -> u64 {
        (self.points / FIELDS as u64 / self.devices.max(1)).max(1)
    }

    /// All of it; what came out.
    pub(super) fn run(&self) -> Outcome<Value> {
        let found = match &self.part {
            Part::Single => self.single(),
            Part::Batch { is_sorted } => self.batch(*is_sorted),
            Part::Space(kind) => self.space(*kind),
            Part::Series { has_two_tags } => self.series(*has_two_tags),
            Part::Fill => self.fill(),
            Part::Reopen { since, sum } => self.reopen(*since, *sum),
        };
        let mut found = found?;
        found["cell"] = serde_json::to_value(self)?;
        Ok(found)
    }

    /// Has all threads work at once: their times, seconds, and those of processors.
    fn race(&self, work: impl Fn(u64) -> Outcome<Times> + Sync) -> Outcome<(Times, f64, f64)> {
        let before = child::processor_seconds(std::process::id())?;
        let since = Instant::now();
        let mut all = Times::new()?;
        std::thread::scope(|scope| -> Outcome<()> {
            let work = &work;
            let threads: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            for thread in threads {
                all.add(&thread.join().map_err(|_| "a thread has panicked")??)?;
            }
            Ok(())
        })?;
        let seconds = since.elapsed().as_secs_f64();
        Ok((all, seconds, child::processor_seconds(std::process::id())? - before))
    }

    fn single(&self) -> Outcome<Value> {
        let store = self.store()?;
        let texts: Vec<String> = (0..self.devices)
            .map(|device| format!("single{}", tags_of(self.seed, device, true)))
            .collect();
        let write = |key: &SeriesKey<'_>, step: u64| -> Outcome<()> {
            let value = FieldValue::Integer((step % 100) as i64);
            let fields = std::iter::once(("value".into(), value)).collect();
            let point = Point { series: key.clone(), fields, time: time_of(step) };
            let outcome = store.write(DATABASE, None, std::slice::from_ref(&point))?;
            if outcome.written == 1 { Ok(()) } else { Err("a point was refused".into()) }
        };
        let keys: Vec<SeriesKey<'_>> =
            texts.iter().map(|text| SeriesKey::of_text(text)).collect::<Result<_, _>>()?;
        keys.iter().try_for_each(|key| write(key, 0))?;
        let end = Instant::now() + Duration::from_millis(self.ms);
        let before = store.stats();
        let (times, seconds, processor) = self.race(|thread| {
            let mut times = Times::new()?;
            let own: Vec<&SeriesKey<'_>> =
                keys.iter().skip(thread as usize).step_by(self.threads as usize).collect();
            for step in 1.. {
                for key in &own {
                    let since = Instant::now();
                    if since >= end {
                        return Ok(times);
                    }
                    write(key, step)?;
                    times.all.record(since.elapsed().as_nanos() as u64)?;
                }
            }
            Ok(times)
        })?;
        let after = store.stats();
        let (count, micros) =
            (times.all.len(), |at: f64| times.all.value_at_quantile(at) as f64 / 1e3);
        self.check(&store, "single", count + self.devices)?;
        Ok(json!({
            "points": count, "per_second": count as f64 / seconds, "mean_us": times.all.mean() / 1e3,
            "p50_us": micros(0.5), "p99_us": micros(0.99),
            "processor_us": processor * 1e6 / count.max(1) as f64,
            "fences": (after.fences - before.fences) as f64 / count.max(1) as f64,
            "flushes": (after.flushes - before.flushes) as f64 / count.max(1) as f64,
        }))
    }

    /// Fails unless the first field of a measurement has so many points.
    fn check(&self, store: &Store, measurement: &str, want: u64) -> Outcome<()> {
        let reader = store.reader(DATABASE, None)?;
        let fields = reader.fields(measurement);
        let field = fields.iter().find(|it| matches!(&*it.name, "value" | "usage_user"));
        let field = field.ok_or("the field is missing")?;
        let mut count = 0;
        for series in reader.series(measurement, &TagFilter::All) {
            let found = reader.summaries(&series, field, i64::MIN..=i64::MAX, None)?;
            count += found.iter().map(|(_, it)| it.count).sum::<u64>();
        }
        let told = format!("{count} of {want} points of {measurement} are there");
        if count == want { Ok(()) } else { Err(told.into()) }
    }

    /// The texts of all batches.
    fn texts(&self, kind: Kind, is_sorted: bool) -> Outcome<(Vec<Vec<u8>>, i64)> {
        let mut walks = Walks::new(self.seed, self.devices, kind, is_sorted);
        let steps = (BATCH / self.devices.max(1)).max(1);
        let mut all = Vec::new();
        for first in (0..self.steps()).step_by(steps as usize) {
            let mut text = Vec::new();
            let last = self.steps().min(first + steps);
            (first..last).try_for_each(|step| walks.step(step, &mut text))?;
            all.push(text);
        }
        Ok((all, walks.first_sum))
    }

    /// Parses a text and writes its points.
    fn take_in(store: &Store, text: &[u8], times: &mut Times) -> Outcome<()> {
        let since = Instant::now();
        let points: Vec<Point<'_>> = line::points(text, Precision::default(), 0)
            .map(|it| it.map(|(_, point)| point))
            .collect::<Result<_, _>>()?;
        let parsed = Instant::now();
        let outcome = store.write(DATABASE, None, &points)?;
        if outcome.written != points.len() as u64 {
            return Err(format!("points were refused: {:?}", outcome.rejected.first()).into());
        }
        times.parse += parsed - since;
        times.write += parsed.elapsed();
        times.all.record(since.elapsed().as_nanos() as u64)?;
        Ok(())
    }

    fn load(&self, store: &Store, texts: &[Vec<u8>]) -> Outcome<Value> {
        let next = AtomicUsize::new(0);
        let (times, seconds, processor) = self.race(|_| {
            let mut times = Times::new()?;
            while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
                Self::take_in(store, text, &mut times)?;
            }
            Ok(times)
        })?;
        let lines = self.steps() * self.devices;
        let points = lines * FIELDS as u64;
        self.check(store, "cpu", lines)?;
        Ok(json!({
            "points": points, "points_per_second": points as f64 / seconds,
            "lines_per_second": lines as f64 / seconds, "batch_p50_us": times.all.value_at_quantile(0.5) as f64 / 1e3,
            "batch_p99_us": times.all.value_at_quantile(0.99) as f64 / 1e3,
            "parse_ns": times.parse.as_nanos() as f64 / points as f64,
            "write_ns": times.write.as_nanos() as f64 / points as f64,
            "processor_ns": processor * 1e9 / points as f64,
        }))
    }

    fn batch(&self, is_sorted: bool) -> Outcome<Value> {
        let (texts, _) = self.texts(Kind::Integers, is_sorted)?;
        self.load(&self.store()?, &texts)
    }

    fn space(&self, kind: Kind) -> Outcome<Value> {
        let (texts, _) = self.texts(kind, true)?;
        let store = self.store()?;
        let mut found = self.load(&store, &texts)?;
        let since = Instant::now();
        store.seal()?;
        store.merge()?;
        let stats = store.stats();
        self.check(&store, "cpu", self.steps() * self.devices)?;
        found["seal_seconds"] = since.elapsed().as_secs_f64().into();
        let each = |bytes: u64| bytes as f64 / stats.sealed_points.max(1) as f64;
        found["sealed_points"] = stats.sealed_points.into();
        found["sealed_bytes_each"] = each(stats.sealed_bytes).into();
        found["used_bytes_each"] = each(stats.used_bytes).into();
        Ok(found)
    }

    fn series(&self, has_two_tags: bool) -> Outcome<Value> {
        let store = self.store()?;
        let dram = Dram::measured_from_now();
        let since = Instant::now();
        let mut text = Vec::new();
        let mut times = Times::new()?;
        for first in (0..self.devices).step_by(BATCH as usize) {
            text.clear();
            for device in first..self.devices.min(first + BATCH) {
                let tags = match has_two_tags {
                    true => two_tags_of(self.seed, device),
                    false => tags_of(self.seed, device, true),
                };
                let line =
                    format!("cpu{tags} usage_user={}i {}\n", device % 100, time_of(device % 100));
                text.extend_from_slice(line.as_bytes());
            }
            Self::take_in(&store, &text, &mut times)?;
        }
        let seconds = since.elapsed().as_secs_f64();
        let unsealed = dram.grown();
        store.seal()?;
        let stats = store.stats();
        self.check(&store, "cpu", self.devices)?;
        let each = |bytes: u64| bytes as f64 / self.devices.max(1) as f64;
        Ok(json!({
            "series": stats.series, "per_second": self.devices as f64 / seconds,
            "names_bytes_each": each(stats.names_bytes), "dram_unsealed_bytes_each": each(unsealed),
            "dram_bytes_each": each(dram.grown()), "dram_bytes": dram.grown(),
        }))
    }

    fn fill(&self) -> Outcome<Value> {
        let mut walks = Walks::new(self.seed, self.devices, Kind::Integers, true);
        let store = self.store()?;
        let (mut text, mut times) = (Vec::new(), Times::new()?);
        let since = Instant::now();
        let steps = (BATCH / self.devices.max(1)).max(1);
        for first in (0..self.steps()).step_by(steps as usize) {
            text.clear();
            let last = self.steps().min(first + steps);
            (first..last).try_for_each(|step| walks.step(step, &mut text))?;
            Self::take_in(&store, &text, &mut times)?;
        }
        let stats = store.stats();
        // As a killed process leaves it.
        std::mem::forget(store);
        Ok(json!({
            "seconds": since.elapsed().as_secs_f64(), "sum": walks.first_sum, "segments": stats.segments,
            "head_points": stats.head_points, "sealed_points": stats.sealed_points,
        }))
    }

    fn reopen(&self, waited_since: u64, sum: i64) -> Outcome<Value> {
        let since = Instant::now();
        let media: MediaChoice = self.media.parse()?;
        let store = Store::open(&self.directory, &Options { media, ..Options::default() })?;
        let opened = since.elapsed();
        let reader = store.reader(DATABASE, None)?;
        let fields = reader.fields("cpu");
        let field = fields.iter().find(|it| &*it.name == "usage_user").ok_or("no field")?;
        let filter = TagFilter::Equal("hostname".to_owned(), "host_0".to_owned());
        let series = reader.series("cpu", &filter);
        let series = series.first().ok_or("no series")?;
        let found = reader.summaries(series, field, i64::MIN..=i64::MAX, None)?;
        let whole = found.first().ok_or("no points")?;
        if whole.1.sum != Found::Integer(sum) || whole.1.count != self.steps() {
            return Err(format!("{:?} instead of {sum}", whole.1).into());
        }
        let seconds = now().saturating_sub(waited_since) as f64 / 1e9;
        let range = time_of(0)..=time_of(0) + INTERVAL;
        let points: usize = reader
            .points(series, field, range, false)
            .map(|block| block.map(|it| it.len()))
            .sum::<Result<_, _>>()?;
        Ok(json!({
            "seconds": seconds, "open_seconds": opened.as_secs_f64(), "first_points": points,
            "head_points": store.stats().head_points,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(part: Part, directory: PathBuf) -> Cell {
        let (devices, threads, points, ms) = (20, 2, 8000, 30);
        let (media, size) = ("auto".to_owned(), 64 << 20);
        Cell { part, directory, media, sets: 2, size, seed: 1, devices, threads, points, ms }
    }

    #[test]
    fn each_part_runs_and_checks_what_it_wrote() {
        let parts = [
            Part::Single,
            Part::Batch { is_sorted: false },
            Part::Space(Kind::Integers),
            Part::Space(Kind::Decimals),
            Part::Series { has_two_tags: false },
            Part::Series { has_two_tags: true },
        ];
        for part in parts {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let line = cell(part, directory.path().join("store")).run().unwrap();
            assert!(line["points"].as_u64().or(line["series"].as_u64()) > Some(0), "{line}");
        }
    }

    #[test]
    fn a_store_that_was_not_closed_answers_again_and_a_wrong_sum_is_seen() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let of = |part| cell(part, directory.path().join("store"));
        let store = of(Part::Fill).store().unwrap();
        let (texts, sum) = of(Part::Fill).texts(Kind::Integers, true).unwrap();
        of(Part::Fill).load(&store, &texts).unwrap();
        drop(store);
        let line = of(Part::Reopen { since: now(), sum }).run().unwrap();
        assert!(line["seconds"].as_f64() > Some(0.0) && line["first_points"] == 2, "{line}");
        assert!(of(Part::Reopen { since: now(), sum: sum + 1 }).run().is_err());
    }
}
