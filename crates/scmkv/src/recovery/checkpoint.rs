//! Loading a checkpoint.

use crate::recovery::threads::{THREADS_MAX, in_parallel};
use crate::table::Seeds;
use crate::table::arena::Arena;
use crate::table::checkpoint_format::{Moment, Sheet};
use crate::table::geometry::Geometry;
use crate::table::index::{Index, SegmentHeader, Slot};
use crate::table::page::{self, Element};
use crate::table::root::Root;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::{Space, epoch, processors};
use coreplane_record as record;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes for which another thread is worth its start.
const PER_THREAD: u64 = 4 << 20;

/// The checkpoints in a pool that is opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The index of the root's checkpoint; none if there is none, or it is damaged.
    pub(crate) loaded: Option<Loaded>,
    /// Pages that are not needed: those of interrupted, replaced or damaged checkpoints.
    pub(crate) stale: Vec<u32>,
    /// The root names a checkpoint that is not complete.
    pub(crate) is_damaged: bool,
}

/// An index that was loaded from a checkpoint.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) index: Index,
    pub(crate) arena: Arena,
    pub(crate) number: u64,
    pub(crate) pages: Vec<u32>,
    pub(crate) moment: Moment,
    pub(crate) lacking: Lacking,
}

/// Which log pages may have records that a checkpoint lacks.
#[derive(Debug, Default)]
pub(crate) struct Lacking {
    replay_birth: u64,
    open: HashSet<u64>,
}

impl Lacking {
    /// True if this page may have some.
    pub(crate) fn has(&self, log: &Element) -> bool {
        log.length.is_none() || log.birth >= self.replay_birth || self.open.contains(&log.birth)
    }
}

/// A page of the root's checkpoint.
struct Page {
    page: u32,
    place: u32,
    total: u32,
    moment: Moment,
    open: HashSet<u64>,
    segments: Vec<SegmentHeader>,
}

/// The properties of the pool that loading needs.
pub(crate) struct Source<'a> {
    pub(crate) space: &'a Arc<Space>,
    pub(crate) geometry: Geometry,
    pub(crate) seeds: Seeds,
    pub(crate) elements: &'a [(u32, Element)],
    pub(crate) progress: &'a (dyn Fn(Progress) + Sync),
}

impl Source<'_> {
    /// Finds the checkpoint that `root` names, and its index.
    ///
    /// # Errors
    /// If there is no DRAM for the index. A checkpoint that is damaged is no error: the logs have
    /// all its records.
    pub(crate) fn load(&self, root: Root) -> Result<Found> {
        let of_checkpoints: Vec<(u32, Element)> = self
            .elements
            .iter()
            .filter(|(_, element)| element.kind == page::Kind::Checkpoint)
            // A page that cannot be read stays as it is until the pool is repaired.
            .filter(|(page, _)| page::check_loads(self.space, *page).is_ok())
            .copied()
            .collect();
        for (page, _) in &of_checkpoints {
            if !self.space.adopt_log(*page, self.geometry.page_size) {
                return Err(Error::Unusable(format!("page {page} cannot be read")));
            }
        }
        let mut found = Found { is_damaged: root.checkpoint != 0, ..Found::default() };
        if root.checkpoint != 0 {
            let pages = self.pages_of(root.checkpoint, &of_checkpoints)?;
            found.loaded = self.index_of(root, pages)?;
            found.is_damaged = found.loaded.is_none();
        }
        let used: HashSet<u32> =
            found.loaded.iter().flat_map(|loaded| loaded.pages.iter().copied()).collect();
        found.stale = of_checkpoints
            .into_iter()
            .map(|(page, _)| page)
            .filter(|page| !used.contains(page))
            .collect();
        Ok(found)
    }

    /// The sound pages of checkpoint `number`, in their order.
    fn pages_of(&self, number: u64, elements: &[(u32, Element)]) -> Result<Vec<Page>> {
        let pages = Mutex::new(Vec::new());
        self.each(elements.len(), "checking the checkpoint", &|at| {
            let (page, element) = elements[at];
            let guard = epoch::pin();
            let start = self.space.start_of(page);
            let seed = record::seed(self.seeds.crc, element.generation, start);
            let sheet = self
                .space
                .bytes(&guard, start, u64::from(self.geometry.page_size))
                .and_then(|bytes| Sheet::read(&self.geometry, bytes, seed))
                .filter(|sheet| sheet.number == number);
            if let Some(sheet) = sheet {
                pages.lock().push(Page {
                    page,
                    place: sheet.place,
                    total: sheet.total,
                    moment: sheet.moment,
                    open: sheet.open().collect(),
                    segments: sheet.segments(&self.geometry).map(|(header, _)| header).collect(),
                });
            }
            Ok(())
        })?;
        let mut pages = pages.into_inner();
        pages.sort_by_key(|page| page.place);
        Ok(pages)
    }

    /// The index in `pages`; none if they are not a whole checkpoint.
    fn index_of(&self, root: Root, mut pages: Vec<Page>) -> Result<Option<Loaded>> {
        let in_order = pages.iter().enumerate().all(|(at, page)| page.place as usize == at);
        let is_whole = pages.last().is_some_and(|last| last.total as usize == pages.len());
        let moment = pages.first().map(|first| first.moment).unwrap_or_default();
        if !in_order || !is_whole || moment.replay_birth != root.replay_birth {
            return Ok(None);
        }
        let segments: Vec<SegmentHeader> =
            pages.iter().flat_map(|page| page.segments.iter().copied()).collect();
        let arena = Arena::new(&self.geometry, self.space.reserved())?;
        let space = Arc::clone(&arena.space);
        let mut supply = || arena.supply();
        let index = Index::with_segments(space, self.geometry, &segments, &mut supply)?;
        let Some(index) = index else { return Ok(None) };
        let kept: Vec<bool> = self
            .elements
            .iter()
            .map(|(_, element)| {
                element.kind == page::Kind::Log && element.birth < moment.void_birth
            })
            .collect();
        let keep = |slot: Slot| {
            let page = self.space.page_of(slot.offset()) as usize;
            kept.get(page).copied().ok_or_else(|| Error::Corrupt {
                offset: slot.offset(),
                what: "a checkpoint names a page that is none".to_owned(),
            })
        };
        let filled = self.each(pages.len(), "loading the checkpoint", &|at| {
            let guard = epoch::pin();
            let start = self.space.start_of(pages[at].page);
            let sheet = self
                .space
                .bytes(&guard, start, u64::from(self.geometry.page_size))
                .and_then(|bytes| Sheet::trusted(&self.geometry, bytes));
            for (header, slots) in sheet.iter().flat_map(|sheet| sheet.segments(&self.geometry)) {
                index.fill_segment(header, slots, &keep)?;
            }
            Ok(())
        });
        if filled.is_err() {
            return Ok(None);
        }
        let open = pages.first_mut().map(|first| std::mem::take(&mut first.open));
        let replay_birth = moment.replay_birth;
        Ok(Some(Loaded {
            index,
            arena,
            number: root.checkpoint,
            pages: pages.iter().map(|page| page.page).collect(),
            moment,
            lacking: Lacking { replay_birth, open: open.unwrap_or_default() },
        }))
    }

    /// Does `work` for each number below `count`, with as many threads as pay off.
    fn each(
        &self,
        count: usize,
        stage: &'static str,
        work: &(dyn Fn(usize) -> Result<()> + Sync),
    ) -> Result<()> {
        let worth = count as u64 * u64::from(self.geometry.page_size) / PER_THREAD;
        let threads = processors::available().min(THREADS_MAX).min(worth as usize);
        in_parallel((threads, count), (stage, self.progress), work, &|| Ok(()))
    }
}
