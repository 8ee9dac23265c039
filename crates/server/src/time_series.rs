//! What a store of time series that is served beside the records tells of itself.

/// A store of time series in the same process.
pub trait TimeSeries: Send + Sync + std::fmt::Debug {
    /// How it is, for `INFO`: names of letters, digits and underscores, and values. Those that are whole numbers are
    /// metrics too. Must be quick.
    fn figures(&self) -> Vec<(String, String)>;
}
