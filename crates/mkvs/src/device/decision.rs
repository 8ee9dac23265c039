//! A write, as one device decides it and the others make it.
//!
//! Conditions (is the key there, is its value this one) are decided once, on a device that has the
//! newest of the key. What the others get is not the question but the answer: this value, or none,
//! with a sequence.

use coreplane_engine::{
    Brief, ChangeRef, Error, Outcome, Remedy, Result, StorageEngine, UnixMillis, Visibility,
    WriteOptions,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a write on the device that decides, in any thread.
pub(crate) type RemoteCall =
    Box<dyn FnOnce(&dyn StorageEngine, &WriteOptions) -> Result<Outcome> + Send>;

/// A write of one key: decided on one device, made on the others.
pub(crate) trait Write {
    /// Makes it on the device that decides, with these options.
    ///
    /// # Errors
    /// As the engine.
    fn decide(&mut self, engine: &dyn StorageEngine, options: &WriteOptions) -> Result<Outcome>;

    /// The same for another thread, with copies of what the caller has given; none if the caller's
    /// own code decides.
    fn remote_call(&self) -> Option<RemoteCall> {
        None
    }

    /// What was decided, once it was made.
    fn decided(&self) -> Decided<'_>;

    /// True if it may come out as a delete, however it came out when it was tried before.
    fn may_erase(&self) -> bool {
        true
    }

    /// True if it depends on what is there.
    fn rests_on_old(&self) -> bool {
        true
    }
}

/// What is to be made on the other devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decided<'a> {
    pub(crate) key: &'a [u8],
    /// The value and its expiry; none: it is deleted.
    pub(crate) put: Option<(&'a [u8], Option<UnixMillis>)>,
}

impl<'a> Decided<'a> {
    /// The change of a batch.
    pub(crate) fn of(change: ChangeRef<'a>) -> Self {
        let put = match change {
            ChangeRef::Put { value, expires_at, .. } => Some((value, expires_at)),
            ChangeRef::Delete { .. } => None,
        };
        Self { key: change.key(), put }
    }
}

impl Decided<'_> {
    /// Makes it, with the sequence that is in the options.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn make(&self, engine: &dyn StorageEngine, options: &WriteOptions) -> Result<()> {
        // Written, or not newer than what is there: both will do.
        match self.put {
            Some((value, expires_at)) => {
                let options = WriteOptions { expires_at, ..*options };
                match engine.put_briefly(self.key, value, &options, None) {
                    Brief::Else(outcome) => outcome.map(|_| ()),
                    // Nothing is declined of a put by itself.
                    Brief::New | Brief::Replaced | Brief::Declined => Ok(()),
                }
            }
            None => engine.delete(self.key, options).map(|_| ()),
        }
    }

    /// The same; what came of it.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn make_told(
        &self,
        engine: &dyn StorageEngine,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        match self.put {
            Some((value, expires_at)) => {
                engine.put(self.key, value, &WriteOptions { expires_at, ..*options })
            }
            None => engine.delete(self.key, options),
        }
    }

    /// Makes it again in the place of what was taken back. One that `is_spared`, since it had nothing of
    /// that, gets no mark of a key that it has not: a full device would be filled with those.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn restore(
        &self,
        engine: &dyn StorageEngine,
        options: &WriteOptions,
        is_spared: bool,
    ) -> Result<()> {
        self.restore_told(engine, options, is_spared).map(|_| ())
    }

    /// The same; what came of it, unless it was spared.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn restore_told(
        &self,
        engine: &dyn StorageEngine,
        options: &WriteOptions,
        is_spared: bool,
    ) -> Result<Option<Outcome>> {
        let is_absent = || {
            let found = engine.get_with(self.key, Visibility::Early, &mut |_| {});
            found.is_ok_and(|found| !found.hit)
        };
        if self.put.is_none() && is_spared && is_absent() {
            return Ok(None);
        }
        self.make_told(engine, options).map(Some)
    }

    /// As a change of a batch.
    pub(crate) fn as_change(&self) -> ChangeRef<'_> {
        match self.put {
            Some((value, expires_at)) => ChangeRef::Put { key: self.key, value, expires_at },
            None => ChangeRef::Delete { key: self.key },
        }
    }
}

/// A device failed, so that the matrix goes on without it: not what the caller has done wrong, and
/// not a lack of space.
pub(crate) fn is_failure(error: &Error) -> bool {
    !matches!(error.remedy(), Remedy::FixInput | Remedy::FreeSpace)
        && !matches!(error, Error::Closed)
}

/// Makes a call of a device's engine, be it in its processor. One that panics has failed: nobody may wait
/// for it, nor for what lies behind it.
///
/// # Errors
/// As the call, and if it panics.
pub(crate) fn caught<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Error::Unusable("a device's engine has panicked".to_owned())))
}

/// Bytes of a device are not what was written: a peer has them.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::ChecksumMismatch { .. } | Error::Corrupt { .. } | Error::Truncated { .. }
    )
}

/// The medium itself answers with errors, or is not there any more.
pub(crate) fn is_dead(error: &Error) -> bool {
    const DEAD: [i32; 3] = [libc::EIO, libc::ENXIO, libc::ENODEV];
    matches!(error, Error::Io { source, .. }
        if source.raw_os_error().is_some_and(|code| DEAD.contains(&code)))
}
