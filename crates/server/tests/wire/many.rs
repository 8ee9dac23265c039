//! Servers over many keys, and the words and answers of commands that name them.

use super::{Running, Wire, command, config};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Engine, WriteOptions};
use coreplane_server::Config;
use std::sync::Arc;

pub(crate) const KEYS: usize = 300_000;

pub(crate) fn key(number: usize) -> String {
    format!("key:{number:08}")
}

/// A server over a store of so many keys with values of so many bytes.
pub(crate) fn start(config: Config, keys: usize, value_len: usize) -> Running {
    filled(config, ModelEngine::new(), keys, value_len)
}

pub(crate) fn filled(
    config: Config,
    engine: ModelEngine,
    keys: usize,
    value_len: usize,
) -> Running {
    let engine = Arc::new(engine);
    fill(&engine, keys, value_len);
    Running::start(config, engine)
}

pub(crate) fn fill(engine: &ModelEngine, keys: usize, value_len: usize) {
    let value = vec![b'v'; value_len];
    for number in 0..keys {
        let put = engine.put(key(number).as_bytes(), &value, &WriteOptions::default());
        assert!(put.expect("room").written().is_some());
    }
}

pub(crate) fn one_loop() -> Config {
    Config { threads: 1, ..config() }
}

/// A number of `INFO`.
pub(crate) fn info(wire: &mut Wire, name: &str) -> u64 {
    let text = wire.say("INFO");
    let start = text.find(&format!("{name}:")).expect(name) + name.len() + 1;
    text[start..].split("\\r").next().unwrap().parse().expect(name)
}

pub(crate) fn slices(wire: &mut Wire) -> u64 {
    info(wire, "command_slices")
}

/// Waits until a long command has been begun.
pub(crate) fn until_begun(wire: &mut Wire) {
    while slices(wire) == 0 {
        std::thread::yield_now();
    }
}

/// The bulk strings of an array; empty for null.
pub(crate) fn strings(reply: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, mut rest) = (Vec::new(), reply);
    let line = |rest: &mut &[u8]| {
        let len = rest.windows(2).position(|two| two == b"\r\n").expect("a line");
        let (line, behind) = rest.split_at(len);
        *rest = &behind[2..];
        String::from_utf8(line.to_vec()).expect("text")
    };
    let count: usize = line(&mut rest)[1..].parse().expect("a count");
    for _ in 0..count {
        let len: i64 = line(&mut rest)[1..].parse().expect("a length");
        let len = usize::try_from(len).map_or(0, |len| len + 2);
        found.push(rest[..len.saturating_sub(2)].to_vec());
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    found
}

/// A command whose words are a name and keys.
pub(crate) fn of_keys(name: &str, keys: impl Iterator<Item = usize>) -> Vec<u8> {
    let keys: Vec<String> = keys.map(key).collect();
    let words: Vec<&[u8]> =
        std::iter::once(name).chain(keys.iter().map(String::as_str)).map(str::as_bytes).collect();
    command(&words)
}
