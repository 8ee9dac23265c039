//! No answer is sent before the writes that it depends on are durable, and the order of answers never changes.

use crate::wire::{self, Running, Wire, config};
use coreplane_conformance::model::{LIMITS, ModelEngine};
use coreplane_engine::{Durability, Engine, Limits, WriteOptions};
use coreplane_server::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A server over a store whose writes become durable only when the test says so.
struct Started {
    engine: Arc<ModelEngine>,
    server: Running,
}

impl Drop for Started {
    /// A server that ends waits until its held answers are durable; a failed test would hang.
    fn drop(&mut self) {
        self.engine.make_durable();
    }
}

fn start() -> Started {
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let server = Running::start(config(), engine.clone());
    Started { engine, server }
}

/// Waits until the server has written something that is not durable.
fn until_undurable(engine: &ModelEngine) {
    while !engine.has_undurable() {
        std::thread::yield_now();
    }
}

/// Reads one answer in a thread of its own; the answer arrives in the channel.
fn reply_of(mut wire: Wire) -> (std::sync::mpsc::Receiver<String>, std::thread::JoinHandle<Wire>) {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        sender.send(wire::shown(&wire.reply())).expect("somebody listens");
        wire
    });
    (receiver, thread)
}

/// Long enough for an answer that is not held to arrive.
const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn an_answer_waits_for_its_write() {
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut writer = server.connect();
    writer.send(b"SET k v\r\n");
    until_undurable(engine);
    let (answer, thread) = reply_of(writer);
    assert!(answer.recv_timeout(A_WHILE).is_err(), "told before it was durable");
    assert_eq!(engine.after_power_cut().get(b"k").unwrap(), None);
    engine.make_durable();
    assert_eq!(answer.recv().unwrap(), "+OK\\r\\n");
    assert_eq!(engine.after_power_cut().get(b"k").unwrap(), Some(b"v".to_vec()));
    thread.join().unwrap();
}

#[test]
fn whoever_reads_it_waits_too_and_nobody_else() {
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut writer = server.connect();
    writer.send(b"SET k v\r\n");
    until_undurable(engine);
    // On both loops.
    for _ in 0..2 {
        let mut other = server.connect();
        assert_eq!(other.say("PING"), "+PONG\\r\\n");
        assert_eq!(other.say("GET elsewhere"), "$-1\\r\\n");
        let mut reader = server.connect();
        reader.send(b"GET k\r\n");
        let (answer, thread) = reply_of(reader);
        assert!(answer.recv_timeout(A_WHILE).is_err(), "shown before it was durable");
        drop(thread);
    }
    engine.make_durable();
    assert_eq!(wire::shown(&writer.reply()), "+OK\\r\\n");
    assert_eq!(writer.say("GET k"), "$1\\r\\nv\\r\\n");
}

/// Syncs as short as they come, and some so long that a loop changes hands: each client's answers
/// are its own, in order and complete, and no loop is stopped for as long as a sync lasts.
#[test]
fn answers_are_right_however_long_a_sync_lasts() {
    const CLIENTS: u64 = 6;
    const COMMANDS: u64 = 300;
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let is_over = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut draw = 7_u64;
            while !is_over.load(Ordering::Relaxed) {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let micros = if draw >> 60 == 0 { 30_000 } else { draw >> 54 };
                std::thread::sleep(Duration::from_micros(micros));
                engine.make_durable();
            }
        });
        let reader = scope.spawn(|| {
            let mut wire = server.connect();
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                assert_eq!(wire.say("GET elsewhere"), "$-1\\r\\n");
                longest = longest.max(asked.elapsed());
            }
            longest
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut wire = server.connect();
                    for number in 0..COMMANDS {
                        let depth = 1 + number % 3;
                        (0..depth).for_each(|_| wire.send(format!("INCR {client}\r\n").as_bytes()));
                        let before = number / 3 * 6 + number % 3 * (number % 3 + 1) / 2;
                        for more in 1..=depth {
                            let expected = format!(":{}\\r\\n", before + more);
                            assert_eq!(wire::shown(&wire.reply()), expected);
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert_eq!(engine.after_power_cut().len().unwrap(), CLIENTS);
    let info = server.connect().say("INFO durability");
    let handovers = info.split_once("loop_handovers:").unwrap().1.split_once('\\').unwrap().0;
    eprintln!("{handovers} handovers, no answer later than {longest:?}");
    assert!(handovers.parse::<u64>().unwrap() > 10, "{info}");
}

#[test]
fn answers_behind_a_held_one_keep_their_order() {
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut wire = server.connect();
    wire.send(b"PING first\r\n");
    assert_eq!(wire::shown(&wire.reply()), "$5\\r\\nfirst\\r\\n");
    wire.send(b"INCR n\r\n");
    until_undurable(engine);
    wire.send(b"PING second\r\nINCR n\r\n");
    wire.send(b"GET elsewhere\r\nINCR n\r\nPING third\r\n");
    let (answer, thread) = reply_of(wire);
    assert!(answer.recv_timeout(A_WHILE).is_err());
    // Answers that are durable by now may be sent; the rest follows.
    let is_over = Arc::new(AtomicBool::new(false));
    let maker = std::thread::spawn({
        let (engine, is_over) = (engine.clone(), is_over.clone());
        move || {
            while !is_over.load(Ordering::Relaxed) {
                engine.make_durable();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    assert_eq!(answer.recv().unwrap(), ":1\\r\\n");
    let mut wire = thread.join().unwrap();
    let expected =
        ["$6\\r\\nsecond\\r\\n", ":2\\r\\n", "$-1\\r\\n", ":3\\r\\n", "$5\\r\\nthird\\r\\n"];
    for expected in expected {
        assert_eq!(wire::shown(&wire.reply()), expected);
    }
    is_over.store(true, Ordering::Relaxed);
    maker.join().unwrap();
}

#[test]
fn transactions_and_batches_wait_as_well() {
    for request in [
        &b"MSET a 1 b 2\r\n"[..],
        b"MULTI\r\nSET a 1\r\nSET b 2\r\nEXEC\r\n",
        b"MSETNX a 1 b 2\r\n",
    ] {
        let started = start();
        let (engine, server) = (&started.engine, &started.server);
        let mut wire = server.connect();
        wire.send(request);
        until_undurable(engine);
        let survivors = engine.after_power_cut();
        assert_eq!(survivors.len().unwrap(), 0);
        let mut monitor = server.connect();
        assert_eq!(monitor.say("PING"), "+PONG\\r\\n");
        engine.make_durable();
        let answer = wire::shown(&wire.reply());
        assert!(answer.starts_with("+OK") || answer.starts_with(":1"), "{answer}");
        assert_eq!(engine.after_power_cut().len().unwrap(), 2);
    }
}

/// The store that it finds empty was emptied by a write that a power cut may take back.
#[test]
fn a_transaction_that_clears_what_is_empty_waits_as_well() {
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    // It is emptied record by record, as a node of a cluster is.
    engine.set_settling(true);
    let put = engine.put(b"k", b"v", &WriteOptions::default());
    assert!(put.expect("put").is_written());
    let mut deleter = server.connect();
    deleter.send(b"DEL k\r\n");
    until_undurable(engine);
    let mut other = server.connect();
    assert_eq!(other.say("MULTI"), "+OK\\r\\n");
    assert_eq!(other.say("FLUSHALL"), "+QUEUED\\r\\n");
    other.send(b"EXEC\r\n");
    let (answer, thread) = reply_of(other);
    assert!(answer.recv_timeout(A_WHILE).is_err(), "told while the record may come back");
    engine.make_durable();
    assert_eq!(answer.recv().unwrap(), "*1\\r\\n+OK\\r\\n");
    thread.join().unwrap();
}

#[test]
fn a_medium_that_fails_is_no_ok() {
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut wire = server.connect();
    wire.send(b"SET k v\r\nPING\r\n");
    until_undurable(engine);
    engine.break_medium("the disk is gone");
    let rest = wire::shown(&wire.rest());
    assert!(rest.starts_with("-MISCONF sync of the medium failed"), "{rest}");
    assert!(!rest.contains("OK") && !rest.contains("PONG"), "{rest}");
    // Later writes are refused, but the server still answers.
    let mut later = server.connect();
    assert_eq!(later.say("PING"), "+PONG\\r\\n");
    let answer = later.say("SET k w");
    assert!(answer.starts_with("-MISCONF"), "{answer}");
}

#[test]
fn relaxed_answers_do_not_wait() {
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let config = Config { durability: Durability::RELAXED, power_safe: true, ..config() };
    let server = Running::start(config, engine.clone());
    let mut wire = server.connect();
    assert_eq!(wire.say("SET k v"), "+OK\\r\\n");
    assert!(engine.has_undurable());
    // But a client that asks whether its writes are safe is told so only when they are.
    assert_eq!(wire.say("WAITAOF 1 0 0"), "*2\\r\\n:1\\r\\n:0\\r\\n");
    assert_eq!(engine.after_power_cut().get(b"k").unwrap(), Some(b"v".to_vec()));
}

/// A sync takes as long as the medium does: only who asks for it waits.
#[test]
fn who_asks_for_a_sync_does_not_stop_its_loop() {
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let config =
        Config { durability: Durability::RELAXED, power_safe: true, threads: 1, ..config() };
    let server = Running::start(config, engine.clone());
    let (mut asker, mut other) = (server.connect(), server.connect());
    for (command, answer) in [("WAITAOF 1 0 0", "*2\\r\\n:1\\r\\n:0\\r\\n"), ("SAVE", "+OK\\r\\n")]
    {
        assert_eq!(other.say("SET k v"), "+OK\\r\\n");
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel::<()>();
        engine.at_next_sync(move |_| {
            begun.send(()).expect("the test waits");
            // It goes on, or has failed.
            goes_on.recv().ok();
        });
        asker.send(format!("{command}\r\nPING\r\n").as_bytes());
        begins.recv().unwrap();
        // The first sync began before this write, so that the second asker needs another one.
        assert_eq!(other.say("SET later v"), "+OK\\r\\n");
        let mut late = server.connect();
        late.send(b"WAITAOF 1 0 0\r\n");
        assert_eq!(other.say("PING"), "+PONG\\r\\n");
        assert_eq!(other.say("DEL none nothing"), ":0\\r\\n", "alone among the loops");
        go_on.send(()).unwrap();
        assert_eq!(wire::shown(&asker.reply()), answer);
        assert_eq!(wire::shown(&asker.reply()), "+PONG\\r\\n");
        assert_eq!(wire::shown(&late.reply()), "*2\\r\\n:1\\r\\n:0\\r\\n");
        assert_eq!(engine.after_power_cut().len().unwrap(), 2);
        assert_eq!(other.say("DEL k later"), ":2\\r\\n");
    }
    // A transaction cannot wait, so that it is told of what is durable without it.
    assert_eq!(asker.say("MULTI"), "+OK\\r\\n");
    assert_eq!(asker.say("WAITAOF 1 0 0"), "+QUEUED\\r\\n");
    assert_eq!(asker.say("EXEC"), "*1\\r\\n*2\\r\\n:0\\r\\n:0\\r\\n");
    assert_eq!(asker.say("SET k v"), "+OK\\r\\n");
    engine.break_medium("on purpose");
    for command in ["WAITAOF 1 0 0", "SAVE"] {
        let failed = asker.say(command);
        assert!(failed.starts_with("-MISCONF sync of the medium failed"), "{failed}");
    }
    let info = asker.say("INFO persistence");
    assert!(info.contains("rdb_last_bgsave_status:err"), "{info}");
    // Those of `SAVE`.
    assert!(info.contains("rdb_saves:2"), "{info}");
}

#[test]
fn waitaof_keeps_its_timeout_and_is_no_save() {
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let config = Config { durability: Durability::RELAXED, power_safe: true, ..config() };
    let server = Running::start(config, engine.clone());
    let mut wire = server.connect();
    assert_eq!(wire.say("SET k v"), "+OK\\r\\n");
    let (begun, begins) = channel();
    let (go_on, goes_on) = channel::<()>();
    engine.at_next_sync(move |_| {
        begun.send(()).expect("the test waits");
        // It goes on, or has failed.
        goes_on.recv().ok();
    });
    for command in ["WAITAOF 0 0 0", "WAITAOF 1 0 1"] {
        assert_eq!(wire.say(command), "*2\\r\\n:0\\r\\n:0\\r\\n", "{command}");
        assert!(engine.has_undurable());
    }
    begins.recv().unwrap();
    assert!(wire.say("INFO persistence").contains("rdb_bgsave_in_progress:0"));
    assert_eq!(wire.say("BGSAVE"), "+Background saving started\\r\\n");
    assert_eq!(wire.say("SAVE"), "+OK\\r\\n");
    go_on.send(()).unwrap();
    assert_eq!(wire.say("WAITAOF 1 0 60000"), "*2\\r\\n:1\\r\\n:0\\r\\n");
    assert!(wire.say("INFO persistence").contains("rdb_saves:2"));
}

#[test]
fn waitaof_and_lastsave_tell_the_truth_of_the_medium() {
    let unsafe_server = Running::start(config(), Arc::new(ModelEngine::new()));
    let mut wire = unsafe_server.connect();
    assert_eq!(wire.say("SET k v"), "+OK\\r\\n");
    assert_eq!(wire.say("WAITAOF 1 0 0"), "*2\\r\\n:0\\r\\n:0\\r\\n");
    assert!(wire.say("WAITAOF 2 0 0").starts_with("-ERR value is out of range"));
    assert!(wire.say("WAITAOF 1 -1 0").starts_with("-ERR value is out of range"));
    assert_eq!(wire.say("WAITAOF 1 0 -1"), "-ERR timeout is negative\\r\\n");
    assert!(wire.say("BGREWRITEAOF").starts_with("-ERR"));

    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut wire = server.connect();
    let before = wire.say("LASTSAVE");
    wire.send(b"SET k v\r\n");
    until_undurable(engine);
    let mut other = server.connect();
    assert_eq!(other.say("BGSAVE"), "+Background saving started\\r\\n");
    assert_eq!(wire::shown(&wire.reply()), "+OK\\r\\n");
    assert_eq!(engine.after_power_cut().len().unwrap(), 1);
    assert!(before.starts_with(":1"), "{before}");
    // Whether or not the other one has ended.
    assert_eq!(other.say("SAVE"), "+OK\\r\\n");
    assert!(other.say("INFO persistence").contains("rdb_bgsave_in_progress:0"));
}

#[test]
fn a_full_store_is_an_error_and_nothing_is_half_done() {
    let engine = Arc::new(ModelEngine::new().with_capacity(100));
    let server = Running::start(config(), engine);
    let mut wire = server.connect();
    assert_eq!(wire.say("SET a 1"), "+OK\\r\\n");
    let long = vec![b'x'; 200];
    let answer = wire::shown(&wire.ask(&[b"SET", b"b", &long]));
    assert!(answer.starts_with("-OOM no space"), "{answer}");
    let answer = wire::shown(&wire.ask(&[b"MSET", b"c", b"1", b"b", &long]));
    assert!(answer.starts_with("-OOM"), "{answer}");
    assert_eq!(wire.say("MULTI"), "+OK\\r\\n");
    assert_eq!(wire.say("SET c 1"), "+QUEUED\\r\\n");
    assert_eq!(wire::shown(&wire.ask(&[b"APPEND", b"a", &long])), "+QUEUED\\r\\n");
    let answer = wire.say("EXEC");
    assert!(answer.starts_with("-EXECABORT"), "{answer}");
    assert_eq!(wire.say("EXISTS a b c"), ":1\\r\\n");
    assert_eq!(wire.say("GET a"), "$1\\r\\n1\\r\\n");
}

/// A write without an answer rests on its turn, too. Its place is behind an answer that is still being sent, and that
/// may be sent completely before the write is durable.
#[test]
fn a_muted_write_behind_a_long_answer_is_held_at_its_place() {
    const VALUE: usize = 32 << 20;
    let started = start();
    let (engine, server) = (&started.engine, &started.server);
    let mut other = server.connect();
    other.send(&wire::command(&[b"SET", b"big", &vec![b'v'; VALUE]]));
    until_undurable(engine);
    engine.make_durable();
    assert_eq!(wire::shown(&other.reply()), "+OK\\r\\n");
    let pending = |other: &mut Wire| {
        let text = other.say("INFO");
        let (_, rest) = text.split_once("client_recent_max_output_buffer:").expect("a figure");
        rest.split("\\r").next().and_then(|it| it.parse::<u64>().ok()).expect("a number")
    };
    let mut slow = server.connect();
    slow.send(b"GET big\r\n");
    while pending(&mut other) == 0 {
        std::thread::yield_now();
    }
    slow.send(b"CLIENT REPLY SKIP\r\nSET k v\r\n");
    until_undurable(engine);
    std::thread::sleep(A_WHILE);
    assert_eq!(slow.reply().len(), VALUE + 13);
    while pending(&mut other) > 0 {
        std::thread::yield_now();
    }
    engine.make_durable();
    assert_eq!(slow.say("PING"), "+PONG\\r\\n");
    assert_eq!(other.say("GET k"), "$1\\r\\nv\\r\\n");
}

/// In a cluster a deletion of many keys is made in steps.
#[test]
fn a_deletion_that_fails_halfway_tells_of_no_key_that_may_come_back() {
    let limits = Limits { batch_len_max: 2, ..LIMITS };
    let engine = Arc::new(ModelEngine::with_manual_commit().bounded_by(limits));
    engine.set_settling(true);
    for key in ["a", "b", "c", "d"] {
        let put = engine.put(key.as_bytes(), b"v", &WriteOptions::default());
        put.expect("written").written().expect("written");
    }
    let server = Running::start(config(), engine.clone());
    let mut wire = server.connect();
    // The second step fails, and then the first one is never durable.
    engine.after_next_read(|engine| {
        engine.after_next_read(|engine| engine.break_medium("on purpose"));
    });
    let refused = wire.say("DEL a b c d");
    assert!(refused.starts_with('-') && !refused.contains("were deleted"), "{refused}");
}
