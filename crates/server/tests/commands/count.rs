//! `DBSIZE` while the records of an opened store are still being counted.

use crate::wire::{Running, config, shown};
use coreplane_conformance::model::ModelEngine;
use coreplane_server::Config;
use std::sync::Arc;

/// A server with one event loop, over a store that counts.
fn start() -> (Arc<ModelEngine>, Running) {
    let engine = Arc::new(ModelEngine::new());
    engine.set_counting(true);
    let server = Running::start(Config { threads: 1, ..config() }, engine.clone());
    (engine, server)
}

#[test]
fn who_asks_for_the_number_waits_for_it_and_holds_up_nobody_else() {
    let (engine, server) = start();
    let mut asker = server.connect();
    assert_eq!(asker.say("SET a 1"), "+OK\\r\\n");
    asker.send(b"DBSIZE\r\nGET a\r\n");
    // On the same event loop.
    let mut other = server.connect();
    for _ in 0..3 {
        assert_eq!(other.say("SET b 2"), "+OK\\r\\n");
        assert_eq!(other.say("GET a"), "$1\\r\\n1\\r\\n");
    }
    asker.send(b"GET b\r\n");
    assert_eq!(other.say("PING"), "+PONG\\r\\n");
    engine.set_counting(false);
    // The answers are in order, and the count includes the records written meanwhile.
    assert_eq!(shown(&asker.reply()), ":2\\r\\n");
    assert_eq!(shown(&asker.reply()), "$1\\r\\n1\\r\\n");
    assert_eq!(shown(&asker.reply()), "$1\\r\\n2\\r\\n");
    let statistics = asker.say("INFO commandstats");
    assert!(statistics.contains("cmdstat_dbsize:calls=1,"), "{statistics}");
}

#[test]
fn a_transaction_waits_for_the_number_before_it_begins() {
    let (engine, server) = start();
    let mut wire = server.connect();
    for line in ["WATCH a", "MULTI", "SET b 1", "DBSIZE"] {
        assert!(wire.say(line).starts_with('+'), "{line}");
    }
    wire.send(b"EXEC\r\n");
    let mut other = server.connect();
    for _ in 0..3 {
        assert_eq!(other.say("GET b"), "$-1\\r\\n");
    }
    assert_eq!(other.say("SET c 1"), "+OK\\r\\n");
    engine.set_counting(false);
    assert_eq!(shown(&wire.reply()), "*2\\r\\n+OK\\r\\n:2\\r\\n");
    // One that does not need it does not wait.
    engine.set_counting(true);
    wire.send(b"MULTI\r\nGET b\r\nEXEC\r\n");
    let replies: Vec<String> = (0..3).map(|_| shown(&wire.reply())).collect();
    assert_eq!(replies.concat(), "+OK\\r\\n+QUEUED\\r\\n*1\\r\\n$1\\r\\n1\\r\\n");
}

#[test]
fn a_server_ends_although_somebody_waits_for_the_number() {
    let (_engine, server) = start();
    let mut asker = server.connect();
    asker.send(b"DBSIZE\r\n");
    let mut other = server.connect();
    assert_eq!(other.say("PING"), "+PONG\\r\\n");
    other.send(b"SHUTDOWN NOSAVE\r\n");
    assert!(other.is_closed() && asker.is_closed());
    server.wait().expect("a good end");
}

/// Only that command fails: the changes of the transaction stay together.
#[test]
fn a_transaction_in_which_nobody_can_count_is_made_whole_or_not_at_all() {
    let (engine, server) = start();
    engine.set_counting(false);
    engine.set_miscounted(true);
    let mut asker = server.connect();
    for line in ["MULTI", "SET a 1", "DBSIZE", "SET b 2"] {
        assert!(asker.say(line).starts_with('+'), "{line}");
    }
    let replies = asker.say("EXEC");
    assert!(replies.starts_with("*3\\r\\n+OK\\r\\n-"), "{replies}");
    assert!(replies.ends_with("+OK\\r\\n"), "{replies}");
    assert_eq!(asker.say("MGET a b"), "*2\\r\\n$1\\r\\n1\\r\\n$1\\r\\n2\\r\\n");
}
