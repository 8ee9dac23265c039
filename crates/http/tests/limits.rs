//! Hostile or slow clients: the answer that each of them gets, and that others are served meanwhile.

mod server;

use coreplane_http::Options;
use flate2::Compression;
use flate2::write::GzEncoder;
use server::{Outcome, Served};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn short(options: Options) -> Options {
    let moment = Duration::from_secs(1);
    Options {
        head_timeout: moment,
        idle_timeout: moment * 2,
        stall_timeout: moment,
        body_timeout: moment * 5,
        ..options
    }
}

fn is_served(served: &Served) -> Outcome<()> {
    assert_eq!(served.ask("GET", "/ping", b"")?.status, 204);
    Ok(())
}

#[test]
fn requests_that_come_together_are_answered_in_order() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let mut client = served.connect()?;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let requests = [get("/ping?verbose=true"), get("/nothing"), get("/api/version"), get("/ping")];
    client.send(requests.concat().as_bytes())?;
    let statuses: Vec<u16> =
        (0..4).map(|_| Ok(client.answer(false)?.status)).collect::<Outcome<_>>()?;
    assert_eq!(statuses, [200, 404, 200, 204]);
    served.stop();
    Ok(())
}

#[test]
fn heads_that_are_wrong_are_refused() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(200_000));
    let many = format!("GET /ping HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(5_000));
    for head in [
        "NONSENSE\r\n\r\n",
        "GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /ping HTTP/9.9\r\n\r\n",
        "POST /write?db=d HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /write?db=d HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "\u{0}\u{1}\u{2}\u{3}\r\n\r\n",
        &long,
        &many,
    ] {
        let mut client = served.connect()?;
        // The server may refuse the request before it is sent completely.
        let _sent = client.send(head.as_bytes()).is_ok();
        if let Ok(answer) = client.answer(false) {
            assert!((400..500).contains(&answer.status), "{head:.40}: {answer:?}");
        }
        assert!(client.is_ended()?, "{head:.40}");
    }
    is_served(&served)
}

#[test]
fn slow_clients_are_dropped_and_take_nobodys_thread() -> Outcome<()> {
    let served = Served::start(short(Options { threads: 1, ..Options::default() }))?;
    let begins = [
        "",
        "G",
        "GET /ping HTTP/1.1\r\nHost:",
        "POST /write?db=d HTTP/1.1\r\nContent-Length: 100\r\n\r\nm v=",
        "POST /write?db=d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nm",
        "put m 1 1",
    ];
    let mut clients = Vec::new();
    for begin in begins.iter().cycle().take(60) {
        let mut client = served.connect()?;
        client.send(begin.as_bytes())?;
        clients.push((begin, client));
    }
    is_served(&served)?;
    for (begin, client) in &mut clients {
        if begin.starts_with("POST") {
            assert_eq!(client.answer(false)?.status, 408, "{begin}");
        }
        assert!(client.is_ended()?, "{begin}");
    }
    is_served(&served)
}

#[test]
fn a_body_that_trickles_has_its_time() -> Outcome<()> {
    let body_timeout = Duration::from_secs(2);
    let served = Served::start(Options { body_timeout, ..short(Options::default()) })?;
    let mut client = served.connect()?;
    client.send(b"POST /write?db=d HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")?;
    let mut stream = client.stream.try_clone()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome<()> {
        // The body makes progress all the time: without a limit for the whole it would go on for twenty seconds.
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while sent < 999 && !is_over.load(Ordering::Relaxed) && stream.write_all(b"m").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
                sent += 1;
            }
            sent
        });
        // The answer is lost where a byte comes after the end of the connection.
        if let Ok(answer) = client.answer(false) {
            assert_eq!(answer.status, 408);
        }
        assert!(client.is_ended()?);
        is_over.store(true, Ordering::Relaxed);
        assert!(sender.join().expect("it only sends") < 999, "it was received to its end");
        Ok(())
    })
}

#[test]
fn bodies_are_bounded_before_and_after_they_are_decoded() -> Outcome<()> {
    let served = Served::start(Options { body_max: 10_000, ..Options::default() })?;
    let too_large = vec![b'x'; 10_001];
    let answer = served.ask("POST", "/write?db=d", &too_large)?;
    let body = "{\"error\":\"Request Entity Too Large\"}\n";
    assert_eq!((answer.status, answer.body.as_str()), (413, body));
    // A body in chunks has no length by which it could be refused.
    let mut client = served.connect()?;
    client.send(b"POST /write?db=d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    for _ in 0..11 {
        if client.send(&[b"3e8\r\n", &too_large[..1000], b"\r\n"].concat()).is_err() {
            break;
        }
    }
    assert_eq!(client.answer(false)?.status, 413);
    // A gzip bomb.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..50 {
        encoder.write_all(&vec![b' '; 100_000])?;
    }
    let bomb = encoder.finish()?;
    assert!(bomb.len() < 10_000, "{}", bomb.len());
    for path in ["/write?db=d", "/api/v2/write?bucket=d", "/api/put", "/api/query", "/api/suggest"]
    {
        let gzip = [("Content-Encoding", "gzip")];
        let answer = served.connect()?.ask("POST", path, &gzip, &bomb)?;
        assert_eq!(answer.status, 413, "{path}: {answer:?}");
        let answer = served.connect()?.ask("POST", path, &gzip, b"no gzip")?;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        let other = [("Content-Encoding", "br")];
        assert_eq!(served.connect()?.ask("POST", path, &other, b"x")?.status, 400, "{path}");
    }
    is_served(&served)
}

/// Waits until the bytes that bodies hold satisfy `is_right`.
fn wait_for_held_bytes(served: &Served, is_right: impl Fn(usize) -> bool) -> Outcome<()> {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = served.ask("GET", "/metrics", b"")?.body;
        let line = metrics.lines().find_map(|it| it.strip_prefix("coreplane_ts_request_bytes "));
        let bytes = line.ok_or("there is no such figure")?.parse()?;
        if is_right(bytes) {
            return Ok(());
        }
        assert!(std::time::Instant::now() < deadline, "{bytes} bytes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_of_bodies_is_bounded_together() -> Outcome<()> {
    let served = Served::start(Options { memory_max: 110_000, ..Options::default() })?;
    let begin = b"POST /write?db=d HTTP/1.1\r\nContent-Length: 50000\r\n\r\n";
    let mut first = served.connect()?;
    // All but the last byte, until the server has them: a growing vector holds up to twice its length.
    first.send(&[&begin[..], &[b'#'; 49_999]].concat())?;
    wait_for_held_bytes(&served, |bytes| bytes >= 2 * 49_999)?;
    // There is no room beside the first.
    let refused = served.ask("POST", "/write?db=d", &[b'#'; 50_000])?;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("no memory"), "{refused:?}");
    first.send(b"#")?;
    assert_ne!(first.answer(false)?.status, 503);
    wait_for_held_bytes(&served, |bytes| bytes == 0)?;
    assert_ne!(served.ask("POST", "/write?db=d", &[b'#'; 50_000])?.status, 503);
    Ok(())
}

#[test]
fn connections_are_bounded() -> Outcome<()> {
    let served = Served::start(Options { connections_max: 3, ..Options::default() })?;
    let mut clients = (0..3).map(|_| served.connect()).collect::<Outcome<Vec<_>>>()?;
    for client in &mut clients {
        assert_eq!(client.ask("GET", "/ping", &[], b"")?.status, 204);
    }
    let mut fourth = served.connect()?;
    assert_eq!(fourth.answer(false)?.status, 503);
    assert!(fourth.is_ended()?);
    drop(clients);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while served.ask("GET", "/ping", b"").is_ok_and(|answer| answer.status == 503) {
        assert!(std::time::Instant::now() < deadline, "places are not returned");
    }
    is_served(&served)
}

#[test]
fn an_answer_that_is_ready_before_the_body_arrives() -> Outcome<()> {
    let password = Some("hush".to_owned());
    let served = Served::start(Options { password, ..Options::default() })?;
    let mut client = served.connect()?;
    // Short bodies are discarded, and the connection goes on.
    for _ in 0..3 {
        let answer = client.ask("POST", "/write?db=d", &[], &[b'#'; 200_000])?;
        assert_eq!((answer.status, answer.header("connection")), (401, ""));
        let wrong = "/write?db=d&precision=x&u=me&p=hush";
        let answer = client.ask("POST", wrong, &[], &[b'#'; 200_000])?;
        assert_eq!((answer.status, answer.header("connection")), (400, ""));
    }
    // Long bodies are not read, nor one that the client has not begun; the answer says that the connection ends.
    let head = "POST /write?db=d HTTP/1.1\r\nContent-Length: 3000000\r\n";
    for (head, body) in
        [(format!("{head}\r\n"), 300_000), (format!("{head}Expect: 100-continue\r\n\r\n"), 0)]
    {
        let mut client = served.connect()?;
        client.send(&[head.as_bytes(), &vec![b'#'; body]].concat())?;
        let answer = client.answer(false)?;
        assert_eq!((answer.status, answer.header("connection")), (401, "close"));
        assert!(client.is_ended()?);
    }
    is_served(&served)
}

/// Waits until this number of queries run.
fn wait_for_queries(served: &Served, running: u64) -> Outcome<()> {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let line = format!("coreplane_http_queries_running {running}\n");
    while !served.ask("GET", "/metrics", b"")?.body.contains(&line) {
        assert!(std::time::Instant::now() < deadline, "there are not {running} of them");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

const FORM: [(&str, &str); 1] = [("Content-Type", "application/x-www-form-urlencoded")];

/// A server with one place for queries, and a form whose query takes minutes there: all points are sorted 10,000
/// times.
fn with_long_query() -> Outcome<(Served, String)> {
    let (query_time_max, query_bytes_max) = (Duration::from_secs(1_000), usize::MAX);
    let options = Options { queries_max: 1, query_time_max, query_bytes_max, ..Options::default() };
    let served = Served::start(options)?;
    let lines: String = (1..=200_000_u64)
        .map(|at| format!("m,a=b value={} {at}\n", at * 77_777 % 199_999))
        .collect();
    let path = "/write?db=opentsdb&precision=s";
    assert_eq!(served.ask("POST", path, lines.as_bytes())?.status, 204);
    let statement = format!("SELECT {} FROM m;", ["percentile(value,7)"; 100].join(","));
    Ok((served, format!("q={}", statement.repeat(100))))
}

/// Its form holds its memory until then.
#[test]
fn a_query_whose_client_has_gone_ends() -> Outcome<()> {
    let (served, form) = with_long_query()?;
    let (mut client, mut waiting) = (served.connect()?, served.connect()?);
    client.send_request("POST", "/query?db=opentsdb", &FORM, form.as_bytes())?;
    wait_for_queries(&served, 1)?;
    wait_for_held_bytes(&served, |bytes| bytes >= form.len())?;
    // A text that is too long waits for no place.
    let long = [b"q=SELECT+".to_vec(), vec![b'x'; 300_000]].concat();
    let refused = served.connect()?.ask("POST", "/query?db=opentsdb", &FORM, &long)?;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("the query has 300007 bytes"), "{refused:?}");
    waiting.send_request("GET", "/query?db=opentsdb&q=SHOW+SERIES", &[], b"")?;
    drop((client, waiting));
    wait_for_queries(&served, 0)?;
    wait_for_held_bytes(&served, |bytes| bytes == 0)?;
    // There is a place for another query.
    let found = served.ask("GET", "/query?db=opentsdb&q=SELECT+count(value)+FROM+m", b"")?;
    assert!(found.body.contains(",200000]"), "{found:?}");
    is_served(&served)
}

#[test]
fn questions_are_short() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let form = [&b"q=SHOW+DATABASES"[..], &b"&a".repeat(600_000)].concat();
    let subs = [&b"{\"start\":1,\"queries\":[{}"[..], &b",{}".repeat(400_000), b"]}"].concat();
    let suggest = [&b"{\"type\":\"metrics\",\"q\":\""[..], &[b'x'; 1_100_000], b"\"}"].concat();
    for (path, headers, body, status) in [
        ("/query", &FORM[..], &form[..], 413),
        ("/query", &FORM[..], &form[..1_000_000], 200),
        ("/api/query", &[][..], &subs[..], 413),
        ("/api/suggest", &[][..], &suggest[..], 413),
    ] {
        let answer = served.connect()?.ask("POST", path, headers, body)?;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    is_served(&served)
}

/// The details of wrong points are bounded, whatever the length of their names.
#[test]
fn details_of_wrong_points_are_short() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let name = "<".repeat(10_000);
    let wrong = format!(
        "{{\"metric\":\"{name}\",\"timestamp\":1,\"value\":1,\"tags\":{{\"{name}\":\"{name}\"}}}}"
    );
    let list = format!("[{}]", [wrong.as_str(); 300].join(","));
    let answer = served.ask("POST", "/api/put?details", list.as_bytes())?;
    assert_eq!(answer.status, 400);
    assert!(answer.body.len() < 5 << 18, "{} bytes", answer.body.len());
    assert!(answer.body.ends_with("],\"failed\":300,\"success\":0}"));
    let quoted = "\\u003c".repeat(256);
    assert!(answer.body.contains(&format!("Invalid metric name (\\\"{quoted}…\\\")")));
    // It is counted, and needs a share of the memory for it.
    wait_for_held_bytes(&served, |bytes| bytes == 0)?;
    is_served(&served)
}

/// An error repeats a word of the request, but no long one.
#[test]
fn errors_are_short() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let long = "<".repeat(900_000);
    for (path, body) in [
        ("/api/put", format!("\"{long}\"")),
        ("/api/put", format!("[\"{long}\"]")),
        ("/api/put", format!("{{\"tags\":\"{long}\"}}")),
        ("/api/query", format!("{{\"queries\":[\"{long}\"]}}")),
        ("/api/query", format!("{{\"start\":\"{long}\",\"queries\":[{{}}]}}")),
        ("/api/suggest", format!("{{\"max\":\"{long}\"}}")),
        ("/api/suggest", format!("{{\"type\":\"{long}\"}}")),
    ] {
        let answer = served.ask("POST", path, body.as_bytes())?;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.len() < 7_000, "{path} {body:.30}: {} bytes", answer.body.len());
        // Of points, which may be long, it makes no copy either.
        let is_repeated = answer.body.contains("\\u003c");
        assert!(path != "/api/put" || !is_repeated, "{}", answer.body);
    }
    is_served(&served)
}

/// A query that is begun in the thread of its connection, and is given up there before its time is over, is run on
/// another thread: the points of a head are read in one go, or not begun.
#[test]
fn no_query_ends_for_the_time_that_a_short_one_has() -> Outcome<()> {
    let served = Served::start_with(Options::default(), 16 << 20)?;
    let lines: String =
        (1..=100_000_u64).map(|at| format!("m value={at} {}\n", at * 77_777 % 100_003)).collect();
    let path = "/write?db=opentsdb&precision=s";
    assert_eq!(served.ask("POST", path, lines.as_bytes())?.status, 204);
    let found = served.ask("GET", "/query?db=opentsdb&q=SELECT+count(value)+FROM+m", b"")?;
    assert!(found.body.contains(",100000]"), "{found:?}");
    Ok(())
}

#[test]
fn lines_of_opentsdb_are_bounded() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let mut client = served.connect()?;
    let _sent = client.send(&[b'p'; 100_000]).is_ok();
    assert_eq!(client.line()?, "error: the line is too long");
    assert!(client.is_ended()?);
    is_served(&served)
}

#[test]
fn a_server_that_stops_finishes_what_it_has_begun() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let (mut idle, mut busy) = (served.connect()?, served.connect()?);
    assert_eq!(idle.ask("GET", "/ping", &[], b"")?.status, 204);
    busy.send(b"POST /write HTTP/1.1\r\nContent-Length: 5\r\n\r\nm v")?;
    busy.send(b"POST")?;
    let mut half = served.connect()?;
    half.send(b"POST /write?db=d HTTP/1.1\r\nContent-Length: 5\r\n\r\nm")?;
    let _answered = busy.answer(false)?;
    wait_for_held_bytes(&served, |bytes| bytes > 0)?;
    let stopped = std::thread::spawn(move || served.stop());
    assert!(idle.is_ended()?);
    half.send(b" v=1")?;
    let answer = half.answer(false)?;
    assert_ne!(answer.status, 408);
    assert!(half.is_ended()?);
    drop(busy);
    stopped.join().map_err(|_| "the server has panicked")?;
    Ok(())
}
