//! The leaves that have no room for their shares of a batch, and the content of their successors.

use super::Step;
use super::shares::{Gone, Share};
use crate::leaf::{Head, PLACES};
use crate::tree::SUPERSEDED_MARK_LEN;
use crate::tree::cuts::Cuts;
use crate::tree::fill_factor::FillFactor;
use crate::tree::image::{Item, give_items};
use crate::tree::look::Standing;
use crate::tree::multi_leaf_commit;
use crate::tree::rewrite::Contents;
use crate::volume::counters::Count;
use crate::volume::keys::Edge;
use crate::volume::pages::{Demand, RESERVE};
use crate::write::Writer;
use crate::write::page_search::Want;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};

/// A leaf that is rewritten with its share.
struct FullLeaf<'i> {
    /// The number of the share.
    number: usize,
    page: u32,
    /// Its share has only deletes.
    shrinks: bool,
    head: Head,
    /// The records of its successors.
    items: Vec<Item<'i>>,
    cuts: Cuts,
}

/// The number of records in each successor of a leaf, and the successors' edges.
type Plan<'s> = (Vec<usize>, Vec<Edge<'s>>);

impl Writer {
    /// The shares whose leaves are to be rewritten with them, by their numbers, and the room that they want. The
    /// reason is that there is none, or that the field of a damaged key is to go with its leaf.
    pub(super) fn full_shares(
        &self,
        shares: &[Share<'_>],
        steps: &[Step<'_, '_>],
        use_reserve: bool,
    ) -> Vec<(usize, Want)> {
        let want = |share: &Share<'_>| {
            let lens: usize = share.steps.iter().map(|(at, _)| steps[*at].item(0).len()).sum();
            let len = lens + multi_leaf_commit::LEN;
            let places = share.steps.iter().filter(|(_, it)| it.place.is_none()).count();
            let fits = len <= self.room(&share.locked) && places <= share.locked.leaf.vacancies();
            let is_hurt = share.steps.iter().any(|(_, it)| it.is_hurt);
            if share.is_idle() || fits && !is_hurt {
                return None;
            }
            let demands =
                share.steps.iter().map(|(at, it)| Demand::of(steps[*at].header.kind, it.live));
            let demand = demands.max().unwrap_or_default().or_reserve(use_reserve);
            let key = steps[share.steps[0].0].key.into();
            Some(Want { key, len, places, demand, is_rewritten: false })
        };
        let wants = shares.iter().enumerate();
        wants.filter_map(|(number, share)| Some((number, want(share)?))).collect()
    }

    /// Rewrites the leaves of full shares; durable when it returns. Returns the records that are not in them.
    pub(super) fn write_successors<'g>(
        &'g self,
        guard: &'g Guard,
        shares: &mut [Share<'g>],
        steps: &[Step<'_, '_>],
        (version, full): (u64, &[(usize, Want)]),
    ) -> Result<Gone<'g>> {
        let mut gone = Gone::default();
        let Some(demand) = full.iter().map(|(_, want)| want.demand).max() else { return Ok(gone) };
        let mut leaves = Vec::with_capacity(full.len());
        for (number, _) in full {
            let share = &shares[*number];
            let (mut items, is_lost) =
                self.items_of_successors(guard, share, (steps, version), &mut gone)?;
            let cuts = self.sort_items(guard, &mut items)?;
            let head = Head { is_lost, ..self.head_of(guard, share.locked.page)? };
            leaves.push(FullLeaf {
                number: *number,
                page: share.locked.page,
                shrinks: share.steps.iter().all(|it| steps[it.0].header.kind == Kind::Delete),
                head,
                items,
                cuts,
            });
        }
        let reserve = self.pages.reserve(demand);
        let (plans, pages) = match self.plan_successors(guard, &leaves, (reserve, false)) {
            // Where there is only one page for each, it has to suffice.
            Err(Error::NoSpace { .. }) => self.plan_successors(guard, &leaves, (reserve, true))?,
            planned => planned?,
        };
        let mut rest = &pages[..];
        for (FullLeaf { number, head, items, .. }, (lens, edges)) in leaves.into_iter().zip(plans) {
            let (mine, others) = rest.split_at(lens.len());
            let locked = &shares[number].locked;
            let head =
                Head { predecessor: Some(locked.life()), version: locked.held.given(), ..head };
            self.ask_for_successors(locked, mine);
            let images = self.write_images(head, (&items, &lens), (mine, edges))?;
            give_items(items);
            self.counters.add(if mine.len() > 1 { Count::Splits } else { Count::Rewrites }, 1);
            shares[number].successors = Some(images);
            rest = others;
        }
        if !mutant!("bptree.batch.successors_fence") {
            self.fence()?;
        }
        Ok(gone)
    }

    /// The number of records in each successor of full leaves, their edges, and pages for all of them. Done before
    /// anything is written: an image that no superseded mark makes count must not be left behind. A leaf with
    /// deletes alone has one successor if that leaves some room, and any has one if `is_short` and its records fit:
    /// otherwise deletes and overwrites would use up pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; if a leaf cannot be cut, and if the medium fails.
    fn plan_successors(
        &self,
        guard: &Guard,
        leaves: &[FullLeaf<'_>],
        (reserve, is_short): (u32, bool),
    ) -> Result<(Vec<Plan<'_>>, Vec<u32>)> {
        let fill = if is_short { FillFactor::SCARCE } else { self.fill_factor() };
        let lens = |leaf: &FullLeaf<'_>| {
            let FullLeaf { page, head, items, cuts, shrinks, .. } = leaf;
            let capacity = self.space.page_size() as usize - head.len() - SUPERSEDED_MARK_LEN;
            let len: usize = items.iter().map(Item::len).sum();
            // Otherwise held tombstones could fill it, and then each delete would rewrite it.
            let has_room =
                len <= FillFactor::SCARCE.of(capacity) && items.len() <= FillFactor::SCARCE.records;
            let is_one =
                (is_short || *shrinks && has_room) && len <= capacity && items.len() <= PLACES;
            if is_one {
                return Ok(vec![items.len()]);
            }
            self.cut(*page, (items, *cuts), self.stretches(head, items, fill))
        };
        let lens = leaves.iter().map(lens).collect::<Result<Vec<_>>>()?;
        let are_ones = lens.iter().all(|lens| lens.len() == 1);
        // Deletes leave the last pages to each other, as long as one may suffice.
        let reserve = match (are_ones, is_short) {
            (true, _) => reserve.min(RESERVE) / 2,
            (false, false) => reserve.max(RESERVE),
            (false, true) => reserve,
        };
        let count = lens.iter().map(Vec::len).sum();
        // Pages taken for the bounds of long keys do not come back while this thread has its guard.
        if self.pages.keeps_for_bounds() {
            self.pages.check_free(count, reserve)?;
        }
        let mut plans = Vec::with_capacity(leaves.len());
        for (leaf, lens) in leaves.iter().zip(lens) {
            let edges = self.edges(guard, &leaf.head, (&leaf.items, &lens), reserve)?;
            plans.push((lens, edges));
        }
        Ok((plans, self.pages.take(count, reserve)?))
    }

    /// The records of a leaf's successors, in no order, and whether records of it are lost. Records that are not in
    /// them are noted in `gone`.
    ///
    /// # Errors
    /// As [`Tree::records_of`](crate::tree::Tree::records_of).
    fn items_of_successors<'g, 'b>(
        &'g self,
        guard: &'g Guard,
        share: &Share<'g>,
        (steps, version): (&'b [Step<'b, '_>], u64),
        gone: &mut Gone<'g>,
    ) -> Result<(Vec<Item<'b>>, bool)>
    where
        'g: 'b,
    {
        let is_hurt = share.steps.iter().any(|(_, it)| it.is_hurt);
        self.ask_for_records(&share.locked);
        let contents = self.records_of(guard, &share.locked)?;
        let Contents { kept: mut items, expired, dropped, hurt, lost, .. } = contents;
        // A damaged key does not tell which record this is; its place does.
        let is_written_over = |view: &View<'_>| {
            share.steps.iter().filter_map(|(_, it)| it.old).any(|old| old.offset == view.offset)
        };
        let (mut left, _counted_with_its_step): (Vec<_>, Vec<_>) =
            hurt.into_iter().partition(|view| !is_written_over(view));
        // The keys of the remaining ones are lost.
        let is_told = (lost > 0 || !left.is_empty()) && !mutant!("bptree.batch.hurt");
        let is_lost = share.locked.leaf.doubt() > 0 || is_told;
        gone.lost.append(&mut left);
        gone.missing += lost;
        let is_kept = |field: &[u8]| {
            let is_of =
                |it: &Standing<'_>| it.is_hurt && it.old.is_some_and(|it| it.key() == field);
            if self.is_long(field) {
                if is_hurt && share.steps.iter().any(|(_, it)| is_of(it)) {
                    return false;
                }
                return !share.steps.iter().any(|it| steps[it.0].field() == Some(field));
            }
            share.steps.binary_search_by_key(&field, |it| steps[it.0].key).is_err()
        };
        items.retain(|item| is_kept(item.key));
        // Records that are overwritten are counted with the write.
        gone.expired.extend(expired.into_iter().filter(|view| is_kept(view.key())));
        gone.dropped.extend(dropped.into_iter().filter(|field| is_kept(field)));
        for (at, standing) in &share.steps {
            let item = steps[*at].item(version);
            let header = Header { batched: false, ..item.header };
            let sequence = header.sequence.unwrap_or(version);
            if standing.is_hurt {
                gone.dropped.extend(standing.old.map(|old| old.key()));
            }
            if header.kind == Kind::Put || is_lost || self.holds_tombstone(sequence) {
                items.push(Item { header, ..item });
                continue;
            }
            gone.unwritten.push(*at);
            let old = standing.old.filter(|_| !standing.is_hurt);
            gone.dropped.extend(old.map(|old| old.key()));
        }
        Ok((items, is_lost))
    }
}
