//! A matrix whose devices have changed: emptied, overwritten, of another matrix, from a backup, on other disks; and
//! the messages for its users.

use crate::pool::{Place, Pool};
use crate::session::{self, Outcome, Reply, Served};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const TWO_BY_TWO: [&str; 4] = ["--matrix", "2x2", "--size", "16MiB"];

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn fill(served: &Served, value: &[u8]) -> Outcome<()> {
    let mut client = served.connect()?;
    for number in 0..200 {
        assert_eq!(client.call(&[b"SET", &key(number), value])?, Reply::ok());
    }
    Ok(())
}

/// Writes this value to each key through a server, and closes the matrix.
fn filled(matrix: &Pool, value: &[u8]) -> Outcome<()> {
    let served = matrix.serve(&[])?;
    fill(&served, value)?;
    served.terminate()
}

fn check(served: &Served, value: &[u8]) -> Outcome<()> {
    let mut client = served.connect()?;
    for number in 0..200 {
        assert_eq!(client.call(&[b"GET", &key(number)])?, Reply::bulk(value), "{number}");
    }
    Ok(())
}

/// The command must end with this exit code, and print all of these words.
fn tells(pool: &Pool, code: i32, words: &[&str], command: &[&str]) -> Outcome<()> {
    let (ended, said) = pool.ask(command, b"")?;
    assert_eq!(ended, code, "{command:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{command:?}: {said}");
    Ok(())
}

fn make_fifo(path: &Path) -> Outcome<()> {
    let made = std::process::Command::new("mkfifo").arg(path).status()?;
    assert!(made.success());
    Ok(())
}

type Spoil = fn(&Path) -> Outcome<()>;

/// A file that is no pool does not count as a device: the matrix goes on without it, reports it, and a new device
/// takes its place.
#[test]
fn what_is_no_pool_is_left_out_and_replaced() -> Outcome<()> {
    let ways: [(&str, Spoil); 5] = [
        ("emptied", |path| Ok(std::fs::write(path, b"")?)),
        ("zeroes", |path| Ok(std::fs::write(path, vec![0; 1 << 20])?)),
        ("a text", |path| Ok(std::fs::write(path, b"no pool\n".repeat(3 << 20))?)),
        ("a pipe", |path| {
            std::fs::remove_file(path)?;
            make_fifo(path)
        }),
        ("a link to nothing", |path| {
            std::fs::remove_file(path)?;
            Ok(symlink(path.with_extension("elsewhere"), path)?)
        }),
    ];
    let place = Place::in_memory()?;
    for (name, spoil) in ways {
        let matrix = place.created(name, &TWO_BY_TWO)?;
        filled(&matrix, b"value")?;
        let device = matrix.path.join("g0d1");
        spoil(&device)?;
        let is_link = device.is_symlink();
        tells(&matrix, 0, &["degraded: g0d1"], &["matrix", "status"])?;
        let served = matrix.serve(&[])?;
        check(&served, b"value")?;
        served.terminate()?;
        if !is_link {
            tells(&matrix, 2, &["g0d1", "--fresh"], &["matrix", "replace", "--device", "g0d1"])?;
        }
        matrix.expect(0, &["matrix", "replace", "--device", "g0d1", "--fresh"])?;
        let status = matrix.expect(0, &["matrix", "status", "--json"])?;
        assert!(status.contains("\"degraded\":false"), "{name}: {status}");
        assert_eq!(std::fs::metadata(&device)?.len(), 16 << 20, "{name}: as large as its peer");
        assert_eq!(device.is_symlink(), is_link, "{name}: it is where the link says");
        matrix.is_sound()?;
    }
    Ok(())
}

/// The minority of devices is foreign, wherever they lie, and a copy of another device does not count as its own.
#[test]
fn devices_that_do_not_belong_are_named_where_they_lie() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (matrix, other) =
        (place.created("ours", &TWO_BY_TWO)?, place.created("other", &TWO_BY_TWO)?);
    filled(&matrix, b"value")?;
    // The other matrix has been in use for longer.
    (0..3).try_for_each(|_| filled(&other, b"other"))?;
    let device = matrix.path.join("g1d1");
    let out = place.path("out");
    std::fs::rename(&device, &out)?;
    std::fs::copy(other.path.join("g0d0"), &device)?;
    let foreign = "the device at g1d1 belongs to another matrix";
    tells(&matrix, 2, &[foreign, "g0d0, g0d1, g1d0", "take it out"], &["get", "key 1"])?;
    std::fs::copy(matrix.path.join("g0d0"), &device)?;
    tells(&matrix, 2, &["two devices g0d0, at g0d0 and at g1d1"], &["get", "key 1"])?;
    std::fs::rename(&out, &device)?;
    matrix.is_sound()
}

/// All devices of a group come from a backup: out-of-date records are not served, unless the user has accepted that.
#[test]
fn a_group_out_of_a_backup_is_not_served() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = place.created("matrix", &TWO_BY_TWO)?;
    filled(&matrix, b"old")?;
    let group: Vec<PathBuf> = ["g0d0", "g0d1"].iter().map(|name| matrix.path.join(name)).collect();
    for device in &group {
        std::fs::copy(device, device.with_extension("backup"))?;
    }
    let served = matrix.serve(&[])?;
    fill(&served, b"new")?;
    served.kill()?;
    for device in &group {
        std::fs::rename(device.with_extension("backup"), device)?;
    }
    let told = ["group 0 has no current device", "older copies", "accept loss"];
    tells(&matrix, 2, &told, &["get", "key 1"])?;
    tells(&matrix, 2, &told, &["matrix", "status"])?;
    tells(
        &matrix,
        0,
        &["group 0 goes on with g0d0, g0d1"],
        &["put", "key", "value", "--accept-loss"],
    )?;
    matrix.is_sound()
}

/// A device's file is removed under a server: the server reports it, and a fresh device takes the place at once.
#[test]
fn a_file_that_is_removed_under_a_server_is_replaced() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = place.created("matrix", &TWO_BY_TWO)?;
    let served = matrix.serve(&[])?;
    fill(&served, b"value")?;
    std::fs::remove_file(matrix.path.join("g0d1"))?;
    let status =
        || session::expect(0, &["matrix", "status", "--json", "--server", &served.address]);
    assert!(status()?.contains("\"removed\":[\"g0d1\"]"));
    let replace = ["matrix", "replace", "--device", "g0d1", "--server", &served.address];
    session::expect(2, &replace)?;
    session::expect(0, &[&replace[..], &["--fresh"]].concat())?;
    let after = status()?;
    assert!(after.contains("\"removed\":[]") && after.contains("\"degraded\":false"), "{after}");
    std::fs::remove_file(matrix.path.join("g0d0"))?;
    served.kill()?;
    let served = matrix.serve(&[])?;
    check(&served, b"value")?;
    served.terminate()
}

/// Links determine where devices are created: on disks of their own.
#[test]
fn devices_are_made_where_links_lead() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = place.pool("matrix")?;
    std::fs::create_dir(&matrix.path)?;
    let disks: Vec<PathBuf> = (0..3).map(|number| place.path(&format!("disk{number}"))).collect();
    disks.iter().try_for_each(std::fs::create_dir)?;
    for (disk, name) in disks.iter().zip(["g0d1", "g1d1", "g2d1"]) {
        symlink(disk.join("device"), matrix.path.join(name))?;
    }
    matrix.expect(0, &[&["create"][..], &TWO_BY_TWO].concat())?;
    filled(&matrix, b"value")?;
    assert!(disks[0].join("device").is_file() && disks[1].join("device").is_file());
    // It is a device, although its file is not called so.
    let device = Pool::at(&disks[0].join("device"))?;
    let open = ["bench", "--workload", "open", "--records", "10", "--beside-others"];
    let all = [&["put", "key 1", "new"][..], &["del", "key 1"], &["serve", "--port", "0"], &open];
    for command in all {
        tells(&device, 2, &["is a device of a matrix"], command)?;
    }
    device.says_with(2, &["is a device of a matrix"], &["load"], b"")?;
    device.expect(0, &["dump"])?;
    let served = matrix.serve(&[])?;
    check(&served, b"value")?;
    served.terminate()?;
    // A disk that is missing.
    std::fs::rename(&disks[0], place.path("away"))?;
    tells(&matrix, 0, &["degraded: g0d1 is missing"], &["matrix", "status"])?;
    std::fs::create_dir(&disks[0])?;
    matrix.expect(0, &["matrix", "replace", "--device", "g0d1"])?;
    matrix.expect(0, &["matrix", "add-group"])?;
    assert!(disks[0].join("device").is_file() && disks[2].join("device").is_file());
    matrix.is_sound()
}

/// A pool with records of such keys would be taken for a device.
#[test]
fn a_single_pool_takes_no_key_of_a_matrix() -> Outcome<()> {
    const OWN: &[u8] = b"\0coreplane matrix\0membership";
    let digits: String = OWN.iter().map(|byte| format!("{byte:02x}")).collect();
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv"] {
        let pool = place.created(engine, &["--size", "16MiB", "--engine", engine])?;
        let served = pool.serve(&[])?;
        let mut client = served.connect()?;
        let commands: [&[&[u8]]; 9] = [
            &[b"SET", OWN, b"v"],
            &[b"SET", OWN, b"v", b"PX", b"10000"],
            &[b"SET", OWN, b"v", b"NX"],
            &[b"SETNX", OWN, b"v"],
            &[b"GETSET", OWN, b"v"],
            &[b"APPEND", OWN, b"v"],
            &[b"INCR", OWN],
            &[b"MSET", b"k", b"v", OWN, b"v"],
            &[b"MSETNX", b"k", b"v", OWN, b"v"],
        ];
        for command in commands {
            let reply = client.call(command)?;
            let is_refused = matches!(&reply, Reply::Failed(why) if why.contains("matrix"));
            assert!(is_refused, "{engine} {command:?}: {reply:?}");
        }
        assert_eq!(client.call(&[b"SET", b"k", b"v"])?, Reply::ok());
        let copies: [&[&[u8]]; 2] = [&[b"RENAME", b"k", OWN], &[b"COPY", b"k", OWN]];
        for command in copies {
            assert!(matches!(client.call(command)?, Reply::Failed(_)), "{engine} {command:?}");
        }
        assert_eq!(client.call(&[b"DEL", OWN, b"none"])?, Reply::Number(0));
        assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(1));
        served.terminate()?;
        tells(&pool, 3, &["the matrix's own name"], &["put", "--key-hex", &digits, "v"])?;
        let line = format!("{{\"key_hex\":\"{digits}\",\"value\":\"v\"}}\n");
        pool.says_with(3, &["the matrix's own name"], &["load"], line.as_bytes())?;
        assert_eq!(pool.expect(0, &["get", "k"])?, "v\n");
    }
    Ok(())
}

/// A matrix that is full: its devices can be grown, and writes to a single device are refused.
#[test]
fn devices_grow_and_are_not_written_to_by_themselves() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv"] {
        let matrix = place.created(engine, &[&TWO_BY_TWO[..], &["--engine", engine]].concat())?;
        filled(&matrix, b"value")?;
        let status: Value =
            serde_json::from_str(&matrix.expect(0, &["matrix", "status", "--json"])?)?;
        let devices = status["devices"].as_array().ok_or("devices")?;
        // Each has its share of the keys, without a count in the background.
        assert!(devices.iter().all(|it| it["live_bytes"].as_u64() > Some(4000)), "{status}");
        let grown = matrix.expect(0, &["grow", "--size", "24MiB", "--json"])?;
        assert!(grown.contains("\"pool_bytes\":100663296"), "{grown}");
        let device = place.pool(&format!("{engine}/g0d0"))?;
        for command in [&["put", "key", "value"][..], &["del", "key"], &["serve", "--port", "0"]] {
            tells(&device, 2, &["is a device of a matrix"], command)?;
        }
        let served = matrix.serve(&[])?;
        check(&served, b"value")?;
        served.terminate()?;
        matrix.is_sound()?;
        // A whole group is lost: the records of the other group can be saved.
        ["g0d0", "g0d1"]
            .iter()
            .try_for_each(|name| std::fs::remove_file(matrix.path.join(name)))?;
        tells(&matrix, 2, &["one of g0d0, g0d1 is needed"], &["get", "key 1"])?;
        let saved = place.pool(&format!("{engine}/g1d0"))?.expect(0, &["dump"])?;
        let other = place.created(&format!("{engine} saved"), &TWO_BY_TWO)?;
        other.expect_with(0, &["load"], saved.as_bytes())?;
        let lines = saved.lines().count() as u64;
        assert!((1..200).contains(&lines));
        let status: Value = serde_json::from_str(&other.expect(0, &["info", "--json"])?)?;
        assert_eq!(status["records"].as_u64(), Some(lines));
    }
    Ok(())
}

/// Measurements run in the order in which they are given, though the pool does not exist yet.
#[test]
fn an_open_is_measured_after_the_load() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    let small = ["--records", "100", "--operations", "100", "--size", "64MiB", "--json"];
    let bench = [&["bench", "--workload", "load,open,c"][..], &small].concat();
    let said = pool.expect(0, &bench)?;
    let at = |phase: &str| said.find(&format!("\"phase\":\"{phase}\""));
    assert!(at("load") < at("open") && at("open") < at("c") && at("load").is_some(), "{said}");
    Ok(())
}

#[test]
fn what_cannot_be_made_is_told_and_leaves_nothing_behind() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    let create = |code, words: &[&str], options: &[&str]| {
        tells(&pool, code, words, &[&["create"], options].concat())?;
        assert!(!pool.path.exists(), "{options:?}");
        Outcome::Ok(())
    };
    create(64, &["1 to 256 groups of 1 to 8"], &["--matrix", "0x2"])?;
    create(64, &["1 to 256 groups of 1 to 8"], &["--matrix", "9x9"])?;
    create(2, &["impossible geometry"], &["--matrix", "2x2", "--size", "1"])?;
    create(2, &["of a matrix", "2x2"], &["--ack", "first", "--size", "16MiB"])?;
    create(4, &["256 x 8 devices", "free"], &["--matrix", "256x8", "--size", "1TiB"])?;
    pool.expect(0, &["create", "--prototype", "mkvs-ekv", "--size", "16MiB"])?;
    assert!(pool.path.join("g0d0").is_file());
    let single = place.created("single", &["--size", "16MiB"])?;
    tells(&single, 2, &["is a file"], &[&["create"][..], &TWO_BY_TWO].concat())?;
    single.expect(64, &["matrix", "add-group", "--limit", "0"])?;
    let empty = place.pool("empty")?;
    std::fs::create_dir(&empty.path)?;
    tells(&empty, 2, &["holds no device of a matrix"], &["matrix", "status"])
}

/// A current device that is not to be trusted is retired, in a directory and behind a server; and a truncated file is
/// reported before its missing part is accessed.
#[test]
fn a_device_that_is_current_is_retired_and_replaced() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = place.created("retired", &TWO_BY_TWO)?;
    filled(&matrix, b"value")?;
    let replace = ["matrix", "replace", "--device", "g0d1", "--fresh"];
    let retire = ["matrix", "retire", "--device", "g0d1"];
    tells(&matrix, 2, &["g0d1 is a current device", "matrix retire"], &replace)?;
    tells(&matrix, 0, &["retired", "g0d1"], &retire)?;
    tells(&matrix, 2, &["g0d1 is not a current device"], &retire)?;
    let last = ["matrix", "retire", "--device", "g0d0"];
    tells(&matrix, 2, &["g0d0 is the last current device of its group"], &last)?;
    tells(&matrix, 0, &["degraded: g0d1", "g0d1     absent"], &["matrix", "status"])?;
    matrix.expect(0, &replace)?;

    let served = matrix.serve(&[])?;
    let status = ["matrix", "status", "--server", &served.address];
    assert!(!session::expect(0, &status)?.contains("was cut short"));
    let file = std::fs::OpenOptions::new().write(true).open(matrix.path.join("g0d1"))?;
    file.set_len(12 << 20)?;
    let told = session::expect(0, &status)?;
    assert!(told.contains("g0d1     was cut short: 12.00 MiB of 16.00 MiB are left"), "{told}");
    for command in [&retire[..], &replace[..]] {
        session::expect(0, &[command, &["--server", &served.address]].concat())?;
    }
    let told = session::expect(0, &status)?;
    assert!(!told.contains("was cut short") && !told.contains("degraded"), "{told}");
    check(&served, b"value")?;
    served.terminate()?;
    matrix.is_sound()
}
