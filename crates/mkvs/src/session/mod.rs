//! A matrix from its open to its close: which records and devices count, what a crash left behind, and what is told of
//! it while it is open.

pub(crate) mod clear;
pub(crate) mod close;
mod difference;
mod engine;
pub(crate) mod figures;
pub(crate) mod intents;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod reconcile;
pub(crate) mod resolve;
pub(crate) mod retire;
mod unsure;
mod upkeep;
