//! The page information table: the use of each page, durable, and its live bytes, in DRAM.
//!
//! The paper's table has an element per page in one segment at the front, which bounds the pool.
//! Here the first page of every *stretch* of pages holds the elements of that stretch, so that
//! the table grows with the pool. An element is half a line:
//!
//! ```text
//!   0   state    kind (4) | log (12) | generation (32)     sealed
//!   8   length   bytes of records, once the page is full   sealed; 0 while it is open
//!                (32) | ended by a recovery (1)
//!   16  birth    number of the opening                     sealed
//!   24  proof    generation of the page, once a record in it is durable for sure     sealed
//!                (element of page 0: the clock's high-water mark)
//! ```
//!
//! The state word is stored last and shares its line with the others, so a reader that sees it sees
//! the others too. That of a page that is freed is stored first, since the others of a free page do not
//! count. A *generation* is drawn at every opening and is part of each record's checksum: the remains of
//! an earlier use of the page never pass for records. A *birth* orders the openings of all pages (see
//! [`clean`](crate::clean) for its role for tombstones).
//!
//! The *proof* is written with the first append that finds the earlier records of its page durable,
//! normally the second. An open page with a proof and no readable record was damaged; a crash did
//! not leave it empty.
//!
//! The live bytes of a page change with every write and are kept in DRAM alone, as in the paper.
//! They steer the cleaner, and correctness does not depend on them.

mod element;
mod free;
mod restore;

pub(crate) use element::{Element, Kind, NONE_CAN_BE_READ};
pub(crate) use restore::restored;

use coreplane_engine::{Error, Result};
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::mutant;
use coreplane_pmem::pool::HEADER_LEN;
use coreplane_pmem::{Claim, Durable, PageWriter, Space, Word};
use coreplane_record::sealed;
pub(crate) use coreplane_record::sync_failed;
use element::{CUT, ELEMENT_LEN};
use free::Readiness;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// A page in DRAM.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Kind in the low byte, generation above: [`Cell::kind`], [`Cell::generation`].
    state: AtomicU64,
    /// Number of the opening.
    pub(crate) birth: AtomicU64,
    /// Bytes of live records; may pass below 0 for a moment.
    pub(crate) live: AtomicI64,
    /// Bytes that moving the page writes in addition to its live bytes.
    pub(crate) toll: AtomicI64,
    /// While this is above 0, the cleaner leaves the page alone.
    pub(crate) pins: AtomicU32,
    /// Bytes of records, 0 while the page is open.
    pub(crate) length: AtomicU32,
    /// When the page was filled, in seconds since the store was opened; for its age.
    pub(crate) sealed_at: AtomicU32,
    /// Whether syncs of it are small: a [`Readiness`].
    readiness: Readiness,
}

impl Cell {
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::from_bits(self.state.load(Ordering::Acquire) & 0xff)
    }

    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        (self.state.load(Ordering::Acquire) >> 8) as u32
    }

    /// Keeps the cleaner away.
    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    fn set(&self, kind: Kind, generation: u32) {
        self.state.store(u64::from(generation) << 8 | kind as u64, Ordering::Release);
    }
}

/// Checks that a page can be loaded from: otherwise a load would end the process.
///
/// # Errors
/// If it cannot.
pub(crate) fn check_loads(space: &Space, page: u32) -> Result<()> {
    // Which of its bytes cannot be read takes longer to tell.
    if space.can_load(page..page + 1) {
        return Ok(());
    }
    match space.probe_loads(page) {
        Err(lost) if !mutant!("scmkv.open.unprobed") => {
            Err(Error::Corrupt { offset: lost.offset, what: "unreadable (poisoned)".to_owned() })
        }
        _ => Ok(()),
    }
}

/// All pages of a pool.
#[derive(Debug)]
pub(crate) struct Pages {
    space: Arc<Space>,
    /// Pages with an element; while the pool grows, it has more.
    count: AtomicU32,
    cells: Chunked<Cell>,
    free: Mutex<VecDeque<u32>>,
    free_len: AtomicU32,
    /// Pages taken off the free queue to be made ready; changed under the lock of the queue.
    preparing: AtomicU32,
    next_birth: AtomicU64,
}

impl Pages {
    pub(crate) fn new(space: Arc<Space>, pages_max: usize) -> Self {
        Self {
            count: AtomicU32::new(space.pages()),
            space,
            cells: Chunked::new(pages_max, 512, Cell::default),
            free: Mutex::default(),
            free_len: AtomicU32::new(0),
            preparing: AtomicU32::new(0),
            next_birth: AtomicU64::new(1),
        }
    }

    /// Elements in the first page of a stretch, and so the pages of a stretch.
    fn stretch(&self) -> u32 {
        (self.space.page_size() - HEADER_LEN as u32) / ELEMENT_LEN as u32
    }

    fn table_page(&self, page: u32) -> u32 {
        page / self.stretch() * self.stretch()
    }

    /// True for a page that holds elements.
    pub(crate) fn is_table(&self, page: u32) -> bool {
        self.table_page(page) == page
    }

    pub(crate) fn element_offset(&self, page: u32) -> u64 {
        self.space.start_of(self.table_page(page))
            + HEADER_LEN
            + u64::from(page % self.stretch()) * ELEMENT_LEN
    }

    /// A word of the table.
    pub(crate) fn word(&self, offset: u64) -> Result<Word<'_, Durable>> {
        self.space.word(offset).ok_or_else(|| Error::Corrupt {
            offset,
            what: "no page information table here".to_owned(),
        })
    }

    pub(crate) fn cell(&self, page: u32) -> &Cell {
        self.cells.get(page as usize)
    }

    /// Pages of the pool, as far as they have an element.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        self.cells.bytes()
    }

    /// Writes the elements of the pages `from ..` of a pool that is new or has grown, durable when
    /// it returns. No thread can take these pages before [`Pages::offer`].
    pub(crate) fn format(&self, from: u32) -> Result<()> {
        let pages = self.space.pages();
        if from == pages {
            return Ok(());
        }
        for page in (from..pages).filter(|page| self.is_table(*page)) {
            if page != 0 && !self.space.claim_words(page, Claim::Words) {
                return Err(Error::Unusable(format!("page {page} is in use already")));
            }
        }
        for page in from..pages {
            let kind = if self.is_table(page) { Kind::Table } else { Kind::Free };
            self.write_element(page, kind, 0, 0, 0)?;
        }
        self.persist_elements(from..pages)?;
        self.count.store(pages, Ordering::Release);
        Ok(())
    }

    /// Makes the elements of `pages` durable as they are in the caches.
    fn persist_elements(&self, pages: Range<u32>) -> Result<()> {
        let mut start = pages.start;
        while start < pages.end {
            let end = (self.table_page(start) + self.stretch()).min(pages.end);
            self.space.flush(self.element_offset(start), u64::from(end - start) * ELEMENT_LEN);
            start = end;
        }
        self.space.fence().map_err(sync_failed)
    }

    /// Stores an element: the state word last, that of a free page first. Not flushed.
    // media-format: begin pool
    pub(crate) fn write_element(
        &self,
        page: u32,
        kind: Kind,
        log: u16,
        generation: u32,
        birth: u64,
    ) -> Result<()> {
        let offset = self.element_offset(page);
        let content = kind as u64 | u64::from(log & 0xfff) << 4 | u64::from(generation) << 16;
        let birth_word = sealed::seal(birth & sealed::CONTENT_MAX, offset + 16);
        let mut words = [(8, 0), (16, birth_word), (0, sealed::seal(content, offset))];
        // A log page without its birth would look older than it is: slots of an old checkpoint would count in it.
        if kind == Kind::Free && !mutant!("scmkv.page.free_last") {
            words.rotate_right(1);
        }
        for (at, word) in words {
            self.word(offset + at)?.store(word);
        }
        let cell = self.cell(page);
        cell.set(kind, generation);
        cell.birth.store(birth, Ordering::Release);
        cell.length.store(0, Ordering::Release);
        cell.live.store(0, Ordering::Release);
        cell.toll.store(0, Ordering::Release);
        Ok(())
    }
    // media-format: end

    /// Reads the durable element of `page`.
    pub(crate) fn element(&self, page: u32) -> Result<Element> {
        let offset = self.element_offset(page);
        let damaged = |at: u64| Error::Corrupt {
            offset: at,
            what: format!("page information of page {page} does not match its check"),
        };
        // Each word is loaded once: the page may change meanwhile.
        let word = |at: u64| -> Result<u64> { Ok(self.word(at)?.load()) };
        let open = |at: u64, sealed: u64| sealed::open(sealed, at).ok_or_else(|| damaged(at));
        let state = open(offset, word(offset)?)?;
        let kind = Kind::from_bits(state & 0xf).ok_or_else(|| damaged(offset))?;
        let mut element = Element {
            kind,
            log: (state >> 4 & 0xfff) as u16,
            generation: (state >> 16) as u32,
            length: None,
            is_cut: false,
            birth: 0,
            is_proven: false,
        };
        // The other words of a free page do not count, whatever they are.
        if kind == Kind::Free {
            return Ok(element);
        }
        if let length @ 1.. = word(offset + 8)? {
            let sealed = open(offset + 8, length)?;
            (element.length, element.is_cut) = (Some(sealed as u32), sealed & CUT != 0);
        }
        element.birth = open(offset + 16, word(offset + 16)?)?;
        // In page 0 this word is the clock's mark. A proof that does not match its check proves
        // nothing.
        let proof = if page == 0 { 0 } else { word(offset + 24)? };
        let generation = u64::from(element.generation);
        element.is_proven = sealed::open(proof, offset + 24) == Some(generation);
        Ok(element)
    }

    /// Notes that the log page `page` holds a durable record; the note is durable at this thread's
    /// next fence.
    // media-format: begin pool
    #[cold]
    pub(crate) fn prove(&self, page: u32) -> Result<()> {
        let offset = self.element_offset(page) + 24;
        let generation = u64::from(self.cell(page).generation());
        self.word(offset)?.store(sealed::seal(generation, offset));
        self.space.flush(offset, 8);
        Ok(())
    }
    // media-format: end

    /// Reads the table of an existing pool, whose first `formatted` pages have elements, into DRAM:
    /// claims the pages of the table and of an index that is used, and lists the free pages. Log
    /// pages are left to recovery, and pages of an index that is not used to [`Pages::free_index`].
    pub(crate) fn load(&self, formatted: u32, uses_index: bool) -> Result<Vec<(u32, Element)>> {
        let mut elements = Vec::with_capacity(formatted as usize);
        let mut birth_max = 0;
        self.claim_table(formatted)?;
        for page in 0..formatted {
            let mut element = self.element(page)?;
            if element.kind == Kind::Log && element.length == Some(0) {
                // No record was ever written to it.
                element.kind = Kind::Free;
            }
            let cell = self.cell(page);
            cell.set(element.kind, element.generation);
            cell.birth.store(element.birth, Ordering::Release);
            birth_max = birth_max.max(element.birth);
            match element.kind {
                Kind::Free => self.push_free(page),
                Kind::Index if uses_index => self.claim(page, Claim::WordsAsStored)?,
                Kind::Index | Kind::Table | Kind::Log | Kind::Checkpoint => {}
            }
            elements.push((page, element));
        }
        self.next_birth.store(birth_max + 1, Ordering::Release);
        Ok(elements)
    }

    /// Makes the table of the first `formatted` pages readable, unless a repair of the same pool
    /// has done so, and durable: a process that was killed may have left elements, and the clock's
    /// mark, in the caches alone. What is stored from now on rests on them, and a power cut must
    /// not take them back.
    ///
    /// # Errors
    /// If one cannot be read, or the medium fails.
    pub(crate) fn claim_table(&self, formatted: u32) -> Result<()> {
        for page in (0..formatted).filter(|page| self.is_table(*page)) {
            check_loads(&self.space, page)?;
            if self.word(self.element_offset(page)).is_err() {
                self.claim(page, Claim::WordsAsStored)?;
            }
        }
        if mutant!("scmkv.open.elements") {
            return Ok(());
        }
        self.persist_elements(0..formatted)
    }

    fn claim(&self, page: u32, claim: Claim) -> Result<()> {
        if self.space.claim_words(page, claim) {
            Ok(())
        } else {
            Err(Error::Unusable(format!("page {page} cannot be claimed")))
        }
    }

    /// The number that the next opening will get.
    pub(crate) fn next_birth(&self) -> u64 {
        self.next_birth.load(Ordering::Acquire)
    }

    /// Openings from now on get numbers of at least `birth`.
    pub(crate) fn raise_next_birth(&self, birth: u64) {
        self.next_birth.fetch_max(birth, Ordering::AcqRel);
    }

    /// Opens a page that the caller has taken off the free queue for records, its element durable when it returns.
    pub(crate) fn open_log(&self, page: u32, log: u16, kind: Kind) -> Result<PageWriter> {
        let writer = self.open_unfenced(page, log, kind)?;
        if !mutant!("scmkv.page.open_flush") {
            self.persist(page)?;
        }
        Ok(writer)
    }

    /// As [`Pages::open_log`], its element durable at this thread's next fence.
    pub(crate) fn open_unfenced(&self, page: u32, log: u16, kind: Kind) -> Result<PageWriter> {
        let life = if mutant!("scmkv.page.same_life") { 0 } else { 1 };
        let generation = self.cell(page).generation().wrapping_add(life);
        let birth = self.next_birth.fetch_add(1, Ordering::AcqRel);
        let Some(writer) = self.space.claim_log(page) else {
            return Err(Error::Unusable(format!("free page {page} is in use")));
        };
        self.cell(page).readiness.note_used();
        self.write_element(page, kind, log, generation, birth)?;
        if !mutant!("scmkv.page.open_flush") {
            self.space.flush(self.element_offset(page), ELEMENT_LEN);
        }
        Ok(writer)
    }

    /// Opens a free page for index segments, zeroed and durable as an index page when it returns.
    pub(crate) fn open_index(&self, reserve: u32) -> Result<Option<u32>> {
        let Some(page) = self.pop_free(reserve) else { return Ok(None) };
        self.claim(page, Claim::Words)?;
        self.cell(page).readiness.note_used();
        let start = self.space.start_of(page);
        self.space.persist(start, u64::from(self.space.page_size())).map_err(sync_failed)?;
        let generation = self.cell(page).generation().wrapping_add(1);
        let birth = self.next_birth.fetch_add(1, Ordering::AcqRel);
        self.write_element(page, Kind::Index, 0, generation, birth)?;
        self.persist(page)?;
        Ok(Some(page))
    }

    fn persist(&self, page: u32) -> Result<()> {
        self.space.persist(self.element_offset(page), ELEMENT_LEN).map_err(sync_failed)
    }

    /// Notes durably that `page` is full with `length` bytes of records. Its records are durable
    /// already.
    pub(crate) fn seal(&self, page: u32, length: u32, now_s: u32) -> Result<()> {
        self.seal_as(page, u64::from(length), now_s)
    }

    /// As [`Pages::seal`], of a page that a crash has left open.
    pub(crate) fn seal_cut(&self, page: u32, length: u32) -> Result<()> {
        self.seal_as(page, u64::from(length) | CUT, 0)
    }

    fn seal_as(&self, page: u32, content: u64, now_s: u32) -> Result<()> {
        let (offset, length) = (self.element_offset(page) + 8, content as u32);
        self.word(offset)?.store(sealed::seal(content, offset));
        let cell = self.cell(page);
        cell.sealed_at.store(now_s, Ordering::Relaxed);
        cell.length.store(length, Ordering::Release);
        self.space.persist(offset, 8).map_err(sync_failed)
    }

    /// Frees a log or checkpoint page: durably free when it returns, used again only when no
    /// reader can hold a slice of it.
    pub(crate) fn free(&self, page: u32) -> Result<()> {
        self.free_all(&[page])
    }

    /// As [`Pages::free`], with one fence for all pages.
    pub(crate) fn free_all(&self, pages: &[u32]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        for page in pages {
            let generation = self.cell(*page).generation();
            self.write_element(*page, Kind::Free, 0, generation, 0)?;
            if !mutant!("scmkv.page.free_flush") {
                self.space.flush(self.element_offset(*page), ELEMENT_LEN);
            }
        }
        if !mutant!("scmkv.page.free_fence") {
            self.space.fence().map_err(sync_failed)?;
        }
        for page in pages {
            if !self.space.retire(*page) {
                let what = format!("page {page} has a writer and cannot be freed");
                return Err(Error::Unusable(what));
            }
        }
        Ok(())
    }

    /// Frees the pages of an index that is no longer used, which [`Pages::load`] has not claimed.
    pub(crate) fn free_index(&self, elements: &[(u32, Element)]) -> Result<()> {
        let index = || elements.iter().filter(|(_, element)| element.kind == Kind::Index);
        for (page, element) in index() {
            self.write_element(*page, Kind::Free, 0, element.generation, 0)?;
            self.space.flush(self.element_offset(*page), ELEMENT_LEN);
        }
        self.space.fence().map_err(sync_failed)?;
        index().for_each(|(page, _)| self.push_free(*page));
        Ok(())
    }

    /// The offset of the clock's high-water mark.
    pub(crate) fn clock_offset(&self) -> u64 {
        self.element_offset(0) + 24
    }
}
