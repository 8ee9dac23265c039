//! What competition is worth where devices stall.
//!
//! A matrix of two groups of two devices in memory, each of which stalls by itself
//! ([`stalling`](crate::stalling)). Gets come in an *open loop*: each has a time at which it is
//! due, drawn beforehand, whether or not those before it are through, and its latency counts from
//! then. Many clients share the load, so that one that waits holds up few others. The same is done
//! with competition (`mkvs`) and without (`mkvs-gekv`), both through the rings of the devices, at the
//! same load, with the same pauses at the same moments, and the same draws.
//!
//! # What is not the store's
//!
//! Where both devices of a group stall at once no competition helps: how much of the time that was
//! follows from the draws, and is reported. And a machine that others use wakes clients late, and the
//! store's threads too: a thread of the kernel that keeps a processor for 20 ms keeps all that wait for
//! that processor, whether or not the other one is idle. How late a client was woken for a get that it
//! slept for has nothing to do with the store, as long as the store's own threads sleep (a device that
//! stalls takes no processor here, nor does who waits for it). It is reported, as are the latencies from
//! when clients were awake (*served*; of a get that was due while its client still waited for the one
//! before, from when it was due), how many operations of devices took a thousand times as long as a lookup
//! does (*interrupted*: their threads were not run), and the share of the processors that others had, so that whoever reads
//! the figures can tell the one from the other. What is promised is promised of the time at which a get
//! was due, and no round is left out.

use crate::bay::{Bay, DeviceEngine};
use crate::choice::Draws;
use crate::processors::Processors;
use crate::record::{check_value, write_key, write_value};
use crate::report::Tally;
use crate::stall::{Pauses, Weather};
use crate::{Error, Plan, Result};
use coreplane_engine::{Engine, Stats, Visibility, WriteOptions};
use coreplane_mkvs::{Matrix, Options, Position, Prototype, ReadPath, Shape};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How devices stall, and the load.
#[derive(Debug, Clone, Copy, PartialEq, clap::Args)]
#[group(skip)]
pub struct Jitter {
    /// competition: gets a second, of all clients together.
    #[arg(long, default_value_t = Jitter::default().rate)]
    pub rate: f64,
    /// competition: clients.
    #[arg(long, default_value_t = Jitter::default().clients)]
    pub clients: usize,
    /// competition: microseconds of a stall.
    #[arg(long, default_value_t = Jitter::default().stall_us)]
    pub stall_us: u64,
    /// competition: each device stalls once in so many microseconds.
    #[arg(long, default_value_t = Jitter::default().period_us)]
    pub period_us: u64,
}

impl Default for Jitter {
    /// Two percent of the time, at a load that leaves the devices idle for most of it.
    fn default() -> Self {
        Self { rate: 4000.0, clients: 64, stall_us: 5000, period_us: 250_000 }
    }
}

/// What a run has shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompetitionReport {
    /// `competition`.
    pub phase: &'static str,
    /// The prototype.
    pub prototype: &'static str,
    /// Gets.
    pub operations: u64,
    /// Gets a second that were due.
    pub rate: f64,
    /// From the time at which a get was due, nanoseconds.
    pub mean_ns: f64,
    /// The median of the same.
    pub p50_ns: u64,
    /// 99 % took at most so long.
    pub p99_ns: u64,
    /// 99.9 % took at most so long.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Gets that took at least a tenth of a stall.
    pub late: u64,
    /// Operations of devices that met a stall; those that queued up behind them are not counted.
    pub met: u64,
    /// Operations of devices that took over a millisecond but for a stall, where a lookup takes a
    /// thousandth of it: who made them was not run meanwhile.
    pub interrupted: u64,
    /// Gets for which another device was asked.
    pub hedges: u64,
    /// Answers that came too late.
    pub losses: u64,
    /// Gets that did not begin since another device had answered.
    pub cancelled: u64,
    /// Microseconds of a stall.
    pub stall_us: u64,
    /// Microseconds of a period, in which a device stalls once.
    pub period_us: u64,
    /// Clients.
    pub clients: usize,
    /// How late clients were woken that slept until a get was due: half of them at most so long.
    pub woken_late_p50_ns: u64,
    /// 99.9 % of them.
    pub woken_late_p999_ns: u64,
    /// The latest.
    pub woken_late_max_ns: u64,
    /// Gets that were due before their client was through with the one before.
    pub behind: u64,
    /// As `mean_ns`, but for what clients were woken late by.
    pub served_mean_ns: f64,
    /// As `p999_ns`, but for what clients were woken late by.
    pub served_p999_ns: u64,
    /// The share of the processors' time that other processes had; none where the system does not
    /// say.
    pub others: Option<f64>,
    /// The share that the machine under this one took away.
    pub stolen: Option<f64>,
    /// The share of the time in which all devices of a group stalled at once, by the draws.
    pub all_stalled: f64,
}

/// When the device at a place stalls.
fn pauses(jitter: &Jitter, seed: u64, place: Position) -> Pauses {
    Pauses {
        seed: seed ^ u64::from(place.group) << 8 ^ u64::from(place.device),
        period: Duration::from_micros(jitter.period_us),
        length: Duration::from_micros(jitter.stall_us),
    }
}

/// The share of so long a time in which all devices of a group stall.
fn all_stalled(jitter: &Jitter, seed: u64, shape: &Shape, time: Duration) -> f64 {
    let of_group = |group: u16| -> Vec<Pauses> {
        let devices = 0..shape.devices;
        devices.map(|device| pauses(jitter, seed, Position { group, device })).collect()
    };
    let shared: f64 = (0..shape.groups)
        .map(|group| Pauses::shared_by(&of_group(group), time).as_secs_f64())
        .sum();
    shared / (time.as_secs_f64() * f64::from(shape.groups)).max(f64::MIN_POSITIVE)
}

/// Runs the plan's operations on a new matrix of this prototype, in a directory that is made for it
/// and removed.
///
/// # Errors
/// [`Error::Plan`] if it cannot be carried out; [`Error::WrongValue`]; as the engine.
pub fn competition(
    directory: &Path,
    plan: &Plan,
    jitter: &Jitter,
    prototype: Prototype,
    check_reads: bool,
) -> Result<CompetitionReport> {
    plan.check()?;
    if jitter.clients == 0 || jitter.clients > 1024 || jitter.rate.is_nan() || jitter.rate <= 0.0 {
        return Err(Error::Plan("competition needs 1 to 1024 clients and a rate".to_owned()));
    }
    let cannot = |error: std::io::Error| Error::Plan(format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let report = run(directory, plan, jitter, prototype, check_reads);
    std::fs::remove_dir_all(directory).map_err(cannot)?;
    report
}

fn run(
    directory: &Path,
    plan: &Plan,
    jitter: &Jitter,
    prototype: Prototype,
    check_reads: bool,
) -> Result<CompetitionReport> {
    let weather = Arc::new(Weather::default());
    let size = plan.records * (plan.key_size + plan.value_size + 48) as u64 * 2 + (64 << 20);
    let (seed, directory) = (plan.seed, directory.to_owned());
    let jitters = *jitter;
    let stalls = move |place| pauses(&jitters, seed, place);
    let rack = Bay::new(directory, DeviceEngine::Bptree, size, check_reads);
    let rack = rack.stalling(stalls, &weather);
    let options = Options { read_path: ReadPath::Rings, ..Options::default() };
    let shape = Shape { prototype, ..Shape::default() };
    let matrix = Matrix::create(&rack, shape, &options)?;
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    for number in 0..plan.records {
        write_key(number, &mut key);
        write_value(number, 1, &mut value);
        let _outcome = matrix.put(&key, &value, &WriteOptions::default())?;
    }
    let before = matrix.stats();
    let processors = Processors::now();
    let start = Instant::now() + Duration::from_millis(50);
    weather.begin(start);
    let driven = drive(&matrix, plan, jitter, start);
    weather.end();
    let (tally, woken) = driven?;
    let mut report = report(&tally, jitter, prototype, (&before, &matrix.stats()), &weather);
    report.woken_late_p50_ns = woken.late.value_at_quantile(0.5);
    report.woken_late_p999_ns = woken.late.value_at_quantile(0.999);
    report.woken_late_max_ns = woken.late.max();
    report.behind = woken.behind;
    report.served_mean_ns = woken.served.mean();
    report.served_p999_ns = woken.served.value_at_quantile(0.999);
    let shares = processors.and_then(|before| before.since());
    (report.others, report.stolen) = (shares.map(|it| it.others), shares.map(|it| it.stolen));
    report.all_stalled = all_stalled(jitter, seed, &shape, start.elapsed());
    matrix.close()?;
    Ok(report)
}

/// How clients came to their gets.
struct Woken {
    /// Nanoseconds after the time for which they slept.
    late: Histogram<u32>,
    /// Nanoseconds of a get but for that.
    served: Histogram<u32>,
    /// Gets that were due before the one before was through.
    behind: u64,
}

impl Woken {
    fn new() -> Result<Self> {
        // The same bounds as of the latencies.
        let histogram = || Tally::new().map(|tally| tally.latencies);
        Ok(Self { late: histogram()?, served: histogram()?, behind: 0 })
    }
}

/// Nanoseconds since.
fn nanoseconds_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn drive(matrix: &Matrix, plan: &Plan, jitter: &Jitter, start: Instant) -> Result<(Tally, Woken)> {
    let mut tally = Tally::new()?;
    let mut woken = Woken::new()?;
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..jitter.clients)
            .map(|client| scope.spawn(move || work(matrix, plan, jitter, (client, start))))
            .collect();
        ended.extend(clients.into_iter().map(|client| client.join().map_err(|_| Error::Panicked)));
    });
    for of_one in ended {
        let (of_one, late) = of_one??;
        tally.merge(&of_one)?;
        let cannot = |error| Error::Plan(format!("histograms: {error}"));
        woken.late.add(&late.late).map_err(cannot)?;
        woken.served.add(&late.served).map_err(cannot)?;
        woken.behind += late.behind;
    }
    Ok((tally, woken))
}

/// One client.
fn work(
    matrix: &Matrix,
    plan: &Plan,
    jitter: &Jitter,
    (client, start): (usize, Instant),
) -> Result<(Tally, Woken)> {
    let mut tally = Tally::new()?;
    let mut woken = Woken::new()?;
    let mut draws = Draws::new(plan.seed ^ (client as u64) << 32);
    let mean_gap = jitter.clients as f64 / jitter.rate;
    let mut due = start;
    let mut key = vec![0; plan.key_size];
    let mut copy = vec![0; plan.value_size];
    for _ in 0..plan.operations / jitter.clients as u64 {
        // As gaps are between what comes by chance.
        let chance = (draws.next() >> 11) as f64 / (1_u64 << 53) as f64;
        due += Duration::from_secs_f64(-(1.0 - chance).ln() * mean_gap);
        let number = draws.next() % plan.records;
        write_key(number, &mut key);
        let (now, mut awake) = (Instant::now(), due);
        if due > now {
            std::thread::sleep(due - now);
            woken.late.saturating_record(nanoseconds_since(due));
            awake = Instant::now();
        } else {
            woken.behind += 1;
        }
        let mut len = 0;
        let found = matrix.get_with(&key, Visibility::Durable, &mut |record| {
            for piece in record.value.pieces() {
                let end = (len + piece.len()).min(copy.len());
                copy[len..end].copy_from_slice(&piece[..end - len]);
                len = end;
            }
        })?;
        woken.served.saturating_record(nanoseconds_since(awake));
        tally.latencies.saturating_record(nanoseconds_since(due));
        tally.operations += 1;
        if !found.hit {
            return Err(Error::WrongValue { number, what: "it is not there" });
        }
        check_value(number, &copy[..len], plan.value_size)
            .map_err(|what| Error::WrongValue { number, what })?;
    }
    Ok((tally, woken))
}

fn report(
    tally: &Tally,
    jitter: &Jitter,
    prototype: Prototype,
    (before, after): (&Stats, &Stats),
    weather: &Weather,
) -> CompetitionReport {
    let counted = |name| {
        let at = |stats: &Stats| stats.figure(name).unwrap_or(0);
        at(after) - at(before)
    };
    let latencies = &tally.latencies;
    let late_ns = (jitter.stall_us * 100).max(1);
    CompetitionReport {
        phase: "competition",
        prototype: prototype.name(),
        operations: tally.operations,
        rate: jitter.rate,
        mean_ns: latencies.mean(),
        p50_ns: latencies.value_at_quantile(0.5),
        p99_ns: latencies.value_at_quantile(0.99),
        p999_ns: latencies.value_at_quantile(0.999),
        max_ns: latencies.max(),
        late: latencies.count_between(late_ns, u64::MAX),
        met: weather.met(),
        interrupted: weather.interrupted(),
        hedges: counted("matrix_hedges"),
        losses: counted("matrix_hedge_losses"),
        cancelled: counted("matrix_hedge_cancelled"),
        stall_us: jitter.stall_us,
        period_us: jitter.period_us,
        clients: jitter.clients,
        woken_late_p50_ns: 0,
        woken_late_p999_ns: 0,
        woken_late_max_ns: 0,
        behind: 0,
        served_mean_ns: 0.0,
        served_p999_ns: 0,
        others: None,
        stolen: None,
        all_stalled: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_get_is_answered_by_either_prototype() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let plan = Plan { records: 500, operations: 2000, ..Plan::default() };
        // Half of the time in stalls, so that some are surely met.
        let (stall_us, period_us) = (2000, 4000);
        let jitter = Jitter { rate: 4000.0, clients: 8, stall_us, period_us };
        for prototype in [Prototype::Gekv, Prototype::Mkvs] {
            let path = directory.path().join(prototype.name());
            let report = competition(&path, &plan, &jitter, prototype, true).expect("a run");
            assert_eq!((report.operations, report.prototype), (2000, prototype.name()));
            assert!(report.met > 0 && report.max_ns >= report.p50_ns);
            assert!(report.woken_late_max_ns > 0 && report.behind < report.operations);
            assert!(report.served_p999_ns > 0 && report.served_mean_ns < report.mean_ns);
            assert!(report.others.is_some() == cfg!(target_os = "linux"));
            assert!(report.all_stalled > 0.0 && report.all_stalled < 0.5);
            assert_eq!(report.hedges > 0, prototype == Prototype::Mkvs);
            assert!(!path.exists());
        }
    }
}
