//! Damage: found, mended, named.

use crate::{
    Backing, DamagedKey, Engine, KeyRange, Progress, Result, ScrubReport, VerifyReport, Visibility,
};

/// An engine on a medium that may damage what lies there, or go.
///
/// # Errors
/// As [`Engine`].
pub trait Repairable: Engine {
    /// Reads everything and checks it against every checksum and invariant.
    ///
    /// # Errors
    /// Only if it could not go on; damage that it found is in the report.
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport>;

    /// Reads what a recovery would read of all that is in memory, and mends what can be mended from the store
    /// itself, beside everybody: what it would not find as it is, it writes anew. What could not be saved is
    /// damaged from then on ([`Repairable::check`]) or in doubt ([`Repairable::lost_ranges`]), until it is written
    /// again; what a write has left damaged behind itself is gone. Durable when it returns.
    ///
    /// # Errors
    /// Only if it could not go on; damage that is left is in the report.
    fn scrub(&self, _progress: &mut dyn FnMut(Progress)) -> Result<ScrubReport> {
        Ok(ScrubReport::default())
    }

    /// Holds the record of `key`, all of it, against its checksums, whatever the store was opened
    /// with; false if there is none.
    ///
    /// # Errors
    /// [`Error::ChecksumMismatch`](crate::Error::ChecksumMismatch) or [`Error::Corrupt`](crate::Error::Corrupt)
    /// if it is damaged.
    fn check(&self, key: &[u8]) -> Result<bool> {
        self.get_with(key, Visibility::Early, &mut |_| {}).map(|found| found.hit)
    }

    /// True if a key that is not found is not there, and no flipped bit that nothing tells can be the reason.
    fn proves_absence(&self) -> bool {
        true
    }

    /// Ranges of keys of which records were lost, nobody knows which. Reads of these keys fail, but of
    /// those that were written since.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it cannot even be told.
    fn lost_ranges(&self) -> Result<Vec<KeyRange>> {
        Ok(Vec::new())
    }

    /// The keys that [`changes_since`](crate::Replicated::changes_since) cannot show since they are damaged, or
    /// their records. A put or a delete of one with a greater sequence takes its place; with one that is not greater
    /// it says [`Outcome::NotNewer`](crate::Outcome::NotNewer).
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it cannot even be told.
    fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        let _none = sequence;
        Ok(Vec::new())
    }

    /// Everything that there is in a range which [`Repairable::lost_ranges`] has shown has been put again: what
    /// was not, nor has been written since, is not there. Durable when it returns.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn settle(&self, doubt: &KeyRange) -> Result<()> {
        let _is_none = doubt;
        Ok(())
    }

    /// Ends the doubt about the keys of a range which [`Repairable::lost_ranges`] has shown, for want of anybody who has
    /// them: what there is counts from then on, though it may not be the newest, and what there is not is absent. Durable
    /// when it returns.
    ///
    /// # Errors
    /// As [`Engine::put`].
    fn accept(&self, doubt: &KeyRange) -> Result<()> {
        let _is_none = doubt;
        Ok(())
    }

    /// Of a store that was opened to outlive its medium: fails once that has gone while it was in use.
    /// Then nothing that any call has answered or shown since may be believed: not a value, nor that
    /// there is none, nor that it was written. So whoever has opened a store so asks after each call, and
    /// before its answer is used. Any other store does not survive its medium, and never fails here.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), for ever after.
    fn check_medium(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the pool at least `size` bytes large while it is in use, of a matrix each of its devices. Nothing is done if
    /// it is that large. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace); [`Error::Unsupported`](crate::Error::Unsupported) of an engine without
    /// a pool. Of a matrix, some devices may have grown then; the same call goes on.
    fn grow(&self, size: u64) -> Result<()> {
        let _nowhere = size;
        Err(crate::Error::Unsupported { engine: self.name(), operation: "growing a pool" })
    }

    /// Its file as it is now: whoever asks reads nothing of the store.
    fn backing(&self) -> Backing {
        Backing::Whole
    }
}
