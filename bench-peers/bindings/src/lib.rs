//! The few calls of foreign stores that `bench-peers` makes, safe to make.
//!
//! `RocksDB` and `LevelDB` are Debian's (`librocksdb-dev`, `libleveldb-dev`): building `RocksDB` takes
//! half an hour on two cores, and the distribution's build is what its users run. `LMDB` comes with
//! `lmdb-master-sys`, which the authors of heed keep; heed itself has no way to renew a read
//! transaction, which is how `LMDB` wants to be read by who reads again and again.
//!
//! ```text
//!   bench-peers ──► Store::{open, get, put}  ──► extern "C" ──► librocksdb.so, libleveldb.so, lmdb
//!                   &[u8], closures              pointers
//! ```
//!
//! # What holds
//!
//! - A store owns its handles and gives them back once, when it is dropped; `&self` calls are those
//!   that the library allows from many threads at once.
//! - Bytes that a library shows are valid while the closure runs, and no longer.
//! - Every error that a library reports becomes a `String` with its words.

pub mod leveldb;
pub mod lmdb;
pub mod rocksdb;

use std::ffi::{CString, c_char};
use std::path::Path;

/// The result of a call: an error is in the library's words.
pub type Result<T> = std::result::Result<T, String>;

/// The path as C wants it.
fn path_for_c(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| format!("{} has a zero in its name", path.display()))
}

/// Takes the message that a library left in `error`, if it did, and frees it.
///
/// # Safety
/// `error` must be null or a string that ends with a zero and that `free` frees.
unsafe fn taken(error: *mut c_char, free: unsafe extern "C" fn(*mut c_char)) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: not null, so that it is such a string; it is not used after it is freed.
    let message = unsafe {
        let message = std::ffi::CStr::from_ptr(error).to_string_lossy().into_owned();
        free(error);
        message
    };
    Err(message)
}
