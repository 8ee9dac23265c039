//! Changes that are made together.

use super::Db;
use crate::matrix::check_batch;
use coreplane_engine::{Batch, Result, UnixMillis, WriteOptions, Written};

/// Changes of a store that are collected, and made by [`WriteBatch::commit`]: all of them or none, even after a
/// crash. Readers see all or none, too. Of several changes of one key the last counts.
///
/// ```
/// # use coreplane::{Db, StoreConfig};
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = StoreConfig::at(dir.path().join("p")).size(16 << 20).create_db()?;
/// db.put("from", "5")?;
/// db.batch().put("from", "0").put("to", "5").commit()?;
/// assert_eq!(db.get("to")?.as_deref(), Some(&b"5"[..]));
/// # Ok::<(), coreplane::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a batch changes nothing until it is committed"]
pub struct WriteBatch {
    db: Db,
    changes: Batch,
}

impl Db {
    /// An empty batch.
    pub fn batch(&self) -> WriteBatch {
        WriteBatch { db: self.clone(), changes: Batch::new() }
    }
}

impl WriteBatch {
    /// Adds a write, without expiry.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.changes.put(key.as_ref(), value.as_ref());
        self
    }

    /// Adds a write of a record that ceases to exist at a given time.
    pub fn put_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_at: UnixMillis,
    ) -> &mut Self {
        self.changes.put_until(key.as_ref(), value.as_ref(), Some(expires_at));
        self
    }

    /// Adds a delete; the record need not exist.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.changes.delete(key.as_ref());
        self
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if there is no change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes_len(&self) -> usize {
        self.changes.bytes_len()
    }

    /// Makes all changes, durably when it returns. Then the batch is empty, and can be used again; after an error it
    /// is unchanged, and no change was made (except with [`Error::Indeterminate`](crate::Error::Indeterminate)).
    ///
    /// # Errors
    /// As [`Db::put`]; [`Error::BatchTooLarge`](crate::Error::BatchTooLarge) and
    /// [`Error::BatchTooLong`](crate::Error::BatchTooLong) if the batch exceeds the engine's limits
    /// ([`Engine::limits`](crate::Engine::limits)).
    pub fn commit(&mut self) -> Result<Written> {
        self.commit_with(&WriteOptions::default())
    }

    /// As [`WriteBatch::commit`], with `options`; their expiry is not used, since each change has its own.
    ///
    /// # Errors
    /// As [`WriteBatch::commit`].
    pub fn commit_with(&mut self, options: &WriteOptions) -> Result<Written> {
        check_batch(&self.changes)?;
        let written = self.db.engine().apply(&self.changes, options)?;
        self.changes.clear();
        Ok(written)
    }
}
