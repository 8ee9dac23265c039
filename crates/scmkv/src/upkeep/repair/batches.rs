//! Batches that have lost their commit record.
//!
//! A batch lies in its log without a break, its commit record behind it. So members that no sound
//! commit record names are of a batch that was cut short, which was not acknowledged, or their
//! commit record was in a gap behind them: it was, if a sound record lies behind the gap.

use super::survey::{Piece, Surveyed};
use crate::clean::unindexed::holds;
use crate::store::Store;
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
                    if !runs.iter().any(|run| holds(run, generation, view.offset)) {
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
