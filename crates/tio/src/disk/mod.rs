//! A disk over partitions: assigns extents to partitions, and requests to queue sets.
//!
//! ```text
//!   requests ─▶ their extents' partitions ─▶ set 0 … set n (one per partition) ─▶ partition 0 … n
//!                 │ for a new extent: the partition of the set to which the source is bound
//! ```
//!
//! All requests for an extent are executed by one set, from any connection: so a read sees earlier writes, and a pool
//! has one writer.

mod leftovers;
mod open;
mod run;
#[cfg(test)]
mod tests;

use crate::balance::{Balance, Load, Policy};
use crate::error::Result;
use crate::queue::QueueSet;
use crate::tio::Source;
use crate::volume::{Findings, Volume};
use coreplane_pmem::{MediaChoice, Medium};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

/// How requests reach the partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A queue set for each partition: the paper's driver.
    #[default]
    MultiQueue,
    /// One queue set for all partitions: the baseline of the paper.
    SingleQueue,
    /// No queue sets: each caller executes its requests, concurrently with others, as Linux's driver for persistent
    /// memory does.
    Sync,
}

/// `multi`, `single`, `sync`.
impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "multi" => Ok(Self::MultiQueue),
            "single" => Ok(Self::SingleQueue),
            "sync" => Ok(Self::Sync),
            _ => Err(format!("`{text}` is none of multi, single, sync")),
        }
    }
}

/// The options with which a disk is made and opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a new disk; rounded up to whole sectors.
    pub size: u64,
    /// Partitions of a new disk.
    pub partitions: u32,
    /// Bytes of a sector of a new disk.
    pub sector_len: u32,
    /// The medium.
    pub media: MediaChoice,
    /// How the queue set of a new source is chosen.
    pub policy: Policy,
    /// How requests reach the partitions.
    pub mode: Mode,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: 1 << 30,
            partitions: 4,
            sector_len: 4096,
            media: MediaChoice::Auto,
            policy: Policy::default(),
            mode: Mode::default(),
        }
    }
}

/// No partition has the extent.
const NOWHERE: u8 = u8::MAX;
/// The most partitions of a disk.
const PARTITIONS_MAX: u32 = 64;

/// The state that the threads of the sets share.
#[derive(Debug)]
struct Shared {
    volumes: Vec<Volume>,
    /// The partition of each extent.
    owners: Box<[AtomicU8]>,
    sets: Vec<QueueSet>,
    balance: Mutex<Balance>,
    /// Held while an extent is added to a partition.
    placing: Mutex<()>,
    mode: Mode,
    len: u64,
    /// The most bytes of a write that a queue set executes at once: where names wait, half of what the journal has
    /// room for, since the set would have to commit in between.
    write_max: u64,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    paths: Vec<PathBuf>,
}

impl Disk {
    /// Bytes of the disk.
    pub fn len(&self) -> u64 {
        self.shared.len
    }

    /// True if it has no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a sector.
    pub fn sector_len(&self) -> u32 {
        self.shared.volumes.first().map_or(0, |volume| volume.geometry().sector_len)
    }

    /// The pools of its partitions.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Its medium.
    pub fn medium(&self) -> Option<Medium> {
        self.shared.volumes.first().map(|volume| volume.pool().medium())
    }

    /// What a power cut would lose of the writes that are done, in words: the losses of the medium, or, if it has
    /// none, those before a flush.
    pub fn power_cut_loses(&self) -> String {
        match self.medium() {
            Some(medium) if !medium.power_safe || self.is_durable_at_once() => {
                medium.power_cut_loses
            }
            _ => "what was written since the last flush".to_owned(),
        }
    }

    /// True if a write is durable when it is done.
    pub fn is_durable_at_once(&self) -> bool {
        self.shared.volumes.iter().all(Volume::is_durable_at_once)
    }

    /// The number of flushed writes that may be lost, of unknown sectors, as the open has found: see
    /// [`Findings::unnamed`].
    pub fn unnamed(&self) -> u64 {
        self.shared.volumes.iter().map(|volume| volume.unnamed).sum()
    }

    /// The paper's table: how many devices each queue set has, and how often they write.
    pub fn loads(&self) -> Vec<Load> {
        self.shared.balance.lock().loads()
    }

    /// Announces a source: its device is bound to a queue set.
    pub fn join(&self, source: &Source) {
        let mut balance = self.shared.balance.lock();
        balance.join(source);
        balance.even_out();
    }

    /// Removes a source and its load.
    pub fn leave(&self, source: &Source) {
        let mut balance = self.shared.balance.lock();
        balance.leave(source);
        balance.even_out();
    }

    /// Makes all earlier writes durable, of all sources.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync), from then on.
    pub fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    /// Shows which parts of a range have blocks and which have none, in order, until `visit` returns false.
    pub fn status(&self, place: u64, len: u64, visit: &mut dyn FnMut(u64, bool) -> bool) {
        let end = place.saturating_add(len).min(self.len());
        let sector_len = u64::from(self.sector_len());
        let (mut at, mut start, mut before) = (place, place, None);
        while at < end {
            let has_block = self.shared.has_block(at / sector_len);
            if before.is_some_and(|before| before != has_block) {
                if !visit(at - start, !has_block) {
                    return;
                }
                start = at;
            }
            before = Some(has_block);
            let extent_len = self.shared.extent_len();
            let step = match self.shared.owner(at / extent_len) {
                Some(_) => sector_len,
                None => extent_len,
            };
            at = (at / step + 1) * step;
        }
        if let Some(has_block) = before {
            visit(end - start, has_block);
        }
    }

    /// Reads all sectors and checks them against their checksums, while requests go on. `progress` receives the
    /// number of extents read and their total.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Findings> {
        let mut findings = Findings::default();
        for volume in &self.shared.volumes {
            findings.repaired += volume.repaired;
        }
        findings.unnamed = self.unnamed();
        let extents = self.shared.owners.len() as u64;
        for extent in 0..extents {
            if let Some(volume) =
                self.shared.owner(extent).and_then(|at| self.shared.volumes.get(at))
            {
                findings.add(volume.verify_extent(extent)?);
            }
            progress(extent + 1, extents);
        }
        Ok(findings)
    }

    /// Reads the next extent that exists, from `next` on, and sets `next` to the one behind it; after the last extent
    /// it begins again. So damage is found while another copy may exist. It takes about a millisecond.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub fn scrub_next(&self, next: &mut u64) -> Result<Findings> {
        let extents = self.shared.owners.len() as u64;
        for _ in 0..extents {
            let extent = *next % extents;
            *next = extent + 1;
            let owner = self.shared.owner(extent);
            if let Some(volume) = owner.and_then(|at| self.shared.volumes.get(at)) {
                return volume.verify_extent(extent);
            }
        }
        Ok(Findings::default())
    }

    /// For tests: fails unless each page of the partitions is the block of one sector, a map page, or free.
    #[doc(hidden)]
    pub fn check_blocks(&self) -> std::result::Result<(), String> {
        self.shared.volumes.iter().try_for_each(Volume::check_blocks)
    }

    /// For tests: bytes of a partition of a disk with these options.
    #[doc(hidden)]
    pub fn partition_len(options: &Options) -> Result<u64> {
        open::geometry_of(options)?.partition_bytes(options.partitions)
    }

    /// Makes all writes durable, and ends the threads.
    ///
    /// # Errors
    /// As [`Disk::flush`].
    pub fn close(mut self) -> Result<()> {
        self.end();
        self.shared.commit()
    }

    /// Ends the threads.
    fn end(&mut self) {
        self.shared.sets.iter().for_each(QueueSet::close);
        for thread in self.threads.drain(..) {
            // A panic has already been reported.
            let _ended = thread.join().is_ok();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
        // A caller that needs the result uses `close`.
        let _committed = self.shared.commit().is_ok();
    }
}

impl Shared {
    fn owner(&self, extent: u64) -> Option<usize> {
        let owner = self.owners.get(usize::try_from(extent).ok()?)?.load(Ordering::Acquire);
        (owner != NOWHERE).then_some(usize::from(owner))
    }

    fn has_block(&self, sector: u64) -> bool {
        let Some(per) = self.volumes.first().map(|it| it.geometry().extent_sectors()) else {
            return false;
        };
        let owner = self.owner(sector / per).and_then(|at| self.volumes.get(at));
        owner.is_some_and(|volume| volume.has_block(sector))
    }

    /// The partition of an extent that is to be written. A new extent goes to that of the source's set, or, if that
    /// is full, to the one with most room.
    fn place(&self, extent: u64, source: &Source) -> Result<usize> {
        if let Some(owner) = self.owner(extent) {
            return Ok(owner);
        }
        let _alone = coreplane_pmem::spin::lock(&self.placing);
        if let Some(owner) = self.owner(extent) {
            return Ok(owner);
        }
        let bound = coreplane_pmem::spin::lock(&self.balance).set_of(source) % self.volumes.len();
        let by_room =
            (0..self.volumes.len()).max_by_key(|at| self.volumes.get(*at).map(Volume::room));
        let fits = |at: &usize| self.volumes.get(*at).is_some_and(|volume| volume.room() > 0);
        let owner = Some(bound).filter(fits).or(by_room).unwrap_or(bound);
        if let Some(volume) = self.volumes.get(owner) {
            volume.take_in(extent)?;
        }
        if let Some(place) = self.owners.get(extent as usize) {
            place.store(owner as u8, Ordering::Release);
        }
        Ok(owner)
    }

    /// Makes all writes durable, and stores their names.
    fn commit(&self) -> Result<()> {
        self.volumes.iter().try_for_each(Volume::commit)
    }

    fn flush(&self) -> Result<()> {
        let all = if coreplane_pmem::mutant!("tio.flush.one") { 1 } else { self.volumes.len() };
        let volumes: SmallVec<[&Volume; 8]> = self.volumes.iter().take(all).collect();
        begin_syncs(&volumes);
        volumes.iter().rev().try_for_each(|volume| volume.flush())
    }
}

/// Begins the syncs of all but the last of these partitions; the caller then syncs the last one and waits for the
/// others. Each is a separate file or device.
fn begin_syncs(volumes: &[&Volume]) {
    if let Some((_last, others)) = volumes.split_last() {
        others.iter().for_each(|volume| volume.begin_sync());
    }
}
