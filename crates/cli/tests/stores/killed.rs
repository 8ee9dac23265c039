//! Nothing lost: a server killed in the middle of a pipelined, mixed load, again and again.
//!
//! Each of four connections has keys of its own and knows the order of its writes: the server executes the commands
//! of a connection in order, so that after a kill each key has the state of its last acknowledged write or of a write
//! that was sent after it. A value is computed to the last byte from the number of the write, so that a torn one is
//! detected; the keys of an MSET are written together or not at all.
//!
//! Ten rounds, or as many as `COREPLANE_KILL_ROUNDS` says; a hundred at `COREPLANE_TEST_SCALE=full`.

use crate::pool::{Place, Pool};
use crate::session::{Client, Outcome, Reply, Served};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CONNECTIONS: u64 = 4;
const KEYS: u64 = 48;
const PIPELINE: usize = 16;

/// The state of a key: the number of the write that made it; none: absent.
type State = Option<u64>;

/// A connection's keys: the last acknowledged state, then those of writes that were sent since.
#[derive(Default)]
struct Ledger {
    sent: u64,
    acknowledged: BTreeMap<u64, State>,
    /// Writes without an answer yet: number, keys, state that they leave.
    open: Vec<(u64, Vec<u64>, State)>,
}

fn mix(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn key_name(connection: u64, key: u64) -> Vec<u8> {
    format!("c{connection}:k{key}").into_bytes()
}

/// The value of write `number` (from 1) of a connection: its number, then bytes that follow.
fn value(connection: u64, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let mut state = mix(connection << 40 ^ number);
    while bytes.len() < len {
        bytes.extend_from_slice(&state.to_le_bytes());
        state = mix(state);
    }
    bytes.truncate(len);
    bytes
}

fn value_len(connection: u64, number: u64) -> usize {
    let dice = mix(connection << 48 ^ number);
    match dice % 64 {
        0 => (1 << 20) - 100 + (dice >> 8) as usize % 200,
        1..4 => 4096 + (dice >> 8) as usize % 100_000,
        _ => 16 + (dice >> 8) as usize % 300,
    }
}

/// Appends write `number` to the wire; the keys that it touches and their state afterwards.
fn encode(connection: u64, number: u64, wire: &mut Vec<u8>) -> (Vec<u64>, State) {
    let dice = mix(number << 8 ^ connection);
    let key = (dice >> 16) % KEYS;
    let name = key_name(connection, key);
    let value = value(connection, number, value_len(connection, number));
    match dice % 10 {
        0 => {
            Client::encode(&[b"DEL", &name], wire);
            (vec![key], None)
        }
        1 => {
            let keys: Vec<_> = (0..4).map(|step| (key + step * KEYS / 4) % KEYS).collect();
            let names: Vec<_> = keys.iter().map(|key| key_name(connection, *key)).collect();
            let mut words: Vec<&[u8]> = vec![b"MSET"];
            for name in &names {
                words.extend([&name[..], &value]);
            }
            Client::encode(&words, wire);
            (keys, Some(number))
        }
        2 => {
            // A lifetime that has passed before any read: the key must be absent.
            Client::encode(&[b"SET", &name, &value, b"PX", b"1"], wire);
            (vec![key], None)
        }
        3 => {
            Client::encode(&[b"SET", &name, &value, b"PX", b"86400000"], wire);
            (vec![key], Some(number))
        }
        4 => {
            Client::encode(&[b"SET", &name, &value, b"EX", b"86400"], wire);
            (vec![key], Some(number))
        }
        _ => {
            Client::encode(&[b"SET", &name, &value], wire);
            (vec![key], Some(number))
        }
    }
}

/// Writes until the server is gone.
fn load(client: &mut Client, connection: u64, ledger: &mut Ledger, answers: &AtomicU64) {
    loop {
        let mut wire = Vec::new();
        for _ in 0..PIPELINE {
            ledger.sent += 1;
            let (keys, state) = encode(connection, ledger.sent, &mut wire);
            ledger.open.push((ledger.sent, keys, state));
        }
        if client.stream.write_all(&wire).is_err() {
            return;
        }
        for _ in 0..PIPELINE {
            match client.receive() {
                Ok(Reply::Simple(_) | Reply::Number(_)) => {}
                Ok(other) => panic!("a write was answered with {other:?}"),
                Err(_) => return,
            }
            let (_, keys, state) = ledger.open.remove(0);
            for key in keys {
                ledger.acknowledged.insert(key, state);
            }
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Compares every key of a connection with the ledger, which is then replaced by the findings.
fn check(client: &mut Client, connection: u64, ledger: &mut Ledger) -> Outcome<()> {
    let mut found = BTreeMap::new();
    for key in 0..KEYS {
        let state = match client.call(&[b"GET", &key_name(connection, key)])? {
            Reply::Bulk(None) => None,
            Reply::Bulk(Some(bytes)) => {
                let head = bytes.first_chunk::<8>().ok_or("a value without a number")?;
                let number = u64::from_le_bytes(*head);
                let expected = value(connection, number, value_len(connection, number));
                if bytes != expected {
                    return Err(format!("key {key} of {connection}: torn, or another's").into());
                }
                Some(number)
            }
            other => return Err(format!("GET was answered with {other:?}").into()),
        };
        let kept = ledger.acknowledged.get(&key).copied().unwrap_or(None);
        let later = ledger.open.iter().filter(|(_, keys, _)| keys.contains(&key));
        let allowed: Vec<_> = std::iter::once(kept).chain(later.map(|open| open.2)).collect();
        if !allowed.contains(&state) {
            let what = format!("is at {state:?}; acknowledged and sent since: {allowed:?}");
            return Err(format!("key {key} of {connection} {what}").into());
        }
        found.insert(key, state);
    }
    for (number, keys, state) in &ledger.open {
        // A key that a later write has changed tells nothing.
        let at: Vec<_> = keys
            .iter()
            .filter(|key| {
                !ledger.open.iter().any(|later| later.0 > *number && later.1.contains(key))
            })
            .map(|key| found.get(key) == Some(state))
            .collect();
        let torn = state.is_some() && at.contains(&true) && at.contains(&false);
        if torn {
            let what = format!("is half there: {keys:?}, {at:?}");
            return Err(format!("MSET {number} of {connection} {what}").into());
        }
    }
    ledger.open.clear();
    ledger.acknowledged = found;
    Ok(())
}

fn rounds() -> Outcome<u64> {
    if let Ok(rounds) = std::env::var("COREPLANE_KILL_ROUNDS") {
        return Ok(rounds.parse()?);
    }
    let full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    Ok(if full { 100 } else { 10 })
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_there() -> Outcome<()> {
    let place = Place::in_memory()?;
    let stores: [(&str, &[&str]); 6] = [
        ("pmem", &["--size", "512MiB", "--index", "pmem"]),
        ("dram", &["--size", "512MiB", "--index", "dram"]),
        ("bptree", &["--size", "512MiB", "--engine", "bptree"]),
        ("list", &["--size", "512MiB", "--engine", "list"]),
        ("cow-tree", &["--size", "512MiB", "--engine", "cow-tree"]),
        ("matrix", &["--size", "128MiB", "--matrix", "2x2"]),
    ];
    for (name, arguments) in stores {
        let pool = place.created(name, arguments)?;
        let mut ledgers: Vec<_> = (0..CONNECTIONS).map(|_| Ledger::default()).collect();
        for round in 0..rounds()?.div_ceil(2) {
            one_round(&pool, round, &mut ledgers)?;
        }
        let served = pool.serve(&[])?;
        check_all(&served, &mut ledgers)?;
        served.terminate()?;
        pool.is_sound()?;
        pool.remove()?;
    }
    Ok(())
}

fn check_all(served: &Served, ledgers: &mut [Ledger]) -> Outcome<()> {
    for (connection, ledger) in (0..).zip(ledgers) {
        check(&mut served.connect()?, connection, ledger)?;
    }
    Ok(())
}

/// Checks the state after the last kill, then loads and kills again.
fn one_round(pool: &Pool, round: u64, ledgers: &mut [Ledger]) -> Outcome<()> {
    let served = pool.serve(&[])?;
    check_all(&served, ledgers)?;
    let answers = AtomicU64::new(0);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(served.connect()?);
    }
    std::thread::scope(|scope| {
        for ((connection, ledger), mut client) in (0..).zip(ledgers.iter_mut()).zip(clients) {
            let answers = &answers;
            scope.spawn(move || load(&mut client, connection, ledger, answers));
        }
        // Long enough for writes of every kind, and not at the same place in every round.
        while answers.load(Ordering::Relaxed) < 1000 + mix(round) % 1000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        served.kill()
    })
}

#[test]
fn a_loss_would_be_found() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "256MiB"])?;
    let mut ledgers: Vec<_> = (0..CONNECTIONS).map(|_| Ledger::default()).collect();
    one_round(&pool, 0, &mut ledgers)?;
    let earlier = pool.bytes()?;
    one_round(&pool, 1, &mut ledgers)?;
    pool.put_bytes(&earlier)?;
    let served = pool.serve(&[])?;
    assert!(check_all(&served, &mut ledgers).is_err(), "the second round is gone");
    Ok(())
}
