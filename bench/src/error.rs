//! Why a run ended.

/// The result of a run.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan cannot be carried out.
    #[error("{0}")]
    Plan(String),
    /// The store failed.
    #[error(transparent)]
    Engine(#[from] coreplane_engine::Error),
    /// A store that is no engine failed.
    #[error("{0}")]
    Target(String),
    /// The pool of the floor failed.
    #[error(transparent)]
    Pool(#[from] coreplane_pmem::PoolError),
    /// The store answered with bytes that were never written for that key, or with none.
    #[error("wrong value for key number {number}: {what}")]
    WrongValue {
        /// The number of the record.
        number: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A worker ended because of a fault in the store or here.
    #[error("a worker panicked")]
    Panicked,
}
