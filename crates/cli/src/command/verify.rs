//! Verification and repair of pools.

use crate::arguments::{Pool, Verify};
use crate::ask::Asked;
use crate::failure::{self, Failure, Outcome};
use crate::json;
use crate::message;
use crate::node_pool;
use crate::pool::expect_pool;
use crate::progress::Bar;
use crate::remote;
use crate::terms;
use coreplane::Store;
use coreplane::admin::{Fate, Finding, VerifyReport};
use coreplane_server::administration::verdict;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// The remedy for the pool of a node.
const FILL_NODE: &str = "remove the pool and start the node: the others fill a new one; \
                         a cluster of one needs a backup";

pub(crate) fn run(verify: &Verify) -> Outcome {
    let pool = &verify.tended.pool;
    if verify.repair {
        return repair(pool);
    }
    let Some(mut server) = Asked::connect(&verify.tended.behind)? else { return check(pool) };
    let engine = remote::told(&mut server, &["STORE", "STATUS"])?["engine"].clone();
    let verdict = remote::work(server, &["STORE".to_owned(), "VERIFY".to_owned()])?;
    show(&verdict, pool.json, || failure::way_out_of(engine.as_str().unwrap_or_default()))
}

fn check(pool: &Pool) -> Outcome {
    if let Some(map) = node_pool::open(pool, true) {
        let bar = Bar::new("verify", 0, false);
        let report = map?.verify(&mut |progress| bar.show(progress));
        drop(bar);
        let report = report.map_err(|error| Failure::of_pool(&error, &pool.path()))?;
        return show(&verdict(&report), pool.json, || FILL_NODE);
    }
    let store = pool.open_to_verify()?;
    let report = read_all(&store, pool)?;
    // The verdict comes first, since the close of a damaged store may fail.
    let code = show(&verdict(&report), pool.json, || failure::way_out(&pool.path()))?;
    store.close()?;
    Ok(code)
}

fn repair(pool: &Pool) -> Outcome {
    if node_pool::is_at(&pool.path()) {
        let what = format!("the pool of a node of a cluster is not repaired: {FILL_NODE}");
        return Err(Failure::new(failure::REFUSED, what));
    }
    let config = pool.config().background(false);
    expect_pool(&config)?;
    let tell = &mut |finding: &Finding| {
        if let Err(failure) = tell_of(finding, pool.json) {
            // Before anything is given up of which nobody is told. A repair that is cut off is begun anew.
            message::tell(format_args!("{}: nothing more is repaired", failure.message));
            std::process::exit(i32::from(failure.code));
        }
    };
    let repaired = config.repair(tell);
    let (store, repair) = repaired.map_err(|error| Failure::of_repair(&error, config.path()))?;
    let report = read_all(&store, pool)?;
    if report.is_sound() {
        store.close()?;
    }
    if !pool.json && !repair.findings.is_empty() {
        let keys = repair.findings.iter().flat_map(|finding| &finding.keys);
        let lost = keys.filter(|(_, fate)| *fate == Fate::Lost).count();
        let places = repair.findings.len();
        writeln!(
            io::stdout(),
            "repaired: damage in {places} places, {lost} keys named that are lost"
        )?;
    }
    show(&verdict(&report), pool.json, || failure::way_out(&pool.path()))?;
    let was_sound = repair.findings.is_empty() && report.is_sound();
    Ok(if was_sound { 0 } else { failure::NO })
}

fn read_all(store: &Store, pool: &Pool) -> Result<VerifyReport, Failure> {
    let bar = Bar::new("verify", 0, false);
    let report = store.engine().verify(&mut |progress| bar.show(progress));
    drop(bar);
    report.map_err(|error| Failure::of_pool(&error, &pool.path()))
}

/// Reports damage, and the keys that it concerns.
fn tell_of(finding: &Finding, as_json: bool) -> Result<(), Failure> {
    let Finding { page, offset, len, what, keys } = finding;
    let mut out = io::stdout().lock();
    if as_json {
        let keys: Vec<Value> = keys
            .iter()
            .map(|(key, fate)| {
                let mut object = Map::new();
                json::put_bytes(&mut object, "key", key);
                object.insert("fate".to_owned(), fate.text().into());
                object.insert("lost".to_owned(), (*fate == Fate::Lost).into());
                Value::Object(object)
            })
            .collect();
        let object =
            json!({"page": page, "offset": offset, "bytes": len, "what": what, "keys": keys});
        return json::write_line(&mut out, &object);
    }
    match (offset, len) {
        (0, 0) => writeln!(out, "{what}")?,
        (_, 0) => writeln!(out, "page {page}, offset {offset:#x}: {what}")?,
        _ => writeln!(out, "page {page}, offset {offset:#x}, {len} bytes: {what}")?,
    }
    for (key, fate) in keys {
        writeln!(out, "    {}: {}", key.escape_ascii(), fate.text())?;
    }
    Ok(out.flush()?)
}

/// Shows a verdict, and the remedy; returns the exit code.
fn show(verdict: &Value, as_json: bool, way_out: impl FnOnce() -> &'static str) -> Outcome {
    let mut out = io::stdout().lock();
    let is_sound = verdict["sound"] == true;
    let code = if is_sound { 0 } else { failure::NO };
    if as_json {
        json::write_line(&mut out, verdict)?;
        return Ok(code);
    }
    for damage in verdict["damages"].as_array().into_iter().flatten() {
        let (offset, what) = (damage["offset"].as_u64(), damage["what"].as_str());
        writeln!(
            out,
            "damaged at offset {:#x}: {}",
            offset.unwrap_or(0),
            what.unwrap_or_default()
        )?;
        for key in keys_of(damage) {
            writeln!(out, "    {key}")?;
        }
    }
    let (word, records) = (if is_sound { "sound" } else { "DAMAGED" }, &verdict["records"]);
    let bytes = terms::human(verdict["bytes"].as_u64().unwrap_or(0));
    writeln!(out, "{word}: {records} records, {bytes} checked")?;
    if !is_sound {
        writeln!(out, "{}", way_out())?;
    }
    Ok(code)
}

/// The keys of a damage, for a person.
fn keys_of(damage: &Value) -> Vec<String> {
    let key = |key: &Value| {
        let text = key["key"].as_str().map(|key| key.escape_default().to_string());
        text.or_else(|| key["key_hex"].as_str().map(|digits| format!("{digits} (hexadecimal)")))
    };
    damage["keys"].as_array().into_iter().flatten().filter_map(key).collect()
}
