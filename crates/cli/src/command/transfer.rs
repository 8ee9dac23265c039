//! All records at once: load, dump.

use crate::arguments::{Dump, Load};
use crate::ask::{self, Answer, Asked};
use crate::command::records::each_record;
use crate::failure::{self, Failure, Outcome};
use crate::input::{input, lines};
use crate::json;
use crate::output::Output;
use crate::pool;
use crate::progress::Bar;
use coreplane::WriteOptions;
use coreplane::admin::check_key;
use coreplane_engine::StorageEngine;
use serde_json::json;
use std::io::{self, BufRead, Write};

/// Records that are requested from a server at a time.
const AT_A_TIME: &[u8] = b"256";

pub(crate) fn load(load: &Load) -> Outcome {
    let (input, total) = input(load.input.as_deref())?;
    let store = pool::open(&load.pool.config())?;
    pool::refuse_device(&store, &load.pool.path())?;
    let bar = Bar::new("load", total, total > 0);
    let loaded = load_lines(input, &**store.engine(), &mut |bytes| {
        bar.advance(if total > 0 { bytes } else { 1 });
    });
    drop(bar);
    store.close()?;
    let loaded = loaded?;
    if load.pool.json {
        json::write_line(&mut io::stdout().lock(), &json!({"loaded": loaded}))?;
    } else {
        writeln!(io::stdout().lock(), "{loaded} loaded")?;
    }
    Ok(0)
}

/// Writes the record of every line; records before a line that fails stay.
fn load_lines(
    input: Box<dyn BufRead>,
    engine: &dyn StorageEngine,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Failure> {
    let mut loaded = 0;
    for (number, line) in lines(input) {
        let at_line = |failure: Failure| failure.at_line(number, loaded, "loaded");
        let line = line.map_err(at_line)?;
        progress(line.len() as u64);
        let refused = |what| at_line(Failure::new(failure::REFUSED, what));
        let record = json::parse(&line).map_err(refused)?;
        let options = WriteOptions { expires_at: record.expires_at, ..WriteOptions::default() };
        let _outcome = check_key(&record.key)
            .and_then(|()| engine.put(&record.key, &record.value, &options))
            .map_err(|error| at_line(error.into()))?;
        loaded += 1;
    }
    Ok(loaded)
}

/// Requests some records after the others from the server.
fn dump_by_server(dump: &Dump, mut server: Asked) -> Outcome {
    let mut out = Output::to(dump.output.as_deref())?;
    let bar = Bar::new("dump", 0, false);
    let mut cursor = b"0".to_vec();
    loop {
        let words = [&b"STORE"[..], b"RECORDS", &cursor, b"COUNT", AT_A_TIME];
        let answer = server.ask(&words)?;
        let strange = || server.failed(&"it answers STORE RECORDS in another way");
        let Answer::List(parts) = answer else { return Err(strange()) };
        let [Answer::Bytes(next), Answer::List(records)] = &parts[..] else {
            return Err(strange());
        };
        for record in records.chunks(3) {
            let [Answer::Bytes(key), Answer::Bytes(value), Answer::Number(at)] = record else {
                return Err(strange());
            };
            json::write_line(&mut out, &json::entry(&ask::entry(key, value, *at), false))?;
            bar.advance(1);
        }
        if next == b"0" {
            break;
        }
        cursor.clone_from(next);
    }
    out.finish()?;
    Ok(0)
}

pub(crate) fn dump(dump: &Dump) -> Outcome {
    if let Some(server) = Asked::connect(&dump.tended.behind)? {
        return dump_by_server(dump, server);
    }
    let store = dump.tended.pool.look()?;
    let mut out = Output::to(dump.output.as_deref())?;
    let bar = Bar::new("dump", store.engine().len()?, false);
    // A dump of a device saves the records of a matrix: the device's own records are of no use elsewhere.
    let is_device = store.is_device();
    let done = each_record(&**store.engine(), &mut |entry| {
        bar.advance(1);
        if is_device && coreplane::admin::is_own_key(entry.key) {
            return Ok(true);
        }
        json::write_line(&mut out, &json::entry(entry, false))?;
        Ok(true)
    });
    drop(bar);
    let finished = done.and_then(|()| out.finish());
    store.close()?;
    finished?;
    Ok(0)
}
