//! Commands about all records, over an engine most of whose places are empty, and in transactions that have changed
//! very many keys: each is quick, however many places or changes there are.

use crate::wire::{Running, Wire, config};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Engine, WriteOptions};
use std::sync::Arc;

/// The logarithm of the number of places.
const BITS: u32 = 14;

fn start(engine: &Arc<ModelEngine>) -> (Running, Wire) {
    let server = Running::start(config(), Arc::<ModelEngine>::clone(engine));
    let wire = server.connect();
    (server, wire)
}

/// Puts records through the engine.
fn fill(engine: &ModelEngine, count: usize) {
    for number in 0..count {
        let put = engine.put(format!("old:{number}").as_bytes(), b"v", &WriteOptions::default());
        assert!(put.expect("put").is_written());
    }
}

/// Sends `count` commands made by `command` as one transaction, and returns the answer of `EXEC`.
fn transact(wire: &mut Wire, count: usize, command: impl Fn(usize) -> String) -> String {
    assert_eq!(wire.say("MULTI"), "+OK\\r\\n");
    let all: String = (0..count).map(|at| command(at) + "\r\n").collect();
    wire.send(all.as_bytes());
    (0..count).for_each(|_| assert_eq!(wire.reply(), b"+QUEUED\r\n"));
    wire.say("EXEC")
}

#[test]
fn randomkey_draws_nothing_and_then_the_only_key() {
    let engine = Arc::new(ModelEngine::new().with_places(BITS));
    let (_server, mut wire) = start(&engine);
    assert_eq!(wire.say("RANDOMKEY"), "$-1\\r\\n");
    fill(&engine, 1);
    assert_eq!(wire.say("RANDOMKEY"), "$5\\r\\nold:0\\r\\n");
}

#[test]
fn scan_of_an_empty_store_ends_after_some_calls() {
    let engine = Arc::new(ModelEngine::new().with_places(BITS));
    let (_server, mut wire) = start(&engine);
    let (mut cursor, mut calls) = ("0".to_owned(), 0);
    loop {
        let answer = wire.say(&format!("SCAN {cursor} COUNT 10"));
        cursor = answer.split("\\r\\n").nth(2).expect("a cursor").to_owned();
        assert!(answer.ends_with("*0\\r\\n"), "{answer}");
        calls += 1;
        assert!(engine.places_looked_at() <= calls * 128);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(wire.say("KEYS *"), "*0\\r\\n");
}

/// The engine is asked once for each changed key.
#[test]
fn dbsize_in_a_transaction_looks_at_each_change_once() {
    const CHANGES: usize = 1000;
    let engine = Arc::new(ModelEngine::new());
    let (_server, mut wire) = start(&engine);
    fill(&engine, 10);
    let asked = || engine.stats().hits + engine.stats().misses;
    let before = asked();
    let answer = transact(&mut wire, 3 * CHANGES, |at| match at % 3 {
        0 => format!("SET old:{} v", at / 3),
        1 => format!("SET new:{} v", at / 300),
        _ => "DBSIZE".to_owned(),
    });
    assert!(asked() - before <= 2 * CHANGES as u64, "{} reads", asked() - before);
    let mut sizes = answer.split("\\r\\n").filter_map(|it| it.strip_prefix(':'));
    for change in 0..CHANGES {
        let size = 10.max(change + 1) + change / 100 + 1;
        assert_eq!(sizes.next(), Some(&*size.to_string()), "after change {change}");
    }
    assert_eq!(wire.say("DBSIZE"), ":1010\\r\\n");
    let answer = transact(&mut wire, 4, |at| {
        ["DEL old:0", "SET gone v PXAT 1", "DEL gone", "DBSIZE"][at].to_owned()
    });
    assert_eq!(answer, "*4\\r\\n:1\\r\\n+OK\\r\\n:0\\r\\n:1009\\r\\n");
}

/// Each answer has as many keys as it was asked for, and its cursor is good for the rest after the transaction.
#[test]
fn scan_in_a_transaction_answers_some_keys_at_a_time() {
    const CHANGES: usize = 1000;
    let (_server, mut wire) = start(&Arc::new(ModelEngine::new().with_places(4)));
    let answer = transact(&mut wire, 2 * CHANGES, |at| match at % 2 {
        0 => format!("SET key:{at} v"),
        _ => "SCAN 0 COUNT 1".to_owned(),
    });
    assert!(answer.len() < 200 * CHANGES, "{} bytes", answer.len());
    let last = answer.rsplit("*2\\r\\n").next().expect("an answer");
    let mut cursor = last.split("\\r\\n").nth(1).expect("a cursor").to_owned();
    assert_ne!(cursor, "0");
    let mut met = std::collections::BTreeSet::new();
    while cursor != "0" {
        let answer = wire.say(&format!("SCAN {cursor} COUNT 100"));
        let mut lines = answer.split("\\r\\n");
        cursor = lines.nth(2).expect("a cursor").to_owned();
        met.extend(lines.filter(|it| it.starts_with("key:")).map(str::to_owned));
    }
    assert_eq!(met.len(), CHANGES);
}
