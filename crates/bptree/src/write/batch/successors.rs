//! What the successors of a leaf have that has no room for its share of a batch.

use super::{Gone, Share, Step};
use crate::tree::image::Item;
use crate::tree::look::Standing;
use crate::tree::rewrite::Contents;
use crate::write::Writer;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};

impl Writer {
    /// What the successors of a leaf have, in no order, and whether records of it are lost. What is not in them is
    /// noted.
    ///
    /// # Errors
    /// As [`Tree::records_of`](crate::tree::Tree::records_of).
    pub(super) fn items_of_successors<'g, 'b>(
        &'g self,
        guard: &'g Guard,
        share: &Share<'g>,
        (steps, version): (&'b [Step<'b>], u64),
        gone: &mut Gone<'g>,
    ) -> Result<(Vec<Item<'b>>, bool)>
    where
        'g: 'b,
    {
        let is_hurt = share.steps.iter().any(|(_, it)| it.is_hurt);
        let mut items = Vec::new();
        self.ask_for_records(&share.locked);
        let contents = self.records_of(guard, &share.locked)?;
        let Contents { kept, expired, dropped, hurt, .. } = contents;
        // What its key is by now says nothing of whose it is: its place does.
        let is_written_over = |view: &View<'_>| {
            let olds = share.steps.iter().filter_map(|(_, it)| it.old.filter(|_| it.is_hurt));
            olds.into_iter().any(|old| old.offset == view.offset)
        };
        let (mut left, _counted_with_its_step): (Vec<_>, Vec<_>) =
            hurt.into_iter().partition(|view| !is_written_over(view));
        // Of those that are left nobody will know the keys.
        let is_told = !left.is_empty() && !mutant!("bptree.batch.hurt");
        let is_lost = share.locked.leaf.doubt() > 0 || is_told;
        gone.lost.append(&mut left);
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
        items.extend(kept.into_iter().filter(|item| is_kept(item.key)));
        // Those that are written over are counted with what is written.
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
