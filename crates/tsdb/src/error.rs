//! Errors of the store.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such database, policy, measurement or series: create it, or ask for another.
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense: fix the input.
    #[error("{0}")]
    Input(String),
    /// The request would exceed a limit: of series, of memory.
    #[error("{0}")]
    Limit(String),
    /// The pools have no room: drop old data, or grow them.
    #[error("the store is full: {0}")]
    Full(String),
    /// A read was ended before it was complete: it took too long, or its client no longer waits for it.
    #[error("{0}")]
    Ended(&'static str),
    /// Data in a pool is damaged.
    #[error("damaged: {0}")]
    Damage(String),
    /// The pools are not those of one store, or the options do not fit them.
    #[error("{0}")]
    Pools(String),
    /// A pool could not be made or opened.
    #[error(transparent)]
    Pool(#[from] coreplane_pmem::PoolError),
    /// A sync failed: nothing is written until the store is opened again.
    #[error(transparent)]
    Sync(#[from] coreplane_pmem::SyncError),
    /// The background thread has panicked: nothing is written or sealed until the store is opened again.
    #[error("nothing is written any more, until the store is opened again: {0}")]
    Upkeep(String),
    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
