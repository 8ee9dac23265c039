//! Waiting for pages.

use super::Store;
use super::durable::Writing;
use crate::map::Space;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::spin;
use coreplane_record::sync_failed;
use std::time::Duration;

/// How long readers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a caller waits that can ask again.
const BRIEF: Duration = Duration::from_millis(5);

/// How often the cleaner goes through all pages for a caller: while others write, each call may find more to clean.
const PASSES: u64 = 2;

/// A wait for pages.
pub(crate) struct Patience {
    readers: spin::Patience,
    /// Pages that were cleaned meanwhile.
    cleaned: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { readers: spin::Patience::new(PATIENCE), cleaned: 0 }
    }
}

impl Patience {
    /// As long as a reader takes that does not stay.
    pub(crate) fn brief() -> Self {
        Self { readers: spin::Patience::brief(BRIEF), cleaned: 0 }
    }

    /// Waits for pages; the caller does not hold the map.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if readers hold them, or the cleaner searches, for too long; if the medium fails.
    pub(crate) fn wait(&mut self, store: &Store, space: Space) -> Result<()> {
        let memory = &store.volume.space;
        let goes_on = match space {
            Space::Found => true,
            Space::Again(pages) => {
                self.cleaned += u64::from(pages);
                self.cleaned <= PASSES * u64::from(memory.pages())
            }
            Space::Coming(0) | Space::Wait(0) => self.readers.wait(),
            Space::Coming(generation) | Space::Wait(generation) => {
                return memory.sync_wait(generation).map_err(sync_failed);
            }
        };
        if goes_on { Ok(()) } else { Err(Error::NoSpace { needed: 0, reclaimable: 0 }) }
    }
}

impl Store {
    /// Makes a change as soon as the request before it, which looks for pages, has found them.
    ///
    /// # Errors
    /// Those of both; [`Error::NoSpace`]; if the medium fails.
    pub(crate) fn with_space<T>(
        &self,
        mut request: impl FnMut(&mut Writing<'_>, &Guard) -> Result<Space>,
        change: impl FnOnce(&mut Writing<'_>, &Guard) -> Result<T>,
    ) -> Result<T> {
        let mut patience = Patience::default();
        loop {
            let mut map = self.writing()?;
            self.check_writable()?;
            let guard = epoch::pin();
            let space = request(&mut map, &guard)?;
            if space == Space::Found {
                return change(&mut map, &guard);
            }
            drop((map, guard));
            patience.wait(self, space)?;
        }
    }
}
