//! Batches that have lost their commit record.
//!
//! A batch lies in its log without a break, its commit record behind it. So members that no sound
//! commit record names are of a batch that was cut short, which was not acknowledged, or their
//! commit record was in a gap behind them: it was, if a sound record lies behind the gap.

use super::survey::{Piece, Surveyed};
use crate::store::Store;
#[cfg(test)]
use crate::table::counters::comparisons;
use crate::table::run::Run;
use coreplane_record::Kind;
use std::collections::{BTreeMap, HashMap};

impl Store {
    /// The members of completed batches whose commit record is lost.
    pub(super) fn lost_commits(&self, surveyed: &[Surveyed]) -> Vec<Run> {
        let mut named: HashMap<u32, Vec<Run>> = HashMap::new();
        let mut logs: BTreeMap<(u16, u64), &Surveyed> = BTreeMap::new();
        for page in surveyed {
            logs.insert((page.log.element.log, page.log.element.birth), page);
            self.each_piece(page, &mut |piece| {
                if let Piece::Record(view) = piece
                    && view.header.kind == Kind::Commit
                {
                    let runs = Run::decode_all(view.value());
                    runs.for_each(|it| {
                        named.entry(self.space.page_of(it.start)).or_default().push(it)
                    });
                }
            });
        }
        named.values_mut().for_each(|runs| runs.sort_unstable_by_key(place));
        // Members that no commit record names: those before a gap, and those behind it.
        let (mut lost, mut before, mut behind) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        for ((log, _), page) in logs {
            let generation = page.log.element.generation;
            let runs = named.get(&page.log.page).map_or(&[][..], |runs| runs);
            if last.replace(log) != Some(log) {
                (before, behind) = Default::default();
            }
            self.each_piece(page, &mut |piece| match piece {
                Piece::Gap => before.append(&mut behind),
                Piece::Record(view) if view.header.batched => {
                    if !is_named(runs, generation, view.offset) {
                        behind.push(Run { start: view.offset, len: view.len(), generation });
                    }
                }
                Piece::Record(_) => {
                    lost.append(&mut before);
                    behind.clear();
                }
            });
            if page.log.element.length.is_none() || page.log.element.is_cut {
                // A crash that ended the page has ended the batch, too.
                (before, behind) = Default::default();
            }
        }
        lost
    }
}

/// The order of runs: those of a generation do not overlap, unless a commit record was copied.
fn place(run: &Run) -> (u32, u64) {
    (run.generation, run.start)
}

/// True if one of the `runs`, which are in order, has the record at `offset` in it.
fn is_named(runs: &[Run], generation: u32, offset: u64) -> bool {
    let behind = runs.partition_point(|run| place(run) <= (generation, offset));
    behind.checked_sub(1).is_some_and(|at| {
        #[cfg(test)]
        comparisons::note();
        runs[at].generation == generation && offset < runs[at].end()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::unindexed::{Kinds, unindexed};
    use crate::recovery::open::{Options, Placement, create_options};
    use crate::recovery::recover::LogPage;
    use crate::table::geometry::Geometry;
    use coreplane_engine::{Batch, WriteOptions};
    use coreplane_pmem::media::sim::{Sim, SimOptions};
    use coreplane_pmem::{MediaChoice, Pool, thread_number};
    use std::sync::Arc;

    /// A store with so many batches of two records in one page, and its memory.
    fn with_batches(count: u32) -> (Sim, Store) {
        let sim = Sim::new(&SimOptions::default()).expect("memory");
        let create = create_options(sim.space().len(), Geometry::TINY, MediaChoice::Auto);
        let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
        let options = Options { background: false, ..Options::default() };
        let store = Store::format(pool, Placement::Dram, &options).expect("a store");
        for number in 0..count {
            let mut batch = Batch::new();
            batch.put(&(2 * number).to_le_bytes(), b"").put(&(2 * number + 1).to_le_bytes(), b"");
            store.apply(&batch, &WriteOptions::default()).expect("apply");
        }
        (sim, store)
    }

    #[test]
    fn a_repair_looks_for_the_batch_of_a_record_once() {
        for count in [10, 30] {
            let (_sim, store) = with_batches(count);
            let log = store.logs[thread_number() % store.logs.len()].lock();
            let page = log.page().expect("an open page");
            let element = store.pages.element(page).expect("an element");
            let surveyed = [store.survey(LogPage { page, element })];
            let made = comparisons::of(|| assert_eq!(store.lost_commits(&surveyed), []));
            assert_eq!(made, u64::from(2 * count));
        }
    }

    #[test]
    fn a_commit_record_is_compared_with_its_own_records_alone() {
        for count in [10, 30] {
            let (_sim, store) = with_batches(count);
            let made = comparisons::of(|| {
                let missed = unindexed(&store, &|_| false, Kinds::All, &|_| Ok(false));
                assert_eq!(missed.expect("no failure").len(), 2 * count as usize);
            });
            assert_eq!(made, u64::from(2 * count));
        }
    }
}
