//! A store in memory: what its operations do, and what they cost.

#[path = "../home/mod.rs"]
mod home;
#[path = "../scale/mod.rs"]
mod scale;
#[path = "../tiny/mod.rs"]
mod tiny;

mod batches;
mod changes;
mod checked_reads;
mod close;
mod cost;
mod early;
mod expiry;
mod given;
mod large_values;
mod lifetime;
mod newest;
mod one_cut;
mod relaxed;
mod restarts;
mod staged;
