//! A write, as one device decides it and the others make it.
//!
//! Conditions (is the key there, is its value this one) are decided once, on a device that has the newest record of
//! the key. The other devices do not get the condition but the outcome: this value, or none, with a sequence.

use super::fault_guard::Guarded;
use crate::in_flight::Old;
use coreplane_engine::{
    Brief, ChangeRef, Error, Outcome, Remedy, Result, UnixMillis, Visibility, WriteOptions,
};

/// A change to make on the other devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decided<'a> {
    pub(crate) key: &'a [u8],
    /// The value and its expiry; none: it is deleted.
    pub(crate) put: Option<(&'a [u8], Option<UnixMillis>)>,
}

impl<'a> Decided<'a> {
    /// From a change of a batch.
    pub(crate) fn of(change: ChangeRef<'a>) -> Self {
        let put = match change {
            ChangeRef::Put { value, expires_at, .. } => Some((value, expires_at)),
            ChangeRef::Delete { .. } => None,
        };
        Self { key: change.key(), put }
    }

    /// To this state of the key.
    pub(crate) fn to(key: &'a [u8], state: &'a Old) -> Self {
        Self { key, put: state.as_ref().map(|(value, at)| (value.as_slice(), *at)) }
    }
}

impl Decided<'_> {
    /// Makes the change, with the sequence of the options.
    pub(crate) fn make(&self, engine: &Guarded, options: &WriteOptions) -> Result<()> {
        // Written, or not newer than the record that is there: both will do.
        match self.put {
            Some((value, expires_at)) => {
                let options = WriteOptions { expires_at, ..*options };
                match engine.put_briefly(self.key, value, &options, None) {
                    Brief::Else(outcome) => outcome.map(|_| ()),
                    // A put by itself is never declined.
                    Brief::New | Brief::Replaced | Brief::Declined => Ok(()),
                }
            }
            None => engine.call(|it| it.delete(self.key, options)).map(|_| ()),
        }
    }

    /// The same, with the outcome.
    pub(crate) fn make_told(&self, engine: &Guarded, options: &WriteOptions) -> Result<Outcome> {
        match self.put {
            Some((value, expires_at)) => {
                engine.call(|it| it.put(self.key, value, &WriteOptions { expires_at, ..*options }))
            }
            None => engine.call(|it| it.delete(self.key, options)),
        }
    }

    /// Makes an earlier state again in place of a write that was taken back. A device that `is_spared`, since it
    /// did not have that write, gets no tombstone of a key that it does not have: tombstones would fill a full
    /// device. The outcome; none if the device was spared.
    pub(crate) fn restore(
        &self,
        engine: &Guarded,
        options: &WriteOptions,
        is_spared: bool,
    ) -> Result<Option<Outcome>> {
        if is_spared && self.is_idle(engine) {
            return Ok(None);
        }
        self.make_told(engine, options).map(Some)
    }

    /// True if it deletes a key that the engine does not have.
    pub(crate) fn is_idle(&self, engine: &Guarded) -> bool {
        let is_absent = || {
            let found = engine.call(|it| it.get_with(self.key, Visibility::Early, &mut |_| {}));
            found.is_ok_and(|found| !found.hit)
        };
        self.put.is_none() && is_absent()
    }

    /// As a change of a batch.
    pub(crate) fn as_change(&self) -> ChangeRef<'_> {
        match self.put {
            Some((value, expires_at)) => ChangeRef::Put { key: self.key, value, expires_at },
            None => ChangeRef::Delete { key: self.key },
        }
    }
}

/// True if the device has failed, so that the matrix goes on without it: not an error of the caller, and not a lack
/// of space.
pub(crate) fn is_failure(error: &Error) -> bool {
    !matches!(error.remedy(), Remedy::FixInput | Remedy::FreeSpace)
        && !matches!(error, Error::Closed)
}

/// True if the bytes of a device differ from those that were written: a peer has them.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::ChecksumMismatch { .. }
            | Error::Corrupt { .. }
            | Error::Truncated { .. }
            | Error::Unrepaired { .. }
    )
}

/// True if the medium itself answers with errors, or is not there any more.
pub(crate) fn is_dead(error: &Error) -> bool {
    const DEAD: [i32; 3] = [libc::EIO, libc::ENXIO, libc::ENODEV];
    matches!(error, Error::Io { source, .. }
        if source.raw_os_error().is_some_and(|code| DEAD.contains(&code)))
}
