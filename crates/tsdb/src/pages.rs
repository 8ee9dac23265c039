//! Pages: the use of each page of a pool.
//!
//! ```text
//!   page 0        the pool's header
//!   1 ‥ t         the table: a word for each page of the pool
//!   t ‥           pages of logs and of segments, as they are taken
//!
//!   63        48 47  44 43                0
//!   ├── seal ───┼─ role ┼───── number ─────┤     0: the page is free
//! ```
//!
//! The word of a page alone decides its use: a page that is used for something else gets another word. The number
//! is that of the page within its log, or the segment and the page within it. The number of a log page is never
//! given twice, so that no older record is taken for a new one: a power cut may lose the word of a page that was
//! taken shortly before, and leave unacknowledged records in that page. So numbers are set aside, many at once, in
//! the pool's root.
//!
//! The seal is a checksum of page, role and number. A flipped bit is corrected. A word with more damage than that
//! is reported, and its page is left alone. If it may be one of names or of the list of segments the pool is not
//! opened: without a part of these lists, live pages would be taken for free ones.

use crate::error::{Error, Result};
use crate::flip::{corrected, may_be_vital};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::{Claim, CreateOptions, Durable, MediaChoice, PageWriter, Pool, Space};
use coreplane_pmem::{mutant, spin};
use parking_lot::Mutex;
use std::sync::Arc;

/// The purpose of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// The log of points of a queue set.
    Head,
    /// The log of the segments of a queue set.
    Manifest,
    /// The log of names.
    Catalogue,
    /// Sealed chunks, and their entries.
    Segment,
}

/// The use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Use {
    pub(crate) role: Role,
    pub(crate) number: u64,
}

// media-format: begin pool
/// The kind of the pools of a store.
pub(crate) const KIND: &str = "tsdb";
/// Bytes of a word.
const WORD: u64 = 8;
const NUMBER_BITS: u32 = 44;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;
/// Numbers of pages of logs: less than this.
pub(crate) const LOG_PAGES_MAX: u64 = 1 << 40;
const ROLE_BITS: u32 = 4;
/// Numbers of pages of logs that are set aside at once.
const NUMBERS: u64 = 1 << 16;
/// The word of the root that has the limit of the numbers that are set aside.
const NUMBERS_WORD: usize = 0;
/// Pages to which a pool may grow: this many times the pages it was made with, or [`GROWTH_MIN`], if that is more.
const GROWTH: u64 = 16;
const GROWTH_MIN: u64 = 1 << 14;

impl Role {
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Head => 1,
            Self::Manifest => 2,
            Self::Catalogue => 3,
            Self::Segment => 4,
        }
    }

    fn of_code(code: u64) -> Option<Self> {
        [Self::Head, Self::Manifest, Self::Catalogue, Self::Segment]
            .into_iter()
            .find(|role| role.code() == code)
    }
}

fn seal(page: u32, bits: u64) -> u64 {
    let crc = crc32c_append(crc32c_append(0, &page.to_le_bytes()), &bits.to_le_bytes());
    u64::from(crc ^ crc >> 16) & 0xffff
}

impl Use {
    fn to_word(self, page: u32) -> u64 {
        let bits = self.role.code() << NUMBER_BITS | self.number & NUMBER_MAX;
        seal(page, bits) << (NUMBER_BITS + ROLE_BITS) | bits
    }

    /// None if the page is free.
    pub(crate) fn of_word(page: u32, word: u64) -> std::result::Result<Option<Self>, Unsound> {
        if word == 0 {
            return Ok(None);
        }
        let bits = word & ((1 << (NUMBER_BITS + ROLE_BITS)) - 1);
        let role = Role::of_code(bits >> NUMBER_BITS).ok_or(Unsound)?;
        let found = Self { role, number: bits & NUMBER_MAX };
        if found.to_word(page) == word { Ok(Some(found)) } else { Err(Unsound) }
    }
}

/// Pages of the table in a pool of `pages` pages.
fn table_pages(pages: u64, page_len: u64) -> u64 {
    ((pages * GROWTH).max(GROWTH_MIN) * WORD).div_ceil(page_len).min(pages / 4 + 1)
}

/// The parameters that are stored in a pool of a store.
pub(crate) fn parameters(store: u64, set: u32, sets: u32, pages: u64, page_len: u64) -> [u64; 8] {
    [store, u64::from(set), u64::from(sets), table_pages(pages, page_len), 0, 0, 0, 0]
}
// media-format: end

/// Free pages that drops of names leave to the manifest: what was dropped is given back by its records.
pub(crate) const FOR_MANIFEST: usize = 2;
/// Free pages that sealed points leave to drops, which begin a page after each start.
pub(crate) const FOR_DROPS: usize = FOR_MANIFEST + 3;
/// Free pages that new names and points leave to sealing.
pub(crate) const FOR_SEALING: usize = FOR_DROPS + 4;

/// A word whose seal or role is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsound;

/// A pool of a queue set.
#[derive(Debug)]
pub(crate) struct Pages {
    pool: Pool,
    /// Bytes before the first word of the table.
    table: u64,
    /// Pages that the table has words for.
    capacity: u64,
    free: Mutex<Vec<u32>>,
    /// Pages that were ever free or used. The lock is held while the pool grows.
    known: Mutex<u32>,
    /// The first number of a log page that was never given when the pool was opened.
    first_number: u64,
    /// The first number that is not set aside. The lock is held while more are set aside.
    numbers: Mutex<u64>,
    /// Pages whose words are damaged, so that their use is unknown.
    pub(crate) unknown: Vec<u32>,
    /// One of them that may have names or the list of segments.
    pub(crate) vital: Option<u32>,
    /// The initial value of the checksums of this pool.
    seed: u32,
}

impl Pages {
    /// The options with which the pool of a set is made.
    pub(crate) fn options(
        (store, set, sets): (u64, u32, u32),
        size: u64,
        page_len: u32,
        media: MediaChoice,
    ) -> CreateOptions {
        let pages = size / u64::from(page_len);
        let parameters = parameters(store, set, sets, pages, u64::from(page_len));
        CreateOptions { size, media, page_size: page_len, kind: KIND.to_owned(), parameters }
    }

    /// The identity with which a pool was made: the store's number, the set's, and the number of sets.
    pub(crate) fn identity(pool: &Pool) -> Result<(u64, u32, u32)> {
        let [store, set, sets, ..] = pool.parameters();
        match (u32::try_from(set), u32::try_from(sets)) {
            (Ok(set), Ok(sets)) if set < sets => Ok((store, set, sets)),
            _ => Err(Error::Pools("the pool is none of a time-series store".to_owned())),
        }
    }

    /// Claims the table of a pool, which is zeroed if the pool `is_new`; returns the used pages and their uses.
    ///
    /// # Errors
    /// [`Error::Pools`], [`Error::Pool`], [`Error::Sync`].
    pub(crate) fn open(pool: Pool, is_new: bool) -> Result<(Self, Vec<(u32, Use)>)> {
        pool.expect_kind(KIND)?;
        let space = Arc::clone(pool.space());
        let (first, page_len) = (pool.first_page(), u64::from(space.page_size()));
        let [.., table_pages, _, _, _, _] = pool.parameters();
        let behind = u64::from(first).saturating_add(table_pages);
        if behind >= u64::from(space.pages()) || table_pages == 0 {
            return Err(Error::Pools("the pool is smaller than its table of pages".to_owned()));
        }
        let claim = if is_new { Claim::Words } else { Claim::WordsAsStored };
        for page in first..behind as u32 {
            if !space.claim_words(page, claim) {
                return Err(Error::Pools("the table of pages is in use".to_owned()));
            }
        }
        let table = space.start_of(first);
        if is_new {
            space.persist(table, table_pages * page_len)?;
        }
        let seed = crc32c_append(0, &pool.uuid());
        let capacity = table_pages * page_len / WORD;
        let first_number = pool.root()[NUMBERS_WORD];
        let (free, known) = (Mutex::default(), Mutex::new(0));
        let numbers = Mutex::new(first_number);
        let (unknown, vital) = (Vec::new(), None);
        let mut pages = Self {
            pool,
            table,
            capacity,
            free,
            known,
            first_number,
            numbers,
            unknown,
            vital,
            seed,
        };
        pages.set_aside(first_number)?;
        let used = pages.look(behind as u32);
        Ok((pages, used))
    }

    /// Reads the table from this page on.
    fn look(&mut self, first: u32) -> Vec<(u32, Use)> {
        let (mut used, mut free) = (Vec::new(), Vec::new());
        for page in (first..self.pages()).rev() {
            let word = self.word(page);
            let found = Use::of_word(page, word).ok().or_else(|| self.mend(page, word));
            match found {
                Some(Some(found)) => used.push((page, found)),
                Some(None) => free.push(page),
                // A page of unknown use is left alone.
                None => {
                    self.unknown.push(page);
                    let may_be_vital = may_be_vital(page, word, self.first_number);
                    self.vital = self.vital.or(may_be_vital.then_some(page));
                }
            }
        }
        (*self.free.get_mut(), *self.known.get_mut()) = (free, self.pages());
        used
    }

    /// Corrects a word with one flipped bit, also in the pool, so that a second one can be corrected, too; returns the
    /// use of its page. Durable with the fence at the end of the open.
    fn mend(&self, page: u32, word: u64) -> Option<Option<Use>> {
        let found = corrected(page, word, self.first_number)?;
        if !mutant!("tsdb.page.mend") {
            self.set_word(page, found.map_or(0, |it| it.to_word(page)));
        }
        Some(found)
    }

    /// Pages that can be used.
    fn pages(&self) -> u32 {
        u64::from(self.space().pages()).min(self.capacity) as u32
    }

    fn word(&self, page: u32) -> u64 {
        let place = self.table + u64::from(page) * WORD;
        self.space().word::<Durable>(place).map_or(0, |word| word.load())
    }

    fn set_word(&self, page: u32, value: u64) {
        let place = self.table + u64::from(page) * WORD;
        if let Some(word) = self.space().word::<Durable>(place) {
            word.store(value);
            word.flush();
        }
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The first number of a log page that was never given when the pool was opened.
    pub(crate) fn first_number(&self) -> u64 {
        if mutant!("tsdb.page.number") { 0 } else { self.first_number }
    }

    /// Makes sure that this number of a log page is not given again after an opening.
    ///
    /// # Errors
    /// [`Error::Pool`]; [`Error::Limit`].
    pub(crate) fn set_aside(&self, number: u64) -> Result<()> {
        let mut numbers = spin::lock(&self.numbers);
        if number < *numbers {
            return Ok(());
        }
        if number >= LOG_PAGES_MAX {
            return Err(Error::Limit("all numbers of pages are used up".to_owned()));
        }
        let mut root = self.pool.root();
        root[NUMBERS_WORD] = number + NUMBERS;
        self.pool.set_root(root)?;
        *numbers = number + NUMBERS;
        Ok(())
    }

    /// Its bytes.
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.pool.space()
    }

    /// The initial value of the checksums of this pool.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// Bytes of a page.
    pub(crate) fn page_len(&self) -> u32 {
        self.space().page_size()
    }

    /// Takes a free page for a use, if more than `reserve` are free. Its word is durable with the next fence of
    /// this thread.
    pub(crate) fn begin(&self, use_of: Use, reserve: usize) -> Option<PageWriter> {
        let writer = self.take(1, reserve)?.pop()?;
        self.put_to_use(&writer, use_of);
        Some(writer)
    }

    /// Takes so many free pages, or none, and leaves at least `reserve`. They have no words yet.
    pub(crate) fn take(&self, count: usize, reserve: usize) -> Option<Vec<PageWriter>> {
        let mut free = spin::lock(&self.free);
        let least = count.saturating_add(reserve);
        if free.len() < least {
            self.space().reclaim_all(|page| free.push(page));
        }
        if free.len() < least {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            taken.extend(self.space().claim_log(free.pop()?));
        }
        Some(taken)
    }

    /// States the use of a page that was taken. The word is durable with the next fence of this thread.
    pub(crate) fn put_to_use(&self, writer: &PageWriter, use_of: Use) {
        if !mutant!("tsdb.page.word") {
            self.set_word(writer.page(), use_of.to_word(writer.page()));
        }
    }

    /// Pages that are free, or retired.
    pub(crate) fn free_count(&self) -> usize {
        spin::lock(&self.free).len() + self.space().retired_len()
    }

    /// The number of free or retired pages that segments may take.
    pub(crate) fn free_for_segments(&self) -> u64 {
        self.free_count().saturating_sub(FOR_DROPS) as u64
    }

    /// The number of pages that segments may take now: retired pages that a reader keeps are not among them.
    pub(crate) fn ready_for_segments(&self) -> u64 {
        let mut free = spin::lock(&self.free);
        self.space().reclaim_all(|page| free.push(page));
        free.len().saturating_sub(FOR_DROPS) as u64
    }

    /// The number of all pages that can ever be free.
    pub(crate) fn usable(&self) -> u64 {
        self.used_pages().count() as u64
    }

    /// Frees pages that readers may still look at. The change that freed them is durable already.
    pub(crate) fn give_back(&self, pages: &[u32]) {
        for page in pages {
            self.set_word(*page, 0);
        }
        self.space().retire_all(pages);
    }

    /// Frees pages that belong to nothing, as an opening has found; durable with the next fence of this thread.
    pub(crate) fn give_up(&self, pages: impl IntoIterator<Item = u32>) {
        let mut free = spin::lock(&self.free);
        for page in pages {
            self.set_word(page, 0);
            free.push(page);
        }
    }

    /// Fails unless each usable page is either free or listed in `used` exactly once.
    pub(crate) fn check(&self, mut used: Vec<u32>) -> std::result::Result<(), String> {
        let mut free = spin::lock(&self.free);
        while self.space().retired_len() > 0 {
            self.space().reclaim_all(|page| free.push(page));
            std::thread::yield_now();
        }
        used.extend(free.iter());
        used.sort_unstable();
        let twice = used.windows(2).find_map(|pair| match pair {
            [one, other] => (one == other).then_some(*one),
            _ => None,
        });
        let lost = self.used_pages().find(|page| used.binary_search(page).is_err());
        match (twice, lost) {
            (None, None) => Ok(()),
            _ => Err(format!("page {twice:?} is used twice, page {lost:?} by nobody")),
        }
    }

    /// All pages behind the table.
    fn used_pages(&self) -> impl Iterator<Item = u32> + use<> {
        let page_len = u64::from(self.page_len());
        (((self.table + self.capacity * WORD) / page_len) as u32)..self.pages()
    }

    /// Makes the pool larger. Durable when it returns.
    ///
    /// # Errors
    /// As [`Pool::grow`]; [`Error::Input`] if the table has too few words for the size.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        let largest = self.capacity * u64::from(self.page_len());
        if size > largest {
            let now = self.space().len();
            return Err(Error::Input(format!(
                "a pool of {now} bytes that was made with this size can grow to {largest} bytes"
            )));
        }
        let mut known = spin::lock(&self.known);
        self.pool.grow(size)?;
        let pages = self.pages();
        spin::lock(&self.free).splice(0..0, (*known..pages).rev());
        *known = pages;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::Opening;
    use coreplane_pmem::OpenOptions;

    #[test]
    fn a_flipped_bit_of_a_word_is_set_right_or_seen() {
        for (page, number) in [(7, 0), (8, 12), (9000, NUMBER_MAX)] {
            let used = Use { role: Role::Segment, number };
            let word = used.to_word(page);
            assert_eq!(Use::of_word(page, word), Ok(Some(used)));
            assert_eq!(Use::of_word(page + 1, word), Err(Unsound), "another page's");
            for bit in 0..64 {
                let flipped = word ^ 1 << bit;
                assert_eq!(Use::of_word(page, flipped), Err(Unsound));
                assert!(corrected(page, flipped, 0).is_none_or(|it| it == Some(used)), "bit {bit}");
            }
        }
        for bit in 0..64 {
            assert!(corrected(3, 1 << bit, 99).is_none_or(|it| it.is_none()));
        }
    }

    /// Three flipped bits, and one more would be the word of a page of the same log with a number that no page has.
    #[test]
    fn a_page_of_the_manifest_is_not_taken_for_one_that_cannot_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        let pool =
            Pool::create(&path, &Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto));
        let pages = Pages::open(pool.expect("a pool"), true).expect("pages").0;
        let used = Use { role: Role::Manifest, number: 0 };
        let page = pages.begin(used, 0).expect("a page").page();
        pages.set_word(page, used.to_word(page) ^ 1 << 25 ^ 1 << 33 ^ 1 << 37);
        pages.space().fence().expect("durable");
        drop(pages);
        let pool = Pool::open(&path, &OpenOptions { media: MediaChoice::Auto }).expect("the pool");
        let (pages, used) = Pages::open(pool, false).expect("pages");
        assert_eq!((pages.vital, pages.unknown, used), (Some(page), vec![page], Vec::new()));
    }

    #[test]
    fn pages_that_belong_to_nothing_are_free_beside_one_of_unknown_use() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        let pool =
            Pool::create(&path, &Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto));
        let opening = Opening::new(pool.expect("a pool"), true).expect("pages");
        let set = opening.finish(&|_, _| true, 0).expect("a set");
        let (pages, free) = (&set.pages, set.pages.free_count());
        let of_segment = |number: u64| Use { role: Role::Segment, number: number << 16 };
        for number in 1..10 {
            pages.begin(of_segment(number), 0).expect("a page");
        }
        let unknown = pages.begin(of_segment(10), 0).expect("a page").page();
        pages.set_word(unknown, of_segment(10).to_word(unknown) ^ 3 << 40);
        pages.space().fence().expect("durable");
        drop(set);
        let pool = Pool::open(&path, &OpenOptions { media: MediaChoice::Auto }).expect("the pool");
        let opening = Opening::new(pool, false).expect("pages");
        let set = opening.finish(&|_, _| true, 0).expect("a set");
        assert_eq!((&set.pages.unknown, set.pages.free_count()), (&vec![unknown], free - 1));
        assert_eq!(set.damage, [format!("the use of page {unknown}")]);
    }
}
