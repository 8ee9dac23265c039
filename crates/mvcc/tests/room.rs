//! Room in a full pool: for writes that replace records.

use coreplane_engine::{Batch, Completion, Durability, Engine, Error, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Model, Sim, SimOptions};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a value that has pages of its own.
const LARGE: usize = 6000;

/// In a pool that takes no new values any more, large values of existing keys are written anew, in a batch as well as
/// alone.
#[test]
fn a_batch_overwrites_large_values_where_a_put_does() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let geometry = Geometry { page_size: 4096, ..Geometry::default() };
        let store = MapEngine::create(kind, &path, 4 << 20, geometry, MediaChoice::Auto, &options);
        let store = store.expect("create");
        let put = |number: u32, byte: u8| {
            store.put(&number.to_be_bytes(), &[byte; LARGE], &WriteOptions::default())
        };
        let mut count = 0;
        let refused = loop {
            match put(count, 1) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
        assert!(put(0, 2).expect("there is room for it").written().is_some());
        for number in 0..20 {
            let mut batch = Batch::new();
            batch.put(&number_of(number, count), &[3; LARGE]);
            batch.put(&number_of(number + 1, count), &[3; LARGE]);
            store.apply(&batch, &WriteOptions::default()).expect("there is room for them");
        }
        let mut batch = Batch::new();
        batch.put(&count.to_be_bytes(), &[3; LARGE]);
        let refused = store.apply(&batch, &WriteOptions::default());
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "it is new: {refused:?}");
        assert_eq!(store.get(&number_of(20, count)).expect("get"), Some(vec![3; LARGE]));
    }
}

fn number_of(number: u32, count: u32) -> [u8; 4] {
    (number * 7 % count).to_be_bytes()
}

/// Where a fence is a sync, a tree that makes space writes a commit if that gives pages back, and does not repeat it
/// until the sync has ended: each commit requests a sync.
#[test]
fn a_full_tree_makes_space_with_few_commits() {
    const WRITES: u32 = 6000;
    const KEYS: u32 = 3000;
    let (len, page_size, model) = (1 << 20, 4096, Model::File);
    let sim =
        Sim::new(&SimOptions { len, max_len: len, page_size, model, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let options = Options { background: false, ..Options::default() };
    let space = Arc::clone(sim.space());
    let store = MapEngine::simulated_create(MapKind::CowTree, space, &options).expect("create");
    let durability = Durability::Group { max_ops: 64, max_delay: Duration::from_secs(60) };
    let (completion, durability) = (Completion::Early, Some(durability));
    let early = WriteOptions { completion, durability, ..WriteOptions::default() };
    let mut refused = 0;
    for number in 0..WRITES {
        let key = (number.wrapping_mul(2_654_435_771) >> 16) % KEYS;
        let written = store.put(&key.to_be_bytes(), &[number as u8; 100], &early);
        refused += u32::from(written.is_err());
    }
    assert!(refused > 0, "it was never full");
    // It was 1,214 when commits followed each other without that.
    let asked = store.stats().fences;
    assert!(asked < 950, "{asked} syncs were asked for");
}
