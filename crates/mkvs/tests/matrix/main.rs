//! A matrix of stores in memory: its groups, its members and what happens to them.

#[path = "../scale/mod.rs"]
mod scale;
#[path = "../shelf/mod.rs"]
mod shelf;

mod accepted;
mod alike;
mod backup;
mod checkpoints;
mod clear;
mod competition;
mod doubts;
mod equal_hashes;
mod growth;
mod hurt;
mod intents;
mod kept;
mod left_out;
mod life;
mod loss;
mod membership;
mod missing_keys;
mod multi_get;
mod older;
mod panics;
mod races;
mod retire;
mod scrub;
mod scrub_scmkv;
mod side_by_side;
mod slots;
mod upkeep;
