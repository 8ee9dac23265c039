//! Checks the leaves, beside writers, leaf by leaf. Covers the data that a read sees, and the data that only a
//! recovery reads: dead records, and bytes behind the last record.

use crate::leaf::{Directory, generation};
use crate::read::get::Leaf;
use crate::tree::fill::fill_of;
use crate::tree::lock::Locked;
use crate::upkeep::Store;
use coreplane_engine::{Damage, Error, Progress, Result, VerifyReport};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{Pen, epoch};
use coreplane_record::{self as record, Kind, View};
use std::collections::BTreeSet;

impl Store {
    /// Checks every record against its checksum and its leaf's bounds, and the path to the leaf. If a leaf cannot
    /// be read, that is all that is reported of it.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.verify_all(progress).map(VerifyReport::merged)
    }

    fn verify_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let mut from: Box<[u8]> = Box::default();
        loop {
            let guard = epoch::pin();
            let (leaf, page) = match self.leaf_and_page_of(&guard, &from) {
                Err(error @ (Error::Corrupt { .. } | Error::ChecksumMismatch { .. })) => {
                    let mut damage = damage_of(&error);
                    damage.what = format!("a leaf that cannot be read: {}", damage.what);
                    report.damages.push(damage);
                    // The tree knows where the next leaf begins.
                    let Some(next) = self.inner.bound_of(&from) else { return Ok(report) };
                    from = next;
                    continue;
                }
                read => read?,
            };
            let Some(found) = self.verify_leaf(&guard, (&leaf, page), &from) else { continue };
            report.records += found.records;
            report.bytes += found.bytes;
            report.damages.extend(found.damages);
            let done = report.records;
            let total = self.len();
            progress(Progress { stage: "reading records", done, total });
            match leaf.head.bound {
                None => return Ok(report),
                Some(bound) => from = bound,
            }
        }
    }

    /// The report of a leaf, which should serve the keys from `from` on; none if it was rewritten since and must be
    /// read again.
    fn verify_leaf(
        &self,
        guard: &Guard,
        (leaf, page): (&Leaf<'_>, u32),
        from: &[u8],
    ) -> Option<VerifyReport> {
        let Leaf { head, records, in_doubt, doubtful, hurt } = leaf;
        let mut report = VerifyReport::default();
        report.damages.extend(hurt.iter().map(|it| {
            let known = it.known.as_deref().filter(|_| it.is_whole);
            known.map_or_else(|| damage_of(&it.error), |key| damage_of(&it.error).of(key))
        }));
        if *head.least > *from {
            let what = format!("keys from {from:?} to {:?} are missing", head.least);
            report.damages.push(Damage::new(0, what));
        }
        if let Some(Error::Corrupt { offset, what }) = in_doubt {
            let offset = *offset;
            let what = match doubtful.is_empty() {
                true => what.clone(),
                false => format!("{what}; what there is of some keys may not be the newest"),
            };
            let damage = Damage::new(offset, what);
            report.damages.push(doubtful.iter().fold(damage, |damage, key| damage.of(key)));
        }
        for (key, whole) in records {
            let view = &whole.view;
            let before = report.damages.len();
            self.verify_record(guard, view, head.birth, &mut report);
            // The pages of a large value, or of a long key, go with the record.
            if report.damages.len() > before && !self.has_record(page, head.birth, view)? {
                report.damages.truncate(before);
            }
            report.damages.iter_mut().skip(before).for_each(|it| it.keys.push(key.to_vec()));
            let bound = head.bound.as_deref();
            if **key < *head.least || bound.is_some_and(|bound| **key >= *bound) {
                let what = "a key that is not of its leaf".to_owned();
                report.damages.push(Damage::new(view.offset, what).of(key));
            }
        }
        if report.damages.is_empty() {
            let held = self.leaves.get(page as usize).lock()?;
            if held.birth() != head.birth {
                return None;
            }
            let locked = Locked { page, leaf: self.leaves.get(page as usize), held };
            report
                .damages
                .extend(self.check_recovery(guard, &locked).err().map(|it| damage_of(&it)));
        }
        Some(report)
    }

    /// Checks that a recovery would find a locked leaf as it is known.
    ///
    /// # Errors
    /// If not: the state that it would find.
    pub(crate) fn check_recovery(&self, guard: &Guard, locked: &Locked<'_>) -> Result<()> {
        let (page, birth) = (locked.page, locked.held.birth());
        self.check_page(guard, page, locked.leaf)?;
        let mut held = self.pen();
        let pen = held.take().unwrap_or_else(|| Pen::new(&self.space));
        let writer = pen.take_up(page).map_err(|_| self.not_a_leaf(page))?;
        let (is_filled, offset) =
            (writer.is_filled(fill_of(self.seed, birth)), writer.next_offset());
        *held = Some(writer.lay_down());
        let what = || "there is something behind the last record of a leaf".to_owned();
        if is_filled { Ok(()) } else { Err(Error::Corrupt { offset, what: what() }) }
    }

    /// Checks that a recovery would find in the page of a leaf the records that are known of it, and all earlier
    /// records sound. Valid if the leaf has not changed meanwhile.
    ///
    /// # Errors
    /// If not: the state that it would find.
    pub(crate) fn check_page(&self, guard: &Guard, page: u32, leaf: &Directory) -> Result<()> {
        let (end, _) = self.space.watermarks(page).ok_or_else(|| self.not_a_leaf(page))?;
        let head = self.sound_head(guard, page, leaf.birth())?;
        let (found, latest) = self.read_leaf_page(guard, page, head, (end, end))?;
        let damaged = |what: &str| {
            let offset = self.space.start_of(page) + u64::from(found.end.min(found.doubt));
            Err(Error::Corrupt { offset, what: what.to_owned() })
        };
        if found.is_to_be_told() {
            return damaged("a record that no read comes to, and a recovery does");
        }
        if found.is_dead || found.end != end {
            return damaged("the records of a leaf end here, and should not");
        }
        let start = self.space.start_of(page);
        let known = |place: usize| (leaf.tag(place), leaf.offset(place));
        let used = leaf.used();
        let known: BTreeSet<_> = used.map(known).collect();
        let read: BTreeSet<_> = latest.records(start).map(|(tag, at, _)| (tag, at)).collect();
        if known == read { Ok(()) } else { damaged("a leaf that has other records than are known") }
    }

    /// True if a leaf of this birth still has the record; none if there is no such leaf.
    fn has_record(&self, page: u32, birth: u64, view: &View<'_>) -> Option<bool> {
        let leaf = self.leaves.get(page as usize);
        let within = (view.offset - self.space.start_of(page)) as u32;
        loop {
            let version = leaf.version()?;
            let is_same = leaf.birth() == birth;
            let has = leaf.used().any(|place| leaf.offset(place) == within);
            if leaf.is_at(version) {
                return is_same.then_some(has);
            }
        }
    }

    /// Checks a record, and its overflow pages, against their checksums.
    pub(crate) fn verify_record(
        &self,
        guard: &Guard,
        view: &View<'_>,
        birth: u64,
        report: &mut VerifyReport,
    ) {
        let checked = view.check(record::seed(self.seed, generation(birth), view.offset));
        if let Err(Error::ChecksumMismatch { stored, computed, .. }) = checked {
            let what = format!("a record's checksum is {stored:#010x}, not {computed:#010x}");
            report.damages.push(Damage::new(view.offset, what));
            return;
        }
        if let Err(error) = self.parts(guard, view.key(), true) {
            let what = format!("a long key: {error}");
            report.damages.push(Damage::new(view.offset, what));
        }
        if view.header.kind == Kind::Put {
            report.records += 1;
            report.bytes += (self.key_len_of(view.key()) + view.value().len()) as u64;
            if view.header.large
                && let Err(error) = self.overflow_of(guard, view, true)
            {
                let what = format!("a large value: {error}");
                report.damages.push(Damage::new(view.offset, what));
            }
        }
    }
}

pub(crate) fn damage_of(error: &Error) -> Damage {
    let offset = match error {
        Error::Corrupt { offset, .. } | Error::ChecksumMismatch { offset, .. } => *offset,
        _ => 0,
    };
    Damage::new(offset, error.to_string())
}
