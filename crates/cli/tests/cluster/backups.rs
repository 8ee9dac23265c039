//! A backup shows one moment, while clients write; and a restored backup is equal to it.

use crate::nodes::nodes;
use crate::pool::Place;
use crate::session::{Outcome, Reply, coreplane, expect};
use crate::{ask, connect};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys to which one writer writes in turn, each time the same number.
const KEYS: u64 = 50;

fn records_of(path: &str) -> Outcome<BTreeMap<String, serde_json::Value>> {
    let mut records = BTreeMap::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let key = line["key"].as_str().or_else(|| line["key_hex"].as_str()).ok_or("a key")?;
        assert!(records.insert(key.to_owned(), line).is_none(), "a key is there twice");
    }
    Ok(records)
}

#[test]
fn a_backup_is_of_one_moment_and_can_be_restored() -> Outcome<()> {
    let place = Place::in_memory()?;
    let path = place.argument("backup.jsonl")?;
    let first = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    let ports: Vec<u16> = first.iter().map(|node| node.port).collect();
    ask(&ports, &[b"SET", b"large", &vec![b'x'; 3 << 20]])?;
    ask(&ports, &[b"SET", b"binary\xff", b"\x00\xfe"])?;
    ask(&ports, &[b"SET", b"", b"of no key"])?;
    ask(&ports, &[b"SET", b"expires", b"later", b"PXAT", b"99999999999999"])?;
    ask(&ports, &[b"SET", b"told", b"before"])?;
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| -> Outcome<()> {
        let writer = scope.spawn(|| -> Outcome<()> {
            let mut client = connect(ports[0])?;
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                for key in 0..KEYS {
                    let key = format!("k{key:02}");
                    let reply =
                        client.call(&[b"SET", key.as_bytes(), number.to_string().as_bytes()])?;
                    assert_eq!(reply, Reply::ok());
                }
                rounds.store(number, Ordering::Relaxed);
            }
            Ok(())
        });
        while rounds.load(Ordering::Relaxed) < 2 && !writer.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // Any server may be asked; it finds the leader.
        let done = first.iter().try_for_each(|node| -> Outcome<()> {
            expect(0, &["cluster", "backup", "--server", &node.address(), &path])?;
            let records = records_of(&path)?;
            let number =
                |key: u64| records[&format!("k{key:02}")]["value"].as_str()?.parse::<u64>().ok();
            let all: Vec<u64> = (0..KEYS).filter_map(number).collect();
            assert_eq!(all.len() as u64, KEYS);
            // They were written in turn: the first keys have the newest number, and the others the one before.
            let newest = all[0];
            let behind = all.iter().position(|it| *it != newest).unwrap_or(all.len());
            assert!(all[behind..].iter().all(|it| *it + 1 == newest), "{all:?} were never there");
            assert_eq!(records["told"]["value"], "before");
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer has panicked")??;
        done
    })?;
    let before = records_of(&path)?;
    let refused = coreplane(&["cluster", "restore", "--server", &first[1].address(), &path], b"")?;
    assert_ne!(refused.status.code(), Some(0), "there are records already");
    drop(first);
    let place = Place::in_memory()?;
    let again = place.argument("again.jsonl")?;
    let more = ["--replica-map", "cow-tree", "--cluster-tick", "100ms"];
    let second = nodes(&place, 3, 3, &more)?;
    ask(&second.iter().map(|node| node.port).collect::<Vec<_>>(), &[b"DBSIZE"])?;
    let said = expect(0, &["cluster", "restore", "--server", &second[2].address(), &path])?;
    assert_eq!(said, format!("{} restored\n", before.len()));
    expect(0, &["cluster", "backup", "--server", &second[0].address(), &again])?;
    assert_eq!(records_of(&again)?, before);
    Ok(())
}
