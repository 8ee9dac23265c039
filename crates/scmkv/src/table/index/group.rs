//! Probing inside a group.
//!
//! A key's slot is in its home bucket, or, where that was full, in the next one that was not, and
//! so on around the group. A bucket without an empty slot is passed, one with an empty slot ends
//! the probe: hence a slot in a full bucket that other keys have passed becomes `DELETED`, never
//! `EMPTY`. There is no chain and no counter to keep in step, so that an insertion changes one
//! word of one line; a group that is full makes its segment split.

use super::{Index, Leaf, Slot};
use crate::table::hash::{Place, home_of};
use coreplane_engine::{Error, Result};
use coreplane_pmem::{LINE, mutant};

/// The verdict on a slot whose signature matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the key's.
    Mine,
    /// It is another key's.
    Other,
    /// Its record has been moved: look again.
    Moved,
}

/// Where a probe under the group's lock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The key's slot.
    Found { at: u64, slot: Slot },
    /// The key has none; this is where it would go.
    Vacant { at: u64 },
    /// The key has none, and the group no room.
    Full,
}

/// Where a probe without the lock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glance {
    Found(Slot),
    Absent,
    Moved { at: u64, slot: Slot },
}

/// The slots of a bucket, as they were loaded.
struct Bucket([u64; 8]);

impl Bucket {
    /// Its slots with this signature, in their order.
    ///
    /// All slots are compared before one is used. A loop that ends at the first match ends
    /// elsewhere for each key, and work begun behind a wrong branch prediction starts over once the
    /// line has arrived.
    #[inline(always)]
    fn matches(&self, signature: u32) -> impl Iterator<Item = (u64, Slot)> {
        let mut bits = 0_u32;
        for (at, word) in self.0.iter().enumerate() {
            bits |= u32::from(Slot(*word).signature() == signature) << at;
        }
        std::iter::from_fn(move || {
            while bits != 0 {
                let at = bits.trailing_zeros() & 7;
                bits &= bits - 1;
                let slot = Slot(self.0[at as usize]);
                if slot.is_used() {
                    return Some((8 * u64::from(at), slot));
                }
            }
            None
        })
    }

    /// True if a probe ends here. Not inlined, so that it is off the path of a key that is found.
    #[inline(never)]
    fn has_empty(&self) -> bool {
        self.0.iter().fold(false, |has, word| has | (*word == Slot::EMPTY.0))
    }

    /// The position of the first free slot in the bucket.
    #[inline(always)]
    fn first_free(&self) -> Option<u64> {
        let at = self.0.iter().position(|word| !Slot(*word).is_used())?;
        Some(8 * at as u64)
    }

    /// The position of the first slot in the bucket that was never used.
    fn first_empty(&self) -> Option<u64> {
        let at = self.0.iter().position(|word| *word == Slot::EMPTY.0)?;
        Some(8 * at as u64)
    }
}

#[cold]
pub(super) fn no_segment(offset: u64) -> Error {
    Error::Corrupt { offset, what: "the index names a segment that is none".to_owned() }
}

impl Index {
    /// The offset of the group of `place` in the segment of `leaf`.
    #[inline]
    pub(super) fn group_offset(&self, leaf: Leaf, place: Place) -> u64 {
        leaf.offset() + u64::from(self.group_of(place)) * self.shape.group_bytes()
    }

    #[inline]
    pub(crate) fn group_of(&self, place: Place) -> u32 {
        place.group_bits & (self.shape.groups - 1)
    }

    #[inline]
    pub(super) fn line(&self, offset: u64) -> Result<[u64; 8]> {
        self.space.load_line(offset).ok_or_else(|| no_segment(offset))
    }

    /// Probes without the lock.
    #[inline(always)]
    pub(super) fn glance(
        &self,
        leaf: Leaf,
        place: Place,
        mut verdict: impl FnMut(Slot) -> Verdict,
    ) -> Result<Glance> {
        let signature = self.signature(leaf, place);
        let group = self.group_offset(leaf, place);
        let mask = self.shape.buckets - 1;
        let home = place.home(self.shape.buckets);
        for step in 0..self.shape.buckets {
            let offset = group + u64::from((home + step) & mask) * LINE as u64;
            // Not by way of a `Result`, which is taken apart into bytes and loaded as words.
            let Some(line) = self.space.load_line(offset) else { return Err(no_segment(offset)) };
            let bucket = Bucket(line);
            for (at, slot) in bucket.matches(signature) {
                match verdict(slot) {
                    Verdict::Mine => return Ok(Glance::Found(slot)),
                    Verdict::Other => {}
                    Verdict::Moved => return Ok(Glance::Moved { at: offset + at, slot }),
                }
            }
            if bucket.has_empty() {
                break;
            }
        }
        Ok(Glance::Absent)
    }

    /// A slot on the path of `place` that has its signature: nearly always its key's. Only a guess:
    /// none does not prove that the key has no slot.
    #[inline(always)]
    pub(crate) fn likely(&self, place: Place) -> Option<Slot> {
        let leaf = self.leaf(place);
        let signature = self.signature(leaf, place);
        let group = self.group_offset(leaf, place);
        let mask = self.shape.buckets - 1;
        let home = place.home(self.shape.buckets);
        for step in 0..self.shape.buckets {
            let offset = group + u64::from((home + step) & mask) * LINE as u64;
            // The last slot with the signature, chosen without a branch.
            let fitting =
                self.space.load_line(offset)?.into_iter().fold(Slot::EMPTY, |found, word| {
                    if Slot(word).signature() == signature { Slot(word) } else { found }
                });
            if fitting.is_used() {
                return Some(fitting);
            }
            if Bucket(self.space.load_line(offset)?).has_empty() {
                return None;
            }
        }
        None
    }

    /// Probes under the group's lock, to the first empty slot or, if `whole`, all around the
    /// group. Then an empty slot, which may be a hole, is the vacancy before one that was used.
    pub(super) fn probe(
        &self,
        leaf: Leaf,
        place: Place,
        whole: bool,
        verdict: &mut dyn FnMut(Slot) -> Result<bool>,
    ) -> Result<Probe> {
        let signature = self.signature(leaf, place);
        let group = self.group_offset(leaf, place);
        let mask = self.shape.buckets - 1;
        let home = place.home(self.shape.buckets);
        let (mut vacant, mut hole) = (None, None);
        for step in 0..self.shape.buckets {
            let offset = group + u64::from((home + step) & mask) * LINE as u64;
            // Not by way of a `Result`, which is taken apart into bytes and loaded as words.
            let Some(line) = self.space.load_line(offset) else { return Err(no_segment(offset)) };
            let bucket = Bucket(line);
            for (at, slot) in bucket.matches(signature) {
                if verdict(slot)? {
                    return Ok(Probe::Found { at: offset + at, slot });
                }
            }
            vacant = vacant.or_else(|| Some(offset + bucket.first_free()?));
            if whole && !mutant!("scmkv.recover.hole") {
                hole = hole.or_else(|| Some(offset + bucket.first_empty()?));
            } else if !whole && bucket.has_empty() {
                break;
            }
        }
        Ok(hole.or(vacant).map_or(Probe::Full, |at| Probe::Vacant { at }))
    }

    /// The first free slot on the probe path of `place` that `is_taken` does not name.
    pub(super) fn vacancy(
        &self,
        leaf: Leaf,
        place: Place,
        is_taken: &dyn Fn(u64) -> bool,
    ) -> Result<Option<u64>> {
        let group = self.group_offset(leaf, place);
        let home = place.home(self.shape.buckets);
        for step in 0..self.shape.buckets {
            let bucket = group + u64::from((home + step) & (self.shape.buckets - 1)) * LINE as u64;
            for (at, word) in self.line(bucket)?.into_iter().enumerate() {
                let at = bucket + 8 * at as u64;
                if !Slot(word).is_used() && !is_taken(at) {
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    /// All words of a group, bucket after bucket.
    pub(super) fn group_words(&self, group: u64) -> Result<Vec<[u64; 8]>> {
        (0..u64::from(self.shape.buckets))
            .map(|bucket| self.line(group + bucket * LINE as u64))
            .collect()
    }

    /// The word to leave in a slot of bucket `bucket` that becomes free, given the group's words
    /// without it: `EMPTY` unless another key's probe passes this bucket.
    pub(super) fn vacated(&self, words: &[[u64; 8]], bucket: u32) -> Slot {
        let full_but_one =
            words[bucket as usize].iter().filter(|word| **word == Slot::EMPTY.0).count() <= 1;
        if full_but_one && self.is_passed(words, bucket) { Slot::DELETED } else { Slot::EMPTY }
    }

    /// True if a key in another bucket has `bucket` between its home and its slot.
    fn is_passed(&self, words: &[[u64; 8]], bucket: u32) -> bool {
        let buckets = self.shape.buckets;
        let distance = |from: u32, to: u32| (to + buckets - from) & (buckets - 1);
        words.iter().enumerate().any(|(held_in, line)| {
            let held_in = held_in as u32;
            held_in != bucket
                && line.iter().map(|word| Slot(*word)).filter(|slot| slot.is_used()).any(|slot| {
                    let home = home_of(slot.tag(), buckets);
                    distance(home, bucket) < distance(home, held_in)
                })
        })
    }
}
