//! Pools as a whole: create, info, stats, grow.

use crate::arguments::{Create, Grow, Tended};
use crate::ask::Asked;
use crate::failure::{Failure, Outcome};
use crate::json;
use crate::message;
use crate::node_pool;
use crate::remote;
use crate::terms;
use coreplane::Store;
use coreplane_server::administration::{store_facts, store_stats};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;

pub(crate) fn create(create: Create) -> Outcome {
    let Create { pool, new } = create;
    pool.expect_directory()?;
    let config = new.config(&pool).background(false);
    let store = config.create().map_err(|error| Failure::of_pool(&error, config.path()))?;
    let facts = facts(config.path(), &store)?;
    store.close()?;
    tell(&facts, pool.json)
}

pub(crate) fn info(tended: &Tended) -> Outcome {
    let facts = match Asked::connect(&tended.behind)? {
        Some(mut server) => remote::told(&mut server, &["STORE", "INFO"])?,
        None => {
            let store = tended.pool.look()?;
            let facts = facts(&tended.pool.path(), &store);
            store.close()?;
            facts?
        }
    };
    tell(&facts, tended.pool.json)
}

/// Facts about a pool, as an object.
fn facts(path: &Path, store: &Store) -> Result<Value, Failure> {
    let (records, stats) = store.counted()?;
    Ok(store_facts(path, store, records, &stats))
}

pub(crate) fn stats(tended: &Tended) -> Outcome {
    let stats = match Asked::connect(&tended.behind)? {
        Some(mut server) => remote::told(&mut server, &["STORE", "STATS"])?,
        None => {
            let store = tended.pool.look()?;
            let (records, stats) = store.counted()?;
            store.close()?;
            store_stats(records, stats)
        }
    };
    tell(&stats, tended.pool.json)
}

pub(crate) fn grow(grow: &Grow) -> Outcome {
    if let Some(server) = Asked::connect(&grow.tended.behind)? {
        let words = ["STORE".to_owned(), "GROW".to_owned(), grow.size.to_string()];
        return tell_grown(grow, &remote::work(server, &words)?);
    }
    if grow.tended.pool.path().is_dir() {
        return grow_matrix(grow);
    }
    if let Some(map) = node_pool::open(&grow.tended.pool, false) {
        let (map, path) = (map?, grow.tended.pool.path());
        let before = map.stats().pool_bytes;
        let grown = map.grow(grow.size);
        let after = map.stats().pool_bytes;
        map.close().and(grown).map_err(|error| Failure::of_pool(&error, &path))?;
        return tell_grown(grow, &growth(grow, before, after));
    }
    let store = grow.tended.pool.open()?;
    let before = store.engine().stats().pool_bytes;
    let grown = store.grow(grow.size);
    let after = store.engine().stats().pool_bytes;
    store.close()?;
    grown?;
    tell_grown(grow, &growth(grow, before, after))
}

/// The bytes before and after a growth.
fn growth(grow: &Grow, before: u64, after: u64) -> Value {
    let pool = grow.tended.pool.path().display().to_string();
    json!({"pool": pool, "bytes_before": before, "pool_bytes": after})
}

/// Shows the growth; if nothing has grown, a message for a person says so.
fn tell_grown(grow: &Grow, growth: &Value) -> Outcome {
    if growth["bytes_before"] == growth["pool_bytes"] {
        let size = terms::human(growth["pool_bytes"].as_u64().unwrap_or(0));
        message::tell(format_args!(
            "it has {size} already: nothing was done, and nothing is ever made smaller"
        ));
    }
    tell(growth, grow.tended.pool.json)
}

/// Grows each device of a matrix.
fn grow_matrix(grow: &Grow) -> Outcome {
    let bytes = || -> Result<u64, Failure> {
        let store = grow.tended.pool.look()?;
        let bytes = store.engine().stats().pool_bytes;
        store.close()?;
        Ok(bytes)
    };
    let before = bytes()?;
    let config = grow.tended.pool.config().background(false);
    config.grow_devices(grow.size).map_err(|error| Failure::of_pool(&error, config.path()))?;
    tell_grown(grow, &growth(grow, before, bytes()?))
}

/// Shows an object: as it is, or a line for each of its members.
fn tell(object: &Value, as_json: bool) -> Outcome {
    let mut out = io::stdout().lock();
    if as_json {
        json::write_line(&mut out, object)?;
        return Ok(0);
    }
    for (name, value) in object.as_object().into_iter().flatten() {
        let shown = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let bytes = value.as_u64().filter(|_| name.contains("bytes"));
        let human = bytes.map_or_else(String::new, |bytes| format!("  ({})", terms::human(bytes)));
        writeln!(out, "{name:<22} {shown}{human}")?;
    }
    Ok(0)
}
