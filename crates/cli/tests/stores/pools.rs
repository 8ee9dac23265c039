//! Pools and records from the command line, and the exit codes of failures.

use crate::pool::{Place, Pool};
use crate::session::{self, Outcome, expect, text};
use serde_json::Value;

/// A pool of 64 MiB that is removed with its directory.
fn pool() -> Outcome<(Place, Pool)> {
    let place = Place::in_memory()?;
    let pool = place.created("a.pool", &["--size", "64MiB"])?;
    Ok((place, pool))
}

#[test]
fn records_come_and_go() -> Outcome<()> {
    let (_place, pool) = pool()?;
    let run = |code, name: &str, more: &[&str]| pool.expect(code, &[&[name], more].concat());
    run(0, "put", &["greeting", "hello"])?;
    assert_eq!(run(0, "get", &["greeting"])?, "hello\n");
    assert_eq!(run(0, "get", &["greeting", "--raw"])?, "hello");
    run(1, "put", &["greeting", "again", "--if-absent"])?;
    run(1, "put", &["parting", "bye", "--if-present"])?;
    run(1, "get", &["parting"])?;
    assert_eq!(run(1, "get", &["parting", "--json"])?, "null\n");
    run(0, "put", &["greeting", "hi", "--if-present"])?;
    pool.expect_with(0, &["put", "from-stdin"], b"line 1\nline 2")?;
    assert_eq!(run(0, "get", &["from-stdin", "--raw"])?, "line 1\nline 2");
    run(0, "put", &["gone", "soon", "--ttl", "1ms"])?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    run(1, "get", &["gone"])?;
    run(0, "put", &["later", "x", "--ttl", "1h"])?;
    let later: Value = serde_json::from_str(&run(0, "get", &["later", "--json"])?)?;
    assert_eq!((&later["key"], &later["value"]), (&"later".into(), &"x".into()));
    assert!(later["expires_at_ms"].as_u64() > Some(1_700_000_000_000), "{later}");

    let mut lines: Vec<_> = run(0, "scan", &[])?.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["from-stdin\tline 1\\nline 2", "greeting\thi", "later\tx"]);
    assert_eq!(run(0, "scan", &["--prefix", "gr", "--keys-only"])?, "greeting\n");
    assert_eq!(run(0, "scan", &["--limit", "2"])?.lines().count(), 2);
    assert_eq!(run(0, "del", &["greeting", "later", "never"])?, "2 deleted\n");
    run(1, "del", &["greeting"])?;
    run(1, "get", &["greeting"])?;
    assert!(run(0, "verify", &[])?.starts_with("sound: "));
    assert_eq!(run(0, "scan", &["--keys-only"])?, "from-stdin\n");
    Ok(())
}

#[test]
fn what_has_no_order_is_not_scanned_between_bounds() -> Outcome<()> {
    let (_place, pool) = pool()?;
    for key in ["b", "a", "c"] {
        pool.expect(0, &["put", key, "value"])?;
    }
    for bound in [&["--start", "b"][..], &["--end", "b"], &["--reverse"], &["--reverse", "--json"]]
    {
        pool.says(3, &["need keys in order"], &[&["scan"], bound].concat())?;
    }
    assert_eq!(pool.expect(0, &["scan", "--prefix", "b", "--keys-only"])?, "b\n");
    let served = pool.serve(&[])?;
    let by_server = ["scan", "--server", &served.address];
    let output = session::coreplane(&by_server, b"")?;
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("scmkv") && said.contains("order"), "{said}");
    served.terminate()
}

#[test]
fn a_dump_is_loaded_again() -> Outcome<()> {
    let (place, pool) = pool()?;
    let mut lines = String::new();
    for number in 0..3000 {
        lines += &format!("{{\"key\":\"k{number}\",\"value\":\"v{number}\"}}\n");
    }
    lines += "{\"key_hex\":\"ff00\",\"value_hex\":\"80\",\"expires_at_ms\":9999999999999}\n\n";
    let large = "x".repeat(3 << 20);
    lines += &format!("{{\"key\":\"large\",\"value\":\"{large}\"}}\n");
    assert_eq!(pool.expect_with(0, &["load"], lines.as_bytes())?, "3002 loaded\n");

    let dump = place.argument("dump")?;
    pool.expect(0, &["dump", &dump])?;
    let other = place.created("other.pool", &["--size", "64MiB", "--index", "dram"])?;
    let loaded = other.expect(0, &["load", &dump, "--json"])?;
    assert_eq!(loaded, "{\"loaded\":3002}\n");
    let sorted = |pool: &Pool| -> Outcome<Vec<String>> {
        let dumped = pool.expect(0, &["dump"])?;
        let mut lines: Vec<_> = dumped.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    let mut given: Vec<_> =
        lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    given.sort();
    let parsed = |lines: &[String]| -> Outcome<Vec<Value>> {
        let mut values = Vec::new();
        for line in lines {
            values.push(serde_json::from_str::<Value>(line)?);
        }
        values.sort_by_key(|value| value.to_string());
        Ok(values)
    };
    assert!(parsed(&sorted(&pool)?)? == parsed(&given)?, "the dump is what was loaded");
    assert!(sorted(&pool)? == sorted(&other)?, "and so is that of the other pool");
    let info: Value = serde_json::from_str(&other.expect(0, &["info", "--json"])?)?;
    assert_eq!((&info["records"], &info["index"]), (&3002.into(), &"dram".into()));

    let bad = b"{\"key\":\"a\",\"value\":\"b\"}\nnonsense\n";
    let failed = pool.run(&["load"], bad)?;
    assert_eq!(failed.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("line 2"));
    assert_eq!(pool.expect(0, &["get", "a"])?, "b\n");
    Ok(())
}

#[test]
fn a_line_that_is_not_taken_is_told_with_what_was_done_before_it() -> Outcome<()> {
    let (place, pool) = pool()?;
    let (first, after) =
        (b"{\"key\":\"a\",\"value\":\"b\"}\n\n", b"{\"key\":\"c\",\"value\":\"d\"}\n");
    let long = format!("{{\"key\":\"{}\",\"value\":\"b\"}}\n", "k".repeat(1 << 20));
    let own = b"{\"key_hex\":\"00636f7265706c616e65206d6174726978006d656d62657273686970\",\"value\":\"b\"}\n";
    let lines: [&[u8]; 4] =
        [b"nonsense\n", b"{\"key\":\"\xff\",\"value\":\"b\"}\n", long.as_bytes(), own];
    for bad in lines {
        let input = [&first[..], bad, after].concat();
        let (code, said) = pool.ask(&["load"], &input)?;
        assert_eq!(code, 3, "{said}");
        let is_told = said.contains("line 3: ") && said.contains("(1 records were loaded before");
        assert!(is_told, "{said}");
        let empty = place.created("empty.pool", &["--size", "64MiB"])?;
        let served = empty.serve(&[])?;
        let restored =
            session::coreplane(&["cluster", "restore", "--server", &served.address], &input)?;
        let said = String::from_utf8_lossy(&restored.stderr).into_owned();
        assert_eq!(restored.status.code(), Some(3), "{said}");
        assert!(said.contains("line 3: ") && said.contains("records were restored"), "{said}");
        served.terminate()?;
        empty.remove()?;
    }
    Ok(())
}

#[test]
fn every_failure_has_its_exit_code() -> Outcome<()> {
    let (place, pool) = pool()?;
    let (absent, no_pool) = (place.pool("absent")?, place.pool("text")?);
    no_pool.put_bytes("a text, not a pool\n".repeat(1000).as_bytes())?;
    let truncated = place.pool("truncated")?;
    truncated.put_bytes(&pool.bytes()?[..1 << 20])?;
    for pool in [&absent, &no_pool, &truncated] {
        for command in ["verify", "info", "stats", "dump", "scan"] {
            pool.expect(2, &[command])?;
        }
        pool.expect(2, &["get", "key"])?;
    }
    assert!(!absent.is_there()?, "looking for a pool makes none");
    pool.expect(2, &["create", "--size", "64MiB"])?;
    absent.expect(4, &["create", "--size", "2TiB"])?;
    assert!(!absent.is_there()?, "a creation that fails leaves nothing");
    absent.expect(2, &["create", "--size", "64MiB", "--media", "dax"])?;
    pool.expect(3, &["put", &"k".repeat(70_000), "value"])?;
    absent.expect(64, &["serve", "--durability", "noflush"])?;
    assert!(!absent.is_there()?);
    for wrong in [
        &["frobnicate"][..],
        &["get"],
        &["create", "--pool", &absent.name, "--size", "huge"],
        &["serve", "--pool", &absent.name, "--durability", "perhaps"],
        &["bench", "--pool", &absent.name, "--workload", "z"],
        &["bench", "--workload", "a"],
    ] {
        expect(64, wrong)?;
    }
    let huge = vec![b'x'; 100 << 20];
    pool.expect_with(4, &["put", "too-much"], &huge)?;
    pool.is_sound()?;
    pool.expect(0, &["grow", "--size", "512MiB"])?;
    pool.expect_with(0, &["put", "enough"], &huge)?;
    assert!(pool.expect(0, &["get", "enough", "--raw"])?.len() == huge.len());
    Ok(())
}

#[test]
fn damage_is_told_from_soundness() -> Outcome<()> {
    let (_place, pool) = pool()?;
    let marker = "a value that is looked for in the file";
    pool.expect(0, &["put", "key", marker])?;
    pool.is_sound()?;
    let mut bytes = pool.bytes()?;
    let found = bytes.windows(marker.len()).position(|bytes| bytes == marker.as_bytes());
    let at = found.ok_or("the value is not in the file")?;
    bytes[at + 3] ^= 0x10;
    pool.put_bytes(&bytes)?;
    assert!(pool.expect(1, &["verify"])?.contains("DAMAGED"));
    let verdict: Value = serde_json::from_str(&pool.expect(1, &["verify", "--json"])?)?;
    assert_eq!(verdict["sound"], false);
    assert!(verdict["damages"].as_array().is_some_and(|damages| !damages.is_empty()));
    bytes[at + 3] ^= 0x10;
    pool.put_bytes(&bytes)?;
    pool.is_sound()?;
    Ok(())
}

/// The value of `key` has a changed byte, in a pool that was killed, so that its log must be read.
fn damaged_pool(index: &str) -> Outcome<(tempfile::TempDir, String)> {
    let place = tempfile::tempdir_in("/dev/shm")?;
    let pool = text(&place.path().join("a.pool"))?.to_owned();
    expect(0, &["create", "--pool", &pool, "--size", "64MiB", "--index", index])?;
    let served = session::Served::start(&["--pool", &pool])?;
    let mut client = served.connect()?;
    for (key, value) in
        [("key", "old"), ("key", "a value like no other"), ("other", "v"), ("z", "z")]
    {
        client.call(&[b"SET", key.as_bytes(), value.as_bytes()])?;
    }
    served.kill()?;
    let mut bytes = std::fs::read(&pool)?;
    let marker = b"a value like no other";
    let found = bytes.windows(marker.len()).position(|bytes| bytes == marker);
    bytes[found.ok_or("the value is not in the file")?] ^= 0x10;
    std::fs::write(&pool, &bytes)?;
    Ok((place, pool))
}

#[test]
fn what_is_damaged_is_repaired_and_what_is_lost_is_told() -> Outcome<()> {
    for index in ["pmem", "dram"] {
        let (_place, pool) = damaged_pool(index)?;
        let refused = session::coreplane(&["get", "--pool", &pool, "other"], b"")?;
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{complaint}");
        for word in [&*pool, "log page ", "at offset 0x", "coreplane verify --repair"] {
            assert!(complaint.contains(word), "{word}: {complaint}");
        }
        // With the index in DRAM it is unknown which record of a key was the newest.
        let is_known = index == "pmem";
        let said = expect(1, &["verify", "--pool", &pool, "--repair"])?;
        let fate = if is_known { "lost; it is absent now" } else { "it may be out of date" };
        assert!(said.contains("bytes: damaged records: ") && said.contains(fate), "{said}");
        let (places, lost, records) = if is_known { (2, 1, 2) } else { (1, 0, 3) };
        let summary =
            format!("repaired: damage in {places} places, {lost} keys named that are lost");
        assert!(said.contains(&summary), "{said}");
        let sound = format!("sound: {records} records");
        assert!(said.ends_with("checked\n") && said.contains(&sound), "{said}");
        assert!(expect(0, &["verify", "--pool", &pool])?.starts_with(&sound));
        assert!(expect(0, &["verify", "--pool", &pool, "--repair"])?.starts_with("sound: "));
        // Not the previous value, if the index has the newest record.
        match is_known {
            true => drop(expect(1, &["get", "--pool", &pool, "key"])?),
            false => assert_eq!(expect(0, &["get", "--pool", &pool, "key"])?, "old\n"),
        }
        assert_eq!(expect(0, &["get", "--pool", &pool, "other"])?, "v\n");

        let (_place, pool) = damaged_pool(index)?;
        let said = expect(1, &["verify", "--pool", &pool, "--repair", "--json"])?;
        let lines: Vec<Value> =
            said.lines().map(serde_json::from_str).collect::<Result<_, serde_json::Error>>()?;
        assert_eq!(lines.len(), places + 1, "{said}");
        let (last, verdict) = (&lines[places - 1]["keys"][0], &lines[places]);
        assert_eq!((&last["key"], &last["lost"]), (&"key".into(), &is_known.into()));
        assert!(lines[0]["page"].as_u64() > Some(0) && lines[0]["bytes"] == 48, "{said}");
        assert_eq!((&verdict["sound"], &verdict["records"]), (&true.into(), &records.into()));
    }
    Ok(())
}

/// The other records of a leaf with a damaged record are kept, and the damage is gone.
#[test]
fn what_is_damaged_in_an_ordered_pool_is_given_up() -> Outcome<()> {
    for is_killed in [true, false] {
        let place = Place::in_memory()?;
        let pool = place.created("pool", &["--engine", "bptree", "--size", "64MiB"])?;
        let served = pool.serve(&[])?;
        let mut client = served.connect()?;
        for number in 0..50 {
            let (key, value) = (format!("key:{number:02}"), format!("the value of {number:02}"));
            client.call(&[b"SET", key.as_bytes(), value.as_bytes()])?;
        }
        if is_killed {
            served.kill()?
        } else {
            served.terminate()?
        }
        let mut bytes = pool.bytes()?;
        let marker = b"the value of 25";
        let mut flipped = 0;
        for at in 0..bytes.len() - marker.len() {
            if bytes[at..].starts_with(marker) {
                bytes[at + 2] ^= 0x10;
                flipped += 1;
            }
        }
        assert!(flipped > 0, "the value is not in the file");
        pool.put_bytes(&bytes)?;
        pool.says(1, &["DAMAGED", "coreplane verify --repair"], &["verify"])?;
        let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
        assert!(code == 1 && said.contains("\nsound: "), "{is_killed} {code}: {said}");
        pool.is_sound()?;
        pool.expect(1, &["get", "key:25"])?;
        for number in (0..50).filter(|number| *number != 25) {
            let value = pool.expect(0, &["get", &format!("key:{number:02}")])?;
            assert_eq!(value, format!("the value of {number:02}\n"), "{is_killed}");
        }
        assert!(pool.expect(0, &["verify", "--repair"])?.starts_with("sound: "));
    }
    Ok(())
}

/// A part of a long key is in the leaf, which is sound, and the rest is damaged.
#[test]
fn a_repair_that_leaves_damage_says_so() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--engine", "bptree", "--size", "64MiB"])?;
    let key = "long key ".repeat(800) + "its end";
    pool.expect(0, &["put", &key, "value"])?;
    pool.expect(0, &["put", "other", "value"])?;
    let mut bytes = pool.bytes()?;
    let found = bytes.windows(7).position(|bytes| bytes == b"its end");
    bytes[found.ok_or("the key is not in the file")?] ^= 0x10;
    pool.put_bytes(&bytes)?;
    pool.says(1, &["DAMAGED"], &["verify"])?;
    let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
    assert!(code == 2 && said.contains("restore it from a copy"), "{code}: {said}");
    assert_eq!(said.matches("a long key").count(), 1, "{said}");
    assert_eq!(pool.expect(0, &["get", "other"])?, "value\n");
    Ok(())
}

#[test]
fn what_cannot_be_repaired_is_refused_and_left_alone() -> Outcome<()> {
    let (place, pool) = pool()?;
    pool.expect(0, &["put", "key", "value"])?;
    let sound = pool.bytes()?;
    let other = place.pool("other.pool")?;
    other.expect(2, &["verify", "--repair"])?;
    // The pool's own header.
    let mut bytes = sound.clone();
    bytes[20..24].fill(0x99);
    other.put_bytes(&bytes)?;
    other.expect(2, &["verify", "--repair"])?;
    assert!(other.bytes()? == bytes, "it was changed");
    // The whole entry of page 1 in the table: the page is given up.
    let mut bytes = sound.clone();
    bytes[2048 + 32..2048 + 64].fill(0x99);
    other.put_bytes(&bytes)?;
    other.expect(1, &["verify", "--repair"])?;
    other.expect(0, &["verify", "--repair"])?;
    other.put_bytes(&sound)?;
    other.expect(0, &["verify", "--repair"])?;
    Ok(())
}

#[test]
fn an_ordered_pool_is_opened_as_what_it_is() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--engine", "bptree", "--size", "64MiB"])?;
    for name in ["cherry", "apple", "banana"] {
        pool.expect(0, &["put", name, "a fruit"])?;
    }
    let info = pool.expect(0, &["info", "--json"])?;
    assert!(info.contains("\"engine\":\"bptree\""), "{info}");
    let scan = pool.expect(0, &["scan"])?;
    let names: Vec<&str> =
        scan.lines().map(|line| line.split_whitespace().next().unwrap_or("")).collect();
    assert_eq!(names, ["apple", "banana", "cherry"], "in order: {scan}");
    pool.expect(0, &["grow", "--size", "128MiB"])?;
    pool.is_sound()?;
    let bench =
        ["bench", "--workload", "load,e", "--records", "2000", "--operations", "200", "--json"];
    let measured = place.created("measured", &["--engine", "bptree", "--size", "64MiB"])?;
    let lines = measured.expect(0, &bench)?;
    assert!(lines.lines().count() == 2 && lines.contains("\"phase\":\"e\""), "{lines}");
    // The engine of the pool is not the requested one.
    pool.expect(2, &["bench", "--engine", "scmkv", "--workload", "c"])?;
    assert!(pool.expect(0, &["verify", "--repair"])?.starts_with("sound: "));
    Ok(())
}

#[test]
fn a_matrix_is_a_directory_of_devices() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv"] {
        let arguments = ["--matrix", "2x2", "--engine", engine, "--size", "32MiB"];
        let matrix = place.created(engine, &arguments)?;
        for name in ["cherry", "apple", "banana"] {
            matrix.expect(0, &["put", name, "a fruit"])?;
        }
        assert!(matrix.expect(0, &["get", "apple"])?.contains("a fruit"));
        let info = matrix.expect(0, &["info", "--json"])?;
        assert!(info.contains("\"engine\":\"mkvs\"") && info.contains("\"records\":3"), "{info}");
        let status = matrix.expect(0, &["matrix", "status", "--json"])?;
        assert!(status.contains("\"degraded\":false"), "{status}");
        matrix.is_sound()?;
        // One device is removed while the matrix is closed: the other group is whole.
        std::fs::remove_file(matrix.path.join("g0d1"))?;
        let status = matrix.expect(0, &["matrix", "status"])?;
        assert!(status.contains("g0d1     absent") && status.contains("(degraded)"), "{status}");
        for name in ["cherry", "apple", "banana"] {
            assert!(matrix.expect(0, &["get", name])?.contains("a fruit"), "{name}");
        }
        matrix.is_sound()?;
        // And one of the other group: the rest may be out of date.
        std::fs::remove_file(matrix.path.join("g1d0"))?;
        matrix.expect(0, &["get", "apple"])?;
        std::fs::remove_file(matrix.path.join("g1d1"))?;
        matrix.says(2, &["group 1 has no current device"], &["get", "apple"])?;
        matrix.says(2, &["holds a matrix already"], &[&["create"], &arguments[..]].concat())?;
    }
    let pool = place.created("pool", &["--size", "32MiB"])?;
    pool.expect(64, &["matrix", "status"])?;
    Ok(())
}

#[test]
fn bench_speaks_json_and_verifies() -> Outcome<()> {
    let (_place, pool) = pool()?;
    let scale = ["--records", "5000", "--operations", "5000", "--threads", "2", "--json"];
    let bench = |workload| [&["bench", "--workload", workload], &scale[..]].concat();
    let mut phases = Vec::new();
    for line in pool.expect(0, &bench("load,a:1t:300,mget,d"))?.lines() {
        let report: Value = serde_json::from_str(line)?;
        let (operations, threads) = if report["phase"] == "a" { (300, 1) } else { (5000, 2) };
        assert_eq!(report["operations"], operations);
        assert_eq!((&report["engine"], &report["threads"]), (&"scmkv".into(), &threads.into()));
        assert_eq!(report["check_reads"], true);
        phases.push(report["phase"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(phases, ["load", "a", "mget", "d"]);
    let refused = pool.run(&["bench", "--workload", "e"], b"")?;
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no order"));
    let on_model = [&["bench", "--engine", "model", "--workload", "e"], &scale[..]].concat();
    assert!(expect(0, &on_model)?.contains("\"phase\":\"e\""));
    assert_eq!(pool.expect(0, &bench("floor"))?.matches("\"phase\":\"floor-get\"").count(), 2);
    let filter = pool.expect(0, &bench("filter"))?;
    let denials: Vec<Value> = filter
        .lines()
        .map(|line| Ok(serde_json::from_str::<Value>(line)?["false_negatives"].clone()))
        .collect::<Outcome<_>>()?;
    assert_eq!(denials.iter().filter(|count| **count == 0).count(), 2, "{filter}");
    pool.is_sound()?;
    Ok(())
}

/// As any other reader, unless it is told otherwise.
#[test]
fn bench_checks_what_it_reads() -> Outcome<()> {
    let (_place, pool) = pool()?;
    let bench = |more: &[&str]| {
        let command = ["bench", "--records", "10", "--operations", "1000", "--json", "--workload"];
        pool.run(&[&command[..], more].concat(), b"")
    };
    assert!(bench(&["load"])?.status.success());
    let mut key = [0; 16];
    coreplane_bench::record::write_key(3, &mut key);
    let mut bytes = pool.bytes()?;
    let found = bytes.windows(key.len()).position(|bytes| bytes == key);
    bytes[found.ok_or("the key is not in the file")? + key.len() + 50] ^= 2;
    pool.put_bytes(&bytes)?;
    for (more, what) in
        [(&["c@uniform"][..], "checksum"), (&["c@uniform", "--no-check-reads"], "key number 3")]
    {
        let refused = bench(&[more, &["--beside-others"]].concat())?;
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(what), "{said}");
    }
    for workload in ["open", "commits", "competition"] {
        let lines = bench(&[workload, "--no-check-reads", "--size", "64MiB"])?;
        let lines = String::from_utf8(lines.stdout)?;
        assert!(lines.contains("\"check_reads\":false"), "{workload}: {lines}");
    }
    Ok(())
}

#[test]
fn help_teaches_and_pages_are_made() -> Outcome<()> {
    let help = expect(0, &["--help"])?;
    for word in ["serve", "verify", "Exit codes", "power cut", "redis-cli"] {
        assert!(help.contains(word), "{word} is missing in {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(expect(0, &["completions", shell])?.contains("durability"));
    }
    assert!(expect(0, &["man"])?.contains(".TH"));
    let place = tempfile::tempdir()?;
    expect(0, &["man", text(place.path())?])?;
    assert!(place.path().join("coreplane-serve.1").exists());
    assert!(expect(0, &["--version"])?.starts_with("coreplane "));
    Ok(())
}
