//! A matrix from its open to its close: the records and devices that count, the repair after a crash, and the
//! figures of an open matrix.

pub(crate) mod clear;
pub(crate) mod close;
mod difference;
mod doubt;
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
