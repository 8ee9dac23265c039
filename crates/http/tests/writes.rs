//! Data that is written by one interface is answered by the other, and data that cannot be written is reported.

mod server;

use coreplane_http::Options;
use coreplane_tsdb::{FieldValue, Patience, Point, SeriesKey};
use flate2::Compression;
use flate2::write::GzEncoder;
use server::{Outcome, SERIES_MAX, Served};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// A server whose store has the database `d`, and which writes in the threads of connections if `inline_max` allows
/// it.
fn start(inline_max: usize) -> Outcome<Served> {
    let served = Served::start(Options { inline_max, ..Options::default() })?;
    served.store.create_database("d")?;
    Ok(served)
}

fn write(served: &Served, parameters: &str, lines: &str) -> Outcome<(u16, String)> {
    let answer = served.ask("POST", &format!("/write?{parameters}"), lines.as_bytes())?;
    assert_eq!(answer.header("content-type"), "application/json");
    Ok((answer.status, answer.body))
}

fn refusal(status: u16, message: &str) -> (u16, String) {
    let message = message.replace('"', "\\\"").replace('\n', "\\n");
    (status, format!("{{\"error\":\"{message}\"}}\n"))
}

const WRITTEN: (u16, String) = (204, String::new());

#[test]
fn writes_are_answered_as_influxdb_does() -> Outcome<()> {
    for inline_max in [0, 1 << 20] {
        let served = start(inline_max)?;
        assert_eq!(write(&served, "db=d", "m v=1")?, WRITTEN);
        assert_eq!(write(&served, "db=d", "")?, WRITTEN);
        assert_eq!(write(&served, "db=d&rp=autogen&consistency=any", "m v=1 5")?, WRITTEN);
        let gone = refusal(404, "database not found: \"none\"");
        for lines in ["m v=1", "broken", "", "# x"] {
            assert_eq!(write(&served, "db=none", lines)?, gone, "{lines}");
        }
        let no_policy = refusal(500, "retention policy not found: none");
        assert_eq!(write(&served, "db=d&rp=none", "m v=1")?, no_policy);
        let broken = refusal(400, "unable to parse 'm': missing fields");
        assert_eq!(write(&served, "db=d", "m")?, broken);
        let lines =
            "unable to parse 'x': missing fields\nunable to parse 'y z': invalid field format";
        let some = refusal(400, &format!("partial write: {lines} dropped=0"));
        assert_eq!(write(&served, "db=d", "m v=1 5\nx\ny z\nm v=2 6")?, some);
        let conflict = "field type conflict: input field \"v\" on measurement \"m\" is type string, already exists as type \
                        float";
        let conflict = refusal(400, &format!("partial write: {conflict} dropped=1"));
        assert_eq!(write(&served, "db=d", "m v=\"s\" 7\nm v=1 8\nbad")?, conflict);
        served.stop();
    }
    Ok(())
}

#[test]
fn a_store_that_seals_no_more_is_not_healthy_and_refuses_writes() -> Outcome<()> {
    let served = start(1 << 20)?;
    assert_eq!(write(&served, "db=d", "m v=1")?, WRITTEN);
    let healthy = served.ask("GET", "/health", b"")?;
    assert_eq!(healthy.status, 200);
    assert!(healthy.body.contains("\"status\":\"pass\""), "{healthy:?}");
    served.store.panic_upkeep();
    while served.store.failure().is_none() {
        std::thread::yield_now();
    }
    let ill = served.ask("GET", "/health", b"")?;
    assert_eq!(ill.status, 503);
    assert!(ill.body.contains("panicked") && ill.body.contains("\"fail\""), "{ill:?}");
    let (status, body) = write(&served, "db=d", "m v=1")?;
    assert_eq!(status, 500);
    assert!(body.contains("until the store is opened again: sealing"), "{body}");
    let figures = served.ask("GET", "/metrics", b"")?.body;
    assert!(figures.contains("coreplane_ts_in_trouble 1\n"));
    Ok(())
}

/// If writes wait for room, small ones wait in a thread that serves no connections.
#[test]
fn a_small_write_that_waits_for_room_holds_up_nobody_else() -> Outcome<()> {
    let options = Options { inline_max: 1 << 20, threads: 1, ..Options::default() };
    let served = Served::start_with(options, 1 << 10)?;
    let point = |at: usize| Point {
        series: SeriesKey::of_text("m").expect("a key").into_owned(),
        fields: [("value".into(), FieldValue::Float(1.0))].into_iter().collect(),
        time: at as i64,
    };
    let points: Vec<_> = (0..1_000).map(point).collect();
    let held = served.store.hold_upkeep();
    while !served.store.is_crowded() {
        served.store.write_within("opentsdb", None, &points, &mut Patience::none())?;
    }
    // More parts of a write than a write has patience for.
    let lines: String = (0..10_000).map(|at| format!("m value=1 {at}\n")).collect();
    let put = br#"{"metric":"m","timestamp":1000,"value":10,"tags":{"host":"a"}}"#;
    let gzip = [("Content-Encoding", "gzip")];
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(lines.as_bytes())?;
    let packed = encoder.finish()?;
    let mut clients = Vec::new();
    for (path, headers, body) in [
        ("/write?db=opentsdb", &[][..], lines.as_bytes()),
        ("/write?db=opentsdb", &gzip, &packed),
        ("/api/put", &[], &put[..]),
    ] {
        let mut client = served.connect()?;
        client.send_request("POST", path, headers, body)?;
        clients.push(client);
    }
    let mut telnet = served.connect()?;
    telnet.send(b"put m 1010 5 host=b\nversion\n")?;
    for _ in 0..20 {
        assert_eq!(served.ask("GET", "/ping", b"")?.status, 204);
    }
    drop(held);
    for mut client in clients {
        assert_eq!(client.answer(false)?.status, 204);
    }
    assert!(telnet.line()?.starts_with("net.opentsdb"));
    Ok(())
}

#[test]
fn version_2_writes_to_buckets() -> Outcome<()> {
    let served = start(1 << 20)?;
    let ask = |path: &str, lines: &str| {
        let answer = served.ask("POST", &format!("/api/v2/write?{path}"), lines.as_bytes())?;
        Outcome::Ok((answer.status, answer.body))
    };
    assert_eq!(ask("org=o&bucket=d/autogen&precision=ms", "m v=1 5")?, WRITTEN);
    assert_eq!(ask("bucket=d", "m v=1 5")?, WRITTEN);
    let gone = "{\"code\":\"not found\",\"message\":\"database not found: \\\"e\\\"\"}";
    assert_eq!(ask("bucket=e", "m v=1 5")?, (404, gone.to_owned()));
    let broken = "{\"code\":\"invalid\",\"message\":\"unable to parse 'm': missing fields\"}";
    assert_eq!(ask("bucket=d", "m")?, (400, broken.to_owned()));
    Ok(())
}

#[test]
fn series_beyond_the_limit_are_dropped_and_said() -> Outcome<()> {
    let served = start(0)?;
    let mut lines = String::new();
    for number in 0..SERIES_MAX + 20 {
        writeln!(lines, "m,t={number} v=1 {number}")?;
    }
    let reason =
        format!("partial write: max-series-per-database limit exceeded: ({SERIES_MAX}) dropped=20");
    assert_eq!(write(&served, "db=d", &lines)?, refusal(400, &reason));
    assert_eq!(write(&served, "db=d", "m,t=7 v=2 8")?, WRITTEN);
    Ok(())
}

#[test]
fn precisions_and_gzip_are_taken() -> Outcome<()> {
    let served = start(0)?;
    for (precision, unit) in [
        ("n", 1_u64),
        ("ns", 1),
        ("u", 1_000),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ] {
        let time = 1_500_000_000_000_000_000 / unit;
        let line = format!("{precision},a=b value={unit} {time}");
        let path = format!("db=opentsdb&precision={precision}");
        assert_eq!(write(&served, &path, &line)?, WRITTEN, "{precision}");
        let asked = format!("/api/query?start=1500000000&end=1500000001&m=none:{precision}");
        let body = served.ask("GET", &asked, b"")?.body;
        assert!(
            body.ends_with(&format!("\"dps\":{{\"1500000000\":{unit}}}}}]")),
            "{precision}: {body}"
        );
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for number in 1..=20_000 {
        writeln!(encoder, "packed,a=b value={number} {number}")?;
    }
    let (gzip, body) = ([("Content-Encoding", "gzip")], encoder.finish()?);
    let path = "/write?db=opentsdb&precision=s";
    assert_eq!(served.connect()?.ask("POST", path, &gzip, &body)?.status, 204);
    let asked = "/api/query?start=1&end=20000&m=sum:0all-count:packed";
    let found = served.ask("GET", asked, b"")?.body;
    assert!(found.ends_with("\"dps\":{\"1\":20000}}]"), "{found}");
    Ok(())
}

/// Points of two hosts and one without a host, by all write interfaces of OpenTSDB.
fn fill(served: &Served) -> Outcome<()> {
    let put = |body: &str, path: &str| served.ask("POST", path, body.as_bytes());
    let one = r#"{"metric":"sys.cpu","timestamp":1000,"value":10,"tags":{"host":"a","dc":"x"}}"#;
    assert_eq!(put(one, "/api/put")?.status, 204);
    let some = r#"[{"metric":"sys.cpu","timestamp":1020000,"value":"30","tags":{"host":"a","dc":"x"}},
        {"metric":"sys.cpu","timestamp":1040,"value":50.5,"tags":{"dc":"x","host":"a"}}]"#;
    // Times of up to 32 bits are seconds.
    let some = some.replace("1020000", "1020");
    assert_eq!(put(&some, "/api/put?summary")?.body, "{\"failed\":0,\"success\":2}");
    let mut lines = served.connect()?;
    lines.send(b"put sys.cpu 1010 5 host=b dc=x\nput sys.cpu 1030 7 host=b dc=x\nversion\n")?;
    // The answer comes when the lines before it are written.
    assert!(lines.line()?.starts_with("net.opentsdb"));
    let answer = put(
        r#"{"metric":"disk","timestamp":1000,"value":1,"tags":{"host":"c"}}"#,
        "/api/put?details",
    )?;
    assert_eq!(answer.body, "{\"errors\":[],\"failed\":0,\"success\":1}");
    Ok(())
}

#[test]
fn queries_of_opentsdb_are_answered() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    fill(&served)?;
    let head = |tags: &str, rest: &str| {
        format!(
            "[{{\"metric\":\"sys.cpu\",\"tags\":{{\"dc\":\"x\"{tags}}},\"aggregateTags\":[{rest}"
        )
    };
    let both = head("", "\"host\"],\"dps\":");
    for (m, expected) in [
        (
            "sum:sys.cpu",
            format!(
                "{both}{{\"1000\":10,\"1010\":25,\"1020\":36,\"1030\":47.25,\"1040\":50.5}}}}]"
            ),
        ),
        (
            "max:sys.cpu{}{host=a|b}",
            format!(
                "{both}{{\"1000\":10,\"1010\":20,\"1020\":30,\"1030\":40.25,\"1040\":50.5}}}}]"
            ),
        ),
        ("sum:1m-count:sys.cpu", format!("{both}{{\"1020\":3}}}}]")),
        ("sum:rate:sys.cpu{host=b}", head(",\"host\":\"b\"", "],\"dps\":{\"1030\":0.1}}]")),
        ("sum:sys.cpu{host=c}", "[]".to_owned()),
        (
            "none:sys.cpu{host=a}",
            head(",\"host\":\"a\"", "],\"dps\":{\"1000\":10,\"1020\":30,\"1040\":50.5}}]"),
        ),
        (
            "p99:20s-last-zero:sys.cpu{host=b}",
            head(",\"host\":\"b\"", "],\"dps\":{\"1000\":5,\"1020\":7,\"1040\":0}}]"),
        ),
        (
            "avg:20s-dev-nan:sys.cpu{host=b}",
            head(",\"host\":\"b\"", "],\"dps\":{\"1000\":0,\"1020\":0,\"1040\":\"NaN\"}}]"),
        ),
        (
            "avg:20s-dev-null:sys.cpu{host=b}",
            head(",\"host\":\"b\"", "],\"dps\":{\"1000\":0,\"1020\":0,\"1040\":null}}]"),
        ),
    ] {
        let m = m.replace('{', "%7B").replace('}', "%7D").replace('|', "%7C");
        let answer = served.ask("GET", &format!("/api/query?start=1000&end=1040&m={m}"), b"")?;
        assert_eq!((answer.status, answer.body), (200, expected), "{m}");
    }
    let groups = served.ask(
        "GET",
        "/api/query?start=1000&end=1040&arrays&ms&m=sum:sys.cpu%7Bhost=*%7D",
        b"",
    )?;
    let a = head(",\"host\":\"a\"", "],\"dps\":[[1000000,10],[1020000,30],[1040000,50.5]]}");
    assert_eq!(groups.body.split(",{\"metric\"").next(), Some(a.as_str()));
    let body = br#"{"start":1000,"end":1040,"queries":[{"aggregator":"avg","metric":"sys.cpu","filters":
        [{"type":"not_literal_or","tagk":"host","filter":"a"}]},{"aggregator":"sum","metric":"disk"}]}"#;
    let found: serde_json::Value =
        serde_json::from_str(&served.ask("POST", "/api/query", body)?.body)?;
    assert_eq!((&found[0]["dps"]["1010"], &found[1]["metric"]), (&5.into(), &"disk".into()));
    let gone = served.ask("GET", "/api/query?start=1&m=sum:none", b"")?;
    assert_eq!(gone.status, 400);
    assert!(gone.body.contains("No such name for 'metrics': 'none'"), "{gone:?}");
    Ok(())
}

#[test]
fn of_the_points_of_a_second_an_object_has_the_last_one() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let points = r#"[{"metric":"two","timestamp":1000100,"value":1,"tags":{"a":"b"}},
        {"metric":"two","timestamp":1000900,"value":2,"tags":{"a":"b"}}]"#;
    assert_eq!(
        served.ask("POST", "/api/put", points.replace("1000", "1500000000").as_bytes())?.status,
        204
    );
    for (how, dps) in [("arrays", "[[1500000000,1],[1500000000,2]]"), ("", "{\"1500000000\":2}")] {
        let path = format!("/api/query?{how}&start=1500000000&end=1500000001&m=none:two");
        let found = served.ask("GET", &path, b"")?.body;
        assert!(found.ends_with(&format!("\"dps\":{dps}}}]")), "{found}");
    }
    Ok(())
}

/// A tag that some series lack does not differ in the others.
#[test]
fn tags_that_some_series_lack_belong_to_the_group() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    for (metric, tags) in [
        ("one", [r#""host":"a""#, r#""host":"b","dc":"x""#]),
        ("other", [r#""host":"a","dc":"x""#, r#""host":"b""#]),
    ] {
        for tags in tags {
            let point =
                format!(r#"{{"metric":"{metric}","timestamp":1,"value":1,"tags":{{{tags}}}}}"#);
            assert_eq!(served.ask("POST", "/api/put", point.as_bytes())?.status, 204);
        }
        let answer = served.ask("GET", &format!("/api/query?start=1&end=2&m=sum:{metric}"), b"")?;
        let expected = r#""tags":{"dc":"x"},"aggregateTags":["host"]"#;
        assert!(answer.body.contains(expected), "{answer:?}");
    }
    Ok(())
}

/// Filters are counted before they are compiled.
#[test]
fn filters_of_a_query_are_bounded() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let filter = |kind: &str| format!(r#"{{"type":"{kind}","tagk":"a","filter":"b"}}"#);
    let sub =
        |filters: &str| format!(r#"{{"aggregator":"sum","metric":"m","filters":[{filters}]}}"#);
    let filters = format!("{}{}", format!("{},", filter("regexp")).repeat(256), filter("none"));
    for (queries, said) in
        [(sub(&filters), "at most 256 filters"), (sub(&filter("none")), "Unrecognized filter")]
    {
        let body = format!(r#"{{"start":1,"queries":[{queries}]}}"#);
        let answer = served.ask("POST", "/api/query", body.as_bytes())?;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.body.contains(said), "{answer:?}");
    }
    Ok(())
}

#[test]
fn names_are_suggested() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    fill(&served)?;
    for (path, expected) in [
        ("type=metrics", "[\"disk\",\"sys.cpu\"]"),
        ("type=metrics&q=sys", "[\"sys.cpu\"]"),
        ("type=tagk", "[\"dc\",\"host\"]"),
        ("type=tagv&max=2", "[\"a\",\"b\"]"),
        ("type=tagv&q=x", "[\"x\"]"),
    ] {
        assert_eq!(
            served.ask("GET", &format!("/api/suggest?{path}"), b"")?.body,
            expected,
            "{path}"
        );
    }
    let body = served.ask("POST", "/api/suggest", b"{\"type\":\"metrics\",\"q\":\"d\"}")?.body;
    assert_eq!(body, "[\"disk\"]");
    Ok(())
}

#[test]
fn queries_are_bounded() -> Outcome<()> {
    // Room for a hundred samples, and for a series and its group.
    let options =
        Options { query_bytes_max: 16 * 120, query_buckets_max: 50, ..Options::default() };
    let served = Served::start(options)?;
    let lines: String = (1..=200).map(|at| format!("m,a=b value={at} {at}\n")).collect();
    assert_eq!(write(&served, "db=opentsdb&precision=s", &lines)?, WRITTEN);
    for (m, status) in [
        ("sum:m", 413),
        ("sum:10s-p50:m", 200),
        ("sum:1s-sum:m", 413),
        ("sum:100s-p50:m", 200),
        ("sum:0all-p50:m", 413),
        // Twenty summaries take more memory than a hundred samples may take.
        ("sum:10s-sum:m", 413),
        ("sum:100s-sum:m", 200),
    ] {
        let answer = served.ask("GET", &format!("/api/query?start=1&end=200&m={m}"), b"")?;
        assert_eq!(answer.status, status, "{m}: {answer:?}");
    }
    Ok(())
}

#[test]
fn a_client_that_does_not_read_is_dropped_with_its_answer() -> Outcome<()> {
    let stall_timeout = Duration::from_millis(300);
    // Room for one answer and a bit.
    let options = Options { stall_timeout, memory_max: 3 << 20, ..Options::default() };
    let served = Served::start(options)?;
    let lines: String = (1..=60_000).map(|at| format!("m,a=b value={at} {at}\n")).collect();
    assert_eq!(write(&served, "db=opentsdb&precision=s", &lines)?, WRITTEN);
    let path = "/api/query?start=1&end=60000&m=sum:m";
    assert!(served.ask("GET", path, b"")?.body.len() > 500_000);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = served.connect()?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").repeat(100).as_bytes())?;
        clients.push(client);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while !served.ask("GET", "/metrics", b"")?.body.contains("coreplane_http_connections 1\n") {
        assert!(Instant::now() < deadline, "they are not dropped");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The memory that they held is free again.
    assert_eq!(served.ask("GET", path, b"")?.status, 200);
    Ok(())
}
