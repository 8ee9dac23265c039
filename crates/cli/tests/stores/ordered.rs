//! An ordered store as its users see it: `scan` of a directory and of a server, and `RANGE` for Redis clients, over a
//! matrix of trees, each group of which has a part of the keys.

use crate::pool::{Place, Pool};
use crate::session::{Client, Outcome, Reply, Served, expect};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const KEYS: u64 = 600;

fn key(number: u64) -> String {
    format!("key:{number:05}")
}

/// A 2x2 matrix with every even key, and two other keys.
fn matrix(place: &Place) -> Outcome<Pool> {
    let matrix = place.created("m", &["--matrix", "2x2", "--size", "32MiB"])?;
    // In scattered order.
    let number = |at: u64| at * 7919 % KEYS * 2;
    let lines: Vec<String> = (0..KEYS)
        .map(|at| format!("{{\"key\":\"{}\",\"value\":\"{}\"}}\n", key(number(at)), number(at)))
        .collect();
    let more = "{\"key\":\"other\",\"value\":\"x\",\"expires_at_ms\":9999999999999}\n\
                {\"key_hex\":\"ff00\",\"value_hex\":\"80\"}\n";
    matrix.expect_with(0, &["load"], (lines.concat() + more).as_bytes())?;
    Ok(matrix)
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

/// Arguments of `scan`, and the numbers of the keys that it must show.
fn questions() -> Vec<(Vec<&'static str>, Vec<u64>)> {
    let even = |range: std::ops::Range<u64>| range.step_by(2).collect::<Vec<u64>>();
    let down = |range| even(range).into_iter().rev().collect::<Vec<u64>>();
    vec![
        (vec!["--prefix", "key:"], even(0..2 * KEYS)),
        (vec!["--prefix", "key:", "--limit", "5"], even(0..10)),
        (vec!["--prefix", "key:", "--reverse"], down(0..2 * KEYS)),
        (vec!["--start", "key:00101", "--end", "key:00200"], even(102..200)),
        (vec!["--start", "key:00100", "--limit", "3"], even(100..106)),
        (vec!["--prefix", "key:000", "--start", "key:00090"], even(90..100)),
        (vec!["--end", "key:00200", "--reverse", "--limit", "4"], down(192..200)),
        (vec!["--start", "key:5", "--end", "key:4"], Vec::new()),
    ]
}

fn check_scans(scan: &dyn Fn(&[&str]) -> Outcome<String>) -> Outcome<()> {
    for (asked, numbers) in questions() {
        let expected: Vec<String> = numbers.iter().map(|number| key(*number)).collect();
        let shown = scan(&[&asked[..], &["--keys-only"]].concat())?;
        assert_eq!(lines(&shown), expected, "{asked:?}");
        let shown = scan(&[&asked[..], &["--json"]].concat())?;
        let expected: Vec<String> = numbers
            .iter()
            .map(|number| format!("{{\"key\":\"{}\",\"value\":\"{number}\"}}", key(*number)))
            .collect();
        assert_eq!(lines(&shown), expected, "{asked:?}");
    }
    // All keys, including one that is no text.
    let shown = scan(&[])?;
    let shown = lines(&shown);
    assert_eq!(shown.len() as u64, KEYS + 2);
    assert_eq!((shown[0], shown[shown.len() - 1]), ("key:00000\t0", "\\xff\\x00\t\\x80"));
    let last = "{\"key_hex\":\"ff00\",\"value_hex\":\"80\"}\n";
    assert_eq!(scan(&["--reverse", "--limit", "1", "--json"])?, last);
    let other = "{\"expires_at_ms\":9999999999999,\"key\":\"other\",\"value\":\"x\"}\n";
    assert_eq!(scan(&["--prefix", "o", "--json"])?, other);
    Ok(())
}

/// The page size of a pool, from its header.
fn page_bytes(path: &std::path::Path) -> Outcome<u64> {
    let mut word = [0; 8];
    std::fs::File::open(path)?.read_exact_at(&mut word, 40)?;
    Ok(u64::from_le_bytes(word))
}

#[test]
fn leaves_are_as_long_as_was_asked_for_those_of_a_group_that_is_added_too() -> Outcome<()> {
    let place = Place::in_memory()?;
    let asked = ["--size", "32MiB", "--engine", "bptree", "--page-size"];
    let single = place.created("single", &[&asked[..], &["64KiB"]].concat())?;
    let info = single.expect(0, &["info", "--json"])?;
    assert!(info.contains("\"page_bytes\":65536"), "{info}");
    assert_eq!(page_bytes(&single.path)?, 64 << 10);
    let usual = place.created("usual", &asked[..4])?;
    assert_eq!(page_bytes(&usual.path)?, 16 << 10);
    let shape = [&asked[..], &["32KiB", "--matrix", "1x2"]].concat();
    let matrix = place.created("m", &shape)?;
    matrix.expect(0, &["matrix", "add-group"])?;
    for device in ["g0d0", "g0d1", "g1d0", "g1d1"] {
        assert_eq!(page_bytes(&matrix.path.join(device))?, 32 << 10, "{device}");
    }
    let refused = place.pool("refused")?;
    for (code, engine, size) in [
        (64, "bptree", "5GiB"),
        (2, "bptree", "3000"),
        (2, "bptree", "1KiB"),
        (2, "bptree", "2KiB"),
        (2, "bptree", "1MiB"),
        (2, "scmkv", "64KiB"),
    ] {
        let asked = ["create", "--size", "32MiB", "--engine", engine, "--page-size", size];
        refused.expect(code, &asked)?;
        assert!(!refused.path.exists(), "{engine} {size}");
    }
    Ok(())
}

#[test]
fn nodes_have_as_many_entries_as_was_asked_for_those_of_a_group_that_is_added_too() -> Outcome<()> {
    let place = Place::in_memory()?;
    let asked = ["--size", "32MiB", "--engine", "cow-tree", "--fan-out"];
    let matrix = place.created("m", &[&asked[..], &["32", "--matrix", "1x2"]].concat())?;
    matrix.expect(0, &["matrix", "add-group"])?;
    for device in ["g0d0", "g0d1", "g1d0", "g1d1"] {
        assert_eq!(coreplane::admin::fan_out_at(&matrix.path.join(device)), Some(32), "{device}");
    }
    let usual = place.created("usual", &asked[..4])?;
    let info = usual.expect(0, &["info", "--json"])?;
    assert!(info.contains("\"fan_out\":7"), "{info}");
    let refused = place.pool("refused")?;
    for (engine, entries) in
        [("cow-tree", "3"), ("cow-tree", "257"), ("list", "7"), ("bptree", "7"), ("scmkv", "7")]
    {
        let asked = ["create", "--size", "32MiB", "--engine", engine, "--fan-out", entries];
        refused.expect(2, &asked)?;
        assert!(!refused.path.exists(), "{engine} {entries}");
    }
    Ok(())
}

#[test]
fn a_scan_is_in_the_order_of_keys_here_and_behind_a_server() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = matrix(&place)?;
    check_scans(&|asked| matrix.expect(0, &[&["scan"], asked].concat()))?;
    let (socket, password) = (place.argument("socket")?, place.argument("password")?);
    std::fs::write(&password, "open sesame\n")?;
    let served = matrix.serve(&["--unixsocket", &socket, "--requirepass-file", &password])?;
    for address in [&served.address, &socket] {
        let server = ["--server", address, "--password-file", &password];
        check_scans(&|asked| expect(0, &[&["scan"], asked, &server].concat()))?;
    }
    expect(3, &["scan", "--server", &served.address])?;
    expect(5, &["scan", "--server", "127.0.0.1:1"])?;
    expect(64, &["scan", "--password-file", &password])?;
    served.terminate()
}

/// Writes odd keys and removes them again until it is told to stop.
fn disturb(mut client: Client, seed: u64, stop: &AtomicBool) -> Outcome<()> {
    let mut number = seed;
    while !stop.load(Ordering::Relaxed) {
        number =
            number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = key((number >> 33) % KEYS * 2 + 1);
        client.call(&[b"SET", name.as_bytes(), b"odd"])?;
        if number >> 60 & 1 == 0 {
            assert!(matches!(client.call(&[b"DEL", name.as_bytes()])?, Reply::Number(_)));
        }
    }
    Ok(())
}

/// Runs `look` while three clients write and delete.
fn disturbed(served: &Served, look: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for seed in 0..3 {
            let (client, stop) = (served.connect()?, &stop);
            writers.push(
                scope.spawn(move || disturb(client, seed, stop).map_err(|it| it.to_string())),
            );
        }
        let looked = look();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("a writer ends")?;
        }
        looked
    })
}

#[test]
fn clients_go_through_ranges_while_others_write() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = matrix(&place)?;
    let served = matrix.serve(&["--threads", "2"])?;
    disturbed(&served, || {
        for reverse in [&[][..], &["--reverse"]] {
            for _ in 0..10 {
                let server =
                    ["scan", "--keys-only", "--prefix", "key:", "--server", &served.address];
                let shown = expect(0, &[&server, reverse].concat())?;
                let mut shown = lines(&shown);
                if !reverse.is_empty() {
                    shown.reverse();
                }
                assert!(shown.is_sorted_by(|one, next| one < next), "in order, each once");
                // The even keys are not written.
                let even = shown.iter().filter(|key| key.ends_with(['0', '2', '4', '6', '8']));
                assert_eq!(even.count() as u64, KEYS);
            }
        }
        Ok(())
    })?;
    served.terminate()?;
    matrix.is_sound()
}
