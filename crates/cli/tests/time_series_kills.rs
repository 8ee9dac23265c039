//! Time series of a server that is killed many times: acknowledged points are there, once, with their newest value.
//!
//! 24 writers make points, late points, points again and series; others fill heads so that they are sealed, drop a
//! measurement, let a retention policy end, and read. After each life the store is exported and compared with the
//! clients' records. A request without an answer may have been executed or not, point by point; from then on the
//! findings count.

mod disk;
mod pool;
mod series;
mod session;

use disk::rounds;
use pool::Place;
use series::{Series, query};
use session::{Outcome, Served};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 24;
const HOUR: i64 = 3_600_000_000_000;

/// A persistent connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn to(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Writes lines; an error if there is no answer. An answer other than that they are durable fails the test.
    fn write(&mut self, parameters: &str, lines: &str) -> Outcome<()> {
        let path = format!("/write?db=opentsdb{parameters}");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}", lines.len());
        self.0.get_mut().write_all(format!("{head}\r\n\r\n{lines}").as_bytes())?;
        let (mut status, mut line, mut len) = (String::new(), String::new(), 0);
        self.0.read_line(&mut status)?;
        while line != "\r\n" {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                return Err(format!("no answer: {status:?}").into());
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = text.trim().parse()?;
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body)?;
        assert!(status.contains(" 204 "), "{status}{}", String::from_utf8_lossy(&body));
        Ok(())
    }
}

/// Reproducible numbers that look random.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A series of a writer, and a time.
type At = (u64, i64);

/// The records of a writer about its points.
struct Writer {
    number: u64,
    draws: Draws,
    /// The number of series that it has made.
    series: u64,
    /// The next time of points that are not late.
    next: i64,
    value: i64,
    acknowledged: BTreeMap<At, i64>,
    /// Writes without an answer: all values of a point, of which the last one counts if all are there.
    asked: HashMap<At, Vec<i64>>,
}

impl Writer {
    fn new(number: u64) -> Self {
        Self {
            number,
            draws: Draws(number * 77 + 5),
            series: 1,
            next: 100,
            value: 0,
            acknowledged: BTreeMap::new(),
            asked: HashMap::new(),
        }
    }

    /// The place of a point: at the end, late, again, or in a new series.
    fn draw(&mut self) -> At {
        let series = self.draws.below(self.series);
        match self.draws.below(40) {
            0 if self.series < 200 => {
                self.series += 1;
                (self.series - 1, self.next)
            }
            // Where no point is yet: times that are not late are multiples of ten.
            1..=9 => (series, self.draws.below(self.next as u64) as i64),
            // An existing point, if the series has it.
            10..=19 => (series, self.draws.below(self.next as u64 / 10) as i64 * 10),
            _ => {
                self.next += 10;
                (series, self.next)
            }
        }
    }

    fn lines(&mut self) -> String {
        let mut lines = String::new();
        for _ in 0..1 + self.draws.below(9) {
            let place = self.draw();
            self.value += 1;
            let (number, value, (series, time)) = (self.number, self.value, place);
            lines +=
                &format!("m,s={series},w={number} h={},v={value}i {time}\n", value as f64 / 2.0);
            self.asked.entry(place).or_default().push(value);
        }
        lines
    }

    /// Writes until there is no answer.
    fn run(&mut self, address: &str, answers: &AtomicU64, known: &AtomicU64) -> Outcome<()> {
        let mut connection = Connection::to(address)?;
        loop {
            let lines = self.lines();
            connection.write("", &lines)?;
            for (place, values) in self.asked.drain() {
                self.acknowledged.extend(values.last().map(|value| (place, *value)));
            }
            known.store(self.acknowledged.len() as u64, Ordering::SeqCst);
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares the stored points with the records.
    fn check(&mut self, mut found: BTreeMap<At, i64>) -> Outcome<()> {
        for (place, value) in &found {
            let is_known = self.acknowledged.get(place) == Some(value);
            let is_asked = self.asked.get(place).is_some_and(|values| values.contains(value));
            if !is_known && !is_asked {
                let known = self.acknowledged.get(place);
                return Err(
                    format!("{}: {value} at {place:?}, and not {known:?}", self.number).into()
                );
            }
        }
        let lost = self.acknowledged.iter().find(|(place, _)| !found.contains_key(place));
        if let Some(lost) = lost {
            return Err(format!("{}: {lost:?} is lost", self.number).into());
        }
        self.acknowledged.clear();
        self.acknowledged.append(&mut found);
        self.asked.clear();
        Ok(())
    }
}

/// The points of a policy: of each writer, by place. Each must be there once, and whole.
fn exported(series: &Series, policy: &str) -> Outcome<HashMap<u64, BTreeMap<At, i64>>> {
    let text = series.expect(0, "export", &["--database", "opentsdb", "--policy", policy])?;
    let mut found: HashMap<u64, BTreeMap<At, i64>> = HashMap::new();
    for line in text.lines().filter(|line| line.starts_with("m,s=")) {
        let wrong = || format!("no point of a writer: {line:?}");
        let (of, rest) = line["m,s=".len()..].split_once(",w=").ok_or_else(wrong)?;
        let (writer, rest) = rest.split_once(" h=").ok_or_else(wrong)?;
        let (half, rest) = rest.split_once(",v=").ok_or_else(wrong)?;
        let (value, time) = rest.split_once("i ").ok_or_else(wrong)?;
        let (value, half): (i64, f64) = (value.parse()?, half.parse()?);
        assert_eq!(half, value as f64 / 2.0, "{line}: half a point");
        let place = (of.parse()?, time.parse()?);
        let twice = found.entry(writer.parse()?).or_default().insert(place, value);
        assert_eq!(twice, None, "{line}: there twice");
    }
    Ok(found)
}

/// Keeps heads full: points that are written again and again, with long texts.
struct Filler {
    number: u64,
    value: i64,
    acknowledged: i64,
}

impl Filler {
    const POINTS: i64 = 32;

    fn run(&mut self, address: &str) -> Outcome<()> {
        let mut connection = Connection::to(address)?;
        let pad = "x".repeat(32 << 10);
        loop {
            self.value += 1;
            let (number, value) = (self.number, self.value);
            let line = |time| format!("fill,f={number} pad=\"{pad}\",v={value}i {time}\n");
            connection.write("", &(0..Self::POINTS).map(line).collect::<String>())?;
            self.acknowledged = value;
        }
    }

    fn check(&mut self, address: &str) -> Outcome<()> {
        let text = format!("SELECT count(v), min(v), max(v) FROM fill WHERE f = '{}'", self.number);
        let found = numbers(&query(address, &text)?);
        let [_, count, least, greatest] = found[..] else {
            // Its series may not exist if nothing was acknowledged.
            assert_eq!(self.acknowledged, 0, "{found:?}");
            return Ok(());
        };
        assert!(count == Self::POINTS || self.acknowledged == 0, "{found:?}");
        assert!(least >= self.acknowledged && greatest <= self.value, "{found:?}: {}", self.value);
        self.acknowledged = least;
        Ok(())
    }
}

/// The numbers of the first row of an answer.
fn numbers(answer: &str) -> Vec<i64> {
    let row = answer.split("\"values\":[[").nth(1).and_then(|rest| rest.split(']').next());
    row.unwrap_or_default().split(',').filter_map(|number| number.parse().ok()).collect()
}

/// A measurement that is written and dropped: its points, and the requests without an answer.
#[derive(Default)]
struct Dropper {
    value: i64,
    there: Option<i64>,
    asked: Option<Option<i64>>,
    drops: u64,
}

impl Dropper {
    const POINTS: i64 = 20;

    fn run(&mut self, address: &str) -> Outcome<()> {
        let mut connection = Connection::to(address)?;
        loop {
            if self.there.is_none() {
                self.value += 1;
                self.asked = Some(Some(self.value));
                let line = |time| format!("gone,t={} v={}i {time}\n", time % 3, self.value);
                connection.write("", &(0..Self::POINTS).map(line).collect::<String>())?;
            } else {
                self.asked = Some(None);
                query(address, "DROP MEASUREMENT gone")?;
                self.drops += 1;
            }
            self.there = self.asked.take().flatten();
        }
    }

    fn check(&mut self, address: &str) -> Outcome<()> {
        let found = numbers(&query(address, "SELECT count(v), min(v), max(v) FROM gone")?);
        let (count, value) = match found[..] {
            [_, count, least, greatest] => {
                assert_eq!(least, greatest, "points of before the drop are back");
                (count, Some(least))
            }
            _ => (0, None),
        };
        let is_whole = count == 0 || count == Self::POINTS;
        match self.asked.take() {
            None => assert!(value == self.there && is_whole, "{found:?}, and not {:?}", self.there),
            Some(None) => {
                assert!((value.is_none() || value == self.there) && is_whole, "{found:?}")
            }
            // A part of the requested points may be there.
            Some(asked) => {
                assert!(value.is_none() || value == asked, "{found:?}, and not {asked:?}")
            }
        }
        if value.is_some() && !is_whole {
            query(address, "DROP MEASUREMENT gone")?;
        }
        self.there = value.filter(|_| is_whole);
        Ok(())
    }
}

/// The progress of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Asked,
    Created,
    Written,
    /// Its points are too old now, or soon.
    Shortened,
    Gone,
}

/// Policies whose points become too old at once, since their durations are shortened.
#[derive(Default)]
struct Retention {
    stages: Vec<Stage>,
    /// The number of points last seen of each.
    seen: Vec<i64>,
}

impl Retention {
    const SHARDS: i64 = 5;
    const EACH: i64 = 4;

    fn count(address: &str, policy: usize) -> Outcome<i64> {
        let found = numbers(&query(address, &format!("SELECT count(v) FROM p{policy}.old"))?);
        Ok(found.get(1).copied().unwrap_or_default())
    }

    fn run(&mut self, address: &str) -> Outcome<()> {
        let mut connection = Connection::to(address)?;
        let now = std::time::UNIX_EPOCH.elapsed()?.as_nanos() as i64;
        loop {
            let policy = self.stages.len();
            let mut reach = |stage| match self.stages.get_mut(policy) {
                Some(last) => *last = stage,
                None => self.stages.push(stage),
            };
            reach(Stage::Asked);
            let on = format!("RETENTION POLICY p{policy} ON opentsdb DURATION");
            query(address, &format!("CREATE {on} INF REPLICATION 1 SHARD DURATION 1h"))?;
            reach(Stage::Created);
            let lines = (0..Self::SHARDS * Self::EACH).map(|at| {
                let time = (now / HOUR - 9 + at / Self::EACH) * HOUR + at % Self::EACH;
                format!("old v={at}i {time}\n")
            });
            connection.write(&format!("&rp=p{policy}"), &lines.collect::<String>())?;
            reach(Stage::Written);
            // It may be executed though there is no answer.
            reach(Stage::Shortened);
            query(address, &format!("ALTER {on} 1h"))?;
            while Self::count(address, policy)? > 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            reach(Stage::Gone);
        }
    }

    fn check(&mut self, address: &str) -> Outcome<()> {
        let policies = query(address, "SHOW RETENTION POLICIES ON opentsdb")?;
        self.seen.resize(self.stages.len(), Self::SHARDS * Self::EACH);
        for (policy, (stage, seen)) in self.stages.iter_mut().zip(&mut self.seen).enumerate() {
            if !policies.contains(&format!("\"p{policy}\"")) {
                assert_eq!(*stage, Stage::Asked, "p{policy} is lost");
                continue;
            }
            let count = Self::count(address, policy)?;
            assert!(count <= *seen, "p{policy}: {count} points, where there were {seen}");
            match stage {
                Stage::Asked | Stage::Created => {}
                Stage::Written => assert_eq!(count, Self::SHARDS * Self::EACH, "p{policy}"),
                Stage::Shortened => {
                    assert_eq!(count % Self::EACH, 0, "p{policy}: a part of a shard")
                }
                Stage::Gone => assert_eq!(count, 0, "p{policy}"),
            }
            if *stage >= Stage::Shortened {
                *seen = count;
            }
        }
        Ok(())
    }
}

/// Reads the points of writers, and must find at least those acknowledged before.
fn read(address: &str, known: &[AtomicU64]) -> Outcome<()> {
    for writer in (0..known.len()).cycle() {
        let least = known[writer].load(Ordering::SeqCst);
        let found = query(address, &format!("SELECT count(v) FROM m WHERE w = '{writer}'"))?;
        let count = numbers(&found).get(1).copied().unwrap_or_default();
        assert!(count as u64 >= least, "writer {writer} has {count} points of {least}");
    }
    Ok(())
}

/// The clients of a server, over all its lives.
struct Clients {
    writers: Vec<Writer>,
    known: Vec<AtomicU64>,
    fillers: [Filler; 2],
    dropper: Dropper,
    retention: Retention,
}

impl Clients {
    fn new() -> Self {
        let filler = |number| Filler { number, value: 0, acknowledged: 0 };
        Self {
            writers: (0..WRITERS).map(Writer::new).collect(),
            known: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
            fillers: [filler(0), filler(1)],
            dropper: Dropper::default(),
            retention: Retention::default(),
        }
    }

    /// A life of a server, which ends after so many answers to writers.
    fn live(&mut self, served: Served, until: u64) -> Outcome<()> {
        let Self { writers, known, fillers, dropper, retention } = self;
        let (answers, address) = (&AtomicU64::new(0), &served.address.clone());
        let known = &known[..];
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (writer, known) in writers.iter_mut().zip(known) {
                threads.push(scope.spawn(move || writer.run(address, answers, known)));
            }
            for filler in fillers {
                threads.push(scope.spawn(move || filler.run(address)));
            }
            threads.push(scope.spawn(move || dropper.run(address)));
            threads.push(scope.spawn(move || retention.run(address)));
            threads.push(scope.spawn(move || read(address, known)));
            let deadline = Instant::now() + Duration::from_mins(5);
            let is_well = || threads.iter().all(|thread| !thread.is_finished());
            while answers.load(Ordering::Relaxed) < until && Instant::now() < deadline && is_well()
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            let was_well = is_well();
            let killed = served.kill();
            for thread in threads {
                let ended = thread.join().map_err(|_| "a client has panicked")?;
                let why = ended.err().ok_or("a client has ended by itself")?;
                assert!(was_well, "{why}");
            }
            killed
        })?;
        assert!(answers.load(Ordering::Relaxed) >= until, "the writers do not get on");
        Ok(())
    }

    /// Compares a store with the records of all clients.
    fn check(&mut self, series: &Series) -> Outcome<()> {
        let mut found = exported(series, "autogen")?;
        for writer in &mut self.writers {
            writer.check(found.remove(&writer.number).unwrap_or_default())?;
        }
        assert!(found.is_empty(), "points of nobody");
        let served = series.serve(&[])?;
        for filler in &mut self.fillers {
            filler.check(&served.address)?;
        }
        self.dropper.check(&served.address)?;
        self.retention.check(&served.address)?;
        // It is killed here, too, though it has no clients.
        served.kill()
    }
}

fn lives(place: Place, media: &'static str) -> Outcome<()> {
    let series = Series { size: "320MiB", ..Series::new(place, media)? };
    let mut clients = Clients::new();
    for round in 0..rounds(12, 40)? {
        clients.live(series.serve(&[])?, 300 + round * 37)?;
        clients.check(&series).map_err(|error| format!("round {round}: {error}"))?;
    }
    // Everything that a kill could interrupt has occurred.
    assert!(clients.writers.iter().any(|writer| writer.series > 5));
    assert!(clients.dropper.drops > 0, "nothing was dropped");
    assert!(clients.retention.stages.contains(&Stage::Gone), "{:?}", clients.retention.stages);
    let stats = series.expect(0, "stats", &["--json"])?;
    assert!(!stats.contains("\"segments\":0,"), "nothing was sealed: {stats}");
    series.finish(series.serve(&[])?)
}

#[test]
fn a_server_in_memory_has_many_lives() -> Outcome<()> {
    lives(Place::in_memory()?, "auto")
}

#[test]
fn a_server_on_a_file_has_many_lives() -> Outcome<()> {
    lives(Place::on_disk()?, "file")
}
