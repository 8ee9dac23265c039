//! [`Db`]: a store for an application.
//!
//! An [`Engine`](crate::Engine) is for a server, a matrix or a benchmark: options with each call, tickets, closures.
//! An application wants a map that lasts. This is the map:
//!
//! ```text
//!   Db ─ a handle; clones, threads and iterators share one store
//!    ├─ point.rs   get, put, delete, put_if_absent, update, compare_and_set, modify; expiries
//!    ├─ range.rs   range and prefix: a page of entries at a time, from both ends
//!    ├─ iter.rs    all entries, of an engine without an order too
//!    ├─ page.rs   the entries that an iterator has in memory
//!    └─ batch.rs   changes that are made together
//! ```
//!
//! # Guarantees
//!
//! - A read or write of a key costs what the engine's call costs: no further lock, allocation or copy. A returned
//!   value was copied once, out of the pool; [`Db::get_with`] shows it in place.
//! - The records that a call shows are durable, unless they were written `relaxed`; so are a page of an iterator and
//!   an absence.
//! - No call refuses a write silently: a call that may refuse returns an [`Outcome`](crate::Outcome), and the
//!   compiler warns if it is not used.
//! - An iterator has a page in memory and nothing else: it holds no lock and no page of the pool between two entries.

mod batch;
mod iter;
mod page;
mod point;
mod range;

pub use batch::WriteBatch;
pub use iter::Iter;
pub use range::Range;

use crate::config::{EngineChoice, StoreConfig};
use crate::store::Store;
use coreplane_engine::{Error, Result, Stats, StorageEngine, Ticket, UnixMillis};
use coreplane_pmem::Medium;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// A handle of an open store, for any number of threads. A clone is another handle of the same store.
///
/// A write that returned is as durable as the store's setting: at [`Durability::Strict`](crate::Durability::Strict),
/// the default, and at `Group` no power cut takes it back, if the medium is safe from power cuts
/// ([`Db::power_cut_loses`]). Keys and values are any bytes, the empty key too.
///
/// Dropping the last handle (iterators and batches have handles, too) closes the store, as [`Db::close`] does. A
/// process that is killed instead loses nothing: the next open recovers the store.
///
/// # Errors
///
/// Each call may return, beside its own errors: [`Error::Io`], [`Error::SyncFailed`], [`Error::ChecksumMismatch`],
/// [`Error::Corrupt`]. [`Error::remedy`] states for each what to do about it.
#[derive(Clone)]
pub struct Db {
    shared: Arc<Shared>,
}

/// The state that the handles share.
struct Shared {
    store: Store,
    is_closed: Mutex<bool>,
}

impl Shared {
    fn close(&self) -> Result<()> {
        let mut is_closed = self.is_closed.lock();
        if !*is_closed {
            self.store.close()?;
            *is_closed = true;
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A caller that needs the result calls `close`; and nothing is lost: the next open recovers.
        let _closed = self.close().is_ok();
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Db").field(&self.shared.store).finish()
    }
}

impl Db {
    /// Opens the store at `path`, with the engine that it has: a pool, or the directory of a matrix.
    /// [`StoreConfig::open_db`] has the choices.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such file; [`Error::Locked`] if it is open in this or another process;
    /// [`Error::NotAPool`], [`Error::Unusable`] if it is no store, or is one device of a matrix.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        StoreConfig::at(path).open_db()
    }

    /// Makes a pool of 1 GiB at `path`, where no file may exist yet, and opens it. [`StoreConfig::create_db`] has the
    /// choices, a matrix among them.
    ///
    /// Which engine? [`EngineChoice::Bptree`] has its keys in order; [`EngineChoice::Scmkv`] is the fastest for
    /// single keys, and has no order.
    ///
    /// # Errors
    /// [`Error::Unusable`] or [`Error::Io`] if a file exists, or the file system is full.
    pub fn create(path: impl AsRef<Path>, engine: EngineChoice) -> Result<Self> {
        StoreConfig::at(path).engine(engine).create_db()
    }

    /// Opens the store at `path`, or makes one, as [`Db::create`] does, if there is none.
    ///
    /// # Errors
    /// As [`Db::open`] and [`Db::create`]; [`Error::Unusable`] if the store has another engine.
    pub fn open_or_create(path: impl AsRef<Path>, engine: EngineChoice) -> Result<Self> {
        StoreConfig::at(path).engine(engine).open_or_create_db()
    }

    /// The handle of a store that has just been opened.
    pub(crate) fn of(config: &StoreConfig, store: Store) -> Result<Self> {
        refuse_device(config, &store)?;
        Ok(Self { shared: Arc::new(Shared { store, is_closed: Mutex::new(false) }) })
    }

    /// Makes all earlier writes durable, whatever their durability, and returns when they are. Only needed after
    /// writes at [`Durability::Relaxed`](crate::Durability::Relaxed), and with
    /// [`Completion::Early`](crate::Completion::Early).
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    pub fn sync(&self) -> Result<()> {
        self.engine().sync()
    }

    /// Closes the store for all handles, durably when it returns; the next open is immediate then, with nothing to
    /// recover. Writes fail from now on. Another close does nothing. The pool can be opened again once all handles
    /// are dropped.
    ///
    /// # Errors
    /// [`Error::SyncFailed`].
    pub fn close(&self) -> Result<()> {
        self.shared.close()
    }

    /// The number of records; an expired record counts until it is removed. After an open it may take as long as a
    /// look at each of them.
    ///
    /// # Errors
    /// As listed at [`Db`].
    pub fn len(&self) -> Result<u64> {
        let len = self.engine().len()?;
        self.await_visible()?;
        Ok(len)
    }

    /// True if there is no record.
    ///
    /// # Errors
    /// As listed at [`Db`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes every record, durably when it returns. Writes of other threads come before or after it.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::NoSpace`].
    pub fn clear(&self) -> Result<()> {
        self.engine().clear()
    }

    /// Counters since the store was opened, and current sizes.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// The time against which expiries are compared; see [`Engine::now`](crate::Engine::now).
    pub fn now(&self) -> UnixMillis {
        self.engine().now()
    }

    /// True if the store has its keys in order: [`Db::range`] and [`Db::prefix`] work.
    pub fn is_ordered(&self) -> bool {
        self.engine().ordered().is_some()
    }

    /// The medium of the store.
    pub fn medium(&self) -> &Medium {
        self.shared.store.medium()
    }

    /// What a power cut would lose of the writes that returned, in words.
    pub fn power_cut_loses(&self) -> String {
        self.shared.store.power_cut_loses()
    }

    /// The store, for maintenance: its matrix, its size, its medium.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The engine, for calls that are not here: tickets, snapshots, sequences.
    #[inline]
    pub fn engine(&self) -> &dyn StorageEngine {
        &**self.shared.store.engine()
    }

    /// Waits until everything visible is durable: an absence may depend on a delete that is not durable yet.
    fn await_visible(&self) -> Result<()> {
        let ticket = self.engine().visible_ticket();
        self.await_ticket(ticket)
    }

    fn await_ticket(&self, ticket: Ticket) -> Result<()> {
        match ticket.is_durable() {
            true => Ok(()),
            false => self.engine().wait_durable(&ticket.into()),
        }
    }
}

/// Refuses a single device of a matrix, whatever its file is called: its peers would not have the writes to it.
///
/// # Errors
/// [`Error::Unusable`] for such a device, unless it is opened as a copy.
fn refuse_device(config: &StoreConfig, store: &Store) -> Result<()> {
    if config.is_copy || !store.is_device() {
        return Ok(());
    }
    store.close()?;
    let device = config.path().display();
    Err(Error::Unusable(format!(
        "{device} is a device of a matrix: open the matrix, its directory"
    )))
}
