//! How many of a leader's entries fit, for every map: entries that are reported to fit do fit.

use coreplane_engine::{Batch, Result};
use coreplane_mvcc::{Geometry, LogAppend, LogMap, MapKind, Options};
use coreplane_pmem::MediaChoice;
use coreplane_replica::{ReplicaMap, WalBaseline, WalOptions, map_options};
use std::path::Path;

/// Bytes of a pool.
const LEN: u64 = 1 << 20;

fn maps(directory: &Path) -> Result<Vec<Box<dyn ReplicaMap>>> {
    let mut maps: Vec<Box<dyn ReplicaMap>> = Vec::new();
    for kind in MapKind::ALL {
        for media in [MediaChoice::Auto, MediaChoice::File] {
            let path = directory.join(maps.len().to_string());
            let options = map_options(&Options::default());
            let map = LogMap::create(kind, &path, LEN, Geometry::default(), media, &options)?;
            maps.push(Box::new(map));
        }
    }
    let (path, size) = (directory.join("wal"), (LEN, 4096));
    let map = WalBaseline::create_pool(&path, size, MediaChoice::Auto, &WalOptions::default())?;
    maps.push(Box::new(map));
    Ok(maps)
}

/// The shape of entries.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Entries of a message.
    count: u64,
    changes: u64,
    key_len: usize,
    value_len: usize,
    /// Messages until the sent entries are applied.
    lag: u64,
}

fn entries(from: u64, shape: Shape) -> Vec<Batch> {
    let entry = |at: u64| {
        let mut batch = Batch::new();
        for change in 0..shape.changes {
            let number = ((from + at) * 100 + change).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut key = number.to_le_bytes().to_vec();
            key.resize(shape.key_len, b'.');
            batch.put(&key, &vec![7; shape.value_len]);
        }
        batch
    };
    (0..shape.count).map(entry).collect()
}

/// Sends entries until no more fit; how many were taken.
fn fill(map: &dyn ReplicaMap, shape: Shape) -> Result<u64> {
    let (mut taken, mut refused, mut message) = (0, 0, 0);
    while refused < 4 {
        let next = map.control().newest + 1;
        let sent = entries(next, shape);
        let bytes: usize = sent.iter().map(Batch::bytes_len).sum();
        let fits =
            match map.has_ample_room((shape.count, shape.count * shape.changes, bytes as u64)) {
                true => sent.len(),
                false => map.room_for_entries(&sent)?,
            };
        let appends = (next..).zip(sent.iter().take(fits));
        let appends =
            appends.map(|(timestamp, changes)| LogAppend { timestamp, header: b"header", changes });
        map.append(&appends.collect::<Vec<_>>())?;
        map.wait_durable(map.commit()?)?;
        message += 1;
        // Committed entries are applied some messages later.
        if message % shape.lag == 0 || fits == 0 {
            map.apply(map.control().newest - fits as u64 / 2)?;
            map.wait_durable(map.commit()?)?;
        }
        taken += fits as u64;
        refused = if fits == 0 { refused + 1 } else { 0 };
    }
    Ok(taken)
}

#[test]
fn what_is_said_to_fit_fits() -> Result<()> {
    let usual = Shape { count: 40, changes: 1, key_len: 8, value_len: 300, lag: 1 };
    let shapes = [
        usual,
        Shape { changes: 8, value_len: 250, ..usual },
        Shape { changes: 3, value_len: 700, ..usual },
        Shape { changes: 7, value_len: 20, ..usual },
        Shape { changes: 2, value_len: 3000, ..usual },
        Shape { value_len: 20_000, ..usual },
        Shape { count: 1, lag: 200, ..usual },
        Shape { count: 1, key_len: 500, value_len: 10, lag: 10, ..usual },
        Shape { count: 2, changes: 20, key_len: 16, value_len: 0, lag: 30 },
    ];
    for shape in shapes {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        for map in maps(directory.path())? {
            let taken = fill(&*map, shape).unwrap_or_else(|error| {
                panic!("{shape:?} of {}: {error}", map.name());
            });
            let change = (shape.key_len + shape.value_len).max(50) as u64;
            let bytes = taken * shape.changes * change;
            assert!(bytes > LEN / 16, "{shape:?} of {}: {taken} entries", map.name());
            assert_eq!(map.control().newest, taken, "{}", map.name());
        }
    }
    Ok(())
}

/// A value that does not fit half a page beside its key has a page of its own, however short it is.
#[test]
fn room_that_is_ample_for_long_keys_is_there() -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let options = map_options(&Options::default());
    for changes in (15..=210).step_by(15) {
        let path = directory.path().join(changes.to_string());
        let (kind, media) = (MapKind::List, MediaChoice::Auto);
        let map = LogMap::create(kind, &path, LEN, Geometry::default(), media, &options)?;
        let shape = Shape { count: 1, changes, key_len: 1900, value_len: 120, lag: 1 };
        let sent = entries(0, shape);
        let bytes = sent.iter().map(Batch::bytes_len).sum::<usize>() as u64;
        if map.has_ample_room((1, changes, bytes)) {
            map.append(1, b"header", &sent[0], true)?;
        } else {
            assert!(changes > 60, "room for {changes} is ample");
        }
    }
    Ok(())
}
