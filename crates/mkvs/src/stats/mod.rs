//! Counters, latencies, the clock, and the delay after which a read is hedged.

pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod hedge_delay;
pub(crate) mod latency;
