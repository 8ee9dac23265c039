//! The durability of writes, and waiting for it, where a fence is a sync.
//!
//! On media that fence by an instruction every write is durable before it is visible, a `relaxed` write too, which
//! gains nothing there, and none of this is needed. On `file` media a write is visible at once, in a directory that
//! does not survive a crash. A writer that wants it durable waits for the sync that covers it, without the lock of
//! the leaf, so that concurrent writers share one sync. The ticket of the write is the *generation* of that sync.
//!
//! ```text
//!   append ─▶ flush ─▶ draw the generation, note it in the leaf ─▶ the place ─▶ unlock ─▶ wait
//! ```
//!
//! A leaf keeps the last two generations, and the places in its page from which on they hold. That is enough: syncs
//! come one after the other, so that when a generation is drawn, at most it and the one before it have not ended. A
//! `relaxed` write is not noted, and no caller waits for it.
//!
//! Data that a record replaces must not be destroyed before the record is durable: pages are given back when the
//! sync that covers everything flushed until then has ended
//! ([`Pages::give_back`](crate::volume::pages::Pages::give_back)).

use crate::volume::{Volume, chunk, pages_max};
use coreplane_engine::{Completion, Durability, Horizon, Outcome, Result, Ticket, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::chunked::Chunked;
use coreplane_record::{View, sync_failed};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The state of writes that are visible and may not be durable.
#[derive(Debug)]
pub(crate) struct Early {
    /// The generation that covers everything visible.
    last: AtomicU64,
    /// By the number of the page.
    leaves: Chunked<Pending>,
    /// By the number of the page: the generation that covers everything that was appended to it, at any level, and
    /// the change that made it.
    written: Chunked<AtomicU64>,
    /// Bytes of `relaxed` writes since a sync was requested.
    relaxed_bytes: AtomicU64,
}

/// The state of one leaf. Changed by the holder of its lock, while the leaf is marked as changing.
#[derive(Debug, Default)]
struct Pending {
    /// The last generation, and the place in the page from which on it holds.
    newer: AtomicU64,
    newer_from: AtomicU32,
    /// The same for the one before.
    older_from: AtomicU32,
    older: AtomicU64,
}

/// Leaves whose state is allocated together; fewer in a small pool.
const CHUNK: usize = 4096;

impl Early {
    /// None where a fence is an instruction.
    pub(crate) fn new(space: &Space) -> Option<Self> {
        let (pages_max, chunk) = (pages_max(space), chunk(space, CHUNK));
        let leaves = || Chunked::new(pages_max, chunk, Pending::default);
        (!space.fences_at_once()).then(|| Self {
            last: AtomicU64::new(0),
            leaves: leaves(),
            written: Chunked::new(pages_max, chunk, || AtomicU64::new(0)),
            relaxed_bytes: AtomicU64::new(0),
        })
    }

    /// Notes that a record at `offset` within `page`, covered by `generation`, is about to become visible.
    pub(crate) fn note(&self, page: u32, offset: u32, generation: u64) {
        let pending = self.leaves.get(page as usize);
        let newer = pending.newer.load(Ordering::Relaxed);
        if newer == generation {
            return;
        }
        pending.older.store(newer, Ordering::Relaxed);
        pending.older_from.store(pending.newer_from.load(Ordering::Relaxed), Ordering::Relaxed);
        pending.newer.store(generation, Ordering::Relaxed);
        pending.newer_from.store(offset, Ordering::Relaxed);
    }

    /// Notes that a page is about to become a leaf. All of it is durable, or depends on durable data, except for
    /// the superseded mark of its predecessor, which is flushed.
    pub(crate) fn begin(&self, page: u32) {
        self.wrote(page, self.last.load(Ordering::Acquire));
        let pending = self.leaves.get(page as usize);
        pending.newer.store(0, Ordering::Relaxed);
        pending.older.store(0, Ordering::Relaxed);
    }

    /// Notes that `generation` covers everything that was appended to a page.
    fn wrote(&self, page: u32, generation: u64) {
        self.written.get(page as usize).fetch_max(generation, Ordering::Relaxed);
    }

    /// The generation that covers the record at `offset` within `page`. Valid if the leaf has not changed
    /// meanwhile.
    fn covering(&self, page: u32, offset: u32) -> u64 {
        let pending = self.leaves.get(page as usize);
        let newer = pending.newer.load(Ordering::Relaxed);
        if newer > 0 && offset >= pending.newer_from.load(Ordering::Relaxed) {
            return newer;
        }
        let older = pending.older.load(Ordering::Relaxed);
        if older > 0 && offset >= pending.older_from.load(Ordering::Relaxed) { older } else { 0 }
    }
}

/// The durability that a write asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Durable before any answer rests on it.
    Covered,
    /// Visible to all readers at once.
    Relaxed,
}

impl Volume {
    pub(crate) fn level(&self, options: &WriteOptions) -> Level {
        match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => Level::Covered,
            Durability::Relaxed { .. } => Level::Relaxed,
        }
    }

    /// The generation that covers the flushed data, which is about to become visible; 0 if all of it is durable.
    #[inline]
    pub(crate) fn cover(&self) -> u64 {
        let Some(early) = &self.early else { return 0 };
        let generation = self.space.sync_generation();
        early.last.fetch_max(generation, Ordering::AcqRel);
        generation
    }

    /// Notes the generation that covers a record that is about to become visible; under the leaf's lock, while it
    /// is marked as changing.
    #[inline]
    pub(crate) fn note(&self, page: u32, offset: u32, generation: u64, level: Level) {
        let Some(early) = &self.early else { return };
        early.wrote(page, generation);
        if level == Level::Covered {
            early.note(page, offset, generation);
        }
    }

    /// True if everything that was appended to a page is durable, and so is the change that made its leaf: the next
    /// appended record states that. Under the leaf's lock.
    #[inline]
    pub(crate) fn is_proven(&self, page: u32) -> bool {
        let Some(early) = &self.early else { return true };
        let generation = early.written.get(page as usize).load(Ordering::Relaxed);
        generation == 0 || matches!(self.space.sync_is_done(generation), Ok(true))
    }

    /// Where a fence is a sync: the ticket that covers everything appended to a page, `relaxed` or not, if it is
    /// not durable yet. A write that finds nothing to do rests on that: a relaxed write may have done it.
    #[cold]
    pub(crate) fn unproven(&self, page: u32) -> Option<Ticket> {
        let early = self.early.as_ref()?;
        let generation = early.written.get(page as usize).load(Ordering::Relaxed);
        let is_done = generation == 0 || matches!(self.space.sync_is_done(generation), Ok(true));
        (!is_done).then(|| Ticket::new(0, generation))
    }

    /// The ticket for an answer based on the record at `offset` of the pool.
    #[inline]
    pub(crate) fn rests_on(&self, page: u32, offset: u64) -> Ticket {
        let Some(early) = &self.early else { return Ticket::DURABLE };
        let within = (offset - self.space.start_of(page)) as u32;
        let generation = early.covering(page, within);
        if generation == 0 || matches!(self.space.sync_is_done(generation), Ok(true)) {
            return Ticket::DURABLE;
        }
        Ticket::new(0, generation)
    }

    /// The ticket for an answer based on a key's record in its leaf, or on its absence: a newly written leaf may
    /// lack a record because it was deleted just now.
    #[inline]
    pub(crate) fn rests_on_old(&self, page: u32, old: Option<&View<'_>>) -> Ticket {
        self.rests_on(page, old.map_or(self.space.start_of(page), |old| old.offset))
    }

    /// The ticket that covers all of a leaf.
    #[inline]
    pub(crate) fn rests_on_leaf(&self, page: u32) -> Ticket {
        self.rests_on(page, self.space.start_of(page) + u64::from(u32::MAX))
    }

    /// The ticket of a write of `len` bytes that `generation` covers (0: it is durable). Makes sure that the write
    /// becomes durable in time if no caller waits for it.
    pub(crate) fn written_ticket(
        &self,
        generation: u64,
        len: usize,
        options: &WriteOptions,
    ) -> Ticket {
        let Some(early) = self.early.as_ref().filter(|_| generation > 0) else {
            return Ticket::DURABLE;
        };
        match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => Ticket::new(0, generation),
            Durability::Relaxed { window_bytes, window } => {
                let bytes = early.relaxed_bytes.fetch_add(len as u64, Ordering::AcqRel);
                if bytes + len as u64 > window_bytes {
                    early.relaxed_bytes.store(0, Ordering::Release);
                    self.space.sync_request(generation);
                } else {
                    self.windows.opened(window);
                }
                Ticket::DURABLE
            }
        }
    }

    /// Waits for the ticket of an outcome, if the caller waits.
    // Inlined, so that the outcome is made where it is returned: a copy right after it is made would wait for all
    // earlier stores, which include the appended record.
    #[inline(always)]
    pub(crate) fn finish(&self, outcome: Outcome, options: &WriteOptions) -> Result<Outcome> {
        if self.early.is_none() { Ok(outcome) } else { self.finish_early(outcome, options) }
    }

    #[cold]
    fn finish_early(&self, outcome: Outcome, options: &WriteOptions) -> Result<Outcome> {
        let ticket = self.wait_if_asked(outcome.ticket(), options)?;
        Ok(outcome.resting_on(ticket))
    }

    /// Waits for a ticket if the caller waits; otherwise makes sure that it becomes durable in time.
    pub(crate) fn wait_if_asked(&self, ticket: Ticket, options: &WriteOptions) -> Result<Ticket> {
        if ticket.is_durable() {
            return Ok(ticket);
        }
        if options.completion == Completion::Wait {
            self.wait_durable(&Horizon::from(ticket))?;
            return Ok(Ticket::DURABLE);
        }
        if let Durability::Group { max_delay, .. } = options.durability.unwrap_or(self.durability) {
            self.windows.opened(max_delay);
        }
        Ok(ticket)
    }

    /// The ticket of everything that is visible now, absences too.
    pub(crate) fn visible_ticket(&self) -> Ticket {
        let last = self.early.as_ref().map_or(0, |early| early.last.load(Ordering::Acquire));
        if last == 0 || matches!(self.space.sync_is_done(last), Ok(true)) {
            return Ticket::DURABLE;
        }
        Ticket::new(0, last)
    }

    /// Ends all open windows: where a fence is a sync, requests the sync of everything visible, without waiting for
    /// it.
    ///
    /// # Errors
    /// If the medium fails, or has failed.
    pub(crate) fn end_windows(&self) -> Result<()> {
        let ticket = self.visible_ticket();
        if !ticket.is_durable() {
            self.space.sync_request(ticket.position());
        }
        self.space.check_sync().map_err(sync_failed)
    }

    /// Requests the sync of all of `horizon`; returns whether it is durable.
    pub(crate) fn commit(&self, horizon: &Horizon) -> Result<bool> {
        if let Some(last) = horizon.tickets().iter().map(|ticket| ticket.position()).max() {
            self.space.sync_request(last);
        }
        self.is_durable(horizon)
    }

    pub(crate) fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        for ticket in horizon.tickets() {
            if !self.space.sync_is_done(ticket.position()).map_err(sync_failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        for ticket in horizon.tickets() {
            self.space.sync_wait(ticket.position()).map_err(sync_failed)?;
        }
        Ok(())
    }
}
