//! Long commands let others run meanwhile, and their answers are the same as before.

use crate::wire;
use crate::wire::many::{
    KEYS, fill, info, key, of_keys, one_loop, slices, start, strings, until_begun,
};
use crate::wire::{Running, config, shown};
use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_engine::{Engine, UnixMillis};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn others_are_answered_between_the_slices_of_keys() {
    let server = start(one_loop(), KEYS, 1);
    let mut other = server.connect();
    let listers: Vec<_> = (0..2)
        .map(|_| {
            let mut wire = server.connect();
            std::thread::spawn(move || wire.ask(&[b"KEYS", b"*"]))
        })
        .collect();
    let mut met = BTreeSet::new();
    let is_over =
        |listers: &Vec<std::thread::JoinHandle<_>>| listers.iter().all(|it| it.is_finished());
    while !is_over(&listers) {
        assert_eq!(other.say("GET key:00000007"), "$1\\r\\nv\\r\\n");
        met.insert(slices(&mut other));
    }
    for lister in listers {
        let keys: BTreeSet<_> = strings(&lister.join().expect("a reply")).into_iter().collect();
        assert_eq!(keys.len(), KEYS);
        assert_eq!(keys.first().unwrap(), key(0).as_bytes());
    }
    // Each number except the first and the last was read between two slices.
    met.remove(&0);
    met.remove(&slices(&mut other));
    assert!(met.len() >= 10, "{met:?}");
}

#[test]
fn what_follows_a_long_command_waits_for_its_answer() {
    let server = start(one_loop(), KEYS, 1);
    let mut wire = server.connect();
    let mut pipeline = b"SET k 1\r\nKEYS key:000*\r\nECHO a\r\n".to_vec();
    pipeline.extend(of_keys("MGET", 0..20_000));
    pipeline.extend(b"*2\r\n$4\r\nECHO\r\n$1\r\nb\r\n");
    pipeline.extend(of_keys("EXISTS", (0..20_000).chain(KEYS..KEYS + 7).chain(0..3)));
    pipeline.extend(b"DEL key:00000000\r\nSCAN 0 COUNT 1000000\r\nKEYS absent*\r\nGET k\r\n");
    wire.send(&pipeline);
    assert_eq!(shown(&wire.reply()), "+OK\\r\\n");
    assert_eq!(strings(&wire.reply()).len(), 100_000);
    assert_eq!(shown(&wire.reply()), "$1\\r\\na\\r\\n");
    let values = strings(&wire.reply());
    assert!(values.len() == 20_000 && values.iter().all(|value| value == b"v"));
    assert_eq!(shown(&wire.reply()), "$1\\r\\nb\\r\\n");
    assert_eq!(shown(&wire.reply()), ":20003\\r\\n");
    assert_eq!(shown(&wire.reply()), ":1\\r\\n");
    let scanned = wire.reply();
    let rest = scanned.strip_prefix(b"*2\r\n$1\r\n0\r\n").expect("all at once");
    assert_eq!(strings(rest).len(), KEYS);
    assert_eq!(shown(&wire.reply()), "*0\\r\\n");
    assert_eq!(shown(&wire.reply()), "$1\\r\\n1\\r\\n");
    assert!(slices(&mut wire) > 5);
    // It counts as one command, however many slices it took.
    let statistics = wire.say("INFO commandstats");
    assert!(statistics.contains("cmdstat_keys:calls=2,"), "{statistics}");
    assert!(statistics.contains("cmdstat_mget:calls=1,"), "{statistics}");
}

#[test]
fn a_transaction_is_one_step() {
    let server = start(one_loop(), 50_000, 1);
    let mut wire = server.connect();
    let mut pipeline = b"MULTI\r\nKEYS *\r\nSET key:00000000 w\r\n".to_vec();
    pipeline.extend(of_keys("MGET", 0..20_000));
    pipeline.extend(b"EXEC\r\nPING\r\n");
    wire.send(&pipeline);
    for expected in ["+OK", "+QUEUED", "+QUEUED", "+QUEUED"] {
        assert_eq!(shown(&wire.reply()), format!("{expected}\\r\\n"));
    }
    let reply = wire.reply();
    assert!(reply.starts_with(b"*3\r\n*50000\r\n"));
    let values = reply.windows(8).position(|eight| eight == b"*20000\r\n").expect("the values");
    let values = strings(&reply[values..]);
    assert!(values[0] == b"w" && values[1..].iter().all(|value| value == b"v"));
    assert_eq!(shown(&wire.reply()), "+PONG\\r\\n");
    assert_eq!(slices(&mut wire), 0);
}

#[test]
fn a_client_that_goes_takes_its_long_command_with_it() {
    let server = start(one_loop(), KEYS, 1);
    let mut other = server.connect();
    for request in [b"KEYS *\r\n".to_vec(), of_keys("MGET", 0..KEYS)] {
        let mut lister = server.connect();
        let before = slices(&mut other);
        lister.send(&request);
        while slices(&mut other) < before + 2 {}
        drop(lister);
        while info(&mut other, "connected_clients") > 1 {}
        let left = slices(&mut other);
        assert_eq!(other.say("SET a b"), "+OK\\r\\n");
        assert_eq!(slices(&mut other), left, "somebody goes on");
    }
}

#[test]
fn a_server_ends_in_the_middle_of_a_long_command() {
    let server = start(one_loop(), KEYS, 1);
    let mut lister = server.connect();
    lister.send(b"KEYS *\r\n");
    let mut other = server.connect();
    until_begun(&mut other);
    other.send(b"SHUTDOWN NOSAVE\r\n");
    assert!(other.is_closed());
    let _part_of_the_answer = lister.rest();
    server.wait().expect("a good end");
}

#[test]
fn a_client_that_wants_no_answers_gets_none() {
    let server = start(one_loop(), KEYS, 1);
    let mut wire = server.connect();
    let mut pipeline = b"CLIENT REPLY OFF\r\nKEYS *\r\n".to_vec();
    pipeline.extend(of_keys("MGET", 0..20_000));
    pipeline.extend(b"CLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nKEYS *\r\nPING\r\n");
    wire.send(&pipeline);
    assert_eq!(shown(&wire.reply()), "+OK\\r\\n");
    assert_eq!(shown(&wire.reply()), "+PONG\\r\\n");
}

#[test]
fn what_is_there_all_the_while_is_listed_once() {
    let server = start(config(), 100_000, 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = wire::End(&is_over);
        for writer in 0..2 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut wire = server.connect();
                for round in (0..100).cycle() {
                    wire.say(&format!("SET other:{writer}:{round} v"));
                    wire.say(&format!("DEL other:{writer}:{}", (round + 50) % 100));
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut wire = server.connect();
        for _ in 0..5 {
            let listed = strings(&wire.ask(&[b"KEYS", b"*"]));
            let keys: BTreeSet<_> = listed.iter().collect();
            assert_eq!(keys.len(), listed.len(), "a key twice");
            assert_eq!(keys.iter().filter(|key| key.starts_with(b"key:")).count(), 100_000);
        }
        assert!(slices(&mut wire) > 5);
    });
}

#[test]
fn flushall_beside_keys() {
    let server = start(one_loop(), KEYS, 1);
    let mut lister = server.connect();
    lister.send(b"KEYS *\r\nDBSIZE\r\n");
    let mut other = server.connect();
    until_begun(&mut other);
    assert_eq!(other.say("FLUSHALL"), "+OK\\r\\n");
    assert_eq!(other.say("DBSIZE"), ":0\\r\\n");
    let listed = strings(&lister.reply());
    let keys: BTreeSet<_> = listed.iter().collect();
    assert!(keys.len() == listed.len() && listed.len() < KEYS, "{}", listed.len());
    assert_eq!(shown(&lister.reply()), ":0\\r\\n");
    // A read of many keys shows all of them, or none.
    lister.send(&of_keys("EXISTS", 0..20_000));
    assert_eq!(shown(&lister.reply()), ":0\\r\\n");
}

/// One writer sets the first key, then the last one, to the next number. At any moment the first key equals the last,
/// or is one more.
#[test]
fn many_keys_are_read_as_of_one_moment() {
    const READ: usize = 20_000;
    const SEVERAL: usize = 1_000;
    let server = start(config(), READ, 1);
    let mut wire = server.connect();
    let first = |number: u32| format!("SET {} {number}", key(0));
    let last = |number: u32| format!("SET {} {number}", key(READ - 1));
    wire.say(&first(0));
    wire.say(&last(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, is_over) = (&server, &is_over);
        let _end = wire::End(is_over);
        scope.spawn(move || {
            let mut wire = server.connect();
            for number in 1.. {
                assert_eq!(wire.say(&first(number)), "+OK\\r\\n");
                assert_eq!(wire.say(&last(number)), "+OK\\r\\n");
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        scope.spawn(move || {
            let mut wire = server.connect();
            // Keys between them are removed and come back.
            while !is_over.load(Ordering::Relaxed) {
                wire.send(b"MULTI\r\nDEL key:00000100\r\nSET moved v\r\nEXEC\r\n");
                wire.send(b"MULTI\r\nRENAME moved key:00000100\r\nEXEC\r\n");
                (0..7).for_each(|_| drop(wire.reply()));
            }
        });
        scope.spawn(move || {
            let mut wire = server.connect();
            // More keys than the last slice reads, all or none of them.
            for number in 0_u32.. {
                let number = number.to_string();
                let keys: Vec<String> = (SEVERAL..2 * SEVERAL).map(key).collect();
                let pairs = keys.iter().flat_map(|key| [key.as_bytes(), number.as_bytes()]);
                let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(pairs).collect();
                assert_eq!(wire.ask(&words), b"+OK\r\n");
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut other = server.connect();
        let mut numbers = BTreeSet::new();
        let since = Instant::now();
        let mut rounds = 0;
        while rounds < 40 || numbers.len() <= 10 && since.elapsed() < Duration::from_secs(60) {
            rounds += 1;
            other.send(&of_keys("MGET", 0..READ));
            let values = strings(&other.reply());
            let number = |at: usize| -> i64 {
                String::from_utf8_lossy(&values[at]).parse().expect("a number")
            };
            let ahead = number(0) - number(READ - 1);
            assert!(ahead == 0 || ahead == 1, "{ahead}");
            let several: BTreeSet<_> = values[SEVERAL..2 * SEVERAL].iter().collect();
            assert_eq!(several.len(), 1, "half an MSET");
            numbers.insert(number(0));
        }
        assert!(slices(&mut other) > 40 && numbers.len() > 10);
    });
}

#[test]
fn keys_that_expire_while_others_are_read_are_absent() {
    let clock = ManualClock::starting_at(UnixMillis(1_000));
    let engine = Arc::new(ModelEngine::with_clock(clock.as_clock()));
    fill(&engine, KEYS, 1);
    let server = Running::start(one_loop(), Arc::<ModelEngine>::clone(&engine));
    let mut reader = server.connect();
    for number in 0..100 {
        assert_eq!(reader.say(&format!("PEXPIREAT {} 5000", key(number))), ":1\\r\\n");
    }
    reader.send(&of_keys("MGET", 0..KEYS));
    // The first keys are read, the last ones not yet.
    until_begun(&mut server.connect());
    clock.advance(4_000);
    let values = strings(&reader.reply());
    assert!(values[..100].iter().all(Vec::is_empty), "shown although they have expired");
    assert!(values.len() == KEYS && values[100..].iter().all(|value| value == b"v"));
    // A record whose absence was shown is gone for good: the engine has expired it.
    assert_eq!(engine.stats().expired, 100);
}

/// A call of `SCAN` reads as many records as it is asked to, expired ones included.
#[test]
fn a_scan_passes_by_what_has_expired_step_by_step() {
    let clock = ManualClock::starting_at(UnixMillis(1_000));
    let engine = Arc::new(ModelEngine::with_clock(clock.as_clock()));
    fill(&engine, 1_001, 1);
    let server = Running::start(one_loop(), Arc::<ModelEngine>::clone(&engine));
    let mut wire = server.connect();
    for number in 0..1_000 {
        assert_eq!(wire.say(&format!("PEXPIREAT {} 5000", key(number))), ":1\\r\\n");
    }
    clock.advance(9_000);
    let (mut calls, mut cursor, mut shown) = (0, "0".to_owned(), 0);
    loop {
        let answer = wire.say(&format!("SCAN {cursor} COUNT 10"));
        let mut words = answer.split("\\r\\n").skip(2);
        cursor = words.next().expect("a cursor").to_owned();
        shown += words.next().expect("an array")[1..].parse::<usize>().expect("a count");
        calls += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(shown, 1);
    assert!((50..=200).contains(&calls), "{calls} calls");
}

/// An engine that is busy at every second step does not keep a long command from completing.
#[test]
fn a_long_command_goes_on_where_it_was_when_the_engine_was_busy() {
    const MANY: usize = 20_000;
    let engine = Arc::new(ModelEngine::new());
    fill(&engine, MANY, 1);
    let server = Running::start(one_loop(), Arc::<ModelEngine>::clone(&engine));
    engine.set_busy(true);
    let mut wire = server.connect();
    wire.send(b"KEYS *\r\n");
    let keys = strings(&wire.reply());
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), MANY);
    wire.send(&of_keys("MGET", 0..MANY));
    assert!(strings(&wire.reply()).iter().all(|value| value == b"v"));
    wire.send(format!("SCAN 0 COUNT {MANY}\r\n").as_bytes());
    let scanned = wire.reply();
    assert!(scanned.starts_with(b"*2\r\n$1\r\n0\r\n"));
    let scanned = strings(&scanned[b"*2\r\n$1\r\n0\r\n".len()..]);
    assert_eq!(scanned.len(), MANY);
    assert_eq!(scanned.iter().collect::<BTreeSet<_>>(), keys.iter().collect::<BTreeSet<_>>());
    wire.send(b"RANGE - + LIMIT 1024\r\n");
    let ranged = wire.reply();
    let head = b"*2\r\n$13\r\n(key:00001023\r\n";
    assert!(ranged.starts_with(head));
    let ranged = strings(&ranged[head.len()..]);
    assert!(ranged.iter().enumerate().all(|(at, shown)| *shown == key(at).into_bytes()));
    assert_eq!(ranged.len(), 1024);
}

/// A transaction is never continued in a later turn: if the engine is busy, it is discarded, and nothing of it is
/// kept.
#[test]
fn a_transaction_that_meets_a_busy_engine_is_discarded_as_a_whole() {
    let engine = Arc::new(ModelEngine::new());
    fill(&engine, 100, 1);
    let server = Running::start(config(), Arc::<ModelEngine>::clone(&engine));
    engine.set_busy(true);
    let mut wire = server.connect();
    let (mut aborted, mut made) = (0, "$-1\\r\\n".to_owned());
    for command in ["KEYS *", "MGET key:00000001 key:00000002", "SCAN 0"] {
        for round in 0..3 {
            wire.say("MULTI");
            wire.say(&format!("SET new {round}"));
            for command in [command, "KEYS key:0000001*", "EXISTS key:00000001 key:00000002"] {
                assert_eq!(wire.say(command), "+QUEUED\\r\\n");
            }
            match wire.say("EXEC").starts_with("-EXECABORT") {
                true => aborted += 1,
                false => made = format!("$1\\r\\n{round}\\r\\n"),
            }
            assert_eq!(wire.say("GET new"), made, "{command}");
        }
    }
    assert!(aborted > 2, "{aborted}");
    engine.set_busy(false);
    assert_eq!(strings(&wire.ask(&[b"KEYS", b"key:0000009*"])).len(), 10);
}

/// A monitoring client gets no line within an unfinished answer of which it has received a part.
#[test]
fn an_answer_that_is_half_there_has_no_line_of_a_monitor_in_it() {
    let server = start(one_loop(), 5_000, 10_000);
    let mut other = server.connect();
    let mut slow = server.connect();
    assert_eq!(slow.say("MONITOR"), "+OK\\r\\n");
    slow.send(&of_keys("MGET", 0..5_000));
    let mut last = 0;
    loop {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = slices(&mut other);
        if now == last && now > 0 {
            break;
        }
        last = now;
    }
    assert_eq!(other.say("SET beside 1"), "+OK\\r\\n");
    let mut lines = Vec::new();
    let answer = loop {
        let reply = slow.reply();
        if !reply.starts_with(b"+") {
            break reply;
        }
        lines.push(shown(&reply));
    };
    assert_eq!(strings(&answer).len(), 5_000);
    assert!(!lines.iter().any(|line| line.contains("beside")), "{lines:?}");
    while !shown(&slow.reply()).contains("\"SET\" \"beside\" \"1\"") {}
}

/// The sizes of neighbouring values do not matter.
#[test]
fn large_values_are_read_among_small_ones() {
    let server = start(one_loop(), 300, 10);
    let mut wire = server.connect();
    for number in (0..300).step_by(7) {
        let value = vec![b'l'; 200_000 + number];
        assert_eq!(wire.ask(&[b"SET", key(number).as_bytes(), &value]), b"+OK\r\n");
    }
    for _ in 0..3 {
        wire.send(&of_keys("MGET", (0..300).chain(0..10).chain(300..303)));
        let values = strings(&wire.reply());
        let lens: Vec<usize> = values.iter().map(Vec::len).collect();
        let len = |number: usize| match number {
            300.. => 0,
            number if number.is_multiple_of(7) => 200_000 + number,
            _ => 10,
        };
        let expected: Vec<usize> = (0..300).chain(0..10).chain(300..303).map(len).collect();
        assert_eq!(lens, expected);
    }
    assert!(slices(&mut wire) > 0);
    wire.send(&of_keys("MGET", 1..4));
    assert_eq!(strings(&wire.reply()), vec![b"vvvvvvvvvv".to_vec(); 3]);
}

#[test]
fn a_long_command_ends_although_others_begin_in_every_turn() {
    let server = start(one_loop(), 10_000, 1);
    let is_over = AtomicBool::new(false);
    let mut transaction = b"MULTI\r\n".to_vec();
    (0..4).for_each(|_| transaction.extend(of_keys("MGET", 0..400)));
    transaction.extend(b"EXEC\r\n");
    std::thread::scope(|scope| {
        let _end = wire::End(&is_over);
        for _ in 0..3 {
            let mut wire = server.connect();
            let (transaction, is_over) = (&transaction, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    wire.send(&transaction.repeat(8));
                    (0..8 * 6).for_each(|_| drop(wire.reply()));
                }
            });
        }
        let mut wire = server.connect();
        for _ in 0..3 {
            assert_eq!(strings(&wire.ask(&[b"KEYS", b"*"])).len(), 10_000);
        }
    });
}
