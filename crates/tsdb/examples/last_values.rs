//! The time that queries for the last values of many series take.
//!
//! ```text
//! cargo run --release -p coreplane-tsdb --example last_values -- DIRECTORY [SERIES [TIMES [ROUNDS]]]
//! ```
//!
//! A store is made in the directory, which must not exist: series with ten fields each, a walk of integers from 0
//! to 100, ten seconds apart. A round opens it, asks a query 20 times, and writes one time of all series. The
//! output has the medians of the rounds: of the first answer after the opening, and of the median of the other
//! answers; first with the points that heads happen to have, then with all points sealed.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use coreplane_tsdb::influxql::{Limits, Request, run};
use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const START: i64 = 1_600_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const FIELDS: usize = 10;
const ASKED: usize = 20;
/// The number of times that are written at once.
const BATCH: usize = 10;

const QUERIES: [&str; 6] = [
    "SELECT last(f0) FROM cpu GROUP BY host",
    "SELECT last(*) FROM cpu GROUP BY host",
    "SELECT last(f0) FROM cpu WHERE time > '2020-09-13T12:26:40Z' GROUP BY host",
    "SELECT last(f0) FROM cpu",
    "SELECT f0 FROM cpu GROUP BY host ORDER BY time DESC LIMIT 1",
    "SELECT max(f0) FROM cpu GROUP BY host",
];

/// A walk of integers.
struct Walk {
    state: u64,
    values: Vec<i64>,
}

impl Walk {
    fn next(&mut self, at: usize) -> i64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let step = (self.state >> 33) as i64 % 3 - 1;
        self.values.get_mut(at).map_or(0, |value| {
            *value = (*value + step).clamp(0, 100);
            *value
        })
    }
}

struct Work {
    keys: Vec<SeriesKey<'static>>,
    walk: Walk,
    written: i64,
}

impl Work {
    /// The points of the next times.
    fn points(&mut self, times: usize) -> Vec<Point<'static>> {
        let mut all = Vec::with_capacity(times * self.keys.len());
        for _ in 0..times {
            for (at, key) in self.keys.iter().enumerate() {
                let field = |field: usize| {
                    let value = FieldValue::Integer(self.walk.next(at * FIELDS + field));
                    (format!("f{field}").into(), value)
                };
                let fields = (0..FIELDS).map(field).collect();
                let time = START + self.written * 10 * SECOND;
                all.push(Point { series: key.clone(), fields, time });
            }
            self.written += 1;
        }
        all
    }

    /// Writes the points of the next times; returns how long the store took.
    fn write(&mut self, store: &Store, times: usize) -> Outcome<Duration> {
        let points = self.points(times);
        let since = Instant::now();
        store.write("d", None, &points)?;
        Ok(since.elapsed())
    }
}

/// How long an answer took, with `threads_max` threads.
fn asked(store: &Store, text: &str, threads_max: usize) -> Outcome<Duration> {
    let limits = Limits {
        rows_max: usize::MAX,
        buckets_max: usize::MAX,
        bytes_max: 1 << 30,
        deadline: Instant::now() + Duration::from_secs(60),
        cancel: None,
        threads_max,
    };
    let now = START + 1_000_000 * SECOND;
    let request =
        Request { text, database: Some("d"), policy: None, now, is_read_only: true, limits };
    let since = Instant::now();
    let answers = run(store, &request)?;
    let took = since.elapsed();
    let is_whole = answers.iter().all(|it| it.outcome.as_ref().is_ok_and(|all| !all.is_empty()));
    if is_whole { Ok(took) } else { Err(format!("{text}: {answers:?}").into()) }
}

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// The results of the rounds: for each query, by all threads and by one, the times of the first answer and of the
/// others.
#[derive(Default)]
struct Found {
    answers: [(Vec<Duration>, Vec<Duration>); QUERIES.len() * 2],
    writes: Vec<Duration>,
    openings: Vec<Duration>,
}

impl Found {
    fn round(
        &mut self,
        mut store: Store,
        work: &mut Work,
        (path, options): (&Path, &Options),
    ) -> Outcome<Store> {
        for (at, (first, rest)) in self.answers.iter_mut().enumerate() {
            drop(store);
            let since = Instant::now();
            store = Store::open(path, options)?;
            self.openings.push(since.elapsed());
            let text = QUERIES.get(at / 2).ok_or("a query is missing")?;
            first.push(asked(&store, text, at % 2)?);
            let others = (0..ASKED).map(|_| asked(&store, text, at % 2));
            rest.push(median(others.collect::<Outcome<_>>()?));
            self.writes.push(work.write(&store, 1)?);
        }
        Ok(store)
    }

    fn show(self, state: &str) {
        println!("{state}:");
        for (at, (first, rest)) in self.answers.into_iter().enumerate() {
            let threads = if at % 2 == 0 { "all threads" } else { "one thread" };
            let text = QUERIES.get(at / 2).copied().unwrap_or_default();
            println!("{:>10.1?} first {:>10.1?}  {threads}: {text}", median(rest), median(first));
        }
        println!("{:>10.1?} a write of a time of all series", median(self.writes));
        println!("{:>10.1?} an opening", median(self.openings));
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("which directory?")?;
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |it| it.parse());
    let (series, times, rounds) = (number(1, 1_000)?, number(2, 2_000)?, number(3, 5)?);
    let options = Options { size: 1 << 30, ..Options::default() };
    let path = Path::new(directory);
    let key = |at| SeriesKey::of_text(&format!("cpu,host=host_{at}")).map(SeriesKey::into_owned);
    let keys = (0..series).map(key).collect::<Result<_, _>>()?;
    let walk = Walk { state: 1, values: vec![50; series * FIELDS] };
    let mut work = Work { keys, walk, written: 0 };
    let mut store = Store::open(path, &options)?;
    store.create_database("d")?;
    let mut took = Duration::ZERO;
    for _ in 0..times.div_ceil(BATCH) {
        took += work.write(&store, BATCH)?;
    }
    let rate = work.written as f64 * (series * FIELDS) as f64 / took.as_secs_f64() / 1e6;
    println!("written: {rate:.2} million values a second; {:?}", store.stats());
    let mut found = Found::default();
    for _ in 0..rounds {
        store = found.round(store, &mut work, (path, &options))?;
    }
    found.show("as it was written");
    store.seal()?;
    let mut found = Found::default();
    for _ in 0..rounds {
        store = found.round(store, &mut work, (path, &options))?;
    }
    found.show("sealed");
    println!("{:?}", store.stats());
    Ok(())
}
