//! Finding, repairing and naming damage.

use crate::{
    Backing, DamagedKey, Engine, KeyRange, Progress, Result, ScrubReport, VerifyReport, Visibility,
};

/// An engine on a medium that may damage stored data, or be lost.
///
/// # Errors
/// As [`Engine`].
pub trait Repairable: Engine {
    /// Reads everything and checks it against every checksum and invariant.
    ///
    /// # Errors
    /// Only if it could not go on; the damage it found is in the report.
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport>;

    /// Checks everything in memory against the bytes that a recovery would read, and repairs from the store itself
    /// what it can, beside all readers and writers: what a recovery would not find unchanged is rewritten. Records
    /// that could not be saved are damaged from then on ([`Repairable::check`]) or in doubt
    /// ([`Repairable::lost_ranges`]), until they are written again; damaged bytes that a later write has superseded
    /// are gone. Durable when it returns.
    ///
    /// # Errors
    /// Only if it could not go on; damage that is left is in the report.
    fn scrub(&self, _progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        Ok(ScrubReport::default())
    }

    /// Checks the whole record of `key` against its checksums, with any options of the store; false
    /// if there is none.
    ///
    /// # Errors
    /// [`Error::ChecksumMismatch`](crate::Error::ChecksumMismatch) or [`Error::Corrupt`](crate::Error::Corrupt)
    /// if it is damaged.
    fn check(&self, key: &[u8]) -> Result<bool> {
        self.get_with(key, Visibility::Early, &mut |_| {}).map(|found| found.hit)
    }

    /// True if a key that is not found is certainly absent: no undetected bit flip can hide a key.
    fn proves_absence(&self) -> bool {
        true
    }

    /// Ranges of keys in which unknown records were lost. Reads of these keys fail, except of keys
    /// written since.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if not even this can be determined.
    fn lost_ranges(&self) -> Result<Vec<KeyRange>> {
        Ok(Vec::new())
    }

    /// The keys that [`changes_since`](crate::Replicated::changes_since) cannot show because the key or its record
    /// is damaged. A put or a delete of such a key with a greater sequence replaces the damaged record; with one
    /// that is not greater it returns [`Outcome::NotNewer`](crate::Outcome::NotNewer).
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if not even this can be determined.
    fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        let _none = sequence;
        Ok(Vec::new())
    }

    /// Ends the doubt about a range from [`Repairable::lost_ranges`] whose records have all been put again: a
    /// key that was neither put again nor written since is absent. Durable when it returns.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn settle(&self, doubt: &KeyRange) -> Result<()> {
        let _is_none = doubt;
        Ok(())
    }

    /// Ends the doubt about a range from [`Repairable::lost_ranges`] when no peer has its keys: the records here
    /// count from then on, though they may not be the newest, and all other keys are absent. Durable when it returns.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn accept(&self, doubt: &KeyRange) -> Result<()> {
        let _is_none = doubt;
        Ok(())
    }

    /// Fails once the medium was lost in use, in a store that was opened to outlive its medium. No answer
    /// of any call since then is valid: no value, no absence, no confirmation of a write. So the owner of
    /// such a store calls this after each call, before it uses the answer. Any other store does not
    /// survive its medium, and never fails here.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), from then on.
    fn check_medium(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the pool at least `size` bytes large while it is in use; in a matrix, each of its devices. Does nothing
    /// if it is already that large. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace); [`Error::Unsupported`](crate::Error::Unsupported) from an engine
    /// without a pool. Some devices of a matrix may have grown before the error; the same call goes on from there.
    fn grow(&self, size: u64) -> Result<()> {
        let _nowhere = size;
        Err(crate::Error::Unsupported { engine: self.name(), operation: "growing a pool" })
    }

    /// The state of its file now; reads nothing of the store.
    fn backing(&self) -> Backing {
        Backing::Whole
    }
}
