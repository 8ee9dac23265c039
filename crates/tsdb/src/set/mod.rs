//! A queue set: the log of its head, its head, and its segments, in a pool of its own.
//!
//! ```text
//!   write ─▶ records to the log ─ fence ─▶ the active head ─┐
//!                                                           ├─▶ readers
//!   seal: active ─▶ frozen ─▶ segments ─ fence ─▶ manifest ─┘       log pages are free
//! ```
//!
//! # What holds
//!
//! - A point is in the head once it is durable in the log, and readers see it then: *fence, then publish*.
//! - Points are in the head in the order of the log, so that the same point wins before and after an opening.
//! - Readers use a view: a head that takes points in, one that is being sealed, and segments. A view has all points
//!   that were published before it; a point that moves from one of these to the next stays in its old place in
//!   the old view.
//!
//! Where a fence is a sync, no thread waits for it under a lock: a writer appends its records, releases the
//! lock and waits. Then it publishes all records of the log that are durable, in the order of the log.

mod garbage;
mod last;
mod merge;
mod open;
mod presence;
mod seal;

pub(crate) use last::{LastKey, LastPoint, later};
pub(crate) use merge::Extent;
pub(crate) use open::Opening;

use crate::error::{Error, Result};
use crate::head::{COLUMN, Head};
use crate::log::Log;
use crate::manifest::Manifest;
use crate::pages::{FOR_DROPS, FOR_SEALING, Pages};
use crate::rows::{Batch, ShardId};
use crate::segment::Segment;
use coreplane_pmem::{mutant, spin};
use last::Lasts;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The data that readers use.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// The head that takes points in.
    pub(crate) active: Arc<RwLock<Head>>,
    /// The head that is being sealed, and the first page of the log that has later points.
    pub(crate) frozen: Option<(Arc<RwLock<Head>>, u64)>,
    /// The segments of each shard, the oldest first.
    pub(crate) segments: BTreeMap<ShardId, Vec<Arc<Segment>>>,
}

/// Records that are in the log and not durable yet.
#[derive(Debug)]
struct Waiting {
    /// The generation of the sync that covers them.
    generation: u64,
    /// The end of the log behind them.
    place: u64,
    batch: Batch,
    /// The head that takes them in.
    head: Arc<RwLock<Head>>,
}

/// The log of the head, and the records that wait for its syncs.
#[derive(Debug)]
struct HeadLog {
    log: Log,
    waiting: VecDeque<Waiting>,
}

/// A queue set.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) pages: Arc<Pages>,
    log: Mutex<HeadLog>,
    manifest: Mutex<Manifest>,
    view: RwLock<Arc<View>>,
    /// Held by the thread that seals: the frozen head is its own.
    sealing: Mutex<()>,
    /// Held by the thread that merges: no other thread removes segments. Points may be sealed meanwhile, to
    /// segments that come behind all others of their shards.
    merging: Mutex<()>,
    pub(crate) next_segment: AtomicU32,
    /// The last sealed points that were asked for.
    lasts: Lasts,
    /// The number of drops of series that may have had points, since the opening; one more if there were any before.
    series_drops: AtomicU64,
    /// Shards that cannot be merged.
    damaged: Mutex<BTreeSet<ShardId>>,
    /// The size of the active head: bytes of its records, and [`COLUMN_SHARE`] for each column.
    head_bytes: AtomicU64,
    /// The log of the head has taken a good part of the pages that it may take: there is more room once its points are
    /// sealed.
    is_short: AtomicBool,
    /// Durable data that was found to be damaged.
    pub(crate) damage: Vec<String>,
}

impl Set {
    /// The view that readers use now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&spin::read(&self.view))
    }

    fn set_view(&self, change: impl FnOnce(&mut View)) {
        let mut place = spin::write(&self.view);
        let mut view = View::clone(&place);
        change(&mut view);
        *place = Arc::new(view);
    }

    /// Keeps segments from being sealed or merged until the guards are dropped.
    pub(crate) fn hold(&self) -> [MutexGuard<'_, ()>; 2] {
        [spin::lock(&self.merging), spin::lock(&self.sealing)]
    }

    /// The size of the active head, in bytes.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// True if points are to be sealed though their head is small, since its log lacks pages.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Pages that the points of heads take at most when they are sealed: full ones, and the last ones of segments, one
    /// for each shard.
    fn unsealed_pages(&self, log: &Log) -> (usize, usize) {
        let view = self.view();
        let heads = view.frozen.iter().map(|(head, _)| head).chain([&view.active]);
        let (mut bytes, mut shards) = (0, 0);
        for head in heads {
            let head = spin::read(head);
            (bytes, shards) = (bytes + head.sealed_bytes(), shards + head.shards());
        }
        let pages = bytes.div_ceil(u64::from(self.pages.page_len())) as usize;
        (log.page_count().max(pages), shards)
    }

    /// Notes whether sealing would make room that the log of the head needs; `is_full` if it has got no page.
    fn note_room(&self, log: &Log, is_full: bool) {
        let (pages, shards) = self.unsealed_pages(log);
        let is_little = is_full || self.pages.free_count() <= FOR_SEALING + 2 * (pages + shards);
        self.is_short.store(is_little && pages > shards.max(1), Ordering::Relaxed);
    }

    /// Notes that series were dropped whose points may still be there.
    pub(crate) fn note_dropped_series(&self) {
        self.series_drops.fetch_add(1, Ordering::Release);
    }

    /// Read before the points of series are looked at: those of a later drop are looked for again.
    fn series_drops(&self) -> u64 {
        self.series_drops.load(Ordering::Acquire)
    }

    /// The number of the next segment to be begun.
    pub(crate) fn next_segment(&self) -> u32 {
        self.next_segment.load(Ordering::Relaxed)
    }

    /// True if a head has points of a shard.
    pub(crate) fn is_filled(&self, shard: ShardId) -> bool {
        let view = self.view();
        let mut heads = view.frozen.iter().map(|(head, _)| head).chain([&view.active]);
        heads.any(|head| spin::read(head).has_shard(shard))
    }

    /// The maximum length of a record of the log, in bytes.
    pub(crate) fn record_max(&self) -> usize {
        Log::record_max(&self.pages)
    }

    /// The number of cached last values, and the bytes that they take.
    pub(crate) fn known_lasts(&self) -> (u64, u64) {
        self.lasts.count_and_bytes()
    }

    /// The pages of its logs.
    pub(crate) fn log_pages(&self) -> Vec<u32> {
        let head: Vec<u32> = spin::lock(&self.log).log.page_list().collect();
        head.into_iter().chain(spin::lock(&self.manifest).page_list()).collect()
    }

    /// Ends its logs, if possible, so that later damage can be told from records that were never written.
    pub(crate) fn end(&self) {
        spin::lock(&self.log).log.end(&self.pages);
        spin::lock(&self.manifest).end(&self.pages);
    }

    /// Appends rows to the log. Where a fence is an instruction they are durable and published when it returns,
    /// otherwise once [`Set::finish`] of the returned generation has returned.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Sync`], after which some of the rows may be there.
    pub(crate) fn append(&self, batch: Batch) -> Result<u64> {
        let mut held = spin::lock(&self.log);
        self.pages.space().check_sync()?;
        let log = &mut held.log;
        let (pages, shards) = self.unsealed_pages(log);
        let (pages, before) = (pages + shards, log.page_count());
        let mut records = batch.records();
        let mut appended = 0;
        // Rows with many columns need more pages when they are sealed than in the log.
        let outcome = match self.pages.free_count() < FOR_DROPS + pages {
            true => Err(Error::Full("no page is left for points to be sealed".to_owned())),
            false => records.try_for_each(|record| {
                log.append(&self.pages, record, FOR_SEALING + pages)?;
                appended += 1;
                Ok(())
            }),
        };
        drop(records);
        if outcome.is_err() || log.page_count() > before {
            self.note_room(log, outcome.is_err());
        }
        if appended == 0 {
            return outcome.map(|()| 0);
        }
        let mut batch = batch;
        batch.truncate(appended);
        let head = Arc::clone(&self.view().active);
        self.head_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if self.pages.space().fences_at_once() {
            if mutant!("tsdb.publish.early") {
                self.publish(&head, &batch);
            }
            log.fence(&self.pages)?;
            if !mutant!("tsdb.publish.early") {
                self.publish(&head, &batch);
            }
            return outcome.map(|()| 0);
        }
        let (place, generation) = (log.tail(), self.pages.space().sync_generation());
        held.waiting.push_back(Waiting { generation, place, batch, head });
        drop(held);
        match outcome {
            Ok(()) => Ok(generation),
            Err(error) => {
                self.finish(generation)?;
                Err(error)
            }
        }
    }

    /// Asks for the sync that makes appended records durable, without waiting for it.
    pub(crate) fn request(&self, generation: u64) {
        if !self.pages.space().fences_at_once() {
            self.pages.space().sync_request(generation);
        }
    }

    /// Waits until the appended records are durable, and publishes them, with all that came before.
    ///
    /// # Errors
    /// [`Error::Sync`], also at all later calls.
    pub(crate) fn finish(&self, generation: u64) -> Result<()> {
        if self.pages.space().fences_at_once() {
            return Ok(());
        }
        if !mutant!("tsdb.sync.wait") {
            self.pages.space().sync_wait(generation)?;
        }
        let mut log = spin::lock(&self.log);
        while let Some(first) = log.waiting.pop_front_if(|it| it.generation <= generation) {
            self.publish(&first.head, &first.batch);
            log.log.note_durable(first.place);
        }
        Ok(())
    }

    /// Lets readers see the records of a batch. The caller has the lock of the log.
    fn publish(&self, head: &Arc<RwLock<Head>>, batch: &Batch) {
        let mut held = spin::write(head);
        let before = held.columns();
        batch.records().for_each(|record| held.take_in(record, |_, _| true));
        let columns = held.columns() - before;
        drop(held);
        if Arc::ptr_eq(head, &self.view().active) {
            self.head_bytes.fetch_add(columns * COLUMN_SHARE, Ordering::Relaxed);
        }
    }
}

/// The share of a column in the size of a head. A head of many columns with few points takes several times the bytes of
/// its records, in DRAM and when it is sealed: so it takes not many times the bytes at which it is sealed.
const COLUMN_SHARE: u64 = COLUMN / 4;
