//! The log pages: what is sound in them, and the gaps between.

use super::amend::{Amended, amend};
use crate::batch::Run;
use crate::recover::LogPage;
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{self as record, Form, Kind, View};
use std::sync::atomic::Ordering;

/// The shortest record there can be, padding included.
const RECORD_MIN: u64 = record::HEADER.next_multiple_of(8) as u64;

/// Bytes of a log page in which there were records, and are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) page: u32,
    pub(super) generation: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Something sound lies in the block in which it begins: the block was not written elsewhere.
    is_anchored: bool,
}

/// What devices write at once.
const BLOCK: u64 = 4096;

impl Gap {
    /// True if a `Lost` record has room in it.
    pub(super) fn has_room(&self) -> bool {
        self.end - self.start >= RECORD_MIN
    }
}

/// What a gap that was one record tells of it.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) kind: Kind,
    pub(super) key: Vec<u8>,
    pub(super) version: u64,
    pub(super) is_batched: bool,
    /// What a commit record names.
    pub(super) runs: Vec<Run>,
    /// It was told by its checksum, one changed byte corrected.
    pub(super) is_certain: bool,
}

/// A log page, looked through.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub(super) log: LogPage,
    /// Where its records end, from its start.
    pub(super) tail: u32,
    pub(super) gaps: Vec<Gap>,
    /// Batched records that end where a gap begins.
    pub(super) orphans: Vec<Run>,
    /// Batched records at the end of the page.
    pub(super) trailing: Option<Run>,
    /// It held something when the store stopped, and nothing can be read.
    pub(super) is_gone: bool,
}

impl Store {
    /// Looks for the gaps in a log page.
    pub(super) fn survey(&self, log: &LogPage) -> Surveyed {
        let guard = epoch::pin();
        let LogPage { page, element } = *log;
        let (start, generation) = (self.space.start_of(page), element.generation);
        let end = start + u64::from(element.length.unwrap_or(self.geometry.page_size));
        // As recovery has it: where such a page ends is where its records end to be sound.
        let is_open = element.length.is_none() || self.unflushed.load(Ordering::Acquire);
        let (mut gaps, mut orphans) = (Vec::new(), Vec::new());
        let mut batched: Option<Run> = None;
        let mut at = start;
        while at < end {
            let view = self.sound(&guard, generation, at).ok();
            if let Some(view) = view.filter(|view| at + u64::from(view.len()) <= end) {
                let len = view.len();
                batched = match (view.header.batched, batched.take()) {
                    (true, Some(run)) => Some(Run { len: run.len + len, ..run }),
                    (true, None) => Some(Run { start: at, len, generation }),
                    (false, _) => None,
                };
                at += u64::from(len);
                continue;
            }
            if is_open && !self.is_followed(&guard, generation, at, end) {
                break;
            }
            let next = self.resumes(&guard, generation, at, end);
            let first = at;
            while at < next {
                let is_behind = at == first && at > start && !at.is_multiple_of(BLOCK);
                let is_anchored = is_behind || next < end && next / BLOCK == at / BLOCK;
                let rest = Gap { page, generation, start: at, end: next, is_anchored };
                let gap = self.first_gap(rest);
                let len = (gap.end - gap.start) as u32;
                batched = match batched.take() {
                    Some(run) if self.is_member(&gap) => Some(Run { len: run.len + len, ..run }),
                    run => {
                        orphans.extend(run);
                        None
                    }
                };
                gaps.push(gap);
                at = gap.end;
            }
        }
        let is_gone = at == start && element.length.is_none() && element.is_proven;
        let tail = (at - start) as u32;
        Surveyed { log: *log, tail, gaps, orphans, trailing: batched, is_gone }
    }

    /// The first of several damaged records side by side, if it can be told, or all of `gap`.
    fn first_gap(&self, gap: Gap) -> Gap {
        let end = self.amended(&gap).map(|record| gap.start + record.bytes.len() as u64);
        // By chance alone less than a record is left, over which nothing could be put.
        let end = end.filter(|end| *end == gap.end || gap.end - end >= RECORD_MIN);
        Gap { end: end.unwrap_or(gap.end), ..gap }
    }

    /// True if a gap shows itself to have been a member of a batch.
    fn is_member(&self, gap: &Gap) -> bool {
        let is_of_key = |reading: &Reading| matches!(reading.kind, Kind::Put | Kind::Delete);
        self.read_gap(gap).is_some_and(|reading| reading.is_batched && is_of_key(&reading))
    }

    /// Where the first sound record behind `at`, where there is none, begins; or `end`.
    fn resumes(&self, guard: &Guard, generation: u32, at: u64, end: u64) -> u64 {
        let mut next = at + RECORD_MIN;
        while next < end && self.sound(guard, generation, next).is_err() {
            next += 8;
        }
        next.min(end)
    }

    /// Shows the sound records of a page that was surveyed.
    fn sound_records(&self, surveyed: &Surveyed, visit: &mut dyn FnMut(&View<'_>)) -> Result<()> {
        let guard = epoch::pin();
        let start = self.space.start_of(surveyed.log.page);
        let mut gaps = surveyed.gaps.iter();
        let mut gap = gaps.next();
        let mut at = start;
        while at < start + u64::from(surveyed.tail) {
            if let Some(here) = gap.filter(|gap| gap.start == at) {
                at = here.end;
                gap = gaps.next();
                continue;
            }
            let view = self.sound(&guard, surveyed.log.element.generation, at)?;
            visit(&view);
            at += u64::from(view.len());
        }
        Ok(())
    }

    /// How many records behind `offset` in its page say that all before them was durable.
    pub(super) fn followers(&self, surveyed: &Surveyed, offset: u64) -> Result<usize> {
        let mut count = 0;
        self.sound_records(surveyed, &mut |view| {
            count += usize::from(view.offset > offset && view.header.follows);
        })?;
        Ok(count)
    }

    /// Shows the sound records of all pages.
    pub(super) fn all_records(
        &self,
        surveyed: &[Surveyed],
        visit: &mut dyn FnMut(&Surveyed, &View<'_>),
    ) -> Result<()> {
        for page in surveyed {
            self.sound_records(page, &mut |view| visit(page, view))?;
        }
        Ok(())
    }

    /// The record at the start of a gap, one changed byte corrected.
    fn amended(&self, gap: &Gap) -> Option<Amended> {
        let guard = epoch::pin();
        let raw = self.space.bytes(&guard, gap.start, gap.end - gap.start)?;
        let len_of = |bytes: &[u8]| Form::of(bytes).map(|form| form.len());
        amend(raw, self.seed(gap.generation, gap.start), &len_of)
    }

    /// What the bytes of a gap tell, if they were one record.
    pub(super) fn read_gap(&self, gap: &Gap) -> Option<Reading> {
        let guard = epoch::pin();
        let raw = self.space.bytes(&guard, gap.start, gap.end - gap.start)?;
        let amended = self.amended(gap).filter(|record| {
            record.bytes.len() == raw.len() && (gap.is_anchored || !record.may_be_of_elsewhere())
        });
        let is_certain = amended.is_some();
        let bytes = amended.map_or_else(|| raw.to_vec(), |amended| amended.bytes);
        let form = Form::of(&bytes).filter(|form| form.len().next_multiple_of(8) == raw.len())?;
        let (key, value) = bytes[form.head..form.len()].split_at(form.key_len);
        let runs = match form.kind {
            Kind::Commit => Run::decode_all(value).collect(),
            _ => Vec::new(),
        };
        let version = u64::from_le_bytes(std::array::from_fn(|at| bytes[12 + at]));
        let (kind, is_batched) = (form.kind, form.is_batched());
        Some(Reading { kind, key: key.to_vec(), version, is_batched, runs, is_certain })
    }

    /// A sound record that stands by itself, for a copy of it.
    pub(super) fn copy_of(&self, page: u32, offset: u64) -> Option<Copied> {
        let guard = epoch::pin();
        let view = self.sound(&guard, self.pages.cell(page).generation(), offset).ok()?;
        let (key, value) = (view.key().to_vec(), view.value().to_vec());
        let header = record::Header { batched: false, ..view.header };
        Some(Copied { header, key, value })
    }
}

/// A record in DRAM.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) header: record::Header,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}
