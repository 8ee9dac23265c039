//! Reading a log from its bytes alone: sound records, and proof that a record was durable.

use crate::table::Table;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::View;

/// Bytes of would-be records that are checked behind the end of a log.
const FOLLOWERS_CHECKED_BYTES: u64 = 64 << 20;

impl Table {
    /// True if a record behind `at`, up to `end`, was written when all before it was durable: then
    /// an unsound record at `at` is damage, not the end of the log.
    pub(crate) fn is_followed(&self, guard: &Guard, generation: u32, at: u64, end: u64) -> bool {
        // The bytes behind the end are old, and may be crafted to look like records: hence the
        // bound.
        let mut checked = 0;
        let mut candidate = at + 8;
        while candidate < end && checked < FOLLOWERS_CHECKED_BYTES {
            if let Some(view) = self.view(guard, candidate)
                && view.header.follows
                && !mutant!("scmkv.recover.followed")
            {
                checked += u64::from(view.len());
                if view.check(self.seed(generation, candidate)).is_ok() {
                    return true;
                }
            }
            candidate += 8;
        }
        false
    }

    /// The record at `at`, if it is sound.
    pub(crate) fn sound<'g>(
        &'g self,
        guard: &'g Guard,
        generation: u32,
        at: u64,
    ) -> Result<View<'g>> {
        let view = self.view(guard, at).ok_or_else(|| Error::Corrupt {
            offset: at,
            what: "no record where the log should have one".to_owned(),
        })?;
        if !mutant!("scmkv.recover.checksum") {
            view.check(self.seed(generation, at))?;
        }
        Ok(view)
    }
}
