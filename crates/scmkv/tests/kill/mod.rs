//! A simulated machine whose process was killed at a chosen moment.
#![allow(dead_code, reason = "each test file uses a part of it")]

use coreplane_pmem::media::sim::{Eviction, Sim};
use coreplane_pmem::{Claim, Durable};

/// The words that a kill after the first `events` events leaves in the caches alone: offset, durable and cached word.
pub(crate) fn undurable_at(sim: &Sim, events: usize) -> Vec<(u64, u64, u64)> {
    let [durable, cached] =
        [Eviction::Nothing, Eviction::Everything].map(|kept| sim.crash_at(events, kept));
    let words = (0..cached.bytes().len() as u64).step_by(8);
    let words = words.map(|at| (at, durable.word(at), cached.word(at)));
    words.filter(|(_, durable, cached)| durable != cached).collect()
}

/// The machine after its process was killed behind the first `events` events.
pub(crate) fn killed_at(sim: &Sim, events: usize) -> Sim {
    let left = sim.crash_at(events, Eviction::Nothing).reopen().expect("memory");
    let space = left.space();
    for page in 0..space.pages() {
        assert!(space.claim_words(page, Claim::WordsAsStored), "page {page}");
    }
    for (at, _, cached) in undurable_at(sim, events) {
        space.word::<Durable>(at).expect("a word").store(cached);
    }
    left.killed().expect("memory")
}
