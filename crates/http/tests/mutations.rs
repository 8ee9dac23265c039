//! Valid requests that were then changed at random: each gets an answer that is no failure of the server, and
//! earlier data of the store is still there afterwards.
//!
//! `COREPLANE_TEST_SCALE` sets the number of requests. A failure reports the seed, and `COREPLANE_MUTATION=seed`
//! sends that request alone.

mod server;

use coreplane_http::Options;
use flate2::Compression;
use flate2::write::GzEncoder;
use server::{Answer, Client, Outcome, Served};
use std::io::Write;
use std::ops::Range;

const LINES: &[&[u8]] = &[
    b"cpu,host=a,region=east f=-30.25,i=-2i,s=\"zz\",b=true 1600000720000000000\n",
    b"m v=1\n# a comment\n\nm\\ n,a\\,b=c\\=d,e=f g\\ h=\"x \\\" y\",u=18446744073709551615u 7\r\n",
    b"m,t=\xc3\xbc v=1e308,w=-9223372036854775808i -9223372036854775806\nm v=t\nm v=2 9223372036854775806",
    b"m a=1,b=2,c=3,d=4,e=5 1\nm a=1 2\nm a=1 3\nm,x=1 a=1 4\nm,x=2 a=1 5\nm,x=3 a=1 6\n",
];

const QUERIES: &[&[u8]] = &[
    b"SELECT mean(\"f\"), max(i) FROM \"cpu\" WHERE (\"host\" = 'a') AND time >= 1600000000000ms GROUP BY time(10s), \"host\" fill(null)",
    b"SELECT percentile(f, 95) * 100 - 2 / i AS \"x y\" FROM d.autogen.cpu WHERE s =~ /z+/ OR i != 3 ORDER BY time DESC LIMIT 5 OFFSET 1 SLIMIT 2",
    b"SELECT top(m, 3), host FROM (SELECT derivative(mean(f), 1m) AS m FROM /c.*u/ WHERE time < now() GROUP BY time(1m), * fill(previous)) GROUP BY host",
    b"SELECT moving_average(sum(i), 3), difference(last(f)) FROM cpu WHERE time > '2020-09-13T12:26:40Z' - 1h GROUP BY time(7m, 2m) fill(linear) tz('Europe/Berlin')",
    b"SELECT *::field, s, b FROM cpu, m; SELECT distinct(s), count(*) FROM cpu; SELECT spread(i), stddev(f), median(i) FROM cpu",
    b"SHOW TAG VALUES ON d FROM cpu WITH KEY IN (\"host\", region) WHERE host != 'b' LIMIT 3",
    b"SHOW FIELD KEYS; SHOW SERIES FROM /./ WHERE region = ''; SHOW TAG KEYS; SHOW MEASUREMENTS WITH MEASUREMENT =~ /c/; SHOW DATABASES",
    b"CREATE RETENTION POLICY p ON d DURATION 3d12h REPLICATION 1 SHARD DURATION 1h; ALTER RETENTION POLICY p ON d DURATION INF",
    b"CREATE DATABASE e WITH DURATION 1d NAME \"q\"; DROP SERIES FROM m WHERE x = '1'; DROP MEASUREMENT m; DROP RETENTION POLICY p ON d",
];

const POINTS: &[&[u8]] = &[
    br#"[{"metric":"sys.cpu","timestamp":1500000000,"value":42.5,"tags":{"host":"a","dc":"x"}},{"metric":"m","timestamp":1500000000123,"value":"7","tags":{"a":"b"}}]"#,
    br#"{"metric":"disk/used_b","timestamp":"1500000000","value":-1e-7,"tags":{"host":"\u00fc"},"more":[null,true,{"x":[]}]}"#,
];

const ASKED: &[&[u8]] = &[
    br#"{"start":1000,"end":"2020/01/01-00:00:00","queries":[{"aggregator":"p99","metric":"sys.cpu","downsample":"10s-avg-nan","rate":true,"rateOptions":{"counter":true,"counterMax":100},"filters":[{"type":"wildcard","tagk":"host","filter":"*a*","groupBy":true},{"type":"regexp","tagk":"dc","filter":"x+"}]}]}"#,
    br#"{"start":"1y-ago","queries":[{"aggregator":"sum","metric":"m","tags":{"a":"*"},"downsample":"0all-count"},{"aggregator":"none","metric":"sys.cpu"}],"msResolution":true,"arrays":true}"#,
];

/// Pieces that have a meaning somewhere, or are the greatest or least of their kind.
const PIECES: &[&[u8]] = &[
    b",",
    b"=",
    b" ",
    b"\"",
    b"\\",
    b"\n",
    b"'",
    b"/",
    b"(",
    b")",
    b";",
    b"*",
    b"-",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"\0",
    b"\xff",
    b"\xf0\x9f\x92\xa9",
    b"NaN",
    b"Inf",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"1e999",
    b"0",
    b"null",
    b"::tag",
    b"time",
    b" OR ",
    b" GROUP BY time(1ns) ",
    b"now()",
    b"10000000000w",
    b"fill(1)",
    b"i ",
    b"u ",
    b"\\u0000",
    b"%00",
];

/// Pseudo-random numbers that can be repeated.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }

    fn of<'t>(&mut self, some: &[&'t [u8]]) -> &'t [u8] {
        some[self.below(some.len())]
    }

    fn part(&mut self, len: usize) -> Range<usize> {
        let begin = self.below(len + 1);
        begin..begin + self.below((len - begin).min(40) + 1)
    }

    /// One of these texts, changed in some places.
    fn mutate(&mut self, texts: &[&[u8]]) -> Vec<u8> {
        let mut text = self.of(texts).to_vec();
        for _ in 0..self.below(8) {
            let at = self.part(text.len());
            match self.below(7) {
                0 => drop(text.drain(at)),
                1 => drop(text.splice(at, self.of(PIECES).iter().copied())),
                2 => drop(text.splice(at.start..at.start, self.of(PIECES).iter().copied())),
                3 => {
                    let other = self.of(texts);
                    let part = self.part(other.len());
                    drop(text.splice(at, other[part].iter().copied()));
                }
                4 => {
                    let part = text[at.clone()].to_vec();
                    let times = [1, 2, 30, 600][self.below(4)];
                    drop(text.splice(at.start..at.start, part.repeat(times)));
                }
                5 => text.truncate(at.start),
                _ => {
                    if let Some(byte) = text.get_mut(at.start) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
        text
    }
}

fn packed(text: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    Ok(encoder.finish()?)
}

fn encoded(text: &[u8]) -> String {
    form_urlencoded::byte_serialize(text).collect()
}

/// Method, path, headers and body.
type Request = (&'static str, String, Vec<(&'static str, &'static str)>, Vec<u8>);

/// The request of this seed.
fn request(seed: u64) -> Outcome<Request> {
    let mut draws = Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let unit = ["", "ns", "ms", "s", "h", "x"][draws.below(6)];
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let gzip = ("Content-Encoding", "gzip");
    Ok(match draws.below(9) {
        0 | 1 => ("POST", format!("/write?db=d&precision={unit}"), vec![], draws.mutate(LINES)),
        2 => (
            "POST",
            format!("/api/v2/write?bucket=d&precision={unit}"),
            vec![],
            draws.mutate(LINES),
        ),
        3 => {
            let whole = packed(draws.of(LINES))?;
            ("POST", "/write?db=d".to_owned(), vec![gzip], draws.mutate(&[&whole]))
        }
        4 => {
            let options =
                ["", "&epoch=ms", "&chunked=true&chunk_size=1", "&pretty=true"][draws.below(4)];
            let text = encoded(&draws.mutate(QUERIES));
            ("GET", format!("/query?db=d{options}&q={text}"), vec![], vec![])
        }
        5 => {
            let body = format!("db=d&q={}", encoded(&draws.mutate(QUERIES)));
            ("POST", "/query".to_owned(), vec![form], body.into_bytes())
        }
        6 => {
            // The encoded form is changed, too.
            let body = format!("db=d&q={}", encoded(draws.of(QUERIES)));
            ("POST", "/query".to_owned(), vec![form], draws.mutate(&[body.as_bytes()]))
        }
        7 => ("POST", "/api/put?details".to_owned(), vec![], draws.mutate(POINTS)),
        _ => ("POST", "/api/query".to_owned(), vec![], draws.mutate(ASKED)),
    })
}

/// Sends a request, and returns its answer.
fn ask(client: &mut Client, seed: u64) -> Outcome<Answer> {
    let (method, path, headers, body) = request(seed)?;
    client.ask(method, &path, &headers, &body).map_err(|error| {
        let body = String::from_utf8_lossy(&body);
        format!("seed {seed}: {error}: {method} {path:.400} {headers:?} {body:.400}").into()
    })
}

/// The resident memory of this process, in bytes.
fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

#[test]
fn whatever_is_sent_is_answered() -> Outcome<()> {
    // Minutes since 1970 are too many buckets: a second of work each time.
    let query_buckets_max = 100_000;
    let options =
        Options { inline_max: 1000, memory_max: 16 << 20, query_buckets_max, ..Options::default() };
    let served = Served::start(options)?;
    served.store.create_database("d")?;
    served.store.create_database("kept")?;
    assert_eq!(served.ask("POST", "/write?db=kept", b"m v=1 1")?.status, 204);
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let seeds = match std::env::var("COREPLANE_MUTATION") {
        Ok(seed) => seed.parse::<u64>().map(|seed| seed..seed + 1)?,
        Err(_) => 0..if is_full { 300_000 } else { 6_000 },
    };
    let (mut client, mut statuses) = (served.connect()?, std::collections::BTreeMap::new());
    let mut before = 0;
    for seed in seeds.clone() {
        // Databases that a statement may have dropped; now and then without the series gathered in them, which
        // would slow everything.
        if seed % 100 == 0 {
            if seed % 2_000 == 0 {
                served.store.drop_database("d")?;
            }
            served.store.create_database("d")?;
            served.store.create_database("opentsdb")?;
        }
        if seed == 1_000 {
            before = resident()?;
        }
        let answer = ask(&mut client, seed)?;
        let status = answer.status;
        assert!(status < 500 || status == 503, "seed {seed}: {answer:?}: {:.500?}", request(seed)?);
        *statuses.entry(status).or_insert(0_u64) += 1;
        if answer.header("connection") == "close" {
            assert!(client.is_ended()?, "seed {seed}");
            client = served.connect()?;
        }
    }
    if seeds.end - seeds.start > 1 {
        // Some requests are valid as they are, or nearly.
        assert!(statuses.keys().any(|it| *it < 300) && statuses.contains_key(&400), "{statuses:?}");
        let grown = resident()?.saturating_sub(before);
        assert!(grown < 256 << 20, "{grown} bytes more than after the first 1,000");
    }
    assert_eq!(served.ask("GET", "/ping", b"")?.status, 204);
    let kept = served.ask("GET", "/query?db=kept&epoch=ns&q=SELECT+*+FROM+m", b"")?;
    assert!(kept.body.contains("\"values\":[[1,1]]"), "{kept:?}");
    served.stop();
    Ok(())
}

#[test]
fn lines_of_opentsdb_that_are_wrong_take_nothing_with_them() -> Outcome<()> {
    const PUTS: &[&[u8]] = &[
        b"put sys.cpu 1500000000 42.5 host=a dc=x\n",
        b"put m 1500000000123 -7 a=b\r\nversion\nstats\nhelp\n",
        b"put m 1 1e5 a=b\nput\nput m\nput m 1\nput m 1 1\n\nnothing\n",
    ];
    let served = Served::start(Options { inline_max: 1000, ..Options::default() })?;
    for seed in 0..500_u64 {
        let mut draws = Draws(seed);
        let mut client = served.connect()?;
        let text = [b"put a.b 1 1 a=b\n", &draws.mutate(PUTS)[..], b"\nexit\n"].concat();
        let _sent = client.send(&text).is_ok();
        // The server sends its errors, and ends the connection, either at the end of the input or before it.
        let _end = client.stream.shutdown(std::net::Shutdown::Write).is_ok();
        assert!(client.is_ended()?, "seed {seed}");
    }
    let found = served.ask("GET", "/api/query?start=1&end=2&m=sum:a.b", b"")?;
    assert!(found.body.contains("{\"1\":1}"), "{found:?}");
    served.stop();
    Ok(())
}
