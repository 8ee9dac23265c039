//! What the targets share: a place for files, small stores to change, checksums set right.

pub mod image;
pub mod reseal;

use coreplane_engine::UnixMillis;
use coreplane_scmkv::Options;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A directory in memory for the files of this process.
pub fn place() -> &'static Path {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    PLACE.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a directory")).path()
}

/// How the stores are opened: nothing in the background, and a clock that stands.
pub fn options() -> Options {
    let time = Arc::new(|| UnixMillis(1_800_000_000_000));
    Options { background: false, time: Some(time), ..Options::default() }
}
