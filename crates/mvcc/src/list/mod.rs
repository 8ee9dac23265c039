//! The persistent list: on the medium only records in the order of their births, in DRAM an ordered index of keys and
//! offsets.
//!
//! ```text
//!   DRAM     a ─▶ 3       b ─▶ 5       c ─▶ 2, 6 (a snapshot still sees 2)
//!   stream   [a b c a] [d b c d] …        a value is on the medium once, and never in DRAM
//! ```
//!
//! The write-ahead log is also the store: no record is written twice, except those that the cleaner moves
//! ([`clean`]). A delete is a record, a *tombstone*. It stays in the stream until no page is left that is older than
//! the delete, since such a page might show the key again after a restart; the index need not lead to it.
//!
//! Departures from the thesis (3.2): the background pass that removes duplicates is the cleaner, which moves the live
//! records of the page with the fewest live bytes, so that no pass reads the whole list; and a snapshot does not stop
//! it.

mod audit;
mod candidates;
mod clean;
mod damage;
mod entries;
mod found;
mod grave;
mod pins;
mod recover;
mod rewrite;
mod tombstone;

use crate::key::Key;
use crate::map::{Group, Linked, Log, Map, Opening, Purpose, Slice, Space, Visit, Way};
use crate::volume::Volume;
use crate::volume::pages::Pages;
use crate::volume::stream::Stream;
use clean::Victim;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{Header, Kind, View};
use damage::Damage;
use entries::Entries;
use grave::{Grave, Graves};
use pins::{Aged, is_between_pins};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;
use tombstone::Tombstones;

/// Free pages that a clear, a delete and an overwrite leave.
const FOR_CLEARS: u32 = 2;
const FOR_DELETES: u32 = 3;
const FOR_OVERWRITES: u32 = 5;

/// The versions of a key that the index leads to, the newest last.
#[derive(Debug)]
enum Versions {
    One(u64),
    Many(Vec<u64>),
}

impl Versions {
    fn newest(&self) -> u64 {
        match self {
            Self::One(offset) => *offset,
            Self::Many(offsets) => offsets.last().copied().unwrap_or_default(),
        }
    }

    fn all(&self) -> &[u64] {
        match self {
            Self::One(offset) => std::slice::from_ref(offset),
            Self::Many(offsets) => offsets,
        }
    }

    fn all_mut(&mut self) -> &mut [u64] {
        match self {
            Self::One(offset) => std::slice::from_mut(offset),
            Self::Many(offsets) => offsets,
        }
    }
}

type Index = BTreeMap<Key, Versions>;

/// The list and its index.
pub(crate) struct List {
    stream: Stream,
    index: Index,
    /// Keys whose newest version is no tombstone.
    records: u64,
    /// Bytes of keys that are not in place in their nodes.
    key_bytes: u64,
    /// The index as it was before each clear that a pin still sees, with the version of the clear.
    archives: Vec<(u64, Index)>,
    /// Pinned versions, and how often each is pinned.
    pins: BTreeMap<u64, u32>,
    aged: Aged,
    graves: Graves,
    /// Tombstones that the index no longer leads to, records of clears, and control records that rolled back.
    tombstones: Tombstones,
    held: u64,
    horizon: u64,
    /// Searches of the cleaner for a victim so far, and the current victim.
    steps: u64,
    victim: Option<Victim>,
    /// Bytes that were written, and not moved, as of the last step of the cleaner.
    written_before: u64,
    pages_cleaned: u64,
    bytes_copied: u64,
    /// True for a log; its pending entries, and its control record.
    is_log: bool,
    entries: Entries,
    damage: Damage,
}

impl List {
    /// An empty list in a fresh pool.
    pub(crate) fn format(volume: &Arc<Volume>) -> Self {
        let mut pages = Pages::new(&volume.space);
        pages.offer(volume.table.data_pages(0));
        Self::new(Stream::new(volume, pages, 1), u64::MAX, 0)
    }

    /// The list that a pool holds.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::ChecksumMismatch`], and if the medium fails.
    pub(crate) fn open(volume: &Arc<Volume>, opening: &Opening<'_>) -> Result<Self> {
        recover::recover(volume, opening)
    }

    fn new(mut stream: Stream, held: u64, horizon: u64) -> Self {
        let is_log = stream.volume.is_log();
        stream.is_ordered = is_log;
        Self {
            stream,
            index: Index::new(),
            records: 0,
            key_bytes: 0,
            archives: Vec::new(),
            pins: BTreeMap::new(),
            aged: Aged::default(),
            graves: Graves::default(),
            tombstones: Tombstones::default(),
            held,
            horizon,
            steps: 0,
            victim: None,
            written_before: 0,
            pages_cleaned: 0,
            bytes_copied: 0,
            is_log,
            entries: Entries::default(),
            damage: Damage::default(),
        }
    }

    /// Supersedes a record that is no longer led to and that no pin needs.
    fn supersede(&mut self, guard: &Guard, offset: u64) {
        // The length in a damaged record is not trusted: its page stays.
        let view = self.stream.volume.view(guard, offset).ok();
        if let Some(view) = view.filter(|view| self.stream.is_sound(view)) {
            let (len, chain) = (view.len(), self.chain_of(guard, &view));
            self.supersede_with(offset, len, &chain);
        }
    }

    fn supersede_with(&mut self, offset: u64, len: u32, chain: &[u32]) {
        if !chain.is_empty() {
            self.stream.end_chain(chain);
        }
        self.stream.supersede(offset, len);
    }

    /// The pages of a large value, which become free with its record. Those of a damaged value are found by the next
    /// open.
    fn chain_of(&self, guard: &Guard, view: &View<'_>) -> Vec<u32> {
        if !view.header.large {
            return Vec::new();
        }
        let chain = self.stream.volume.chain(guard, view.value(), false).unwrap_or_default();
        chain.into_iter().map(|(page, _)| page).collect()
    }

    /// The versions of a key. A short key is searched for in the form that it has in the index.
    fn versions(&self, key: &[u8]) -> Option<&Versions> {
        match Key::short(key) {
            Some(key) => self.index.get(&key),
            None => self.index.get(key),
        }
    }
}

impl Map for List {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    fn pages_for(&self, _guard: &Guard, group: Group<'_>) -> Result<u32> {
        Ok(self.stream.pages_for_group(group.lengths))
    }

    fn reserve(&self, purpose: Purpose) -> u32 {
        match purpose {
            Purpose::Clear => FOR_CLEARS,
            Purpose::Delete => FOR_DELETES,
            Purpose::Overwrite => FOR_OVERWRITES,
            Purpose::Insert => FOR_OVERWRITES + 4 + self.stream.pages.count() / 32,
        }
    }

    fn begin_group(&mut self, lengths: &[usize]) -> Result<Option<u64>> {
        self.stream.begin_group(lengths)
    }

    fn newest(&self, _guard: &Guard, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.versions(key).map(Versions::newest))
    }

    fn version_at(&self, guard: &Guard, key: &[u8], at: u64) -> Result<Option<u64>> {
        match self.index_at(at).get(key) {
            Some(versions) => self.newest_at(guard, versions, at),
            None => Ok(None),
        }
    }

    fn check_sure(&self, guard: &Guard, found: Option<u64>) -> Result<()> {
        self.be_sure(guard, found)
    }

    fn check_complete(&self) -> Result<()> {
        self.be_complete()
    }

    fn link(&mut self, guard: &Guard, key: &[u8], new: Linked) -> Result<()> {
        let key = Key::new(key);
        if !new.is_put {
            let Linked { offset, len, sequence, .. } = new;
            let birth = self.grave_birth(self.stream.position(offset).birth);
            self.graves.push(Grave { key: key.clone(), offset, len, sequence, birth });
        }
        self.records += u64::from(new.is_put);
        let mut entry = match self.index.entry(key) {
            Entry::Vacant(entry) => {
                self.key_bytes += entry.key().heap_bytes();
                entry.insert(Versions::One(new.offset));
                return Ok(());
            }
            Entry::Occupied(entry) => entry,
        };
        let versions = entry.get_mut();
        let old = versions.newest();
        // One that was damaged in use may be as old as any.
        let view = self.stream.volume.view(guard, old).ok();
        let is_put = view.is_none_or(|view| view.header.kind == Kind::Put);
        self.records = self.records.saturating_sub(u64::from(is_put));
        if let Some(view) = view.filter(|view| view.header.kind == Kind::Delete) {
            self.graves.replaced(&view);
        }
        let version = view.map_or(0, |view| view.header.version);
        if is_between_pins(&self.pins, version, new.version) {
            match versions {
                Versions::Many(offsets) => offsets.push(new.offset),
                Versions::One(old) => {
                    *versions = Versions::Many(vec![*old, new.offset]);
                    self.aged.push(entry.key().clone());
                }
            }
            return Ok(());
        }
        if let Some(last) = versions.all_mut().last_mut() {
            *last = new.offset;
        }
        // As in `supersede`.
        if let Some(view) = view.filter(|view| self.stream.is_sound(view)) {
            let (len, chain) = (view.len(), self.chain_of(guard, &view));
            self.supersede_with(old, len, &chain);
        }
        Ok(())
    }

    fn clear(&mut self, guard: &Guard, version: u64) -> Result<()> {
        let header = Header { kind: Kind::Commit, ..Header::put(version) };
        let len = header.record_len(&[], 8);
        let birth = self.stream.birth_for(len);
        let offset = self.stream.append(header, &[], &[&birth.to_le_bytes()])?;
        // It says all that they say.
        self.supersede_forgotten();
        self.forget(offset, len as u32, birth);
        self.archives.push((version, std::mem::take(&mut self.index)));
        self.aged.clear();
        self.graves.clear();
        (self.records, self.key_bytes) = (0, 0);
        self.horizon = self.horizon.max(version);
        self.end_damage();
        let _none_left = self.drop_archived(guard, usize::MAX);
        Ok(())
    }

    fn settle(&mut self) {
        self.bury_graves();
    }

    fn walk(&self, _guard: &Guard, way: Way<'_>, at: u64, visit: Visit<'_>) -> Result<()> {
        let mut show = |(key, versions): (&Key, &Versions)| match at {
            u64::MAX => visit(key.bytes(), Ok(&[versions.newest()])),
            _ => visit(key.bytes(), Ok(versions.all())),
        };
        match way {
            Way::Up(from) => {
                let from = (Bound::Included(from), Bound::Unbounded);
                for entry in self.index_at(at).range::<[u8], _>(from) {
                    if !show(entry)? {
                        break;
                    }
                }
            }
            Way::Down(below) => {
                let below = below.map_or(Bound::Unbounded, Bound::Excluded);
                for entry in self.index_at(at).range::<[u8], _>((Bound::Unbounded, below)).rev() {
                    if !show(entry)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn pin(&mut self, version: u64) {
        *self.pins.entry(version).or_default() += 1;
    }

    fn unpin(&mut self, version: u64) {
        match self.pins.get_mut(&version) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                self.pins.remove(&version);
                self.aged.all_due();
                self.stream.pages.release();
            }
        }
    }

    fn release_some(&mut self, guard: &Guard) -> Result<bool> {
        self.trim_some(guard)
    }

    fn is_release_due(&self) -> bool {
        self.is_trim_due()
    }

    fn hold_tombstones(&mut self, sequence: u64) -> bool {
        self.hold_graves(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.horizon
    }

    fn cleaned(&self) -> (u64, u64) {
        (self.pages_cleaned, self.bytes_copied)
    }

    fn make_space(&mut self, pages: u32, reserve: u32) -> Result<Space> {
        self.clean_for_space(pages, reserve)
    }

    fn tidy(&mut self) -> Result<()> {
        self.clean_in_time()
    }

    fn verify(&self, guard: &Guard, slice: &mut Slice<'_>) {
        let after = slice.after.take();
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last: Option<&Key> = None;
        for (key, versions) in self.index.range::<[u8], _>((from, Bound::Unbounded)) {
            if slice.left == 0 {
                slice.after = last.map(|key| key.to_vec());
                return;
            }
            slice.left -= 1;
            versions.all().iter().for_each(|at| self.verify_record(guard, *at, Some(key), slice));
            last = Some(key);
        }
        self.of_log().for_each(|offset| self.verify_record(guard, offset, None, slice));
        if let Err(error) = self.be_complete() {
            (slice.damaged)(error, None);
        }
        slice.is_last = true;
    }

    fn len(&self) -> u64 {
        self.records
    }

    fn audit(&self, guard: &Guard) -> std::result::Result<u64, String> {
        self.count_again(guard)
    }

    fn dram_bytes(&self) -> u64 {
        // Nodes of the index are about 70 % full.
        let entry = (size_of::<Key>() + size_of::<Versions>()) as u64;
        let entries = self.entries.dram_bytes();
        let index = self.index.len() as u64 * entry * 10 / 7 + self.key_bytes;
        let tombstones = self.graves.dram_bytes() + self.tombstones.dram_bytes();
        index + entries + tombstones + self.stream.pages.dram_bytes()
    }

    fn log(&self) -> Option<&dyn Log> {
        self.is_log.then_some(self)
    }

    fn log_mut(&mut self) -> Option<&mut dyn Log> {
        self.is_log.then_some(self)
    }
}
