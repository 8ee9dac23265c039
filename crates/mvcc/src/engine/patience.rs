//! Waiting for pages.

use super::Store;
use crate::map::Space;
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin;
use coreplane_record::sync_failed;
use std::time::Duration;

/// How long readers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a caller waits that can ask again.
const BRIEF: Duration = Duration::from_millis(5);

/// A wait for pages.
pub(crate) struct Patience(spin::Patience);

impl Default for Patience {
    fn default() -> Self {
        Self(spin::Patience::new(PATIENCE))
    }
}

impl Patience {
    /// As long as a reader takes that does not stay.
    pub(crate) fn brief() -> Self {
        Self(spin::Patience::brief(BRIEF))
    }

    /// Waits for pages; the caller does not hold the map.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if readers hold them for too long; if the medium fails.
    pub(crate) fn wait(&mut self, store: &Store, space: Space) -> Result<()> {
        match space {
            Space::Found | Space::Again => return Ok(()),
            Space::Wait(generation) if generation > 0 => {
                return store.volume.space.sync_wait(generation).map_err(sync_failed);
            }
            Space::Wait(_) => {}
        }
        let goes_on = self.0.wait();
        if goes_on { Ok(()) } else { Err(Error::NoSpace { needed: 0, reclaimable: 0 }) }
    }
}
