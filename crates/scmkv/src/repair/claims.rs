//! What an index knows of the gaps: its slots that miss their record.
//!
//! A slot holds the place of its key's hash: segment, group, tag and window, some forty bits. So
//! one whose record is gone still says of any key whether it is its own.
//!
//! The index in the pool is read as it lies there, since it may be damaged too; a segment whose
//! header is damaged has nothing to say. It counts only if it was not to be made anew. An index in
//! DRAM left its last checkpoint; what that says may have been replaced since.

use super::survey::Surveyed;
use crate::checkpoint::{Found, Loaded, Source};
use crate::geometry::SLOTS;
use crate::hash::{Place, window, window_start};
use crate::index::{Index, Position, SegmentHeader, Slot};
use crate::page::Element;
use crate::recover::LogPage;
use crate::store::{Root, Store};
use crate::unindexed::{Kinds, Seen, unindexed};
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, HashSet};

/// Where a slot is, and so which keys it can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) segment: SegmentHeader,
    pub(super) group: u32,
    pub(super) signature: u32,
}

/// A slot that misses its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) class: Class,
    pub(super) slot: Slot,
}

/// An index that was there before the repair.
#[derive(Debug)]
pub(super) enum Witness {
    /// There is none, or none that can be believed.
    Nobody,
    /// Segments of the index in the pool: header, offset of the first slot.
    Pool(Vec<(SegmentHeader, u64)>),
    /// A checkpoint.
    Checkpoint(Box<Loaded>),
}

/// What was found out about the index itself.
#[derive(Debug, Default)]
pub(super) struct IndexDamage {
    /// Offset of the first thing that is wrong, and how many are.
    pub(super) first: Option<(u64, String)>,
    pub(super) count: u64,
}

impl IndexDamage {
    pub(super) fn note(&mut self, offset: u64, what: impl Into<String>) {
        self.first.get_or_insert_with(|| (offset, what.into()));
        self.count += 1;
    }
}

impl Store {
    /// The index that there was; what is wrong with its segments goes to `damage`.
    pub(super) fn witness(
        &self,
        logs: &[LogPage],
        indexes: &[u32],
        damage: &mut IndexDamage,
    ) -> Result<Witness> {
        let root = self.root();
        let is_rebuilt = root.has(Root::LAX) && !root.has(Root::CLEAN);
        if root.has(Root::IN_POOL) && self.space.fences_at_once() {
            let segments = self.segments_in_pool(indexes, damage);
            return Ok(if is_rebuilt { Witness::Nobody } else { Witness::Pool(segments) });
        }
        if root.checkpoint == 0 || is_rebuilt && root.has(Root::UNFLUSHED) {
            return Ok(Witness::Nobody);
        }
        let mut elements: Vec<(u32, Element)> =
            logs.iter().map(|log| (log.page, log.element)).collect();
        for page in 0..self.pages.len().min(u32::try_from(root.formatted).unwrap_or(u32::MAX)) {
            let element = self.pages.element(page)?;
            if element.kind == crate::page::Kind::Checkpoint {
                elements.push((page, element));
            }
        }
        elements.sort_by_key(|(page, _)| *page);
        self.checkpoint_of(root, elements, damage)
    }

    fn checkpoint_of(
        &self,
        root: Root,
        elements: Vec<(u32, Element)>,
        damage: &mut IndexDamage,
    ) -> Result<Witness> {
        // By page number, as loading has it.
        let mut all: Vec<(u32, Element)> =
            (0..self.pages.len()).map(|page| (page, Element::NONE)).collect();
        for (page, element) in elements {
            all[page as usize].1 = element;
        }
        let source = Source {
            space: &self.space,
            geometry: self.geometry,
            seeds: self.seeds,
            elements: &all,
            progress: &|_| {},
        };
        let Found { loaded, .. } = source.load(root)?;
        Ok(match loaded {
            Some(loaded) => Witness::Checkpoint(Box::new(loaded)),
            None => {
                let what = "the checkpoint of the index is damaged; the logs have all of it";
                damage.note(0, what);
                Witness::Nobody
            }
        })
    }

    /// The segments that the index pages hold, as an open would have them.
    fn segments_in_pool(
        &self,
        indexes: &[u32],
        damage: &mut IndexDamage,
    ) -> Vec<(SegmentHeader, u64)> {
        let guard = epoch::pin();
        let mut found = Vec::new();
        for page in indexes {
            let start = self.space.start_of(*page);
            for number in 1..=self.geometry.segments_per_page() {
                let at = start + 8 * number;
                let Some(word) = self.pool_word(&guard, at) else { continue };
                match SegmentHeader::from_word(word, at) {
                    Ok(None) => {}
                    Ok(Some(header)) => {
                        found.push((header, start + number * self.geometry.segment_bytes()));
                    }
                    Err(_) => damage.note(at, "the header of an index segment"),
                }
            }
        }
        let there: HashSet<SegmentHeader> = found.iter().map(|(header, _)| *header).collect();
        found.retain(|(header, _)| counts(*header, &there));
        let covered: u64 = found.iter().map(|(header, _)| 1_u64 << (32 - header.depth)).sum();
        if covered != 1 << 32 {
            let at = indexes.first().map_or(0, |page| self.space.start_of(*page));
            damage.note(at, "the segments of the index do not cover all keys once");
        }
        found
    }

    fn pool_word(&self, guard: &epoch::Guard, at: u64) -> Option<u64> {
        let bytes = self.space.bytes(guard, at, 8)?;
        Some(u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])))
    }

    /// Shows every used slot of a witness.
    pub(super) fn each_slot(
        &self,
        witness: &Witness,
        visit: &mut dyn FnMut(Claim, u64),
    ) -> Result<()> {
        match witness {
            Witness::Nobody => {}
            Witness::Pool(segments) => {
                let guard = epoch::pin();
                for (segment, start) in segments {
                    for at in (*start..start + self.geometry.segment_bytes()).step_by(8) {
                        let Some(word) = self.pool_word(&guard, at) else { continue };
                        let slot = Slot(word);
                        let group = ((at - start) / self.geometry.group_bytes()) as u32;
                        if slot.is_used() {
                            visit(claim(*segment, group, slot), at);
                        }
                    }
                }
            }
            Witness::Checkpoint(loaded) => {
                let mut position = Some(Position::default());
                while let Some(here) = position {
                    let (leaf, group, next) = loaded.index.step(here);
                    let segment = Index::header_of(leaf, here.y);
                    for found in loaded.index.slots(leaf, group)? {
                        visit(claim(segment, group, found.slot), found.at);
                    }
                    position = next;
                }
            }
        }
        Ok(())
    }

    /// Notes the records that the index in the pool should find, and does not.
    pub(super) fn note_unindexed(
        &self,
        surveyed: &[Surveyed],
        segments: &[(SegmentHeader, u64)],
        damage: &mut IndexDamage,
    ) -> Result<()> {
        let first_y =
            |header: SegmentHeader| (u64::from(header.prefix) << (32 - header.depth)) as u32;
        let by_y: BTreeMap<u32, (SegmentHeader, u64)> =
            segments.iter().map(|segment| (first_y(segment.0), *segment)).collect();
        let group_of = |view: &View<'_>| {
            let place = self.place(view.key());
            let (_, (segment, start)) = by_y.range(..=place.y).next_back()?;
            let class = self.class_of(place, segment.depth);
            Some((class, start + u64::from(class.group) * self.geometry.group_bytes()))
        };
        // Groups with slots that a crash may have emptied, and that the replay fills.
        let mut refilled = HashSet::new();
        self.all_records(surveyed, &mut |page, view| {
            if page.log.element.length.is_none() {
                refilled.extend(group_of(view).map(|(_, group)| group));
            }
        })?;
        let has = |view: &View<'_>| {
            group_of(view).is_some_and(|(class, group)| {
                self.is_reached(class, group, refilled.contains(&group), view)
            })
        };
        let records = |visit: &mut dyn FnMut(&Seen<'_>)| {
            self.all_records(surveyed, &mut |page, view| {
                let element = &page.log.element;
                let is_settled = element.length.is_some();
                let (page, generation) = (page.log.page, element.generation);
                visit(&Seen { view: *view, page, generation, is_settled });
            })
        };
        let missed = unindexed(&records, Kinds::Puts, &|view| Ok(has(view)))?;
        let what = "the index finds no slot of a record's key";
        missed.iter().for_each(|(_, at)| damage.note(*at, what));
        Ok(())
    }

    /// True if a probe of the group at `group`, to the first empty slot or, if `whole`, all around,
    /// finds a slot of the key of `view`.
    fn is_reached(&self, class: Class, group: u64, whole: bool, view: &View<'_>) -> bool {
        let (guard, buckets) = (epoch::pin(), self.geometry.buckets);
        let home = self.place(view.key()).home(buckets);
        let is_its = |slot: Slot| {
            let found = self.reader().view(&guard, slot.offset());
            slot.offset() == view.offset
                || found.is_some_and(|found| found.key() == view.key())
                // What it misses may have been a record of the key.
                || !self.is_met(&Claim { class, slot })
        };
        for step in 0..buckets {
            let bucket = u64::from((home + step) & (buckets - 1));
            let words = (0..SLOTS)
                .map_while(|at| self.pool_word(&guard, group + (bucket * SLOTS + at) * 8))
                .map(Slot);
            let mut has_ended = false;
            for slot in words {
                has_ended |= slot == Slot::EMPTY && !whole;
                if slot.is_used() && slot.signature() == class.signature && is_its(slot) {
                    return true;
                }
            }
            if has_ended {
                return false;
            }
        }
        false
    }

    /// True if the slot points at the sound record of a key of its class.
    pub(super) fn is_met(&self, claim: &Claim) -> bool {
        let guard = epoch::pin();
        let offset = claim.slot.offset();
        let page = self.space.page_of(offset);
        if page >= self.pages.len() || self.pages.cell(page).kind() != Some(crate::page::Kind::Log)
        {
            return false;
        }
        let expected = if claim.slot.is_tombstone() { Kind::Delete } else { Kind::Put };
        let generation = self.pages.cell(page).generation();
        self.sound(&guard, generation, offset).is_ok_and(|view| {
            view.header.kind == expected
                && view.header.expires_at.is_some() == claim.slot.expires()
                && self.is_of_class(view.key(), &claim.class)
        })
    }

    /// The key of the sound record at which the slot would point, were one of its bytes another.
    pub(super) fn twin_of(&self, claim: &Claim) -> Option<Vec<u8>> {
        let changes = (0..64).step_by(8).flat_map(|byte| (1..=255_u64).map(move |it| it << byte));
        let twins = changes.map(|change| {
            let slot = Slot(claim.slot.0 ^ change);
            Claim { class: Class { signature: slot.signature(), ..claim.class }, slot }
        });
        let guard = epoch::pin();
        let twin = { twins }.find(|twin| twin.slot.is_used() && self.is_met(twin))?;
        self.reader().view(&guard, twin.slot.offset()).map(|view| view.key().to_vec())
    }

    /// True if a slot of that class can be of `key`.
    pub(super) fn is_of_class(&self, key: &[u8], class: &Class) -> bool {
        self.class_of(self.place(key), class.segment.depth) == *class
    }

    /// The class of a place in an index whose segment there has this depth.
    pub(super) fn class_of(&self, place: Place, depth: u32) -> Class {
        let prefix = (u64::from(place.y) >> (32 - depth)) as u32;
        let origin = self.geometry.depth;
        let window = window(place.y, window_start(depth, origin));
        Class {
            segment: SegmentHeader { prefix, depth },
            group: place.group_bits & (self.geometry.groups - 1),
            signature: u32::from(place.tag) << crate::hash::WINDOW_BITS | window,
        }
    }
}

fn claim(segment: SegmentHeader, group: u32, slot: Slot) -> Claim {
    Claim { class: Class { segment, group, signature: slot.signature() }, slot }
}

/// False for the lone half of a split that a crash cut short, and for the parent of two halves.
fn counts(header: SegmentHeader, there: &HashSet<SegmentHeader>) -> bool {
    let SegmentHeader { prefix, depth } = header;
    let half = |bit: u32| SegmentHeader { prefix: prefix << 1 | bit, depth: depth + 1 };
    let is_split = there.contains(&half(0)) && there.contains(&half(1));
    let is_lone = depth > 0 && {
        let parent = SegmentHeader { prefix: prefix >> 1, depth: depth - 1 };
        let sibling = SegmentHeader { prefix: prefix ^ 1, depth };
        there.contains(&parent) && !there.contains(&sibling)
    };
    !is_split && !is_lone
}
