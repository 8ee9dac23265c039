//! Batches: changes in any number of leaves, with one fence, all of them or none.
//!
//! 1. Of several changes of a key the last counts. Large values are written to pages of their own.
//! 2. The leaves are locked, in the order of their keys, which is the order in which all threads lock
//!    leaves. All changes have one version, greater than any that one of the leaves has given out.
//! 3. Leaves without room for their part are rewritten with it, as many leaves as it takes.
//! 4. Each leaf's part is appended to it, and one fence makes all parts durable
//!    ([`multi_leaf_commit`](crate::tree::multi_leaf_commit)).
//! 5. The places of all leaves are changed while all of them are marked as changing: a reader that has
//!    seen one change sees the others, or waits for them.
//!
//! Reads of several keys need more than that: they look again if a batch has been published since they began
//! ([`Isolation`](coreplane_pmem::isolation::Isolation)), and lock the leaves themselves if that goes on.

use crate::inner::Descent;
use crate::leaf::tag_of;
use crate::tree::image::{Item, Source};
use crate::tree::look::Standing;
use crate::tree::multi_leaf_commit;
use crate::volume::counters::Count;
use crate::volume::keys::Rest;
use crate::volume::overflow::Overflow;
use crate::volume::pages::Demand;
use crate::write::Writer;
use crate::write::page_search::PageSearch;
use coreplane_engine::{Batch, ChangeRef, Result, WriteOptions, Written};
use coreplane_pmem::epoch;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{HEADER, Header, Kind};
use shares::Share;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

pub(super) mod shares;
mod successors;

/// Steps whose leaves are prefetched before the first of them is locked.
const LANE: usize = 16;

/// The last change of a key.
pub(super) struct Step<'b, 's> {
    pub(super) key: &'b [u8],
    pub(super) value: &'b [u8],
    pub(super) header: Header,
    pub(super) overflow: Option<Overflow<'s>>,
    /// The field of a long key that its leaf knows.
    pub(super) known: Option<Box<[u8]>>,
    /// The rest of a long key that its leaf does not know.
    pub(super) rest: Option<Rest<'s>>,
}

impl Step<'_, '_> {
    pub(super) fn item(&self, version: u64) -> Item<'_> {
        let value = self.overflow.as_ref().map_or(self.value, Overflow::name);
        let header = Header { version, ..self.header };
        Item { header, key: self.field().unwrap_or(self.key), value, source: Source::Caller }
    }

    /// The field of a long key; none for other keys, and while its rest has yet to be written.
    fn field(&self) -> Option<&[u8]> {
        self.known.as_deref().or(self.rest.as_ref().map(Rest::field))
    }

    /// True if the step writes nothing: a delete of an absent key, or a change that is not newer than the old
    /// record. A key whose delete is not durable yet is deleted again: otherwise a power cut could leave it beside
    /// the rest of the batch.
    fn is_idle(&self, standing: &Standing<'_>, is_durable: bool) -> bool {
        match self.header.sequence {
            Some(given) => standing.old.as_ref().is_some_and(|old| old.sequence() >= given),
            None => {
                let is_nothing = !standing.live && !standing.is_doubtful && !standing.is_hurt;
                self.header.kind == Kind::Delete && is_nothing && is_durable
            }
        }
    }
}

/// The descents to the leaves of some steps, from one step on.
#[derive(Default)]
struct LaneAhead {
    from: usize,
    descents: SmallVec<[Descent; LANE]>,
}

/// The result of applying steps.
enum Applied {
    /// The result of the write, and keys of leaves that have few records left.
    Done(Written, Vec<Vec<u8>>),
    /// No step was applied. These steps need the rests of their keys.
    NeedRests(Vec<usize>),
}

impl Writer {
    /// Makes all changes of a batch or none; as durable when it returns as its options require.
    ///
    /// # Errors
    /// As a write of each.
    pub(crate) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.check_writable()?;
        self.check_sequence(options.sequence)?;
        let mut steps = self.steps(batch, options)?;
        let mut search = PageSearch::new(self);
        let applied = self.apply_at_last(&mut steps, options, &mut search);
        search.pay();
        let written = applied?;
        let ticket = self.wait_if_asked(written.ticket, options)?;
        Ok(Written { ticket, ..written })
    }

    /// Tries until there is room for all changes.
    fn apply_at_last<'s>(
        &'s self,
        steps: &mut [Step<'_, 's>],
        options: &WriteOptions,
        search: &mut PageSearch<'_>,
    ) -> Result<Written> {
        let large = steps.iter().filter(|step| step.header.large);
        let demands = large.map(|step| Demand::of(Kind::Put, self.has(step.key)));
        let demand = demands.max().map(|demand| demand.or_reserve(options.use_reserve));
        let (written, sparse) = loop {
            match self.try_steps(steps, (options, demand), search) {
                Ok(done) => break done,
                // Values that are written stay for the next try, unless no page is found besides theirs.
                Err(refused) => search.run(refused, &mut || {
                    let is_written = |step: &mut Step<'_, '_>| step.overflow.take().is_some();
                    steps.iter_mut().map(is_written).fold(false, |any, it| any | it)
                })?,
            }
        };
        self.counters.add(Count::Batches, 1);
        sparse.iter().for_each(|key| self.merge_after(key));
        Ok(written)
    }

    /// Makes all changes, if there is room for them: returns the result of the write, and keys of leaves that have
    /// few records left. The demand is that of the large values; none: there are none.
    fn try_steps<'s>(
        &'s self,
        steps: &mut [Step<'_, 's>],
        (options, demand): (&WriteOptions, Option<Demand>),
        search: &mut PageSearch<'_>,
    ) -> Result<(Written, Vec<Vec<u8>>)> {
        if let Some(demand) = demand {
            self.write_values(steps, demand, search)?;
        }
        loop {
            match self.apply_steps(steps, options, search)? {
                Applied::Done(written, sparse) => return Ok((written, sparse)),
                Applied::NeedRests(needing) => {
                    self.write_rests(steps, &needing, (options.use_reserve, search))?;
                }
            }
        }
    }

    /// The last change of each key, in the order of keys.
    fn steps<'b>(&self, batch: &'b Batch, options: &WriteOptions) -> Result<Vec<Step<'b, '_>>> {
        let sequence = options.sequence;
        for change in batch.changes() {
            self.check_key(change.key())?;
            if let Some(value) = change.value() {
                self.check_value(value.len())?;
            }
        }
        let mut changes: Vec<ChangeRef<'_>> = batch.changes().collect();
        // The stable sort leaves the changes of one key in their order.
        changes.sort_by_key(|change| change.key());
        let last = changes.chunk_by(|a, b| a.key() == b.key()).filter_map(<[_]>::last);
        let step = |change: &ChangeRef<'b>| {
            let mut header = Header { sequence, batched: true, ..Header::put(0) };
            let value: &[u8] = match *change {
                ChangeRef::Put { value, expires_at, .. } => {
                    header.expires_at = expires_at;
                    header.large = value.len() > self.inline_max();
                    value
                }
                ChangeRef::Delete { .. } => {
                    header.kind = Kind::Delete;
                    &[]
                }
            };
            Step { key: change.key(), value, header, overflow: None, known: None, rest: None }
        };
        Ok(last.map(step).collect())
    }

    /// Writes the large values, unless they are written already: all of them or none, so that a batch for which there
    /// is no space costs nothing; durable when it returns.
    fn write_values<'s>(
        &'s self,
        steps: &mut [Step<'_, 's>],
        demand: Demand,
        search: &mut PageSearch<'_>,
    ) -> Result<()> {
        let is_missing = |step: &&mut Step<'_, '_>| step.header.large && step.overflow.is_none();
        let missing: Vec<_> = steps.iter_mut().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let values: Vec<&[u8]> = missing.iter().map(|step| step.value).collect();
        let written = self.write_overflow(&values, search.ask_for_pages(demand))?;
        for (step, overflow) in missing.into_iter().zip(written) {
            step.overflow = Some(overflow);
        }
        Ok(())
    }

    /// Writes the rests of the keys of these steps; durable when it returns.
    fn write_rests<'s>(
        &'s self,
        steps: &mut [Step<'_, 's>],
        needing: &[usize],
        (use_reserve, search): (bool, &mut PageSearch<'_>),
    ) -> Result<()> {
        for at in needing {
            let step = &mut steps[*at];
            // The demand is that of a single write.
            let demand = Demand::of(step.header.kind, true).or_reserve(use_reserve);
            let reserve = search.ask_for_pages(demand);
            step.rest = Some(self.write_rest(step.key, reserve)?);
        }
        self.fence()
    }

    /// Gives each step with a long key the field that its leaf has for it; returns the steps that need a rest.
    fn know_fields(&self, shares: &[Share<'_>], steps: &mut [Step<'_, '_>]) -> Vec<usize> {
        let mut needing = Vec::new();
        for (at, standing) in shares.iter().flat_map(|share| &share.steps) {
            let step = &mut steps[*at];
            if self.is_long(step.key) {
                let old = standing.old.as_ref().filter(|_| !standing.is_hurt);
                step.known = old.map(|old| old.key().into());
                needing.extend(step.field().is_none().then_some(*at));
            }
        }
        needing
    }

    /// Does all steps or none.
    fn apply_steps(
        &self,
        steps: &mut [Step<'_, '_>],
        options: &WriteOptions,
        search: &mut PageSearch<'_>,
    ) -> Result<Applied> {
        let guard = epoch::pin();
        let shares = self.shares(&guard, steps)?;
        let needing = self.know_fields(&shares, steps);
        if !needing.is_empty() {
            return Ok(Applied::NeedRests(needing));
        }
        if shares.iter().all(Share::is_idle) {
            let base = || self.version_base.load(Ordering::Acquire);
            let sequence = options.sequence.unwrap_or_else(base);
            // The state on which this rests may not be durable.
            let written = Written { sequence, ticket: self.visible_ticket(), replaced: false };
            return Ok(Applied::Done(written, Vec::new()));
        }
        let full = self.full_shares(&shares, steps, options.use_reserve);
        let (written, sparse) =
            self.apply_shares(&guard, (shares, steps), (options, full), search)?;
        Ok(Applied::Done(written, sparse))
    }

    /// Locks all leaves of a batch, and looks up its keys.
    fn shares<'g>(&'g self, guard: &'g Guard, steps: &[Step<'_, '_>]) -> Result<Vec<Share<'g>>> {
        let mut shares = Vec::with_capacity(steps.len().min(LANE));
        let mut ways = LaneAhead::default();
        let mut next = 0;
        while next < steps.len() {
            let way = self.way_ahead(&mut ways, steps, next);
            let locked = self.lock_to_write_by(way, steps[next].key)?;
            let mut mine = SmallVec::new();
            loop {
                let key = steps[next].key;
                let standing = self.look_to_write(guard, locked.page, locked.leaf, key)?;
                // A relaxed write is in no ticket of a reader.
                let is_durable = self.unproven(locked.page).is_none();
                if !steps[next].is_idle(&standing, is_durable) {
                    mine.push((next, standing));
                }
                next += 1;
                let Some(step) = steps.get(next) else { break };
                let way = self.way_ahead(&mut ways, steps, next);
                if !self.serves(&locked, way, step.key) {
                    break;
                }
            }
            // A leaf without changes stays locked too, so that everything happens at one moment.
            shares.push(Share::new(locked, mine));
        }
        Ok(shares)
    }

    /// The descent to the leaf of a step. Descends for the steps behind it too, a lane at a time, and prefetches
    /// the lines that a look at their leaves reads.
    fn way_ahead(&self, ways: &mut LaneAhead, steps: &[Step<'_, '_>], at: usize) -> Descent {
        if at >= ways.from + ways.descents.len() {
            let lane = &steps[at..steps.len().min(at + LANE)];
            ways.from = at;
            ways.descents.clear();
            ways.descents.extend(lane.iter().map(|step| self.ask_for(step.key)));
            for (step, way) in lane.iter().zip(&ways.descents) {
                // A large value is not in the page.
                let value_len = if step.header.large { 0 } else { step.value.len() };
                let len = HEADER + step.key.len() + value_len + multi_leaf_commit::LEN;
                let leaf = self.leaves.get(way.leaf as usize);
                self.prefetch_leaf((way.leaf, leaf), (step.key, tag_of(step.key)), len);
            }
        }
        ways.descents[at - ways.from]
    }
}
