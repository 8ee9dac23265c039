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
use crate::tree::image::{Image, Item, Source, live_len};
use crate::tree::lock::Locked;
use crate::tree::look::Standing;
use crate::tree::multi_leaf_commit::{self, NewPart, Places};
use crate::volume::counters::Count;
use crate::volume::durable::Level;
use crate::volume::keys::Rest;
use crate::volume::overflow::Overflow;
use crate::volume::pages::Demand;
use crate::volume::root::STEP;
use crate::write::Writer;
use crate::write::page_search::PageSearch;
use coreplane_engine::{Batch, ChangeRef, Error, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{epoch, mutant};
use coreplane_record::{HEADER, Header, Kind, View};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

mod successors;

/// Steps whose leaves are prefetched before the first of them is locked.
const LANE: usize = 16;

/// The last change of a key.
struct Step<'b> {
    key: &'b [u8],
    value: &'b [u8],
    header: Header,
    overflow: Option<Overflow<'b>>,
    /// The field of a long key that its leaf knows.
    known: Option<Box<[u8]>>,
    /// The rest of a long key that its leaf does not know.
    rest: Option<Rest<'b>>,
}

impl Step<'_> {
    fn item(&self, version: u64) -> Item<'_> {
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

/// The records and keys that are not in the rewritten leaves.
#[derive(Default)]
struct Gone<'g> {
    expired: Vec<View<'g>>,
    /// Records whose keys are no longer known.
    lost: Vec<View<'g>>,
    /// The number of places without a record.
    missing: i64,
    /// Fields of keys of which no record is left; of short keys too.
    dropped: Vec<&'g [u8]>,
    /// Steps whose tombstones are forgotten at once, in their order.
    unwritten: Vec<usize>,
}

/// The part of a batch in one leaf.
struct Share<'s> {
    locked: Locked<'s>,
    /// The steps that write, by their numbers, each with the state of its key.
    steps: SmallVec<[(usize, Standing<'s>); 1]>,
    /// The successors of this leaf, if it has no room.
    successors: Option<Vec<Image<'s>>>,
    /// The places of the records; none if the leaf has successors.
    places: Places,
}

impl Share<'_> {
    fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }
}

impl Writer {
    /// Makes all changes of a batch or none; as durable when it returns as its options require.
    ///
    /// # Errors
    /// As a write of each.
    pub(crate) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.check_writable()?;
        self.check_sequence(options.sequence)?;
        let mut search = PageSearch::new(self);
        let written = self.apply_changes(batch, (options, None), &mut search);
        search.pay();
        let written = written?;
        let ticket = self.wait_if_asked(written.ticket, options)?;
        Ok(Written { ticket, ..written })
    }

    /// The same, for a batch of which only the changes are still to be checked. The large value of a single change
    /// may be `ready`. Does not wait until the batch is durable, and does not pay for its pages.
    ///
    /// # Errors
    /// As a write of each.
    pub(super) fn apply_changes<'b>(
        &'b self,
        batch: &'b Batch,
        (options, ready): (&WriteOptions, Option<Overflow<'b>>),
        search: &mut PageSearch<'_>,
    ) -> Result<Written> {
        let mut steps = self.steps(batch, options)?;
        if let (Some(ready), [step]) = (ready, &mut steps[..]) {
            step.overflow = Some(ready);
        }
        let (written, sparse) = loop {
            match self.try_steps(&mut steps, options, search) {
                Ok(done) => break done,
                // Values that are written stay for the next try, unless no page is found besides theirs.
                Err(refused) => search.run(refused, true, &mut || {
                    let is_written = |step: &mut Step<'_>| step.overflow.take().is_some();
                    steps.iter_mut().map(is_written).fold(false, |any, it| any | it)
                })?,
            }
        };
        self.counters.add(Count::Batches, 1);
        sparse.iter().for_each(|key| self.merge_after(key));
        Ok(written)
    }

    /// Makes all changes, if there is room for them: returns the result of the write, and keys of leaves that have
    /// few records left.
    fn try_steps<'b>(
        &'b self,
        steps: &mut [Step<'b>],
        options: &WriteOptions,
        search: &mut PageSearch<'_>,
    ) -> Result<(Written, Vec<Vec<u8>>)> {
        self.write_values(steps, options, search)?;
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
    fn steps<'b>(&self, batch: &'b Batch, options: &WriteOptions) -> Result<Vec<Step<'b>>> {
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

    /// Writes the large values that are not written yet.
    fn write_values<'b>(
        &'b self,
        steps: &mut [Step<'b>],
        options: &WriteOptions,
        search: &mut PageSearch<'_>,
    ) -> Result<()> {
        for step in steps.iter_mut().filter(|step| step.header.large && step.overflow.is_none()) {
            let demand = Demand::of(Kind::Put, self.has(step.key));
            let reserve = search.ask_for_pages(demand.or_reserve(options.use_reserve));
            step.overflow = Some(self.write_overflow(step.value, reserve)?);
        }
        Ok(())
    }

    /// Writes the rests of the keys of these steps; durable when it returns.
    fn write_rests<'b>(
        &'b self,
        steps: &mut [Step<'b>],
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
    fn know_fields(&self, shares: &[Share<'_>], steps: &mut [Step<'_>]) -> Vec<usize> {
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
        steps: &mut [Step<'_>],
        options: &WriteOptions,
        search: &mut PageSearch<'_>,
    ) -> Result<Applied> {
        let guard = epoch::pin();
        let mut shares = self.shares(&guard, steps)?;
        let needing = self.know_fields(&shares, steps);
        if !needing.is_empty() {
            return Ok(Applied::NeedRests(needing));
        }
        let sequence = options.sequence;
        let mut written = Written {
            sequence: sequence.unwrap_or_else(|| self.version_base.load(Ordering::Acquire)),
            ticket: Ticket::DURABLE,
            replaced: false,
        };
        if shares.iter().all(Share::is_idle) {
            // The state on which this rests may not be durable.
            written.ticket = self.visible_ticket();
            return Ok(Applied::Done(written, Vec::new()));
        }
        let version = self.batch_version(&shares, sequence)?;
        written.sequence = sequence.unwrap_or(version);
        let full = self.full_shares(&shares, steps, options.use_reserve);
        let gone = self.write_successors(&guard, &mut shares, steps, (version, &full)).map_err(
            |error| {
                // The search must know which leaves lack room.
                if matches!(error, Error::NoSpace { .. }) {
                    search.want(full.into_iter().map(|(_, want)| want).collect());
                }
                error
            },
        )?;
        self.write_shares(&mut shares, steps, version)?;
        let generation = self.cover();
        let done = shares.iter().flat_map(|share| &share.steps);
        let done: Vec<(usize, Standing<'_>)> = done.copied().collect();
        written.replaced = done.iter().any(|(_, standing)| standing.live);
        let len = self.count_steps(steps, &done);
        self.count_out(&gone.expired, &gone.lost);
        self.counters.add(Count::Records, -gone.missing);
        let (dead, sparse) = self.publish_shares(shares, steps, (generation, self.level(options)));
        // From here on the batch counts, even if pages that it frees are not given back: the next recovery finds
        // those.
        if !dead.is_empty() {
            search.owe();
        }
        let mut retired = self.retire_all(dead);
        for (at, standing) in done {
            if let Some(overflow) = steps[at].overflow.take() {
                overflow.own();
            }
            // A step that is in no successor needs no rest; and if another writer has put the key since the rest
            // was written, the record names the rest of that writer.
            let is_written = gone.unwritten.binary_search(&at).is_err();
            let is_named = steps[at].known.is_none() && is_written;
            if let Some(rest) = steps[at].rest.take().filter(|_| is_named) {
                rest.own();
            }
            if let Some(old) = standing.old.filter(|old| old.header.large) {
                retired = retired.and(self.retire_overflow(&guard, &old));
            }
        }
        written.ticket = self.written_ticket(generation, len, options);
        retired = retired.and(self.retire_values(&guard, &gone.expired));
        let _retired = retired.and(self.retire_rests(&guard, &gone.dropped)).is_ok();
        Ok(Applied::Done(written, sparse))
    }

    /// Counts the steps that were written, while their leaves are locked: a thread that has shut all leaves finds
    /// the counters exact. Returns the bytes of all records.
    fn count_steps(&self, steps: &[Step<'_>], done: &[(usize, Standing<'_>)]) -> usize {
        let mut len = 0;
        for (at, standing) in done {
            let item = steps[*at].item(0);
            len += item.len();
            let old = standing.old.as_ref().map(|old| self.counted(old));
            self.count_write(&item, old.unwrap_or_default());
        }
        len
    }

    /// Locks all leaves of a batch, and looks up its keys.
    fn shares<'g>(&'g self, guard: &'g Guard, steps: &[Step<'_>]) -> Result<Vec<Share<'g>>> {
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
            shares.push(Share { locked, steps: mine, successors: None, places: Places::new() });
        }
        Ok(shares)
    }

    /// The descent to the leaf of a step. Descends for the steps behind it too, a lane at a time, and prefetches
    /// the lines that a look at their leaves reads.
    fn way_ahead(&self, ways: &mut LaneAhead, steps: &[Step<'_>], at: usize) -> Descent {
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

    /// A version above all that the leaves have given out, and at least a given sequence.
    fn batch_version(&self, shares: &[Share<'_>], sequence: Option<u64>) -> Result<u64> {
        let base = self.version_base.load(Ordering::Acquire);
        let given = shares.iter().map(|share| share.locked.held.given()).max().unwrap_or(0);
        let floor = given.max(base).max(sequence.map_or(0, |given| given.saturating_sub(1)));
        for share in shares {
            share.locked.held.give(floor);
        }
        let version = floor + 1;
        if version >= base + STEP / 2 {
            self.raise_version_base(version)?;
        }
        Ok(version)
    }

    /// Appends its part to each leaf.
    fn write_shares(
        &self,
        shares: &mut [Share<'_>],
        steps: &[Step<'_>],
        version: u64,
    ) -> Result<()> {
        let busy = || shares.iter().filter(|share| !share.is_idle());
        let part = |share: &Share<'_>| {
            let is_superseded = share.successors.is_some();
            let items = share.steps.iter().filter(|_| !is_superseded);
            let items = items.map(|(at, _)| steps[*at].item(version)).collect();
            NewPart { life: share.locked.life(), items, is_superseded }
        };
        let parts: Vec<NewPart<'_>> = busy().map(part).collect();
        let places = self.append_commit(&parts, version)?;
        drop(parts);
        let busy = shares.iter_mut().filter(|share| !share.is_idle());
        for (share, places) in busy.zip(places) {
            share.places = places;
        }
        Ok(())
    }

    /// Lets readers find all of a batch; returns the pages of the leaves that were rewritten, and keys of those
    /// that have few records left.
    fn publish_shares(
        &self,
        mut shares: Vec<Share<'_>>,
        steps: &[Step<'_>],
        (generation, level): (u64, Level),
    ) -> (Vec<u32>, Vec<Vec<u8>>) {
        let (mut dead, mut sparse) = (Vec::new(), Vec::new());
        // Locked until all others are published: no other write comes in between.
        let idle: Vec<Share<'_>> = shares.extract_if(.., |share| share.is_idle()).collect();
        {
            let _publishing = (!mutant!("bptree.batch.isolation")).then(|| self.isolation.begin());
            for share in &mut shares {
                share.locked.held.begin();
            }
            for share in &mut shares {
                let key = steps[share.steps[0].0].key;
                let (page, before) = (share.locked.page, share.locked.leaf.live());
                if let Some(images) = share.successors.take() {
                    let successors = self.begin_all(images);
                    for (_, successor) in &successors {
                        // New records in them count when the superseded mark does.
                        self.note(*successor, 0, generation, level);
                    }
                    self.lead_to_successors((page, key), &successors);
                    dead.push(page);
                    continue;
                }
                for ((at, standing), (offset, len)) in share.steps.iter().zip(&share.places) {
                    self.note(page, *offset, generation, level);
                    let step = &steps[*at];
                    let is_record = step.header.kind == Kind::Put;
                    let named = (tag_of(step.key), *offset, if is_record { *len } else { 0 });
                    let old_len = standing.old.as_ref().map_or(0, live_len);
                    // There is a vacancy: it was counted.
                    let place = standing.place.or_else(|| share.locked.leaf.vacancy());
                    share.locked.held.set(place.unwrap_or_default(), named, old_len);
                    if step.header.large {
                        share.locked.held.note_large();
                    }
                    if self.is_long(step.key) {
                        share.locked.held.note_long();
                    }
                }
                if self.leaves_little(before, share.locked.leaf.live()) {
                    sparse.push(key.to_vec());
                }
            }
            for Share { locked, places, .. } in shares {
                if places.is_empty() { locked.held.free() } else { drop(locked) }
            }
        }
        drop(idle);
        (dead, sparse)
    }
}
