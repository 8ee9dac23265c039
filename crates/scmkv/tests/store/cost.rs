//! The cost of an operation, counted by the simulated medium.

use coreplane_engine::{Batch, Completion, Deferred, Engine, Horizon, WriteOptions};
use coreplane_pmem::media::sim::{Cost, History, Run, SimOptions, Subject, explore};
use coreplane_pmem::{LINE, Space};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::sync::{Arc, Mutex};

/// Costs of put, overwrite, get, miss, delete, a batch and a group, measured in a simulated run.
struct Costs {
    placement: Placement,
    seen: Mutex<Vec<(&'static str, Cost)>>,
}

const VALUE: [u8; 100] = [7; 100];

impl Subject for Costs {
    type Op = ();
    type Store = ();
    type Contents = ();

    fn work(&self, run: &Run<'_, ()>) {
        let options = Options { background: false, ..Options::default() };
        let geometry = Geometry { page_size: 64 << 10, groups: 4, buckets: 4, depth: 0 };
        let store = Scmkv::simulated_create(run.space().clone(), geometry, self.placement, options)
            .expect("create");
        let write = WriteOptions::default();
        // The first write opens the log's page, and the second notes that the page holds a record.
        let _outcome = store.put(b"warm", b"up", &write).expect("put");
        let _outcome = store.put(b"warm", b"up", &write).expect("put");
        let note = |what, operate: &mut dyn FnMut()| {
            let ((), cost) = run.cost_of(operate);
            self.seen.lock().expect("lock").push((what, cost));
        };
        note("put", &mut || {
            let _outcome = store.put(b"0123456789abcdef", &VALUE, &write).expect("put");
        });
        note("put", &mut || {
            let _outcome = store.put(b"0123456789abcdef", &VALUE, &write).expect("put");
        });
        note("get", &mut || assert!(store.get(b"0123456789abcdef").expect("get").is_some()));
        note("get", &mut || assert!(store.get(b"absent").expect("get").is_none()));
        let mut batch = Batch::new();
        for number in 0..8_u8 {
            batch.put(&[number; 16], &VALUE);
        }
        note("batch", &mut || {
            store.apply(&batch, &write).expect("apply");
        });
        note("delete", &mut || {
            let _outcome = store.delete(b"0123456789abcdef", &write).expect("delete");
        });
        let early = WriteOptions { completion: Completion::Early, ..write };
        note("group", &mut || {
            let mut horizon = Horizon::new();
            for number in 8..16_u8 {
                let outcome = store.put(&[number; 16], &VALUE, &early).expect("put");
                horizon.include(outcome.ticket());
            }
            assert!(!store.is_durable(&horizon).expect("is_durable"), "each had a fence");
            assert!(store.commit(&horizon).expect("commit"));
            assert!(store.is_durable(&horizon).expect("is_durable"));
        });
        assert!(store.get(&[15; 16]).expect("get").is_some());
        // The next put flushes the slots of the group.
        note("put", &mut || {
            let _outcome = store.put(b"0123456789abcdef", &VALUE, &write).expect("put");
        });
    }

    fn recover(&self, _space: &Arc<Space>) -> Result<(), String> {
        Ok(())
    }

    fn contents(&self, (): &()) -> Result<(), String> {
        Ok(())
    }

    fn check(&self, (): &(), _history: &History<'_, ()>) -> Result<(), String> {
        Ok(())
    }
}

fn sim_options(len: u64) -> SimOptions {
    SimOptions {
        len,
        max_len: len,
        page_size: 64 << 10,
        images_per_cut: 1,
        recovery_cut_in: 0,
        ..SimOptions::default()
    }
}

fn costs(placement: Placement) -> Vec<(&'static str, Cost)> {
    let subject = Costs { placement, seen: Mutex::default() };
    explore(&sim_options(1 << 20), &subject);
    subject.seen.into_inner().expect("lock")
}

/// Costs of batches of so many records of present keys, which fit a page.
struct OfBatches<'a> {
    lens: &'a [u32],
    seen: Mutex<Vec<(u32, Cost)>>,
}

impl Subject for OfBatches<'_> {
    type Op = ();
    type Store = ();
    type Contents = ();

    fn work(&self, run: &Run<'_, ()>) {
        let options = Options { background: false, ..Options::default() };
        let geometry = Geometry { page_size: 64 << 10, groups: 4, buckets: 4, depth: 2 };
        let placement = Placement::Dram;
        let store = Scmkv::simulated_create(run.space().clone(), geometry, placement, options)
            .expect("create");
        let write = WriteOptions::default();
        for len in self.lens {
            let mut batch = Batch::new();
            for number in 0..*len {
                batch.put(format!("{number:016}").as_bytes(), &VALUE);
            }
            // The room that it takes in a page, twice: the second time it needs neither a page nor
            // a split.
            store.apply(&batch, &write).expect("apply");
            loop {
                let pages = store.stats().free_bytes;
                let (_written, cost) = run.cost_of(|| store.apply(&batch, &write).expect("apply"));
                if store.stats().free_bytes == pages {
                    break self.seen.lock().expect("lock").push((*len, cost));
                }
            }
        }
    }

    fn recover(&self, _space: &Arc<Space>) -> Result<(), String> {
        Ok(())
    }

    fn contents(&self, (): &()) -> Result<(), String> {
        Ok(())
    }

    fn check(&self, (): &(), _history: &History<'_, ()>) -> Result<(), String> {
        Ok(())
    }
}

/// A batch of any length that fits a page has one fence, and each line of its records is flushed
/// once: two and an eighth a record of 16 + 100 bytes.
#[test]
fn a_batch_has_one_fence_and_flushes_each_line_of_its_records_once() {
    let subject = OfBatches { lens: &[1, 10, 64, 200], seen: Mutex::default() };
    explore(&sim_options(4 << 20), &subject);
    let seen = subject.seen.into_inner().expect("lock");
    assert_eq!(seen.len(), 4, "every batch was counted");
    for (len, cost) in seen {
        let bytes = len as usize * (20_usize + 16 + 100).next_multiple_of(8) + 20 + 16;
        assert_eq!(cost.fences, 1, "{len} records: {cost:?}");
        let lines = bytes.div_ceil(LINE)..=bytes.div_ceil(LINE) + 1;
        // Without the line of the page information table which notes, once, that the page holds a
        // record.
        let flushed = cost.flushed_lines.iter().filter(|line| **line >= 64 << 10).count();
        assert!(lines.contains(&flushed), "{len} records: {lines:?}, {cost:?}");
    }
}

/// Lines of a record of 16 + 100 bytes: 20 bytes of header, at any 8-byte offset.
fn record_lines() -> usize {
    (20_usize + 16 + 100 + 56).div_ceil(LINE)
}

/// An operation flushes its own records, and the lines of the slots that the one before it has
/// published: those are durable with the next fence.
fn check(placement: Placement, index_lines: usize) {
    let seen = costs(placement);
    assert_eq!(seen.len(), 8, "every operation was counted");
    // The slot left by the put that made the log ready.
    let mut slots_before = 1;
    for (what, cost) in seen {
        let (fences, lines, slots) = match what {
            "put" | "delete" => (1, record_lines(), 1),
            "batch" => (1, (8 * (20 + 16 + 100) + 24 + 16 + 56) / LINE + 1, 8),
            // Side by side in the log, so that no line is flushed twice.
            "group" => (1, (8 * (20 + 16 + 100) + 8 * 7 + 56) / LINE + 1, 8),
            _ => (0, 0, 0),
        };
        assert_eq!(cost.fences, fences, "{what}: {cost:?}");
        let lines = if fences > 0 { lines + slots_before * index_lines } else { 0 };
        assert!(cost.flushed_lines.len() <= lines, "{what}: at most {lines} lines, {cost:?}");
        if fences > 0 {
            slots_before = slots;
        }
    }
}

#[test]
fn a_strict_put_is_one_fence_and_at_most_one_index_line() {
    check(Placement::Pool, 1);
}

#[test]
fn with_the_index_in_dram_only_the_record_is_flushed() {
    check(Placement::Dram, 0);
}

/// With the index in the pool each operation flushes the same lines as without, and each slot that
/// the one before it has published, once.
#[test]
fn each_slot_is_flushed_by_the_operation_after_its_own() {
    let lines = |placement| costs(placement).into_iter().map(|it| (it.0, it.1.flushed_lines.len()));
    let slots: Vec<_> = lines(Placement::Pool)
        .zip(lines(Placement::Dram))
        .map(|((what, pool), (_, dram))| (what, pool as i64 - dram as i64))
        .collect();
    let of_puts = [("put", 1), ("put", 1), ("get", 0), ("get", 0)];
    let of_many = [("batch", 1), ("delete", 8), ("group", 1), ("put", 8)];
    assert_eq!(slots, [of_puts, of_many].concat());
}
