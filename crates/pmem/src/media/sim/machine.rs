//! The medium and the caches before it: which stores are durable, and which are pending.
//!
//! A *unit* persists independently of all others: a cache line (64 bytes), or a sector (512 bytes)
//! on a file. Beside the durable image the machine keeps, for each unit, the stores that are not
//! certainly durable yet, in the order in which they reached memory, as groups of atoms:
//!
//! ```text
//!   one store instruction     a group of one atom (an aligned word, or less)
//!   a copy of many bytes      one group per unit; its atoms (the words) reach memory in any order
//!   a non-temporal copy       a group that is not ordered with the others
//! ```
//!
//! An atom persists as a whole or not at all. Where the bytes of two atoms overlap, the later wins.

use super::log::{Event, Kind, Log};
use super::rng::mix;
use std::collections::BTreeMap;

/// The rules of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Model {
    /// Persistent memory behind the caches of an x86 processor.
    #[default]
    X86,
    /// A file in the page cache: a fence waits for a sync, which covers all flushes of all threads
    /// before it began.
    File,
}

impl Model {
    /// Bytes of a unit.
    pub(super) fn unit(self) -> u64 {
        match self {
            Self::X86 => 64,
            Self::File => 512,
        }
    }
}

/// Bytes of one aligned word that persist together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Atom {
    /// Which word of the unit.
    pub(super) word: u16,
    /// All ones in the stored bytes.
    pub(super) mask: u64,
    pub(super) value: u64,
}

/// The atoms of one store in one unit.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// The number of the store in the run.
    pub(super) store: u32,
    pub(super) thread: u32,
    /// True if it is not ordered with other groups.
    pub(super) unordered: bool,
    durable_grade: bool,
    pub(super) atoms: Vec<Atom>,
}

/// The pending stores of one unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    pub(super) groups: Vec<Group>,
}

/// The durable image and the pending stores.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) model: Model,
    pub(super) base: Vec<u8>,
    /// The change of the sum of [`word_hash`] over the durable image since the beginning.
    pub(super) hash: u64,
    pub(super) pending: BTreeMap<u64, Unit>,
    /// For each thread, the units it flushed since its last fence and the last store in them.
    flushed: Vec<Vec<(u64, u32)>>,
    /// For each thread, the units in which it has non-temporal stores.
    streamed: Vec<Vec<u64>>,
    /// The bytes of each space; the spaces lie one after the other.
    each: u64,
    /// The state of the syncs of each space, if it is a file.
    syncs: Vec<Syncs>,
    stores: u32,
}

/// The syncs of a file, and the progress of the generations drawn for them.
#[derive(Debug, Clone, Default)]
struct Syncs {
    /// The flushes that the sync under way covers.
    taken: Vec<(u64, u32)>,
    failed: bool,
    drawn: u64,
    requested: u64,
    begun: u64,
    ended: u64,
}

impl Syncs {
    /// The stage of the last generation that was drawn; none if its sync has ended.
    fn stage(&self) -> Option<SyncStage> {
        match self.drawn {
            done if done <= self.ended => None,
            begun if begun <= self.begun => Some(SyncStage::UnderWay),
            requested if requested <= self.requested => Some(SyncStage::Requested),
            _ => Some(SyncStage::Drawn),
        }
    }
}

/// The progress of a sync whose generation was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncStage {
    /// It was not requested.
    Drawn,
    /// It was requested and has not begun.
    Requested,
    /// It has begun and not ended.
    UnderWay,
}

/// A load of bytes that another thread had stored and not made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EarlyRead {
    /// The offset of the load.
    pub offset: u64,
    /// The thread that loaded (the run's own numbering).
    pub thread: u32,
    /// The thread that had stored.
    pub stored_by: u32,
    /// The number of the store in the run.
    pub store: u32,
}

/// The contribution of a word to the hash of an image; 0 for a zero word.
pub(super) fn word_hash(offset: u64, word: u64) -> u64 {
    if word == 0 { 0 } else { mix(word ^ mix(offset)) }
}

pub(super) fn word_at(bytes: &[u8], offset: u64) -> u64 {
    let at = offset as usize;
    bytes
        .get(at..at + 8)
        .and_then(|word| <[u8; 8]>::try_from(word).ok())
        .map_or(0, u64::from_le_bytes)
}

impl Machine {
    /// A machine with `spaces` spaces, which lie one after the other in `base`.
    pub(super) fn new(model: Model, base: Vec<u8>, spaces: usize) -> Self {
        Self {
            model,
            each: (base.len() / spaces) as u64,
            base,
            hash: 0,
            pending: BTreeMap::new(),
            flushed: Vec::new(),
            streamed: Vec::new(),
            syncs: vec![Syncs::default(); spaces],
            stores: 0,
        }
    }

    /// Applies `event`; early reads are appended to `early`.
    pub(super) fn step(&mut self, log: &Log, event: &Event, early: &mut Vec<EarlyRead>) {
        match *event {
            Event::Store { thread, offset, at, len, kind, durable } => {
                self.store(thread, offset, log.bytes(at, len), kind, durable);
            }
            Event::Flush { thread, offset, len } => self.flush(thread, offset, len),
            Event::Fence { thread, at_once } if at_once => self.fence(thread),
            Event::Covered { thread } => self.fence(thread),
            Event::SyncBegan { space, generation } => self.sync_began(space, generation),
            Event::SyncEnded { space, failed } => self.sync_ended(space, failed),
            Event::Drawn { space, generation } => {
                self.syncs[space].drawn = self.syncs[space].drawn.max(generation);
            }
            Event::Requested { space, generation } => {
                self.syncs[space].requested = self.syncs[space].requested.max(generation);
            }
            Event::Load { thread, offset, len } => self.load(thread, offset, len, early),
            Event::Grow { len } => self.base.resize(len as usize, 0),
            Event::Fence { .. } | Event::Mark { .. } | Event::Recovered => {}
        }
    }

    fn store(&mut self, thread: u32, offset: u64, bytes: &[u8], kind: Kind, durable: bool) {
        let store = self.stores;
        self.stores += 1;
        let unordered = kind == Kind::NonTemporal && self.model == Model::X86;
        let unit_bytes = self.model.unit();
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let unit = at / unit_bytes * unit_bytes;
            let stop = end.min(unit + unit_bytes);
            let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
            let atoms = atoms_of(at - unit, part, kind == Kind::Torn);
            let group = Group { store, thread, unordered, durable_grade: durable, atoms };
            self.pending.entry(unit).or_default().groups.push(group);
            if unordered {
                note(&mut self.streamed, thread, unit);
            }
            at = stop;
        }
    }

    fn flush(&mut self, thread: u32, offset: u64, len: u64) {
        let unit_bytes = self.model.unit();
        let first = offset / unit_bytes * unit_bytes;
        for (unit, pending) in self.pending.range(first..offset + len) {
            if let Some(last) = pending.groups.last() {
                note(&mut self.flushed, thread, (*unit, last.store));
            }
        }
    }

    /// The sync covers all flushes of its file, by any thread.
    fn sync_began(&mut self, space: usize, generation: u64) {
        let of_file = if self.syncs.len() == 1 {
            0..u64::MAX
        } else {
            self.each * space as u64..self.each * (space as u64 + 1)
        };
        let syncs = &mut self.syncs[space];
        syncs.begun = generation;
        for flushed in &mut self.flushed {
            syncs.taken.extend(flushed.extract_if(.., |(unit, _)| of_file.contains(unit)));
        }
    }

    fn sync_ended(&mut self, space: usize, failed: bool) {
        let syncs = &mut self.syncs[space];
        syncs.failed |= failed;
        let taken = std::mem::take(&mut syncs.taken);
        if !syncs.failed {
            syncs.ended = syncs.begun;
            self.promote_flushed(taken);
        }
    }

    /// The progress of the sync whose generation was drawn; with several files, of the one with the least
    /// progress.
    pub(super) fn stage(&self) -> Option<SyncStage> {
        self.syncs.iter().filter_map(Syncs::stage).min()
    }

    fn promote_flushed(&mut self, flushed: Vec<(u64, u32)>) {
        for (unit, last) in flushed {
            self.promote(unit, |group| !group.unordered && group.store <= last);
        }
    }

    fn fence(&mut self, thread: u32) {
        if let Some(flushed) = self.flushed.get_mut(thread as usize) {
            let flushed = std::mem::take(flushed);
            self.promote_flushed(flushed);
        }
        if let Some(streamed) = self.streamed.get_mut(thread as usize) {
            for unit in std::mem::take(streamed) {
                self.promote(unit, |group| group.unordered && group.thread == thread);
            }
        }
    }

    /// Makes the groups of `unit` that `chosen` selects durable.
    fn promote(&mut self, unit: u64, chosen: impl Fn(&Group) -> bool) {
        let Some(pending) = self.pending.get_mut(&unit) else {
            return;
        };
        let mut at = 0;
        while at < pending.groups.len() {
            if !chosen(&pending.groups[at]) {
                at += 1;
                continue;
            }
            let group = pending.groups.remove(at);
            for atom in &group.atoms {
                // Older stores to the same bytes are overwritten.
                for older in pending.groups[..at].iter_mut().flat_map(|older| &mut older.atoms) {
                    if older.word == atom.word {
                        older.mask &= !atom.mask;
                    }
                }
                let offset = unit + u64::from(atom.word) * 8;
                let old = word_at(&self.base, offset);
                let new = old & !atom.mask | atom.value & atom.mask;
                if let Some(bytes) = self.base.get_mut(offset as usize..offset as usize + 8) {
                    bytes.copy_from_slice(&new.to_le_bytes());
                    self.hash = self
                        .hash
                        .wrapping_sub(word_hash(offset, old))
                        .wrapping_add(word_hash(offset, new));
                }
            }
        }
        pending.groups.retain(|group| group.atoms.iter().any(|atom| atom.mask != 0));
        if pending.groups.is_empty() {
            self.pending.remove(&unit);
        }
    }

    fn load(&self, thread: u32, offset: u64, len: u64, early: &mut Vec<EarlyRead>) {
        let first = offset / self.model.unit() * self.model.unit();
        for (unit, pending) in self.pending.range(first..offset + len) {
            for group in &pending.groups {
                let seen = |atom: &Atom| {
                    let at = unit + u64::from(atom.word) * 8;
                    atom.mask != 0 && at < offset + len && offset < at + 8
                };
                if group.thread != thread && group.durable_grade && group.atoms.iter().any(seen) {
                    let (stored_by, store) = (group.thread, group.store);
                    early.push(EarlyRead { offset, thread, stored_by, store });
                    return;
                }
            }
        }
    }
}

fn note<T: PartialEq>(lists: &mut Vec<Vec<T>>, thread: u32, item: T) {
    let thread = thread as usize;
    if lists.len() <= thread {
        lists.resize_with(thread + 1, Vec::new);
    }
    if lists[thread].last() != Some(&item) {
        lists[thread].push(item);
    }
}

/// Splits `bytes` at offset `within` of a unit into atoms: aligned words, and at the ends aligned
/// pieces of 4, 2 and 1 bytes, as a compiler might. A torn word gives two halves.
fn atoms_of(within: u64, bytes: &[u8], torn: bool) -> Vec<Atom> {
    let widest = if torn { 4 } else { 8 };
    let mut atoms = Vec::with_capacity(bytes.len() / 8 + 2);
    let mut at = 0;
    while at < bytes.len() {
        let position = within as usize + at;
        let mut width = widest;
        while !position.is_multiple_of(width) || at + width > bytes.len() {
            width /= 2;
        }
        let shift = position % 8;
        let mut value = [0; 8];
        value[shift..shift + width].copy_from_slice(&bytes[at..at + width]);
        let mut mask = [0; 8];
        mask[shift..shift + width].fill(0xff);
        atoms.push(Atom {
            word: (position / 8) as u16,
            mask: u64::from_le_bytes(mask),
            value: u64::from_le_bytes(value),
        });
        at += width;
    }
    atoms
}
