//! A small store with some of its bytes changed: it is opened, read, written, cleaned and verified without a panic,
//! an endless loop or a read out of bounds.
//!
//! The first byte chooses the image, and whether all checksums are corrected afterwards, so that the code behind them
//! meets invalid data, too. Then come changes of four bytes: position (three), value.
#![no_main]

use coreplane_engine::{Batch, Engine, Repairable, WriteOptions};
use coreplane_fuzz::{image, options, place, reseal};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::Scmkv;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// Uses the store in every way. Its answers are not checked, since it may be damaged.
fn exercise(path: &Path) {
    let Ok(store) = Scmkv::open(path, MediaChoice::Auto, options()) else { return };
    let mut told = 0;
    for number in 0..130 {
        told += usize::from(store.get(&image::key(number)).is_err());
    }
    let mut cursor = 0;
    for _ in 0..10_000 {
        match store.iterate(cursor, 20, &mut |entry| told += entry.key.len() & 1) {
            Ok(0) | Err(_) => break,
            Ok(next) => cursor = next,
        }
    }
    told += usize::from(store.verify(&mut |_| {}).is_err());
    let write = WriteOptions::default();
    for number in (0..130).step_by(3) {
        told += usize::from(store.put(&image::key(number), &[7; 40], &write).is_err());
        told += usize::from(store.delete(&image::key(number + 1), &write).is_err());
    }
    let mut batch = Batch::new();
    batch.put(b"key-005", &[1; 900]).delete(b"key-006").put(b"new", b"");
    told += usize::from(store.apply(&batch, &write).is_err());
    for _ in 0..30 {
        if !matches!(store.clean(), Ok(true)) {
            break;
        }
    }
    told += usize::from(store.len().is_err()) + usize::from(store.close().is_err());
    std::hint::black_box(told);
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, changes)) = data.split_first() else { return };
    let images = image::all();
    let image = &images[usize::from(first >> 1) % images.len()];
    let mut bytes = image.clone();
    for change in changes.as_chunks::<4>().0.iter().take(64) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % bytes.len();
        bytes[at] = change[3];
    }
    if first & 1 == 1 {
        reseal::all(&mut bytes, image);
    }
    let path = place().join("pool");
    std::fs::write(&path, &bytes).expect("the file");
    exercise(&path);
    // The pool left behind must be openable, or refused.
    drop(Scmkv::open(&path, MediaChoice::Auto, options()));
});
