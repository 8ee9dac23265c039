//! An arbitrary file in place of a pool: opened, or refused with a reason. If the first byte is odd, its checksums
//! are corrected, so that the code behind them is reached.
#![no_main]

use coreplane_fuzz::{place, reseal};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use coreplane_scmkv::{Options, Scmkv};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if first & 1 == 1 {
        bytes.resize(bytes.len().max(8192), 0);
        bytes[..8].copy_from_slice(b"COREPLNE");
        reseal::header(&mut bytes);
    }
    let path = place().join("pool");
    std::fs::write(&path, &bytes).expect("the file");
    match Pool::open(&path, &OpenOptions { media: MediaChoice::Auto }) {
        Ok(pool) => drop((pool.root(), pool.check().is_ok())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let options = Options { background: false, ..Options::default() };
    match Scmkv::open(&path, MediaChoice::Auto, options) {
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // A pool that cannot be repaired must be refused, too.
    drop(Pool::repair(&path));
    std::fs::remove_file(&path).expect("still there");
});
