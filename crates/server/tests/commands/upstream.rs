//! Commands that a follower forwards to the leader of a cluster: none runs after the follower has dropped it, and none
//! is sent while a pause of the follower holds it.

use crate::wire::{Running, Wire, command, config, shown};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Deferred, DurableListener, Result as EngineResult};
use coreplane_server::{
    AppliedEntry, ClusterInfo, Config, MemberInfo, Server, SnapshotPage, Standing,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A step that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node that knows the leader, whether it redirects, how many nodes have everything, and nothing else.
#[derive(Debug)]
struct Node(Mutex<Standing>, bool, AtomicUsize);

impl ClusterInfo for Node {
    fn standing(&self) -> Standing {
        *self.0.lock().expect("no panic")
    }

    fn followers(&self) -> Vec<(SocketAddr, u64)> {
        Vec::new()
    }

    fn applied(&self) -> u64 {
        0
    }

    fn copies(&self) -> usize {
        self.2.load(Ordering::Relaxed)
    }

    fn run(&self, _words: &[&str]) -> Result<String, String> {
        Err("ERR not here".to_owned())
    }

    fn figures(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn members(&self) -> Vec<MemberInfo> {
        Vec::new()
    }

    fn pin(&self) -> Result<(u64, u64), String> {
        Err("ERR not here".to_owned())
    }

    fn page(&self, _pin: u64, _start: &[u8]) -> Result<SnapshotPage, String> {
        Err("ERR not here".to_owned())
    }

    fn unpin(&self, _pin: u64) {}

    fn changes_since(&self, _index: u64, _bytes_max: usize) -> EngineResult<Vec<AppliedEntry>> {
        Ok(Vec::new())
    }

    fn on_applied(&self, _listener: DurableListener) {}

    fn follower_reads(&self) -> Option<&dyn Deferred> {
        None
    }

    fn redirects(&self) -> bool {
        self.1
    }
}

fn node(standing: Standing) -> (Arc<Node>, Config) {
    node_of(standing, false)
}

/// A node that redirects its clients, or does not.
fn node_of(standing: Standing, redirects: bool) -> (Arc<Node>, Config) {
    let node = Arc::new(Node(Mutex::new(standing), redirects, AtomicUsize::new(1)));
    let config = Config { cluster: Some(node.clone()), threads: 1, ..config() };
    (node, config)
}

fn bytes_of(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

#[test]
fn hello_role_and_info_agree() {
    let leader = "127.0.0.1:9".parse().expect("an address");
    for (standing, role) in [
        (Standing::Leads, "master"),
        (Standing::Follows(leader), "slave"),
        (Standing::Unknown, "slave"),
    ] {
        for redirects in [false, true] {
            let (_node, config) = node_of(standing, redirects);
            let server = Running::start(config, Arc::new(ModelEngine::new()));
            let mut wire = server.connect();
            let mode = if redirects { "cluster" } else { "standalone" };
            let hello = wire.say("HELLO");
            assert!(
                hello.contains(&format!("$4\\r\\nmode\\r\\n${}\\r\\n{mode}", mode.len())),
                "{hello}"
            );
            let of_hello = if role == "slave" { "replica" } else { role };
            assert!(
                hello.contains(&format!("$4\\r\\nrole\\r\\n${}\\r\\n{of_hello}", of_hello.len())),
                "{hello}"
            );
            assert!(wire.say("ROLE").contains(&format!("\\r\\n{role}\\r\\n")));
            let info = wire.say("INFO");
            for line in [format!("redis_mode:{mode}"), format!("role:{role}")] {
                assert!(info.contains(&format!("\\r\\n{line}\\r\\n")), "{line} in {info}");
            }
        }
    }
}

#[test]
fn a_command_that_arrives_together_with_the_end_of_its_connection_is_not_run() {
    let (_node, config) = node(Standing::Leads);
    let server = Server::bind(config, Arc::new(ModelEngine::new())).expect("bind");
    let address = server.local_addr().expect("an address");
    // All of it is there before the leader looks.
    let mut follower = TcpStream::connect(address).expect("connect");
    follower.set_read_timeout(Some(PATIENCE)).expect("timeout");
    follower
        .write_all(&[bytes_of("CLUSTER FORWARDED"), bytes_of("INCR n")].concat())
        .expect("sent");
    follower.shutdown(Shutdown::Write).expect("ended");
    let server = Running::of(server);
    let mut told = Vec::new();
    if let Err(error) = follower.read_to_end(&mut told) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert!(told.is_empty() || told == b"+OK\r\n", "{}", shown(&told));
    assert_eq!(server.connect().say("GET n"), "$-1\\r\\n");
    // A follower that stays is served.
    let mut follower = server.connect();
    follower.send(&[bytes_of("CLUSTER FORWARDED"), bytes_of("INCR n"), bytes_of("GET n")].concat());
    for answer in [&b"+OK\r\n"[..], b":1\r\n", b"$1\r\n1\r\n"] {
        assert_eq!(follower.reply(), answer);
    }
}

/// The kernel would send again what the leader has not received.
#[test]
fn a_connection_with_pending_commands_is_reset() {
    let leader = TcpListener::bind("127.0.0.1:0").expect("bind");
    let (node, config) = node(Standing::Follows(leader.local_addr().expect("an address")));
    let server = Running::start(config, Arc::new(ModelEngine::new()));
    let mut client = server.connect();
    client.send(&bytes_of("INCR n"));
    let (mut upstream, _) = leader.accept().expect("a follower");
    upstream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let forwarded = [bytes_of("CLUSTER FORWARDED"), bytes_of("INCR n")].concat();
    let mut read = vec![0; forwarded.len()];
    upstream.read_exact(&mut read).expect("the command");
    assert_eq!(shown(&read), shown(&forwarded));
    *node.0.lock().expect("no panic") = Standing::Unknown;
    // So the loop has a turn.
    assert_eq!(server.connect().say("PING"), "+PONG\\r\\n");
    assert!(client.reply().starts_with(b"-INDETERMINATE "));
    let end = upstream.read(&mut [0; 64]).expect_err("it is not closed as usual");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
}

/// Of an answer no part is too long, whatever part of a command it repeats.
#[test]
fn a_long_error_of_the_leader_is_passed_on() {
    let leader = TcpListener::bind("127.0.0.1:0").expect("bind");
    let (_node, config) = node(Standing::Follows(leader.local_addr().expect("an address")));
    let server = Running::start(config, Arc::new(ModelEngine::new()));
    let mut client = server.connect();
    client.send(&[bytes_of("EXPIRE k 1 NONSENSE"), bytes_of("GET k")].concat());
    let (mut upstream, _) = leader.accept().expect("a follower");
    let error = [&b"-ERR Unsupported option "[..], &[b'x'; 100 << 10], b"\r\n"].concat();
    upstream.write_all(b"+OK\r\n").expect("sent");
    upstream.write_all(&error).expect("sent");
    upstream.write_all(b"$1\r\nv\r\n").expect("sent");
    let told = client.reply();
    assert!(told == error, "{} bytes: {}", told.len(), shown(&told[..told.len().min(64)]));
    assert_eq!(client.reply(), b"$1\r\nv\r\n");
}

/// An address at which nobody listens.
const NOWHERE: &str = "127.0.0.1:1";

/// Reads what the follower has sent: its greeting, and this command.
fn expect_forwarded(upstream: &mut TcpStream, line: &str) {
    upstream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let forwarded = [bytes_of("CLUSTER FORWARDED"), bytes_of(line)].concat();
    let mut read = vec![0; forwarded.len()];
    upstream.read_exact(&mut read).expect("the command");
    assert_eq!(shown(&read), shown(&forwarded));
}

/// The follower has turns, as many as it needs for what it is about to do.
fn let_go_on(admin: &mut Wire) {
    for _ in 0..5 {
        assert_eq!(admin.say("PING"), "+PONG\\r\\n");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_pause_holds_a_command_that_has_not_reached_a_leader() {
    let (node, config) = node(Standing::Follows(NOWHERE.parse().expect("an address")));
    let server = Running::start(config, Arc::new(ModelEngine::new()));
    let (mut writer, mut reader, mut admin) =
        (server.connect(), server.connect(), server.connect());
    writer.send(&bytes_of("SET k v"));
    // It has been served in this turn, or before.
    assert_eq!(admin.say("PING"), "+PONG\\r\\n");
    assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
    let leader = TcpListener::bind("127.0.0.1:0").expect("bind");
    *node.0.lock().expect("no panic") = Standing::Follows(leader.local_addr().expect("an address"));
    let_go_on(&mut admin);
    leader.set_nonblocking(true).expect("nonblocking");
    let early = leader.accept().map(|_| "a write in a pause").map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock));
    leader.set_nonblocking(false).expect("blocking");
    // Reads are not held.
    reader.send(&bytes_of("GET k"));
    let (mut upstream, _) = leader.accept().expect("a follower");
    expect_forwarded(&mut upstream, "GET k");
    upstream.write_all(b"+OK\r\n$-1\r\n").expect("sent");
    assert_eq!(reader.reply(), b"$-1\r\n");
    assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
    let (mut upstream, _) = leader.accept().expect("a follower");
    expect_forwarded(&mut upstream, "SET k v");
    upstream.write_all(b"+OK\r\n+OK\r\n").expect("sent");
    assert_eq!(writer.reply(), b"+OK\r\n");
}

/// As a command that is held here; otherwise it would run though nobody waits for it any more.
#[test]
fn a_command_held_for_a_leader_ends_with_its_client() {
    let (_node, config) = node(Standing::Follows(NOWHERE.parse().expect("an address")));
    let server = Running::start(config, Arc::new(ModelEngine::new()));
    let mut admin = server.connect();
    let mut writer = TcpStream::connect(server.address).expect("connect");
    writer.set_read_timeout(Some(PATIENCE)).expect("timeout");
    writer.write_all(&bytes_of("SET k v")).expect("sent");
    assert_eq!(admin.say("PING"), "+PONG\\r\\n");
    assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
    writer.shutdown(Shutdown::Write).expect("ended");
    let mut told = Vec::new();
    writer.read_to_end(&mut told).expect("the end");
    assert!(told.starts_with(b"-TRYAGAIN "), "{}", shown(&told));
}

#[test]
fn a_pause_holds_the_end_of_a_transaction_that_writes_at_the_leader() {
    let leader = TcpListener::bind("127.0.0.1:0").expect("bind");
    let (_node, config) = node(Standing::Follows(leader.local_addr().expect("an address")));
    let server = Running::start(config, Arc::new(ModelEngine::new()));
    let mut admin = server.connect();
    for (queued, is_held) in [("GET k", false), ("SET k v", true)] {
        let mut client = server.connect();
        client.send(&bytes_of("MULTI"));
        let (mut upstream, _) = leader.accept().expect("a follower");
        expect_forwarded(&mut upstream, "MULTI");
        upstream.write_all(b"+OK\r\n+OK\r\n").expect("sent");
        assert_eq!(client.reply(), b"+OK\r\n");
        client.send(&bytes_of(queued));
        upstream.read_exact(&mut vec![0; bytes_of(queued).len()]).expect("the command");
        upstream.write_all(b"+QUEUED\r\n").expect("sent");
        assert_eq!(client.reply(), b"+QUEUED\r\n");
        assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
        client.send(&bytes_of("EXEC"));
        let mut read = vec![0; bytes_of("EXEC").len()];
        if is_held {
            let_go_on(&mut admin);
            upstream.set_nonblocking(true).expect("nonblocking");
            let early = upstream.read(&mut read).map_err(|error| error.kind());
            assert_eq!(early, Err(ErrorKind::WouldBlock));
            upstream.set_nonblocking(false).expect("blocking");
            assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
        }
        upstream.read_exact(&mut read).expect("the end of the transaction");
        assert_eq!(shown(&read), shown(&bytes_of("EXEC")));
        assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
    }
}

/// In the turn of a write no other node has it yet.
#[test]
fn wait_counts_when_all_before_it_is_acknowledged() {
    let (node, config) = node(Standing::Leads);
    node.2.store(3, Ordering::Relaxed);
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let server = Running::start(config, engine.clone());
    for (lines, answers) in [
        (&["SET k v", "WAIT 2 0"][..], &[":1\\r\\n"][..]),
        // A transaction waits for nothing, and nobody is known to have what it follows.
        (
            &["SET k w", "MULTI", "WAIT 2 0", "EXEC"],
            &["+OK\\r\\n", "+QUEUED\\r\\n", "*1\\r\\n:0\\r\\n"],
        ),
    ] {
        let mut client = server.connect();
        client.send(&lines.iter().flat_map(|line| bytes_of(line)).collect::<Vec<_>>());
        while !engine.has_undurable() {
            std::thread::yield_now();
        }
        // The loop has a turn; meanwhile one node is cut off.
        assert_eq!(server.connect().say("PING"), "+PONG\\r\\n");
        node.2.store(2, Ordering::Relaxed);
        engine.make_durable();
        assert_eq!(shown(&client.reply()), "+OK\\r\\n");
        for answer in answers {
            assert_eq!(shown(&client.reply()), *answer);
        }
        node.2.store(3, Ordering::Relaxed);
    }
}
