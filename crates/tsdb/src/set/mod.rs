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
//! - A view is what readers go by: a head that takes points in, one that is being sealed, and segments. Whoever has a view has
//!   all that was published before; a point that moves from one to the next is in the old view in its old place.
//!
//! Where a fence is a sync nobody waits for it under a lock: who has appended goes away and waits, and publishes, behind that,
//! whatever of the log is durable, in its order.

mod last;
mod merge;
mod open;
mod seal;

pub(crate) use last::{LastKey, LastPoint, later};
pub(crate) use open::Opening;

use crate::error::Result;
use crate::head::Head;
use crate::log::Log;
use crate::manifest::Manifest;
use crate::pages::Pages;
use crate::rows::{Batch, ShardId};
use crate::segment::Segment;
use coreplane_pmem::{mutant, spin};
use last::Lasts;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What readers go by.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// Takes points in.
    pub(crate) active: Arc<RwLock<Head>>,
    /// Is being sealed: and the page of the log from which on that has later points.
    pub(crate) frozen: Option<(Arc<RwLock<Head>>, u64)>,
    /// Of each shard, the oldest first.
    pub(crate) segments: BTreeMap<ShardId, Vec<Arc<Segment>>>,
}

/// Records that are in the log and not durable yet.
#[derive(Debug)]
struct Waiting {
    /// Of the sync that covers them.
    generation: u64,
    /// Where the log ends behind them.
    place: u64,
    batch: Batch,
    /// The head that takes them in.
    head: Arc<RwLock<Head>>,
}

/// The log of the head, and who waits for its syncs.
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
    /// Of the one who seals: the frozen head is his.
    sealing: Mutex<()>,
    /// Of the one who merges: nobody else takes segments away. Points may be sealed meanwhile, to segments that come behind all
    /// others of their shards.
    merging: Mutex<()>,
    next_segment: AtomicU32,
    /// The last sealed points that were asked for.
    lasts: Lasts,
    /// Shards that cannot be merged.
    damaged: Mutex<BTreeSet<ShardId>>,
    /// Bytes of records that the active head has.
    head_bytes: AtomicU64,
    /// What was durable once and was found to be damaged.
    pub(crate) damage: Vec<String>,
}

/// Free pages that are left to sealing, to the manifest and to the catalogue.
const RESERVE: usize = 6;

impl Set {
    /// What readers go by now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&spin::read(&self.view))
    }

    fn set_view(&self, change: impl FnOnce(&mut View)) {
        let mut place = spin::write(&self.view);
        let mut view = View::clone(&place);
        change(&mut view);
        *place = Arc::new(view);
    }

    /// Nothing is sealed or merged until it is dropped.
    pub(crate) fn hold(&self) -> [MutexGuard<'_, ()>; 2] {
        [spin::lock(&self.merging), spin::lock(&self.sealing)]
    }

    /// Bytes of records that the active head has.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// The number of the segment that is begun next.
    pub(crate) fn next_segment(&self) -> u32 {
        self.next_segment.load(Ordering::Relaxed)
    }

    /// True if a head has points of a shard.
    pub(crate) fn is_filled(&self, shard: ShardId) -> bool {
        let view = self.view();
        let mut heads = view.frozen.iter().map(|(head, _)| head).chain([&view.active]);
        heads.any(|head| spin::read(head).has_shard(shard))
    }

    /// Bytes that a record of the log can have.
    pub(crate) fn record_max(&self) -> usize {
        Log::record_max(&self.pages)
    }

    /// How many last values are known, and the bytes that they take.
    pub(crate) fn known_lasts(&self) -> (u64, u64) {
        self.lasts.count_and_bytes()
    }

    /// The pages of its logs.
    pub(crate) fn log_pages(&self) -> Vec<u32> {
        let head: Vec<u32> = spin::lock(&self.log).log.page_list().collect();
        head.into_iter().chain(spin::lock(&self.manifest).page_list()).collect()
    }

    /// Ends its logs, as far as that can be: what is damaged from now on is told from what was never written.
    pub(crate) fn end(&self) {
        spin::lock(&self.log).log.end(&self.pages);
        spin::lock(&self.manifest).end(&self.pages);
    }

    /// Appends rows to the log. Where a fence is an instruction they are durable and published when it returns, otherwise when
    /// [`Set::finish`] of what it returns has.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) and [`Error::Sync`](crate::Error::Sync), after which some of the rows may be there.
    pub(crate) fn append(&self, batch: Batch) -> Result<u64> {
        let mut held = spin::lock(&self.log);
        self.pages.space().check_sync()?;
        let log = &mut held.log;
        let reserve = RESERVE + log.page_count();
        let mut records = batch.records();
        let mut appended = 0;
        let outcome = records.try_for_each(|record| {
            log.append(&self.pages, record, reserve)?;
            appended += 1;
            Ok(())
        });
        drop(records);
        if appended == 0 {
            return outcome.map(|()| 0);
        }
        let mut batch = batch;
        batch.truncate(appended);
        let head = Arc::clone(&self.view().active);
        self.head_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if self.pages.space().fences_at_once() {
            if mutant!("tsdb.publish.early") {
                publish(&head, &batch);
            }
            log.fence(&self.pages)?;
            if !mutant!("tsdb.publish.early") {
                publish(&head, &batch);
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

    /// Asks for the sync that makes durable what was appended, without waiting for it.
    pub(crate) fn request(&self, generation: u64) {
        if !self.pages.space().fences_at_once() {
            self.pages.space().sync_request(generation);
        }
    }

    /// Waits until what was appended is durable, and publishes it, with all that came before.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), for ever after.
    pub(crate) fn finish(&self, generation: u64) -> Result<()> {
        if self.pages.space().fences_at_once() {
            return Ok(());
        }
        if !mutant!("tsdb.sync.wait") {
            self.pages.space().sync_wait(generation)?;
        }
        let mut log = spin::lock(&self.log);
        while let Some(first) = log.waiting.pop_front_if(|it| it.generation <= generation) {
            publish(&first.head, &first.batch);
            log.log.note_durable(first.place);
        }
        Ok(())
    }
}

/// Lets readers see the records of a batch.
fn publish(head: &RwLock<Head>, batch: &Batch) {
    let mut head = spin::write(head);
    batch.records().for_each(|record| head.take_in(record, |_, _| true));
}
