//! Creating and opening a store.

use crate::clean::Cleaner;
use crate::clean::CleanerState;
use crate::read::Reader;
use crate::read::gate::Gate;
use crate::recovery::checkpoint::{Found, Loaded, Source};
use crate::recovery::recover::{LogPage, Recovery};
use crate::store::Store;
use crate::table::KIND;
use crate::table::Seeds;
use crate::table::Table;
use crate::table::arena::Arena;
use crate::table::checkpoints::Checkpoints;
use crate::table::clock::Clock;
use crate::table::counters::Counters;
use crate::table::durable::Early;
use crate::table::geometry::Geometry;
use crate::table::index::{Index, OFFSET_MAX, VERSION_STEP};
use crate::table::log::Log;
use crate::table::page::{self, Pages};
use crate::table::quarantine::Quarantine;
use crate::table::root::Root;
use crate::table::stage::Staging;
use crate::write::Writer;
use coreplane_engine::{Error, Progress, Result, UnixMillis};
use coreplane_pmem::mutant;
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{CreateOptions, Pool, Space, spin};
use coreplane_record::Expiries;
pub use coreplane_record::Options;
pub(crate) use coreplane_record::pool_error;
use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Where the index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In the pool where a fence is an instruction, in DRAM on `file` media.
    #[default]
    Auto,
    /// In the pool: a restart reads no log pages except those that were open.
    Pool,
    /// In DRAM: a restart reads its last checkpoint, and the log since then.
    Dram,
}

/// The options with which a pool of this engine is created.
pub(crate) fn create_options(
    size: u64,
    geometry: Geometry,
    media: coreplane_pmem::MediaChoice,
) -> CreateOptions {
    CreateOptions {
        size,
        media,
        page_size: geometry.page_size,
        kind: KIND.to_owned(),
        parameters: geometry.to_parameters(),
    }
}

/// The parts that are built alike for a new pool and an old one.
pub(crate) struct Parts {
    pub(crate) pool: Pool,
    pub(crate) geometry: Geometry,
    pub(crate) pages: Pages,
    pub(crate) index: Index,
    pub(crate) arena: Option<Arena>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) root: Root,
    pub(crate) counted: bool,
}

impl Store {
    /// Formats a fresh pool as a store.
    pub(crate) fn format(pool: Pool, placement: Placement, options: &Options) -> Result<Self> {
        let geometry = geometry_of(&pool)?;
        let space = Arc::clone(pool.space());
        check_len(space.len())?;
        let in_pool = match placement {
            Placement::Auto => space.fences_at_once(),
            Placement::Pool => true,
            Placement::Dram => false,
        };
        if in_pool && !space.fences_at_once() {
            return Err(Error::Unusable(
                "an index in the pool needs a medium whose fence is an instruction; on a file \
                 it is in DRAM"
                    .to_owned(),
            ));
        }
        let pages = Pages::new(Arc::clone(&space), pages_max(&space));
        pages.format(0)?;
        // Nothing in them counts before the root is written, with which the store begins.
        pages.offer(0);
        let (index, arena) = new_index(&space, in_pool, geometry, true, &pages)?;
        let flags = if in_pool { Root::IN_POOL } else { 0 };
        let formatted = u64::from(pages.len());
        let root = Root { flags, version_base: VERSION_STEP, formatted, ..Root::default() };
        pool.set_root(root.to_words()).map_err(pool_error)?;
        let checkpoints = Checkpoints::default();
        let counted = true;
        let parts = Parts { pool, geometry, pages, index, arena, checkpoints, root, counted };
        Self::assemble(parts, options)
    }

    /// Opens the store that a pool holds, recovering it if it was not closed.
    pub(crate) fn open(
        pool: Pool,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let (geometry, space, old) = known(&pool)?;
        let (pages, formatted) = pages_of(&space, old);
        // A pool that was copied to a medium whose fence is a sync: there a slot could become
        // durable before its record, so the index moves to DRAM for good.
        let in_pool = old.has(Root::IN_POOL) && space.fences_at_once();
        let clean = old.has(Root::CLEAN);
        let rebuild = !in_pool || (old.has(Root::NON_STRICT) && !clean);
        let elements = pages.load(formatted, !rebuild)?;
        pages.format(formatted)?;
        // Until the root counts them, only an index that is rebuilt from the logs is written to
        // them.
        pages.offer(formatted);
        let in_pool_flag = if in_pool { Root::IN_POOL } else { 0 };
        let seeds = Seeds::of(pool.uuid());
        let source = Source { space: &space, geometry, seeds, elements: &elements, progress };
        let Found { loaded, stale, is_damaged } = source.load(old)?;
        // From here on a crash finds the store unclean, and versions go on above the old ones.
        let step = if mutant!("scmkv.open.version_base") { 0 } else { VERSION_STEP };
        let root = Root {
            flags: old.flags & !(Root::CLEAN | Root::IN_POOL) | in_pool_flag,
            version_base: old.version_base + step,
            formatted: u64::from(pages.len()),
            checkpoint: loaded.as_ref().map_or(0, |loaded| loaded.number),
            ..old
        };
        let mut checkpoints = Checkpoints::without(is_damaged);
        let mut lacking = None;
        let (index, arena) = match loaded {
            Some(Loaded { index, arena, number, pages: its_pages, moment, lacking: lacks }) => {
                pages.raise_next_birth(moment.void_birth);
                checkpoints = Checkpoints::with(number, its_pages);
                lacking = Some(lacks);
                (index, Some(arena))
            }
            None if !rebuild => (index_in_pool(&space, geometry, &elements)?, None),
            None => index_anew(&space, in_pool, geometry, &elements, &pages)?,
        };
        let (is_anew, counted) = (rebuild && lacking.is_none(), false);
        pool.set_root(root.to_words()).map_err(pool_error)?;
        pages.free_all(&stale)?;
        if !in_pool {
            pages.free_index(&elements)?;
        }
        let parts = Parts { pool, geometry, pages, index, arena, checkpoints, root, counted };
        let store = Self::assemble(parts, options)?;
        let logs: Vec<LogPage> = elements
            .into_iter()
            .filter(|(_, element)| element.kind == page::Kind::Log)
            .map(|(page, element)| LogPage { page, element })
            .collect();
        let mut recovery = Recovery::of(&store)?;
        recovery.adopt(&logs)?;
        let is_read = |log: &LogPage| match &lacking {
            Some(lacking) => lacking.has(&log.element),
            None => rebuild || log.element.length.is_none(),
        };
        let to_read: Vec<LogPage> = logs.into_iter().filter(is_read).collect();
        recovery.replay(&to_read, is_anew, progress)?;
        drop(recovery);
        let lengths =
            to_read.iter().map(|log| store.pages.cell(log.page).length.load(Ordering::Relaxed));
        store.checkpoints.note_replayed(lengths.map(u64::from).sum());
        if rebuild && root.has(Root::NON_STRICT) {
            store.note_rebuilt()?;
        }
        Ok(store)
    }

    /// Notes durably that the index agrees with the logs.
    fn note_rebuilt(&self) -> Result<()> {
        let _changing = spin::lock(&self.root_change);
        let root = self.root();
        self.set_root(Root { flags: root.flags & !Root::UNCLEAN, ..root })?;
        self.non_strict.store(false, Ordering::Release);
        Ok(())
    }

    pub(crate) fn assemble(parts: Parts, options: &Options) -> Result<Self> {
        let Parts { pool, geometry, pages, index, arena, checkpoints, root, counted } = parts;
        let space = Arc::clone(pool.space());
        let source = options.time.clone().unwrap_or_else(|| Arc::new(UnixMillis::now));
        let clock = Clock::open(source, Arc::clone(&space), pages.clock_offset())?;
        let logs = (pages.len() / 16).clamp(1, 64) as u16;
        let seeds = Seeds::of(pool.uuid());
        let table = Table {
            space,
            geometry,
            durability: options.durability,
            pages,
            index,
            arena,
            early: Early::default(),
            logs: (0..logs).map(|id| CachePadded::new(spin::Lock::new(Log::new(id)))).collect(),
            staging: Staging::new(logs),
            checkpoints,
            seeds,
            version_base: AtomicU64::new(root.version_base),
            counters: Counters::new(),
            clock,
            opened: Instant::now(),
            dropped_tombstones: AtomicU64::new(match root.held {
                0 if counted => 0,
                // It is not known which tombstones were dropped before.
                0 => root.version_base,
                held => held - 1,
            }),
            closed: AtomicBool::new(false),
            root_change: Mutex::new(()),
            non_strict: AtomicBool::new(root.has(Root::NON_STRICT)),
            quarantine: Quarantine::default(),
            is_index_doubted: AtomicBool::new(false),
            windows: Windows::new(),
            wake: (Mutex::new(false), Condvar::new()),
            pool,
        };
        let reader = Reader { table, gate: Gate::default(), check_reads: options.check_reads };
        let cleaner = Cleaner {
            reader,
            cleaner_state: Mutex::new(CleanerState::new(logs)),
            appraisals: Mutex::default(),
            held_tombstones: AtomicU64::new(root.held.wrapping_sub(1)),
            counting: Mutex::default(),
            census_done: AtomicBool::new(counted),
        };
        let expiries = if counted { Expiries::none() } else { Expiries::unknown() };
        Ok(Self { writer: Writer { cleaner, expiries } })
    }

    /// Leaves a clean store behind. Writes fail from now on.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            let is_clean = self.root().flags & Root::CLEAN != 0;
            let failed = || Error::Unusable("closing has failed, or goes on".to_owned());
            return is_clean.then_some(()).ok_or_else(failed);
        }
        self.wake();
        for log in &self.logs {
            log.lock().seal(self)?;
        }
        self.cleaner_state.lock().log().seal(self)?;
        self.space.fence().map_err(page::sync_failed)?;
        self.checkpoint_at_close()?;
        let records = self.len()?;
        // A checkpoint that is being taken for a caller ends soon, and is the last.
        drop(spin::lock(&self.checkpoints.current));
        let _changing = spin::lock(&self.root_change);
        let root = self.root();
        let flags = root.flags & !Root::UNCLEAN | Root::CLEAN;
        self.set_root(Root { flags, records, ..root })
    }
}

/// # Errors
/// If a pool of `len` bytes has offsets that a slot cannot hold.
pub(crate) fn check_len(len: u64) -> Result<()> {
    if len > OFFSET_MAX {
        let what = "bytes of a pool";
        return Err(Error::OutOfRange { what, given: len, from: 0, to: OFFSET_MAX });
    }
    Ok(())
}

/// The geometry of the store in a pool.
///
/// # Errors
/// If it makes no sense, or does not fit the page size of the pool.
fn geometry_of(pool: &Pool) -> Result<Geometry> {
    let geometry = Geometry::from_parameters(&pool.parameters())?;
    let page_size = pool.space().page_size();
    if geometry.page_size == page_size {
        return Ok(geometry);
    }
    Err(Error::Unusable(format!("geometry {geometry:?} in a pool with pages of {page_size} bytes")))
}

/// The geometry, the space and the root of the store in a pool.
///
/// # Errors
/// If it holds no store, or one that was never flushed.
pub(crate) fn known(pool: &Pool) -> Result<(Geometry, Arc<Space>, Root)> {
    pool.expect_kind(KIND).map_err(pool_error)?;
    let geometry = geometry_of(pool)?;
    check_len(pool.space().len())?;
    let root = Root::from_words(pool.root());
    if root.version_base == 0 {
        return Err(Error::Unusable("the store was never wholly created".to_owned()));
    }
    if root.has(Root::UNFLUSHED) && !root.has(Root::CLEAN) {
        let what = "it was written at `noflush` and never closed: make it anew";
        return Err(Error::Unusable(what.to_owned()));
    }
    Ok((geometry, Arc::clone(pool.space()), root))
}

/// The pages of a pool, and how many of them have elements.
pub(crate) fn pages_of(space: &Arc<Space>, root: Root) -> (Pages, u32) {
    let pages = Pages::new(Arc::clone(space), pages_max(space));
    let formatted = u32::try_from(root.formatted).unwrap_or(u32::MAX).min(pages.len());
    (pages, formatted)
}

pub(crate) fn pages_max(space: &Space) -> usize {
    usize::try_from(space.reserved() / u64::from(space.page_size())).unwrap_or(usize::MAX)
}

/// The index that is in the pool.
fn index_in_pool(
    space: &Arc<Space>,
    geometry: Geometry,
    elements: &[(u32, page::Element)],
) -> Result<Index> {
    let starts: Vec<u64> = elements
        .iter()
        .filter(|(_, element)| element.kind == page::Kind::Index)
        .map(|(page, _)| space.start_of(*page))
        .collect();
    Index::load(Arc::clone(space), geometry, &starts, false)
}

/// An index to be built from the logs; the index in the pool, if there is one, is given up.
fn index_anew(
    space: &Arc<Space>,
    in_pool: bool,
    geometry: Geometry,
    elements: &[(u32, page::Element)],
    pages: &Pages,
) -> Result<(Index, Option<Arena>)> {
    if in_pool {
        // The root already says that the index is rebuilt, and says so until that is done.
        pages.free_index(elements)?;
    }
    new_index(space, in_pool, geometry, false, pages)
}

/// A new index: in the pool, its pages from `pages`, or in DRAM.
pub(crate) fn new_index(
    space: &Arc<Space>,
    in_pool: bool,
    geometry: Geometry,
    counted: bool,
    pages: &Pages,
) -> Result<(Index, Option<Arena>)> {
    if in_pool {
        let mut supply = || Ok(pages.open_index(0)?.map(|page| space.start_of(page)));
        return Ok((Index::create(Arc::clone(space), true, geometry, counted, &mut supply)?, None));
    }
    let arena = Arena::new(&geometry, space.reserved())?;
    let mut supply = || arena.supply();
    let index = Index::create(Arc::clone(&arena.space), false, geometry, counted, &mut supply)?;
    Ok((index, Some(arena)))
}
