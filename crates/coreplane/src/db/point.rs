//! One key at a time.

use super::Db;
use crate::matrix::check_key;
use coreplane_engine::{
    Error, Expected, Mutation, Outcome, Record, Result, UnixMillis, Visibility, WriteOptions,
    Written,
};
use std::time::Duration;

/// Reads.
impl Db {
    /// The value of `key`, copied once; none if there is no record. It is durable.
    ///
    /// # Errors
    /// As listed at [`Db`].
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.engine().get(key.as_ref())
    }

    /// Shows the record of `key` in place, in the pool, and returns the result of `look`; none if there is no record.
    /// Nothing is copied. `look` must not call the store.
    ///
    /// ```
    /// # use coreplane::{Db, EngineChoice, StoreConfig};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = StoreConfig::at(dir.path().join("p")).size(16 << 20).create_db()?;
    /// db.put("greeting", "hello")?;
    /// let len = db.get_with("greeting", |record| record.value.len())?;
    /// assert_eq!(len, Some(5));
    /// let expiry = db.get_with("greeting", |record| record.expires_at)?;
    /// assert_eq!(expiry, Some(None));
    /// # Ok::<(), coreplane::Error>(())
    /// ```
    ///
    /// # Errors
    /// As listed at [`Db`].
    #[inline]
    pub fn get_with<R>(
        &self,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Record<'_>) -> R,
    ) -> Result<Option<R>> {
        let (mut look, mut seen) = (Some(look), None);
        self.engine().get_with(key.as_ref(), Visibility::Durable, &mut |record| {
            if let Some(look) = look.take() {
                seen = Some(look(record));
            }
        })?;
        Ok(seen)
    }

    /// True if there is a record of `key`. Its value is not copied.
    ///
    /// # Errors
    /// As listed at [`Db`].
    #[inline]
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let look = &mut |_: Record<'_>| {};
        Ok(self.engine().get_with(key.as_ref(), Visibility::Durable, look)?.hit)
    }

    /// The values of `keys`, in their order. Either all changes of a batch are seen or none.
    ///
    /// # Errors
    /// As listed at [`Db`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let mut values = vec![None; keys.len()];
        self.engine().multi_get(&keys, Visibility::Durable, &mut |at, record| {
            if let Some(value) = values.get_mut(at) {
                *value = record.map(|record| record.value.to_vec());
            }
        })?;
        Ok(values)
    }
}

/// Writes. Each of them returns when it is durable, at the durability that the store was opened with: after the
/// fence, where that is an instruction; after the sync of a file. Those that end in `_with` follow their
/// [`WriteOptions`] instead: another durability, an expiry, no wait.
///
/// All of them may return [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::NoSpace`], [`Error::Closed`] and
/// [`Error::ReadOnly`], and [`Error::Unsupported`] for a key that a matrix keeps for itself
/// ([`is_own_key`](crate::admin::is_own_key)). A write that returned an error was not made, except with [`Error::Indeterminate`].
impl Db {
    /// Writes `value` for `key`, whether or not there is a record; without expiry. Returns when it is durable;
    /// [`Written::replaced`] tells whether there was one.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::NoSpace`], [`Error::Closed`].
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Written> {
        self.put_with(key, value, &WriteOptions::default()).and_then(written)
    }

    /// As [`Db::put`], with `options`. Durable when it returns, unless they state otherwise.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        check_key(key.as_ref())?;
        self.engine().put(key.as_ref(), value.as_ref(), options)
    }

    /// As [`Db::put`], for a record that ceases to exist at a given time. A time in the past has the effect of a
    /// delete.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_at: UnixMillis,
    ) -> Result<Written> {
        let options = WriteOptions { expires_at: Some(expires_at), ..WriteOptions::default() };
        self.put_with(key, value, &options).and_then(written)
    }

    /// As [`Db::put`], for a record that lives for this duration, to the millisecond.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        time_to_live: Duration,
    ) -> Result<Written> {
        self.put_with_expiry(key, value, self.now().after(time_to_live))
    }

    /// Changes the time at which a record ceases to exist, and keeps its value; none: never. Durable when it returns.
    /// [`Outcome::Missing`] if there is no record.
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn set_expiry(
        &self,
        key: impl AsRef<[u8]>,
        expires_at: Option<UnixMillis>,
    ) -> Result<Outcome> {
        let outcome = self.modify(key, |_| Mutation::Expire(expires_at))?;
        Ok(match outcome {
            Outcome::Kept(ticket) => Outcome::Missing(ticket),
            other => other,
        })
    }

    /// Deletes the record of `key`, durably when it returns; false if there was none.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::NoSpace`], [`Error::Closed`].
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.delete_with(key, &WriteOptions::default())?.is_written())
    }

    /// As [`Db::delete`], with `options`; [`Outcome::Missing`] if there was none.
    ///
    /// # Errors
    /// As [`Db::delete`].
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: &WriteOptions) -> Result<Outcome> {
        self.engine().delete(key.as_ref(), options)
    }

    /// Writes `value` if there is no record of `key`; else [`Outcome::Exists`]. Durable when it returns.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn put_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.put_if_absent_with(key, value, &WriteOptions::default())
    }

    /// As [`Db::put_if_absent`], with `options`.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn put_if_absent_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        check_key(key.as_ref())?;
        self.engine().insert(key.as_ref(), value.as_ref(), options)
    }

    /// Writes `value` if there is a record of `key`; else [`Outcome::Missing`]. Durable when it returns; without
    /// expiry, even if the record had one.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.update_with(key, value, &WriteOptions::default())
    }

    /// As [`Db::update`], with `options`.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn update_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        check_key(key.as_ref())?;
        self.engine().update(key.as_ref(), value.as_ref(), options)
    }

    /// Writes `value` if the record of `key` is as expected, without another write in between; else
    /// [`Outcome::Mismatch`]. Durable when it returns. The expectation is a value, a result of [`Db::get`], or any
    /// [`Expected`]:
    ///
    /// ```
    /// # use coreplane::{Db, StoreConfig};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = StoreConfig::at(dir.path().join("p")).size(16 << 20).create_db()?;
    /// let seen = db.get("lock")?;
    /// let outcome = db.compare_and_set("lock", seen.as_deref(), "mine")?;
    /// assert!(outcome.is_written());
    /// assert!(!db.compare_and_set("lock", seen.as_deref(), "yours")?.is_written());
    /// # Ok::<(), coreplane::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn compare_and_set<'e>(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl Into<Expected<'e>>,
        value: impl AsRef<[u8]>,
    ) -> Result<Outcome> {
        self.compare_and_set_with(key, expected, value, &WriteOptions::default())
    }

    /// As [`Db::compare_and_set`], with `options`.
    ///
    /// # Errors
    /// As [`Db::put`].
    #[inline]
    pub fn compare_and_set_with<'e>(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl Into<Expected<'e>>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        self.engine().compare_and_set(key, expected.into(), value, options)
    }

    /// Reads, decides and writes, without another write of the key in between; durable when it returns. `decide` may
    /// run more than once, and its last answer counts; it must not call the store.
    ///
    /// ```
    /// # use coreplane::{Db, Mutation, StoreConfig};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = StoreConfig::at(dir.path().join("p")).size(16 << 20).create_db()?;
    /// db.put("log", "a")?;
    /// let outcome = db.modify("log", |record| match record {
    ///     Some(record) => {
    ///         let value = [&record.value.to_cow()[..], b"b"].concat();
    ///         Mutation::Put { value, expires_at: record.expires_at }
    ///     }
    ///     None => Mutation::Keep,
    /// })?;
    /// assert!(outcome.is_written());
    /// assert_eq!(db.get("log")?.as_deref(), Some(&b"ab"[..]));
    /// # Ok::<(), coreplane::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn modify(
        &self,
        key: impl AsRef<[u8]>,
        decide: impl FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.modify_with(key, decide, &WriteOptions::default())
    }

    /// As [`Db::modify`], with `options`; the expiry of `options` is not used (the answer of `decide` has its own).
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn modify_with(
        &self,
        key: impl AsRef<[u8]>,
        mut decide: impl FnMut(Option<Record<'_>>) -> Mutation,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        check_key(key.as_ref())?;
        self.engine().modify(key.as_ref(), options, &mut decide)
    }
}

/// The result of a put, which is never refused without a given sequence.
#[inline]
fn written(outcome: Outcome) -> Result<Written> {
    outcome.written().ok_or_else(|| Error::Unusable(format!("a put was refused: {outcome:?}")))
}
