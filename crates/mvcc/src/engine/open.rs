//! Creating and opening a store.

use super::{MapKind, MapLock, Store};
use crate::list::List;
use crate::map::{Map, Opening};
use crate::tree::Tree;
use crate::volume::Volume;
use crate::volume::geometry::{Geometry, Use};
use crate::volume::root::{Root, STEP};
use coreplane_engine::{Cursors, Error, KEY_LEN_MAX, Progress, Result};
use coreplane_pmem::windows::Windows;
use coreplane_pmem::{Claim, CreateOptions, MediaChoice, Pool, mutant};
use coreplane_record::{Expiries, Options, pool_error, sync_failed};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The longest page: offsets in a page are kept in 32 bits, and pages are cleaned one at a time.
const PAGE_SIZE_MAX: u32 = 1 << 20;

/// The options with which a pool is created.
///
/// # Errors
/// [`Error::Unusable`] if pages or nodes cannot have these sizes.
pub(crate) fn create_options(
    kind: MapKind,
    size: u64,
    geometry: Geometry,
    media: MediaChoice,
    its_use: Use,
) -> Result<CreateOptions> {
    geometry.check()?;
    let (page_size, parameters) = (geometry.page_size, its_use.parameters(geometry.fan_out));
    Ok(CreateOptions { size, media, page_size, kind: kind.name().to_owned(), parameters })
}

impl Store {
    /// Makes a store of a fresh pool.
    pub(crate) fn format(kind: MapKind, pool: Pool, options: &Options) -> Result<Self> {
        if pool.space().page_size() > PAGE_SIZE_MAX {
            return Err(Error::Unusable(format!("a page has at most {PAGE_SIZE_MAX} bytes")));
        }
        let root = Root { versions_end: STEP, births_end: STEP, ..Root::default() };
        let volume = Arc::new(Volume::new(pool, &root, options));
        let space = &volume.space;
        volume.table.claim(0..space.pages(), Claim::Words)?;
        space.fence().map_err(sync_failed)?;
        // From here on the pool is a store.
        volume.pool.set_root(root.to_words()).map_err(pool_error)?;
        let map: Box<dyn Map> = match kind {
            MapKind::List => Box::new(List::format(&volume)),
            MapKind::CowTree => Box::new(Tree::format(&volume)),
        };
        Ok(Self::of(kind, volume, map, 1, options))
    }

    /// Opens the store that a pool holds, recovering it if it was not closed.
    pub(crate) fn open(
        kind: MapKind,
        its_use: Use,
        pool: Pool,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        pool.expect_kind(kind.name()).map_err(pool_error)?;
        its_use.expect(&pool)?;
        let old = Root::from_words(pool.root());
        if old.versions_end == 0 {
            return Err(Error::Unusable("the store was never wholly created".to_owned()));
        }
        let was_closed = old.flags & Root::CLEAN != 0;
        let births_closed = match was_closed {
            true if !mutant!("mvcc.open.closed") => old.births_end,
            _ => old.births_closed,
        };
        let raised = |end: u64, is_mutant: bool| end + if is_mutant { 0 } else { STEP };
        let root = Root {
            flags: old.flags & !Root::CLEAN,
            versions_end: raised(old.versions_end, mutant!("mvcc.open.versions")),
            births_end: raised(old.births_end, mutant!("mvcc.open.births")),
            births_closed,
            ..old
        };
        let volume = Arc::new(Volume::new(pool, &root, options));
        volume.table.claim(0..volume.space.pages(), Claim::WordsAsStored)?;
        // From here on a crash leaves the store unclean, and versions and births continue above.
        let begin = || volume.pool.set_root(root.to_words()).map_err(pool_error);
        let first_birth = if mutant!("mvcc.open.births") { 1 } else { old.births_end };
        // It is not known which tombstones were dropped before, unless they were held.
        let (held, horizon) = match root.held {
            0 => (u64::MAX, old.versions_end),
            held => (held - 1, held - 1),
        };
        let begin: &dyn Fn() -> Result<()> = &begin;
        let opening =
            Opening { was_closed, births_closed, first_birth, held, horizon, begin, progress };
        let map: Box<dyn Map> = match kind {
            MapKind::List => Box::new(List::open(&volume, &opening)?),
            MapKind::CowTree => Box::new(Tree::open(&volume, &opening)?),
        };
        let version = match map.log() {
            Some(log) => log.control().applied + 1,
            None if mutant!("mvcc.open.versions") => 1,
            None => old.versions_end,
        };
        Ok(Self::of(kind, volume, map, version, options))
    }

    fn of(
        kind: MapKind,
        volume: Arc<Volume>,
        map: Box<dyn Map>,
        version: u64,
        options: &Options,
    ) -> Self {
        // The header of a record has few bits for the length.
        let key_len_max = map.key_len_max(volume.space.page_size() as usize).min(KEY_LEN_MAX);
        let is_whole = map.is_whole();
        if is_whole {
            volume.adopted_all();
        }
        Self {
            key_len_max,
            kind,
            volume,
            map: MapLock::new(map),
            is_whole: AtomicBool::new(is_whole),
            making_whole: Mutex::new(()),
            holding: Mutex::new(()),
            growing: Mutex::new(()),
            next_version: AtomicU64::new(version),
            appended: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            visible: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            relaxed_bytes: AtomicU64::new(0),
            counts: coreplane_pmem::stripes::Stripes::default(),
            cursors: Mutex::new(Cursors::default()),
            windows: Windows::new(),
            expiries: Expiries::unknown(),
            durability: options.durability,
            check_reads: options.check_reads,
        }
    }
}
