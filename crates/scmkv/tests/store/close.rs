//! A close beside writers: operations that come too late get an error, and change nothing any more.

use crate::home::{options, strict};
use crate::scale::scaled;
use coreplane_engine::{Batch, Durability, Engine, Error, Replicated, Result, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{Eviction, History, Model, Run, SimOptions, Subject, explore};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// An operation that runs beside a close, again and again.
type Deed = fn(&Scmkv, u32) -> Result<()>;

fn put(store: &Scmkv, number: u32, durability: Durability) -> Result<()> {
    let options = WriteOptions { durability: Some(durability), ..WriteOptions::default() };
    store.put(&number.to_le_bytes(), b"v", &options).map(drop)
}

const DEEDS: [(&str, Deed); 5] = [
    ("relaxed put", |store, number| put(store, number, Durability::RELAXED)),
    ("strict put", |store, number| put(store, number, Durability::Strict)),
    ("relaxed batch", |store, number| {
        let mut batch = Batch::new();
        batch.put(&number.to_le_bytes(), b"v");
        let durability = Some(Durability::RELAXED);
        store.apply(&batch, &WriteOptions { durability, ..WriteOptions::default() }).map(drop)
    }),
    ("advance_sequence", |store, _| store.advance_sequence().map(drop)),
    ("checkpoint", |store, _| store.checkpoint().map(drop)),
];

/// Threads that repeat `deed` until they get the error that the store is closed, and one that
/// closes it.
struct Closing {
    placement: Placement,
    deed: Deed,
    /// Operations that were done before a close, in all runs.
    done: AtomicU64,
}

impl Subject for Closing {
    type Op = ();
    type Store = ();
    type Contents = ();

    fn work(&self, run: &Run<'_, ()>) {
        let space = run.space().clone();
        let store = Scmkv::simulated_create(space, Geometry::TINY, self.placement, options(false))
            .expect("create");
        let _outcome = store.put(b"first", b"v", &strict()).expect("put");
        let closed = Mutex::new(None);
        let bytes = || run.sim().crash(Eviction::Everything).bytes().to_vec();
        let (store, closed) = (&store, &closed);
        run.threads(|threads| {
            for thread in 0..2_u32 {
                threads.spawn(move || {
                    for number in 0..40 {
                        match (self.deed)(store, thread << 16 | number) {
                            Ok(()) => self.done.fetch_add(1, Ordering::Relaxed),
                            Err(Error::Closed) => return,
                            Err(error) => panic!("{error}"),
                        };
                    }
                });
            }
            threads.spawn(move || {
                store.close().expect("close");
                *closed.lock().expect("lock") = Some(bytes());
            });
        });
        let closed = closed.lock().expect("lock").take().expect("it was closed");
        let changed = closed.iter().zip(bytes()).position(|(before, after)| *before != after);
        assert_eq!(changed, None, "a byte of the closed pool was changed");
    }

    fn recover(&self, _space: &Arc<Space>) -> std::result::Result<(), String> {
        Ok(())
    }

    fn contents(&self, _store: &()) -> std::result::Result<(), String> {
        Ok(())
    }

    fn check(&self, _contents: &(), _history: &History<'_, ()>) -> std::result::Result<(), String> {
        Ok(())
    }
}

fn nothing_comes_behind_a_close(placement: Placement, model: Model) {
    for (name, deed) in DEEDS {
        let subject = Closing { placement, deed, done: AtomicU64::new(0) };
        for seed in 0..scaled(150, 3000) {
            let len = 160 << 10;
            let options = SimOptions {
                len,
                max_len: len,
                model,
                seed,
                images_per_cut: 1,
                recovery_cut_in: 0,
                checkers: 1,
                early_reads: false,
                ..SimOptions::default()
            };
            let report = explore(&options, &subject);
            assert!(report.violations.is_empty(), "{name}, seed {seed}: {report:#?}");
        }
        let done = subject.done.into_inner();
        eprintln!("{name}: {done} before a close");
        assert!(done > 0, "{name}: none came before a close");
    }
}

#[test]
fn nothing_comes_behind_a_close_with_the_index_in_the_pool() {
    nothing_comes_behind_a_close(Placement::Pool, Model::X86);
}

#[test]
fn nothing_comes_behind_a_close_where_a_fence_is_a_sync() {
    nothing_comes_behind_a_close(Placement::Dram, Model::File);
}
