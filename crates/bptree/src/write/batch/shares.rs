//! The shares of a write in its leaves, which are locked: written, made durable and published together.

use super::Step;
use crate::leaf::tag_of;
use crate::tree::image::{Image, live_len};
use crate::tree::lock::Locked;
use crate::tree::look::Standing;
use crate::tree::multi_leaf_commit::{NewPart, Places};
use crate::volume::counters::Count;
use crate::volume::durable::Level;
use crate::volume::root::STEP;
use crate::write::Writer;
use crate::write::page_search::{PageSearch, Want};
use coreplane_engine::{Error, Result, WriteOptions, Written};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// The records and keys that are not in the rewritten leaves.
#[derive(Default)]
pub(super) struct Gone<'g> {
    pub(super) expired: Vec<View<'g>>,
    /// Records whose keys are no longer known.
    pub(super) lost: Vec<View<'g>>,
    /// The number of places without a record.
    pub(super) missing: i64,
    /// Fields of keys of which no record is left; of short keys too.
    pub(super) dropped: Vec<&'g [u8]>,
    /// Steps whose tombstones are forgotten at once, in their order.
    pub(super) unwritten: Vec<usize>,
}

/// The part of a batch in one leaf.
pub(in crate::write) struct Share<'s> {
    pub(super) locked: Locked<'s>,
    /// The steps that write, by their numbers, each with the state of its key.
    pub(super) steps: SmallVec<[(usize, Standing<'s>); 1]>,
    /// The successors of this leaf, if it has no room.
    pub(super) successors: Option<Vec<Image<'s>>>,
    /// The places of the records; none if the leaf has successors.
    places: Places,
}

impl<'s> Share<'s> {
    pub(in crate::write) fn new(
        locked: Locked<'s>,
        steps: SmallVec<[(usize, Standing<'s>); 1]>,
    ) -> Self {
        Self { locked, steps, successors: None, places: Places::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }
}

impl Writer {
    /// Writes all shares or none, those in `full` with their leaves. Returns the result of the write, and keys of
    /// leaves that have few records left.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the search knows then which leaves lack room; and if the medium fails.
    pub(in crate::write) fn apply_shares<'g>(
        &'g self,
        guard: &'g Guard,
        (mut shares, steps): (Vec<Share<'g>>, &mut [Step<'_, '_>]),
        (options, full): (&WriteOptions, Vec<(usize, Want)>),
        search: &mut PageSearch<'_>,
    ) -> Result<(Written, Vec<Vec<u8>>)> {
        let sequence = options.sequence;
        let version = self.batch_version(&shares, sequence)?;
        let gone = self.write_successors(guard, &mut shares, steps, (version, &full)).map_err(
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
        let replaced = done.iter().any(|(_, standing)| standing.live);
        let len = self.count_steps(steps, &done);
        self.count_out(&gone.expired, &gone.lost);
        self.counters.add(Count::Records, -gone.missing);
        let (dead, sparse) = self.publish_shares(shares, steps, (generation, self.level(options)));
        // From here on the write counts, even if pages that it frees are not given back: the next recovery finds
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
                retired = retired.and(self.retire_overflow(guard, &old));
            }
        }
        let ticket = self.written_ticket(generation, len, options);
        retired = retired.and(self.retire_values(guard, &gone.expired));
        let _retired = retired.and(self.retire_rests(guard, &gone.dropped)).is_ok();
        Ok((Written { sequence: sequence.unwrap_or(version), ticket, replaced }, sparse))
    }

    /// Counts the steps that were written, while their leaves are locked: a thread that has shut all leaves finds
    /// the counters exact. Returns the bytes of all records.
    fn count_steps(&self, steps: &[Step<'_, '_>], done: &[(usize, Standing<'_>)]) -> usize {
        let mut len = 0;
        for (at, standing) in done {
            let item = steps[*at].item(0);
            len += item.len();
            let old = standing.old.as_ref().map(|old| self.counted(old));
            self.count_write(&item, old.unwrap_or_default());
        }
        len
    }

    /// A version above all that the leaves have given out, and at least a given sequence. As in
    /// [`draw_version`](Self::draw_version) the base counts only without one: a leaf with a version above the
    /// sequences to come would take no put [ahead](crate::write::ahead) of the look.
    fn batch_version(&self, shares: &[Share<'_>], sequence: Option<u64>) -> Result<u64> {
        let base = self.version_base.load(Ordering::Acquire);
        let given = shares.iter().map(|share| share.locked.held.given()).max().unwrap_or(0);
        let floor = given.max(sequence.map_or(base, |given| given.saturating_sub(1)));
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
        steps: &[Step<'_, '_>],
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
        steps: &[Step<'_, '_>],
        (generation, level): (u64, Level),
    ) -> (Vec<u32>, Vec<Vec<u8>>) {
        let (mut dead, mut sparse) = (Vec::new(), Vec::new());
        // Locked until all others are published: no other write comes in between.
        let idle: Vec<Share<'_>> = shares.extract_if(.., |share| share.is_idle()).collect();
        {
            // One change is seen or not.
            let are_many = steps.len() > 1 && !mutant!("bptree.batch.isolation");
            let _publishing = are_many.then(|| self.isolation.begin());
            for share in &mut shares {
                share.locked.held.begin();
            }
            for share in &mut shares {
                let key = steps[share.steps[0].0].key;
                let (page, before) = (share.locked.page, share.locked.leaf.size());
                if let Some(images) = share.successors.take() {
                    let successors = self.begin_all(images);
                    for (_, successor) in &successors {
                        // New records in them count when the superseded mark does.
                        self.note(*successor, 0, generation, level);
                    }
                    self.count_rewritten(share.locked.leaf, &successors);
                    self.lead_to_successors((page, key), &successors);
                    dead.push(page);
                    if let [(_, only)] = &successors[..]
                        && self.leaves_little(before, self.leaves.get(*only as usize).size())
                    {
                        sparse.push(key.to_vec());
                    }
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
                    self.count_replaced(share.locked.leaf, old_len, named.2);
                    if step.header.large {
                        share.locked.held.note_large();
                    }
                    if self.is_long(step.key) {
                        share.locked.held.note_long();
                    }
                }
                if self.leaves_little(before, share.locked.leaf.size()) {
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
