//! What a power cut leaves of a store, at every point of its writes.

#[path = "../home/mod.rs"]
mod home;
#[path = "../scale/mod.rs"]
mod scale;
#[path = "../tiny/mod.rs"]
mod tiny;

mod checkpoint;
mod checkpoint_story;
mod count;
mod cuts;
mod early;
mod growth;
mod lives;
mod story;
