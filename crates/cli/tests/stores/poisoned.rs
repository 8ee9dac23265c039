//! Pages that are lost under a running server, and the rest of the pool.
//!
//! Without the hardware a page is lost by truncating the file while it is mapped: a load behind its end is a SIGBUS,
//! like one from a page that the medium has lost. Then the file gets its length back; the lost part reads as zeroes.
//!
//! The file itself shows which records are lost: each value occurs in it once.

use crate::pool::{Place, Pool};
use crate::session::{self, Client, Outcome, Reply, Served};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

const RECORDS: usize = 20_000;
const POOL_BYTES: u64 = 64 << 20;
/// The unit of loss: a page of the system.
const LOST_UNIT: u64 = 4096;

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// A text that occurs nowhere else, repeated.
fn value(number: usize) -> Vec<u8> {
    format!("<{number:08}>").repeat(100).into_bytes()
}

fn write_records(client: &mut Client, numbers: std::ops::Range<usize>) -> Outcome<()> {
    for number in numbers {
        let reply = client.call(&[b"SET", key(number).as_bytes(), &value(number)])?;
        assert_eq!(reply, Reply::ok());
    }
    Ok(())
}

/// The offset of each value in the file.
fn places(pool: &Pool) -> Outcome<Vec<u64>> {
    let bytes = pool.bytes()?;
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

/// The state of a record after the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// Lost in part.
    Torn,
    Lost,
}

/// The fate of a record whose value is at `place`.
fn fate(place: u64, cut: u64) -> Fate {
    if place + 1000 <= cut {
        Fate::Kept
    } else if place - 64 < cut {
        // A part of its header and key, which are before the value, or of the value is left.
        Fate::Torn
    } else {
        Fate::Lost
    }
}

/// Four connections read everything, each in an order of its own, until the server is gone. All answers until then
/// must be right.
fn read_until_it_ends(served: &Served) -> Outcome<()> {
    let is_over = AtomicBool::new(false);
    let mut clients = Vec::new();
    for _ in 0..4 {
        // The server may be gone already: background work accessed the lost page first.
        clients.extend(served.connect().ok());
    }
    std::thread::scope(|scope| {
        for (connection, mut client) in clients.into_iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                for step in 0..RECORDS {
                    let number = (step * 7919 + connection * RECORDS / 4) % RECORDS;
                    match client.call(&[b"GET", key(number).as_bytes()]) {
                        Ok(reply) => assert!(reply == Reply::bulk(value(number)), "{number}"),
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

/// The lost part.
struct Loss {
    /// Everything from here on is lost.
    cut: u64,
    /// The fate of each record.
    fates: Vec<Fate>,
}

/// Fills a pool, and truncates its end under the server that reads it, which may have been restarted before.
fn lose_under_a_server(pool: &Pool, is_closed_before: bool) -> Outcome<Loss> {
    let name = &pool.name;
    let complaints = pool.path.with_extension("complaints");
    let start = || Served::start_complaining_to(File::create(&complaints)?, &["--pool", name]);
    let mut served = start()?;
    write_records(&mut served.connect()?, 0..RECORDS)?;
    if is_closed_before {
        served.terminate()?;
        served = start()?;
    }
    let places = places(pool)?;
    let mut sorted = places.clone();
    sorted.sort_unstable();
    let cut = sorted[RECORDS / 2].next_multiple_of(LOST_UNIT);
    let file = File::options().write(true).open(&pool.path)?;
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

/// `verify` finds damage, and names a place in the lost part.
fn is_found_damaged(pool: &Pool, cut: u64) -> Outcome<()> {
    let (code, said) = pool.ask(&["verify"], b"")?;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("DAMAGED"), "{said}");
    let mut places = said.lines().filter_map(|line| {
        let offset = line.strip_prefix("damaged at offset 0x")?.split(':').next()?;
        u64::from_str_radix(offset, 16).ok()
    });
    assert!(places.any(|place| place >= cut), "nothing behind {cut:#x}: {said}");
    Ok(())
}

/// With an index in the pool no log is read when it is opened, so that the store serves the remaining records. A read
/// of a lost record is an error, and never looks like an absent key.
fn serves_what_is_left(pool: &Pool, loss: &Loss) -> Outcome<()> {
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for (number, fate) in loss.fates.iter().enumerate() {
        let reply = client.call(&[b"GET", key(number).as_bytes()])?;
        let is_right = match fate {
            Fate::Kept => reply == Reply::bulk(value(number)),
            Fate::Lost => matches!(&reply, Reply::Failed(what) if what.contains("at offset")),
            // A read checks no checksum: `verify` must name this record.
            Fate::Torn => reply != Reply::Bulk(None),
        };
        assert!(is_right, "{number}, {fate:?}: {reply:?}");
    }
    let lost = loss.fates.iter().filter(|fate| **fate == Fate::Lost).count();
    assert!(lost > RECORDS / 10 && lost < RECORDS * 9 / 10, "{lost} of {RECORDS} lost");
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(i64::try_from(RECORDS)?));
    served.terminate()?;
    Ok(())
}

fn every_command_says_what_is_lost(pool: &Pool, loss: &Loss) -> Outcome<()> {
    let number_of = |wanted: Fate| {
        let found = loss.fates.iter().position(|fate| *fate == wanted);
        found.map(key).ok_or_else(|| format!("no record is {wanted:?}"))
    };
    let (kept, lost) = (number_of(Fate::Kept)?, number_of(Fate::Lost)?);
    is_found_damaged(pool, loss.cut)?;
    let corrupt = "corrupt at offset 0x";
    pool.says(0, &["records"], &["info"])?;
    pool.says(0, &["records"], &["stats"])?;
    pool.says(2, &[corrupt], &["scan"])?;
    pool.says(2, &[corrupt], &["dump"])?;
    pool.says(0, &["<0000"], &["get", &kept])?;
    pool.says(2, &[corrupt], &["get", &lost])?;
    pool.says(2, &[corrupt], &["put", &lost, "value"])?;
    pool.says(2, &[corrupt], &["del", &lost])?;
    pool.says(2, &[""], &["create", "--size", "64MiB"])?;
    pool.says(0, &["1 deleted"], &["del", &kept])?;
    pool.says(0, &[""], &["put", "new", "value"])?;
    pool.says(0, &["value"], &["get", "new"])?;
    let line = br#"{"key": "newer", "value": "v"}"#;
    pool.says_with(0, &["1 loaded"], &["load"], line)?;
    pool.says(0, &["pool_bytes"], &["grow", "--size", "80MiB"])?;
    is_found_damaged(pool, loss.cut)
}

#[test]
fn with_the_index_in_the_pool_what_is_left_is_served() -> Outcome<()> {
    let place = Place::in_memory()?;
    for is_closed_before in [false, true] {
        let arguments = ["--size", "64MiB", "--index", "pmem"];
        let pool = place.created(&format!("pool-{is_closed_before}"), &arguments)?;
        let loss = lose_under_a_server(&pool, is_closed_before)?;
        serves_what_is_left(&pool, &loss)?;
        every_command_says_what_is_lost(&pool, &loss)?;
        is_repaired(&pool, &loss, 2)?;
        std::fs::remove_file(&pool.path)?;
    }
    Ok(())
}

/// After a repair the pool is sound: the kept records are there except `deleted` keys, and the lost ones are absent.
fn is_repaired(pool: &Pool, loss: &Loss, deleted: usize) -> Outcome<()> {
    let (code, said) = pool.ask(&["verify", "--repair"], b"")?;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("repaired: ") && said.contains("\nsound: "), "{said}");
    assert!(said.contains("cannot be named"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("page ")), "{said}");
    pool.says(0, &["sound: "], &["verify"])?;
    pool.says(0, &["sound: "], &["verify", "--repair"])?;
    let served = pool.serve(&[])?;
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
    served.terminate()?;
    Ok(())
}

/// An index in DRAM is built from the logs: without some of them it is unknown what is missing, so that every command
/// refuses the pool.
#[test]
fn with_the_index_in_dram_the_pool_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    for is_closed_before in [false, true] {
        let arguments = ["--size", "64MiB", "--index", "dram"];
        let pool = place.created(&format!("pool-{is_closed_before}"), &arguments)?;
        let loss = lose_under_a_server(&pool, is_closed_before)?;
        for command in session::NEED_A_POOL {
            pool.says(2, &["at offset 0x"], command)?;
            let (_, said) = pool.ask(command, b"")?;
            assert!(said.contains(&pool.name) && said.contains("verify --repair"), "{said}");
        }
        is_repaired(&pool, &loss, 0)?;
        std::fs::remove_file(&pool.path)?;
    }
    Ok(())
}
