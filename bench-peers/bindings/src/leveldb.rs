//! `LevelDB` through its C interface.

use crate::{Result, path_for_c, taken};
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

type Handle = NonNull<c_void>;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_options_create() -> *mut c_void;
    fn leveldb_options_destroy(options: *mut c_void);
    fn leveldb_options_set_create_if_missing(options: *mut c_void, on: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
    fn leveldb_options_set_max_file_size(options: *mut c_void, bytes: usize);
    fn leveldb_options_set_compression(options: *mut c_void, kind: c_int);
    fn leveldb_options_set_cache(options: *mut c_void, cache: *mut c_void);
    fn leveldb_options_set_filter_policy(options: *mut c_void, policy: *mut c_void);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn leveldb_cache_destroy(cache: *mut c_void);
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> *mut c_void;
    fn leveldb_filterpolicy_destroy(policy: *mut c_void);
    fn leveldb_readoptions_create() -> *mut c_void;
    fn leveldb_readoptions_destroy(options: *mut c_void);
    fn leveldb_writeoptions_create() -> *mut c_void;
    fn leveldb_writeoptions_destroy(options: *mut c_void);
    fn leveldb_writeoptions_set_sync(options: *mut c_void, on: c_uchar);
    fn leveldb_open(
        options: *const c_void,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn leveldb_close(db: *mut c_void);
    fn leveldb_put(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_create_iterator(db: *mut c_void, options: *const c_void) -> *mut c_void;
    fn leveldb_iter_destroy(iterator: *mut c_void);
    fn leveldb_iter_valid(iterator: *const c_void) -> c_uchar;
    fn leveldb_iter_seek(iterator: *mut c_void, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iterator: *mut c_void);
    fn leveldb_iter_key(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: *const c_void, error: *mut *mut c_char);
    fn leveldb_free(pointer: *mut c_char);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes of the block cache.
    pub cache: usize,
    /// Bytes of the memory table.
    pub write_buffer: usize,
    /// Bytes of a table file.
    pub file_size: usize,
    /// Bits of the Bloom filter a key.
    pub bloom_bits: i32,
    /// Whether each write is synced before it returns.
    pub sync: bool,
}

/// An open store, without compression.
#[derive(Debug)]
pub struct Store {
    db: Handle,
    read: Handle,
    write: Handle,
    cache: Handle,
    filter: Handle,
}

// SAFETY: LevelDB's documentation: a DB may be used by many threads at once; options, cache and
// filter are only read here.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

fn made(pointer: *mut c_void) -> Result<Handle> {
    NonNull::new(pointer).ok_or_else(|| "LevelDB is out of memory".to_owned())
}

impl Store {
    /// Opens the store in directory `path`, making it if it is not there.
    ///
    /// # Errors
    /// In `LevelDB`'s words.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let name = path_for_c(path)?;
        // SAFETY: makers without arguments that could be wrong; what they return is checked.
        let (options, read, write, cache, filter) = unsafe {
            (
                made(leveldb_options_create())?,
                made(leveldb_readoptions_create())?,
                made(leveldb_writeoptions_create())?,
                made(leveldb_cache_create_lru(settings.cache))?,
                made(leveldb_filterpolicy_create_bloom(settings.bloom_bits))?,
            )
        };
        let mut error = null_mut();
        // SAFETY: live handles, each of the type that its call wants; the options are not used
        // after they are destroyed, and LevelDB copies what it keeps of them. Cache and filter
        // live as long as the store.
        let db = unsafe {
            leveldb_options_set_create_if_missing(options.as_ptr(), 1);
            leveldb_options_set_write_buffer_size(options.as_ptr(), settings.write_buffer);
            leveldb_options_set_max_file_size(options.as_ptr(), settings.file_size);
            leveldb_options_set_compression(options.as_ptr(), 0);
            leveldb_options_set_cache(options.as_ptr(), cache.as_ptr());
            leveldb_options_set_filter_policy(options.as_ptr(), filter.as_ptr());
            leveldb_writeoptions_set_sync(write.as_ptr(), c_uchar::from(settings.sync));
            let db = leveldb_open(options.as_ptr(), name.as_ptr(), &raw mut error);
            leveldb_options_destroy(options.as_ptr());
            taken(error, leveldb_free)?;
            made(db)?
        };
        Ok(Self { db, read, write, cache, filter })
    }

    /// Shows the value of `key`; false if there is none.
    ///
    /// # Errors
    /// In `LevelDB`'s words.
    #[inline]
    pub fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut len = 0;
        let mut error = null_mut();
        // SAFETY: live handles and a key of that length. The value, if there is one, is `len`
        // bytes that are ours until they are freed, which is after the last use.
        unsafe {
            let value = leveldb_get(
                self.db.as_ptr(),
                self.read.as_ptr(),
                key.as_ptr().cast(),
                key.len(),
                &raw mut len,
                &raw mut error,
            );
            taken(error, leveldb_free)?;
            if value.is_null() {
                return Ok(false);
            }
            visit(std::slice::from_raw_parts(value.cast(), len));
            leveldb_free(value);
        }
        Ok(true)
    }

    /// Shows up to `limit` records from `start` on, in the order of their keys, by an iterator made
    /// for it: so it sees what is there now.
    ///
    /// # Errors
    /// In `LevelDB`'s words.
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
            let at = made(leveldb_create_iterator(self.db.as_ptr(), self.read.as_ptr()))?;
            leveldb_iter_seek(at.as_ptr(), start.as_ptr().cast(), start.len());
            for _ in 0..limit {
                if leveldb_iter_valid(at.as_ptr()) == 0 {
                    break;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = leveldb_iter_key(at.as_ptr(), &raw mut key_len);
                let value = leveldb_iter_value(at.as_ptr(), &raw mut value_len);
                visit(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
                leveldb_iter_next(at.as_ptr());
            }
            leveldb_iter_get_error(at.as_ptr(), &raw mut error);
            leveldb_iter_destroy(at.as_ptr());
            taken(error, leveldb_free)
        }
    }

    /// Writes.
    ///
    /// # Errors
    /// In `LevelDB`'s words.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: live handles, and bytes of those lengths, which LevelDB copies.
        unsafe {
            leveldb_put(
                self.db.as_ptr(),
                self.write.as_ptr(),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &raw mut error,
            );
            taken(error, leveldb_free)
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: each handle is ours and destroyed once; the store goes before what it uses.
        unsafe {
            leveldb_close(self.db.as_ptr());
            leveldb_readoptions_destroy(self.read.as_ptr());
            leveldb_writeoptions_destroy(self.write.as_ptr());
            leveldb_cache_destroy(self.cache.as_ptr());
            leveldb_filterpolicy_destroy(self.filter.as_ptr());
        }
    }
}

/// The library's version.
pub fn version() -> String {
    // SAFETY: they read constants.
    let (major, minor) = unsafe { (leveldb_major_version(), leveldb_minor_version()) };
    format!("{major}.{minor}")
}
