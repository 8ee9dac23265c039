//! Reports about a store, as JSON.

use super::matrix::matrix_facts;
use coreplane::admin::VerifyReport;
use coreplane::{Remedy, Stats, Store};
use coreplane_engine::Vacancy;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Facts about the store at `path`, with this many records, as an object.
pub fn store_facts(path: &Path, store: &Store, records: u64, stats: &Stats) -> Value {
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
    let Some(object) = facts.as_object_mut() else { return facts };
    if let Some(bytes) = coreplane::admin::page_size_at(path) {
        object.insert("page_bytes".to_owned(), bytes.into());
    }
    if let Some(entries) = coreplane::admin::fan_out_at(path) {
        object.insert("fan_out".to_owned(), entries.into());
    }
    if let Some(matrix) = store.matrix() {
        object.extend(matrix_facts(matrix));
        object.insert("degraded".to_owned(), matrix.is_degraded().into());
    }
    facts
}

/// The counters of a store with this many records, as an object.
pub fn store_stats(records: u64, stats: Stats) -> Value {
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
    object
}

/// The findings of a verification, as an object.
pub fn verdict(report: &VerifyReport) -> Value {
    let damages: Vec<_> = report
        .damages
        .iter()
        .map(|damage| {
            let keys: Vec<Value> = damage.keys.iter().map(|key| key_of(key)).collect();
            json!({"offset": damage.offset, "what": damage.what, "keys": keys})
        })
        .collect();
    json!({
        "sound": report.is_sound(),
        "records": report.records,
        "bytes": report.bytes,
        "damages": damages,
    })
}

/// The remedy for a failure, in a word for programs.
pub fn remedy_name(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Retry => "retry",
        Remedy::FreeSpace => "free-space",
        Remedy::FixInput => "fix-input",
        Remedy::Repair => "repair",
        Remedy::GiveUp => "give-up",
    }
}

/// The exit code of a command for a failure, as `coreplane --help` lists them.
pub fn exit_code(remedy: Remedy) -> u8 {
    match remedy {
        Remedy::Repair => 2,
        Remedy::FixInput => 3,
        Remedy::FreeSpace => 4,
        Remedy::Retry | Remedy::GiveUp => 5,
    }
}

/// The remedy that makes room for a device, in a word for programs.
pub fn vacancy_name(vacancy: Vacancy) -> &'static str {
    match vacancy {
        Vacancy::Fresh => "fresh",
        Vacancy::Retire => "retire",
    }
}

/// A key as an object: under `key`, or `key_hex` if it is not UTF-8.
pub(super) fn key_of(key: &[u8]) -> Value {
    let mut object = Map::new();
    put_bytes(&mut object, "key", key);
    Value::Object(object)
}

/// Adds bytes under `name`, or in hexadecimal under `name_hex` if they are not UTF-8.
pub fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        use std::fmt::Write as _;
        let mut digits = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            // Writing to a string does not fail.
            let _written = write!(digits, "{byte:02x}").is_ok();
        }
        object.insert(format!("{name}_hex"), digits.into());
        return;
    };
    object.insert(name.to_owned(), text.into());
}
