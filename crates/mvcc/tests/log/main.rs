//! A log through power cuts and kills: its state afterwards is that of one moment, not before the last commit.
//!
//! Every operation makes one step, and a cut leaves the log as it was behind one of them. So all states of each life
//! are noted, with the events of the medium, and the state after a cut is searched for among those that are possible.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

mod chain;
mod cuts;
mod flips;
mod lives;
mod model;
mod moments;
mod ops;
mod readers;
mod release;
mod room;
mod worlds;
