//! A thread's log: its open page, and the order in which a write becomes durable.
//!
//! ```text
//!   append ─▶ flush its lines and the previous slot ─▶ fence ─▶ publish (watermark, then slot)
//! ```
//!
//! One fence a write: the slot is durable at the *next* fence of this log. So at a crash the index
//! may lack the slot that the log published last, and recovery replays the open page. If another
//! thread makes that next fence, it flushes the slots' lines once more, since a flush counts only
//! at a fence of the thread that made it.
//!
//! The paper leaves records unflushed until their page is full and keeps them in memory as if
//! they were durable; that is `relaxed` here, with a bound.

use crate::table::Table;
use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::table::page::{Kind, sync_failed};
use crate::table::stage::StagedWrites;
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use coreplane_pmem::{FenceMark, PageWriter, WriteMode, fence_mark, thread_number};
use coreplane_record::Header;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a write of a log becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Flush and fence before it is published.
    Strict,
    /// Published when it is flushed and fenced, with others ([`staging`](crate::table::stage)).
    Staged,
    /// Published at once; durable with the next sync. For indexes that do not outlive a crash.
    Early,
    /// Published at once; flushed and fenced once `window_bytes` have gathered.
    Relaxed {
        /// The bytes that trigger a flush.
        window_bytes: u64,
        /// The longest time until a flush.
        window: Duration,
    },
}

/// A log. Its owner holds its mutex.
#[derive(Debug)]
pub(crate) struct Log {
    id: u16,
    writer: Option<PageWriter>,
    generation: u32,
    /// The page information table has no proof yet that the open page holds a durable record.
    is_unproven: bool,
    /// Bytes appended to the open page that are live, added to its cell when it is full.
    appended: i64,
    /// The offset from which bytes must be flushed before the next fence.
    unflushed: Option<u64>,
    /// The slots that were published since the last fence.
    unfenced: Vec<u64>,
    /// How many of `unfenced`, from the first, are flushed, and by which thread; none if by
    /// several.
    flushed: usize,
    flushed_by: Option<usize>,
    /// The sync generation that covers the last early write.
    early: u64,
    /// Free pages that are set aside for the current batch.
    spare: Vec<u32>,
    /// The last demand that may append to the open page; the page is left alone by those behind it.
    open_to: Demand,
    /// Bytes at the end of the open page that are not paid for ([`reserve`](crate::clean::reserve)).
    withheld: u32,
    /// Writes in the page that are not committed and whose groups are locked.
    staged: StagedWrites,
}

/// The error of an append for which no room was made.
const NO_ROOM: Error = Error::NoSpace { needed: 0, reclaimable: 0 };

/// A record that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Log {
    pub(crate) fn new(id: u16) -> Self {
        Self {
            id,
            writer: None,
            generation: 0,
            is_unproven: false,
            appended: 0,
            unflushed: None,
            unfenced: Vec::new(),
            flushed: 0,
            flushed_by: None,
            early: 0,
            spare: Vec::new(),
            open_to: Demand::Insert,
            withheld: 0,
            staged: StagedWrites::default(),
        }
    }

    /// The number of the log.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Raises the number of pages set aside for [`Log::make_room`] to `pages`; false if fewer than
    /// `reserve` free pages would be left by that.
    pub(crate) fn set_aside(&mut self, store: &Table, pages: u32, reserve: u32) -> bool {
        let lacking = pages.saturating_sub(self.aside());
        if lacking == 0 {
            return true;
        }
        let Some(taken) = store.pages.take(lacking, reserve) else { return false };
        self.spare.extend(taken);
        true
    }

    /// Pages set aside.
    pub(crate) fn aside(&self) -> u32 {
        self.spare.len() as u32
    }

    /// Gives back the pages that were set aside and not used.
    pub(crate) fn give_back(&mut self, store: &Table) {
        store.pages.put_back(&mut self.spare);
    }

    /// Bytes that fit without a new page.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.writer.as_ref().map_or(0, |writer| writer.remaining() as usize)
    }

    /// Bytes that fit without a new page, are open to `demand` and are paid for.
    #[inline]
    pub(crate) fn room_for(&self, demand: Demand) -> usize {
        let paid = self.room().saturating_sub(self.withheld as usize);
        if demand > self.open_to { 0 } else { paid }
    }

    /// False if the open page is left to earlier demands.
    pub(crate) fn is_open_to(&self, demand: Demand) -> bool {
        demand <= self.open_to
    }

    /// Opens the open page to the demands up to `demand`.
    pub(crate) fn open_to(&mut self, demand: Demand) {
        self.open_to = demand;
    }

    /// Marks the last `len` bytes of the open page as not paid for.
    pub(crate) fn withhold(&mut self, len: usize) {
        self.withheld = len as u32;
    }

    /// Marks `len` more bytes as paid for.
    pub(crate) fn release(&mut self, len: usize) {
        let withheld = self.room().min(self.withheld as usize);
        self.withheld = withheld.saturating_sub(len) as u32;
    }

    /// Makes `len` bytes fit the open page; opens another page if needed and if more than `reserve`
    /// pages are free. False if there is no page.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn make_room(&mut self, store: &Table, len: usize, reserve: u32) -> Result<bool> {
        if self.room() >= len {
            return Ok(true);
        }
        if len > store.geometry.page_size as usize {
            return Err(Error::NoSpace { needed: len as u64, reclaimable: 0 });
        }
        let page = self.spare.pop().or_else(|| store.pages.pop_free(reserve));
        let Some(page) = page else { return Ok(false) };
        let writer = store.pages.open_log(page, self.id, Kind::Log)?;
        self.seal(store)?;
        self.generation = store.pages.cell(writer.page()).generation();
        self.writer = Some(writer);
        self.is_unproven = true;
        let free = store.pages.refresh_free();
        let leaves = |demand: &Demand| {
            let left = store.reserve(*demand);
            reserve >= left || free >= left
        };
        let all = [Demand::Insert, Demand::Overwrite];
        self.open_to = all.into_iter().find(leaves).unwrap_or(Demand::Reserve);
        self.withheld = store.due(free);
        Ok(true)
    }

    /// Ends the open page.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn seal(&mut self, store: &Table) -> Result<()> {
        self.settle(store)?;
        if let Some(writer) = self.writer.take() {
            let (page, length) = (writer.page(), writer.tail());
            drop(writer);
            store.end_early(page);
            if length == 0 {
                return store.pages.free(page);
            }
            let cell = store.pages.cell(page);
            cell.live.fetch_add(self.appended, Ordering::Relaxed);
            self.appended = 0;
            store.pages.seal(page, length, store.clock_seconds())?;
        }
        Ok(())
    }

    /// Makes everything published durable, slots included.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn settle(&mut self, store: &Table) -> Result<()> {
        store.commit_staged(self)?;
        if let (Some(start), Some(writer)) = (self.unflushed.take(), &self.writer)
            && !mutant!("scmkv.log.settle_flush")
        {
            writer.flush_from(start);
        }
        self.fence(store)?;
        if let Some(writer) = &self.writer
            && let Some((published, _)) = store.space.watermarks(writer.page())
        {
            store.space.mark_durable(writer.page(), published);
        }
        Ok(())
    }

    /// Flushes everything that [`Log::commit_since`], which follows in the same thread, makes
    /// durable.
    #[inline]
    pub(crate) fn flush(&mut self, store: &Table) -> FenceMark {
        if let (Some(start), Some(writer)) = (self.unflushed.take(), &self.writer) {
            writer.flush_from(start);
        }
        self.flush_unfenced(store);
        fence_mark()
    }

    /// As [`Log::commit`] of a strict write, for bytes that were flushed before `mark`. Fences
    /// unless the thread has made a fence since, for another pool.
    ///
    /// # Errors
    /// If the medium fails: none of these bytes is readable then.
    #[inline]
    pub(crate) fn commit_since(&mut self, store: &Table, mark: FenceMark) -> Result<()> {
        if !mutant!("scmkv.log.fence") {
            store.space.fence_since(mark).map_err(sync_failed)?;
        }
        self.unfenced.clear();
        self.flushed = 0;
        if let Some(writer) = &mut self.writer {
            writer.publish();
        }
        Ok(())
    }

    /// Fences the flushes of this thread, and the slots that were published since the last fence.
    #[inline]
    fn fence(&mut self, store: &Table) -> Result<()> {
        self.flush_unfenced(store);
        self.unfenced.clear();
        self.flushed = 0;
        if mutant!("scmkv.log.fence") {
            return Ok(());
        }
        store.space.fence().map_err(sync_failed)
    }

    /// Makes this thread flush all slots that were published since the last fence, unless it has.
    #[inline]
    fn flush_unfenced(&mut self, store: &Table) {
        if !self.unfenced.is_empty() {
            if self.flushed_by != Some(thread_number()) {
                self.flushed = 0;
            }
            self.flush_published(store);
        }
    }

    /// Flushes the published slots that are not flushed yet. Not at their publication: the next
    /// locked instruction would wait until the line has left the processor, and each write executes
    /// some before its record. Together with the record, the flush overlaps the lookup.
    #[inline]
    fn flush_published(&mut self, store: &Table) {
        let me = Some(thread_number());
        self.flushed_by = if self.flushed == 0 || self.flushed_by == me { me } else { None };
        if !mutant!("scmkv.log.slot_flush") {
            self.unfenced[self.flushed..].iter().for_each(|at| store.index.flush_line(*at));
        }
        self.flushed = self.unfenced.len();
    }

    /// Appends a record, for which room was made. It is neither durable nor visible before
    /// [`Log::commit`], which gets the same `order` and follows in the same thread unless that is
    /// `Staged`.
    ///
    /// # Errors
    /// If there is no room after all.
    #[inline]
    pub(crate) fn append(
        &mut self,
        store: &Table,
        header: &Header,
        key: &[u8],
        value: &[&[u8]],
        order: Order,
    ) -> Result<Appended> {
        let Some(writer) = &mut self.writer else { return Err(NO_ROOM) };
        let offset = writer.next_offset();
        let durable = store.space.watermarks(writer.page()).map(|(_, durable)| durable);
        let follows = (durable == Some(writer.tail()) || mutant!("scmkv.log.follows"))
            && self.unflushed.is_none();
        let is_due = self.is_unproven && !mutant!("scmkv.log.prove");
        if is_due && follows && writer.tail() > 0 {
            store.pages.prove(writer.page())?;
            self.is_unproven = false;
        }
        let header = Header { follows, ..*header };
        let encoded = header.encode(store.seed(self.generation, offset), key, value);
        let past_caches =
            order == Order::Strict && store.space.append_mode() == WriteMode::NonTemporal;
        let mut write = |parts: &[&[u8]]| {
            if past_caches { writer.append_nt(parts) } else { writer.append(parts) }
        };
        let appended = match value {
            [] => write(&[encoded.bytes(), key]),
            [value] => write(&[encoded.bytes(), key, value]),
            parts => {
                let mut all = vec![encoded.bytes(), key];
                all.extend_from_slice(parts);
                write(&all)
            }
        };
        if appended.is_none() {
            return Err(NO_ROOM);
        }
        if !past_caches && matches!(order, Order::Strict | Order::Staged | Order::Early) {
            self.unflushed.get_or_insert(offset);
        }
        let len = (writer.next_offset() - offset) as u32;
        if order == Order::Strict {
            self.flush_published(store);
        }
        self.appended += i64::from(len);
        store.counters.add(Count::LogBytes, i64::from(len));
        Ok(Appended { offset, len })
    }

    /// Takes back the record that was appended last and not committed: the next append starts
    /// there, and no crash brings it back.
    ///
    /// # Errors
    /// If the medium fails.
    #[cold]
    pub(crate) fn take_back(&mut self, store: &Table, appended: Appended) -> Result<()> {
        self.unflushed = None;
        self.forget_live(appended.len);
        store.counters.add(Count::LogBytes, -i64::from(appended.len));
        let Some(writer) = &mut self.writer else { return Ok(()) };
        store.space.fence().map_err(sync_failed)?;
        if writer.rewind(appended.offset) && writer.append(&[&[0; 8]]).is_some() {
            writer.flush_from(appended.offset);
            store.space.fence().map_err(sync_failed)?;
            writer.rewind(appended.offset);
        }
        Ok(())
    }

    /// Makes the bytes appended from `offset` on durable, as `order` demands, and readable.
    ///
    /// # Errors
    /// If the medium fails: none of these bytes is readable then.
    #[inline]
    pub(crate) fn commit(&mut self, store: &Table, offset: u64, order: Order) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        match order {
            Order::Strict | Order::Staged => {
                if let Some(start) = self.unflushed.take()
                    && !mutant!("scmkv.log.flush")
                {
                    writer.flush_from(start);
                }
                self.fence(store)?;
                if let Some(writer) = &mut self.writer {
                    writer.publish();
                }
            }
            Order::Early => {
                if let Some(start) = self.unflushed.take() {
                    writer.flush_from(start);
                }
                // Before any reader can see the record.
                self.early = if mutant!("scmkv.log.note") {
                    store.space.sync_generation()
                } else {
                    store.note_early(writer.page(), writer.tail())
                };
                writer.publish_early();
            }
            Order::Relaxed { window_bytes, window } => {
                let start = *self.unflushed.get_or_insert(offset);
                let gathered = writer.next_offset() - start;
                // An early write that no sync has covered yet may precede it in the page.
                writer.publish_early();
                if gathered >= window_bytes {
                    self.settle(store)?;
                } else {
                    store.windows.opened(window);
                }
            }
        }
        Ok(())
    }

    /// Notes that the slot at `at` was published: it is durable with the next fence of this log.
    #[inline]
    pub(crate) fn note_published(&mut self, store: &Table, at: u64) {
        if store.index.in_pool() {
            self.unfenced.push(at);
        }
    }

    /// The generation that covers the last early write.
    #[inline]
    pub(crate) fn early_generation(&self) -> u64 {
        self.early
    }

    /// True if a staged or published write is not flushed yet.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unflushed.is_some() || self.has_staged()
    }

    /// True if writes wait for a commit.
    #[inline]
    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The writes that wait for a commit.
    #[inline]
    pub(crate) fn staged(&mut self) -> &mut StagedWrites {
        &mut self.staged
    }

    /// Bytes of the open page that were live when they were appended.
    pub(crate) fn live_bytes(&self) -> i64 {
        self.appended
    }

    /// The generation of the open page.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The open page.
    pub(crate) fn page(&self) -> Option<u32> {
        self.writer.as_ref().map(PageWriter::page)
    }

    /// The offset of the next record in the open page.
    pub(crate) fn next_offset(&self) -> u64 {
        self.writer.as_ref().map_or(0, PageWriter::next_offset)
    }

    /// The `len` bytes just appended are not live.
    pub(crate) fn forget_live(&mut self, len: u32) {
        self.appended -= i64::from(len);
    }

    /// The open page, and up to where it is filled.
    pub(crate) fn tail(&self) -> Option<(u32, u32)> {
        self.writer.as_ref().map(|writer| (writer.page(), writer.tail()))
    }
}
