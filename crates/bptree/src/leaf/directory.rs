//! The state of a leaf in DRAM: which of its records are live, by a tag of their keys.
//!
//! ```text
//!   word      version | changing | dead | locked
//!   used      occupancy bitmap: one bit for each of 128 places
//!   tags      fingerprints: a byte of the key's hash for each place
//!   offsets   where in the page each record begins, in units of 8 bytes
//! ```
//!
//! The page itself is a log of self-certifying records, and this table of contents can be made from it at any time.
//! So a write has one fence: for its record. In the paper's trees the bitmap and the fingerprints are in persistent
//! memory, and a bit of them must be set behind a second fence, or the entry must certify itself. Here the entry
//! certifies itself, so that the bits need not be persistent.
//!
//! **Readers** take no lock. They load the word, look, and load the word again; the data found in between was valid
//! at a moment in between, if the version is the same and nothing was changing. A record that was found stays as it
//! is as long as the reader's guard lives.
//!
//! **Writers** hold the lock from their look at the old record until the place names the new one. Readers go on
//! meanwhile: they are stopped only while a place is changed, which is a few stores.
//!
//! A leaf that is *dead* has been rewritten elsewhere. A thread that meets one descends again.
//!
//! A table that was never filled is *not loaded*. After an open with a checkpoint no table is loaded: the first
//! thread that descends to one fills it from its page ([`lazy_load`](crate::tree::lazy_load)).
//!
//! No writer may write to a leaf that is *shut*: the store is closed, or is being emptied.

mod lazy_load;
mod order;
mod shut;
mod versions;

use super::places::WORD;
use super::{FEW, PLACES, PlaceSet};
use crate::kernel::{self, CHANGING, DEAD, LOCKED, SHUT, UNLOADED, VERSION};
use coreplane_pmem::LINE;
use coreplane_pmem::spin::Backoff;
pub(crate) use lazy_load::LeafLoad;
use order::Order;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Nine lines: two of tags, four of offsets, one of state that changes, two of the order.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Directory {
    tags: [[AtomicU64; WORD / 8]; PLACES / WORD],
    offsets: [[AtomicU64; LINE / 8]; PLACES * 2 / LINE],
    word: AtomicU64,
    used: [AtomicU64; PLACES / WORD],
    /// The bytes of the page that its live records take; in the upper half, their number.
    live: AtomicU64,
    /// As in [`Begun`].
    doubt: AtomicU32,
    /// The greatest version that any key of the leaf was given. Changed only under the lock.
    given: AtomicU64,
    /// The birth of the page.
    birth: AtomicU64,
    /// Set if the last records may not have been durable at a crash: nothing is appended behind them.
    is_sealed: AtomicBool,
    /// There is, or was, a record with a large value.
    has_large: AtomicBool,
    /// There is, or was, a record with a long key.
    has_long: AtomicBool,
    /// It may have more records than [`FEW`].
    may_be_full: AtomicBool,
    /// The number of places that are in the order of their keys; 0 while the order is changed.
    ordered: AtomicU8,
    order: Order,
}

/// The initial state of a leaf, apart from its records.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Begun {
    /// The birth of its page.
    pub(crate) birth: u64,
    /// The greatest version that any of its keys was ever given.
    pub(crate) given: u64,
    /// Nothing is to be appended to its page.
    pub(crate) is_sealed: bool,
    /// The records come in the order of their keys.
    pub(crate) is_sorted: bool,
    /// The values of some are large.
    pub(crate) has_large: bool,
    /// The keys of some are long.
    pub(crate) has_long: bool,
    /// As [`Directory::doubt`] says.
    pub(crate) doubt: u32,
}

/// A version at which no thread was changing the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// A leaf that is locked, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    leaf: &'a Directory,
    /// The word to store when it is unlocked.
    word: u64,
}

impl Directory {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(UNLOADED | DEAD),
            used: Default::default(),
            tags: Default::default(),
            offsets: Default::default(),
            live: AtomicU64::new(0),
            doubt: AtomicU32::new(0),
            given: AtomicU64::new(0),
            birth: AtomicU64::new(0),
            is_sealed: AtomicBool::new(false),
            has_large: AtomicBool::new(false),
            has_long: AtomicBool::new(false),
            may_be_full: AtomicBool::new(false),
            ordered: AtomicU8::new(0),
            order: Order::default(),
        }
    }

    /// Prefetches the lines that a look needs: all of them, if the leaf has at most [`FEW`] records.
    #[inline]
    pub(crate) fn prefetch(&self) {
        coreplane_pmem::arch::prefetch(&self.word);
        coreplane_pmem::arch::prefetch(&self.tags[0]);
        coreplane_pmem::arch::prefetch(&self.offsets[0]);
        coreplane_pmem::arch::prefetch(&self.offsets[1]);
    }

    /// As [`Directory::prefetch`], for a look at all records in their order.
    #[inline]
    pub(crate) fn prefetch_order(&self) {
        coreplane_pmem::arch::prefetch(&self.word);
        coreplane_pmem::arch::prefetch(&self.offsets[0]);
        coreplane_pmem::arch::prefetch(&self.offsets[1]);
        self.order.prefetch();
    }

    /// The version; none if the leaf is dead or not loaded.
    #[inline]
    pub(crate) fn version(&self) -> Option<Version> {
        let mut backoff = Backoff::new();
        loop {
            let word = kernel::look(&self.word);
            if word & DEAD != 0 {
                return None;
            }
            if word & CHANGING == 0 {
                return Some(Version(word & !LOCKED));
            }
            backoff.wait();
        }
    }

    /// True if the data read since `version` was loaded is valid.
    #[inline]
    pub(crate) fn is_at(&self, version: Version) -> bool {
        kernel::is_at(&self.word, version.0, LOCKED)
    }

    /// Locks the leaf if it still has that version and no thread holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self, version: Version) -> Option<Held<'_>> {
        let is_taken = kernel::try_lock(&self.word, version.0, version.0 | LOCKED);
        // Made only then, since dropping it unlocks the leaf.
        is_taken.then(|| Held { leaf: self, word: version.0 })
    }

    /// Locks the leaf at any version; none if it is dead.
    pub(crate) fn lock(&self) -> Option<Held<'_>> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = self.try_lock(self.version()?) {
                return Some(held);
            }
            backoff.wait();
        }
    }

    /// Lets the caller fill a leaf that is not loaded. None if the leaf was loaded before, or was filled by another
    /// thread during the call.
    pub(crate) fn begin_load(&self) -> Option<LeafLoad<'_>> {
        let mut backoff = Backoff::new();
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & UNLOADED == 0 {
                return None;
            }
            let is_free = word & LOCKED == 0;
            if is_free && self.exchange(word, word | LOCKED) {
                return Some(LeafLoad { leaf: Some(self) });
            }
            backoff.wait();
        }
    }

    /// True if the leaf is not loaded.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.word.load(Ordering::Acquire) & UNLOADED != 0
    }

    /// False if no record has a large value.
    pub(crate) fn has_large(&self) -> bool {
        self.has_large.load(Ordering::Relaxed)
    }

    /// False if no record has a long key.
    #[inline]
    pub(crate) fn has_long(&self) -> bool {
        self.has_long.load(Ordering::Relaxed)
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        kernel::try_lock(&self.word, from, to)
    }

    /// Turns a dead leaf into a live one with these records, unlocked: no thread can find it yet.
    pub(crate) fn begin(&self, begun: Begun, records: impl Iterator<Item = (u8, u32, u32)>) {
        let dead = self.word.load(Ordering::Relaxed);
        // A late reader that reads the new content sees that the leaf is dead.
        kernel::begin(&self.word, dead);
        self.doubt.store(begun.doubt, Ordering::Relaxed);
        self.given.store(begun.given, Ordering::Relaxed);
        self.birth.store(begun.birth, Ordering::Relaxed);
        self.is_sealed.store(begun.is_sealed, Ordering::Relaxed);
        self.has_large.store(begun.has_large, Ordering::Relaxed);
        self.has_long.store(begun.has_long, Ordering::Relaxed);
        // Assembled first, since a load right after a store to the same word would wait.
        let (mut tags, mut offsets) = ([0; PLACES / 8], [0; PLACES / 4]);
        let (mut count, mut live) = (0, 0_u64);
        for (place, (tag, offset, len)) in records.enumerate() {
            debug_assert!(offset.is_multiple_of(8) && offset / 8 <= u32::from(u16::MAX));
            tags[place / 8] |= u64::from(tag) << (8 * (place % 8));
            offsets[place / 4] |= u64::from(offset / 8) << (16 * (place % 4));
            (count, live) = (place + 1, live + live_word(len));
        }
        let store = |word: &AtomicU64, value: &u64| word.store(*value, Ordering::Relaxed);
        self.tags.as_flattened().iter().zip(&tags).for_each(|(word, value)| store(word, value));
        self.offsets
            .as_flattened()
            .iter()
            .zip(&offsets)
            .for_each(|(word, value)| store(word, value));
        self.used
            .iter()
            .zip(&PlaceSet::first(count).0)
            .for_each(|(word, value)| store(word, value));
        self.live.store(live, Ordering::Relaxed);
        let word = (dead & !(UNLOADED | DEAD | LOCKED | CHANGING)) + VERSION;
        // A leaf that was rewritten with that many records gets room for one more. Otherwise it would be rewritten
        // again and again for each new record, as long as there is no page to split it.
        self.may_be_full.store(count >= FEW, Ordering::Relaxed);
        self.order.begin();
        self.ordered.store(if begun.is_sorted { count as u8 } else { 0 }, Ordering::Relaxed);
        kernel::end(&self.word, word);
    }

    /// Adds a place of a leaf that no other thread knows.
    pub(crate) fn add(&self, place: usize, tag: u8) {
        self.fill(place, tag, 0);
    }

    /// The places whose tag is `tag`; the key of the record decides.
    #[inline]
    pub(crate) fn candidates(&self, tag: u8) -> PlaceSet {
        let PlaceSet(used) = self.used();
        // The second line is read only if it has places in use.
        let of = |at: usize| match used[at] {
            0 => 0,
            used => coreplane_pmem::arch::equal_bytes(&self.tags[at], tag) & used,
        };
        PlaceSet(std::array::from_fn(of))
    }

    /// The tag of a place: that of its key when the record was written.
    #[inline]
    pub(crate) fn tag(&self, place: usize) -> u8 {
        (self.tags.as_flattened()[place / 8].load(Ordering::Relaxed) >> (8 * (place % 8))) as u8
    }

    /// The places in use.
    #[inline]
    pub(crate) fn used(&self) -> PlaceSet {
        PlaceSet(self.used.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The offset in the page of a place's record.
    #[inline]
    pub(crate) fn offset(&self, place: usize) -> u32 {
        let word = self.offsets.as_flattened()[place / 4].load(Ordering::Relaxed);
        u32::from((word >> (16 * (place % 4))) as u16) * 8
    }

    /// Writes the places to `places`: first those whose order by key is known, then the others in use, in no order.
    /// Returns the number of the former. Valid if the version of the leaf is the same before and after.
    pub(crate) fn ordered(&self, places: &mut [u8; PLACES]) -> usize {
        self.order.read(&self.ordered, self.used(), places)
    }

    /// The offset of the `at`-th record in the order of keys, if the order is complete and not being changed: a
    /// guess, for prefetching the record.
    #[inline]
    pub(crate) fn likely_offset(&self, at: usize) -> u32 {
        self.offset(self.order.likely(at))
    }

    /// Keeps the order of these places for other scans, if no writer holds the leaf.
    pub(crate) fn keep_order(&self, version: Version, places: &[u8]) {
        if let Some(_held) = self.try_lock(version) {
            self.order.keep(&self.ordered, places);
        }
    }

    /// The birth of the page.
    #[inline]
    pub(crate) fn birth(&self) -> u64 {
        self.birth.load(Ordering::Relaxed)
    }

    /// The bytes of the page that its live records take.
    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed) as u32
    }

    /// The number of live records; 0 if the leaf is not loaded.
    pub(crate) fn records(&self) -> usize {
        (self.live.load(Ordering::Relaxed) >> RECORDS) as usize
    }

    /// The same, and the bytes of the page that they take before it.
    pub(crate) fn size(&self) -> (u32, usize) {
        (self.live(), self.records())
    }

    /// Not 0 if records were lost: records below this offset in the page may be old, and others missing.
    #[inline]
    pub(crate) fn doubt(&self) -> u32 {
        self.doubt.load(Ordering::Relaxed)
    }

    /// Lets the leaf use all its places. Under the lock.
    pub(crate) fn allow_full(&self) {
        self.may_be_full.store(true, Ordering::Relaxed);
    }

    /// A free place; none if the leaf has as many records as it may have.
    #[inline]
    pub(crate) fn vacancy(&self) -> Option<usize> {
        let is_free = |place: &usize| *place < FEW || self.may_be_full.load(Ordering::Relaxed);
        self.used().vacancy().filter(is_free)
    }

    /// How many more records it may have.
    pub(crate) fn vacancies(&self) -> usize {
        let max = if self.may_be_full.load(Ordering::Relaxed) { PLACES } else { FEW };
        max.saturating_sub(self.used().count())
    }

    fn fill(&self, place: usize, tag: u8, offset: u32) {
        debug_assert!(offset.is_multiple_of(8) && offset / 8 <= u32::from(u16::MAX));
        let put = |word: &AtomicU64, shift: usize, mask: u64, value: u64| {
            let rest = word.load(Ordering::Relaxed) & !(mask << shift);
            word.store(rest | value << shift, Ordering::Relaxed);
        };
        put(&self.tags.as_flattened()[place / 8], 8 * (place % 8), 0xff, u64::from(tag));
        put(
            &self.offsets.as_flattened()[place / 4],
            16 * (place % 4),
            0xffff,
            u64::from(offset / 8),
        );
        put(&self.used[place / WORD], place % WORD, 1, 1);
    }

    /// Counts a record of `len` bytes in place of one of `old` bytes; 0: no record.
    fn replace_live(&self, len: u32, old: u32) {
        let live = self.live.load(Ordering::Relaxed);
        let live = live.wrapping_add(live_word(len)).wrapping_sub(live_word(old));
        self.live.store(live, Ordering::Relaxed);
    }
}

impl Held<'_> {
    /// The birth of the page.
    #[inline]
    pub(crate) fn birth(&self) -> u64 {
        self.leaf.birth()
    }

    /// True if the leaf is shut: the store is closed, or is being emptied.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.word & SHUT != 0
    }

    /// True if nothing may be appended to the page.
    pub(crate) fn is_sealed(&self) -> bool {
        self.leaf.is_sealed.load(Ordering::Relaxed)
    }

    /// Readers wait from here on, until the leaf is unlocked.
    #[inline]
    pub(crate) fn begin(&mut self) {
        kernel::begin(&self.leaf.word, self.word | LOCKED | CHANGING);
        self.word += VERSION;
    }

    /// Lets a place name a record (its tag, offset and length), instead of one of `old` bytes if it was in use. The
    /// record is published, and the change has begun.
    #[inline]
    pub(crate) fn set(&self, place: usize, (tag, offset, len): (u8, u32, u32), old: u32) {
        self.leaf.fill(place, tag, offset);
        self.leaf.replace_live(len, old);
    }

    /// Notes that a record has a large value.
    #[inline]
    pub(crate) fn note_large(&self) {
        self.leaf.has_large.store(true, Ordering::Relaxed);
    }

    /// Notes that a record has a long key.
    #[inline]
    pub(crate) fn note_long(&self) {
        self.leaf.has_long.store(true, Ordering::Relaxed);
    }

    /// The leaf is dead from now on; its page will be reused.
    pub(crate) fn free(mut self) {
        self.word = ((self.word & !SHUT) + VERSION) | DEAD;
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        kernel::end(&self.leaf.word, self.word);
    }
}

/// The position of the count of records in the word `live`.
const RECORDS: u32 = 32;

/// A live record of `len` bytes; 0: none.
#[inline]
fn live_word(len: u32) -> u64 {
    u64::from(len) | u64::from(len > 0) << RECORDS
}

/// The tag of a key.
#[inline]
pub(crate) fn tag_of(key: &[u8]) -> u8 {
    tag_from(coreplane_pmem::checksum::crc32c_append(0, key))
}

/// The tag of a key of this checksum.
#[inline]
pub(crate) fn tag_from(crc: u32) -> u8 {
    (crc >> 11) as u8
}

const _: () = assert!(size_of::<Directory>() == 576);

#[cfg(test)]
mod tests;
