//! What a power cut leaves of a matrix, at every point of its writes, and the fences that see to it.

#[path = "../scale/mod.rs"]
mod scale;
#[path = "../shelf/mod.rs"]
mod shelf;

mod cuts;
mod fences;
mod moves;
mod reconciliation;
mod story;
