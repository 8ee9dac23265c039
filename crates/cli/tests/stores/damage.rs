//! The report of a verification about damage: each once, with the keys that it concerns.

use crate::pool::{Place, Pool};
use crate::session::{Outcome, Reply};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
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

/// Bytes of a device that are left.
const LEFT: usize = 32 << 20;
/// So many that the membership record is in another leaf than most of them.
const KEYS: usize = 5000;

fn key(number: usize) -> String {
    format!("key:{number:05}")
}

fn value(number: usize) -> String {
    format!("the value of {number:05} that is looked for")
}

/// A server of the matrix has every record.
fn has_all(matrix: &Pool) -> Outcome<()> {
    let served = matrix.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..KEYS {
        let reply = client.call(&[b"GET", key(number).as_bytes()])?;
        assert_eq!(reply, Reply::bulk(value(number)), "{number}");
    }
    served.terminate()
}

/// A matrix of such a shape that was killed with these records.
fn killed(place: &Place, engine: &str, shape: &str) -> Outcome<Pool> {
    let name = format!("{engine}-{shape}");
    let arguments = ["--size", "64MiB", "--matrix", shape, "--engine", engine];
    let matrix = place.created(&name, &arguments)?;
    let served = matrix.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..KEYS {
        client.call(&[b"SET", key(number).as_bytes(), value(number).as_bytes()])?;
    }
    served.kill()?;
    Ok(matrix)
}

/// A repair of one device would delete on its peer what it gives up.
#[test]
fn a_device_with_damaged_records_is_not_repaired_by_itself() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv", "list", "cow-tree"] {
        let matrix = killed(&place, engine, "2x2")?;
        // Whatever its file is called.
        let device = place.pool(&format!("{engine} device"))?;
        std::fs::rename(matrix.path.join("g0d1"), &device.path)?;
        symlink(&device.path, matrix.path.join("g0d1"))?;
        let bytes = device.bytes()?;
        let is_there = |number: &usize| {
            let value = value(*number).into_bytes();
            bytes.windows(value.len()).any(|bytes| bytes == value)
        };
        let number = (KEYS / 2..KEYS).find(is_there).ok_or("no record of the device")?;
        damage(&device.path, &value(number))?;
        let bytes = device.bytes()?;
        let (code, said) = device.ask(&["verify"], b"")?;
        assert!(code > 0 && said.contains("matrix scrub"), "{engine}: {said}");
        device.says(2, &["is a device of a matrix"], &["verify", "--repair"])?;
        device.says(2, &["matrix scrub"], &["verify", "--repair"])?;
        assert!(device.bytes()? == bytes, "{engine}: it was changed");
        // After a kill a matrix of these two maps is not opened beside such damage.
        if matches!(engine, "bptree" | "scmkv") {
            has_all(&matrix)?;
        }
        matrix.remove()?;
    }
    Ok(())
}

/// Its file does not get its length back: so the matrix still goes on without it.
#[test]
fn a_device_that_was_cut_short_is_not_repaired_by_itself() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv", "list", "cow-tree"] {
        let matrix = killed(&place, engine, "2x2")?;
        let device = Pool::at(&matrix.path.join("g0d1"))?;
        let bytes = device.bytes()?;
        device.put_bytes(&bytes[..LEFT])?;
        let (code, said) = device.ask(&["verify"], b"")?;
        assert!(code == 2 && said.contains("of a device of a matrix"), "{engine}: {said}");
        device.says(2, &["is a device of a matrix"], &["verify", "--repair"])?;
        assert!(device.bytes()? == bytes[..LEFT], "{engine}: it was changed");
        has_all(&matrix)?;
        matrix.remove()?;
        // A device without a peer is repaired, if its user says so.
        let alone = killed(&place, engine, "1x1")?;
        let device = Pool::at(&alone.path.join("g0d0"))?;
        let bytes = device.bytes()?;
        device.put_bytes(&bytes[..LEFT])?;
        device.says(2, &["--accept-loss"], &["verify", "--repair"])?;
        device.says(1, &["\nsound: "], &["verify", "--repair", "--accept-loss"])?;
        let served = alone.serve(&[])?;
        assert_eq!(served.connect()?.call(&[b"SET", b"new", b"v"])?, Reply::ok());
        served.terminate()?;
        alone.remove()?;
    }
    Ok(())
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
