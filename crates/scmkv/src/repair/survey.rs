//! The log pages: what is sound in them, and the gaps between.

use super::amend;
use crate::batch::Run;
use crate::record::{self, Form, Kind, View};
use crate::recover::LogPage;
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch::{self, Guard};
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
}

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
            orphans.extend(batched.take());
            let next = self.resumes(&guard, generation, at, end);
            while at < next {
                let rest = Gap { page, generation, start: at, end: next };
                // Several damaged records side by side, each of which can be told.
                let len = self.amended(&rest).map_or(next - at, |record| record.len() as u64);
                gaps.push(Gap { end: at + len, ..rest });
                at += len;
            }
        }
        let is_gone = at == start && element.length.is_none() && element.is_proven;
        Surveyed { log: *log, tail: (at - start) as u32, gaps, orphans, is_gone }
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
    pub(super) fn sound_records(
        &self,
        surveyed: &Surveyed,
        visit: &mut dyn FnMut(&View<'_>) -> Result<()>,
    ) -> Result<()> {
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
            visit(&view)?;
            at += u64::from(view.len());
        }
        Ok(())
    }

    /// The record at the start of a gap, one changed byte corrected.
    fn amended(&self, gap: &Gap) -> Option<Vec<u8>> {
        let guard = epoch::pin();
        let raw = self.space.bytes(&guard, gap.start, gap.end - gap.start)?;
        let len_of = |bytes: &[u8]| Form::of(bytes).map(|form| form.len());
        amend::amend(raw, self.seed(gap.generation, gap.start), &len_of)
    }

    /// What the bytes of a gap tell, if they were one record.
    pub(super) fn read_gap(&self, gap: &Gap) -> Option<Reading> {
        let guard = epoch::pin();
        let raw = self.space.bytes(&guard, gap.start, gap.end - gap.start)?;
        let amended = self.amended(gap);
        let is_certain = amended.is_some();
        let bytes = amended.unwrap_or_else(|| raw.to_vec());
        let form = Form::of(&bytes).filter(|form| form.len().next_multiple_of(8) == raw.len())?;
        let (key, value) = bytes[form.head..form.len()].split_at(form.key_len);
        let runs = match form.kind {
            Kind::Commit => Run::decode_all(value).collect(),
            _ => Vec::new(),
        };
        let version = u64::from_le_bytes(std::array::from_fn(|at| bytes[12 + at]));
        Some(Reading { kind: form.kind, key: key.to_vec(), version, runs, is_certain })
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
