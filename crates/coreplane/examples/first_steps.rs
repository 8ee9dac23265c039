//! First steps: make a store, write, read, close it, and open it again.
//!
//!     cargo run --example first_steps
//!
//! It works in a temporary directory, on the medium of that directory, and checks everything that it prints.
#![allow(clippy::print_stdout, reason = "a tutorial: it shows what it does")]

use coreplane::{Db, EngineChoice, StoreConfig};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("first.pool");

    // A store lies in a pool: one file of a fixed size, 1 GiB by default. `Db::create(path, engine)` is the short
    // form of this.
    let db = StoreConfig::at(&path).engine(EngineChoice::Bptree).size(16 << 20).create_db()?;

    // The guarantees of the medium are known before anything depends on them.
    println!("the medium is {}; a power cut loses {}", db.medium().name, db.power_cut_loses());

    // Keys and values are bytes. A write is durable when it returns: there is nothing to flush.
    db.put("greeting", "hello")?;
    let value = db.get("greeting")?.ok_or("it was just written")?;
    println!("greeting: {}", String::from_utf8(value.clone())?);
    assert_eq!(value, b"hello");

    // A read of the record in place copies nothing.
    let len = db.get_with("greeting", |record| record.value.len())?;
    assert_eq!(len, Some(5));

    // A write that may be refused returns its outcome, and the compiler warns of an outcome that is not used.
    let outcome = db.put_if_absent("greeting", "good morning")?;
    println!("put_if_absent of a key that is there was made: {}", outcome.is_written());
    assert!(!outcome.is_written());

    // A record may expire.
    db.put_with_ttl("session", "17", Duration::from_secs(3600))?;
    let expires_at = db.get_with("session", |record| record.expires_at)?.flatten();
    assert!(expires_at > Some(db.now()));

    // A delete returns whether there was a record.
    assert!(db.delete("session")?);
    assert!(!db.delete("session")?);

    // An error has a remedy, and nothing of the write was made.
    let long = vec![0; db.engine().limits().key_len_max + 1];
    let error = db.put(&long, "v").expect_err("no key is that long");
    println!("{error}: {:?}", error.remedy());
    assert_eq!(error.remedy(), coreplane::Remedy::FixInput);

    // A closed store is opened at once. A store whose process was killed is recovered, and has lost nothing.
    db.close()?;
    drop(db);
    let db = Db::open(&path)?;
    println!("after a restart there are {} records", db.len()?);
    assert_eq!((db.len()?, db.get("greeting")?.as_deref()), (1, Some(&b"hello"[..])));
    Ok(())
}
