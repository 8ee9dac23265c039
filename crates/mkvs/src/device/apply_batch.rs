//! The writes that a device's processor takes out of its ring together.
//!
//! A write costs a follower as much as a device that the caller waits for: an engine's put is mostly lookups and
//! the wait for its fence. The writes that lie in the ring together are an *apply batch*: the cache lines of each
//! write are prefetched while the write before it is made, and all of them share a fence, as far as the engine
//! supports writes that do not wait for durability ([`Completion::Early`](coreplane_engine::Completion::Early)).
//! The processor is past the writes only after that fence.
//!
//! ```text
//!   ring ─▶ batch ─▶ make a, make b, … ─▶ make all durable ─▶ report, publish the progress
//! ```

use super::{Device, Host, Rings};
use crate::device::ring::{Decision, Decisions, Taken};
use coreplane_engine::Horizon;

/// Writes of an apply batch at most. The processor publishes its progress once for each batch, since each reader of
/// the progress takes the cache line away.
pub(super) const APPLY_MAX: usize = 16;

/// Writes that were taken out of a ring.
#[derive(Debug, Default)]
pub(super) struct ApplyBatch {
    /// The writes, of which `len` are valid; their buffers are used again for the next batch.
    taken: [One; APPLY_MAX],
    len: usize,
    /// The tickets that the writes made so far depend on.
    horizon: Horizon,
}

/// A write of an apply batch.
#[derive(Debug, Default)]
struct One {
    taken: Taken,
    /// The place in the ring at which the processor is past it.
    end: u64,
    is_made: bool,
}

impl ApplyBatch {
    /// Takes the writes that are in a ring, as many as the batch has room for, and prefetches the key of the first
    /// meanwhile; false if the ring is empty.
    pub(super) fn take(&mut self, ring: &Decisions, prefetch: &mut dyn FnMut(&[u8])) -> bool {
        self.len = 0;
        while let Some(one) = self.taken.get_mut(self.len)
            && let Some(end) = ring.pop(&mut one.taken)
        {
            (one.end, one.is_made) = (end, false);
            if self.len == 0 && !one.taken.is_nothing {
                prefetch(one.taken.decision().decided.key);
            }
            self.len += 1;
        }
        self.len > 0
    }

    /// Where the first write ends.
    pub(super) fn begin(&self) -> u64 {
        self.taken[0].end
    }

    /// Where the last write ends.
    pub(super) fn end(&self) -> u64 {
        self.taken[self.len.saturating_sub(1)].end
    }

    fn all(&self) -> &[One] {
        &self.taken[..self.len]
    }

    /// The writes to make.
    pub(super) fn decisions(&self) -> impl Iterator<Item = Decision<'_>> {
        self.all().iter().filter_map(One::decision)
    }

    /// The writes that were made.
    fn made(&self) -> impl Iterator<Item = (&One, Decision<'_>)> {
        let made = self.all().iter().filter(|one| one.is_made);
        made.filter_map(|one| one.decision().map(|decision| (one, decision)))
    }
}

impl One {
    fn decision(&self) -> Option<Decision<'_>> {
        (!self.taken.is_nothing).then(|| self.taken.decision())
    }
}

impl Device {
    /// Makes an apply batch, answers the reads that come meanwhile, and publishes the progress.
    pub(super) fn apply_batch(&self, (group, rings): (&impl Host, &Rings), batch: &mut ApplyBatch) {
        if let [one] = batch.all() {
            let is_told = one.taken.is_told;
            if let Some(decision) = one.decision()
                && !self.in_call(|| group.catch_up(self, &decision, is_told))
            {
                self.track.stop(one.end);
            }
        } else {
            self.pace.puts.of_each(batch.len as u32, || {
                self.make_several((group, rings), batch);
            });
        }
        self.track.come_to(batch.end());
        batch.len = 0;
    }

    /// The same for more than one write; they share a fence.
    fn make_several(&self, (group, rings): (&impl Host, &Rings), batch: &mut ApplyBatch) {
        batch.horizon.clear();
        for at in 0..batch.len {
            self.answer(rings);
            let (before, behind) = batch.taken[..batch.len].split_at_mut(at + 1);
            let (one, next) = (&mut before[at], behind.first().and_then(One::decision));
            if let Some(next) = &next {
                self.engine.hint(|it| it.prefetch(next.decided.key));
            }
            if let Some(decision) = one.decision() {
                let horizon = &mut batch.horizon;
                one.is_made = self.in_call(|| group.catch_up_early(self, &decision, horizon));
                if !one.is_made {
                    self.track.stop(one.end);
                }
            }
            if let Some(next) = &next {
                let len = next.decided.put.map_or(0, |(value, _)| value.len());
                self.engine.hint(|it| it.prefetch_to_write(next.decided.key, len));
                self.engine.hint(|it| it.prefetch_replaced(next.decided.key));
            }
        }
        let made = || batch.made().map(|(_, decision)| decision);
        if !self.in_call(|| group.make_durable(self, made(), &batch.horizon)) {
            batch.made().for_each(|(one, _)| self.track.stop(one.end));
            return;
        }
        let tells_of_each = self.has_stopped();
        for (_, decision) in batch.made().filter(|(one, _)| tells_of_each || one.taken.is_told) {
            let key = (decision.hash, decision.decided.key);
            group.tell(self, decision.options.sequence, key);
        }
    }
}
