//! Which keys are lost, and what is to be written.

use super::claims::{Claim, Class, IndexDamage, Witness};
use super::survey::{Copied, Gap, Reading, Surveyed};
use super::{Fate, Finding};
use crate::batch::Run;
use crate::index::VERSION_STEP;
use crate::recover::LogPage;
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Bytes that something was lost from: a gap, or what lies behind the records of a page.
#[derive(Debug, Default)]
pub(super) struct Zone {
    page: u32,
    start: u64,
    end: u64,
    reading: Option<Reading>,
    /// It lies behind the last record of its page.
    is_tail: bool,
    /// The slots told all that was current in it.
    is_known: bool,
    pub(super) keys: Vec<(Vec<u8>, Fate)>,
    /// Slots of keys that cannot be named.
    unnamed: u64,
}

/// What there is to say and to write.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) surveyed: Vec<Surveyed>,
    /// By where they start.
    zones: BTreeMap<u64, Zone>,
    index: IndexDamage,
    /// Keys that must not come back, and the greatest version that is left of them.
    pub(super) tombstones: BTreeMap<Vec<u8>, u64>,
    /// Sound records that lie where no log reaches.
    pub(super) saved: Vec<Copied>,
    /// Batches whose commit record is lost.
    pub(super) batches: Vec<Run>,
}

/// The newest sound record of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    version: u64,
    offset: u64,
    is_tombstone: bool,
}

/// A slot that misses its record, and the zone that it points into.
struct Miss {
    claim: Claim,
    zone: u64,
    key: Option<Vec<u8>>,
}

/// What is to be known of the logs.
#[derive(Debug, Default)]
struct Questions {
    /// Of these keys the newest record.
    keys: HashMap<Vec<u8>, Option<Newest>>,
    /// Of these classes all keys, and the newest record of each; by depth, since a key is of one
    /// class in a segment of that depth.
    classes: HashMap<Class, BTreeMap<Vec<u8>, Newest>>,
    depths: HashSet<u32>,
}

impl Questions {
    /// Learns of a sound record; false if nobody has asked.
    fn learn(&mut self, store: &Store, key: &[u8], newest: Newest) -> bool {
        let raise = |known: &mut Newest| {
            if newest.version > known.version {
                *known = newest;
            }
        };
        let mut is_asked = false;
        if let Some(known) = self.keys.get_mut(key) {
            raise(known.get_or_insert(newest));
            is_asked = true;
        }
        for depth in &self.depths {
            let class = store.class_of(store.place(key), *depth);
            if let Some(found) = self.classes.get_mut(&class) {
                raise(found.entry(key.to_vec()).or_insert(newest));
                is_asked = true;
            }
        }
        is_asked
    }

    fn is_asked(&self, store: &Store, key: &[u8]) -> bool {
        let mut classes = self.depths.iter().map(|depth| store.class_of(store.place(key), *depth));
        self.keys.contains_key(key) || classes.any(|class| self.classes.contains_key(&class))
    }
}

impl Store {
    /// Finds out what is lost. Changes nothing.
    pub(super) fn plan(&self, logs: &[LogPage], indexes: &[u32]) -> Result<Plan> {
        let surveyed: Vec<Surveyed> = logs.iter().map(|log| self.survey(log)).collect();
        let mut index = IndexDamage::default();
        let witness = self.witness(logs, indexes, &mut index)?;
        let mut plan = Plan {
            zones: self.zones(&surveyed),
            surveyed,
            index,
            tombstones: BTreeMap::new(),
            saved: Vec::new(),
            batches: Vec::new(),
        };
        let misses = self.misses(&witness, &mut plan)?;
        if let Witness::Pool(segments) = &witness
            && plan.index.count == 0
        {
            self.note_unindexed(&plan.surveyed, segments, &mut plan.index)?;
        }
        plan.note_what_is_known(&witness);
        let mut questions = Questions::default();
        for miss in &misses {
            match &miss.key {
                Some(key) => drop(questions.keys.insert(key.clone(), None)),
                None => {
                    questions.classes.insert(miss.claim.class, BTreeMap::new());
                    questions.depths.insert(miss.claim.class.segment.depth);
                }
            }
        }
        let mut named = Vec::new();
        for reading in plan.zones.values().filter_map(|zone| zone.reading.as_ref()) {
            questions.keys.insert(reading.key.clone(), None);
            named.extend(&reading.runs);
        }
        let orphans = self.orphans(&plan.surveyed, &witness, named)?;
        self.answer(&plan.surveyed, &witness, &orphans, &mut questions)?;
        for miss in &misses {
            self.judge_slot(&mut plan, &witness, &questions, miss)?;
        }
        self.judge_bytes(&mut plan, &questions);
        plan.batches = self.sound_runs(&plan, orphans);
        Ok(plan)
    }

    /// Where something may be lost.
    fn zones(&self, surveyed: &[Surveyed]) -> BTreeMap<u64, Zone> {
        let mut zones = BTreeMap::new();
        for page in surveyed {
            for gap in &page.gaps {
                let reading = self.read_gap(gap);
                let Gap { page, start, end, .. } = *gap;
                zones.insert(start, Zone { page, start, end, reading, ..Zone::default() });
            }
            let start = self.space.start_of(page.log.page);
            let (tail, end) =
                (start + u64::from(page.tail), start + u64::from(self.geometry.page_size));
            // Behind a page that was filled there never was anything.
            let is_cut = page.log.element.length.is_none() || page.log.element.is_cut;
            if is_cut && tail < end {
                let zone = Zone { page: page.log.page, start: tail, end, ..Zone::default() };
                zones.insert(tail, Zone { is_tail: true, ..zone });
            }
        }
        zones
    }

    /// The slots that miss a record in one of the zones. One that points elsewhere, and at no
    /// record, is itself damaged: the logs have its record.
    fn misses(&self, witness: &Witness, plan: &mut Plan) -> Result<Vec<Miss>> {
        let mut misses = Vec::new();
        let Plan { zones, index, saved, .. } = plan;
        self.each_slot(witness, &mut |claim, at| {
            let offset = claim.slot.offset();
            let zone = zones.range_mut(..=offset).next_back().map(|(_, zone)| zone);
            let zone = zone.filter(|zone| offset < zone.end);
            match (self.is_met(&claim), zone) {
                (true, None) => {}
                (true, Some(zone)) => {
                    if let Some(copied) = self.copy_of(zone.page, offset) {
                        zone.keys.push((copied.key.clone(), Fate::Saved));
                        saved.push(copied);
                    }
                }
                (false, None) => index.note(at, "a slot of the index points at no record"),
                (false, Some(zone)) => {
                    let key = self.name(zone, &claim);
                    misses.push(Miss { claim, zone: zone.start, key });
                }
            }
        })?;
        let mut in_zone: HashMap<u64, u32> = HashMap::new();
        misses.iter().for_each(|miss| *in_zone.entry(miss.zone).or_default() += 1);
        misses.retain(|miss| {
            let Some(zone) = zones.get_mut(&miss.zone) else { return true };
            let offset = miss.claim.slot.offset();
            let is_alone = zone.is_tail && in_zone[&miss.zone] == 1;
            // Is it the slot that is damaged, or a record that is lost? In a gap something is lost
            // for sure, and so it is where several slots point: no record of the key that is near
            // by chance may take its place.
            if !is_alone {
                return true;
            }
            let Some(key) = self.twin_of(&miss.claim) else { return true };
            index.note(offset, "a slot of the index points at no record");
            zone.keys.push((key, Fate::Uncertain));
            false
        });
        Ok(misses)
    }

    /// The key of a slot, by what is left of its record.
    fn name(&self, zone: &Zone, claim: &Claim) -> Option<Vec<u8>> {
        let is_its = |key: &[u8]| self.is_of_class(key, &claim.class);
        let offset = claim.slot.offset();
        let read = zone.reading.as_ref().filter(|_| zone.start == offset);
        if let Some(reading) = read.filter(|reading| is_its(&reading.key)) {
            return Some(reading.key.clone());
        }
        let guard = epoch::pin();
        let view = self.reader().view(&guard, offset)?;
        is_its(view.key()).then(|| view.key().to_vec())
    }

    /// Reads all logs for the answers.
    fn answer(
        &self,
        surveyed: &[Surveyed],
        witness: &Witness,
        orphans: &[Run],
        questions: &mut Questions,
    ) -> Result<()> {
        let mut members = Vec::new();
        self.all_records(surveyed, &mut |page, view: &View<'_>| {
            let is_tombstone = match view.header.kind {
                Kind::Fragment | Kind::Lost | Kind::Commit => return,
                Kind::Put => false,
                Kind::Delete => true,
            };
            let newest = Newest { version: view.header.version, offset: view.offset, is_tombstone };
            if !view.header.batched {
                questions.learn(self, view.key(), newest);
            } else if questions.is_asked(self, view.key()) {
                let generation = page.log.element.generation;
                members.push((generation, view.offset, (view.key().to_vec(), newest)));
            }
        })?;
        for (key, newest) in self.committed(surveyed, orphans, members)? {
            questions.learn(self, &key, newest);
        }
        if questions.classes.is_empty() {
            return Ok(());
        }
        // A key that another slot finds is not the one that is missed.
        let guard = epoch::pin();
        self.each_slot(witness, &mut |claim, _| {
            if let Some(found) = questions.classes.get_mut(&claim.class)
                && self.is_met(&claim)
                && let Some(view) = self.reader().view(&guard, claim.slot.offset())
            {
                found.remove(view.key());
            }
        })
    }

    /// What becomes of the key, or keys, of a slot that misses its record.
    fn judge_slot(
        &self,
        plan: &mut Plan,
        witness: &Witness,
        questions: &Questions,
        miss: &Miss,
    ) -> Result<()> {
        let Miss { claim, zone, key } = miss;
        let gone = if claim.slot.is_tombstone() { Fate::Deleted } else { Fate::Lost };
        let found: Vec<(Vec<u8>, Option<Newest>)> = match key {
            Some(key) => vec![(key.clone(), questions.keys.get(key).copied().flatten())],
            None => {
                let found = questions.classes.get(&claim.class).into_iter().flatten();
                found.map(|(key, newest)| (key.clone(), Some(*newest))).collect()
            }
        };
        let Plan { zones, surveyed, tombstones, .. } = plan;
        let Some(zone) = zones.get_mut(zone) else { return Ok(()) };
        if found.is_empty() {
            zone.unnamed += 1;
        }
        for (key, newest) in found {
            let lost = zone.version_of(&key);
            let fate = match (newest, lost) {
                (Some(newest), Some(lost)) if newest.version >= lost => Fate::Replaced,
                (Some(newest), None) if self.may_be_later(surveyed, witness, newest, zone)? => {
                    Fate::Uncertain
                }
                _ => gone,
            };
            if fate == gone {
                entomb(tombstones, &key, newest);
            }
            zone.keys.push((key, fate));
        }
        Ok(())
    }

    /// True if a slot of the witness may point into `zone` although the record `newest` of its key
    /// is later than what was there: the witness has not seen it.
    fn may_be_later(
        &self,
        surveyed: &[Surveyed],
        witness: &Witness,
        newest: Newest,
        zone: &Zone,
    ) -> Result<bool> {
        let page = page_of(surveyed, self.space.page_of(newest.offset));
        let Some(page) = page else { return Ok(false) };
        match witness {
            Witness::Nobody => Ok(false),
            Witness::Checkpoint(loaded) => Ok(loaded.lacking.has(&page.log.element)),
            // A slot is durable with the write after its own, at the latest.
            Witness::Pool(_) => Ok(page.log.element.length.is_none()
                && !(page.log.page == zone.page && newest.offset < zone.start)
                && self.followers(page, newest.offset)? < 2),
        }
    }

    /// What becomes of the keys that gaps show, where no slot tells.
    fn judge_bytes(&self, plan: &mut Plan, questions: &Questions) {
        let version_max = self.root().version_base.saturating_add(VERSION_STEP);
        for zone in plan.zones.values_mut().filter(|zone| !zone.is_known) {
            let Some(reading) = &zone.reading else { continue };
            let is_judged = zone.keys.iter().any(|(key, _)| *key == reading.key);
            if is_judged || !matches!(reading.kind, Kind::Put | Kind::Delete) {
                continue;
            }
            let is_version = reading.is_certain || (1..=version_max).contains(&reading.version);
            let gone = if reading.kind == Kind::Delete { Fate::Deleted } else { Fate::Lost };
            let fate = match questions.keys.get(&reading.key).copied().flatten() {
                None if reading.is_certain => gone,
                None => Fate::Guessed,
                Some(_) if !is_version => Fate::Uncertain,
                Some(newest) if newest.version >= reading.version && reading.is_certain => {
                    Fate::Replaced
                }
                // Very likely replaced; but nothing proves the version.
                Some(newest) if newest.version >= reading.version => Fate::Uncertain,
                Some(newest) => {
                    entomb(&mut plan.tombstones, &reading.key, Some(newest));
                    gone
                }
            };
            zone.keys.push((reading.key.clone(), fate));
        }
    }
}

/// What was found in a page; pages are in the order of their numbers.
fn page_of(surveyed: &[Surveyed], page: u32) -> Option<&Surveyed> {
    let at = surveyed.binary_search_by_key(&page, |surveyed| surveyed.log.page);
    at.ok().map(|at| &surveyed[at])
}

/// Notes that a key gets a tombstone, unless it has one already: after a repair that was
/// interrupted.
fn entomb(tombstones: &mut BTreeMap<Vec<u8>, u64>, key: &[u8], newest: Option<Newest>) {
    if !newest.is_some_and(|newest| newest.is_tombstone) {
        tombstones.insert(key.to_vec(), newest.map_or(0, |newest| newest.version));
    }
}

impl Zone {
    /// The version of the record of `key` that was lost here, if that is certain.
    fn version_of(&self, key: &[u8]) -> Option<u64> {
        let reading = self.reading.as_ref()?;
        (reading.is_certain && reading.key == key).then_some(reading.version)
    }

    /// True if it is certain which one record was here, and what became of its key.
    fn is_named(&self) -> bool {
        let is_of = |reading: &Reading| {
            let mut fates = self.keys.iter().filter(|(key, _)| *key == reading.key);
            fates.any(|(_, fate)| *fate != Fate::Guessed)
        };
        self.reading.as_ref().filter(|reading| reading.is_certain).is_some_and(is_of)
    }
}

impl Plan {
    /// Notes of which zones the witness knows all that was current in them.
    fn note_what_is_known(&mut self, witness: &Witness) {
        let Self { surveyed, zones, index, .. } = self;
        for zone in zones.values_mut() {
            zone.is_known = match witness {
                Witness::Nobody => false,
                // Where something of the index is lost nobody knows what it was about.
                Witness::Pool(_) => index.count == 0,
                Witness::Checkpoint(loaded) => page_of(surveyed, zone.page)
                    .is_some_and(|page| !loaded.lacking.has(&page.log.element)),
            };
        }
    }

    /// Where the gap that begins at `at` ends.
    pub(super) fn end_of_gap(&self, at: u64) -> Option<u64> {
        self.zones.get(&at).filter(|zone| !zone.is_tail).map(|zone| zone.end)
    }

    /// All that is to be said.
    pub(super) fn findings(&self, store: &Store) -> Vec<Finding> {
        let mut findings = Vec::new();
        for page in self.surveyed.iter().filter(|page| page.is_gone) {
            let offset = store.space.start_of(page.log.page);
            findings.push(Finding {
                page: page.log.page,
                offset,
                len: u64::from(store.geometry.page_size),
                what: "a page that was being written when the store stopped; nothing of it can be \
                       read, and keys last written there are absent now, or hold what they held \
                       before, but for those that are named"
                    .to_owned(),
                keys: Vec::new(),
            });
        }
        for zone in self.zones.values() {
            if !zone.is_tail || !zone.keys.is_empty() || zone.unnamed > 0 {
                findings.push(Self::finding(zone));
            }
        }
        if let Some((offset, what)) = &self.index.first {
            let more = self.index.count - 1;
            let what = match more {
                0 => format!("{what}; the index is made anew from the logs"),
                _ => format!(
                    "{what}, and at least {more} more; the index is made anew from the logs"
                ),
            };
            let page = store.space.page_of(*offset);
            findings.push(Finding { page, offset: *offset, len: 8, what, keys: Vec::new() });
        }
        findings
    }

    fn finding(zone: &Zone) -> Finding {
        let mut what = match zone.reading.as_ref().map(|reading| reading.kind) {
            _ if zone.is_tail => "the last records of a page that a crash left open".to_owned(),
            Some(Kind::Put | Kind::Delete) => "a damaged record".to_owned(),
            Some(Kind::Fragment) => "a damaged piece of a large value".to_owned(),
            Some(Kind::Commit) => "a damaged commit record of a batch".to_owned(),
            Some(Kind::Lost) | None => "damaged records".to_owned(),
        };
        let is_of_keys = !matches!(
            zone.reading.as_ref().map(|reading| reading.kind),
            Some(Kind::Fragment | Kind::Commit)
        );
        if zone.unnamed > 0 {
            what += &format!("; {} keys are absent now that cannot be named", zone.unnamed);
        } else if is_of_keys && zone.keys.is_empty() && zone.is_known {
            what += ", all of them replaced since: nothing is lost";
        }
        if is_of_keys && !zone.is_known && !zone.is_named() {
            what += "; keys last written there cannot be named for sure: they are absent now, or \
                     hold what they held before";
        }
        let Zone { page, start, end, keys, .. } = zone;
        Finding { page: *page, offset: *start, len: end - start, what, keys: keys.clone() }
    }
}
