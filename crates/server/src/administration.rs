//! What can be done for what lies behind the engine, while it is served.

/// Looks after the devices of a store.
pub trait Administration: Send + Sync + std::fmt::Debug {
    /// Does what the words of a `MATRIX` command say, or begins it if it takes long; what a client is
    /// told.
    ///
    /// # Errors
    /// Why it cannot be done, as it is sent: in words, from the code of the error on (`ERR`, or `UNUSABLE` if
    /// the matrix, and not the command, must be other).
    fn run(&self, words: &[&str]) -> Result<String, String>;

    /// How the devices are, for `INFO`: names of letters, digits and underscores, and values. Those
    /// that are whole numbers are metrics too. Must be quick.
    fn figures(&self) -> Vec<(String, String)>;
}
