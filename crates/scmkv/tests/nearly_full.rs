//! A store nearly full of live data still takes overwrites: the cleaner always gets on.
//!
//! 95 % of *all* bytes of the pool are filled with live records; table, index, the cleaner's
//! reserve and open pages share the rest. Then every key is overwritten in a random order; each
//! overwrite must be taken, and all must read back, before and after a restart.
//!
//! The price is write amplification, which is printed: to gain a page, the cleaner copies the live
//! records of about `1 / (1 - u)` pages of live part `u`. It is the steeper the fewer pages the
//! last 5 % are, so that this pool of 128 pages is a hard case.
//!
//! Every key is overwritten once; twice at `COREPLANE_TEST_SCALE=full`.

mod home;
mod scale;

use coreplane_engine::{Engine, Error, Repairable, Stats};
use coreplane_scmkv::{Placement, Scmkv};
use home::{Home, New, write};
use scale::scaled;

const POOL: u64 = 256 << 20;
const VALUE: usize = 1000;
/// Bytes of a record in the log: header, key, value.
const RECORD: u64 = (20 + 16 + VALUE as u64).next_multiple_of(8);

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key-00000000....";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The value of version `version` of a key.
fn value(number: u64, version: u64) -> Vec<u8> {
    let mut state = number << 8 ^ version;
    let mut bytes = Vec::with_capacity(VALUE + 8);
    while bytes.len() < VALUE {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&(state ^ state >> 33).to_le_bytes());
    }
    bytes.truncate(VALUE);
    bytes
}

/// Numbers below `end`, each once, in an order that looks random.
fn shuffled(end: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..end).collect();
    let mut state = seed;
    for at in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9);
        numbers.swap(at, (state >> 33) as usize % (at + 1));
    }
    numbers
}

fn check(store: &Scmkv, records: u64, version: u64) {
    for number in 0..records {
        let found = store.get(&key(number)).expect("get");
        assert!(found.as_deref() == Some(&value(number, version)[..]), "{number} of {records}");
    }
    assert_eq!(store.len().expect("len"), records);
}

/// Puts records until the store takes no more; returns how many it took.
fn fill(store: &Scmkv, most: u64) -> u64 {
    for number in 0..most {
        match store.put(&key(number), &value(number, 0), &write()) {
            Ok(_) => {}
            Err(Error::NoSpace { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    most
}

fn report(what: &str, stats: &Stats, since: &Stats) {
    let user = stats.user_bytes_written - since.user_bytes_written;
    // The copies of the cleaner are written to a log, too.
    let log = stats.log_bytes_written - since.log_bytes_written;
    let live = 100.0 * stats.live_bytes as f64 / stats.pool_bytes as f64;
    eprintln!("{what}: {live:.2} % live, {:.2} bytes written for each", log as f64 / user as f64);
}

fn run(placement: Placement) {
    let home = Home::in_memory();
    let options = home::options(true);
    let store = home.create(New::of_size(POOL).placed(placement).with(options.clone()));
    let wanted = POOL * 95 / 100 / RECORD;
    assert_eq!(fill(&store, wanted), wanted, "the store takes 95 %");
    report("filled", &store.stats(), &Stats::default());
    let (records, rounds) = (wanted, scaled(1, 2));
    for round in 1..=rounds {
        let before = store.stats();
        for (done, number) in shuffled(records, round).into_iter().enumerate() {
            let put = store.put(&key(number), &value(number, round), &write());
            if let Err(error) = put {
                panic!("overwrite {done} of {records}: {error}; {:?}", store.stats());
            }
        }
        report("overwritten", &store.stats(), &before);
        check(&store, records, round);
    }
    store.close().expect("close");
    drop(store);
    let store = home.open(options);
    check(&store, records, rounds);
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

#[test]
fn overwrites_go_on_with_the_index_in_the_pool() {
    run(Placement::Pool);
}

#[test]
fn overwrites_go_on_with_the_index_in_dram() {
    run(Placement::Dram);
}
