//! Limits that protect the server and other clients from a client.

use crate::wire::{self, Running, Wire, command, config};
use coreplane_conformance::model::{LIMITS, ModelEngine};
use coreplane_engine::Limits;
use coreplane_server::{Config, OutputLimit};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn start(config: Config) -> Running {
    Running::start(config, Arc::new(ModelEngine::new()))
}

/// A number of `INFO`.
fn info(wire: &mut Wire, name: &str) -> u64 {
    let text = wire.say("INFO");
    let start = text.find(&format!("{name}:")).expect(name) + name.len() + 1;
    let digits = text[start..].split("\\r").next().unwrap();
    digits.parse().expect(name)
}

#[test]
fn one_client_too_many_is_told_so() {
    let server = start(Config { max_clients: 3, ..config() });
    let mut kept: Vec<Wire> = (0..3).map(|_| server.connect()).collect();
    for wire in &mut kept {
        assert_eq!(wire.say("PING"), "+PONG\\r\\n");
    }
    let mut refused = server.connect();
    assert_eq!(wire::shown(&refused.rest()), "-ERR max number of clients reached\\r\\n");
    // A place that becomes free can be taken.
    let mut gone = kept.pop().unwrap();
    assert_eq!(gone.say("QUIT"), "+OK\\r\\n");
    assert!(gone.is_closed());
    loop {
        let mut wire = server.connect();
        if wire.try_send(b"PING\r\n") && wire.reply().starts_with(b"+PONG") {
            break;
        }
    }
    assert!(info(&mut kept[0], "rejected_connections") >= 1);
    // The limit may be raised while the server runs.
    assert_eq!(kept[0].say("CONFIG SET maxclients 100"), "+OK\\r\\n");
    let mut more: Vec<Wire> = (0..10).map(|_| server.connect()).collect();
    assert!(more.iter_mut().all(|wire| wire.say("PING") == "+PONG\\r\\n"));
}

#[test]
fn idle_clients_are_dropped() {
    let server = start(Config { idle_timeout: Duration::from_secs(1), ..config() });
    let mut idle = server.connect();
    assert_eq!(idle.say("PING"), "+PONG\\r\\n");
    let mut busy = server.connect();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = Instant::now();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let asked = Instant::now();
                if busy.say("PING") != "+PONG\\r\\n" {
                    // After a stop of the machine it was idle, too.
                    assert!(last.elapsed() >= Duration::from_secs(1), "a busy client is dropped");
                    busy = server.connect();
                }
                last = asked;
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(idle.is_closed());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn who_does_not_read_is_not_read_from() {
    const COMMANDS: usize = 4_000;
    let server = start(Config { output_pause_bytes: 64 << 10, ..config() });
    let mut other = server.connect();
    let value = vec![b'v'; 10_000];
    assert_eq!(other.ask(&[b"SET", b"k", &value]), b"+OK\r\n");
    // The output is ten thousand times the input: far more than all buffers on the way.
    let request = command(&[b"GET", b"k"]).repeat(COMMANDS);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let address = server.address;
    let reader = std::thread::spawn(move || {
        let mut wire = Wire::tcp(address);
        wire.send(&request);
        receiver.recv().expect("the word to go on");
        for _ in 0..COMMANDS {
            assert_eq!(wire.reply().len(), 10_000 + 10);
        }
        wire
    });
    // Meanwhile others are served, and the output pending for the sleeper stays small.
    let mut largest = 0;
    for _ in 0..50 {
        largest = largest.max(info(&mut other, "client_recent_max_output_buffer"));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(largest < 64 << 10 | 32 << 10, "{largest}");
    sender.send(()).unwrap();
    let mut wire = reader.join().unwrap();
    assert_eq!(wire.say("PING"), "+PONG\\r\\n");
}

#[test]
fn who_asks_for_too_much_is_dropped() {
    let hard = OutputLimit { hard_bytes: 1 << 20, ..OutputLimit::default() };
    let soft = OutputLimit {
        soft_bytes: 1 << 20,
        soft_time: Duration::from_millis(50),
        ..OutputLimit::default()
    };
    for output_limit in [hard, soft] {
        let server = start(Config { output_limit, ..config() });
        let mut other = server.connect();
        let value = vec![b'v'; 2 << 20];
        assert_eq!(other.ask(&[b"SET", b"k", &value]), b"+OK\r\n");
        let mut greedy = server.connect();
        greedy.send(&command(&[b"GET", b"k"]).repeat(50));
        let dropped = "client_output_buffer_limit_disconnections";
        while info(&mut other, dropped) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(greedy.rest().len() < 50 * (2 << 20));
        assert_eq!(other.say("PING"), "+PONG\\r\\n");
    }
}

#[test]
fn a_command_that_never_ends_is_cut() {
    let server = start(Config { query_buffer_max: 1 << 20, ..config() });
    let mut wire = server.connect();
    wire.send(b"*1000000\r\n");
    let word = b"$1000\r\n".iter().chain(&[b'x'; 1000]).chain(b"\r\n");
    let word: Vec<u8> = word.copied().collect();
    for _ in 0..100_000 {
        if !wire.try_send(&word) {
            break;
        }
    }
    assert!(wire.is_closed());
    assert_eq!(server.connect().say("PING"), "+PONG\\r\\n");
}

#[test]
fn bulk_strings_have_a_limit_that_can_change() {
    let server = start(Config { bulk_len_max: 2 << 20, ..config() });
    let mut wire = server.connect();
    let largest = vec![b'x'; 2 << 20];
    assert_eq!(wire.ask(&[b"SET", b"k", &largest]), b"+OK\r\n");
    assert_eq!(wire.ask(&[b"GET", b"k"]).len(), (2 << 20) + 12);
    let answer = wire.say("APPEND k x");
    assert!(answer.starts_with("-ERR string exceeds maximum allowed size"), "{answer}");
    let mut other = server.connect();
    other.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2097153\r\n");
    assert_eq!(wire::shown(&other.rest()), "-ERR Protocol error: invalid bulk length\\r\\n");
    assert_eq!(wire.say("CONFIG SET proto-max-bulk-len 4mb"), "+OK\\r\\n");
    assert_eq!(wire.say("APPEND k x"), ":2097153\\r\\n");
}

#[test]
fn keys_and_values_over_the_limits_of_the_engine_are_errors() {
    let server = start(config());
    let mut wire = server.connect();
    let key = vec![b'k'; (64 << 10) + 1];
    for answer in [
        wire.ask(&[b"SET", &key, b"v"]),
        wire.ask(&[b"INCR", &key]),
        wire.ask(&[b"MSET", b"a", b"1", &key, b"v"]),
    ] {
        let answer = wire::shown(&answer);
        assert!(answer.starts_with("-ERR key of 65537 bytes is over the limit"), "{answer}");
    }
    assert_eq!(wire.say("DBSIZE"), ":0\\r\\n");
}

/// Twice, to none of them before, and the second time in steps, as a node of a cluster does.
#[test]
fn many_or_long_keys_are_deleted_whatever_a_batch_may_hold() {
    for (limits, refusal) in [
        (Limits { batch_len_max: 10, ..LIMITS }, "batch of 25 changes is over the limit"),
        (Limits { batch_bytes_max: 50, ..LIMITS }, "batch of 325 bytes of keys and values is over"),
    ] {
        let engine = Arc::new(ModelEngine::new().bounded_by(limits));
        let server = Running::start(config(), Arc::<ModelEngine>::clone(&engine));
        let mut wire = server.connect();
        let keys: Vec<String> = (0..25).map(|key| format!("key:{key:08}")).collect();
        let pairs: Vec<String> = keys.iter().map(|key| format!("{key} w")).collect();
        let all = keys.join(" ");
        for is_settling in [false, true] {
            engine.set_settling(is_settling);
            for key in &keys {
                wire.say(&format!("SET {key} v"));
            }
            let refused = wire.say(&format!("MSET {}", pairs.join(" ")));
            assert!(refused.starts_with(&format!("-ERR {refusal}")), "{refused}");
            assert_eq!(wire.say(&format!("GET {}", keys[0])), "$1\\r\\nv\\r\\n");
            let first = &keys[0];
            let deleted = wire.say(&format!("UNLINK {first} {first} none {all} {all}"));
            assert_eq!(deleted, ":25\\r\\n", "in steps: {is_settling}");
            assert_eq!(wire.say("DBSIZE"), ":0\\r\\n");
        }
    }
}

/// The limit holds even without the earlier records.
#[test]
fn a_transaction_that_clears_more_than_a_batch_may_hold_removes_nothing() {
    let engine = ModelEngine::new().bounded_by(Limits { batch_bytes_max: 50, ..LIMITS });
    let server = Running::start(config(), Arc::new(engine));
    let mut wire = server.connect();
    for key in 0..25 {
        wire.say(&format!("SET key:{key:08} v"));
    }
    for words in ["MULTI", "FLUSHALL", "SET x 1"] {
        wire.say(words);
    }
    let refused = wire.say("EXEC");
    let what = "-EXECABORT Transaction discarded because of: ERR batch of 300 bytes";
    assert!(refused.starts_with(what), "{refused}");
    assert!(refused.contains("nothing was removed: send FLUSHALL alone"), "{refused}");
    assert_eq!(wire.say("DBSIZE"), ":25\\r\\n");
}

/// Only the writes that remain at the end of an `EXEC` count: the last change of each key.
#[test]
fn a_transaction_of_more_keys_than_a_batch_may_hold_writes_nothing() {
    let engine = ModelEngine::new().bounded_by(Limits { batch_len_max: 10, ..LIMITS });
    let server = Running::start(config(), Arc::new(engine));
    let mut wire = server.connect();
    let mut exec = |keys: u32| {
        assert_eq!(wire.say("MULTI"), "+OK\\r\\n");
        for number in 0..40 {
            assert_eq!(wire.say(&format!("SET k{} {number}", number % keys)), "+QUEUED\\r\\n");
        }
        let answer = wire.say("EXEC");
        (answer, wire.say("DBSIZE"), wire.say("GET k9"))
    };
    let (refused, len, _) = exec(11);
    let what =
        "-EXECABORT Transaction discarded because of: ERR batch of 11 changes is over the limit";
    assert!(refused.starts_with(what), "{refused}");
    assert_eq!(len, ":0\\r\\n");
    let (answer, len, last) = exec(10);
    assert_eq!(answer, format!("*40\\r\\n{}", "+OK\\r\\n".repeat(40)));
    assert_eq!((len.as_str(), last.as_str()), (":10\\r\\n", "$2\\r\\n39\\r\\n"));
}

/// Such a value is refused before it is made, whatever `proto-max-bulk-len` is.
#[test]
fn a_value_is_not_made_if_the_engine_would_refuse_it() {
    let engine = ModelEngine::new().bounded_by(Limits { value_len_max: 1000, ..LIMITS });
    let server = Running::start(config(), Arc::new(engine));
    let mut wire = server.connect();
    assert_eq!(wire.say("CONFIG SET proto-max-bulk-len 1099511627776"), "+OK\\r\\n");
    assert_eq!(wire.say("SETRANGE k 990 0123456789"), ":1000\\r\\n");
    for command in ["SETRANGE k 1000 x", "APPEND k x", "SETRANGE k 1000000000000 x"] {
        let refused = wire.say(command);
        assert!(refused.starts_with("-ERR string exceeds maximum allowed size"), "{refused}");
    }
    assert_eq!(wire.say("STRLEN k"), ":1000\\r\\n");
}

/// A command that names what the server has few of.
#[test]
fn the_same_name_over_and_over_is_no_long_answer() {
    let server = start(config());
    let mut wire = server.connect();
    let client = ["client"; 5_000].join(" ");
    for command in ["COMMAND DOCS", "COMMAND INFO", "CONFIG GET", "INFO"] {
        let refused = wire.say(&format!("{command} {client}"));
        assert!(refused.starts_with("-ERR too many names"), "{command}");
    }
    assert!(wire.say("COMMAND INFO get get").starts_with("*2\\r\\n*10\\r\\n"));
    // As long as its match with long keys takes time.
    let pattern = "*a".repeat(1000);
    for command in ["KEYS", "SCAN 0 MATCH", "CONFIG GET", "COMMAND LIST FILTERBY PATTERN"] {
        assert!(wire.say(&format!("{command} {pattern}")).starts_with("-ERR pattern"), "{command}");
    }
}

/// As what `MULTI` keeps.
#[test]
fn a_client_that_watches_without_end_is_cut() {
    let server = start(Config { query_buffer_max: 1 << 20, ..config() });
    let mut wire = server.connect();
    let key = |number: usize| format!("{number:0>10000}");
    let watched = (0..200).take_while(|at| wire.say(&format!("WATCH {}", key(*at))) == "+OK\\r\\n");
    let watched = watched.count();
    assert!((50..110).contains(&watched), "{watched} keys are watched");
    let mut other = server.connect();
    for round in 0..3 {
        let mut watched = (0..40).map(|at| other.say(&format!("WATCH {}", key(40 * round + at))));
        assert!(watched.all(|answer| answer == "+OK\\r\\n"));
        assert_eq!(other.say("UNWATCH"), "+OK\\r\\n");
    }
}

/// What `MULTI` keeps for `EXEC` is bounded as the input of a client is.
#[test]
fn a_transaction_that_never_ends_is_cut() {
    let server = start(Config { query_buffer_max: 1 << 20, ..config() });
    let mut wire = server.connect();
    assert_eq!(wire.say("MULTI"), "+OK\\r\\n");
    let value = vec![b'v'; 100_000];
    let set = command(&[b"SET", b"k", &value]);
    let sent = (0..100).take_while(|_| wire.try_send(&set)).count();
    let queued = wire.rest().len() / b"+QUEUED\r\n".len();
    assert!(queued <= 11, "{queued} of {sent} commands were kept");
    assert_eq!(server.connect().say("GET k"), "$-1\\r\\n");
}

/// The answers to a client without the password wait in its own machine.
#[test]
fn strangers_get_little_memory_for_answers() {
    let server = start(config());
    let mut other = server.connect();
    assert_eq!(other.say("CONFIG SET requirepass secret"), "+OK\\r\\n");
    let mut stranger = Wire::tcp(server.address);
    let sender = std::thread::spawn(move || {
        stranger.try_send(&b"x\r\n".repeat(1_000_000));
        stranger
    });
    let mut largest = 0;
    let mut look = |other: &mut Wire| {
        std::thread::sleep(Duration::from_millis(2));
        largest = largest.max(info(other, "client_recent_max_output_buffer"));
        largest
    };
    // It is answered until the bound.
    assert!((0..5000).any(|_| look(&mut other) >= 16 << 10), "the stranger is not answered");
    let largest = (0..50).map(|_| look(&mut other)).max();
    assert!(largest.is_some_and(|it| it < 64 << 10), "{largest:?}");
    drop(server);
    drop(sender.join());
}

/// A client that receives its answer slowly is not idle.
#[test]
fn who_receives_an_answer_is_not_idle() {
    const VALUE: usize = 48 << 20;
    let idle_timeout = Duration::from_secs(2);
    let server = start(Config { idle_timeout, ..config() });
    let mut wire = server.connect();
    assert_eq!(wire.ask(&[b"SET", b"k", &vec![b'v'; VALUE]]), b"+OK\r\n");
    wire.send(b"GET k\r\n");
    let (mut left, mut longest) = (VALUE + 13, Duration::ZERO);
    while left > 0 {
        let (part, since) = ((4 << 20).min(left), Instant::now());
        std::thread::sleep(Duration::from_millis(300));
        if !wire.part(part) {
            // After a stop of the machine it was idle.
            assert!(longest.max(since.elapsed()) >= idle_timeout / 2, "dropped: {left} to come");
            return;
        }
        longest = longest.max(since.elapsed());
        left -= part;
    }
}
