//! Merges neighbouring leaves: two with few records left after deletes, and more when pages are short
//! ([`compact`](crate::write::compact)).
//!
//! No merge is necessary: it saves pages and steps. So it is never a reason to refuse a write, and comes after it.

use crate::leaf::{Directory, Head, PLACES};
use crate::tree::fill_factor::FillFactor;
use crate::tree::image::give_items;
use crate::tree::lock::Locked;
use crate::tree::rewrite::Contents;
use crate::volume::counters::Count;
use crate::write::Writer;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{epoch, mutant};
use std::sync::atomic::Ordering;

impl Writer {
    /// Merges the leaf that serves `key` with a neighbour, after a write. The write counts, even if this fails:
    /// where the other leaf is damaged both stay as they are, and operations on it, the scrub and `verify` report
    /// it. If the medium fails the next write reports that.
    pub(crate) fn merge_after(&self, key: &[u8]) {
        let _merged = self.merge_at(key, &Directory::records).is_ok();
    }

    /// Merges the leaf in a page with a neighbour, if it has few records, although no delete has just made it small:
    /// tombstones may have kept the two apart, and be held no longer. Leaves that are not loaded stay so.
    pub(crate) fn merge_page(&self, page: u32) {
        let is_small =
            |leaf: &&Directory| !leaf.is_unloaded() && leaf.live() < self.space.page_size() / 4;
        if self.leaves.made(page as usize).filter(is_small).is_none() {
            return;
        }
        let held = self.held_tombstones.load(Ordering::Acquire);
        let records = |leaf: &Directory| match leaf.is_unloaded() {
            true => PLACES,
            // Some of its tombstones may be held: they take places, too.
            false if leaf.given() > held => leaf.used().count(),
            false => leaf.records(),
        };
        let guard = epoch::pin();
        if let Ok((least, _)) = self.bounds(&guard, page) {
            let _merged = self.merge_at(&least, &records).is_ok();
        }
    }

    /// Merges the leaf that serves `key` with a neighbour, if they are small enough, by the number of records that
    /// each may have. Not urgent: where there is no page for it, the leaves stay.
    ///
    /// # Errors
    /// As [`Writer::merge_run`].
    fn merge_at(&self, key: &[u8], records: &dyn Fn(&Directory) -> usize) -> Result<bool> {
        let guard = epoch::pin();
        for (left, separator, right) in self.inner.pairs_of(key) {
            let pair = [left, right];
            if self.may_be_one(&pair, FillFactor::HALF, records)
                && self.merge_run(&guard, (&pair, &[separator]), (FillFactor::HALF, 1, 0))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if one leaf can hold the records of these, as far as their directories tell. Mostly it cannot, and then
    /// the leaves need not be locked and read after each delete.
    fn may_be_one(
        &self,
        pages: &[u32],
        fill: FillFactor,
        records: &dyn Fn(&Directory) -> usize,
    ) -> bool {
        let leaves = || pages.iter().map(|page| self.leaves.get(*page as usize));
        let live: usize = leaves().map(|leaf| leaf.live() as usize).sum();
        let records: usize = leaves().map(records).sum();
        live <= fill.of(self.space.page_size() as usize) && records <= fill.records
    }

    /// Rewrites neighbouring leaves, now separated by `separators`, as at most `count_max`, each filled at most to
    /// `fill`, and leaves `reserve` pages; false if they stay as they are. The guard must be older than the
    /// caller's look at the tree: so no page is reused for another leaf, which would be locked out of order.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace) if there is no page for it now; if the medium fails.
    pub(crate) fn merge_run(
        &self,
        guard: &Guard,
        (pages, separators): (&[u32], &[Box<[u8]>]),
        (fill, count_max, reserve): (FillFactor, usize, u32),
    ) -> Result<bool> {
        let Some(run) = self.lock_run(pages, separators)? else { return Ok(false) };
        let ([first, ..], [within, ..]) = (pages, separators) else { return Ok(false) };
        let bytes_max = fill.of(self.space.page_size() as usize) * count_max;
        let Some(joint) = self.joint_contents(guard, &run, bytes_max)? else { return Ok(false) };
        let Contents { kept, expired, mut dropped, .. } = joint;
        let heads =
            run.iter().map(|it| self.head_of(guard, it.page)).collect::<Result<Vec<_>>>()?;
        let (Some(lower), Some(upper)) = (heads.first(), heads.last()) else { return Ok(false) };
        let version = run.iter().map(|it| it.held.given()).max().unwrap_or(0);
        let head = Head {
            version,
            predecessor: Some(run[0].life()),
            bound: upper.bound.clone(),
            ..lower.clone()
        };
        // Held tombstones take room too, and do not count as live.
        let lens = self.stretches(&head, &kept, fill);
        if lens.len() > count_max {
            return Ok(false);
        }
        let (edges, successors) = self.successors_of(guard, &head, (&kept, &lens), reserve)?;
        let images = self.write_images(head, (&kept, &lens), (&successors, edges))?;
        give_items(kept);
        if !mutant!("bptree.merge.fence") {
            self.fence()?;
        }
        self.mark_superseded(&run.iter().collect::<Vec<_>>(), version)?;
        self.cover();
        let successors = self.begin_all(images);
        self.count_out(&expired, &[]);
        run.into_iter().for_each(|it| it.held.free());
        separators.iter().for_each(|separator| self.inner.merge(separator, *first));
        // By what the tree has, not by a key in a page.
        self.lead_to_successors((*first, within), &successors);
        let is_fewer = successors.len() < pages.len();
        self.counters.add(if is_fewer { Count::Merges } else { Count::Rewrites }, 1);
        // The bounds between them no longer exist.
        dropped.extend(heads[1..].iter().map(|head| &*head.least));
        let retired =
            self.retire_all(pages.iter().copied()).and(self.retire_values(guard, &expired));
        retired.and(self.retire_rests(guard, &dropped)).map(|()| true)
    }

    /// Locks neighbouring leaves, from the left one on, in every thread, so that no two threads wait for each
    /// other. None if they are no longer neighbours, or one is dead.
    fn lock_run(&self, pages: &[u32], separators: &[Box<[u8]>]) -> Result<Option<Vec<Locked<'_>>>> {
        let mut run = Vec::with_capacity(pages.len());
        for page in pages {
            let Some(locked) = self.lock_page(*page)? else { return Ok(None) };
            run.push(locked);
        }
        // All are locked, so that their place in the tree cannot change.
        let is_run = separators.iter().zip(pages.windows(2)).all(|(separator, pair)| {
            self.inner.descend(separator).leaf == pair[1]
                && self.inner.descend_before(Some(separator)).leaf == pair[0]
        });
        Ok(is_run.then_some(run))
    }

    /// The joint content of locked leaves; none if that is too much, or there is damage.
    fn joint_contents<'g>(
        &'g self,
        guard: &'g Guard,
        run: &[Locked<'_>],
        bytes_max: usize,
    ) -> Result<Option<Contents<'g>>> {
        let live: usize = run.iter().map(|it| it.leaf.live() as usize).sum();
        let is_in_doubt = run.iter().any(|it| it.leaf.doubt() > 0);
        if is_in_doubt || live > bytes_max {
            return Ok(None);
        }
        #[cfg(test)]
        self.merge_tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        run.iter().for_each(|it| self.ask_for_records(it));
        let mut joint = Contents::new();
        for locked in run {
            let contents = self.records_of(guard, locked)?;
            if contents.has_lost() || !contents.cuts.are_free() {
                return Ok(None);
            }
            joint.kept.extend(contents.kept);
            joint.expired.extend(contents.expired);
            joint.dropped.extend(contents.dropped);
        }
        if joint.kept.iter().any(|item| self.is_long(item.key)) {
            // A damaged key sorts before all keys with the same prefix, those of other leaves too.
            joint.cuts = self.sort_items(guard, &mut joint.kept)?;
        }
        Ok(joint.cuts.are_free().then_some(joint))
    }

    /// Locks a leaf to write to it; none if it is dead or shut.
    fn lock_page(&self, page: u32) -> Result<Option<Locked<'_>>> {
        let leaf = self.leaves.get(page as usize);
        self.load_leaf(page)?;
        let held = leaf.lock().filter(|held| !held.is_shut());
        Ok(held.map(|held| Locked { page, leaf, held }))
    }
}
