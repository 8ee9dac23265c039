//! The conformance suite: what every engine must do, on every medium.
