//! Counters, latencies, the clock, and the delay after which a read is hedged.

mod clock;
mod counters;
pub(crate) mod hedge_delay;
pub(crate) mod latency;

pub(crate) use clock::Clock;
pub(crate) use counters::{Asked, Count, Counters, Said};
pub(crate) use hedge_delay::{End, Pace};
