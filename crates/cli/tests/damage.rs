//! The report of a verification about damage: each once, with the keys that it concerns.

mod pool;
mod session;

use pool::Place;
use serde_json::{Value, json};
use session::Outcome;
use std::path::Path;

/// Flips a bit at each occurrence of the marker in the file.
fn damage(path: &Path, marker: &str) -> Outcome<()> {
    let mut bytes = std::fs::read(path)?;
    let is_marker = |at: &usize| bytes[*at..].starts_with(marker.as_bytes());
    let places: Vec<usize> = (0..bytes.len() - marker.len()).filter(is_marker).collect();
    assert!(!places.is_empty(), "no marker in {}", path.display());
    places.into_iter().for_each(|at| bytes[at + 3] ^= 0x10);
    Ok(std::fs::write(path, bytes)?)
}

/// Damage of a matrix's device is reported with its keys, and the records behind it are still checked.
#[test]
fn the_damage_of_a_device_is_told_by_its_matrix() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB", "--matrix", "1x2"])?;
    let marker = "a value that is looked for in the file";
    // So many that the membership record is in another leaf.
    let lines: Vec<String> = (0..5000)
        .map(|number| {
            let value =
                if number == 2500 { marker } else { "some other value of that length at least" };
            json!({"key": format!("key:{number:05}"), "value": value}).to_string()
        })
        .collect();
    pool.expect_with(0, &["load"], lines.join("\n").as_bytes())?;
    damage(&place.path("pool").join("g0d1"), marker)?;
    let verdict: Value = serde_json::from_str(&pool.expect(1, &["verify", "--json"])?)?;
    let told = verdict["damages"].to_string();
    assert!(told.contains("g0d1: "), "{verdict}");
    let said = pool.expect(1, &["verify"])?;
    assert!(said.contains("DAMAGED") && said.contains("damaged at offset"), "{said}");
    pool.expect(1, &["matrix", "scrub"])?;
    pool.is_sound()
}

#[test]
fn a_damage_is_told_once_and_names_its_key() -> Outcome<()> {
    for (engine, more) in
        [("scmkv", &["--index", "pmem"][..]), ("bptree", &[]), ("list", &[]), ("cow-tree", &[])]
    {
        let place = Place::in_memory()?;
        let created = [&["--size", "64MiB", "--engine", engine], more].concat();
        let pool = place.created("pool", &created)?;
        let marker = "a value that is looked for in the file";
        for (key, value) in [("before", "x"), ("greeting", marker), ("later", "y")] {
            pool.expect(0, &["put", key, value])?;
        }
        pool.is_sound()?;
        let mut bytes = pool.bytes()?;
        let places: Vec<usize> = (0..bytes.len() - marker.len())
            .filter(|at| bytes[*at] == b'a' && bytes[*at..].starts_with(marker.as_bytes()))
            .collect();
        for at in places {
            bytes[at + 3] ^= 0x10;
        }
        pool.put_bytes(&bytes)?;
        let verdict: Value = serde_json::from_str(&pool.expect(1, &["verify", "--json"])?)?;
        let damages = verdict["damages"].as_array().ok_or("no damages")?;
        let offsets: Vec<_> = damages.iter().map(|damage| damage["offset"].as_u64()).collect();
        assert_eq!(damages.len(), 1, "{engine} {more:?}: {offsets:?} {verdict}");
        // After an open bptree does not know the key of the record: it names the keys that it may have been.
        let is_known = engine != "bptree";
        let key = if is_known { "greeting" } else { "before" };
        assert_eq!(damages[0]["keys"], json!([{"key": key}]), "{engine} {more:?}");
        let said = pool.expect(1, &["verify"])?;
        assert_eq!(said.matches("damaged at offset").count(), 1, "{said}");
        assert!(said.contains(&format!("\n    {key}\n")), "{said}");
        assert!(is_known || said.contains("some keys may not be the newest"), "{said}");
        assert!(pool.bytes()? == bytes, "a damaged pool is left as it is");
    }
    Ok(())
}
