//! The report of a time-series store that is served beside the records.

/// A store of time series in the same process.
pub trait TimeSeries: Send + Sync + std::fmt::Debug {
    /// The state of the store, for `INFO`: names of letters, digits and underscores, and values. Whole numbers become
    /// metrics, too. Must be quick.
    fn figures(&self) -> Vec<(String, String)>;
}
