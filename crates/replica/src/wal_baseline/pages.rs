//! The log and its checkpoints as pages of a pool: written by stores, durable by flushes and a fence.
//!
//! # The picture
//!
//! ```text
//!   root    checkpoint 7, life 3
//!   pages   │log 7, byte 0│checkpoint 7, byte 0│ free │log 6: void│log 7, byte 65472│ …
//! ```
//!
//! Each page states its contents (`page_header`), and the root states which checkpoint counts. Nothing else is on the
//! medium: no list of pages, no end of the log. A start reads all headers. Parts with a smaller number than the
//! checkpoint that counts are void, and so is every other checkpoint; their pages are free without being erased.
//!
//! # Invariants
//!
//! - A log exists, by the header of its first page, before the checkpoint of its number is begun. So no two drafts of
//!   a checkpoint have the same number, whatever remains of the first after a power cut.
//! - The header of a page and the frames in it may become durable in any order before the fence of a commit: frames
//!   without a header belong to no part, and a log ends where frames are missing.
//! - The pages of a part are free once the root that makes it void is durable.
//! - After a start, frames behind the end that it has found go to a new page, of another life, whose header is durable
//!   before there is a second one.

use super::index::{Extent, Index};
use super::page_header::{self, PageHeader, seed_of};
use super::storage::{Draft, Part, Room, Storage, Stored, SyncCall, Tail};
use super::{WalBaseline, corrupt};
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{
    CreateOptions, MediaChoice, Medium, OpenOptions, PageWriter, Pen, Pool, Recovery, Space,
    SyncError, WriteMode, mutant,
};
use coreplane_record::{pool_error, sync_failed};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

// media-format: begin pool
/// The words of the root: the checkpoint that counts, or 0; and the life.
const CHECKPOINT: usize = 0;
const LIFE: usize = 1;
// media-format: end

/// A pool of logs and checkpoints.
pub(super) struct Pages(Arc<Shared>);

struct Shared {
    pool: Pool,
    space: Arc<Space>,
    /// The pool's own seed of checksums.
    seed: u32,
    life: u64,
    index: Mutex<Index>,
    free: Mutex<Vec<u32>>,
}

fn create_options(size: u64, page_size: u32, media: MediaChoice) -> CreateOptions {
    let (kind, parameters) = (WalBaseline::KIND.to_owned(), [0; 8]);
    CreateOptions { size, media, page_size, kind, parameters }
}

impl Pages {
    /// Makes a pool without a log.
    pub(super) fn create(
        path: &Path,
        size: u64,
        page_size: u32,
        media: MediaChoice,
    ) -> Result<Self> {
        let pool = Pool::create(path, &create_options(size, page_size, media));
        let made = Self::of(pool.map_err(pool_error)?);
        if made.is_err() {
            // If it cannot be removed, a pool without a log remains.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        made
    }

    pub(super) fn open(path: &Path, media: MediaChoice) -> Result<Self> {
        let pages = Self::of(Pool::open(path, &OpenOptions { media }).map_err(pool_error)?)?;
        pages.0.pool.fault_in();
        Ok(pages)
    }

    pub(super) fn simulated_create(space: Arc<Space>) -> Result<Self> {
        let options = create_options(space.len(), space.page_size(), MediaChoice::Auto);
        Self::of(Pool::simulated_create(space, &options).map_err(pool_error)?)
    }

    pub(super) fn simulated_open(space: Arc<Space>) -> Result<Self> {
        Self::of(Pool::simulated_open(space).map_err(pool_error)?)
    }

    /// Finds the parts in the pages.
    fn of(pool: Pool) -> Result<Self> {
        pool.expect_kind(WalBaseline::KIND).map_err(pool_error)?;
        let mut root = pool.root();
        let checkpoint = root[CHECKPOINT];
        let space = Arc::clone(pool.space());
        let (seed, index, free) = (crc32c::crc32c(&pool.uuid()), Index::default(), Vec::new());
        let is_there = |header: &PageHeader| match header.part {
            Part::Checkpoint(number) => number > 0 && number == checkpoint,
            Part::Log(number) => number >= checkpoint,
        };
        let mut found = Found { space: &space, index, free };
        let mut recovery = space.recovery().ok_or_else(in_use)?;
        // From the last page to the first, so that the first ones are used first.
        for page in (pool.first_page()..space.pages()).rev() {
            if !recovery.adopt(page, space.page_size()) {
                return Err(in_use());
            }
            let header = space
                .bytes(&recovery.pin(), space.start_of(page), page_header::LEN as u64)
                .and_then(|bytes| PageHeader::decode(bytes, seed));
            match header.filter(is_there) {
                Some(header) => found.index.add(page, header, payload(&space)),
                None => found.give_up(&mut recovery, page)?,
            }
        }
        let name = |part| name_of(&pool, part);
        let void = found.index.settle();
        let void = void.map_err(|part| corrupt(&name(part), 0, "a page is missing"))?;
        void.into_iter().try_for_each(|page| found.give_up(&mut recovery, page))?;
        let Found { index, free, .. } = found;
        root[LIFE] += 1;
        pool.set_root(root).map_err(pool_error)?;
        drop(recovery);
        let (index, free, life) = (Mutex::new(index), Mutex::new(free), root[LIFE]);
        Ok(Self(Arc::new(Shared { pool, space, seed, life, index, free })))
    }
}

/// The result of a start so far.
struct Found<'s> {
    space: &'s Arc<Space>,
    index: Index,
    free: Vec<u32>,
}

impl Found<'_> {
    /// Frees a page that holds nothing.
    fn give_up(&mut self, recovery: &mut Recovery, page: u32) -> Result<()> {
        recovery.cut(page, 0);
        Pen::new(self.space).take_up(page).map_err(|_| in_use())?.abandon();
        self.free.push(page);
        Ok(())
    }
}

fn in_use() -> Error {
    Error::Unusable("a page of the pool is in use".to_owned())
}

fn name_of(pool: &Pool, part: Part) -> String {
    let name = pool.path().map(|path| path.display().to_string()).unwrap_or_default();
    match part {
        Part::Checkpoint(number) => format!("checkpoint {number} in {name}"),
        Part::Log(number) => format!("log {number} in {name}"),
    }
}

/// Bytes of frames in a page.
fn payload(space: &Space) -> u64 {
    u64::from(space.page_size()) - page_header::LEN as u64
}

impl Storage for Pages {
    fn name(&self) -> &'static str {
        "wal-pool"
    }

    fn medium(&self) -> Medium {
        self.0.pool.medium()
    }

    fn parts(&self) -> Result<Vec<Part>> {
        Ok(self.0.index.lock().parts.keys().copied().collect())
    }

    fn name_of(&self, part: Part) -> String {
        name_of(&self.0.pool, part)
    }

    fn read(&self, part: Part) -> Result<Stored> {
        let Shared { space, index, seed, .. } = self.0.as_ref();
        let extents: Vec<Extent> = index.lock().parts.get(&part).cloned().unwrap_or_default();
        let mut stored = Stored::default();
        for Extent { page, life, offset, len } in extents {
            let published = space.watermarks(page).map_or(0, |(published, _)| published);
            let written = u64::from(published).saturating_sub(page_header::LEN as u64);
            if written == 0 {
                // The page was just begun.
                continue;
            }
            let at = space.start_of(page) + page_header::LEN as u64;
            let guard = space.pin();
            let bytes = space.bytes(&guard, at, written.min(len)).ok_or_else(in_use)?;
            stored.seeds.push((offset, seed_of(*seed, part, life)));
            stored.bytes.extend_from_slice(bytes);
        }
        Ok(stored)
    }

    fn open_log(&self, number: u64, len: u64) -> Result<Box<dyn Tail>> {
        let (shared, part) = (&self.0, Part::Log(number));
        let cut = shared.index.lock().cut(part, len);
        shared.release(cut);
        let extents = shared.index.lock().parts.get(&part).cloned().unwrap_or_default();
        // A killed process may not have flushed all of it.
        let killed = extents.iter().filter(|_| !mutant!("replica.wal.killed"));
        for extent in killed {
            shared.space.flush(shared.space.start_of(extent.page), shared.space.page_size().into());
        }
        let is_continued = !extents.is_empty();
        let mut writer =
            PartWriter { shared: Arc::clone(shared), part, writer: None, len, is_continued };
        if extents.is_empty() {
            writer.turn()?;
        }
        shared.space.fence().map_err(sync_failed)?;
        Ok(Box::new(PageTail(writer)))
    }

    fn begin_checkpoint(&self, number: u64) -> Result<Box<dyn Draft>> {
        let (shared, part) = (Arc::clone(&self.0), Part::Checkpoint(number));
        let writer = PartWriter { shared, part, writer: None, len: 0, is_continued: false };
        Ok(Box::new(PageDraft { writer, is_published: false }))
    }

    fn remove_before(&self, number: u64) -> Result<()> {
        let void = self.parts()?.into_iter().filter(|part| part.number() < number);
        for part in void {
            let pages = self.0.index.lock().remove(part);
            self.0.release(pages);
        }
        Ok(())
    }

    fn room(&self) -> Option<Room> {
        let Shared { pool, space, .. } = self.0.as_ref();
        let least = payload(space);
        let all = u64::from(space.pages() - pool.first_page()) * least;
        Some(Room { all, left: self.0.pages_left() * least, least })
    }
}

impl Shared {
    /// Pages that are free, or will be when no reader uses them any more.
    fn pages_left(&self) -> u64 {
        (self.free.lock().len() + self.space.retired_len()) as u64
    }

    /// Gives up pages that have no writer.
    fn release(&self, pages: Vec<u32>) {
        for page in pages {
            let _is_retired = self.space.retire(page);
        }
    }

    /// Claims a free page.
    fn claim(&self) -> Result<u32> {
        let mut backoff = Backoff::new();
        loop {
            let mut free = self.free.lock();
            if free.is_empty() {
                self.space.reclaim_all(|page| free.push(page));
            }
            if let Some(page) = free.pop() {
                return Ok(page);
            }
            if self.space.retired_len() == 0 {
                let needed = self.space.page_size().into();
                return Err(Error::NoSpace { needed, reclaimable: 0 });
            }
            drop(free);
            // A reader holds the pages for a moment.
            backoff.wait();
        }
    }

    fn fence(&self) -> std::result::Result<(), SyncError> {
        if mutant!("replica.wal.unfenced") {
            return Ok(());
        }
        self.space.fence()
    }
}

/// Writes a part, page after page.
struct PartWriter {
    shared: Arc<Shared>,
    part: Part,
    writer: Option<PageWriter>,
    len: u64,
    /// The part was begun in an earlier life, and has no page of this one yet.
    is_continued: bool,
}

impl PartWriter {
    fn seed(&self) -> u32 {
        seed_of(self.shared.seed, self.part, self.shared.life)
    }

    fn remaining(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.remaining().into())
    }

    /// Continues in another page.
    fn turn(&mut self) -> Result<()> {
        self.end_page();
        let Shared { space, index, seed, life, .. } = self.shared.as_ref();
        let page = self.shared.claim()?;
        let header = PageHeader { part: self.part, life: *life, offset: self.len };
        index.lock().add(page, header, payload(space));
        let bytes = header.encode(*seed);
        self.writer = Some(space.claim_log(page).ok_or_else(in_use)?);
        self.store(&bytes);
        if std::mem::take(&mut self.is_continued) && !mutant!("replica.wal.continued") {
            // Without it a later page of this life would look as if it belonged behind a page that is missing.
            self.shared.fence().map_err(sync_failed)?;
        }
        Ok(())
    }

    /// Stores the whole words that fit into the page.
    fn store(&mut self, bytes: &[u8]) {
        let mode = self.shared.space.append_mode();
        let Some(writer) = &mut self.writer else { return };
        match mode {
            WriteMode::NonTemporal => _ = writer.append_nt(&[bytes]),
            WriteMode::Cached => {
                let at = writer.append(&[bytes]);
                if let Some(at) = at.filter(|_| !mutant!("replica.wal.unflushed")) {
                    writer.flush_from(at);
                }
            }
        }
    }

    /// Appends whole frames; durable after a fence. If they do not all fit, none is written.
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        let more = (bytes.len() as u64).saturating_sub(self.remaining());
        if more.div_ceil(payload(&self.shared.space)) > self.shared.pages_left() {
            return Err(Error::NoSpace { needed: more, reclaimable: 0 });
        }
        while !bytes.is_empty() {
            if self.remaining() == 0 {
                self.turn()?;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.remaining() as usize));
            self.store(now);
            self.len += now.len() as u64;
            bytes = rest;
        }
        if let Some(writer) = &mut self.writer {
            writer.publish_early();
        }
        Ok(())
    }

    /// Gives up the page being written.
    fn end_page(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.finish_early();
        }
    }
}

/// The log being written.
struct PageTail(PartWriter);

impl Tail for PageTail {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.append(bytes)
    }

    fn seed(&self) -> u32 {
        self.0.seed()
    }

    fn len(&self) -> u64 {
        self.0.len
    }

    fn syncer(&self) -> SyncCall {
        let shared = Arc::clone(&self.0.shared);
        Arc::new(move || shared.fence().map_err(|error| error.0))
    }

    fn is_synced_at_once(&self) -> bool {
        self.0.shared.space.fences_at_once()
    }

    fn finish(&mut self) -> Result<()> {
        // Older bytes may follow in the page.
        let mut bytes = Vec::new();
        super::frame::Frame::End { count: 0 }.encode(&mut bytes, self.seed());
        self.0.append(&bytes)?;
        self.0.end_page();
        Ok(())
    }
}

struct PageDraft {
    writer: PartWriter,
    is_published: bool,
}

impl Draft for PageDraft {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.append(bytes)
    }

    fn seed(&self) -> u32 {
        self.writer.seed()
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        let Shared { pool, space, .. } = self.writer.shared.as_ref();
        space.fence().map_err(sync_failed)?;
        let mut root = pool.root();
        root[CHECKPOINT] = self.writer.part.number();
        // From here on this checkpoint may be the one that counts, whatever fails.
        self.is_published = true;
        pool.set_root(root).map_err(pool_error)
    }
}

impl Drop for PageDraft {
    fn drop(&mut self) {
        self.writer.end_page();
        if !self.is_published {
            let PartWriter { shared, part, .. } = &self.writer;
            let pages = shared.index.lock().remove(*part);
            shared.release(pages);
        }
    }
}
