//! Reads of single keys that another thread writes all the time.

use coreplane_engine::{
    Completion, Deferred, Durability, Engine, Record, Visibility, WriteOptions,
};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// More writes than a read may meet.
const WRITES: u32 = 100;

fn early() -> WriteOptions {
    let durability = Durability::Group { max_ops: 64, max_delay: Duration::from_secs(60) };
    let (completion, durability) = (Completion::Early, Some(durability));
    WriteOptions { completion, durability, ..WriteOptions::default() }
}

fn written(round: u32) -> Vec<u8> {
    round.to_le_bytes().to_vec()
}

/// Whenever a sync has ended, and before its waiters hear of that, the key is written anew: no record that a read
/// finds is durable. The read ends all the same, with the record that it has found and waited for.
fn read_beside_writes(kind: MapKind, read: impl Fn(&MapEngine) -> Vec<u8>) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { background: false, ..Options::default() };
    let path = directory.path().join("pool");
    let geometry = Geometry::default();
    let store = MapEngine::create(kind, &path, 16 << 20, geometry, MediaChoice::File, &options);
    let store = store.expect("create");
    let _first = store.put(b"k", &written(0), &early()).expect("put");
    let rounds = AtomicU32::new(0);
    let (ask, asked) = mpsc::sync_channel::<()>(0);
    let (tell, told) = mpsc::sync_channel::<()>(0);
    let told = std::sync::Mutex::new(told);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while rounds.load(Ordering::Relaxed) < WRITES && asked.recv().is_ok() {
                let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
                let _again = store.put(b"k", &written(round), &early()).expect("put");
                if tell.send(()).is_err() {
                    break;
                }
            }
            drop((asked, tell));
        });
        store.on_durable(Arc::new(move || {
            if ask.send(()).is_ok() {
                let _written = told.lock().expect("one at a time").recv().is_ok();
            }
        }));
        let found = read(&store);
        let met = rounds.load(Ordering::Relaxed);
        // The writer finishes first.
        while rounds.load(Ordering::Relaxed) < WRITES {
            store.sync().expect("sync");
        }
        assert!(met > 0, "{kind:?}: nothing was written meanwhile");
        assert!(met < 5, "{kind:?}: it has waited for {met} writes");
        assert_eq!(found, written(met - 1), "{kind:?}: the newest when it was looked at last");
    });
}

#[test]
fn a_read_ends_however_fast_others_write() {
    for kind in MapKind::ALL {
        read_beside_writes(kind, |store| {
            let mut shown = Vec::new();
            let mut visit = |record: Record<'_>| shown = record.value.to_vec();
            let found = store.get_with(b"k", Visibility::Durable, &mut visit).expect("get");
            assert!(found.hit && found.ticket.is_durable());
            shown
        });
    }
}

#[test]
fn a_read_of_several_keys_ends_however_fast_others_write() {
    for kind in MapKind::ALL {
        read_beside_writes(kind, |store| {
            let mut shown = Vec::new();
            let mut visit = |at: usize, record: Option<Record<'_>>| {
                assert_eq!(record.is_some(), at == 0);
                shown.extend(record.map(|it| it.value.to_vec()));
            };
            let keys: [&[u8]; 2] = [b"k", b"none"];
            let horizon = store.multi_get(&keys, Visibility::Durable, &mut visit).expect("get");
            assert!(horizon.is_empty());
            shown.remove(0)
        });
    }
}
