//! A line of `coreplane load`: refused with a reason, or a record that `dump` writes in a form that reads back the
//! same.
#![no_main]
#![allow(dead_code)]

/// The items that `json.rs` expects of its crate.
mod failure {
    pub(crate) type Failure = Box<dyn std::error::Error>;
}

#[path = "../../crates/cli/src/json.rs"]
mod json;

use coreplane::{Engine, Entry, WriteOptions};
use coreplane_conformance::model::ModelEngine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(line) = std::str::from_utf8(data) else { return };
    let Ok(record) = json::parse(line) else { return };
    let engine = ModelEngine::new();
    // Stored without the line's expiry, since an expired record is not dumped.
    let write = WriteOptions::default();
    if engine.put(&record.key, &record.value, &write).is_err() {
        assert!(record.key.len() > coreplane_engine::KEY_LEN_MAX);
        return;
    }
    let mut dumped = Vec::new();
    let mut visit = |entry: Entry<'_>| dumped.push(json::entry(&entry, false).to_string());
    assert_eq!(engine.iterate(0, 10, &mut visit).expect("iterate"), 0);
    let again = json::parse(&dumped[0]).expect("what was dumped can be loaded");
    assert_eq!((again.key, again.value), (record.key, record.value));
});
