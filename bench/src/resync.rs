//! What a device that is pulled out under load costs, and the one in its place.
//!
//! A matrix of two groups of two devices in memory, whose writes wait for all current devices. Writers
//! and readers go on, each as fast as it can, through all of it:
//!
//! ```text
//!   before ─▶ one device is pulled out: degraded ─▶ a new one in its place is filled: resync ─▶ after
//!          ─▶ pulled out again: degraded again ─▶ filled at a bounded speed: resync, throttled ─▶ end
//! ```
//!
//! Every key is written by one writer, which notes what was acknowledged of it. A reader looks at
//! that first: what it reads may not be older. At the end every key is read, and the members of each
//! group are held against each other.

use crate::bay::{Bay, DeviceEngine};
use crate::choice::Draws;
use crate::record::{check_value, write_key, write_value};
use crate::report::Tally;
use crate::{Error, Plan, Result};
use coreplane_engine::{Engine, Repairable, Visibility, WriteOptions};
use coreplane_mkvs::{Ack, Copied, CopyOptions, Matrix, MemberState, Options, Position, Shape};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The load, and how a device is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Refill {
    /// resync: writers.
    #[arg(long, default_value_t = Refill::default().writers)]
    pub writers: usize,
    /// resync: readers.
    #[arg(long, default_value_t = Refill::default().readers)]
    pub readers: usize,
    /// resync: milliseconds of each stage that nothing ends.
    #[arg(long, default_value_t = Refill::default().stage_ms)]
    pub stage_ms: u64,
    /// resync: bytes of keys and values a second with which a device is filled the second time.
    #[arg(long, default_value_t = Refill::default().throttle)]
    pub throttle: u64,
}

impl Default for Refill {
    /// The load under which a device is pulled out.
    fn default() -> Self {
        Self { writers: 4, readers: 4, stage_ms: 3000, throttle: 8 << 20 }
    }
}

/// What a stage has shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResyncReport {
    /// `resync`.
    pub phase: &'static str,
    /// The engine of the devices.
    pub engine: &'static str,
    /// Which stage it is.
    pub stage: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// Acknowledged writes a second, of all writers.
    pub puts_per_s: f64,
    /// Reads a second, of all readers.
    pub gets_per_s: f64,
    /// 99.9 % of the writes took at most so long.
    pub put_p999_ns: u64,
    /// The longest write.
    pub put_max_ns: u64,
    /// 99.9 % of the reads took at most so long.
    pub get_p999_ns: u64,
    /// The longest read.
    pub get_max_ns: u64,
    /// Reads that failed.
    pub failed_gets: u64,
    /// Reads that showed something older than what was acknowledged, or nothing.
    pub stale_gets: u64,
    /// Writes that failed.
    pub failed_puts: u64,
    /// Records that were gone through to fill a device.
    pub filled_records: u64,
    /// Bytes of their keys and values.
    pub filled_bytes: u64,
    /// The same, a second.
    pub filled_bytes_per_s: f64,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResyncEnd {
    /// `resync`.
    pub phase: &'static str,
    /// The engine of the devices.
    pub engine: &'static str,
    /// `end`.
    pub stage: &'static str,
    /// Acknowledged writes in all.
    pub acknowledged: u64,
    /// Keys whose last acknowledged write is not there.
    pub lost: u64,
    /// Every device is sound, and members of a group have the same.
    pub is_equal: bool,
    /// What is not, in words.
    pub damages: Vec<String>,
}

impl ResyncReport {
    /// True if no read or write of the stage failed, and no read was stale.
    pub fn is_sound(&self) -> bool {
        self.failed_gets == 0 && self.failed_puts == 0 && self.stale_gets == 0
    }
}

impl ResyncEnd {
    /// True if nothing was lost, and every device has what its peers have.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.is_equal && self.damages.is_empty()
    }
}

const STAGES: [&str; 7] =
    ["before", "degraded", "resync", "after", "degraded again", "resync, throttled", "after again"];

/// The device that is pulled out.
const PLACE: Position = Position { group: 0, device: 1 };

/// A device that is pulled out and meets no call for so long is in use no more.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

/// What all threads look at.
struct Scene<'a> {
    matrix: &'a Matrix,
    plan: &'a Plan,
    refill: &'a Refill,
    stage: AtomicUsize,
    is_over: AtomicBool,
    /// The version of each record that was acknowledged last.
    acknowledged: Vec<AtomicU64>,
}

/// What one thread has seen in one stage.
struct Seen {
    tally: Tally,
    failed: u64,
    stale: u64,
}

/// Runs it on a new matrix in a directory that is made for it and removed; a report for each stage,
/// and the end.
///
/// # Errors
/// [`Error::Plan`] if it cannot be carried out; as the engine, if a device cannot be replaced.
pub fn resync(
    directory: &Path,
    plan: &Plan,
    refill: &Refill,
    engine: DeviceEngine,
    check_reads: bool,
) -> Result<(Vec<ResyncReport>, ResyncEnd)> {
    plan.check()?;
    if refill.writers == 0 || refill.readers == 0 || refill.throttle == 0 {
        return Err(Error::Plan("resync needs writers, readers, and a speed".to_owned()));
    }
    let cannot = |error: std::io::Error| Error::Plan(format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let reports = run(directory, plan, refill, engine, check_reads);
    std::fs::remove_dir_all(directory).map_err(cannot)?;
    reports
}

fn run(
    directory: &Path,
    plan: &Plan,
    refill: &Refill,
    engine: DeviceEngine,
    check_reads: bool,
) -> Result<(Vec<ResyncReport>, ResyncEnd)> {
    let size = plan.records * (plan.key_size + plan.value_size + 48) as u64 * 2 + (64 << 20);
    let bay = Bay::new(directory.to_owned(), engine, size, check_reads);
    let shape = Shape { ack: Ack::All, ..Shape::default() };
    let matrix = Matrix::create(&bay, shape, &Options::default())?;
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    for number in 0..plan.records {
        write_key(number, &mut key);
        write_value(number, 1, &mut value);
        let _outcome = matrix.put(&key, &value, &WriteOptions::default())?;
    }
    let scene = Scene {
        matrix: &matrix,
        plan,
        refill,
        stage: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        acknowledged: (0..plan.records).map(|_| AtomicU64::new(1)).collect(),
    };
    let mut stages = Ok(Vec::new());
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let scene = &scene;
        let writers: Vec<_> =
            (0..refill.writers).map(|number| scope.spawn(move || write(scene, number))).collect();
        let readers: Vec<_> =
            (0..refill.readers).map(|number| scope.spawn(move || read(scene, number))).collect();
        stages = direct(scene, &bay);
        scene.is_over.store(true, Ordering::Relaxed);
        let joined = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<Seen>>>| {
            thread.join().map_err(|_| Error::Panicked).flatten()
        };
        puts.extend(writers.into_iter().map(joined));
        gets.extend(readers.into_iter().map(joined));
    });
    let of_engine = name_of(engine);
    let reports = report(&stages?, of_engine, puts, gets)?;
    let end = end(&scene, &reports, of_engine)?;
    matrix.close()?;
    Ok((reports, end))
}

fn name_of(engine: DeviceEngine) -> &'static str {
    match engine {
        DeviceEngine::Bptree => "bptree",
        DeviceEngine::Scmkv => "scmkv",
    }
}

/// Goes through the stages; how long each took, and what was filled in it.
fn direct(scene: &Scene<'_>, bay: &Bay) -> Result<Vec<(f64, Copied)>> {
    let mut stages = Vec::new();
    let pause = || std::thread::sleep(Duration::from_millis(scene.refill.stage_ms));
    let fill = |bytes_per_second_max| {
        let options = CopyOptions { bytes_per_second_max, is_fresh: true };
        scene.matrix.replace(bay, PLACE, &options, &|_| {})
    };
    for stage in 0..STAGES.len() {
        scene.stage.store(stage, Ordering::Relaxed);
        let begun_at = Instant::now();
        let is_pulled = stage == 1 || stage == 4;
        if is_pulled {
            bay.pull(PLACE);
        }
        let filled = match stage {
            2 => fill(None)?,
            5 => fill(Some(scene.refill.throttle))?,
            _ => {
                pause();
                // On a busy machine no call may have met it yet; none is put in its place before.
                while is_pulled && is_current(scene.matrix) && begun_at.elapsed() < NOTICED_WITHIN {
                    pause();
                }
                Copied::default()
            }
        };
        stages.push((begun_at.elapsed().as_secs_f64(), filled));
    }
    Ok(stages)
}

fn is_current(matrix: &Matrix) -> bool {
    matrix.member_states().contains(&(PLACE, MemberState::Current))
}

fn stages_seen() -> Result<Vec<Seen>> {
    STAGES.iter().map(|_| Ok(Seen { tally: Tally::new()?, failed: 0, stale: 0 })).collect()
}

/// One writer: of every so many keys one is its own.
fn write(scene: &Scene<'_>, writer: usize) -> Result<Vec<Seen>> {
    let Scene { matrix, plan, refill, .. } = scene;
    let mut seen = stages_seen()?;
    let mut draws = Draws::new(plan.seed ^ (writer as u64 + 1) << 32);
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    let own = (plan.records / refill.writers as u64).max(1);
    // What was begun of each key: one that failed may have been made.
    let mut begun = vec![1_u64; own as usize];
    while !scene.is_over.load(Ordering::Relaxed) {
        let which = draws.next() % own;
        let number = which * refill.writers as u64 + writer as u64;
        let Some(acknowledged) = scene.acknowledged.get(number as usize) else { continue };
        begun[which as usize] += 1;
        let version = begun[which as usize];
        write_key(number, &mut key);
        write_value(number, version, &mut value);
        let stage = scene.stage.load(Ordering::Relaxed);
        let started = Instant::now();
        let written = matrix.put(&key, &value, &WriteOptions::default());
        note(&mut seen[stage], started);
        match written {
            Ok(_) => acknowledged.store(version, Ordering::Release),
            Err(_) => seen[stage].failed += 1,
        }
    }
    Ok(seen)
}

/// One reader, of all keys.
fn read(scene: &Scene<'_>, reader: usize) -> Result<Vec<Seen>> {
    let Scene { plan, .. } = scene;
    let mut seen = stages_seen()?;
    let mut draws = Draws::new(plan.seed ^ (reader as u64 + 1) << 48);
    let (mut key, mut value) = (vec![0; plan.key_size], Vec::new());
    while !scene.is_over.load(Ordering::Relaxed) {
        let number = draws.next() % plan.records;
        let least = scene.acknowledged[number as usize].load(Ordering::Acquire);
        write_key(number, &mut key);
        let stage = scene.stage.load(Ordering::Relaxed);
        let started = Instant::now();
        let found = look(scene, (number, &key), &mut value);
        note(&mut seen[stage], started);
        match found {
            Ok(version) if version >= least => {}
            Ok(_) => seen[stage].stale += 1,
            Err(Error::Engine(_)) => seen[stage].failed += 1,
            Err(wrong) => return Err(wrong),
        }
    }
    Ok(seen)
}

/// The version of a record; 0 if it is not there.
fn look(scene: &Scene<'_>, (number, key): (u64, &[u8]), value: &mut Vec<u8>) -> Result<u64> {
    value.clear();
    let found = scene.matrix.get_with(key, Visibility::Durable, &mut |record| {
        record.value.append_to(value);
    })?;
    if !found.hit {
        return Ok(0);
    }
    check_value(number, value, scene.plan.value_size)
        .map_err(|what| Error::WrongValue { number, what })
}

fn note(seen: &mut Seen, started: Instant) {
    let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    seen.tally.latencies.saturating_record(took);
    seen.tally.operations += 1;
}

/// The sum of what threads have seen, by stages.
fn sum(of_threads: Vec<Result<Vec<Seen>>>) -> Result<Vec<Seen>> {
    let mut sums = stages_seen()?;
    for of_thread in of_threads {
        for (sum, seen) in sums.iter_mut().zip(of_thread?) {
            sum.tally.merge(&seen.tally)?;
            sum.failed += seen.failed;
            sum.stale += seen.stale;
        }
    }
    Ok(sums)
}

fn report(
    stages: &[(f64, Copied)],
    engine: &'static str,
    puts: Vec<Result<Vec<Seen>>>,
    gets: Vec<Result<Vec<Seen>>>,
) -> Result<Vec<ResyncReport>> {
    let both = sum(puts)?.into_iter().zip(sum(gets)?);
    let each = STAGES.iter().zip(stages).zip(both);
    Ok(each
        .map(|((stage, (seconds, filled)), (puts, gets))| ResyncReport {
            phase: "resync",
            engine,
            stage,
            seconds: *seconds,
            puts_per_s: (puts.tally.operations - puts.failed) as f64 / seconds,
            gets_per_s: (gets.tally.operations - gets.failed) as f64 / seconds,
            put_p999_ns: puts.tally.latencies.value_at_quantile(0.999),
            put_max_ns: puts.tally.latencies.max(),
            get_p999_ns: gets.tally.latencies.value_at_quantile(0.999),
            get_max_ns: gets.tally.latencies.max(),
            failed_gets: gets.failed,
            stale_gets: gets.stale,
            failed_puts: puts.failed,
            filled_records: filled.records,
            filled_bytes: filled.bytes,
            filled_bytes_per_s: filled.bytes as f64 / seconds,
        })
        .collect())
}

/// Reads every key, and holds the members of each group against each other.
fn end(scene: &Scene<'_>, reports: &[ResyncReport], engine: &'static str) -> Result<ResyncEnd> {
    let (mut key, mut value) = (vec![0; scene.plan.key_size], Vec::new());
    let mut lost = 0;
    for (number, acknowledged) in (0..).zip(&scene.acknowledged) {
        write_key(number, &mut key);
        let version = look(scene, (number, &key), &mut value)?;
        lost += u64::from(version < acknowledged.load(Ordering::Acquire));
    }
    let verified = scene.matrix.verify(&mut |_| {})?;
    let acknowledged = reports.iter().map(|it| (it.puts_per_s * it.seconds).round() as u64).sum();
    let damages = verified.damages.iter().map(|damage| damage.what.clone()).collect();
    let is_equal = verified.is_sound();
    Ok(ResyncEnd { phase: "resync", engine, stage: "end", acknowledged, lost, is_equal, damages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_with_a_device_and_its_place_is_filled() {
        for engine in [DeviceEngine::Bptree, DeviceEngine::Scmkv] {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
            let plan = Plan { records: 2000, ..Plan::default() };
            let refill = Refill { writers: 2, readers: 2, stage_ms: 50, throttle: 1 << 20 };
            let path = directory.path().join("matrix");
            let (reports, end) = resync(&path, &plan, &refill, engine, true).expect("a run");
            assert_eq!(reports.iter().map(|it| it.stage).collect::<Vec<_>>(), STAGES);
            for report in &reports {
                let wrong = report.failed_gets + report.stale_gets + report.failed_puts;
                assert_eq!(wrong, 0, "{report:?}");
                assert_eq!(report.filled_records > 0, report.stage.starts_with("resync"));
            }
            assert!(end.is_equal && end.lost == 0 && end.acknowledged > 0, "{end:?}");
            assert!(!path.exists());
        }
    }
}
