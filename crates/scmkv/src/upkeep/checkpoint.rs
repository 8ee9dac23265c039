//! A checkpoint: a copy of the index in DRAM, so that an open need not read all logs.
//!
//! With the index in DRAM an open rebuilds it from the log, and its time grows with the data: ten
//! million records are read and looked up, one after the other. Most of them were in the index long
//! ago. So the index is copied to pages of the pool now and then, and an open reads the copy and
//! the log since then:
//!
//! ```text
//!   log    ─────────────────────────────┬──────────────▶
//!   index  (DRAM)      copy ──▶ pages ──┤ root: number, replay birth
//!   open                     the copy ──┘── and the log pages from here on
//! ```
//!
//! **The log stays the truth.** A checkpoint only saves reading. One that is missing, damaged or
//! incomplete costs time and nothing else: all logs are read then.
//!
//! # Taking one
//!
//! Writers go on meanwhile. The copy is *fuzzy*: group after group is copied under its lock
//! ([`transfer`](crate::table::index)), and each group is as it was at a moment of the copying.
//!
//! 1. *Births.* Log pages are numbered as they are opened. Note the next number, the *replay
//!    birth*; under the lock of each log, the cleaner's too, the birth of its open page; then the
//!    next number again, the *void birth*. Under its log's lock a record is published or in the
//!    log's open page: a write holds the lock from the append to the publication, and staged writes
//!    are committed before the page is sealed. So every record that is published after this point
//!    is in a page that was noted as open, or has at least the replay birth; all others are in the
//!    index.
//! 2. *Copy* the index into fresh pages, each with a checksum that is bound to its place.
//! 3. *Settle* the logs, if `relaxed` writes were made: the records that the copy names must be
//!    durable before the copy counts. Where a fence is a sync, early records are older than the
//!    copy and the same sync covers both.
//! 4. *Switch the root* to the new number. The first of the four fences of a root makes the pages
//!    durable too, before anything of the new root is stored.
//! 5. *Free* the pages of the old checkpoint. So there are two generations, one of which is whole
//!    at any time.
//!
//! A crash before 4 leaves pages that no root names, a crash after 4 perhaps those of the old
//! checkpoint: the next open frees them.
//!
//! # Loading it
//!
//! The slots go back to their places, except those whose page is no longer a log page or has at
//! least the void birth: their records have been moved or overwritten, or are in pages that are
//! read again. Then the log pages that were noted as open, those from the replay birth on, and all
//! that are unclean are read as after any crash ([`recover`](crate::recovery::recover)); the
//! greatest version of a key wins. Later openings are numbered above the void birth, so that a
//! number never stands for two uses of a page.
//!
//! Why nothing is missing: a live record is published in a page that is read again, or was
//! published before the copying began. In the second case the slot was copied, and is kept unless
//! the record's page is gone; pages are freed when their live records have been copied elsewhere or
//! replaced, in either case by a record in a page that is read again. Why nothing comes back from
//! the dead: the record that replaced or deleted one that the copy names is in a page that is read
//! again. Only a tombstone may be gone, and it goes when no page is left that was opened before it
//! was written: the record that it hid is gone with its page, and slots into that page are void.
//!
//! Slots between the two births are kept although their pages are read again. A batched record
//! there may have its commit record in a page that is *not*: the cleaner moves commit records to
//! the page that it has open, which can be older than the batch.
//!
//! # When
//!
//! At a close, if reading the log since the last one would cost more than taking one; in the
//! background when the log has grown by so much ([`Store::checkpoint_bound`]) that an open after a
//! crash would take long. It takes free pages, or pages that are cheap to clean, and leaves more
//! than the cleaner needs. A pool that is too full for that does without a checkpoint, and gives up
//! the one it has: pages that the cleaner lacks make every write dear.

use crate::store::Store;
use crate::table::checkpoint_format::{self, Draft, Moment, Sheet};
use crate::table::checkpoints::Current;
use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::table::log::Log;
use crate::table::page::{self, Kind};
use coreplane_engine::{Damage, Result, VerifyReport};
use coreplane_pmem::mutant;
use coreplane_pmem::spin::{Backoff, Held};
use coreplane_pmem::{PageWriter, WriteMode, epoch, spin};
use std::sync::atomic::Ordering;

/// The growth of the log at which a checkpoint is due in the background; or an eighth of the pool,
/// if that is less.
const GROWTH_MAX: u64 = 192 << 20;

/// Attempts to get a page while writers take all that are cleaned.
const PATIENCE: u32 = 4096;

/// Why a checkpoint is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// While writers go on: a close ends it.
    Running,
    /// The store is being closed.
    Closing,
}

/// A checkpoint that is being written.
struct Writing<'s> {
    store: &'s Store,
    occasion: Occasion,
    pages: Vec<u32>,
    moment: Moment,
}

impl Store {
    /// Bytes of log that an open would have to read, without those before the last checkpoint.
    fn replay_bytes(&self) -> u64 {
        let from = self.checkpoints.counted_from();
        (self.counters.get(Count::LogBytes) - from).max(0) as u64
    }

    fn index_bytes(&self) -> u64 {
        self.index.segments() * self.geometry.segment_bytes()
    }

    /// The bytes of log that may be written before a checkpoint is due: what an open reads in a
    /// moment, and enough that checkpoints are at most half of all that is written.
    fn checkpoint_bound(&self) -> u64 {
        GROWTH_MAX.min(self.pool_bytes() / 8).max(self.index_bytes())
    }

    /// Takes a checkpoint in the background, if one is due.
    ///
    /// # Errors
    /// If the medium fails or the index is damaged.
    pub(crate) fn checkpoint_if_due(&self) -> Result<()> {
        if self.index.in_pool() {
            return Ok(());
        }
        let has_one = self.checkpoints.number() != 0;
        if has_one
            && self.census_done.load(Ordering::Acquire)
            && !self.has_pages_for(0, Occasion::Running)
        {
            self.give_up_checkpoint()?;
        } else if self.replay_bytes() >= self.checkpoint_bound() {
            self.take_checkpoint()?;
        }
        Ok(())
    }

    /// Takes a checkpoint at a close, if it is worth it. All logs are sealed.
    ///
    /// # Errors
    /// As [`Store::checkpoint_if_due`].
    pub(crate) fn checkpoint_at_close(&self) -> Result<()> {
        if !self.index.in_pool() && self.replay_bytes() >= self.index_bytes() / 4 {
            self.write_checkpoint(Occasion::Closing)?;
        }
        Ok(())
    }

    /// Takes a checkpoint; false if none can be taken.
    ///
    /// # Errors
    /// As [`Store::checkpoint_if_due`].
    pub(crate) fn take_checkpoint(&self) -> Result<bool> {
        self.write_checkpoint(Occasion::Running)
    }

    fn write_checkpoint(&self, occasion: Occasion) -> Result<bool> {
        if self.index.in_pool() {
            return Ok(false);
        }
        if !self.has_space_for_checkpoint(occasion) {
            self.checkpoints.skip();
            return Ok(false);
        }
        let mut current = spin::lock(&self.checkpoints.current);
        let mut writing =
            Writing { store: self, occasion, pages: Vec::new(), moment: Moment::default() };
        let log_bytes = self.counters.get(Count::LogBytes);
        let number = current.number.max(self.root().checkpoint) + 1;
        let copied = writing.copy(number);
        if !matches!(copied, Ok(true)) {
            self.pages.free_all(&writing.pages)?;
            self.checkpoints.skip();
            return copied;
        }
        let Writing { pages, moment, .. } = writing;
        self.set_checkpoint(number, moment.replay_birth)?;
        let old = std::mem::replace(&mut *current, Current { number, pages });
        self.checkpoints.note_taken(number, log_bytes);
        self.pages.free_all(&old.pages)?;
        Ok(true)
    }

    /// True if there are pages for a checkpoint, free or to be cleaned, and more than writers and
    /// the cleaner need meanwhile.
    fn has_space_for_checkpoint(&self, occasion: Occasion) -> bool {
        let needed = checkpoint_format::pages_for(
            &self.geometry,
            self.index.segments(),
            self.logs.len() + 1,
        );
        // Some more: if it left just as many as are needed, it would soon be given up.
        let more = needed / 4 + 2;
        self.has_pages_for(needed + if occasion == Occasion::Running { more } else { 0 }, occasion)
    }

    fn has_pages_for(&self, needed: u64, occasion: Occasion) -> bool {
        let wanted = needed + u64::from(self.reserve(Demand::Insert) + 2 + self.pages.len() / 64);
        let free = u64::from(self.pages.refresh_free());
        // Before the census everything looks dead.
        let counted = self.census_done.load(Ordering::Acquire);
        let dead = || {
            if counted { self.reclaimable() / u64::from(self.geometry.page_size) } else { 0 }
        };
        free >= wanted || occasion == Occasion::Running && free + dead() / 2 >= wanted
    }

    /// Checks the pages of the checkpoint against their checksums.
    pub(crate) fn verify_checkpoint(&self, report: &mut VerifyReport) {
        let current = spin::lock(&self.checkpoints.current);
        let guard = epoch::pin();
        for page in &current.pages {
            let start = self.space.start_of(*page);
            let len = self.space.watermarks(*page).map_or(0, |(published, _)| published);
            let seed = self.seed(self.pages.cell(*page).generation(), start);
            let sheet = self
                .space
                .bytes(&guard, start, u64::from(len))
                .and_then(|bytes| Sheet::read(&self.geometry, bytes, seed));
            if sheet.is_none_or(|sheet| sheet.number != current.number) {
                let what = format!("page {page} of the checkpoint does not match its check");
                report.damages.push(Damage::new(start, what));
            }
            report.bytes += u64::from(len);
        }
    }
}

impl Writing<'_> {
    /// Copies the index into fresh pages, not durable yet; false if it was ended, or lacked pages.
    fn copy(&mut self, number: u64) -> Result<bool> {
        let Some(open) = self.note_births() else { return Ok(false) };
        let store = self.store;
        let mut draft = Draft::first(&store.geometry, number, self.moment, &open);
        let mut y = Some(0);
        while let Some(from) = y {
            if self.is_ended() {
                return Ok(false);
            }
            if !draft.has_room(&store.geometry) {
                if !self.write_page(&mut draft, false)? {
                    return Ok(false);
                }
                draft.next();
            }
            y = draft.add(|out| store.index.copy_segment(from, out))?;
        }
        Ok(self.write_page(&mut draft, true)? && self.settle()?)
    }

    fn is_ended(&self) -> bool {
        self.store.checkpoints.is_given_up()
            || self.occasion == Occasion::Running && self.store.closed.load(Ordering::Acquire)
    }

    /// Locks the log; none if the checkpoint was ended first.
    fn lock<'l>(&self, log: &'l spin::Lock<Log>) -> Option<Held<'l, Log>> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = log.try_lock() {
                return Some(held);
            }
            if self.is_ended() {
                return None;
            }
            backoff.wait();
        }
    }

    /// Notes the state of the log; returns the births of the open pages. None if the checkpoint was
    /// ended.
    fn note_births(&mut self) -> Option<Vec<u64>> {
        let store = self.store;
        let replay_birth = store.pages.next_birth();
        let birth_of =
            |log: &Log| log.page().map(|page| store.pages.cell(page).birth.load(Ordering::Acquire));
        let mut open = Vec::new();
        for log in &store.logs {
            open.extend(birth_of(&*self.lock(log)?));
        }
        open.extend(birth_of(spin::lock(&store.cleaner_state).log()));
        open.retain(|birth| *birth < replay_birth);
        self.moment = Moment { replay_birth, void_birth: store.pages.next_birth() };
        Some(open)
    }

    /// A fresh page, cleaned for if need be, as writers do; none if that would be dear.
    fn open_page(&self) -> Result<Option<PageWriter>> {
        let store = self.store;
        let half = u64::from(store.geometry.page_size) / 2;
        let mut backoff = Backoff::new();
        for _ in 0..PATIENCE {
            if let Some(page) = store.pages.pop_free(store.reserve(Demand::Insert)) {
                return store.pages.open_unfenced(page, 0, Kind::Checkpoint).map(Some);
            }
            // At a close no writer appends to the logs any more.
            if self.occasion == Occasion::Closing || self.is_ended() {
                return Ok(None);
            }
            let mut state = spin::lock(&store.cleaner_state);
            // Checked under the lock: a closed store's logs are sealed.
            // Pages on their way back are waited for: the cleaner's reserve is for writers.
            let awaited = store.pages.free_and_retired().1 > 0;
            let may_clean = store.census_done.load(Ordering::Acquire) && !self.is_ended();
            let is_cleaned = may_clean && !awaited && store.clean_one(&mut state, half)?.is_some();
            drop(state);
            if !is_cleaned && !awaited {
                return Ok(None);
            }
            backoff.wait();
        }
        Ok(None)
    }

    /// Writes the page under construction; false if there is no free page for it.
    fn write_page(&mut self, draft: &mut Draft, is_last: bool) -> Result<bool> {
        let store = self.store;
        let Some(mut writer) = self.open_page()? else { return Ok(false) };
        self.pages.push(writer.page());
        let start = writer.next_offset();
        let seed = store.seed(store.pages.cell(writer.page()).generation(), start);
        let bytes = draft.seal(seed, is_last);
        if store.space.append_mode() == WriteMode::NonTemporal {
            writer.append_nt(&[bytes]);
        } else {
            writer.append(&[bytes]);
            if !mutant!("scmkv.checkpoint.flush") {
                writer.flush_from(start);
            }
        }
        // For `verify`; nothing else reads it before the next open.
        writer.publish_early();
        Ok(true)
    }

    /// Makes durable the records that `relaxed` writers have published; false if the checkpoint was
    /// ended.
    fn settle(&self) -> Result<bool> {
        let store = self.store;
        if store.non_strict.load(Ordering::Acquire) && !mutant!("scmkv.checkpoint.unsettled") {
            for log in &store.logs {
                let Some(mut log) = self.lock(log) else { return Ok(false) };
                log.settle(store)?;
            }
            store.space.fence().map_err(page::sync_failed)?;
        }
        Ok(true)
    }
}
