//! Commands of different event loops do not see each other's half-done changes.

use crate::wire::{Running, Wire, config, shown};
use coreplane_conformance::model::ModelEngine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn start() -> Running {
    Running::start(config(), Arc::new(ModelEngine::new()))
}

/// Runs `write` in two threads and `read` in two more, each with a connection; connections are distributed to the
/// loops in turn, so each kind is on both. Ends when the writers have ended.
fn together(
    server: &Running,
    write: impl Fn(&mut Wire, u32) + Sync,
    read: impl Fn(&mut Wire) + Sync,
) {
    const ROUNDS: u32 = 300;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut wire = server.connect();
            let (read, is_over) = (&read, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    read(&mut wire);
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let mut wire = server.connect();
                let write = &write;
                scope.spawn(move || (0..ROUNDS).for_each(|round| write(&mut wire, round)))
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for result in results {
            result.expect("the writer");
        }
    });
}

/// The bulk strings of an array of two.
fn two(reply: &str) -> (String, String) {
    let parts: Vec<&str> = reply.split("\\r\\n").collect();
    match parts[..] {
        ["*2", _, first, _, second, ""] => (first.to_owned(), second.to_owned()),
        ["*2", "$-1", "$-1", ""] => Default::default(),
        _ => panic!("{reply}"),
    }
}

/// Commands that lengthen a transaction, so that others have the chance to come between.
const PADDING: usize = 100;

/// Runs `first`, some padding and `last` as one transaction; the answers of the two.
fn transaction(wire: &mut Wire, first: &str, last: &str) -> (String, String) {
    let padding = "MGET a b c d e f\r\n".repeat(PADDING);
    wire.send(format!("MULTI\r\n{first}\r\n{padding}{last}\r\nEXEC\r\n").as_bytes());
    for _ in 0..PADDING + 3 {
        wire.reply();
    }
    let reply = shown(&wire.reply());
    let (_, answers) = reply.split_once("\\r\\n").expect("an array");
    let middle = answers.find("*6").expect("the padding");
    let end = answers.rfind("*6").expect("the padding");
    // Six values, each a header and perhaps a text.
    let last = answers[end..].rsplit("\\r\\n").nth(1).expect("the last answer");
    let first = answers[..middle].rsplit("\\r\\n").nth(1).expect("the first answer");
    (first.to_owned(), last.to_owned())
}

fn read_both(wire: &mut Wire) {
    let (first, second) = two(&wire.say("MGET a b"));
    assert_eq!(first, second, "torn");
    let (first, second) = transaction(wire, "GET a", "GET b");
    assert_eq!(first, second, "torn");
}

#[test]
fn nobody_sees_half_an_mset() {
    let server = start();
    let write = |wire: &mut Wire, round: u32| {
        let value = format!("{round}");
        assert_eq!(wire.say(&format!("MSET a {value} x {value} b {value}")), "+OK\\r\\n");
    };
    together(&server, write, read_both);
}

#[test]
fn nobody_sees_half_a_transaction() {
    let server = start();
    let write = |wire: &mut Wire, _| {
        let (first, second) = transaction(wire, "INCR a", "INCR b");
        assert_eq!(first, second);
    };
    together(&server, write, read_both);
    let mut wire = server.connect();
    assert_eq!(two(&wire.say("MGET a b")), ("600".to_owned(), "600".to_owned()));
}

#[test]
fn a_renamed_key_is_always_somewhere() {
    let server = start();
    server.connect().say("MSET here1 v here2 v");
    let next = std::sync::atomic::AtomicU32::new(1);
    let numbers: std::sync::Mutex<std::collections::HashMap<std::thread::ThreadId, u32>> =
        std::sync::Mutex::default();
    let write = |wire: &mut Wire, _| {
        let id = std::thread::current().id();
        let number = *numbers
            .lock()
            .unwrap()
            .entry(id)
            .or_insert_with(|| next.fetch_add(1, Ordering::Relaxed));
        assert_eq!(wire.say(&format!("RENAME here{number} there{number}")), "+OK\\r\\n");
        assert_eq!(wire.say(&format!("RENAMENX there{number} here{number}")), ":1\\r\\n");
    };
    together(&server, write, |wire| {
        assert_eq!(wire.say("EXISTS here1 there1 here2 there2"), ":2\\r\\n");
        assert_eq!(wire.say("KEYS *ere1").matches("ere1").count(), 1);
    });
}

#[test]
fn several_keys_are_deleted_and_set_if_absent_at_once() {
    let server = start();
    let write = |wire: &mut Wire, _| {
        wire.say("MSETNX p 1 q 1");
        let deleted = wire.say("DEL p q");
        assert!(deleted == ":2\\r\\n" || deleted == ":0\\r\\n", "{deleted}");
    };
    together(&server, write, |wire| {
        let there = wire.say("EXISTS p q");
        assert!(there == ":2\\r\\n" || there == ":0\\r\\n", "{there}");
    });
}

#[test]
fn no_increment_is_lost() {
    let server = start();
    let write = |wire: &mut Wire, _| {
        wire.send(b"INCR n\r\nINCRBY n 2\r\nDECR n\r\nAPPEND s x\r\nINCRBYFLOAT f 0.5\r\n");
        for _ in 0..5 {
            wire.reply();
        }
    };
    together(&server, write, |wire| drop(wire.say("GET n")));
    let mut wire = server.connect();
    assert_eq!(wire.say("GET n"), "$4\\r\\n1200\\r\\n");
    assert_eq!(wire.say("STRLEN s"), ":600\\r\\n");
    assert_eq!(wire.say("GET f"), "$3\\r\\n300\\r\\n");
}

#[test]
fn watched_increments_are_not_lost() {
    let server = start();
    server.connect().say("SET n 0");
    let write = |wire: &mut Wire, _| {
        loop {
            wire.say("WATCH n");
            let value: u64 = {
                let reply = wire.say("GET n");
                reply.split("\\r\\n").nth(1).unwrap().parse().unwrap()
            };
            wire.send(format!("MULTI\r\nSET n {}\r\nEXEC\r\n", value + 1).as_bytes());
            wire.reply();
            wire.reply();
            match shown(&wire.reply()).as_str() {
                "*1\\r\\n+OK\\r\\n" => return,
                "*-1\\r\\n" => {}
                other => panic!("{other}"),
            }
        }
    };
    together(&server, write, |wire| drop(wire.say("GET n")));
    assert_eq!(server.connect().say("GET n"), "$3\\r\\n600\\r\\n");
}

/// An expiry counts from the command that sets it, however long the commands before it take.
#[test]
fn a_relative_expiry_counts_from_its_command() {
    let server = start();
    let mut wire = server.connect();
    wire.send(b"DEBUG SLEEP 0.7\r\nSET k v PX 600\r\nGET k\r\nPTTL k\r\n");
    assert_eq!(shown(&wire.reply()), "+OK\\r\\n");
    assert_eq!(shown(&wire.reply()), "+OK\\r\\n");
    assert_eq!(shown(&wire.reply()), "$1\\r\\nv\\r\\n");
    let left: u32 = shown(&wire.reply()).trim_matches([':', '\\', 'r', 'n']).parse().unwrap();
    assert!((1..=600).contains(&left), "{left}");
}

/// A command that reads, and does not end before the test allows it.
struct Reading {
    begun: mpsc::Receiver<()>,
    /// It ends a while after this.
    end: mpsc::Sender<()>,
    is_over: Arc<AtomicBool>,
}

impl Reading {
    /// The next command that reads.
    fn next_of(engine: &ModelEngine) -> Self {
        let (begin, begun) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        engine.after_next_read(move |_| {
            // Where the test has failed nobody listens, and it need not wait.
            if begin.send(()).is_ok() && ends.recv().is_ok() {
                // Meanwhile another loop gets as far as it can.
                std::thread::sleep(Duration::from_millis(50));
            }
            over.store(true, Ordering::SeqCst);
        });
        Self { begun, end, is_over }
    }
}

/// What they stop has ended when they are answered, also in other loops.
#[test]
fn a_pause_and_a_kill_wait_for_the_commands_that_run() {
    let engine = Arc::new(ModelEngine::new());
    let server = Running::start(config(), engine.clone());
    let (mut admin, mut reader) = (server.connect(), server.connect());
    for line in ["CLIENT PAUSE 1 WRITE", "CLIENT KILL TYPE pubsub"] {
        let reading = Reading::next_of(&engine);
        reader.send(b"GET k\r\n");
        reading.begun.recv().expect("a read");
        reading.end.send(()).expect("it waits");
        admin.say(line);
        assert!(reading.is_over.load(Ordering::SeqCst), "{line}");
        assert_eq!(reader.reply(), b"$-1\r\n");
    }
}

/// Stops `writer`, on the other loop, by `line`, before its `MSETNX`, which has been found to be allowed and waits
/// until its loop is alone. False if the command was made just before that.
fn stop(engine: &ModelEngine, admin: &mut Wire, writer: &mut Wire, line: &str) -> bool {
    let reading = Reading::next_of(engine);
    writer.send(b"GET k\r\nMSETNX a 1 b 1\r\n");
    reading.begun.recv().expect("a read");
    for line in ["MULTI", line, "EXISTS a b"] {
        admin.say(line);
    }
    // It is to be alone first.
    admin.send(b"EXEC\r\n");
    reading.end.send(()).expect("it waits");
    shown(&admin.reply()).ends_with("\\r\\n:0\\r\\n")
}

#[test]
fn a_pause_holds_a_command_that_waits_to_be_alone() {
    let engine = Arc::new(ModelEngine::new());
    let server = Running::start(config(), engine.clone());
    let (mut admin, mut writer) = (server.connect(), server.connect());
    while !stop(&engine, &mut admin, &mut writer, "CLIENT PAUSE 1000000 WRITE") {
        assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
        (0..2).for_each(|_| drop(writer.reply()));
        assert_eq!(admin.say("DEL a b"), ":2\\r\\n");
    }
    while !admin.say("INFO clients").contains("blocked_clients:1\\r\\n") {
        assert_eq!(admin.say("EXISTS a b"), ":0\\r\\n");
    }
    assert_eq!(admin.say("EXISTS a b"), ":0\\r\\n");
    assert_eq!(admin.say("CLIENT UNPAUSE"), "+OK\\r\\n");
    assert_eq!(writer.reply(), b"$-1\r\n");
    assert_eq!(writer.reply(), b":1\r\n");
}

#[test]
fn a_command_that_waits_to_be_alone_ends_with_the_kill_of_its_client() {
    let engine = Arc::new(ModelEngine::new());
    let server = Running::start(config(), engine.clone());
    let mut admin = server.connect();
    let mut stopped = false;
    while !stopped {
        // Every second connection is on the other loop.
        let mut writer = server.connect();
        let id = writer.say("CLIENT ID").replace(':', "").replace("\\r\\n", "");
        stopped = stop(&engine, &mut admin, &mut writer, &format!("CLIENT KILL ID {id}"));
        // All that it is told, until its end.
        let told = writer.rest();
        assert!(!stopped || !told.ends_with(b":1\r\n"), "{}", shown(&told));
        assert_eq!(admin.say("DEL a b"), if stopped { ":0\\r\\n" } else { ":2\\r\\n" });
        drop(server.connect());
    }
}
