//! A log through power cuts and kills: what it is then is what it was at one moment that is not before the last commit.
//!
//! Every operation makes one step, and a cut leaves the log as it was behind one of them. So of each life all states
//! are noted, with how far the medium was, and what a cut leaves is looked for among those that it may be.
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
mod room;
mod worlds;
