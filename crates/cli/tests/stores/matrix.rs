//! The life of a matrix as its users see it: devices that are lost and replaced, a group that is added, damage that
//! is healed; in a directory, and behind a server that goes on.

use crate::pool::{Place, Pool};
use crate::session::{self, Client, Outcome, Reply, Served};
use serde_json::Value;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    format!("the value of {number:05}").into_bytes()
}

fn fill(client: &mut Client, numbers: std::ops::Range<u64>) -> Outcome<()> {
    for number in numbers {
        assert_eq!(client.call(&[b"SET", &key(number), &value(number)])?, Reply::ok());
    }
    Ok(())
}

fn check(client: &mut Client, numbers: std::ops::Range<u64>) -> Outcome<()> {
    for number in numbers {
        let found = client.call(&[b"GET", &key(number)])?;
        assert_eq!(found, Reply::bulk(value(number)), "{number}");
    }
    Ok(())
}

fn remove(matrix: &Pool, device: &str) -> Outcome<()> {
    Ok(std::fs::remove_file(matrix.path.join(device))?)
}

fn created(place: &Place, engine: &str, keys: u64) -> Outcome<Pool> {
    let matrix =
        place.created(engine, &["--matrix", "2x2", "--engine", engine, "--size", "32MiB"])?;
    let served = matrix.serve(&[])?;
    fill(&mut served.connect()?, 0..keys)?;
    served.terminate()?;
    Ok(matrix)
}

#[test]
fn a_lost_device_is_replaced_and_carries_the_group_alone() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv", "list", "cow-tree"] {
        let matrix = created(&place, engine, 500)?;
        matrix.says(
            2,
            &["g0d0 is a current device"],
            &["matrix", "replace", "--device", "g0d0"],
        )?;
        matrix.says(2, &["no place g2d0"], &["matrix", "replace", "--device", "g2d0"])?;
        remove(&matrix, "g0d1")?;
        let status = matrix.expect(0, &["matrix", "status", "--json"])?;
        assert!(status.contains("\"degraded\":true"), "{status}");
        let limited = ["matrix", "replace", "--device", "g0d1", "--limit", "100MiB", "--json"];
        let filled = matrix.expect(0, &limited)?;
        assert!(filled.contains("\"records\":") && filled.contains("bytes_per_second"), "{filled}");
        let status = matrix.expect(0, &["matrix", "status", "--json"])?;
        assert!(status.contains("\"degraded\":false"), "{status}");
        matrix.is_sound()?;
        // The device that it was filled from is lost now.
        remove(&matrix, "g0d0")?;
        let served = matrix.serve(&[])?;
        check(&mut served.connect()?, 0..500)?;
        served.terminate()?;
    }
    Ok(())
}

/// A device was left out, and its peer is lost for good: the missing writes are reported, and accepted or not; the
/// peer is refused when it comes back.
#[test]
fn one_that_was_left_out_stands_for_its_group_if_that_is_accepted() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = created(&place, "bptree", 100)?;
    let (there, out) = (matrix.path.join("g0d1"), place.path("g0d1.out"));
    std::fs::rename(&there, &out)?;
    matrix.says(0, &["degraded: g0d1 is missing"], &["put", "without", "it"])?;
    std::fs::rename(matrix.path.join("g0d0"), place.path("g0d0.out"))?;
    std::fs::rename(&out, &there)?;
    matrix.says(2, &["g0d1 is, which was left out (epoch"], &["get", "key 00001"])?;
    let lost = "group 0 goes on with g0d1 (epoch";
    matrix.says(0, &[lost], &["put", "more", "value", "--accept-loss"])?;
    // From here on this state is permanent.
    let status = matrix.expect(0, &["matrix", "status", "--json"])?;
    assert!(status.contains("\"losses\":[]") && status.contains("\"degraded\":true"), "{status}");
    matrix.expect(0, &["get", "key 00001"])?;
    std::fs::rename(place.path("g0d0.out"), matrix.path.join("g0d0"))?;
    matrix.says(2, &["g0d0 was replaced by another"], &["get", "key 00001"])?;
    std::fs::rename(matrix.path.join("g0d0"), place.path("g0d0.out"))?;
    // The server reports it, too.
    let served = matrix.serve(&[])?;
    let status = session::expect(0, &["matrix", "status", "--json", "--server", &served.address])?;
    assert!(status.contains("\"degraded\":true"), "{status}");
    served.terminate()?;
    matrix.expect(0, &["matrix", "replace", "--device", "g0d0"])?;
    matrix.is_sound()
}

/// A command that only reads a matrix changes nothing in it, even if it was killed and a device is missing.
#[test]
fn looking_changes_nothing() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv"] {
        let matrix = created(&place, engine, 100)?;
        let looks = || -> Outcome<String> {
            let status = matrix.expect(0, &["matrix", "status", "--json"])?;
            assert!(status.contains("\"records\":100"), "{status}");
            matrix.expect(0, &["info", "--json"])?;
            assert_eq!(
                matrix.expect(0, &["get", "key 00007"])?.as_bytes(),
                [value(7), vec![b'\n']].concat()
            );
            matrix.says(1, &["no such key"], &["get", "key 00100"])?;
            Ok(status)
        };
        let bytes = || -> Outcome<Vec<Vec<u8>>> {
            let names = ["g0d0", "g1d0", "g1d1"];
            names.iter().map(|name| Ok(std::fs::read(matrix.path.join(name))?)).collect()
        };
        let closed = bytes()?;
        assert!(looks()?.contains("\"degraded\":false"));
        assert!(bytes()? == closed, "{engine}: it was closed, and is changed");
        let served = matrix.serve(&[])?;
        assert_eq!(served.connect()?.call(&[b"SET", b"key 00000", b"new"])?, Reply::ok());
        served.kill()?;
        let killed = bytes()?;
        let (there, out) = (matrix.path.join("g0d1"), place.path("g0d1.out"));
        std::fs::rename(&there, &out)?;
        assert!(looks()?.contains("\"degraded\":true"));
        assert!(bytes()? == killed, "{engine}: it was killed, and is changed");
        // So it is whole when the device is back.
        std::fs::rename(&out, &there)?;
        let status = matrix.expect(0, &["matrix", "status", "--json"])?;
        assert!(status.contains("\"degraded\":false"), "{status}");
        assert_eq!(matrix.expect(0, &["get", "key 00000"])?, "new\n");
    }
    Ok(())
}

#[test]
fn a_group_is_added_and_damage_is_healed() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = created(&place, "scmkv", 500)?;
    let grown = matrix.expect(0, &["matrix", "add-group", "--json"])?;
    assert!(grown.contains("\"records\":"), "{grown}");
    let status = matrix.expect(0, &["matrix", "status"])?;
    assert!(status.contains("g2d1     current") && status.contains("records  500"), "{status}");
    matrix.is_sound()?;
    let scrubbed = matrix.expect(0, &["matrix", "scrub", "--json"])?;
    assert!(scrubbed.contains("\"repaired\":[]"), "{scrubbed}");
    // One bit of one value on one device.
    let (mut flipped, needle) = (0, value(77));
    for group in 0..3 {
        let path = matrix.path.join(format!("g{group}d0"));
        let bytes = std::fs::read(&path)?;
        let file = std::fs::File::options().write(true).open(&path)?;
        for (at, window) in bytes.windows(needle.len()).enumerate() {
            if window == needle {
                file.write_all_at(&[window[3] ^ 1], at as u64 + 3)?;
                flipped += 1;
            }
        }
    }
    assert!(flipped >= 1);
    let scrubbed = matrix.expect(1, &["matrix", "scrub", "--json"])?;
    assert!(scrubbed.contains("d0\"") && scrubbed.contains("\"lost\":[]"), "{scrubbed}");
    assert!(matrix.expect(0, &["matrix", "scrub"])?.contains("repaired          []"));
    let shown = matrix.expect(0, &["get", "key 00077"])?;
    assert_eq!(shown.trim_end().as_bytes(), needle);
    Ok(())
}

/// Writes and reads back until it is told to stop; counts the acknowledged writes.
fn load(mut client: Client, stop: &AtomicBool, acknowledged: &AtomicU64) -> Outcome<()> {
    while !stop.load(Ordering::Relaxed) {
        let number = acknowledged.load(Ordering::Relaxed);
        fill(&mut client, number..number + 1)?;
        acknowledged.store(number + 1, Ordering::Relaxed);
        check(&mut client, number / 2..number / 2 + 1)?;
    }
    Ok(())
}

#[test]
fn a_server_goes_on_while_its_matrix_is_looked_after() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = created(&place, "bptree", 2000)?;
    remove(&matrix, "g1d0")?;
    let served = matrix.serve(&[])?;
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(2000));
    let look_after = |served: &Served| -> Outcome<()> {
        let asked = |words: &[&str]| {
            let server = ["--server", &served.address, "--json"];
            session::expect(0, &[&["matrix"], words, &server].concat())
        };
        assert!(asked(&["status"])?.contains("\"state\":\"absent\""));
        asked(&["replace", "--device", "g1d0"])?;
        assert!(!asked(&["status"])?.contains("absent"));
        let again = ["matrix", "replace", "--device", "g1d0", "--server", &served.address];
        // The same result as without a server.
        session::expect(2, &again)?;
        asked(&["add-group", "--limit", "200MiB"])?;
        let status = asked(&["status"])?;
        assert!(status.contains("g2d1") && status.contains("\"slots_moving\":0"), "{status}");
        asked(&["scrub"])?;
        Ok(())
    };
    std::thread::scope(|scope| {
        let client = served.connect()?;
        let writer =
            scope.spawn(|| load(client, &stop, &acknowledged).map_err(|it| it.to_string()));
        let looked = look_after(&served);
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends")?;
        looked
    })?;
    let mut client = served.connect()?;
    let Reply::Bulk(Some(info)) = client.call(&[b"INFO", b"matrix"])? else {
        return Err("INFO is a text".into());
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(info.contains("matrix_enabled:1") && info.contains("matrix_groups:3"), "{info}");
    assert!(matches!(client.call(&[b"MATRIX", b"NONSENSE"])?, Reply::Failed(_)));
    let total = acknowledged.load(Ordering::Relaxed);
    served.kill()?;
    // One device of each group is enough.
    for device in ["g0d0", "g1d1"] {
        remove(&matrix, device)?;
    }
    let served = matrix.serve(&[])?;
    check(&mut served.connect()?, 0..total)?;
    served.terminate()?;
    matrix.is_sound()?;
    Ok(())
}

/// A multiple of the page size of either engine.
const BLOCK: usize = 16 << 10;

/// A matrix whose device g0d0 is damaged, except its first page, which identifies it, and blocks that contain
/// `spared`.
fn damaged(place: &Place, engine: &str, keys: u64, spared: Option<&[u8]>) -> Outcome<Pool> {
    let matrix = created(place, engine, keys)?;
    let path = matrix.path.join("g0d0");
    let file = std::fs::File::options().write(true).open(&path)?;
    let bytes = std::fs::read(&path)?;
    let is_spared = |block: &[u8]| {
        spared.is_some_and(|spared| block.windows(spared.len()).any(|it| it == spared))
    };
    for (number, block) in bytes.chunks(BLOCK).enumerate().skip(65_536 / BLOCK) {
        if !is_spared(block) {
            for at in (number * BLOCK..(number + 1) * BLOCK).step_by(4096) {
                file.write_all_at(&[0xa5; 512], at as u64)?;
            }
        }
    }
    Ok(matrix)
}

#[test]
fn a_device_whose_pool_is_damaged_is_left_out_until_it_is_replaced() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = damaged(&place, "scmkv", 300, None)?;
    let status = matrix.expect(0, &["matrix", "status"])?;
    assert!(status.contains("g0d0     absent") && status.contains("is left out: "), "{status}");
    matrix.expect(2, &["matrix", "replace", "--device", "g0d0"])?;
    matrix.expect(0, &["matrix", "replace", "--device", "g0d0", "--fresh"])?;
    let status = matrix.expect(0, &["matrix", "status"])?;
    assert!(status.contains("g0d0     current"), "{status}");
    remove(&matrix, "g0d1")?;
    let served = matrix.serve(&[])?;
    check(&mut served.connect()?, 0..300)?;
    served.terminate()
}

/// Damage costs a tree keys and not the device, if the device can still be identified: its peer answers for them
/// until a scrub.
#[test]
fn a_device_whose_leaves_are_damaged_is_healed_by_a_scrub() -> Outcome<()> {
    let place = Place::in_memory()?;
    const KEYS: u64 = 3000;
    let matrix = damaged(&place, "bptree", KEYS, Some(b"\0coreplane matrix\0membership"))?;
    let served = matrix.serve(&[])?;
    check(&mut served.connect()?, 0..KEYS)?;
    served.terminate()?;
    // The report names the remedy that heals it, and not one that does not.
    let (code, report) = matrix.ask(&["verify"], b"")?;
    assert!(code > 0 && report.contains("matrix scrub"), "{report}");
    assert!(!report.contains("--repair"), "{report}");
    let scrubbed: Value = serde_json::from_str(&matrix.expect(1, &["matrix", "scrub", "--json"])?)?;
    assert!(scrubbed["settled"].is_array(), "{scrubbed}");
    matrix.expect(0, &["matrix", "scrub"])?;
    remove(&matrix, "g0d1")?;
    let served = matrix.serve(&[])?;
    check(&mut served.connect()?, 0..KEYS)?;
    served.terminate()
}

/// The parts of a status that do not change by themselves.
fn lasting(status: &str) -> Outcome<Value> {
    let mut status: Value = serde_json::from_str(status)?;
    assert!(status["epoch"].as_u64() > Some(0), "{status}");
    for name in ["live_bytes", "free_bytes", "dram_bytes", "work", "epoch"] {
        status[name] = Value::Null;
        for device in status["devices"].as_array_mut().into_iter().flatten() {
            device[name] = Value::Null;
        }
    }
    Ok(status)
}

#[test]
fn a_matrix_says_what_it_is_by_either_route() -> Outcome<()> {
    let place = Place::in_memory()?;
    let arguments = ["--matrix", "2x3", "--ack", "majority", "--size", "32MiB"];
    let scmkv = ["--engine", "scmkv", "--index", "pmem"];
    let matrix = place.created("m", &[&arguments[..], &scmkv].concat())?;
    let status = lasting(&matrix.expect(0, &["matrix", "status", "--json"])?)?;
    for (name, value) in
        [("shape", "2x3"), ("ack", "majority"), ("prototype", "mkvs"), ("device_engine", "scmkv")]
    {
        assert_eq!(status[name], value, "{status}");
    }
    assert_eq!(status["records"], 0, "{status}");
    assert_eq!(status["pool_bytes"], 6 * (32 << 20), "{status}");
    assert_eq!(status["devices"][4]["device"], "g1d1");
    assert_eq!(status["devices"][4]["engine"], "scmkv");
    assert_eq!(status["devices"][4]["pool_bytes"], 32 << 20);
    let info: Value = serde_json::from_str(&matrix.expect(0, &["info", "--json"])?)?;
    for (name, value) in [("index", "pmem"), ("shape", "2x3"), ("ack", "majority")] {
        assert_eq!(info[name], value, "{info}");
    }
    let (socket, password) = (place.argument("socket")?, place.argument("password")?);
    std::fs::write(&password, "open sesame\n")?;
    let served = matrix.serve(&["--unixsocket", &socket, "--requirepass-file", &password])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"AUTH", b"open sesame"])?, Reply::ok());
    let Reply::Bulk(Some(told)) = client.call(&[b"INFO", b"matrix"])? else {
        return Err("INFO is a text".into());
    };
    let told = String::from_utf8(told)?;
    for line in ["matrix_shape:2x3", "matrix_ack:majority", "matrix_device_engine:scmkv"] {
        assert!(told.contains(line), "{told}");
    }
    for address in [&served.address, &socket] {
        let server = ["--server", address, "--password-file", &password];
        let asked =
            |code, words: &[&str]| session::expect(code, &[&["matrix"], words, &server].concat());
        // The first answer of a server does not know yet which devices have lost records.
        let by_server = lasting(&asked(0, &["status", "--json"])?)?;
        assert_eq!(by_server, status);
        assert!(asked(0, &["status"])?.contains("matrix   2x3, mkvs, ack majority, epoch "));
        let one: Value =
            serde_json::from_str(&asked(0, &["status", "--device", "g0d2", "--json"])?)?;
        assert_eq!(one["devices"].as_array().map(Vec::len), Some(1), "{one}");
        assert_eq!(one["devices"][0]["device"], "g0d2");
        asked(0, &["scrub", "--device", "g1d2"])?;
        for wrong in [&["status"][..], &["scrub"], &["replace"]] {
            asked(2, &[wrong, &["--device", "g2d0"]].concat())?;
        }
    }
    session::expect(3, &["matrix", "status", "--json", "--server", &served.address])?;
    served.terminate()?;
    for wrong in [&["status"][..], &["scrub"], &["replace"]] {
        matrix.expect(2, &[&["matrix"], wrong, &["--device", "g2d0"]].concat())?;
    }
    matrix.expect(0, &["matrix", "scrub", "--device", "g0d1"])?;
    Ok(())
}

#[test]
fn a_matrix_is_not_opened_as_what_it_is_not() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = created(&place, "bptree", 10)?;
    let single = place.created("single", &["--size", "64MiB"])?;
    let serve = ["serve", "--port", "0"];
    for (word, wrong) in [
        ("the ack of this matrix is all, not first", ["--ack", "first"]),
        ("the prototype of this matrix is mkvs, not mkvs-gekv", ["--prototype", "mkvs-gekv"]),
        ("the engine of g0d0 of this matrix is bptree, not scmkv", ["--engine", "scmkv"]),
    ] {
        matrix.says(2, &[word], &[&serve[..], &wrong].concat())?;
    }
    single.says(2, &["is a single pool"], &[&serve[..], &["--ack", "first"]].concat())?;
    let bench = ["bench", "--workload", "load", "--records", "100", "--beside-others", "--json"];
    matrix.says(2, &["not scmkv"], &[&bench[..], &["--engine", "scmkv"]].concat())?;
    let line: Value = serde_json::from_str(&matrix.expect(0, &bench)?)?;
    assert_eq!((&line["matrix"]["shape"], &line["matrix"]["ack"]), (&"2x2".into(), &"all".into()));
    let same = ["--ack", "all", "--prototype", "mkvs", "--engine", "bptree"];
    matrix.serve(&same)?.terminate()?;
    // A pool that is no matrix is refused with the same error on either route.
    single.expect(64, &["matrix", "status"])?;
    let served = single.serve(&[])?;
    session::expect(64, &["matrix", "status", "--json", "--server", &served.address])?;
    served.terminate()?;
    matrix.is_sound()
}

/// Each prototype is created, stays the same, and reports its devices.
#[test]
fn the_three_prototypes_are_served_as_they_were_made() -> Outcome<()> {
    let place = Place::in_memory()?;
    for (prototype, devices) in [("mkvs", 4), ("mkvs-gekv", 4), ("mkvs-ekv", 1)] {
        let arguments =
            ["--matrix", "2x2", "--prototype", prototype, "--size", "32MiB", "--ack", "first"];
        let matrix = place.created(prototype, &arguments)?;
        let served = matrix.serve(&[])?;
        let mut client = served.connect()?;
        fill(&mut client, 0..200)?;
        check(&mut client, 0..200)?;
        let Reply::Bulk(Some(info)) = client.call(&[b"INFO", b"ENGINE"])? else {
            panic!("INFO is text");
        };
        let info = String::from_utf8(info)?;
        assert_eq!(info.matches("hedge_wins=").count(), devices, "{info}");
        served.terminate()?;
        let served = matrix.serve(&[])?;
        check(&mut served.connect()?, 0..200)?;
        served.terminate()?;
    }
    let unknown = ["create", "--matrix", "2x2", "--prototype", "mkv"];
    place.pool("unknown")?.says(64, &["mkvs-gekv"], &unknown)
}
