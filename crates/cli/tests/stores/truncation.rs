//! A pool whose file was truncated: the advised command works, and the whole records come back.

use crate::pool::{Place, Pool};
use crate::session::Outcome;
use serde_json::Value;

/// The remaining bytes of the pool.
const LEFT: usize = 24 << 20;

fn key(number: usize) -> String {
    format!("key:{number}")
}

fn value(number: usize) -> String {
    format!("{number:04}").repeat(2500)
}

/// A pool of 64 MiB with 3000 records of 10 kB, closed or not.
fn filled(place: &Place, more: &[&str], is_closed: bool) -> Outcome<Pool> {
    let pool = place.created("pool", &[&["--size", "64MiB"], more].concat())?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..3000 {
        client.call(&[b"SET", key(number).as_bytes(), value(number).as_bytes()])?;
    }
    if is_closed {
        served.terminate()?
    } else {
        served.kill()?
    }
    Ok(pool)
}

/// For any engine a part of the pool comes back, and no record that was never written.
fn is_given_back(more: &[&str], is_closed: bool, left: usize, whole_min: usize) -> Outcome<()> {
    let case = format!("{more:?} {is_closed} {left}");
    let place = Place::in_memory()?;
    let pool = filled(&place, more, is_closed)?;
    let bytes = pool.bytes()?;
    pool.put_bytes(&bytes[..left])?;
    // Each command names the remedy, and nothing is changed.
    for command in [&["verify"][..], &["get", "key:1"], &["put", "a", "b"]] {
        pool.says(2, &["verify --repair"], command)?;
    }
    assert!(pool.bytes()? == bytes[..left], "it was changed");
    let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
    assert_eq!(code, 1, "{case}: {said}");
    let cut = format!("the file was cut short: {left} of 67108864 bytes");
    assert!(said.contains(&cut) && said.contains("\nsound: "), "{case}: {said}");
    pool.is_sound()?;
    let mut whole = 0;
    for line in pool.expect(0, &["dump"])?.lines() {
        let record: Value = serde_json::from_str(line)?;
        let name = record["key"].as_str().ok_or("no key")?;
        let number = name.strip_prefix("key:").ok_or("a key of nobody")?.parse()?;
        assert_eq!(record["value"].as_str(), Some(&*value(number)), "{case}: {name}");
        whole += 1;
    }
    assert!((whole_min..3000).contains(&whole), "{case}: {whole} records");
    pool.expect(0, &["put", "new", "value"])?;
    assert!(pool.expect(0, &["verify", "--repair"])?.starts_with("sound: "), "{case}");
    Ok(())
}

#[test]
fn what_is_whole_comes_back() -> Outcome<()> {
    for index in ["pmem", "dram"] {
        for is_closed in [true, false] {
            // 24 of 64 MiB are left, and most of them had records.
            is_given_back(&["--index", index], is_closed, LEFT, 1500)?;
        }
    }
    Ok(())
}

/// At the end of a page, and within one.
#[test]
fn what_is_whole_comes_back_in_order() -> Outcome<()> {
    for (engine, whole_min) in [("bptree", 900), ("list", 1500), ("cow-tree", 1000)] {
        for (is_closed, left) in
            [(true, LEFT), (false, LEFT), (false, LEFT + 5_000), (true, LEFT - 3_001)]
        {
            is_given_back(&["--engine", engine], is_closed, left, whole_min)?;
        }
    }
    Ok(())
}

/// A repair that is killed once the file has its length again, or that fails, leaves a pool that still reports its
/// state.
#[test]
fn a_repair_that_is_cut_off_is_begun_anew() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, &["--index", "dram"], false)?;
    let bytes = pool.bytes()?;
    pool.put_bytes(&bytes[..LEFT])?;
    // /dev/shm is not persistent memory: nothing is done.
    let (code, _) = pool.ask(&["verify", "--repair", "--media", "dax"], b"")?;
    assert!(code == 2 && pool.bytes()? == bytes[..LEFT], "{code}");
    let mut long = bytes[..LEFT].to_vec();
    long.resize(bytes.len(), 0);
    pool.put_bytes(&long)?;
    let mark = place.path("pool.cut-short");
    std::fs::write(&mark, format!("{LEFT}\n"))?;
    // A copy that was put in its place meanwhile.
    pool.put_bytes(&bytes)?;
    pool.says(2, &["replaced since, remove"], &["verify"])?;
    std::fs::remove_file(&mark)?;
    pool.is_sound()?;
    std::fs::write(&mark, format!("{LEFT}\n"))?;
    pool.put_bytes(&long)?;
    for command in [&["verify"][..], &["get", "key:1"], &["put", "a", "b"]] {
        pool.says(2, &["verify --repair"], command)?;
    }
    assert!(pool.bytes()? == long, "it was changed");
    let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("the file was cut short: 25165824 of 67108864 bytes"), "{said}");
    assert!(!mark.exists(), "it is repaired");
    pool.is_sound()?;
    Ok(())
}

#[test]
fn a_damaged_copy_of_the_root_is_restored_from_the_other() -> Outcome<()> {
    for engine in ["scmkv", "bptree", "list", "cow-tree"] {
        let place = Place::in_memory()?;
        let pool = place.created("pool", &["--size", "16MiB", "--engine", engine])?;
        pool.expect(0, &["put", "a", "b"])?;
        let bytes = pool.bytes()?;
        for at in [520, 1032] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            pool.put_bytes(&damaged)?;
            pool.says(2, &["root slot"], &["verify"])?;
            let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
            assert!(code == 1 && said.contains("root slot"), "{engine}, {at}: {code}, {said}");
            pool.is_sound()?;
            assert!(pool.expect(0, &["dump"])?.contains("\"a\""), "{engine}, {at}");
        }
    }
    Ok(())
}

#[test]
fn nobody_is_sent_in_a_circle() -> Outcome<()> {
    for engine in ["list", "cow-tree"] {
        let place = Place::in_memory()?;
        let pool = filled(&place, &["--engine", engine], true)?;
        assert!(pool.expect(0, &["verify", "--repair"])?.starts_with("sound: "), "{engine}");
        let mut bytes = pool.bytes()?;
        bytes[LEFT..LEFT + 64].fill(0x99);
        pool.put_bytes(&bytes)?;
        for command in [&["verify"][..], &["verify", "--repair"]] {
            let (code, said) = pool.ask(command, b"")?;
            assert!(code > 0 && !said.contains("--repair"), "{engine}: {said}");
        }
        pool.says(2, &["does not support"], &["verify", "--repair"])?;
    }
    // If a repair is not possible, it is not advised, whatever is damaged.
    let place = Place::in_memory()?;
    let pool = filled(&place, &[], true)?;
    let bytes = pool.bytes()?;
    let damaged = |range: std::ops::Range<usize>| -> Outcome<()> {
        let mut bytes = bytes.clone();
        bytes[range].fill(0x99);
        pool.put_bytes(&bytes)?;
        for command in [&["verify"][..], &["verify", "--repair"]] {
            pool.says(2, &["restore it from a copy"], command)?;
            let (_, said) = pool.ask(command, b"")?;
            assert!(!said.contains("--repair"), "{said}");
        }
        Ok(())
    };
    damaged(20..24)?;
    // Both copies of the root: a repair is tried first.
    let mut cut = bytes.clone();
    cut[512..1536].fill(0x99);
    pool.put_bytes(&cut)?;
    pool.says(2, &["restore it from a copy"], &["verify", "--repair"])?;
    Ok(())
}
