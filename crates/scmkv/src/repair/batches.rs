//! Batches that have lost their commit record.
//!
//! A commit record follows the members of its batch, in their page or, where the batch went on in
//! another one, in a later page of the same log. So members without one are of a batch that a crash
//! cut short, which nobody was promised, or the record is lost:
//!
//! ```text
//!   page     … │ a │ b │░░ gap ░░│ …           a and b, unless the gap was one more member
//!   page     … │ a │ b ┃ end
//!   next     ░░ gap ░░│ …                      a and b
//!   page     … │ a │ b ┃ end                   a and b, if a slot of the index points at one
//! ```
//!
//! Something sound lies behind such a gap, and what is behind a batch in its log was written when
//! the batch was done.

use super::claims::Witness;
use super::survey::Surveyed;
use super::verdict::Plan;
use crate::batch::Run;
use crate::store::Store;
use crate::unindexed::{count_members, holds};
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use coreplane_record::{Kind, View};
use std::collections::BTreeMap;

/// True if a commit record with `run` names what is in `orphan`.
fn covers(run: &Run, orphan: &Run) -> bool {
    holds(run, orphan.generation, orphan.start)
}

impl Surveyed {
    /// True if the first thing in the page is lost, or members of a batch up to something lost.
    fn begins_lost(&self, start: u64) -> bool {
        let first = self.gaps.first().map(|gap| gap.start);
        let run = self.orphans.first().map(|run| run.start);
        self.is_gone || first == Some(start) || run == Some(start)
    }
}

impl Store {
    /// The runs of members whose commit record is lost; `named` are those that a damaged commit
    /// record names.
    pub(super) fn orphans(
        &self,
        surveyed: &[Surveyed],
        witness: &Witness,
        named: Vec<Run>,
    ) -> Result<Vec<Run>> {
        let mut orphans = named;
        orphans.extend(surveyed.iter().flat_map(|page| &page.orphans));
        let mut loose: Vec<Run> = Vec::new();
        let mut by_log: BTreeMap<u16, BTreeMap<u64, &Surveyed>> = BTreeMap::new();
        for page in surveyed {
            let element = &page.log.element;
            by_log.entry(element.log).or_default().insert(element.birth, page);
        }
        for pages in by_log.values() {
            for page in pages.values() {
                let Some(run) = page.trailing else { continue };
                let behind = pages.range(page.log.element.birth + 1..);
                let is_whole = |next: &&Surveyed| {
                    next.trailing.is_some_and(|run| run.start == self.space.start_of(next.log.page))
                };
                let next = behind.map(|(_, next)| *next).find(|next| !is_whole(next));
                let is_lost =
                    |next: &Surveyed| next.begins_lost(self.space.start_of(next.log.page));
                // Where a crash has ended the page it has ended the batch.
                let is_full = page.log.element.length.is_some() && !page.log.element.is_cut;
                if is_full && next.is_some_and(is_lost) { &mut orphans } else { &mut loose }
                    .push(run);
            }
        }
        self.drop_committed(surveyed, [&mut orphans, &mut loose])?;
        if !loose.is_empty() {
            loose.sort_by_key(|run| run.start);
            self.each_slot(witness, &mut |claim, _| {
                let offset = claim.slot.offset();
                let at = loose.partition_point(|run| run.start <= offset);
                if let Some(run) = at.checked_sub(1).map(|at| loose[at])
                    && holds(&run, run.generation, offset)
                    && !orphans.contains(&run)
                    && self.is_met(&claim)
                {
                    orphans.push(run);
                }
            })?;
        }
        Ok(orphans)
    }

    /// Leaves those runs that no sound commit record names.
    fn drop_committed(&self, surveyed: &[Surveyed], runs: [&mut Vec<Run>; 2]) -> Result<()> {
        if runs.iter().all(|runs| runs.is_empty()) {
            return Ok(());
        }
        let [orphans, loose] = runs;
        self.all_records(surveyed, &mut |_, view: &View<'_>| {
            if view.header.kind == Kind::Commit {
                for run in Run::decode_all(view.value()) {
                    orphans.retain(|orphan| !covers(&run, orphan));
                    loose.retain(|orphan| !covers(&run, orphan));
                }
            }
        })
    }

    /// Of these members of batches, by generation and offset, those that count: a sound commit
    /// record names them, or they are among `orphans`, which get one.
    pub(super) fn committed<T>(
        &self,
        surveyed: &[Surveyed],
        orphans: &[Run],
        mut members: Vec<(u32, u64, T)>,
    ) -> Result<Vec<T>> {
        let mut counted = Vec::new();
        orphans.iter().for_each(|run| count_members(&mut members, run, &mut counted));
        if !members.is_empty() {
            self.all_records(surveyed, &mut |_, view: &View<'_>| {
                if view.header.kind == Kind::Commit {
                    let runs = Run::decode_all(view.value());
                    runs.for_each(|run| count_members(&mut members, &run, &mut counted));
                }
            })?;
        }
        Ok(counted)
    }

    /// The parts of orphaned runs that are sound and outside the gaps.
    pub(super) fn sound_runs(&self, plan: &Plan, orphans: Vec<Run>) -> Vec<Run> {
        let guard = epoch::pin();
        let mut sound: Vec<Run> = Vec::new();
        for run in orphans {
            let page = self.space.page_of(run.start);
            let is_there = plan.surveyed.iter().any(|surveyed| {
                surveyed.log.page == page && surveyed.log.element.generation == run.generation
            });
            // A run that damaged bytes name may be anything.
            let (mut at, end) = (run.start, run.start.saturating_add(u64::from(run.len)));
            while is_there && at < end {
                if let Some(gap_end) = plan.end_of_gap(at) {
                    at = gap_end;
                    continue;
                }
                let Ok(view) = self.sound(&guard, run.generation, at) else { break };
                let len = view.len();
                match sound.last_mut() {
                    Some(last)
                        if last.start + u64::from(last.len) == at
                            && last.generation == run.generation =>
                    {
                        last.len += len;
                    }
                    _ => sound.push(Run { start: at, len, generation: run.generation }),
                }
                at += u64::from(len);
            }
        }
        sound
    }
}
