//! Whether a pool is sound, and what to do if it is not.

use crate::arguments::{Pool, Verify};
use crate::failure::{self, Failure, Outcome};
use crate::json;
use crate::pool::expect_pool;
use crate::progress::Bar;
use crate::terms;
use coreplane::Store;
use coreplane::admin::{Fate, Finding, VerifyReport};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

pub(crate) fn run(verify: &Verify) -> Outcome {
    if verify.repair { repair(&verify.pool) } else { check(&verify.pool) }
}

fn check(pool: &Pool) -> Outcome {
    let store = pool.open()?;
    let report = read_all(&store, pool)?;
    // A damaged pool is left as it is.
    if report.is_sound() {
        store.close()?;
    }
    show(&report, pool)?;
    Ok(if report.is_sound() { 0 } else { failure::NO })
}

fn repair(pool: &Pool) -> Outcome {
    let config = pool.config().background(false);
    expect_pool(&config)?;
    let mut told = Ok(());
    let tell = &mut |finding: &Finding| {
        let shown = tell_of(finding, pool.json);
        told = std::mem::replace(&mut told, Ok(())).and(shown);
    };
    let repaired = config.repair(tell);
    told?;
    let (store, repair) = repaired.map_err(|error| Failure::of_pool(&error, config.path()))?;
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
    show(&report, pool)?;
    let was_sound = repair.findings.is_empty() && report.is_sound();
    Ok(if was_sound { 0 } else { failure::NO })
}

fn read_all(store: &Store, pool: &Pool) -> Result<VerifyReport, Failure> {
    let bar = Bar::new("verify", 0, false);
    let report = store.engine().verify(&mut |progress| bar.show(progress));
    drop(bar);
    report.map_err(|error| Failure::of_pool(&error, &pool.path()))
}

/// Says what is damaged, and what is lost by it.
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
    writeln!(out, "page {page}, offset {offset:#x}, {len} bytes: {what}")?;
    for (key, fate) in keys {
        writeln!(out, "    {}: {}", key.escape_ascii(), fate.text())?;
    }
    Ok(out.flush()?)
}

fn show(report: &VerifyReport, pool: &Pool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if pool.json {
        let damages: Vec<_> = report
            .damages
            .iter()
            .map(|damage| json!({"offset": damage.offset, "what": damage.what}))
            .collect();
        let verdict = json!({
            "sound": report.is_sound(),
            "records": report.records,
            "bytes": report.bytes,
            "damages": damages,
        });
        json::write_line(&mut out, &verdict)?;
        return Ok(());
    }
    for damage in &report.damages {
        writeln!(out, "damaged at offset {:#x}: {}", damage.offset, damage.what)?;
    }
    let verdict = if report.is_sound() { "sound" } else { "DAMAGED" };
    let bytes = terms::human(report.bytes);
    writeln!(out, "{verdict}: {} records, {bytes} checked", report.records)?;
    if !report.is_sound() {
        writeln!(out, "{}", failure::way_out(&pool.path()))?;
    }
    Ok(())
}
