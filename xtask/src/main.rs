//! Checks and long jobs of the workspace.
fn main() {}
