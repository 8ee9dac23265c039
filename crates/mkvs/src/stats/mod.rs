//! Counters, latencies and the clock: what is counted and timed, and by which a read is hedged.

pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod hedge_delay;
pub(crate) mod latency;
