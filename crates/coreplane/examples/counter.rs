//! A counter that several threads raise, without a lock: compare and set.
//!
//!     cargo run --example counter
//!
//! No step is lost, and every step made is durable.
#![allow(clippy::print_stdout, reason = "a tutorial: it shows what it does")]

use coreplane::{Db, Mutation, Result, StoreConfig};

const THREADS: u64 = 4;
const STEPS: u64 = 250;

/// The stored number; zero if there is none.
fn number(value: Option<&[u8]>) -> u64 {
    let bytes = value.and_then(|value| value.try_into().ok());
    u64::from_le_bytes(bytes.unwrap_or_default())
}

/// Reads the counter, and writes the next number unless it was written meanwhile; else tries again. The number of
/// further attempts.
fn raise(db: &Db) -> Result<u64> {
    let mut again = 0;
    loop {
        let seen = db.get("counter")?;
        let next = number(seen.as_deref()) + 1;
        // The expectation is the result of the read: a value, or that there is none.
        if db.compare_and_set("counter", seen.as_deref(), next.to_le_bytes())?.is_written() {
            return Ok(again);
        }
        again += 1;
    }
}

/// The same in one call, which never has to try again: the key is locked while the closure decides.
fn raise_at_once(db: &Db) -> Result<()> {
    let outcome = db.modify("other counter", |record| {
        let value = record.map(|record| record.value.to_vec());
        let next = number(value.as_deref()) + 1;
        Mutation::Put { value: next.to_le_bytes().to_vec(), expires_at: None }
    })?;
    assert!(outcome.is_written());
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    // The default engine is scmkv, the fastest for single keys.
    let db = StoreConfig::at(directory.path().join("counter.pool")).size(16 << 20).create_db()?;

    // A clone of a handle is cheap and goes to any thread.
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let db = db.clone();
            std::thread::spawn(move || -> Result<u64> {
                let mut again = 0;
                for _ in 0..STEPS {
                    again += raise(&db)?;
                    raise_at_once(&db)?;
                }
                Ok(again)
            })
        })
        .collect();
    let mut again = 0;
    for thread in threads {
        again += thread.join().map_err(|_| "a thread has panicked")??;
    }

    let counted = number(db.get("counter")?.as_deref());
    println!("{THREADS} threads made {STEPS} steps each: {counted}, after {again} more attempts");
    assert_eq!(counted, THREADS * STEPS);
    assert_eq!(number(db.get("other counter")?.as_deref()), THREADS * STEPS);
    db.close()?;
    Ok(())
}
