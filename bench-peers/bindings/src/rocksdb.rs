//! `RocksDB` through its C interface.

use crate::{Result, path_for_c, taken};
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

type Handle = NonNull<c_void>;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_destroy(options: *mut c_void);
    fn rocksdb_options_set_create_if_missing(options: *mut c_void, on: c_uchar);
    fn rocksdb_options_optimize_for_point_lookup(options: *mut c_void, cache_mib: u64);
    fn rocksdb_options_increase_parallelism(options: *mut c_void, threads: c_int);
    fn rocksdb_options_set_compression(options: *mut c_void, kind: c_int);
    fn rocksdb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: *mut c_void, count: c_int);
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_readoptions_destroy(options: *mut c_void);
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_writeoptions_destroy(options: *mut c_void);
    fn rocksdb_writeoptions_set_sync(options: *mut c_void, on: c_uchar);
    fn rocksdb_open_column_families(
        options: *const c_void,
        name: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const *const c_void,
        families: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn rocksdb_column_family_handle_destroy(family: *mut c_void);
    fn rocksdb_close(db: *mut c_void);
    fn rocksdb_put(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn rocksdb_pinnableslice_value(slice: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut c_void);
    fn rocksdb_batched_multi_get_cf(
        db: *mut c_void,
        options: *const c_void,
        family: *mut c_void,
        count: usize,
        keys: *const *const c_char,
        key_lens: *const usize,
        values: *mut *mut c_void,
        errors: *mut *mut c_char,
        sorted: bool,
    );
    fn rocksdb_create_iterator(db: *mut c_void, options: *const c_void) -> *mut c_void;
    fn rocksdb_iter_destroy(iterator: *mut c_void);
    fn rocksdb_iter_valid(iterator: *const c_void) -> c_uchar;
    fn rocksdb_iter_seek(iterator: *mut c_void, key: *const c_char, key_len: usize);
    fn rocksdb_iter_next(iterator: *mut c_void);
    fn rocksdb_iter_key(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: *const c_void, error: *mut *mut c_char);
    fn rocksdb_free(pointer: *mut c_char);
}

/// How a store is opened: `OptimizeForPointLookup`, and this.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// MiB of the block cache.
    pub cache_mib: u64,
    /// Bytes of a memory table.
    pub write_buffer: usize,
    /// Memory tables, those that are being written out included.
    pub write_buffers: i32,
    /// Threads that write out and compact.
    pub background: i32,
    /// Whether each write is synced before it returns.
    pub sync: bool,
}

/// The most keys of one [`Store::multi_get`].
pub const BATCH: usize = 16;

/// An open store, without compression.
#[derive(Debug)]
pub struct Store {
    db: Handle,
    family: Handle,
    read: Handle,
    write: Handle,
}

// SAFETY: RocksDB's documentation: a DB may be used by many threads at once; the options are only
// read here.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

fn made(pointer: *mut c_void) -> Result<Handle> {
    NonNull::new(pointer).ok_or_else(|| "RocksDB is out of memory".to_owned())
}

impl Store {
    /// Opens the store in directory `path`, making it if it is not there.
    ///
    /// # Errors
    /// In `RocksDB`'s words.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let name = path_for_c(path)?;
        // SAFETY: makers without arguments; what they return is checked.
        let (options, read, write) = unsafe {
            (
                made(rocksdb_options_create())?,
                made(rocksdb_readoptions_create())?,
                made(rocksdb_writeoptions_create())?,
            )
        };
        let names = [c"default".as_ptr()];
        let family_options = [options.as_ptr().cast_const()];
        let mut family = null_mut();
        let mut error = null_mut();
        // SAFETY: live handles, each of the type that its call wants; one name, one set of options
        // and room for one handle, as the count says. RocksDB copies what it keeps of the options,
        // which are not used after they are destroyed.
        let (db, family) = unsafe {
            rocksdb_options_set_create_if_missing(options.as_ptr(), 1);
            rocksdb_options_optimize_for_point_lookup(options.as_ptr(), settings.cache_mib);
            rocksdb_options_increase_parallelism(options.as_ptr(), settings.background);
            rocksdb_options_set_compression(options.as_ptr(), 0);
            rocksdb_options_set_write_buffer_size(options.as_ptr(), settings.write_buffer);
            rocksdb_options_set_max_write_buffer_number(options.as_ptr(), settings.write_buffers);
            rocksdb_writeoptions_set_sync(write.as_ptr(), c_uchar::from(settings.sync));
            let db = rocksdb_open_column_families(
                options.as_ptr(),
                name.as_ptr(),
                1,
                names.as_ptr(),
                family_options.as_ptr(),
                &raw mut family,
                &raw mut error,
            );
            rocksdb_options_destroy(options.as_ptr());
            taken(error, rocksdb_free)?;
            (made(db)?, made(family)?)
        };
        Ok(Self { db, family, read, write })
    }

    /// Shows the value of `key`; false if there is none.
    ///
    /// # Errors
    /// In `RocksDB`'s words.
    #[inline]
    pub fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut error = null_mut();
        // SAFETY: live handles and a key of that length; the slice is ours, see `show`.
        unsafe {
            let slice = rocksdb_get_pinned(
                self.db.as_ptr(),
                self.read.as_ptr(),
                key.as_ptr().cast(),
                key.len(),
                &raw mut error,
            );
            taken(error, rocksdb_free)?;
            Ok(show(slice, visit))
        }
    }

    /// Shows the values of `keys` (at most [`BATCH`]) that are there, each with its index.
    ///
    /// # Errors
    /// In `RocksDB`'s words; if there are more keys.
    pub fn multi_get(&self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        if keys.len() > BATCH {
            return Err(format!("{} keys: at most {BATCH} can be asked for", keys.len()));
        }
        let mut pointers = [std::ptr::null(); BATCH];
        let mut lens = [0; BATCH];
        for (key, (pointer, len)) in keys.iter().zip(pointers.iter_mut().zip(&mut lens)) {
            (*pointer, *len) = (key.as_ptr().cast(), key.len());
        }
        let mut slices = [null_mut(); BATCH];
        let mut errors = [null_mut(); BATCH];
        // SAFETY: live handles; the arrays have room for as many as there are keys.
        unsafe {
            rocksdb_batched_multi_get_cf(
                self.db.as_ptr(),
                self.read.as_ptr(),
                self.family.as_ptr(),
                keys.len(),
                pointers.as_ptr(),
                lens.as_ptr(),
                slices.as_mut_ptr(),
                errors.as_mut_ptr(),
                false,
            );
        }
        let mut result = Ok(());
        for (index, (slice, error)) in slices.into_iter().zip(errors).take(keys.len()).enumerate() {
            // SAFETY: RocksDB has left a slice, or an error, or neither; both are ours.
            unsafe {
                show(slice, &mut |value| visit(index, value));
                result = result.and(taken(error, rocksdb_free));
            }
        }
        result
    }

    /// Shows up to `limit` records from `start` on, in the order of their keys, by an iterator made
    /// for it: so it sees what is there now.
    ///
    /// # Errors
    /// In `RocksDB`'s words.
    pub fn scan(
        &self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: live handles and a start of that length. Key and value, of the lengths that the
        // iterator says, are its own until it moves, which is after they are shown; it is destroyed
        // last, and its error is ours.
        unsafe {
            let at = made(rocksdb_create_iterator(self.db.as_ptr(), self.read.as_ptr()))?;
            rocksdb_iter_seek(at.as_ptr(), start.as_ptr().cast(), start.len());
            for _ in 0..limit {
                if rocksdb_iter_valid(at.as_ptr()) == 0 {
                    break;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = rocksdb_iter_key(at.as_ptr(), &raw mut key_len);
                let value = rocksdb_iter_value(at.as_ptr(), &raw mut value_len);
                visit(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
                rocksdb_iter_next(at.as_ptr());
            }
            rocksdb_iter_get_error(at.as_ptr(), &raw mut error);
            rocksdb_iter_destroy(at.as_ptr());
            taken(error, rocksdb_free)
        }
    }

    /// Writes.
    ///
    /// # Errors
    /// In `RocksDB`'s words.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: live handles, and bytes of those lengths, which RocksDB copies.
        unsafe {
            rocksdb_put(
                self.db.as_ptr(),
                self.write.as_ptr(),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &raw mut error,
            );
            taken(error, rocksdb_free)
        }
    }
}

/// Shows what `slice` holds and destroys it; false if it is null.
///
/// # Safety
/// `slice` must be null or a slice of `RocksDB` that nobody uses after.
unsafe fn show(slice: *mut c_void, visit: &mut dyn FnMut(&[u8])) -> bool {
    if slice.is_null() {
        return false;
    }
    let mut len = 0;
    // SAFETY: a live slice, whose value is `len` bytes until it is destroyed, which comes last. The
    // value is null only if it is empty.
    unsafe {
        let value = rocksdb_pinnableslice_value(slice, &raw mut len);
        let found = !value.is_null();
        if found {
            visit(std::slice::from_raw_parts(value.cast(), len));
        }
        rocksdb_pinnableslice_destroy(slice);
        found
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: each handle is ours and destroyed once, the family before its store.
        unsafe {
            rocksdb_column_family_handle_destroy(self.family.as_ptr());
            rocksdb_close(self.db.as_ptr());
            rocksdb_readoptions_destroy(self.read.as_ptr());
            rocksdb_writeoptions_destroy(self.write.as_ptr());
        }
    }
}
