//! Pages that are lost under a running server, and the pool that is left.
//!
//! Without the hardware a page is lost by cutting the file short while it is mapped: a load from
//! behind its end is a SIGBUS, as one from a page that the medium has lost. Then the file gets its
//! length back; what was lost reads as zeroes.
//!
//! The file itself tells which records are lost: each value occurs in it once.

mod session;

use session::{Client, Outcome, Reply, Served, coreplane, expect, text};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const RECORDS: usize = 20_000;
const POOL_BYTES: u64 = 64 << 20;
/// What can be lost: a page of the system.
const LOST_UNIT: u64 = 4096;

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// A text that occurs nowhere else, again and again.
fn value(number: usize) -> Vec<u8> {
    format!("<{number:08}>").repeat(100).into_bytes()
}

fn write_records(client: &mut Client, numbers: std::ops::Range<usize>) -> Outcome<()> {
    for number in numbers {
        let reply = client.call(&[b"SET", key(number).as_bytes(), &value(number)])?;
        assert_eq!(reply, Reply::Simple("OK".to_owned()));
    }
    Ok(())
}

/// Where each value is in the file.
fn places(pool: &Path) -> Outcome<Vec<u64>> {
    let bytes = std::fs::read(pool)?;
    let mut places = vec![0; RECORDS];
    let mut at = 0;
    while at + 10 <= bytes.len() {
        let unit = &bytes[at..at + 10];
        let number = (unit[0] == b'<' && unit[9] == b'>')
            .then(|| std::str::from_utf8(&unit[1..9]).ok()?.parse::<usize>().ok())
            .flatten();
        match number {
            Some(number) => {
                assert_eq!(places[number], 0, "value {number} is there twice");
                places[number] = at as u64;
                at += value(number).len();
            }
            None => at += 1,
        }
    }
    assert!(places.iter().all(|place| *place > 0), "every value is in the file");
    Ok(places)
}

/// What has become of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// In part.
    Torn,
    Lost,
}

/// Of a record whose value is at `place`.
fn fate(place: u64, cut: u64) -> Fate {
    if place + 1000 <= cut {
        Fate::Kept
    } else if place - 64 < cut {
        // Of its header and key, which are before the value, or of the value something is left.
        Fate::Torn
    } else {
        Fate::Lost
    }
}

/// Four connections read everything, each in an order of its own, until the server is gone. What
/// they are told until then is right.
fn read_until_it_ends(served: &Served) -> Outcome<()> {
    let is_over = AtomicBool::new(false);
    let mut clients = Vec::new();
    for _ in 0..4 {
        // It may be gone already: something in the background met the lost page first.
        clients.extend(served.connect().ok());
    }
    std::thread::scope(|scope| {
        for (connection, mut client) in clients.into_iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                for step in 0..RECORDS {
                    let number = (step * 7919 + connection * RECORDS / 4) % RECORDS;
                    match client.call(&[b"GET", key(number).as_bytes()]) {
                        Ok(reply) => assert!(reply == Reply::Bulk(Some(value(number))), "{number}"),
                        Err(_) => {
                            is_over.store(true, Ordering::Relaxed);
                            return;
                        }
                    }
                }
            });
        }
    });
    assert!(served.connect().is_err() || is_over.into_inner(), "nobody met a lost page");
    Ok(())
}

/// What was lost.
struct Loss {
    /// All from here on.
    cut: u64,
    /// Of each record.
    fates: Vec<Fate>,
}

/// Fills a pool, and loses the end of it under the server that reads it, which may have been
/// started anew before.
fn lose_under_a_server(pool: &Path, index: &str, is_closed_before: bool) -> Outcome<Loss> {
    let name = text(pool)?;
    expect(0, &["create", "--pool", name, "--size", "64MiB", "--index", index])?;
    let complaints = pool.with_extension("complaints");
    let start = || Served::start_complaining_to(File::create(&complaints)?, &["--pool", name]);
    let mut served = start()?;
    write_records(&mut served.connect()?, 0..RECORDS)?;
    if is_closed_before {
        assert_eq!(served.terminate()?, Some(0));
        served = start()?;
    }
    let places = places(pool)?;
    let mut sorted = places.clone();
    sorted.sort_unstable();
    let cut = sorted[RECORDS / 2].next_multiple_of(LOST_UNIT);
    let file = File::options().write(true).open(pool)?;
    file.set_len(cut)?;
    read_until_it_ends(&served)?;
    assert_eq!(served.ended()?, Some(coreplane_pmem::poison::EXIT_STATUS));
    file.set_len(POOL_BYTES)?;
    let complaint = std::fs::read_to_string(&complaints)?;
    let (first, rest) = complaint.split_once('\n').ok_or("no line")?;
    assert!(rest.is_empty(), "more than one line: {complaint}");
    let offset = first
        .strip_prefix(&format!("pool {name}: poisoned page at offset 0x"))
        .and_then(|rest| rest.strip_suffix("; run coreplane verify"))
        .ok_or_else(|| format!("not what it should say: {first}"))?;
    let offset = u64::from_str_radix(offset, 16)?;
    assert!((cut..POOL_BYTES).contains(&offset), "{offset:#x} was not lost at {cut:#x}");
    Ok(Loss { cut, fates: places.into_iter().map(|place| fate(place, cut)).collect() })
}

/// Runs a command on a damaged pool; the exit code and all that it says.
fn ask(pool: &str, command: &[&str], input: &[u8]) -> Outcome<(i32, String)> {
    let output = coreplane(&[command, &["--pool", pool]].concat(), input)?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().ok_or_else(|| format!("{command:?} was killed"))?;
    assert!(!complaint.contains("panicked"), "{command:?}: {complaint}");
    Ok((code, format!("{complaint}{}", String::from_utf8_lossy(&output.stdout))))
}

fn expect_saying(code: i32, word: &str, pool: &str, command: &[&str], input: &[u8]) -> Outcome<()> {
    let (ended, said) = ask(pool, command, input)?;
    assert_eq!(ended, code, "{command:?}: {said}");
    assert!(said.contains(word), "{command:?}: {said}");
    Ok(())
}

/// `verify` finds damage, and names a place in what was lost.
fn is_found_damaged(pool: &str, cut: u64) -> Outcome<()> {
    let (code, said) = ask(pool, &["verify"], b"")?;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("DAMAGED"), "{said}");
    let mut places = said.lines().filter_map(|line| {
        let offset = line.strip_prefix("damaged at offset 0x")?.split(':').next()?;
        u64::from_str_radix(offset, 16).ok()
    });
    assert!(places.any(|place| place >= cut), "nothing behind {cut:#x}: {said}");
    Ok(())
}

/// An index in the pool: no log is read when it is opened, so that the store serves what it has.
/// What is lost is an error, and never looks as if it had not been there.
fn serves_what_is_left(pool: &str, loss: &Loss) -> Outcome<()> {
    let served = Served::start(&["--pool", pool])?;
    let mut client = served.connect()?;
    for (number, fate) in loss.fates.iter().enumerate() {
        let reply = client.call(&[b"GET", key(number).as_bytes()])?;
        let is_right = match fate {
            Fate::Kept => reply == Reply::Bulk(Some(value(number))),
            Fate::Lost => matches!(&reply, Reply::Failed(what) if what.contains("at offset")),
            // A read looks at no checksum: it is for `verify` to name this one.
            Fate::Torn => reply != Reply::Bulk(None),
        };
        assert!(is_right, "{number}, {fate:?}: {reply:?}");
    }
    let lost = loss.fates.iter().filter(|fate| **fate == Fate::Lost).count();
    assert!(lost > RECORDS / 10 && lost < RECORDS * 9 / 10, "{lost} of {RECORDS} lost");
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(i64::try_from(RECORDS)?));
    assert_eq!(served.terminate()?, Some(0));
    Ok(())
}

fn every_command_says_what_is_lost(pool: &str, loss: &Loss) -> Outcome<()> {
    let number_of = |wanted: Fate| {
        let found = loss.fates.iter().position(|fate| *fate == wanted);
        found.map(key).ok_or_else(|| format!("no record is {wanted:?}"))
    };
    let (kept, lost) = (number_of(Fate::Kept)?, number_of(Fate::Lost)?);
    is_found_damaged(pool, loss.cut)?;
    let corrupt = "corrupt at offset 0x";
    expect_saying(0, "records", pool, &["info"], b"")?;
    expect_saying(0, "records", pool, &["stats"], b"")?;
    expect_saying(2, corrupt, pool, &["scan"], b"")?;
    expect_saying(2, corrupt, pool, &["dump"], b"")?;
    expect_saying(0, "<0000", pool, &["get", &kept], b"")?;
    expect_saying(2, corrupt, pool, &["get", &lost], b"")?;
    expect_saying(2, corrupt, pool, &["put", &lost, "value"], b"")?;
    expect_saying(2, corrupt, pool, &["del", &lost], b"")?;
    expect_saying(2, "", pool, &["create", "--size", "64MiB"], b"")?;
    expect_saying(0, "1 deleted", pool, &["del", &kept], b"")?;
    expect_saying(0, "", pool, &["put", "new", "value"], b"")?;
    expect_saying(0, "value", pool, &["get", "new"], b"")?;
    let line = br#"{"key": "newer", "value": "v"}"#;
    expect_saying(0, "1 loaded", pool, &["load"], line)?;
    expect_saying(0, "pool_bytes", pool, &["grow", "--size", "80MiB"], b"")?;
    is_found_damaged(pool, loss.cut)
}

#[test]
fn with_the_index_in_the_pool_what_is_left_is_served() -> Outcome<()> {
    let place = tempfile::tempdir_in("/dev/shm")?;
    for is_closed_before in [false, true] {
        let pool = place.path().join(format!("pool-{is_closed_before}"));
        let loss = lose_under_a_server(&pool, "pmem", is_closed_before)?;
        serves_what_is_left(text(&pool)?, &loss)?;
        every_command_says_what_is_lost(text(&pool)?, &loss)?;
        is_repaired(text(&pool)?, &loss, 2)?;
        std::fs::remove_file(&pool)?;
    }
    Ok(())
}

/// After a repair the pool is sound: what was kept is there but for `deleted` keys, and what was
/// lost is absent.
fn is_repaired(pool: &str, loss: &Loss, deleted: usize) -> Outcome<()> {
    let (code, said) = ask(pool, &["verify", "--repair"], b"")?;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("repaired: ") && said.contains("\nsound: "), "{said}");
    assert!(said.contains("cannot be named"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("page ")), "{said}");
    expect_saying(0, "sound: ", pool, &["verify"], b"")?;
    expect_saying(0, "sound: ", pool, &["verify", "--repair"], b"")?;
    let served = Served::start(&["--pool", pool])?;
    let mut client = served.connect()?;
    let mut absent = 0;
    for (number, fate) in loss.fates.iter().enumerate() {
        let reply = client.call(&[b"GET", key(number).as_bytes()])?;
        let is_there = reply == Reply::Bulk(Some(value(number)));
        assert!(is_there || reply == Reply::Bulk(None), "{number}, {fate:?}: {reply:?}");
        match fate {
            Fate::Kept => absent += usize::from(!is_there),
            Fate::Torn | Fate::Lost => assert!(!is_there, "{number}, {fate:?}"),
        }
    }
    assert!(absent <= deleted, "{absent} of what was kept are absent");
    assert_eq!(served.terminate()?, Some(0));
    Ok(())
}

/// An index in DRAM is made from the logs: without some of them nobody can tell what is missing,
/// so that the pool is refused by everyone.
#[test]
fn with_the_index_in_dram_the_pool_is_refused() -> Outcome<()> {
    let place = tempfile::tempdir_in("/dev/shm")?;
    for is_closed_before in [false, true] {
        let pool = place.path().join(format!("pool-{is_closed_before}"));
        let loss = lose_under_a_server(&pool, "dram", is_closed_before)?;
        for command in session::NEED_A_POOL {
            expect_saying(2, "at offset 0x", text(&pool)?, command, b"")?;
            let (_, said) = ask(text(&pool)?, command, b"")?;
            assert!(said.contains(text(&pool)?) && said.contains("verify --repair"), "{said}");
        }
        is_repaired(text(&pool)?, &loss, 0)?;
        std::fs::remove_file(&pool)?;
    }
    Ok(())
}
