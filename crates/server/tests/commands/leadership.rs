//! Commands that read and then write several keys, while the node loses its leadership and another one writes: they
//! read again what they have read before.

use crate::wire::{Running, Wire, config};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Engine, WriteOptions};
use std::sync::Arc;

fn start() -> (Arc<ModelEngine>, Running, Wire) {
    let engine = Arc::new(ModelEngine::new());
    let server = Running::start(config(), engine.clone());
    let wire = server.connect();
    (engine, server, wire)
}

/// Between the first read of the next command and what follows, another node leads for a while and writes `value` to
/// these keys.
fn others_write(engine: &ModelEngine, keys: &'static [&str], value: &'static str) {
    engine.after_next_read(move |engine| {
        for key in keys {
            let put = engine.put(key.as_bytes(), value.as_bytes(), &WriteOptions::default());
            put.expect("written").written().expect("written");
        }
        engine.end_leadership();
    });
}

#[test]
fn a_copy_or_a_renamed_key_has_the_value_that_others_wrote() {
    let (engine, _server, mut wire) = start();
    for (line, answer) in [
        ("RENAME k l", "+OK"),
        ("RENAMENX k m", ":1"),
        ("COPY k n", ":1"),
        ("COPY k n REPLACE", ":1"),
    ] {
        assert_eq!(wire.say("SET k old"), "+OK\\r\\n");
        others_write(&engine, &["k"], "new");
        assert_eq!(wire.say(line), format!("{answer}\\r\\n"), "{line}");
        let to = line.split(' ').nth(2).expect("a key");
        assert_eq!(wire.say(&format!("GET {to}")), "$3\\r\\nnew\\r\\n", "{line}");
    }
}

#[test]
fn what_others_made_meanwhile_is_there() {
    let (engine, _server, mut wire) = start();
    others_write(&engine, &["a"], "new");
    assert_eq!(wire.say("MSETNX a 1 b 1"), ":0\\r\\n");
    assert_eq!(wire.say("MGET a b"), "*2\\r\\n$3\\r\\nnew\\r\\n$-1\\r\\n");
    assert_eq!(wire.say("SET b old"), "+OK\\r\\n");
    others_write(&engine, &["c"], "new");
    assert_eq!(wire.say("DEL b c"), ":2\\r\\n");
    assert_eq!(wire.say("EXISTS b c"), ":0\\r\\n");
}

/// Also where it has nothing to write.
#[test]
fn a_transaction_shows_one_moment() {
    let (engine, _server, mut wire) = start();
    assert_eq!(wire.say("MSET a old b old"), "+OK\\r\\n");
    for line in ["GET a", "DEL none", "RENAME a c"] {
        for queued in ["MULTI", line, "GET b"] {
            assert!(wire.say(queued).starts_with('+'), "{queued}");
        }
        others_write(&engine, &["a", "b"], "new");
        let refused = wire.say("EXEC");
        let begins = "-EXECABORT Transaction discarded because of: TRYAGAIN";
        assert!(refused.starts_with(begins), "{line}: {refused}");
        assert_eq!(wire.say("MGET a c"), "*2\\r\\n$3\\r\\nnew\\r\\n$-1\\r\\n");
    }
}

#[test]
fn a_command_that_is_run_once_reads_again_what_others_wrote() {
    let (engine, _server, mut wire) = start();
    assert_eq!(wire.say("SET n 1"), "+OK\\r\\n");
    // The first read is of what it remembers of the client.
    engine.after_next_read(|engine| others_write(engine, &["n"], "7"));
    assert_eq!(wire.say("ONCE c 1 INCR n"), ":8\\r\\n");
    assert_eq!(wire.say("GET n"), "$1\\r\\n8\\r\\n");
}
