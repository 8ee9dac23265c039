//! The options of an open store, for all engines on pools.

use coreplane_engine::{Durability, TimeSource};

/// The options of an open store.
#[derive(Clone)]
pub struct Options {
    /// The durability of writes that do not specify another.
    pub durability: Durability,
    /// Whether threads work in the background. Without them nothing is scrubbed, cleaning is done by the writers that
    /// need space, and the window of a `relaxed` write ends by its bytes, by a sync or by closing, but not by its
    /// time; likewise `max_delay` does not end the wait of early writes at `group`.
    pub background: bool,
    /// Whether a read checks the record's checksum before it shows it, so that damage that the scrub has
    /// not found yet is an error and never a wrong value. It takes about 10 ns for 100 bytes. Scans
    /// check each record that they show; iterations do not. A `modify` always checks, since a new value
    /// derived from a damaged one would look sound.
    pub check_reads: bool,
    /// Whether the opened pool stays unchanged: changes are made to a copy in memory, and are gone when
    /// it is dropped.
    pub is_copy: bool,
    /// Whether the opened pool has been through [`Pool::repair`](coreplane_pmem::Pool::repair): it may have been
    /// truncated, and only its pages show its contents.
    pub is_repair: bool,
    /// The source of the time that expiries are compared with; none: the system's clock.
    pub time: Option<TimeSource>,
    /// Whether the process survives a loss of the medium under the pool: a truncated file, a poisoned page.
    /// Otherwise a loss ends the process, with a line that names the place. A caller that sets this must
    /// call [`coreplane_engine::Repairable::check_medium`] after each call, before its answer is used.
    pub outlives_medium: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Strict,
            background: true,
            check_reads: false,
            is_copy: false,
            is_repair: false,
            time: None,
            outlives_medium: false,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("durability", &self.durability)
            .field("background", &self.background)
            .field("check_reads", &self.check_reads)
            .field("outlives_medium", &self.outlives_medium)
            .finish_non_exhaustive()
    }
}
