//! A program that opens a pool which a server has left, reads a record, and counts another up: `visits POOL`.
//!
//! docs/first-steps.md runs it.
#![allow(clippy::print_stdout, reason = "a program for people: what it prints is its result")]

use coreplane::Db;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: visits POOL")?;
    let db = Db::open(path)?;
    let greeting = db.get("greeting")?.ok_or("the pool has no greeting")?;
    println!("greeting: {}", String::from_utf8_lossy(&greeting));
    let visits = db.get("visits")?.ok_or("the pool has no visits")?;
    let visits = std::str::from_utf8(&visits)?.parse::<u64>()? + 1;
    db.put("visits", visits.to_string())?;
    println!("visits: {visits}");
    db.close()?;
    Ok(())
}
