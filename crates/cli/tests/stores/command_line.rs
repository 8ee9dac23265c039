//! Refusals of the command and their messages: foreign pools, missing directories, ports in use, calls that do
//! nothing.

use crate::pool::{Place, Pool};
use crate::session::{self, Client, Outcome, Reply, expect, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_coreplane");

#[test]
fn bench_leaves_records_of_others_alone() -> Outcome<()> {
    let place = Place::in_memory()?;
    let bench = ["bench", "--workload", "load", "--records", "200", "--json"];
    for engine in ["scmkv", "bptree", "list"] {
        let pool = place.created(engine, &["--size", "64MiB", "--engine", engine])?;
        // An empty pool is accepted, and so is one that bench has filled, with keys of any length.
        pool.expect(0, &bench)?;
        pool.expect(0, &[&bench[..], &["--key-size", "24"]].concat())?;
        pool.expect(0, &["put", "greeting", "hello"])?;
        pool.says(3, &["such as \"greeting\""], &bench)?;
        pool.says(3, &["greeting"], &["bench", "--workload", "c", "--records", "1000"])?;
        let more = ["bench", "--workload", "load", "--records", "1000", "--json"];
        pool.says(3, &["--beside-others"], &more)?;
        let before = pool.expect(0, &["info", "--json"])?;
        assert!(before.contains("\"records\":401"), "nothing was written: {before}");
        pool.expect(0, &[&bench[..], &["--beside-others"]].concat())?;
        assert_eq!(pool.expect(0, &["get", "greeting"])?, "hello\n");
        // `open` writes a record too.
        let other =
            place.created(&format!("{engine}-other"), &["--size", "64MiB", "--engine", engine])?;
        other.expect(0, &["put", "greeting", "hello"])?;
        other.says(3, &["greeting"], &["bench", "--workload", "open", "--records", "10"])?;
        assert_eq!(other.expect(0, &["scan", "--keys-only"])?, "greeting\n");
    }
    // The default pool is for data.
    let home = place.argument("home")?;
    for workload in ["load", "open"] {
        let mut bench = Command::new(BINARY);
        bench.args(["bench", "--records", "10", "--workload", workload]);
        let output = bench.env("XDG_DATA_HOME", &home).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{workload}: {said}");
        assert!(said.contains("needs --pool"), "{workload}: {said}");
    }
    Ok(())
}

/// As many others may be in the pool: with keys of another length, or of another user.
#[test]
fn bench_loads_the_records_that_it_reads() -> Outcome<()> {
    let place = Place::in_memory()?;
    let phases = |pool: &Pool, more: &[&str]| -> Outcome<Vec<String>> {
        let bench = ["bench", "--operations", "200", "--json", "--workload"];
        let lines = pool.expect(0, &[&bench[..], more].concat())?;
        let lines = lines.lines().map(serde_json::from_str::<Value>);
        let phase = |line: Value| line["phase"].as_str().unwrap_or_default().to_owned();
        lines.map(|line| Ok(phase(line?))).collect()
    };
    let pool = place.created("pool", &["--size", "64MiB"])?;
    let loaded = ["load", "c"];
    assert_eq!(phases(&pool, &["c", "--records", "200"])?, loaded);
    assert_eq!(phases(&pool, &["c", "--records", "200"])?, loaded[1..]);
    let longer = ["c", "--records", "200", "--key-size", "24"];
    assert_eq!(phases(&pool, &longer)?, loaded);
    assert_eq!(phases(&pool, &longer)?, loaded[1..]);
    assert_eq!(phases(&pool, &["c", "--records", "300"])?, loaded, "only the first are there");
    let other = place.created("other", &["--size", "64MiB"])?;
    for key in ["1", "2", "3"] {
        other.expect(0, &["put", key, "hello"])?;
    }
    assert_eq!(phases(&other, &["c", "--records", "3", "--beside-others"])?, loaded);
    Ok(())
}

#[test]
fn keys_that_are_no_text_are_given_in_hexadecimal() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB", "--engine", "bptree"])?;
    for (key, value) in [("00ff", "low"), ("80", "middle"), ("ff00", "high")] {
        pool.expect(0, &["put", "--key-hex", key, value])?;
    }
    assert_eq!(pool.expect(0, &["get", "--key-hex", "FF00"])?, "high\n");
    assert_eq!(pool.expect(0, &["scan", "--key-hex"])?, "00ff\tlow\n80\tmiddle\nff00\thigh\n");
    let bounds = ["scan", "--key-hex", "--start", "01", "--end", "ff", "--keys-only"];
    assert_eq!(pool.expect(0, &bounds)?, "80\n");
    assert_eq!(pool.expect(0, &["scan", "--key-hex", "--prefix", "ff", "--keys-only"])?, "ff00\n");
    let json = ["scan", "--key-hex", "--prefix", "ff", "--json"];
    assert_eq!(pool.expect(0, &json)?, "{\"key_hex\":\"ff00\",\"value\":\"high\"}\n");
    // The same keys, through a server.
    let served = pool.serve(&[])?;
    let asked = [&bounds[..], &["--server", &served.address]].concat();
    assert_eq!(expect(0, &asked)?, "80\n");
    served.terminate()?;
    assert_eq!(pool.expect(0, &["del", "--key-hex", "80", "aa"])?, "1 deleted\n");
    pool.expect(1, &["get", "--key-hex", "80"])?;
    for wrong in ["8", "8g", "0x80"] {
        pool.says(64, &["is not hexadecimal"], &["get", "--key-hex", wrong])?;
    }
    // Without the option the same digits are text.
    pool.expect(1, &["get", "00ff"])?;
    Ok(())
}

#[test]
fn a_directory_that_is_missing_is_named_and_not_made() -> Outcome<()> {
    let place = Place::in_memory()?;
    let missing = place.argument("missing")?;
    for (name, more) in [("missing/pool", &[][..]), ("missing/matrix", &["--matrix", "2x2"])] {
        let pool = place.pool(name)?;
        for command in
            [&["create", "--size", "64MiB"][..], &["serve", "--port", "0", "--size", "64MiB"]]
        {
            pool.says(2, &[&format!("the directory {missing}")], &[command, more].concat())?;
        }
    }
    let bench = ["bench", "--workload", "load", "--records", "10"];
    place.pool("missing/pool")?.says(2, &[&format!("the directory {missing}")], &bench)?;
    assert!(!place.path("missing").exists());
    // The directory of a matrix is created, since it is its own; so is the user's data directory.
    place.created("matrix", &["--size", "32MiB", "--matrix", "1x2"])?;
    let home = place.argument("home")?;
    let output = Command::new(BINARY)
        .args(["create", "--size", "32MiB"])
        .env("XDG_DATA_HOME", &home)
        .output()?;
    assert!(output.status.success(), "{output:?}");
    assert!(place.path("home/coreplane/default.pool").exists());
    Ok(())
}

/// Nothing is created for a server that cannot run.
#[test]
fn a_port_that_is_taken_is_told_before_a_pool_is_made() -> Outcome<()> {
    let place = Place::in_memory()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let address = taken.local_addr()?.to_string();
    let port = taken.local_addr()?.port().to_string();
    let pool = place.pool("pool")?;
    let size = ["--size", "64MiB"];
    let serve = |words: &[&str]| {
        [&["serve"], words, &size].concat().iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()
    };
    let peers = format!("1={address}");
    let commands = [
        serve(&["--port", &port]),
        serve(&["--port", "0", "--metrics", &address]),
        serve(&["--port", "0", "--http-port", &port]),
        serve(&["--port", &free, "--cluster-id", "1", "--cluster-peers", &peers]),
        serve(&["--port", &port, "--cluster-id", "1", "--cluster-peers", "1=127.0.0.1:0"]),
    ];
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (code, said) = pool.ask(&words, b"")?;
        assert!((code == 5 || code == 3) && said.contains("in use"), "{words:?}: {code} {said}");
        assert!(!pool.is_there()?, "{words:?}");
    }
    let disk = place.argument("disk")?;
    let nbd = ["nbd", "serve", "--pool", &disk, "--size", "64MiB", "--port", &port];
    expect(3, &nbd)?;
    assert!(!place.path("disk").exists());
    // The socket of a server that cannot run is removed.
    let socket = place.argument("socket")?;
    pool.put_bytes(b"no pool")?;
    pool.expect(2, &["serve", "--port", "0", "--unixsocket", &socket])?;
    assert!(!place.path("socket").exists());
    Ok(())
}

/// All lines that a server prints on its standard output, until it has ended by SIGTERM.
fn said_until_the_end(
    arguments: &[&str],
    work: impl FnOnce(&str) -> Outcome<()>,
) -> Outcome<Vec<String>> {
    let mut child = Command::new(BINARY).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let first = lines.next().ok_or("it says nothing")??;
    work(&first)?;
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status()?.success());
    let mut said = vec![first];
    for line in lines {
        said.push(line?);
    }
    assert!(child.wait()?.success());
    Ok(said)
}

#[test]
fn a_server_says_what_it_has_done_when_it_ends() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.argument("pool")?;
    let serve = ["serve", "--port", "0", "--size", "64MiB", "--pool", &pool];
    let said = said_until_the_end(&serve, |line| {
        let address = line.rsplit(' ').next().ok_or("no address")?;
        let mut client = Client::connect(address)?;
        for number in 0..7 {
            let key = format!("key:{number}");
            assert_eq!(client.call(&[b"SET", key.as_bytes(), b"value"])?, Reply::ok());
        }
        Client::connect(address)?.call(&[b"PING"]).map(drop)
    })?;
    assert_eq!(said.len(), 2, "{said:?}");
    for word in ["ended: 8 commands of 2 connections in 00:00:", &format!("pool {pool} is closed")]
    {
        assert!(said[1].contains(word), "{word}: {said:?}");
    }
    let series = text(&place.path("series"))?.to_owned();
    let serve = ["ts", "serve", "--http-port", "0", "--size", "64MiB", "--pool", &series];
    let said = said_until_the_end(&serve, |_| Ok(()))?;
    assert!(said.last().is_some_and(|line| line.contains("ended: up 00:00:")), "{said:?}");
    let (disk, socket) = (place.argument("disk")?, place.argument("socket")?);
    let serve = ["nbd", "serve", "--size", "64MiB", "--pool", &disk, "--unixsocket", &socket];
    let said = said_until_the_end(&serve, |_| Ok(()))?;
    assert!(said.last().is_some_and(|line| line.ends_with("is closed")), "{said:?}");
    Ok(())
}

#[test]
fn what_does_nothing_says_so() -> Outcome<()> {
    let place = Place::in_memory()?;
    for (name, more) in [("pool", &[][..]), ("matrix", &["--matrix", "1x2"])] {
        let pool = place.created(name, &[&["--size", "64MiB"], more].concat())?;
        for size in ["32MiB", "64MiB"] {
            pool.says(0, &["nothing was done"], &["grow", "--size", size])?;
        }
        let (code, said) = pool.ask(&["grow", "--size", "96MiB"], b"")?;
        assert!(code == 0 && !said.contains("nothing was done"), "{said}");
    }
    let pool = place.pool("pool")?;
    for ttl in ["0", "0ms"] {
        pool.says(64, &["would be gone at once"], &["put", "key", "value", "--ttl", ttl])?;
    }
    pool.expect(1, &["get", "key"])?;
    Ok(())
}

/// The options under a heading of a help.
fn options_under(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != format!("{heading}:")).skip(1);
    let group = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    let long = group
        .filter_map(|line| line.split("--").nth(1).filter(|_| line.trim_start().starts_with('-')));
    long.filter_map(|text| text.split([' ', '[', '<']).next().map(str::to_owned)).collect()
}

#[test]
fn the_options_of_a_help_are_grouped() -> Outcome<()> {
    let serve = expect(0, &["serve", "--help"])?;
    let matrix = ["accept-loss", "answers-within", "matrix", "ack", "prototype", "reads"];
    assert_eq!(options_under(&serve, "Matrix"), matrix);
    assert_eq!(
        options_under(&serve, "Sockets"),
        ["bind", "port", "unixsocket", "unixsocketperm", "metrics"]
    );
    let pool = ["size", "engine", "page-size", "fan-out", "index"];
    assert_eq!(options_under(&serve, "Pool that is created"), pool);
    assert!(options_under(&serve, "Node of a cluster").contains(&"cluster-id".to_owned()));
    assert!(
        options_under(&serve, "Time series beside the records").contains(&"http-port".to_owned())
    );
    let usual = options_under(&serve, "Options");
    assert!(usual.contains(&"pool".to_owned()) && usual.len() < 10, "{usual:?}");
    for command in ["info", "stats", "verify", "dump", "grow", "scan"] {
        let help = expect(0, &[command, "--help"])?;
        assert_eq!(options_under(&help, "Matrix"), matrix[..2], "{command}");
        assert_eq!(
            options_under(&help, "Store that is served"),
            ["server", "password-file"],
            "{command}"
        );
    }
    Ok(())
}

/// A password that everybody knows is none: with it the server would serve other machines.
#[test]
fn an_empty_password_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (pool, file) = (place.argument("pool")?, place.argument("password")?);
    for content in ["", "\n", "\r\n"] {
        std::fs::write(&file, content)?;
        for command in [&["serve", "--port", "0"][..], &["ts", "serve", "--http-port", "0"]] {
            let arguments = [command, &["--pool", &pool, "--requirepass-file", &file]].concat();
            let output = session::coreplane(&arguments, b"")?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(64), "{content:?} {command:?}: {said}");
            assert!(said.contains(&file) && said.contains("no password"), "{said}");
            assert!(!std::fs::exists(&pool)?, "a pool was made");
        }
    }
    Ok(())
}

#[test]
fn a_node_refuses_what_it_would_not_heed() -> Outcome<()> {
    let place = Place::in_memory()?;
    let node =
        ["serve", "--size", "64MiB", "--cluster-id", "1", "--cluster-peers", "1=127.0.0.1:0"];
    let pool = place.pool("pool")?;
    for option in [
        &["--engine", "bptree"][..],
        &["--index", "dram"],
        &["--matrix", "2x2"],
        &["--ack", "all"],
        &["--prototype", "mkvs"],
        &["--reads", "rings"],
        &["--accept-loss"],
        &["--durability", "relaxed"],
    ] {
        // The port is not valid either.
        pool.says(64, &[option[0]], &[&node[..], &["--port", "0"], option].concat())?;
        assert!(!pool.is_there()?, "{option:?}");
    }
    // A directory may be of somebody else.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let serve = [&node[..], &["--port", &port]].concat();
    let matrix = place.created("matrix", &["--matrix", "1x2", "--size", "64MiB"])?;
    for map in ["list", "wal"] {
        let serve = [&serve[..], &["--replica-map", map]].concat();
        matrix.says(2, &["no write-ahead log"], &serve)?;
    }
    // As in the root of a file system.
    std::fs::create_dir_all(place.path("empty").join("lost+found"))?;
    place.pool("empty")?.says(2, &["--replica-map wal"], &serve)?;
    Ok(())
}

/// Options that would have no effect.
#[test]
fn options_that_would_not_be_heeded_are_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    // A server that took the option would end nevertheless.
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = &*taken.local_addr()?.port().to_string();
    let serve = ["serve", "--port", port];
    for option in [
        &["--http-bind", "127.0.0.1"][..],
        &["--http-user", "me"],
        &["--http-threads", "1"],
        &["--opentsdb-database", "d"],
        &["--ts-size", "32MiB"],
        &["--ts-sets", "1"],
        &["--ts-pool", "somewhere"],
    ] {
        pool.says(64, &["--http-port"], &[&serve[..], option].concat())?;
    }
    let series = ["ts", "serve", "--http-port", port];
    let huge = &usize::MAX.to_string()[..];
    for (option, number) in
        [("--http-queries-max", huge), ("--http-queries-max", "0"), ("--http-connections-max", "0")]
    {
        pool.says(64, &[option], &[&series[..], &[option, number]].concat())?;
    }
    let bench = ["bench", "--records", "1"];
    for option in ["--key-size", "--value-size"] {
        pool.says(3, &["the longest"], &[&bench[..], &[option, huge]].concat())?;
    }
    let peers =
        ["--cluster-id", "1", "--cluster-peers", "1=127.0.0.1:1,2=127.0.0.1:2,2=127.0.0.1:3"];
    pool.says(64, &["twice"], &[&serve[..], &peers].concat())?;
    for option in [
        &["--replica-map", "wal"][..],
        &["--cluster-tick", "10ms"],
        &["--follower-age-max", "1s"],
        &["--redirect"],
    ] {
        pool.says(64, &["--cluster-id"], &[&serve[..], option].concat())?;
    }
    // Servers answer with one line, and an export is no JSON.
    let commands: [&[&str]; 4] =
        [&serve, &series, &["nbd", "serve", "--port", port], &["ts", "export"]];
    for command in commands {
        pool.says(64, &["'--json'"], &[command, &["--json"]].concat())?;
    }
    assert!(!pool.is_there()?);
    // A server has one store, and it is that store which is asked.
    let device = ["matrix", "replace", "--device", "g0d0"];
    let commands: [&[&str]; 8] = [
        &["info"],
        &["stats"],
        &["verify"],
        &["dump"],
        &["scan"],
        &["grow", "--size", "64MiB"],
        &["matrix", "status"],
        &device,
    ];
    for command in commands {
        let both = [command, &["--server", "127.0.0.1:1"]].concat();
        pool.says(64, &["cannot be used with"], &both)?;
        expect(5, &both)?;
    }
    Ok(())
}

#[test]
fn growth_is_told_in_json() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (series, disk) = (place.argument("series")?, place.argument("disk")?);
    let grown = |command: &str, pool: &str| -> Outcome<serde_json::Value> {
        let grow = [command, "grow", "--json", "--size", "64MiB", "--pool", pool];
        Ok(serde_json::from_str(&expect(0, &grow)?)?)
    };
    let made = ["ts", "serve", "--http-port", "0", "--size", "32MiB", "--sets", "2"];
    session::Served::start_as(&made, Stdio::null(), &["--pool", &series])?.terminate()?;
    let told = grown("ts", &series)?;
    let stats = expect(0, &["ts", "stats", "--json", "--pool", &series])?;
    let stats: serde_json::Value = serde_json::from_str(&stats)?;
    assert!(stats["total_bytes"].as_u64() > Some(64 << 20), "{stats}");
    assert_eq!(told, serde_json::json!({"pool": series, "total_bytes": stats["total_bytes"]}));
    let made = ["nbd", "serve", "--port", "0", "--size", "32MiB", "--queues", "2"];
    session::Served::start_as(&made, Stdio::null(), &["--pool", &disk])?.terminate()?;
    let told = grown("nbd", &disk)?;
    assert_eq!(told, serde_json::json!({"pool": disk, "bytes": 64 << 20}));
    Ok(())
}

#[test]
fn a_server_for_nobody_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    for serve in [&["serve"][..], &["nbd", "serve", "--size", "64MiB"]] {
        pool.says(64, &["--maxclients"], &[serve, &["--maxclients", "0"]].concat())?;
    }
    Ok(())
}

/// As that of a device, or of a pool that is named by mistake.
#[test]
fn input_that_does_not_end_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB"])?;
    for command in ["put key", "load"] {
        let script = format!("ulimit -v 2000000; exec \"$0\" {command} --pool \"$1\" < /dev/zero");
        let output = Command::new("sh").args(["-c", &script, BINARY, &pool.name]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{command}: {said}");
    }
    Ok(())
}
