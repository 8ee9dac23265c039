//! How much of what a leader sends there is room for, of every map: what is said to fit, fits.

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

/// Entries of some changes each, of values of this length.
fn entries(from: u64, count: u64, (changes, len): (u64, usize)) -> Vec<Batch> {
    let entry = |at: u64| {
        let mut batch = Batch::new();
        for change in 0..changes {
            batch.put(&((from + at) * 100 + change).to_le_bytes(), &vec![7; len]);
        }
        batch
    };
    (0..count).map(entry).collect()
}

/// Sends entries until none fits any more; how many were taken.
fn fill(map: &dyn ReplicaMap, shape: (u64, usize)) -> Result<u64> {
    let (mut taken, mut refused) = (0, 0);
    while refused < 4 {
        let next = map.control().newest + 1;
        let sent = entries(next, 40, shape);
        let bytes: usize = sent.iter().map(Batch::bytes_len).sum();
        let fits = match map.has_ample_room((40, 40 * shape.0, bytes as u64)) {
            true => sent.len(),
            false => map.room_for_entries(&sent)?,
        };
        let appends = (next..).zip(sent.iter().take(fits));
        let appends =
            appends.map(|(timestamp, changes)| LogAppend { timestamp, header: b"header", changes });
        map.append(&appends.collect::<Vec<_>>())?;
        map.wait_durable(map.commit()?)?;
        // What is committed is applied one message later.
        map.apply(map.control().newest - fits as u64 / 2)?;
        map.wait_durable(map.commit()?)?;
        taken += fits as u64;
        refused = if fits == 0 { refused + 1 } else { 0 };
    }
    Ok(taken)
}

#[test]
fn what_is_said_to_fit_fits() -> Result<()> {
    for shape in [(1, 300), (8, 250), (3, 700), (7, 20), (1, 0), (2, 3000), (1, 20_000)] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        for map in maps(directory.path())? {
            let taken = fill(&*map, shape).unwrap_or_else(|error| {
                panic!("{shape:?} of {}: {error}", map.name());
            });
            let bytes = taken * shape.0 * shape.1.max(50) as u64;
            assert!(bytes > LEN / 8, "{shape:?} of {}: {taken} entries", map.name());
            assert_eq!(map.control().newest, taken, "{}", map.name());
        }
    }
    Ok(())
}
