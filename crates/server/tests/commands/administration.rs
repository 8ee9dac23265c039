//! A server whose embedder hands it the store has `STORE` and `MATRIX` with all their words.

use crate::wire::{Running, Wire, config};
use coreplane::{MatrixShape, StoreConfig, WriteOptions};
use coreplane_conformance::model::ModelEngine;
use coreplane_server::Config;
use coreplane_server::administration::Administered;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A store at `name`, and a server of it.
fn served(config_of: StoreConfig) -> (Running, Arc<coreplane::Store>) {
    let store = Arc::new(config_of.clone().size(32 << 20).create().expect("a store"));
    let store_of = Some(Administered::new(Arc::clone(&store), config_of.path()));
    let config = Config { store: store_of, ..config() };
    (Running::start(config, store.engine().clone()), store)
}

/// Waits until the work that was begun is over; its report.
fn outcome(wire: &mut Wire, status: &str) -> String {
    let since = Instant::now();
    loop {
        let said = wire.say(status);
        if said.contains("\"going_on\":false") {
            return said;
        }
        assert!(since.elapsed() < Duration::from_mins(1), "{said}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_store_is_looked_after() {
    let place = tempfile::tempdir().expect("a directory");
    let (server, store) = served(StoreConfig::at(place.path().join("pool")));
    let mut wire = server.connect();
    for number in 0..100 {
        assert_eq!(wire.say(&format!("SET key:{number} value")), "+OK\\r\\n");
    }
    assert_eq!(wire.say("SETEX later 1000 value"), "+OK\\r\\n");
    let info = wire.say("STORE INFO");
    assert!(info.contains("\"engine\":\"scmkv\"") && info.contains("\"records\":101"), "{info}");
    assert!(wire.say("store stats").contains("\"puts\":101"));
    assert!(wire.say("STORE STATUS").contains("\"work\":null"));
    assert_eq!(wire.say("STORE VERIFY"), "$7\\r\\nbegun 1\\r\\n");
    let verified = outcome(&mut wire, "STORE STATUS");
    assert!(verified.contains("\"number\":1"), "{verified}");
    assert!(
        verified.contains("\"sound\":true") && verified.contains("\"records\":101"),
        "{verified}"
    );
    assert_eq!(wire.say("STORE GROW 67108864"), "$7\\r\\nbegun 2\\r\\n");
    let grown = outcome(&mut wire, "STORE STATUS");
    assert!(grown.contains("\"number\":2"), "{grown}");
    assert!(
        grown.contains("\"work\":\"grow\"") && grown.contains("\"bytes_before\":33554432"),
        "{grown}"
    );
    assert_eq!(store.engine().stats().pool_bytes, 64 << 20);
    // Every record is shown once, with its value and its expiry.
    let (mut cursor, mut shown) = ("0".to_owned(), String::new());
    loop {
        let page = wire.say(&format!("STORE RECORDS {cursor} COUNT 7"));
        let next = page.split("\\r\\n").nth(2).expect("a cursor").to_owned();
        shown += &page;
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(shown.matches("\\r\\nvalue\\r\\n").count(), 101);
    assert_eq!(shown.matches(":-1\\r\\n").count(), 100, "one expires");
    for wrong in ["STORE", "STORE NONSENSE", "STORE GROW x", "STORE RECORDS", "STORE INFO all"] {
        assert!(wire.say(wrong).starts_with("-ERR "), "{wrong}");
    }
    assert!(wire.say("MATRIX STATUS").starts_with("-NOMATRIX "));
    drop(server);
    store.close().expect("close");
}

#[test]
fn a_matrix_is_looked_after() {
    let place = tempfile::tempdir().expect("a directory");
    let shape = MatrixShape { groups: 1, devices: 2 };
    let (server, store) = served(StoreConfig::at(place.path().join("matrix")).matrix(shape));
    let options = WriteOptions::default();
    let _outcome = store.engine().put(b"key", b"value", &options).expect("put");
    let mut wire = server.connect();
    // The devices are examined in the background.
    let status = wire.say("MATRIX STATUS");
    assert!(status.contains("\"shape\":\"1x2\""), "{status}");
    assert!(status.contains("\"damage\":{\"devices\":null,"), "{status}");
    let since = Instant::now();
    while !wire.say("MATRIX STATUS").contains("\"damage\":{\"devices\":[],") {
        assert!(since.elapsed() < Duration::from_mins(1));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(wire.say("INFO matrix").contains("matrix_enabled:1"));
    assert_eq!(wire.say("MATRIX SCRUB"), "$7\\r\\nbegun 1\\r\\n");
    assert!(outcome(&mut wire, "MATRIX STATUS").contains("\"lost\":[]"));
    // The obstacle is reported by a fixed word, independent of the words of the error.
    assert_eq!(wire.say("MATRIX REPLACE g0d1"), "$7\\r\\nbegun 2\\r\\n");
    let refused = outcome(&mut wire, "MATRIX STATUS");
    assert!(refused.contains("\"number\":2"), "{refused}");
    assert!(
        refused.contains("\"vacancy\":\"retire\"") && refused.contains("\"code\":2"),
        "{refused}"
    );
    assert_eq!(wire.say("STORE GROW 67108864"), "$7\\r\\nbegun 1\\r\\n");
    assert!(outcome(&mut wire, "STORE STATUS").contains("\"pool_bytes\":"));
    for device in ["g0d0", "g0d1"] {
        let path = place.path().join("matrix").join(device);
        assert_eq!(std::fs::metadata(path).expect("a device").len(), 64 << 20);
    }
    assert!(wire.say("MATRIX NONSENSE").starts_with("-ERR try MATRIX"));
    drop(server);
    store.close().expect("close");
}

#[test]
fn a_server_that_was_given_no_store_says_so() {
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    let mut wire = server.connect();
    assert!(wire.say("STORE INFO").starts_with("-NOSTORE "));
    assert!(wire.say("MATRIX STATUS").starts_with("-NOMATRIX "));
    // Its records are those of its engine.
    assert_eq!(wire.say("SET key value"), "+OK\\r\\n");
    assert!(wire.say("STORE RECORDS 0").contains("\\r\\nkey\\r\\n"));
}
