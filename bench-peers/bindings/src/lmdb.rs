//! `LMDB`: one unnamed database of an environment.

use crate::{Result, path_for_c};
use lmdb_master_sys as sys;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

/// How an environment is opened.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes that it may come to hold; address space, not memory.
    pub map_size: usize,
    /// Whether it writes into its map (`MDB_WRITEMAP`).
    pub write_map: bool,
    /// Whether each commit is synced (else `MDB_NOSYNC`).
    pub sync: bool,
}

/// An open environment.
#[derive(Debug)]
pub struct Store {
    env: NonNull<sys::MDB_env>,
    database: sys::MDB_dbi,
}

// SAFETY: LMDB's documentation: an environment may be used by many threads at once.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

fn checked(code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: it returns a constant string, or one in a buffer of the C library.
    let message = unsafe { CStr::from_ptr(sys::mdb_strerror(code)) };
    Err(message.to_string_lossy().into_owned())
}

/// Bytes as `LMDB` takes them; it does not write to keys, nor to values that are put.
fn of(bytes: &[u8]) -> sys::MDB_val {
    sys::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast::<c_void>() }
}

impl Store {
    /// Opens the environment in directory `path`, which must be there.
    ///
    /// # Errors
    /// In `LMDB`'s words.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let name = path_for_c(path)?;
        let mut env = null_mut();
        let mut flags = if settings.write_map { sys::MDB_WRITEMAP } else { 0 };
        if !settings.sync {
            flags |= sys::MDB_NOSYNC;
        }
        let mut store = {
            // SAFETY: room for a handle, which is live if the call succeeds.
            checked(unsafe { sys::mdb_env_create(&raw mut env) })?;
            let env = NonNull::new(env).ok_or("LMDB is out of memory")?;
            Self { env, database: 0 }
        };
        // SAFETY: a live environment, that is set up before it is opened. The one map of this file
        // in this process: the caller has made the directory for it.
        unsafe {
            checked(sys::mdb_env_set_mapsize(env, settings.map_size))?;
            checked(sys::mdb_env_open(env, name.as_ptr(), flags, 0o600))?;
        }
        store.database = store.transaction(0, |transaction| {
            let mut database = 0;
            // SAFETY: a live transaction; no name is the unnamed database, which is there.
            checked(unsafe {
                sys::mdb_dbi_open(transaction, std::ptr::null(), 0, &raw mut database)
            })?;
            Ok(database)
        })?;
        Ok(store)
    }

    /// Runs `work` in a transaction and commits it, or aborts it if it fails.
    fn transaction<T>(
        &self,
        flags: u32,
        work: impl FnOnce(*mut sys::MDB_txn) -> Result<T>,
    ) -> Result<T> {
        let mut transaction = null_mut();
        // SAFETY: a live environment; this thread has no other write transaction, since `&mut`
        // of none can be held across `work`.
        unsafe {
            checked(sys::mdb_txn_begin(
                self.env.as_ptr(),
                null_mut(),
                flags,
                &raw mut transaction,
            ))?;
        }
        match work(transaction) {
            Ok(done) => {
                // SAFETY: the transaction is live and ends here.
                checked(unsafe { sys::mdb_txn_commit(transaction) })?;
                Ok(done)
            }
            Err(error) => {
                // SAFETY: as above.
                unsafe { sys::mdb_txn_abort(transaction) };
                Err(error)
            }
        }
    }

    /// Writes, in a transaction of its own.
    ///
    /// # Errors
    /// In `LMDB`'s words.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction(0, |transaction| {
            let (mut key, mut value) = (of(key), of(value));
            // SAFETY: a live transaction and bytes of those lengths, which LMDB copies.
            checked(unsafe {
                sys::mdb_put(transaction, self.database, &raw mut key, &raw mut value, 0)
            })
        })
    }

    /// What a thread reads with.
    ///
    /// # Errors
    /// In `LMDB`'s words.
    pub fn reader(&self) -> Result<Reader<'_>> {
        let mut transaction = null_mut();
        // SAFETY: a live environment. The transaction is reset at once, so that it holds no pages
        // back while nobody reads.
        unsafe {
            checked(sys::mdb_txn_begin(
                self.env.as_ptr(),
                null_mut(),
                sys::MDB_RDONLY,
                &raw mut transaction,
            ))?;
            sys::mdb_txn_reset(transaction);
        }
        let transaction = NonNull::new(transaction).ok_or("LMDB is out of memory")?;
        Ok(Reader { store: self, transaction, cursor: None })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: ours, and closed once; readers borrow the store, so that there are none.
        unsafe { sys::mdb_env_close(self.env.as_ptr()) };
    }
}

/// A thread's read transaction, renewed for each look: `LMDB`'s own way to read again and again.
/// It stays on the thread that asked for it, as a raw pointer within sees to.
#[derive(Debug)]
pub struct Reader<'a> {
    store: &'a Store,
    transaction: NonNull<sys::MDB_txn>,
    /// Made by the first scan, and renewed with the transaction by the others.
    cursor: Option<NonNull<sys::MDB_cursor>>,
}

impl Reader<'_> {
    /// Shows up to `limit` records from `start` on, in the order of their keys, all of one moment,
    /// which is now.
    ///
    /// # Errors
    /// In `LMDB`'s words.
    pub fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let transaction = self.transaction.as_ptr();
        // SAFETY: the transaction was reset by whoever used it last.
        checked(unsafe { sys::mdb_txn_renew(transaction) })?;
        let result = self.walk(start, limit, visit);
        // SAFETY: a live transaction, none of whose bytes are still borrowed.
        unsafe { sys::mdb_txn_reset(transaction) };
        result
    }

    /// The cursor's way, within a transaction that is live.
    fn walk(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let transaction = self.transaction.as_ptr();
        let cursor = match self.cursor {
            Some(cursor) => {
                // SAFETY: a live transaction, and a cursor of the same one before its reset.
                checked(unsafe { sys::mdb_cursor_renew(transaction, cursor.as_ptr()) })?;
                cursor
            }
            None => {
                let mut cursor = null_mut();
                // SAFETY: a live transaction and room for a handle.
                checked(unsafe {
                    sys::mdb_cursor_open(transaction, self.store.database, &raw mut cursor)
                })?;
                let cursor = NonNull::new(cursor).ok_or("LMDB is out of memory")?;
                self.cursor = Some(cursor);
                cursor
            }
        };
        let (mut key, mut value) = (of(start), of(&[]));
        let mut step = sys::MDB_SET_RANGE;
        for _ in 0..limit {
            // SAFETY: a live cursor; what it finds is mapped and does not change before the
            // transaction is reset, which is after it has been shown.
            unsafe {
                match sys::mdb_cursor_get(cursor.as_ptr(), &raw mut key, &raw mut value, step) {
                    0 => visit(
                        std::slice::from_raw_parts(key.mv_data.cast(), key.mv_size),
                        std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size),
                    ),
                    sys::MDB_NOTFOUND => break,
                    code => return checked(code),
                }
            }
            step = sys::MDB_NEXT;
        }
        Ok(())
    }

    /// Shows the values of `keys` that are there, each with its index, all of one moment, which is
    /// now.
    ///
    /// # Errors
    /// In `LMDB`'s words.
    #[inline]
    pub fn get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.transaction.as_ptr();
        // SAFETY: the transaction was reset by whoever used it last.
        checked(unsafe { sys::mdb_txn_renew(transaction) })?;
        let mut result = Ok(());
        for (index, key) in keys.iter().enumerate() {
            let (mut key, mut value) = (of(key), of(&[]));
            // SAFETY: a live transaction and a key of that length; what it finds is mapped and
            // does not change before the transaction is reset.
            match unsafe {
                sys::mdb_get(transaction, self.store.database, &raw mut key, &raw mut value)
            } {
                0 => visit(
                    index,
                    // SAFETY: as above.
                    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) },
                ),
                sys::MDB_NOTFOUND => {}
                code => result = result.and(checked(code)),
            }
        }
        // SAFETY: a live transaction, none of whose bytes are still borrowed.
        unsafe { sys::mdb_txn_reset(transaction) };
        result
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and ended once each; abort is how a reset transaction ends. A cursor of a
        // transaction that only reads is closed by whoever opened it.
        unsafe {
            if let Some(cursor) = self.cursor {
                sys::mdb_cursor_close(cursor.as_ptr());
            }
            sys::mdb_txn_abort(self.transaction.as_ptr());
        }
    }
}

/// The library's version.
pub fn version() -> String {
    format!("{}.{}.{}", sys::MDB_VERSION_MAJOR, sys::MDB_VERSION_MINOR, sys::MDB_VERSION_PATCH)
}
