//! Shared parts of the targets: a place for files, small stores to change, corrected checksums.

pub mod image;
pub mod reseal;

use coreplane_engine::UnixMillis;
use coreplane_scmkv::Options;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A directory for the files of this process: below `TMPDIR`, otherwise in memory. libFuzzer ends the process without
/// cleaning up, so a caller that starts many of them sets `TMPDIR` and removes it.
pub fn place() -> &'static Path {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let above = std::env::var_os("TMPDIR").unwrap_or_else(|| "/dev/shm".into());
        tempfile::tempdir_in(above).expect("a directory")
    };
    PLACE.get_or_init(make).path()
}

/// The options of the stores: no background work, and a clock that stands still.
pub fn options() -> Options {
    let time = Arc::new(|| UnixMillis(1_800_000_000_000));
    Options { background: false, time: Some(time), ..Options::default() }
}
