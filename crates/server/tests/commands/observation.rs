//! The server's reports about commands and clients: statistics, the slow log, `MONITOR`, and clients that pause
//! others.

use crate::wire::{self, Running, Wire, config, shown};
use coreplane_conformance::model::{LIMITS, ModelEngine};
use coreplane_engine::Limits;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A step that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn start() -> Running {
    Running::start(config(), Arc::new(ModelEngine::new()))
}

/// The value of the line of `INFO section` that begins with `name` and a colon.
fn fact(wire: &mut Wire, section: &str, name: &str) -> Option<String> {
    let text = wire.say(&format!("INFO {section}"));
    let mut lines = text.split("\\r\\n");
    lines.find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned))
}

#[test]
fn commands_are_counted_as_run_as_failed_and_as_rejected() {
    let server = start();
    let mut wire = server.connect();
    for line in ["SET k a", "SET k b", "INCR k", "SET k", "NONSENSE", "CONFIG GET timeout"] {
        wire.say(line);
    }
    for line in ["MULTI", "INCR k", "GET k", "EXEC", "EXEC"] {
        wire.say(line);
    }
    for (name, begin, end) in [
        ("cmdstat_set", "calls=2,usec=", ",rejected_calls=1,failed_calls=0"),
        ("cmdstat_incr", "calls=2,usec=", ",rejected_calls=0,failed_calls=2"),
        ("cmdstat_get", "calls=1,usec=", ",rejected_calls=0,failed_calls=0"),
        ("cmdstat_exec", "calls=2,usec=", ",rejected_calls=0,failed_calls=1"),
        ("cmdstat_config|get", "calls=1,usec=", ",rejected_calls=0,failed_calls=0"),
        ("errorstat_ERR", "count=5", ""),
        ("latency_percentiles_usec_set", "p50=", ""),
    ] {
        let found = fact(&mut wire, "commandstats errorstats latencystats", name);
        let found = found.unwrap_or_else(|| panic!("{name}"));
        assert!(found.starts_with(begin) && found.ends_with(end), "{name}: {found}");
    }
    assert_eq!(fact(&mut wire, "stats", "total_error_replies").as_deref(), Some("5"));
    assert_eq!(wire.say("CONFIG SET latency-tracking-info-percentiles 0"), "+OK\\r\\n");
    let tracked = fact(&mut wire, "latencystats", "latency_percentiles_usec_set");
    assert!(tracked.is_some_and(|it| it.starts_with("p0=") && !it.contains(',')));
    assert_eq!(wire.say("CONFIG RESETSTAT"), "+OK\\r\\n");
    assert_eq!(fact(&mut wire, "errorstats", "errorstat_ERR"), None);
    assert_eq!(fact(&mut wire, "commandstats", "cmdstat_set"), None);
    // An untracked command has no percentiles, but is counted.
    wire.say("CONFIG SET latency-tracking no");
    wire.say("SET k v");
    assert_eq!(fact(&mut wire, "latencystats", "latency_percentiles_usec_set"), None);
    assert!(fact(&mut wire, "commandstats", "cmdstat_set").is_some());
}

#[test]
fn a_reset_of_the_statistics_is_one_of_hits_misses_and_expired_keys() {
    let server = start();
    let mut wire = server.connect();
    for line in ["SET k v", "GET k", "GET none", "SET gone v PXAT 1", "GET gone"] {
        wire.say(line);
    }
    let names = ["keyspace_hits", "keyspace_misses", "expired_keys"];
    for (reset, hits) in [(false, "1"), (true, "0"), (true, "0")] {
        if reset {
            assert_eq!(wire.say("CONFIG RESETSTAT"), "+OK\\r\\n");
        }
        assert_eq!(fact(&mut wire, "stats", names[0]).as_deref(), Some(hits));
        let others = names.map(|name| fact(&mut wire, "stats", name).expect(name));
        assert_eq!(others.iter().any(|it| it != "0"), !reset, "{others:?}");
    }
    wire.say("GET k");
    assert_eq!(fact(&mut wire, "stats", names[0]).as_deref(), Some("1"));
}

#[test]
fn a_transaction_that_fails_at_its_end_is_counted_as_failed() {
    let limits = Limits { batch_len_max: 1, ..LIMITS };
    let server = Running::start(config(), Arc::new(ModelEngine::new().bounded_by(limits)));
    let mut wire = server.connect();
    for line in ["MULTI", "SET a 1", "SET b 2"] {
        wire.say(line);
    }
    let refused = wire.say("EXEC");
    assert!(refused.starts_with("-EXECABORT Transaction discarded because of: ERR "), "{refused}");
    assert_eq!(wire.say("EXISTS a b"), ":0\\r\\n");
    for (section, name, end) in [
        ("commandstats", "cmdstat_exec", ",rejected_calls=0,failed_calls=1"),
        ("errorstats", "errorstat_EXECABORT", "count=1"),
        ("stats", "total_error_replies", "1"),
    ] {
        let found = fact(&mut wire, section, name);
        assert!(found.as_ref().is_some_and(|it| it.ends_with(end)), "{name}: {found:?}");
    }
}

#[test]
fn usage_is_counted_although_not_every_command_is_timed() {
    let server = start();
    let mut wire = server.connect();
    let sets = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n".repeat(5000);
    wire.send(&sets);
    (0..5000).for_each(|_| assert_eq!(wire.reply(), b"+OK\r\n"));
    let found = fact(&mut wire, "commandstats", "cmdstat_set").expect("it was run");
    let (micros, _) = found.strip_prefix("calls=5000,usec=").unwrap().split_once(',').unwrap();
    assert!(micros.parse::<u64>().unwrap() > 0, "{found}");
}

#[test]
fn the_slow_log_keeps_what_was_slow_without_secrets() {
    let server = start();
    let mut wire = server.connect();
    assert_eq!(wire.say("CLIENT SETNAME joe"), "+OK\\r\\n");
    assert_eq!(wire.say("DEBUG SLEEP 0.02"), "+OK\\r\\n");
    let log = wire.say("SLOWLOG GET 1");
    assert!(log.starts_with("*1\\r\\n*6\\r\\n:"), "{log}");
    let words = "*3\\r\\n$5\\r\\nDEBUG\\r\\n$5\\r\\nSLEEP\\r\\n$4\\r\\n0.02\\r\\n";
    assert!(log.contains(words) && log.ends_with("$3\\r\\njoe\\r\\n"), "{log}");
    // After a row of commands that are not timed.
    let many = b"PING\r\n".repeat(3000);
    wire.send(&[many.as_slice(), b"PING\r\nDEBUG SLEEP 0.03\r\nPING\r\n"].concat());
    (0..3003).for_each(|_| drop(wire.reply()));
    assert!(wire.say("SLOWLOG GET -1").contains("0.03"));
    // The slow commands of a transaction, and not the transaction.
    for line in ["SLOWLOG RESET", "MULTI", "DEBUG SLEEP 0.02", "EXEC"] {
        wire.say(line);
    }
    let log = wire.say("SLOWLOG GET -1");
    assert!(log.contains("SLEEP") && !log.contains("EXEC"), "{log}");

    assert_eq!(wire.say("CONFIG SET slowlog-log-slower-than 0"), "+OK\\r\\n");
    wire.say("SLOWLOG RESET");
    wire.say("AUTH secret");
    wire.say("CONFIG SET requirepass secret");
    wire.say("HELLO 2 AUTH default secret");
    let long = "x".repeat(130);
    wire.say(&format!("ECHO {long}"));
    wire.say(&format!("MGET{}", " k".repeat(40)));
    let log = wire.say("SLOWLOG GET");
    assert!(!log.contains("secret") && log.matches("(redacted)").count() == 4, "{log}");
    assert!(
        log.contains("x... (2 more bytes)") && log.contains("... (10 more arguments)"),
        "{log}"
    );
    wire.say("CONFIG SET slowlog-max-len 2");
    wire.say("PING");
    assert_eq!(wire.say("SLOWLOG LEN"), ":2\\r\\n");
}

#[test]
fn who_monitors_is_told_of_the_commands_of_all_loops() {
    let server = start();
    let mut monitors = [server.connect(), server.connect()];
    for monitor in &mut monitors {
        assert_eq!(monitor.say("MONITOR"), "+OK\\r\\n");
        assert_eq!(monitor.say("MONITOR"), "+OK\\r\\n");
    }
    let mut clients = [server.connect(), server.connect()];
    let [first, second] = &mut clients;
    first.ask(&[b"SET", b"k", b"a \"b\"\r\n\x00"]);
    second.say("AUTH secret");
    first.say("CONFIG GET timeout");
    for line in ["MULTI", "GET k", "EXEC"] {
        first.say(line);
    }
    second.say("NONSENSE");
    second.say("PING");
    for monitor in &mut monitors {
        let mut lines = Vec::new();
        // Lines of each loop arrive in order.
        while lines.len() < 6 {
            lines.push(shown(&monitor.reply()));
        }
        let said = |line: &String| line.split_once("] ").expect("an address").1.to_owned();
        let mut said: Vec<String> = lines.iter().map(said).collect();
        said.sort();
        let mut expected = vec![
            r#""SET" "k" "a \\"b\\"\\r\\n\\x00"\r\n"#,
            r#""AUTH" "(redacted)"\r\n"#,
            r#""MULTI"\r\n"#,
            r#""GET" "k"\r\n"#,
            r#""EXEC"\r\n"#,
            r#""PING"\r\n"#,
        ];
        expected.sort_unstable();
        assert_eq!(said, expected, "{lines:?}");
        let is_stamped = |line: &String| line.starts_with('+') && line.contains(" [0 127.0.0.1:");
        assert!(lines.iter().all(is_stamped), "{lines:?}");
    }
    assert_eq!(first.say("CLIENT LIST").matches("flags=O").count(), 2);
    let [ended, left] = &mut monitors;
    assert_eq!(ended.say("RESET"), "+RESET\\r\\n");
    first.say("PING");
    assert_eq!(ended.say("ECHO x"), "$1\\r\\nx\\r\\n");
    assert!(shown(&left.reply()).ends_with("\"RESET\"\\r\\n"));
    assert!(shown(&left.reply()).ends_with("\"PING\"\\r\\n"));
}

/// Waits until so many clients wait for the end of a pause.
fn wait_until_blocked(wire: &mut Wire, count: usize) {
    while fact(wire, "clients", "blocked_clients") != Some(count.to_string()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_pause_holds_those_who_write_until_it_ends() {
    let server = start();
    let mut wires: Vec<Wire> = (0..4).map(|_| server.connect()).collect();
    let [admin, first, second, transaction] = wires.as_mut_slice() else { panic!("four") };
    for line in ["MULTI", "SET b 1"] {
        transaction.say(line);
    }
    assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
    first.send(b"SET a 1\r\nGET a\r\n");
    second.send(b"DEL a b\r\n");
    transaction.send(b"EXEC\r\n");
    wait_until_blocked(admin, 3);
    assert_eq!(admin.say("CLIENT LIST").matches("flags=b ").count(), 2);
    assert!(admin.say("CLIENT LIST").contains("flags=bx"));
    // Nothing was written, reads are not held, and invalid commands are refused at once.
    assert_eq!(admin.say("EXISTS a b"), ":0\\r\\n");
    assert!(admin.say("SET a").starts_with("-ERR wrong number"));
    for (line, answer) in [("MULTI", "+OK"), ("GET a", "+QUEUED"), ("EXEC", "*1\\r\\n$-1")] {
        assert_eq!(admin.say(line), format!("{answer}\\r\\n"));
    }
    assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
    assert_eq!(first.reply(), b"+OK\r\n");
    assert!(first.reply().starts_with(b"$"));
    assert!(second.reply().starts_with(b":"));
    assert_eq!(transaction.reply(), b"*1\r\n+OK\r\n");
    wait_until_blocked(admin, 0);
    // All of them, until the time is over; commands queued behind `UNPAUSE` do not wait.
    assert_eq!(admin.say("CLIENT PAUSE 50"), "+OK\\r\\n");
    assert_eq!(first.say("PING"), "+PONG\\r\\n");
}

/// From the moment that `CLIENT KILL` is answered nothing more is run for the client, whatever it has sent before.
#[test]
fn a_held_command_ends_with_the_kill_of_its_client() {
    let server = Running::start(wire::many::one_loop(), Arc::new(ModelEngine::new()));
    let (mut admin, mut killed) = (server.connect(), server.connect());
    let id = killed.say("CLIENT ID").replace(':', "").replace("\\r\\n", "");
    assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
    killed.send(b"SET k v\r\n");
    wait_until_blocked(&mut admin, 1);
    // The loop comes back to what is held before it reads its messages.
    let lines =
        format!("CLIENT KILL ID {id}\r\nCLIENT LIST\r\nCLIENT KILL ID {id}\r\nCLIENT UNPAUSE\r\n");
    admin.send(lines.as_bytes());
    assert_eq!(admin.reply(), b":1\r\n");
    let listed = shown(&admin.reply());
    assert!(!listed.contains(&format!("id={id} ")), "{listed}");
    assert_eq!(admin.reply(), b":0\r\n");
    assert_eq!(admin.reply(), b"+OK\r\n");
    assert!(killed.is_closed());
    assert_eq!(admin.say("GET k"), "$-1\\r\\n");
    // A client that kills itself is answered.
    let mut own = server.connect();
    let id = own.say("CLIENT ID").replace(':', "").replace("\\r\\n", "");
    own.send(format!("CLIENT KILL ID {id} SKIPME no\r\nSET k v\r\n").as_bytes());
    assert_eq!(own.rest(), b":1\r\n");
    assert_eq!(admin.say("GET k"), "$-1\\r\\n");
}

/// A client that has gone may have sent its command again, and must not find it run twice.
#[test]
fn a_held_command_ends_with_its_connection() {
    let server = start();
    let mut admin = server.connect();
    assert_eq!(admin.say("CLIENT PAUSE 1000000 WRITE"), "+OK\\r\\n");
    let mut gone = server.connect();
    gone.send(b"INCR n\r\n");
    wait_until_blocked(&mut admin, 1);
    drop(gone);
    // The place of the first one is free again.
    let since = Instant::now();
    while fact(&mut admin, "clients", "connected_clients").as_deref() != Some("1") {
        assert!(since.elapsed() < PATIENCE, "it keeps its place");
    }
    // Also where the end has arrived before the command is held, behind others that are answered.
    let told = rest_after_end(&server, b"GET n\r\nINCR n\r\nINCR n\r\n");
    let (first, second) = told.split_at(5);
    assert_eq!(first, b"$-1\r\n");
    assert!(
        second.starts_with(b"-TRYAGAIN ") && second.iter().filter(|it| **it == b'-').count() == 1
    );
    // And with more than the server has read by then: an unread rest must not take the answers back.
    let long = [&b"GET n\r\nINCR n\r\n"[..], &b"GET n\r\n".repeat((100 << 10) / 7)[..]].concat();
    assert_eq!(rest_after_end(&server, &long), told);
    assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
    assert_eq!(admin.say("GET n"), "$-1\\r\\n");
    assert_eq!(rest_after_end(&server, b"INCR n\r\nGET n\r\n"), b":1\r\n$1\r\n1\r\n");
}

/// The answers to a client that sends nothing more.
fn rest_after_end(server: &Running, commands: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(commands).expect("send");
    stream.shutdown(Shutdown::Write).expect("end");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end");
    rest
}

#[test]
fn memory_is_bounded_by_maxmemory() {
    let server = start();
    let mut wire = server.connect();
    assert_eq!(wire.say("SET k v"), "+OK\\r\\n");
    assert_eq!(wire.say("ONCE c 1 INCR n"), ":1\\r\\n");
    for line in ["MULTI", "SET k w"] {
        wire.say(line);
    }
    let mut admin = server.connect();
    assert_eq!(admin.say("CONFIG SET maxmemory 1"), "+OK\\r\\n");
    let refused = "OOM command not allowed when used memory > 'maxmemory'.\\r\\n";
    let aborted = format!("-EXECABORT Transaction discarded because of: {refused}");
    assert_eq!(wire.say("EXEC"), aborted);
    assert_eq!(wire.say("EXEC"), "-ERR EXEC without MULTI\\r\\n");
    assert_eq!(wire.say("SET k w"), format!("-{refused}"));
    // A command that was run before is answered again; a new one is refused as without `ONCE`.
    assert_eq!(wire.say("ONCE c 1 INCR n"), ":1\\r\\n");
    assert_eq!(wire.say("ONCE c 2 INCR n"), format!("-{refused}"));
    assert_eq!(wire.say("ONCE c 3 DEL n"), ":1\\r\\n");
    assert_eq!(wire.say("GET k"), "$1\\r\\nv\\r\\n");
    assert_eq!(fact(&mut admin, "errorstats", "errorstat_OOM").as_deref(), Some("count=2"));
    // Commands that free memory are not refused, and there is room again.
    assert_eq!(wire.say("DEL k"), ":1\\r\\n");
    assert_eq!(admin.say("CONFIG SET maxmemory 100mb"), "+OK\\r\\n");
    assert_eq!(fact(&mut admin, "memory", "maxmemory").as_deref(), Some("104857600"));
    assert_eq!(wire.say("SET k w"), "+OK\\r\\n");
}

#[test]
fn clients_are_listed_with_their_memory() {
    let server = start();
    let mut wire = server.connect();
    let mut other = server.connect();
    let list = wire.say("CLIENT LIST");
    assert!(list.contains(" qbuf=26 ") && list.contains(" argv-mem=10 "), "{list}");
    assert!(wire.say("CLIENT INFO").contains(" qbuf=26 "));
    let number = |line: &str, name: &str| -> usize {
        let after = line.split_once(&format!(" {name}=")).expect("the field").1;
        after.split(' ').next().unwrap().parse().unwrap()
    };
    other.say("MULTI");
    other.say(&format!("SET k {}", "x".repeat(1000)));
    let id = other.say("CLIENT ID");
    assert_eq!(id, "+QUEUED\\r\\n");
    let list = wire.say("CLIENT LIST");
    let queued = list.split("\\n").find(|line| line.contains("multi=2")).expect("it is listed");
    assert!(number(queued, "multi-mem") > 1000, "{queued}");
    // A command of which only a part has arrived.
    other.send(b"*2\r\n$4\r\nECHO\r\n$2000\r\n");
    other.send(&[b'x'; 1000]);
    let part = loop {
        let list = wire.say("CLIENT LIST");
        let line = list.split("\\n").find(|line| line.contains("multi=2")).expect("it is listed");
        if number(line, "qbuf") > 1000 {
            break line.to_owned();
        }
    };
    assert!(
        number(&part, "tot-mem") > number(&part, "qbuf") + number(&part, "multi-mem"),
        "{part}"
    );
}

#[test]
fn what_is_not_known_of_a_key_is_said() {
    let server = start();
    let mut wire = server.connect();
    wire.say("SET k v");
    let refused = "-ERR Idle time not tracked: times of access are not recorded.\\r\\n";
    assert_eq!(wire.say("OBJECT IDLETIME k"), refused);
    let number = |text: String| text.trim_matches(|it: char| !it.is_ascii_digit()).parse::<u64>();
    let small = number(wire.say("MEMORY USAGE k")).unwrap();
    wire.say(&format!("SET k {}", "x".repeat(1000)));
    let large = number(wire.say("MEMORY USAGE k SAMPLES 5")).unwrap();
    assert!((996..1016).contains(&(large - small)), "{small} {large}");
    wire.say("PEXPIRE k 1000000");
    assert_eq!(number(wire.say("MEMORY USAGE k")).unwrap(), large + 8);
}
