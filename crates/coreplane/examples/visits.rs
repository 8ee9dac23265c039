//! A program that opens a pool which a server has left, reads a record, and counts another up: `visits POOL`. Without
//! POOL it makes one for itself.
//!
//! docs/first-steps.md runs it: `cargo run -p coreplane --example visits -- POOL`
#![allow(clippy::print_stdout, reason = "a program for people: what it prints is its result")]

use coreplane::{Db, EngineChoice, StoreConfig};
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        count(&PathBuf::from(path))?;
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let path = place.path().join("visits.pool");
    let db = StoreConfig::at(&path).engine(EngineChoice::Scmkv).size(16 << 20).create_db()?;
    db.put("greeting", "hello")?;
    db.put("visits", "41")?;
    db.close()?;
    drop(db);
    assert_eq!(count(&path)?, 42);
    Ok(())
}

/// Counts a visit of the store at `path`; the number of visits.
fn count(path: &Path) -> Result<u64, Box<dyn Error>> {
    let db = Db::open(path)?;
    let greeting = db.get("greeting")?.ok_or("the pool has no greeting")?;
    println!("greeting: {}", String::from_utf8_lossy(&greeting));
    let visits = db.get("visits")?.ok_or("the pool has no visits")?;
    let visits = std::str::from_utf8(&visits)?.parse::<u64>()? + 1;
    db.put("visits", visits.to_string())?;
    println!("visits: {visits}");
    db.close()?;
    Ok(visits)
}
