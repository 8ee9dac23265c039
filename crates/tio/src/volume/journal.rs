//! The journal records writes whose names wait for a commit, for the next open.
//!
//! ```text
//!   committed  flushed │ sector  name  number  check │ sector  name  number  check │ …       a ring
//! ```
//!
//! Where a fence is a sync, names wait in DRAM, so that the medium never has a name before its bytes. Each name is
//! also recorded here. An entry counts at the next open if its number is above the last committed one, its check is
//! right, and the block holds the bytes of that name. So one sync of bytes and entries, in any order, makes writes
//! durable, and a killed process loses none. A flushed block is kept until its replacement is flushed, too: an entry
//! whose bytes were lost in a power cut does not count, and then the entry before it does.
//!
//! After a sync the journal stores up to which entry it went, for the next sync, or for a start after a kill. Up to
//! there the entries and their bytes were durable: if they are not there, the medium has damaged them, and the sector
//! must not have the bytes from before.

use super::Volume;
use super::layout::WORD;
use super::name::{DAMAGED, Name};
use crate::error::Result;
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::{Durable, Space, mutant};
use std::collections::{BTreeMap, HashSet};

/// Bytes before the entries, and bytes of an entry.
const HEAD: u64 = 64;
const ENTRY: u64 = 32;
/// Bits of a number.
const NUMBER_BITS: u32 = 32 + 8;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// The place of the journal, and its progress.
#[derive(Debug, Default)]
pub(super) struct Journal {
    start: u64,
    capacity: u64,
    /// The number of the last entry, of the last committed entry, and of the last entry that is flushed or being
    /// flushed.
    last: u64,
    committed: u64,
    flushing: u64,
    /// The number of the last entry that the open found.
    found: u64,
}

/// What an open finds.
#[derive(Debug)]
struct Remains {
    /// The entries that are not committed, in their order.
    entries: Vec<Entry>,
    /// The number up to which entries are known to have been flushed, with the bytes of their blocks.
    flushed: u64,
    /// How many of those are unreadable.
    unreadable: u64,
}

/// A recorded write.
#[derive(Debug, Clone, Copy)]
struct Entry {
    sector: u64,
    word: u64,
    number: u64,
}

// media-format: begin pool
fn check_of(Entry { sector, word, number }: Entry) -> u64 {
    let words = [sector, word, number].map(u64::to_le_bytes);
    // Not zero for words of zero.
    u64::from(words.iter().fold(1, |crc, word| crc32c_append(crc, word)))
}

/// The place in the head of the word for flushed entries; that for committed entries comes first.
const FLUSHED: u64 = 8;

/// The word with the number up to which all entries are in the map, or flushed; its upper bits are a checksum.
fn number_word(number: u64) -> u64 {
    let number = number & NUMBER;
    number | u64::from(crc32c_append(1, &number.to_le_bytes())) << NUMBER_BITS
}

/// Pages of a journal with `entries` entries.
pub(super) fn journal_pages(entries: u64, page_len: u32) -> u64 {
    (HEAD + entries * ENTRY).div_ceil(u64::from(page_len))
}
// media-format: end

/// The number in such a word, with one bit corrected if need be; none if it is unreadable. A new pool has the word 0.
fn number_in(word: u64) -> Option<u64> {
    let exact = |word: u64| (word == 0 || word == number_word(word)).then_some(word & NUMBER);
    exact(word).or_else(|| (0..u64::BITS).find_map(|bit| exact(word ^ 1 << bit)))
}

impl Entry {
    fn of_words([sector, word, number, check]: [u64; 4]) -> Option<Self> {
        let entry = Self { sector, word, number };
        (check == check_of(entry)).then_some(entry)
    }

    /// The same with this number, if one bit is flipped.
    fn corrected(words: [u64; 4], number: u64) -> Option<Self> {
        let flipped = |at: usize, bit: u32| {
            let mut words = words;
            if let Some(word) = words.get_mut(at) {
                *word ^= 1 << bit;
            }
            Self::of_words(words).filter(|entry| entry.number == number)
        };
        (0..words.len()).find_map(|at| (0..u64::BITS).find_map(|bit| flipped(at, bit)))
    }
}

impl Journal {
    /// The journal at offset `start`.
    pub(super) fn new(start: u64, capacity: u64) -> Self {
        Self { start, capacity, last: 0, committed: 0, flushing: 0, found: 0 }
    }

    fn place(&self, number: u64) -> u64 {
        self.start + HEAD + number % self.capacity * ENTRY
    }

    /// Records a write; returns its number.
    pub(super) fn note(&mut self, space: &Space, sector: u64, word: u64) -> u64 {
        self.last += 1;
        let entry = Entry { sector, word, number: self.last };
        let place = self.place(self.last);
        let words = [sector, word, self.last, check_of(entry)];
        for (at, value) in (place..).step_by(WORD as usize).zip(words) {
            if let Some(word) = space.word::<Durable>(at).filter(|_| !mutant!("tio.journal.empty"))
            {
                word.store(value);
            }
        }
        if !mutant!("tio.journal.flush") {
            space.flush(place, ENTRY);
        }
        self.last
    }

    /// The number up to which all entries are flushed or being flushed.
    pub(super) fn flushing(&self) -> u64 {
        self.flushing
    }

    /// True if there are entries that are not flushed.
    pub(super) fn has_to_flush(&self) -> bool {
        self.flushing != self.last
    }

    /// Begins a flush of all entries; false if they are flushed already.
    pub(super) fn begin_flush(&mut self) -> bool {
        std::mem::replace(&mut self.flushing, self.last) != self.last
    }

    /// The last entry, up to which the next commit goes.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Stores that all entries up to this one are in the map; durable with the next fence.
    pub(super) fn store_committed(&self, space: &Space, number: u64) {
        if let Some(word) = space.word::<Durable>(self.start) {
            word.store(number_word(number));
            word.flush();
        }
    }

    /// Notes that the stored number is durable: the places of those entries are free. Not before, since otherwise the
    /// ring could have both entries that are newer and entries that are older than the number that an open takes for
    /// committed.
    pub(super) fn note_committed(&mut self, number: u64) {
        self.committed = number;
    }

    /// True if more than half of its entries are not committed.
    pub(super) fn is_crowded(&self) -> bool {
        self.last - self.committed > self.capacity / 2
    }

    /// True if it has room for `count` more.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.last - self.committed + count as u64 <= self.capacity || mutant!("tio.journal.full")
    }

    /// Stores that all entries up to [`Journal::flushing`] are flushed, after the sync that did it. Not for those that
    /// the open found: a power cut may have taken the bytes of some.
    pub(super) fn store_flushed(&self, space: &Space) {
        if self.flushing <= self.found && !mutant!("tio.flushed.found") {
            return;
        }
        let flushed = number_word(self.flushing);
        let word = space.word::<Durable>(self.start + FLUSHED);
        let word = word.filter(|word| word.load() != flushed && !mutant!("tio.journal.flushed"));
        if let Some(word) = word {
            word.store(flushed);
            word.flush();
        }
    }

    fn open(&mut self, space: &Space) -> Remains {
        let load = |at| space.word::<Durable>(at).map_or(0, |word| word.load());
        let committed = number_in(load(self.start));
        self.committed = committed.unwrap_or(0);
        let flushed = number_in(load(self.start + FLUSHED)).filter(|flushed| {
            let is_near = |committed| flushed.saturating_sub(committed) <= self.capacity;
            committed.is_none_or(is_near)
        });
        let flushed = flushed.unwrap_or(0);
        self.last = self.committed.max(flushed);
        // Without the committed number it is unknown of which entries the blocks may have other bytes by now.
        let flushed = if committed.is_some() { flushed } else { 0 };
        let (mut entries, mut unreadable) = (BTreeMap::new(), 0);
        for number in self.committed + 1..=self.committed + self.capacity {
            let place = self.place(number);
            let words = [0, 8, 16, 24].map(|within| load(place + within));
            // An entry that was overwritten in part has a wrong check; one at a wrong place does not count.
            let entry = Entry::of_words(words)
                .filter(|it| it.number > self.committed && self.place(it.number) == place);
            let is_flushed = number <= flushed;
            let corrected = || is_flushed.then(|| Entry::corrected(words, number)).flatten();
            match entry.or_else(corrected) {
                Some(entry) => {
                    entries.insert(entry.number, entry);
                    self.last = self.last.max(entry.number);
                }
                None => unreadable += u64::from(is_flushed),
            }
        }
        // Entries for which the ring has no room beside the last one are committed, whatever the head says: they are
        // there because a power cut took those that replaced them, and the pool may have newer names of their sectors.
        // The others are all there, so that the last entry of a sector is its name in the pool, or newer.
        if !mutant!("tio.journal.round") {
            entries.retain(|number, _| number + self.capacity > self.last);
        }
        (self.flushing, self.found) = (self.last, self.last);
        // The stored numbers have fewer bits than those of the entries.
        let (flushed, unreadable) = if self.last > NUMBER { (0, 0) } else { (flushed, unreadable) };
        Remains { entries: entries.into_values().collect(), flushed, unreadable }
    }

    /// True if the head says that all entries up to this one are committed, and no bit of it is flipped.
    fn says_committed(&self, space: &Space, number: u64) -> bool {
        let word = space.word::<Durable>(self.start).map(|word| word.load());
        word.is_none_or(|word| word == number_word(number) || word | number == 0)
    }

    /// Removes all entries, which are committed; durable when it returns.
    fn clear(&self, space: &Space) -> Result<()> {
        let entries = self.start + HEAD..self.start + HEAD + self.capacity * ENTRY;
        let words = entries.step_by(WORD as usize).filter_map(|at| space.word::<Durable>(at));
        let mut has_stored = false;
        for word in words.filter(|word| word.load() != 0) {
            word.store(0);
            word.flush();
            has_stored = true;
        }
        if has_stored {
            space.fence()?;
        }
        Ok(())
    }
}

impl Volume {
    /// Repeats the recorded writes that are not committed, if their bytes are there; sectors of flushed writes whose
    /// bytes are not there are damaged. Extents of such writes with a `lost` map page get new ones, which must not take
    /// pages that are blocks of such writes; the others are returned.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub(super) fn replay(&mut self, lost: Vec<u64>) -> Result<Vec<u64>> {
        let Remains { entries, flushed, unreadable } = self.journal.lock().open(self.pool.space());
        self.unnamed = unreadable;
        let (mut adopted, mut made) = (HashSet::new(), BTreeMap::new());
        let len = self.geometry.sector_len;
        for Entry { sector, word, number } in entries {
            if sector >= self.geometry.sectors {
                continue;
            }
            let Ok(name) = Name::of_word(word) else { continue };
            let is_there = name.is_none_or(|name| {
                let is_named = self.name_word(sector) == word;
                // A block that another sector has does not belong to this one any more.
                let is_ours = is_named
                    || adopted.contains(&name.block)
                    || self.space().adopt_log(name.block, len);
                if !is_named && is_ours {
                    adopted.insert(name.block);
                }
                is_ours && self.is_held(&self.space().pin(), sector, name)
            });
            // A flushed block is kept until a later entry is flushed, which then is there.
            match is_there {
                true => made.insert(sector, word),
                false if number <= flushed => made.insert(sector, DAMAGED),
                false => None,
            };
        }
        made.retain(|sector, word| self.name_word(*sector) != *word);
        let kept: HashSet<u32> = made.values().filter_map(|word| Name::block_of(*word)).collect();
        let left: Vec<u32> = adopted.difference(&kept).copied().collect();
        self.space().retire_all(&left);
        self.blocks.lock().free.retain(|page| !adopted.contains(page));
        let extents: HashSet<u64> =
            made.keys().map(|sector| sector / self.geometry.extent_sectors()).collect();
        let (own, lost): (Vec<u64>, Vec<u64>) =
            lost.into_iter().partition(|extent| extents.contains(extent));
        self.replace_lost(&own)?;
        let last = self.journal.lock().last;
        for (sector, word) in made {
            self.take_in(sector / self.geometry.extent_sectors())?;
            self.exchange(sector, word);
            self.pending.lock().names.insert(sector, (word, last));
        }
        self.commit()?;
        let mut journal = self.journal.lock();
        if !journal.says_committed(self.space(), last) {
            journal.store_committed(self.space(), last);
            self.space().fence()?;
        }
        // The stored number has fewer bits than this one.
        journal.note_committed(last);
        // No entry is made here any more: those that are there become older than the names.
        if self.is_durable_at_once() && !mutant!("tio.journal.stays") {
            journal.clear(self.space())?;
        }
        drop(journal);
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_number_is_corrected_and_two_are_not_another_number() {
        for number in [0, 1, 2, 129, 77_777, NUMBER] {
            let word = number_word(number);
            assert_eq!(number_in(word), Some(number));
            for bit in 0..u64::BITS {
                assert_eq!(number_in(word ^ 1 << bit), Some(number), "{number}, bit {bit}");
                for other in 0..bit {
                    let found = number_in(word ^ 1 << bit ^ 1 << other);
                    assert_eq!(found, None, "{number}, bits {bit} and {other}");
                }
            }
        }
        assert!((0..u64::BITS).all(|bit| number_in(1 << bit) == Some(0)), "a new pool");
    }
}
