//! A server from its first connection to its end.

use crate::wire::{self, End, Running, Wire, config};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::Engine;
use coreplane_server::{Config, Error, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A step that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn start() -> Running {
    Running::start(config(), Arc::new(ModelEngine::new()))
}

#[test]
fn a_unix_socket_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // A socket that a dead server left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let config =
        Config { unix_socket: Some(path.clone()), unix_socket_mode: Some(0o600), ..config() };
    let server = Running::start(config.clone(), Arc::new(ModelEngine::new()));
    let mut unix = Wire::unix(&path);
    assert_eq!(unix.say("SET k v"), "+OK\\r\\n");
    assert_eq!(server.connect().say("GET k"), "$1\\r\\nv\\r\\n");
    assert!(unix.say("CLIENT INFO").contains("flags=U"));
    // A socket of a live server is.
    let second = Server::bind(config, Arc::new(ModelEngine::new()));
    assert!(matches!(second, Err(Error::Listen { .. })));
    assert_eq!(unix.say("PING"), "+PONG\\r\\n");
    drop(server);
    assert!(!path.exists());
}

/// A connection to it fails, but not because nobody listens.
#[test]
fn a_socket_that_somebody_else_uses_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let other = UnixDatagram::bind(&path).unwrap();
    let config = Config { unix_socket: Some(path.clone()), ..config() };
    let refused = Server::bind(config, Arc::new(ModelEngine::new()));
    assert!(matches!(refused, Err(Error::Listen { .. })));
    UnixDatagram::unbound().unwrap().send_to(b"mail", path).unwrap();
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 4);
}

/// The other loop waits for the one that panics: its command is to be alone.
#[test]
fn a_server_whose_loop_panics_ends() {
    let engine = Arc::new(ModelEngine::new());
    let server = Running::start(config(), engine.clone());
    let (mut first, mut second) = (server.connect(), server.connect());
    assert_eq!(first.say("PING"), "+PONG\\r\\n");
    assert_eq!(second.say("SET k v"), "+OK\\r\\n");
    let (begun, begins) = channel();
    let (go_on, goes_on) = channel::<()>();
    engine.after_next_read(move |_| {
        begun.send(()).expect("the test waits");
        goes_on.recv().expect("the test goes on");
        panic!("a fault that the test makes");
    });
    first.send(b"GET k\r\n");
    begins.recv().unwrap();
    second.send(b"SET told v\r\nRENAME k l\r\n");
    while engine.get(b"told").unwrap().is_none() {
        std::thread::yield_now();
    }
    // By now, or soon, it waits.
    std::thread::sleep(Duration::from_millis(50));
    go_on.send(()).unwrap();
    let (ended, end) = channel();
    std::thread::spawn(move || ended.send(server.wait()));
    let end = end.recv_timeout(PATIENCE).expect("the server ends");
    assert!(matches!(end, Err(Error::Panicked)), "{end:?}");
}

#[test]
fn shutdown_ends_the_server_without_an_answer() {
    let server = start();
    let mut wire = server.connect();
    let mut other = server.connect();
    assert_eq!(other.say("SET k v"), "+OK\\r\\n");
    wire.send(b"SHUTDOWN NOSAVE\r\n");
    assert!(wire.is_closed());
    assert!(other.is_closed());
    server.wait().expect("a good end");
}

#[test]
fn somewhere_to_listen_is_needed() {
    let config = Config { port: None, ..config() };
    let refused = Server::bind(config, Arc::new(ModelEngine::new()));
    assert!(matches!(refused, Err(Error::NowhereToListen)));
    let config = Config { bind: vec!["no.such.host.invalid".to_owned()], ..wire::config() };
    let refused = Server::bind(config, Arc::new(ModelEngine::new()));
    assert!(matches!(refused, Err(Error::Listen { .. })));
}

#[test]
fn clients_can_be_listed_and_killed_across_loops() {
    let server = start();
    let mut wires: Vec<Wire> = (0..4).map(|_| server.connect()).collect();
    let ids: Vec<String> = wires
        .iter_mut()
        .map(|wire| {
            wire.say("CLIENT ID").trim_end_matches("\\r\\n").trim_start_matches(':').to_owned()
        })
        .collect();
    assert_eq!(wires[1].say("CLIENT SETNAME joe"), "+OK\\r\\n");
    assert_eq!(wires[1].say("CLIENT SETINFO LIB-NAME some-lib"), "+OK\\r\\n");
    assert_eq!(wires[1].say("CLIENT SETINFO lib-ver 1.2"), "+OK\\r\\n");
    assert!(wires[1].say("CLIENT SETINFO lib-ver 1 2").starts_with("-ERR wrong number"));
    assert_eq!(wires[1].say("CLIENT SETINFO x y"), "-ERR Unrecognized option 'x'\\r\\n");
    assert_eq!(wires[1].say("CLIENT NO-TOUCH on"), "+OK\\r\\n");
    let list = wires[0].say("CLIENT LIST");
    assert_eq!(list.matches("addr=127.0.0.1:").count(), 8, "{list}");
    assert!(list.contains("cmd=client|list") && list.contains("cmd=client|no-touch"), "{list}");
    assert!(list.contains("name=joe") && list.contains("lib-name=some-lib lib-ver=1.2"));
    let one = wires[0].say(&format!("CLIENT LIST ID {}", ids[2]));
    assert_eq!(one.matches("addr=127.0.0.1:").count(), 2, "{one}");
    for victim in [1, 2] {
        assert_eq!(wires[0].say(&format!("CLIENT KILL ID {}", ids[victim])), ":1\\r\\n");
        assert!(wires[victim].is_closed());
    }
    assert_eq!(wires[0].say(&format!("CLIENT KILL ID {}", ids[0])), ":0\\r\\n");
    assert_eq!(wires[0].say("CLIENT KILL TYPE normal"), ":1\\r\\n");
    assert!(wires[3].is_closed());
    assert_eq!(wires[0].say(&format!("CLIENT KILL ID {} SKIPME no", ids[0])), ":1\\r\\n");
    assert!(wires[0].is_closed());
}

#[test]
fn info_holds_what_clients_look_for() {
    let server = start();
    let mut wire = server.connect();
    wire.say("SET k v");
    wire.say("GET k");
    wire.say("NONSENSE");
    let info = wire.say("INFO");
    for line in [
        "redis_version:7.0.15",
        "redis_mode:standalone",
        "coreplane_version:",
        "loading:0",
        "role:master",
        "connected_clients:1",
        "total_commands_processed:2",
        "total_error_replies:1",
        "keyspace_hits:1",
        "cluster_enabled:0",
        "durability:strict",
        "db0:keys=1,",
        "turn_count:",
    ] {
        assert!(info.contains(&format!("\\r\\n{line}")), "{line} in {info}");
    }
    let statistics = wire.say("INFO commandstats");
    assert!(statistics.contains("cmdstat_set:calls=1,usec="), "{statistics}");
    assert!(!statistics.contains("role:master"));
    assert!(wire.say("INFO everything").contains("cmdstat_get"));
    assert!(wire.say("INFO server clients").contains("# Clients"));
    assert_eq!(wire.say("CONFIG RESETSTAT"), "+OK\\r\\n");
    assert!(wire.say("INFO stats").contains("total_error_replies:0"));
}

#[test]
fn hello_changes_the_language() {
    let server = start();
    let mut wire = server.connect();
    let hello = wire.say("HELLO 3 SETNAME me");
    assert!(hello.starts_with("%7\\r\\n$6\\r\\nserver\\r\\n$5\\r\\nredis\\r\\n"), "{hello}");
    assert!(hello.contains("$5\\r\\nproto\\r\\n:3\\r\\n"));
    assert_eq!(wire.say("GET none"), "_\\r\\n");
    assert_eq!(wire.say("CLIENT GETNAME"), "$2\\r\\nme\\r\\n");
    assert!(wire.say("INFO").starts_with("="));
    assert!(wire.say("CLIENT LIST").contains("resp=3"));
    let hello = wire.say("HELLO 2");
    assert!(hello.starts_with("*14\\r\\n"), "{hello}");
    assert_eq!(wire.say("GET none"), "$-1\\r\\n");
}

#[test]
fn the_whole_table_can_be_asked_for() {
    let server = start();
    let mut wire = server.connect();
    let count = wire.say("COMMAND COUNT");
    let all = wire.say("COMMAND");
    assert!(all.starts_with(&count.replace(':', "*")), "{count}");
    let list = wire.say("COMMAND LIST");
    assert!(list.contains("client|list"), "the parts of commands, too: {list}");
    for protocol in ["HELLO 2", "HELLO 3"] {
        wire.say(protocol);
        for request in
            ["COMMAND", "COMMAND INFO", "COMMAND DOCS", "COMMAND LIST FILTERBY ACLCAT read"]
        {
            // The client of this test reads an answer by its structure: a wrong length anywhere
            // would put it out of step.
            assert!(!wire.say(request).starts_with('-'), "{request}");
        }
        assert_eq!(wire.say("PING"), "+PONG\\r\\n");
    }
}

fn scrape(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Sends a request byte by byte, and the next one when its connection is closed.
fn dawdle(address: SocketAddr, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed)
        && let Ok(mut stream) = TcpStream::connect(address)
    {
        while !is_over.load(Ordering::Relaxed) && stream.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_client_of_the_metrics_that_dawdles_holds_up_nobody() {
    let config = Config { metrics: Some("127.0.0.1:0".to_owned()), ..config() };
    let server = Server::bind(config, Arc::new(ModelEngine::new())).unwrap();
    let (handle, scraped) = (server.handle(), server.metrics_addr().unwrap());
    let (ended, end) = channel();
    std::thread::spawn(move || ended.send(server.run()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| dawdle(scraped, &is_over));
        std::thread::sleep(Duration::from_millis(50));
        let answer = scrape(scraped, "/metrics").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        // The client that dawdles has come again.
        std::thread::sleep(Duration::from_millis(150));
        handle.shutdown();
        end.recv_timeout(PATIENCE).expect("the server ends").expect("a good end");
    });
}

#[test]
fn prometheus_finds_the_same_counters() {
    let config = Config { metrics: Some("127.0.0.1:0".to_owned()), ..config() };
    let server = Server::bind(config, Arc::new(ModelEngine::new())).unwrap();
    let (address, scraped) = (server.local_addr().unwrap(), server.metrics_addr().unwrap());
    let handle = server.handle();
    let thread = std::thread::spawn(move || server.run());
    let mut wire = Wire::tcp(address);
    wire.say("SET k v");
    wire.say("GET k");
    let get = |path: &str| scrape(scraped, path).unwrap();
    let answer = get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for line in [
        "coreplane_commands_total 2",
        "coreplane_connected_clients 1",
        "coreplane_engine_hits_total 1",
        "# TYPE coreplane_turn_seconds histogram",
    ] {
        assert!(answer.contains(&format!("\n{line}\n")), "{line} in {answer}");
    }
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())));
    assert!(get("/").starts_with("HTTP/1.1 404"));
    handle.shutdown();
    thread.join().unwrap().unwrap();
}
