//! Batches of several pages beside writers of single records.

use coreplane_engine::{Batch, Completion, Deferred, Durability, Engine, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// More rounds than a batch may wait for.
const ROUNDS: u32 = 30;
/// Bytes of a value: two records fill a page.
const VALUE: usize = 1800;

fn early() -> WriteOptions {
    let durability = Durability::Group { max_ops: 64, max_delay: Duration::from_secs(60) };
    let (completion, durability) = (Completion::Early, Some(durability));
    WriteOptions { completion, durability, ..WriteOptions::default() }
}

/// Whenever the lives of the pages for a batch are durable, and before the batch hears of it, other writers have
/// filled them.
#[test]
fn a_batch_of_several_pages_is_made_however_much_others_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { background: false, ..Options::default() };
    let (path, geometry) = (directory.path().join("pool"), Geometry::default());
    let media = MediaChoice::File;
    let store = MapEngine::create(MapKind::List, &path, 8 << 20, geometry, media, &options);
    let store = store.expect("create");
    let rounds = AtomicU32::new(0);
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<()>();
    let (told, own) = (Mutex::new(told), std::thread::current().id());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while rounds.load(Ordering::Relaxed) < ROUNDS && asked.recv().is_ok() {
                for number in 0..140_u32 {
                    let key = (number % 20).to_be_bytes();
                    let _written = store.put(&key, &[1; VALUE], &early()).expect("put");
                }
                rounds.fetch_add(1, Ordering::Relaxed);
                let _told = tell.send(()).is_ok();
            }
            drop((asked, tell));
        });
        store.on_durable(Arc::new(move || {
            if std::thread::current().id() == own && ask.send(()).is_ok() {
                // Not for ever: if the batch holds the map, the others wait for it.
                let told = told.lock().expect("one at a time");
                let _written = told.recv_timeout(Duration::from_secs(2)).is_ok();
            }
        }));
        let mut batch = Batch::new();
        for number in 100..120_u32 {
            batch.put(&number.to_be_bytes(), &[2; VALUE]);
        }
        let made = store.apply(&batch, &early());
        let met = rounds.load(Ordering::Relaxed);
        // The writer finishes first.
        while rounds.load(Ordering::Relaxed) < ROUNDS {
            store.sync().expect("sync");
        }
        let _written = made.expect("a batch");
        assert!(met > 0, "nothing was written meanwhile");
        assert!(met < 6, "it has waited for {met} rounds");
        assert_eq!(store.get(&119_u32.to_be_bytes()).expect("get"), Some(vec![2; VALUE]));
    });
}
