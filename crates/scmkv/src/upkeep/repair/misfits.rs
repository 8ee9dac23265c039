//! Slots that fit no record, in the store that was opened: the keys that they belonged to.
//!
//! A slot that points into a gap is the only evidence that a key was written there. Its group and
//! its signature are some forty bits of the key's hash, so that the key can be identified: by the
//! bytes at which the slot points, by a record that no slot finds, or by the record of a slot with
//! the same signature.

use crate::clean::reindex::Fit;
use crate::store::Store;
use crate::table::index::{Leaf, Position, Slot, SlotRef};
use crate::table::visit::Seen;
use coreplane_engine::Result;
use coreplane_engine::{Fate, Finding, Repair, Tell};
use coreplane_pmem::epoch;
use coreplane_record::{Header, Kind, View};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A slot, its segment and its group there.
type Misfit = (Leaf, Position, SlotRef);
/// The keys that a slot can be of: segment, group and signature.
type Class = (u32, u32, u32);
/// Named keys, and the number of keys without a name.
type Keys = (Vec<(Vec<u8>, Fate)>, u64);
/// The keys that no slot finds, each with the slot that it should have.
type Missed = HashMap<Class, Vec<(Vec<u8>, Slot)>>;

/// The changes to be made to the index.
#[derive(Default)]
struct Verdict {
    /// By page: the keys that were last written there.
    lost: BTreeMap<u32, Keys>,
    /// Keys that get a tombstone, by the place of the slot that will point at it.
    tombstones: BTreeMap<u64, Vec<u8>>,
    misfits: Vec<Misfit>,
    /// Slots that are damaged themselves.
    hit: usize,
    /// Large values that lack an overflow record: slot, key, record.
    broken: Vec<(u64, Vec<u8>, u64)>,
}

impl Store {
    /// Names the keys that are lost, and mends the index, in a store that is not in use yet.
    pub(super) fn settle_index(&self, repair: &mut Repair, tell: Tell<'_>) -> Result<()> {
        let (mut verdict, mut missed) = (self.look_at_index()?, Missed::new());
        for it in self.missed()? {
            missed.entry(self.class_of(&it.0)).or_default().push(it);
        }
        let shown = repair.findings.iter().flat_map(|finding| &finding.keys);
        let shown = shown.map(|(key, _)| (self.class_of(key), key.clone())).collect();
        for misfit in verdict.misfits.clone() {
            if self.is_into_gap(misfit.2.slot.offset()) {
                self.judge(&mut verdict, misfit, &missed, &shown)?;
            } else {
                verdict.hit += 1;
            }
        }
        let Verdict { lost, tombstones, misfits, hit, mut broken } = verdict;
        for (page, (keys, unnamed)) in lost {
            let what = match unnamed {
                0 => "keys that were last written in what is lost of the page".to_owned(),
                _ => format!("{unnamed} keys are absent now that cannot be named"),
            };
            let (offset, len) = (self.space.start_of(page), u64::from(self.geometry.page_size));
            repair.add(tell, Finding { page, offset, len, what, keys });
        }
        let given_up: HashSet<_> = tombstones.values().collect();
        let unfound = missed.values().flatten().filter(|it| !given_up.contains(&it.0)).count();
        if hit + unfound > 0 {
            let what = format!("the index: {hit} slots fit no record, {unfound} records have none");
            repair.note(tell, 0, (0, 0), what + "; it is mended from the logs");
        }
        for (at, key) in &tombstones {
            self.entomb(key, *at)?;
        }
        for (leaf, here, found) in misfits {
            let held = self.index.lock_group(leaf, here.y, here.group);
            if let Some(held) = held.filter(|_| !tombstones.contains_key(&found.at)) {
                held.remove(found.at)?;
            }
        }
        if hit + unfound > 0 {
            // A whole index is worth the last pages.
            self.reindex_with(&self.cleaner_state.lock(), 0)?;
            broken = self.look_at_index()?.broken;
        }
        for (at, key, offset) in broken {
            let (page, keys) = (self.space.page_of(offset), vec![(key.clone(), Fate::Lost)]);
            let what = "a large value that lacks an overflow record".to_owned();
            repair.add(tell, Finding { page, offset, len: 8, what, keys });
            self.entomb(&key, at)?;
        }
        Ok(())
    }

    /// Finds the slots that fit no record, and the large values that lack an overflow record.
    fn look_at_index(&self) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        self.each_fit(&mut |leaf, here, found, fit| match fit {
            Fit::None => verdict.misfits.push((leaf, here, found)),
            Fit::Marks(_) => verdict.hit += 1,
            Fit::Right => {
                let guard = epoch::pin();
                let view = self.view(&guard, found.slot.offset());
                let is_whole = |view: &View<'_>| self.pieces(&guard, view, true).is_ok();
                if let Some(view) = view.filter(|view| view.header.large && !is_whole(view)) {
                    verdict.broken.push((found.at, view.key().to_vec(), view.offset));
                }
            }
        })?;
        Ok(verdict)
    }

    fn class_of(&self, key: &[u8]) -> Class {
        let place = self.place(key);
        let held = self.index.lock(place);
        (held.leaf().number(), self.index.group_of(place), held.signature(place))
    }

    /// True if a record may have been at `offset` and be lost.
    fn is_into_gap(&self, offset: u64) -> bool {
        let (page, mut is_lost) = (self.space.page_of(offset), self.may_be_lost(offset));
        if page < self.pages.len() {
            self.visit_page(page, &mut |Seen { view, .. }| {
                let range = view.offset..view.offset + u64::from(view.len());
                is_lost |= view.header.kind == Kind::Lost && range.contains(&offset);
            });
        }
        is_lost
    }

    /// Decides the fate of the key of a slot that points into lost bytes. `shown` are keys that the
    /// bytes of gaps have shown.
    fn judge(
        &self,
        verdict: &mut Verdict,
        misfit: Misfit,
        missed: &Missed,
        shown: &HashMap<Class, Vec<u8>>,
    ) -> Result<()> {
        let (leaf, Position { group, .. }, SlotRef { at, slot }) = misfit;
        let (guard, offset) = (epoch::pin(), slot.offset());
        let (page, class) = (self.space.page_of(offset), (leaf.number(), group, slot.signature()));
        let gone = if slot.is_tombstone() { Fate::Deleted } else { Fate::Lost };
        // Each key with its fate, where its slot is, and whether it gets a tombstone.
        let mut keys: Vec<(Vec<u8>, Fate, u64, bool)> = Vec::new();
        // Behind the end of a page the slot may be damaged, and not a record.
        let is_tail = self.may_be_lost(offset);
        let is_hit = |right: Slot| is_tail && is_one_byte(right.0 ^ slot.0);
        for found in self.index.slots(leaf, group)? {
            if found.slot.signature() == slot.signature()
                && let Some(view) = self.sound_at(&guard, found.slot.offset())
            {
                // A recovery has found a record that the slot of the key did not lead to: a later
                // one, whose slot was not durable yet, unless it lies before the lost bytes.
                let is_before = view.offset < offset && self.space.page_of(view.offset) == page;
                let is_older = is_before && !is_hit(found.slot);
                let is_absent = found.slot.is_tombstone();
                let fate = if is_older || is_absent { gone } else { Fate::Uncertain };
                keys.push((view.key().to_vec(), fate, found.at, is_older && !is_absent));
            }
        }
        let left = self.view(&guard, offset).map(|view| view.key().to_vec());
        let left = left.filter(|key| self.class_of(key) == class);
        if let Some(key) = left.or_else(|| shown.get(&class).cloned()).filter(|_| keys.is_empty()) {
            keys.push((key, gone, at, true));
        }
        for (key, right) in missed.get(&class).into_iter().flatten() {
            if is_hit(*right) {
                keys.push((key.clone(), Fate::Uncertain, at, false));
            } else if let Some(known) = keys.iter_mut().find(|known| known.0 == *key) {
                (known.1, known.3) = (gone, true);
            } else if keys.is_empty() {
                keys.push((key.clone(), gone, at, true));
            }
        }
        let (named, unnamed) = verdict.lost.entry(page).or_default();
        *unnamed += u64::from(keys.is_empty());
        for (key, fate, at, is_lost) in keys {
            named.push((key.clone(), fate));
            verdict.tombstones.extend(is_lost.then_some((at, key)));
        }
        Ok(())
    }

    /// Gives a key a tombstone that is later than all its records, and lets the slot at `at` point
    /// at it.
    fn entomb(&self, key: &[u8], at: u64) -> Result<()> {
        let (mut log, place) = (self.logs[0].lock(), self.place(key));
        let mut held = self.index.lock(place);
        let version = held.next_version(self.version_base());
        let header = Header { kind: Kind::Delete, ..Header::put(version) };
        let birth = self.pages.next_birth().to_le_bytes();
        let offset = self.write_record(&mut log, &header, key, &birth)?;
        held.publish_and_flush(at, held.slot_of(place, offset, &header))?;
        self.space.fence().map_err(crate::table::page::sync_failed)
    }
}

/// True if at most one byte is not zero.
fn is_one_byte(word: u64) -> bool {
    (0..64).step_by(8).any(|shift| word & !(0xff << shift) == 0)
}
