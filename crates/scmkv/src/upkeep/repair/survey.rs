//! The survey of the log pages: their sound records, and the gaps between.

use crate::recovery::recover::LogPage;
use crate::store::Store;
use crate::table::index::VERSION_STEP;
use coreplane_engine::{Fate, Finding};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{self as record, Kind, View};
use std::ops::Range;

/// The shortest possible record, padding included.
pub(super) const RECORD_MIN: u64 = record::HEADER.next_multiple_of(8) as u64;

/// A log page with its survey.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub(super) log: LogPage,
    pub(super) start: u64,
    /// Where its records end.
    pub(super) tail: u64,
    /// Where there were records that cannot be read now.
    pub(super) gaps: Vec<Range<u64>>,
}

/// A part of a page.
pub(super) enum Piece<'v> {
    Record(View<'v>),
    Gap,
}

impl Store {
    /// Looks for the gaps in a log page.
    pub(super) fn survey(&self, log: LogPage) -> Surveyed {
        let guard = epoch::pin();
        let LogPage { page, element } = log;
        let (start, generation) = (self.space.start_of(page), element.generation);
        let end = start + u64::from(element.length.unwrap_or(self.geometry.page_size));
        let is_open = element.length.is_none();
        let (mut at, mut gaps) = (start, Vec::new());
        while at < end {
            if let Some(len) = self.len_at(&guard, generation, at, end) {
                at += len;
                continue;
            }
            // If nothing is left of a page, the table tells whether it held records.
            let is_gone = at == start && element.is_lost();
            if is_open && !is_gone && !self.is_followed(&guard, generation, at, end) {
                break;
            }
            let mut next = at + RECORD_MIN;
            while next < end && self.len_at(&guard, generation, next, end).is_none() {
                next += 8;
            }
            gaps.push(at..next.min(end));
            at = next.min(end);
        }
        Surveyed { log, start, tail: at, gaps }
    }

    /// The finding about a gap, with the keys that its bytes show.
    pub(super) fn finding(&self, surveyed: &Surveyed, gap: &Range<u64>) -> Finding {
        let (guard, mut at, mut keys) = (epoch::pin(), gap.start, Vec::new());
        let versions = 1..=self.root().version_base.saturating_add(VERSION_STEP);
        while let Some(view) = self.view(&guard, at)
            && at + u64::from(view.len()) <= gap.end
        {
            let is_of_key = matches!(view.header.kind, Kind::Put | Kind::Delete);
            if is_of_key && versions.contains(&view.header.version) {
                keys.push((view.key().to_vec(), Fate::Uncertain));
            }
            at += u64::from(view.len());
        }
        let what = "damaged records: keys last written there are absent now, or hold what they \
                    held before; those that are not named cannot be named"
            .to_owned();
        Finding { page: surveyed.log.page, offset: gap.start, len: gap.end - gap.start, what, keys }
    }

    /// The length of the sound record at `at`, if it ends by `end`.
    fn len_at(&self, guard: &Guard, generation: u32, at: u64, end: u64) -> Option<u64> {
        let len = u64::from(self.sound(guard, generation, at).ok()?.len());
        (at + len <= end).then_some(len)
    }

    /// Shows the records of a page and its gaps, in their order.
    pub(super) fn each_piece(&self, surveyed: &Surveyed, visit: &mut dyn FnMut(Piece<'_>)) {
        let guard = epoch::pin();
        let mut gaps = surveyed.gaps.iter().peekable();
        let mut at = surveyed.start;
        while at < surveyed.tail {
            if let Some(gap) = gaps.next_if(|gap| gap.start == at) {
                visit(Piece::Gap);
                at = gap.end;
            } else if let Some(view) = self.view(&guard, at) {
                visit(Piece::Record(view));
                at += u64::from(view.len());
            } else {
                return;
            }
        }
    }
}
