//! Pools as a whole: create, info, stats, grow.

use crate::administration;
use crate::arguments::{Create, Grow, Pool};
use crate::failure::{Failure, Outcome};
use crate::json;
use crate::terms;
use coreplane::Store;
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

pub(crate) fn info(pool: &Pool) -> Outcome {
    let store = pool.look()?;
    let facts = facts(&pool.path(), &store)?;
    store.close()?;
    tell(&facts, pool.json)
}

/// What a pool is, as an object.
fn facts(path: &Path, store: &Store) -> Result<Value, Failure> {
    let (records, stats) = store.counted()?;
    let limits = store.engine().limits();
    let medium = store.medium();
    let mut facts = json!({
        "pool": path.display().to_string(),
        "engine": store.engine().name(),
        "index": store.index(),
        "medium": medium.name,
        "persists_by": medium.persists_by,
        "power_safe": medium.power_safe,
        "power_cut_loses": store.power_cut_loses(),
        "records": records,
        "pool_bytes": stats.pool_bytes,
        "live_bytes": stats.live_bytes,
        "free_bytes": stats.free_bytes,
        "dram_bytes": stats.dram_bytes,
        "key_len_max": limits.key_len_max,
        "value_len_max": limits.value_len_max,
    });
    if let (Some(facts), Some(bytes)) =
        (facts.as_object_mut(), coreplane::admin::page_size_at(path))
    {
        facts.insert("page_bytes".to_owned(), bytes.into());
    }
    if let (Some(facts), Some(entries)) =
        (facts.as_object_mut(), coreplane::admin::fan_out_at(path))
    {
        facts.insert("fan_out".to_owned(), entries.into());
    }
    if let (Some(facts), Some(matrix)) = (facts.as_object_mut(), store.matrix()) {
        facts.extend(administration::facts(matrix));
        facts.insert("degraded".to_owned(), matrix.is_degraded().into());
    }
    Ok(facts)
}

pub(crate) fn stats(pool: &Pool) -> Outcome {
    let store = pool.open()?;
    let (records, stats) = store.counted()?;
    let mut object = json!({
        "records": records,
        "live_bytes": stats.live_bytes,
        "pool_bytes": stats.pool_bytes,
        "free_bytes": stats.free_bytes,
        "dram_bytes": stats.dram_bytes,
        "hits": stats.hits,
        "misses": stats.misses,
        "puts": stats.puts,
        "deletes": stats.deletes,
        "batches": stats.batches,
        "expired": stats.expired,
        "user_bytes_written": stats.user_bytes_written,
        "log_bytes_written": stats.log_bytes_written,
        "cleaner_bytes_copied": stats.cleaner_bytes_copied,
        "cleaner_pages_freed": stats.cleaner_pages_freed,
        "flushes": stats.flushes,
        "fences": stats.fences,
    });
    if let Some(object) = object.as_object_mut() {
        for (name, value) in stats.more {
            object.insert(name.to_owned(), value.into());
        }
    }
    store.close()?;
    tell(&object, pool.json)
}

pub(crate) fn grow(grow: &Grow) -> Outcome {
    if grow.pool.path().is_dir() {
        return grow_matrix(grow);
    }
    let store = grow.pool.open()?;
    let before = store.engine().stats().pool_bytes;
    let grown = store.grow(grow.size);
    let after = store.engine().stats().pool_bytes;
    store.close()?;
    grown?;
    tell_grown(grow, before, after)
}

/// What has become of it; that nothing has is said to whoever looks.
fn tell_grown(grow: &Grow, before: u64, after: u64) -> Outcome {
    if before == after {
        let size = terms::human(after);
        eprintln!(
            "coreplane: it has {size} already: nothing was done, and nothing is ever made smaller"
        );
    }
    let facts = json!({
        "pool": grow.pool.path().display().to_string(),
        "bytes_before": before,
        "pool_bytes": after,
    });
    tell(&facts, grow.pool.json)
}

/// Each device of it.
fn grow_matrix(grow: &Grow) -> Outcome {
    let bytes = || -> Result<u64, Failure> {
        let store = grow.pool.look()?;
        let bytes = store.engine().stats().pool_bytes;
        store.close()?;
        Ok(bytes)
    };
    let before = bytes()?;
    let config = grow.pool.config().background(false);
    config.grow_devices(grow.size).map_err(|error| Failure::of_pool(&error, config.path()))?;
    tell_grown(grow, before, bytes()?)
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
