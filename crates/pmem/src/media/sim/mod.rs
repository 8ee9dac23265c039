//! The crash simulator.

mod choice;
mod cost;
mod explore;
mod fault;
mod history;
mod image;
mod log;
mod machine;
mod options;
mod recorder;
mod replay;
mod report;
mod rng;
mod run;
pub(crate) mod schedule;
mod shrink;

pub use cost::Cost;
pub use explore::{Subject, explore};
pub use fault::Fault;
pub use history::{History, Mark, Standing};
pub use image::{Eviction, Image, Sim};
pub use machine::{EarlyRead, Model};
pub use options::SimOptions;
pub use replay::replay;
pub use report::{Report, Violation};
pub use run::{Call, Run};
