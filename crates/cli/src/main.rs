//! The `coreplane` command.
fn main() {}
