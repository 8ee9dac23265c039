//! What can go wrong.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such database, policy, measurement or series: create it, or ask for another.
    #[error("{0}")]
    NotFound(String),
    /// What was asked for makes no sense: fix the input.
    #[error("{0}")]
    Input(String),
    /// It would pass a limit: of series, of memory.
    #[error("{0}")]
    Limit(String),
    /// The pools have no room: drop what is old, or grow them.
    #[error("the store is full: {0}")]
    Full(String),
    /// Who reads was to end before it had read all: it has taken too long, or nobody waits for it any more.
    #[error("{0}")]
    Ended(&'static str),
    /// What is in a pool is damaged.
    #[error("damaged: {0}")]
    Damage(String),
    /// The pools are not those of one store, or the options do not fit them.
    #[error("{0}")]
    Pools(String),
    /// A pool could not be made or opened.
    #[error(transparent)]
    Pool(#[from] coreplane_pmem::PoolError),
    /// A sync failed: nothing is written any more until the store is opened again.
    #[error(transparent)]
    Sync(#[from] coreplane_pmem::SyncError),
    /// What is done in the background has panicked: nothing is written or sealed any more until the store is opened again.
    #[error("nothing is written any more, until the store is opened again: {0}")]
    Upkeep(String),
    /// Of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
