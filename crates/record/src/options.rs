//! How an open store behaves, whichever of the engines on pools it is of.

use coreplane_engine::{Durability, TimeSource};

/// How an open store behaves.
#[derive(Clone)]
pub struct Options {
    /// The durability of writes that do not say otherwise.
    pub durability: Durability,
    /// Whether threads work in the background. Without them nothing is scrubbed, cleaning is done by the
    /// writers that need space, and the window of a `relaxed` write ends by its bytes, by a sync or by
    /// closing, not by its time; nor does `max_delay` end the waiting of early writes at `group`.
    pub background: bool,
    /// Whether a read checks the record's checksum before it shows it, so that damage that the scrub has
    /// not found yet is an error and never a wrong value. It costs some 10 ns for 100 bytes. Scans do so
    /// for each record that they show, and iterations do not. A `modify` does so always,
    /// for what is made of a damaged value would be as good as a sound one.
    pub check_reads: bool,
    /// Whether a pool that is opened stays as it is: what is done to it is done to a copy in memory, and
    /// is gone when it is dropped.
    pub is_copy: bool,
    /// Whether a pool is opened that [`Pool::repair`](coreplane_pmem::Pool::repair) has been to: it may have been cut
    /// short, and nothing but its pages says what is in it.
    pub is_repair: bool,
    /// Tells the time that expiries are held against; none: the system's clock.
    pub time: Option<TimeSource>,
    /// Whether the process goes on when the medium goes from under the pool: a file that is cut short,
    /// a page that is poisoned. Else that ends it, with a line that says where. Whoever asks for this
    /// has to ask [`coreplane_engine::Repairable::check_medium`] after each call, before its answer is used.
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
