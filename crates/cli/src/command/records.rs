//! Single records: get, put, del.

use crate::arguments::{Del, Get, Put};
use crate::failure::{self, Failure, Outcome};
use crate::json;
use crate::message;
use coreplane::admin::check_key;
use coreplane::{Entry, UnixMillis, Visibility, WriteOptions};
use coreplane_engine::{StorageEngine, VALUE_LEN_MAX};
use serde_json::json;
use std::io::{self, Read, Write};

pub(crate) fn get(get: &Get) -> Outcome {
    let key = get.notation.key(&get.key)?;
    let store = get.pool.look()?;
    let mut shown = Ok(());
    let found = store.engine().get_with(&key, Visibility::Durable, &mut |record| {
        let mut out = io::stdout().lock();
        let sequence = record.sequence;
        shown = if get.pool.json {
            let entry = Entry { key: &key, record: Some(record), sequence };
            json::write_line(&mut out, &get.notation.entry(&entry, false))
        } else {
            let end: &[u8] = if get.raw { b"" } else { b"\n" };
            let mut pieces = record.value.pieces().chain([end]);
            let written = pieces.try_for_each(|piece| out.write_all(piece));
            // A value without an end of line stays in the buffer.
            written.and_then(|()| out.flush()).map_err(Failure::from)
        };
    })?;
    store.close()?;
    shown?;
    if found.hit {
        return Ok(0);
    }
    if get.pool.json {
        json::write_line(&mut io::stdout().lock(), &serde_json::Value::Null)?;
    } else {
        message::tell("no such key");
    }
    Ok(failure::NO)
}

pub(crate) fn put(put: Put) -> Outcome {
    let key = put.notation.key(&put.key)?;
    check_key(&key)?;
    let value = match put.value {
        Some(value) => value.into_bytes(),
        None => {
            // A longer one is refused by its length.
            let mut value = Vec::new();
            io::stdin().lock().take(VALUE_LEN_MAX as u64 + 1).read_to_end(&mut value)?;
            value
        }
    };
    let store = put.pool.open_to_write()?;
    let (engine, key) = (store.engine(), key.as_slice());
    let expires_at = put.ttl.map(|ttl| {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        UnixMillis(engine.now().0.saturating_add(ttl))
    });
    let options = WriteOptions { expires_at, ..WriteOptions::default() };
    let done = if put.if_absent {
        engine.insert(key, &value, &options)
    } else if put.if_present {
        engine.update(key, &value, &options)
    } else {
        engine.put(key, &value, &options)
    };
    store.close()?;
    let written = done?.written();
    if put.pool.json {
        let replaced = written.is_some_and(|written| written.replaced);
        let said = json!({"written": written.is_some(), "replaced": replaced});
        json::write_line(&mut io::stdout().lock(), &said)?;
    }
    if written.is_some() {
        return Ok(0);
    }
    let why = if put.if_absent { "the key is there" } else { "no such key" };
    message::tell(format_args!("not written: {why}"));
    Ok(failure::NO)
}

pub(crate) fn del(del: &Del) -> Outcome {
    let keys: Vec<Vec<u8>> =
        del.keys.iter().map(|key| del.notation.key(key)).collect::<Result<_, _>>()?;
    let store = del.pool.open_to_write()?;
    let mut deleted = 0_u64;
    for key in &keys {
        let outcome = store.engine().delete(key, &WriteOptions::default())?;
        deleted += u64::from(outcome.written().is_some());
    }
    store.close()?;
    let mut out = io::stdout().lock();
    if del.pool.json {
        json::write_line(&mut out, &json!({"deleted": deleted}))?;
    } else {
        writeln!(out, "{deleted} deleted")?;
    }
    Ok(if deleted > 0 { 0 } else { failure::NO })
}

/// Shows every live record to `visit`, until it returns false. One may be shown twice.
pub(crate) fn each_record(
    engine: &dyn StorageEngine,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    const AT_ONCE: usize = 256;
    let mut cursor = 0;
    loop {
        let mut more = Ok(true);
        cursor = engine.iterate(cursor, AT_ONCE, &mut |entry| {
            if matches!(more, Ok(true)) {
                more = visit(&entry);
            }
        })?;
        if !more? || cursor == 0 {
            return Ok(());
        }
    }
}
