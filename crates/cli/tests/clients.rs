//! Unmodified clients: redis-cli, redis-benchmark, redis-py, redis-rs, ioredis, node-redis, go-redis, Jedis and
//! Lettuce drive the command `coreplane serve`.
//!
//! `cargo xtask test` installs missing clients. Those that it could not install it lists as left out and names in
//! `COREPLANE_CLIENTS_LEFT_OUT`; without that a missing client is a failure here, never a silent success.

#[path = "clients/languages.rs"]
mod languages;
mod nodes;
mod pool;
#[path = "clients/rust.rs"]
mod rust;
#[path = "clients/rust_cluster.rs"]
mod rust_cluster;
mod session;

use pool::{Place, Pool};
use session::{Client, Outcome, Reply, Served, text};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A server on a fresh pool, and the pool's directory.
struct Fresh {
    served: Served,
    pool: Pool,
    socket: String,
    _place: Place,
}

impl Fresh {
    fn start(size: &str) -> Outcome<Self> {
        let place = Place::in_memory()?;
        let (pool, socket) = (place.pool("fresh.pool")?, place.argument("socket")?);
        let served = pool.serve(&["--size", size, "--unixsocket", &socket])?;
        Ok(Self { served, pool, socket, _place: place })
    }

    fn port(&self) -> &str {
        self.served.address.rsplit(':').next().unwrap_or_default()
    }

    /// Runs a client with `-p` and these arguments, and this input.
    fn run(&self, program: &str, arguments: &[&str], input: &[u8]) -> Outcome<String> {
        let port = ["-h", "127.0.0.1", "-p", self.port()];
        let output = run(program, &[&port[..], arguments].concat(), input)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn cli(&self, arguments: &[&str]) -> Outcome<String> {
        self.run("redis-cli", arguments, b"")
    }

    /// Ends the server in an orderly way and verifies its pool.
    fn finish(self) -> Outcome<()> {
        self.served.terminate()?;
        self.pool.is_sound()
    }
}

fn run(program: &str, arguments: &[&str], input: &[u8]) -> Outcome<Output> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // A client that needs no input may have ended before it is written.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input).is_ok()));
        child.wait_with_output()
    })?;
    Ok(output)
}

/// True if the client `name` was reported as left out; fails if it is merely absent.
fn is_left_out(name: &str, is_there: bool) -> Outcome<bool> {
    if is_there {
        return Ok(false);
    }
    let left_out = std::env::var("COREPLANE_CLIENTS_LEFT_OUT").unwrap_or_default();
    if left_out.split(',').any(|one| one == name) {
        // `cargo xtask` has listed it.
        return Ok(true);
    }
    Err(format!("{name} is not here; `cargo xtask test` installs it").into())
}

fn no_redis_cli() -> Outcome<bool> {
    is_left_out("redis-cli", run("redis-cli", &["--version"], b"").is_ok())
}

#[test]
fn redis_cli_talks_in_all_its_ways() -> Outcome<()> {
    if no_redis_cli()? {
        return Ok(());
    }
    let fresh = Fresh::start("64MiB")?;
    assert_eq!(fresh.cli(&["set", "greeting", "hello"])?, "OK\n");
    assert_eq!(fresh.cli(&["get", "greeting"])?, "hello\n");
    assert_eq!(fresh.cli(&["--no-raw", "get", "none"])?, "(nil)\n");
    assert_eq!(fresh.cli(&["-3", "--no-raw", "incr", "n"])?, "(integer) 1\n");
    assert_eq!(fresh.cli(&["-r", "5", "incr", "n"])?, "2\n3\n4\n5\n6\n");
    assert_eq!(fresh.cli(&["--csv", "mget", "greeting", "n"])?, "\"hello\",\"6\"\n");
    let binary: Vec<u8> = (0..=255).collect();
    assert_eq!(fresh.run("redis-cli", &["-x", "set", "binary"], &binary)?, "OK\n");
    assert_eq!(fresh.cli(&["strlen", "binary"])?, "256\n");
    let conversation = "multi\nset a 1\nincr a\nget a\nexec\nset \"two words\" 'x y'\nstrlen a b\n";
    let answers = fresh.run("redis-cli", &[], conversation.as_bytes())?;
    let expected = "OK\nQUEUED\nQUEUED\nQUEUED\nOK\n2\n2\nOK\n\
        ERR wrong number of arguments for 'strlen' command\n";
    assert_eq!(answers.replace("\n\n", "\n"), expected);
    let mut keys: Vec<_> = fresh.cli(&["--scan"])?.lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a", "binary", "greeting", "n", "two words"]);
    assert_eq!(fresh.cli(&["--scan", "--pattern", "g*"])?, "greeting\n");
    assert!(fresh.cli(&["--bigkeys"])?.contains("Biggest string found '\"binary\"' has 256 bytes"));
    assert!(fresh.cli(&["info", "server"])?.contains("redis_version:7"));
    let by_socket = run("redis-cli", &["-s", &fresh.socket, "get", "greeting"], b"")?;
    assert_eq!(by_socket.stdout, b"hello\n");
    fresh.finish()
}

#[test]
fn redis_cli_loads_in_bulk() -> Outcome<()> {
    const COUNT: usize = 50_000;
    if no_redis_cli()? {
        return Ok(());
    }
    let fresh = Fresh::start("256MiB")?;
    let mut wire = Vec::new();
    for number in 0..COUNT {
        let (key, value) = (format!("bulk:{number}"), format!("value {number}\r\n"));
        Client::encode(&[b"SET", key.as_bytes(), value.as_bytes()], &mut wire);
    }
    let said = fresh.run("redis-cli", &["--pipe"], &wire)?;
    assert!(said.contains(&format!("errors: 0, replies: {COUNT}")), "{said}");
    assert_eq!(fresh.cli(&["dbsize"])?, format!("{COUNT}\n"));
    let mut client = fresh.served.connect()?;
    for number in (0..COUNT).step_by(97) {
        let found = client.call(&[b"GET", format!("bulk:{number}").as_bytes()])?;
        assert_eq!(found, Reply::Bulk(Some(format!("value {number}\r\n").into_bytes())));
    }
    // Invalid requests are counted as such, and the others are executed.
    Client::encode(&[b"INCR", b"bulk:1"], &mut wire);
    let port = ["-p", fresh.port(), "--pipe"];
    let output = run("redis-cli", &port, &wire)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("errors: 1, replies: {}", COUNT + 1)), "{said}");
    fresh.finish()
}

/// The sum of the counters that redis-benchmark has incremented.
fn sum_of_counters(client: &mut Client) -> Outcome<i64> {
    let mut sum = 0;
    for number in 0..1000 {
        let key = format!("counter:{number:012}");
        if let Reply::Bulk(Some(count)) = client.call(&[b"GET", key.as_bytes()])? {
            sum += String::from_utf8(count)?.parse::<i64>()?;
        }
    }
    Ok(sum)
}

#[test]
fn redis_benchmark_is_answered_without_an_error() -> Outcome<()> {
    const REQUESTS: i64 = 16_000;
    if is_left_out("redis-benchmark", run("redis-benchmark", &["--version"], b"").is_ok())? {
        return Ok(());
    }
    let fresh = Fresh::start("512MiB")?;
    let mut client = fresh.served.connect()?;
    let requests = REQUESTS.to_string();
    for pipeline in ["1", "16"] {
        assert_eq!(client.call(&[b"FLUSHALL"])?, Reply::ok());
        // `-e` shows errors of the server; `-r` draws keys from a thousand.
        let arguments = ["-t", "set,get,incr,mset", "-n", &requests, "-c", "50", "-d", "100"];
        let more = ["-P", pipeline, "-r", "1000", "-e", "--csv"];
        let said = fresh.run("redis-benchmark", &[&arguments[..], &more].concat(), b"")?;
        let lowered = said.to_lowercase();
        assert!(!lowered.contains("err") && !lowered.contains("warning"), "{said}");
        for test in ["\"SET\"", "\"GET\"", "\"INCR\"", "\"MSET (10 keys)\""] {
            let line = said.lines().find(|line| line.starts_with(test)).ok_or("no line")?;
            let rate = line.split('"').nth(3).unwrap_or_default().parse::<f64>()?;
            assert!(rate > 0.0, "{line}");
        }
        assert_eq!(sum_of_counters(&mut client)?, REQUESTS, "each INCR was made once");
        // Sixteen thousand draws of a thousand keys leave none out, or hardly any.
        let Reply::Number(size) = client.call(&[b"DBSIZE"])? else {
            return Err("DBSIZE gives no number".into());
        };
        assert!((1990..=2000).contains(&size), "{size}");
        let value = client.call(&[b"GET", b"key:000000000007"])?;
        assert!(matches!(&value, Reply::Bulk(Some(bytes)) if bytes.len() == 100), "{value:?}");
    }
    fresh.finish()
}

fn no_redis_py() -> Outcome<bool> {
    let has_redis = run("python3", &["-c", "import redis; assert redis.VERSION >= (5,)"], b"")
        .is_ok_and(|output| output.status.success());
    is_left_out("redis-py", has_redis)
}

/// Runs a script of `tests/clients`; its output.
fn python(script: &str, arguments: &[&str]) -> Outcome<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let quiet = ["-W", "ignore::DeprecationWarning", text(&script)?];
    let output = run("python3", &[&quiet[..], arguments].concat(), b"")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{complaint}");
    Ok(said)
}

#[test]
fn redis_py_converses_in_both_protocols() -> Outcome<()> {
    if no_redis_py()? {
        return Ok(());
    }
    let fresh = Fresh::start("512MiB")?;
    let said = python("conversation.py", &[fresh.port(), &fresh.socket])?;
    assert!(said.contains("RESP2: 12 parts") && said.contains("RESP3: 12 parts"), "{said}");
    fresh.finish()
}

fn wait_for_leader(node: &nodes::Node) -> Outcome<()> {
    let mut client = Client::connect(&node.address())?;
    let since = Instant::now();
    while client.call(&[b"CLUSTER", b"INFO"])?.text().is_none_or(|it| it.contains("state:fail")) {
        assert!(since.elapsed() < Duration::from_secs(30), "nobody leads");
    }
    Ok(())
}

/// redis-py's client for clusters, unmodified.
#[test]
fn redis_py_finds_its_way_in_a_cluster() -> Outcome<()> {
    if no_redis_py()? {
        return Ok(());
    }
    let place = Place::in_memory()?;
    let nodes = nodes::nodes(&place, 3, 3, &["--redirect", "--cluster-tick", "100ms"])?;
    wait_for_leader(&nodes[0])?;
    for (node, protocol) in nodes.iter().zip(["2", "3", "2"]) {
        let said = python("cluster.py", &[&node.port.to_string(), protocol])?;
        assert_eq!(said, "cluster: 300 keys\n");
        let mut wiped = false;
        for node in &nodes {
            let reply = Client::connect(&node.address())?.call(&[b"FLUSHALL"])?;
            wiped |= reply == Reply::ok();
        }
        assert!(wiped);
    }
    Ok(())
}

#[test]
fn ranges_of_a_matrix_are_in_order_while_others_write() -> Outcome<()> {
    let (no_cli, no_py) = (no_redis_cli()?, no_redis_py()?);
    let place = Place::in_memory()?;
    let (pool, socket) = (place.pool("m")?, place.argument("socket")?);
    let matrix = ["--matrix", "2x2", "--size", "32MiB", "--unixsocket", &socket];
    let served = pool.serve(&matrix)?;
    let fresh = Fresh { served, pool, socket, _place: place };
    if !no_py {
        assert_eq!(python("ranges.py", &[fresh.port()])?, "ranges: in order\n");
    }
    if !no_cli {
        fresh.cli(&["mset", "c", "3", "a", "1", "d", "4", "b", "2"])?;
        assert_eq!(fresh.cli(&["range", "[b", "(d"])?, "\nb\nc\n");
        assert_eq!(
            fresh.cli(&["range", "-", "(d", "rev", "limit", "1", "withvalues"])?,
            "(c\nc\n3\n"
        );
        assert!(fresh.cli(&["command", "docs", "range"])?.contains("WITHVALUES"));
    }
    fresh.finish()
}
