//! People, and an index of them by city: ranges, prefixes and batches.
//!
//!     cargo run --example ordered_index
//!
//! The keys of an index sort in the order of its queries. A batch changes a record and its index together, so that no
//! reader and no power cut finds one without the other.
#![allow(clippy::print_stdout, reason = "a tutorial: it shows what it does")]

use coreplane::{Db, EngineChoice, Result, StoreConfig};

/// `person/00017`: numbers of a fixed width are in order as bytes, too.
fn person(id: u32) -> String {
    format!("person/{id:05}")
}

/// `city/Oslo/00017`, whose value is empty: the key has all the information.
fn in_city(city: &str, id: u32) -> String {
    format!("city/{city}/{id:05}")
}

/// Writes a person who lives in a city, and perhaps lived in another.
fn settle(db: &Db, id: u32, city: &str) -> Result<()> {
    let before = db.get(person(id))?;
    let mut batch = db.batch();
    if let Some(before) = before {
        batch.delete(in_city(&String::from_utf8_lossy(&before), id));
    }
    batch.put(person(id), city).put(in_city(city, id), "");
    // All of it or nothing; durable when it returns.
    batch.commit()?;
    Ok(())
}

/// The people in a city, by the index.
fn people_in(db: &Db, city: &str) -> Result<Vec<String>> {
    let prefix = format!("city/{city}/");
    // An iterator reads a page of entries at a time, so that an iteration may be of any length.
    db.prefix(&prefix)?
        .map(|entry| {
            let (key, _) = entry?;
            Ok(String::from_utf8_lossy(&key).replacen(&prefix, "", 1))
        })
        .collect()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let config = StoreConfig::at(directory.path().join("people.pool")).size(16 << 20);
    // bptree keeps keys in order; `list` and `cow-tree` do, too.
    let db = config.engine(EngineChoice::Bptree).create_db()?;

    for id in 0..300 {
        settle(&db, id, ["Bergen", "Oslo", "Tromsø"][id as usize % 3])?;
    }
    settle(&db, 4, "Bergen")?;

    let (bergen, oslo) = (people_in(&db, "Bergen")?, people_in(&db, "Oslo")?);
    println!("{} in Bergen, {} in Oslo", bergen.len(), oslo.len());
    assert_eq!((bergen.len(), oslo.len()), (101, 99));
    assert!(bergen.contains(&"00004".to_owned()) && !oslo.contains(&"00004".to_owned()));

    // Bounds are those of the standard library: included, excluded or open.
    let some = db.range(person(10)..person(15))?.count();
    assert_eq!((some, db.range(person(10)..=person(15))?.count()), (5, 6));

    // From the end: the last person, whose key is the greatest with this prefix.
    let last = db.prefix("person/")?.next_back().ok_or("there are people")??;
    println!("the last is {}", String::from_utf8_lossy(&last.0));
    assert_eq!(last.0, person(299).into_bytes());

    // The index and the records agree.
    assert_eq!(db.prefix("person/")?.count(), db.prefix("city/")?.count());
    db.close()?;
    Ok(())
}
