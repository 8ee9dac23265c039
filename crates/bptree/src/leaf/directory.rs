//! What is known in DRAM of a leaf: which records are its living ones, by a tag of their keys.
//!
//! ```text
//!   word      version | changing | dead | locked
//!   used      occupancy bitmap: one bit for each of 128 places
//!   tags      fingerprints: a byte of the key's hash for each place
//!   offsets   where in the page each record begins, in units of 8 bytes
//! ```
//!
//! The page itself is a log of records that prove themselves, and this is a table of contents that
//! can be made from it at any time. So a write has one fence: its record. In the paper's trees the
//! bitmap and the fingerprints are in persistent memory, and a bit of them must be set behind a
//! second fence, or the entry must certify itself; it does here, and then the bits need not be
//! there.
//!
//! **Readers** take no lock. They load the word, look, and load the word again; what they find in
//! between was so at a moment in between, if the version is the same and nothing was changing.
//! A record that was found stays as it is as long as the reader's guard lives.
//!
//! **Writers** hold the lock from their look at the old record to the new one's place. Readers go
//! on meanwhile: they are stopped only while a place is changed, which is a few stores.
//!
//! A leaf that is *dead* has been written anew elsewhere. Whoever meets one goes down again.
//!
//! A table that was never filled is *not loaded*. After an open with a checkpoint all are: whoever is
//! led to one fills it from its page first ([`lazy_load`](crate::tree::lazy_load)).
//!
//! A leaf that is *shut* is written to no more: the store is closed.

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

/// Nine lines: two of tags, four of offsets, one of what changes, two of the order.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Directory {
    tags: [[AtomicU64; WORD / 8]; PLACES / WORD],
    offsets: [[AtomicU64; LINE / 8]; PLACES * 2 / LINE],
    word: AtomicU64,
    used: [AtomicU64; PLACES / WORD],
    /// Bytes of the page that its living records take, and above those how many they are.
    live: AtomicU64,
    /// As in [`Begun`].
    doubt: AtomicU32,
    /// The greatest version that any key of the leaf was given. Of whoever holds the lock.
    given: AtomicU64,
    /// The birth of the page.
    birth: AtomicU64,
    /// Set where the last records may not have been durable at a crash: nothing is appended behind them.
    is_sealed: AtomicBool,
    /// There is, or was, a record whose value is large.
    has_large: AtomicBool,
    /// There is, or was, a record whose key is long.
    has_long: AtomicBool,
    /// It may have more records than [`FEW`].
    may_be_full: AtomicBool,
    /// How many of the places are in the order of their keys; 0 while that is changed.
    ordered: AtomicU8,
    order: Order,
}

/// What a leaf begins with, beside its records.
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

/// A version at which nobody was changing the leaf.
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

    /// Asks for what a look at it needs ahead of that: all of it, if its records are no more than [`FEW`].
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

    /// True if what was read since `version` was loaded was so.
    #[inline]
    pub(crate) fn is_at(&self, version: Version) -> bool {
        kernel::is_at(&self.word, version.0, LOCKED)
    }

    /// Locks the leaf if it still has that version and nobody holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self, version: Version) -> Option<Held<'_>> {
        let is_taken = kernel::try_lock(&self.word, version.0, version.0 | LOCKED);
        // Made only then: a lock that is dropped is given back.
        is_taken.then(|| Held { leaf: self, word: version.0 })
    }

    /// Locks the leaf, whatever its version; none if it is dead.
    pub(crate) fn lock(&self) -> Option<Held<'_>> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = self.try_lock(self.version()?) {
                return Some(held);
            }
            backoff.wait();
        }
    }

    /// Lets the caller fill a leaf that is not loaded; none if it is not, or was when the call began and
    /// has been filled since.
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

    /// True if nothing is known of the page yet.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.word.load(Ordering::Acquire) & UNLOADED != 0
    }

    /// False if the value of no record is large.
    pub(crate) fn has_large(&self) -> bool {
        self.has_large.load(Ordering::Relaxed)
    }

    /// False if the key of no record is long.
    #[inline]
    pub(crate) fn has_long(&self) -> bool {
        self.has_long.load(Ordering::Relaxed)
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        kernel::try_lock(&self.word, from, to)
    }

    /// Makes a dead leaf a living one of these records, unlocked: nobody can find it yet.
    pub(crate) fn begin(&self, begun: Begun, records: impl Iterator<Item = (u8, u32, u32)>) {
        let dead = self.word.load(Ordering::Relaxed);
        // Who is late, and reads what it is filled with, sees that it is dead.
        kernel::begin(&self.word, dead);
        self.doubt.store(begun.doubt, Ordering::Relaxed);
        self.given.store(begun.given, Ordering::Relaxed);
        self.birth.store(begun.birth, Ordering::Relaxed);
        self.is_sealed.store(begun.is_sealed, Ordering::Relaxed);
        self.has_large.store(begun.has_large, Ordering::Relaxed);
        self.has_long.store(begun.has_long, Ordering::Relaxed);
        // Put together first: a word that was just stored is not there to be changed at once.
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
        // Who was written anew with as many is to have room for one more: else it were written anew for that
        // again and again, as long as there is no page to cut it in two.
        self.may_be_full.store(count >= FEW, Ordering::Relaxed);
        self.order.begin();
        self.ordered.store(if begun.is_sorted { count as u8 } else { 0 }, Ordering::Relaxed);
        kernel::end(&self.word, word);
    }

    /// Adds a place of a leaf that nobody else knows.
    pub(crate) fn add(&self, place: usize, tag: u8) {
        self.fill(place, tag, 0);
    }

    /// PlaceSet whose tag is `tag`: the record's key decides.
    #[inline]
    pub(crate) fn candidates(&self, tag: u8) -> PlaceSet {
        let PlaceSet(used) = self.used();
        // The second line is not looked at for nothing.
        let of = |at: usize| match used[at] {
            0 => 0,
            used => coreplane_pmem::arch::equal_bytes(&self.tags[at], tag) & used,
        };
        PlaceSet(std::array::from_fn(of))
    }

    /// The tag of a place, which its key had when it was written.
    #[inline]
    pub(crate) fn tag(&self, place: usize) -> u8 {
        (self.tags.as_flattened()[place / 8].load(Ordering::Relaxed) >> (8 * (place % 8))) as u8
    }

    /// The places in use.
    #[inline]
    pub(crate) fn used(&self) -> PlaceSet {
        PlaceSet(self.used.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Where in the page the record of a place begins.
    #[inline]
    pub(crate) fn offset(&self, place: usize) -> u32 {
        let word = self.offsets.as_flattened()[place / 4].load(Ordering::Relaxed);
        u32::from((word >> (16 * (place % 4))) as u16) * 8
    }

    /// The places in the order of their keys, as far as somebody has brought them into it: how many.
    /// The others in use are behind them, in no order. Right if the leaf is at the version
    /// afterwards that it was at before.
    pub(crate) fn ordered(&self, places: &mut [u8; PLACES]) -> usize {
        self.order.read(&self.ordered, self.used(), places)
    }

    /// Where the record begins that is the `at`-th in the order of keys, if the order is whole and
    /// nobody changes it: for whoever asks for the record ahead of its use.
    #[inline]
    pub(crate) fn likely_offset(&self, at: usize) -> u32 {
        self.offset(self.order.likely(at))
    }

    /// Keeps the order of so many places for other scans, if nobody is writing to the leaf.
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

    /// Bytes of the page that its living records take.
    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed) as u32
    }

    /// How many living records it has; 0 if it is not loaded.
    pub(crate) fn records(&self) -> usize {
        (self.live.load(Ordering::Relaxed) >> RECORDS) as usize
    }

    /// Not 0 if records were lost: those below it in the page may be old, and others be missing.
    #[inline]
    pub(crate) fn doubt(&self) -> u32 {
        self.doubt.load(Ordering::Relaxed)
    }

    /// Lets it have as many records as there are places. Under the lock.
    pub(crate) fn allow_full(&self) {
        self.may_be_full.store(true, Ordering::Relaxed);
    }

    /// A place that is free; none if as many are in use as may be.
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

    /// A record of so many bytes takes the place of another; 0: there is none.
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

    /// True if the store is closed.
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

    /// Lets a place name a record (its tag, offset and length), in the stead of one of `old` bytes
    /// if it was in use. The record is published, and the change has begun.
    #[inline]
    pub(crate) fn set(&self, place: usize, (tag, offset, len): (u8, u32, u32), old: u32) {
        self.leaf.fill(place, tag, offset);
        self.leaf.replace_live(len, old);
    }

    /// The value of a record is large.
    #[inline]
    pub(crate) fn note_large(&self) {
        self.leaf.has_large.store(true, Ordering::Relaxed);
    }

    /// The key of a record is long.
    #[inline]
    pub(crate) fn note_long(&self) {
        self.leaf.has_long.store(true, Ordering::Relaxed);
    }

    /// The leaf is dead from now on, and its page someone else's one day.
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

/// Where in the word of what lives the count of records begins.
const RECORDS: u32 = 32;

/// A living record of so many bytes; 0: none.
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
