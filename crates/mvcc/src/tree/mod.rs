//! The persistent tree: a purely functional B+-tree, whose nodes are records beside those of the keys.
//!
//! ```text
//!   root ─▶ [a, m] ─┬─▶ [a, d, g] ─┬─▶ [a, b, c] ─▶ records of a, b, c
//!                   │              └─▶ …              in a leaf a key and the offset of its record
//!                   └─▶ [m, r] …                      above it the least key of a child and its offset
//! ```
//!
//! # The problem
//!
//! The [list](crate::list) has an index in DRAM, which is as large as all keys and is built when the store is opened.
//! A tree in persistent memory is there at once. But a tree that is changed in place needs a log, or a fence for each
//! step. A tree whose nodes are never changed needs neither: a change writes the path from the root to a leaf anew,
//! and counts when a new root is named. And an old root that is kept is an old version.
//!
//! # The picture
//!
//! Writes change *fresh* nodes in DRAM ([`fresh`], [`change`]): the first change of a sealed node makes a fresh copy
//! of it. A commit *seals*: it writes all fresh nodes and then one record with the root ([`seal`]). So ten writes of
//! one commit share the upper nodes, and one fence. Reads use nodes of both kinds ([`look`]).
//!
//! The thesis's trees have 4 to 7 children; so have these unless a pool was created with
//! more ([`Geometry`](crate::volume::geometry::Geometry)). A node that does not fit a page is
//! split as well: keys have up to a quarter of a page, so that each half has two.
//!
//! # Invariants
//!
//! - A sealed node is never changed; no sealed node leads to a fresh one.
//! - The key of an entry is not above any key in its subtree, and is above all keys in the subtree of the entry
//!   before.
//! - There are always pages for all fresh nodes ([`Need`]), so that a commit cannot fail for lack of them.
//! - A page is free when all its records were replaced, by a commit that is durable ([`seal`]).
//!
//! # Versions
//!
//! The tree has one version of a key; an older one is found under the root that a pin keeps, and records that only
//! pins lead to are not counted as dead. Records that the root does not lead to do not count, so no record has to
//! outlive those it has replaced: a delete removes the entry. A delete has a tombstone only if tombstones are held,
//! or if readers may have to wait: where a fence is a sync, a reader that does not find the key finds the tombstone,
//! and with it the sync that its answer depends on. Then the tombstone is an entry until it is durable and not held
//! ([`grave`]).
//!
//! # As a log
//!
//! A commit leads to the pending entries, too, and states which timestamp is applied ([`entries`]).
//!
//! # Departures from the thesis (3.2, 3.3)
//!
//! - Its keys are pairs of a key and a version. Here old versions are in old roots, which cost nothing unless one is
//!   pinned; so the tree is as large as its current contents.
//! - Its root is named in a control block, with a fence before and one behind. Here it is named in the stream, behind
//!   the nodes, and both have one fence; the record itself tells what a power cut has left ([`seal`]).
//! - Its values are in the leaves' memory. Here a leaf leads to a record, so that a value is not written again
//!   when its neighbour changes.
//! - Its collector frees what was not reached. Here bytes are counted, once by a walk after the first answers
//!   ([`count`]).

mod audit;
mod change;
mod clean;
mod count;
mod entries;
mod fresh;
mod grave;
mod look;
mod need;
mod node;
mod recover;
mod rest;
mod seal;
#[cfg(test)]
mod tests;

use crate::key::Key;
use crate::map::{Group, Linked, Log, Map, Opening, Purpose, Rest, Slice, Space, Visit, Way};
use crate::volume::Volume;
use crate::volume::pages::Pages;
use crate::volume::stream::Stream;
use change::Change;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{HEADER, Kind, View};
use count::Count;
use entries::Entries;
use fresh::{Limits, Link, LinkRef, Spare};
use grave::Graves;
use look::{Look, Record};
use need::Need;
use rest::Left;
use seal::{Gone, Last, Late, Pin};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pages for a round of the cleaner, which all requests leave, at least and at most. The more records a round moves,
/// the fewer nodes it writes for each.
const FOR_CLEANER: (u32, u32) = (4, 64);
/// Pages for the commits with which the next two opens begin: the second still needs the page of the first.
const FOR_OPENINGS: u32 = 2;
/// Inserts are refused when this part of the pool is live, in sixteenths. Moving a record costs a node, too, so
/// freeing a page by moves pays only if more than half of it is dead.
const FULL: u64 = 9;

/// The most keys removed since the last commit that are distinguished from others.
const REMOVED: usize = 16;

/// The tree.
pub(crate) struct Tree {
    stream: Stream,
    limits: Limits,
    root: Option<Link>,
    last: Last,
    /// Keys whose record is no tombstone.
    records: u64,
    /// At least as long as the longest key.
    longest_key: usize,
    /// At least as many as the levels.
    height: u32,
    /// The newest version that was linked.
    version: u64,
    /// Replaced records: since the last commit, by commits that do not count for sure, and those that pins keep.
    gone: Vec<Gone>,
    late: Vec<Late>,
    kept: VecDeque<Late>,
    /// The number of kept records, from the front, that were not examined since a pin has gone.
    kept_due: usize,
    /// A commit has to be written, though the tree is the same; the first one since the open has.
    is_due: bool,
    is_unborn: bool,
    pins: BTreeMap<u64, Pin>,
    graves: Graves,
    /// Keys that were removed since the last commit, as long as there are few of them.
    removed: Vec<Key>,
    horizon: u64,
    /// Pages of which the cleaner has moved a part since the last commit.
    part: Vec<u32>,
    /// Pages that were cleaned before the last write.
    cleaned_before: u64,
    pages_cleaned: u64,
    bytes_copied: u64,
    /// The tree that an open has found, as far as it was not counted yet.
    count: Option<Count>,
    /// At least the number of fresh nodes.
    fresh_max: usize,
    /// A buffer for the values of nodes; nodes that were sealed, for reuse.
    value: Vec<u8>,
    spare: Spare,
    /// Work that an open has deferred.
    left: Option<Left>,
    /// Nodes whose checksums were not verified since the open may be damaged.
    is_doubtful: bool,
    /// True for a log; its pending entries, and the state that its commits hold.
    is_log: bool,
    entries: Entries,
}

impl Tree {
    /// An empty tree in a fresh pool.
    pub(crate) fn format(volume: &Arc<Volume>) -> Self {
        let mut pages = Pages::new(&volume.space);
        pages.offer(volume.table.data_pages(0));
        Self::new(Stream::new(volume, pages, 1), u64::MAX)
    }

    /// The tree that a pool holds.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::ChecksumMismatch`], and if the medium fails.
    pub(crate) fn open(volume: &Arc<Volume>, opening: &Opening<'_>) -> Result<Self> {
        recover::recover(volume, opening)
    }

    fn new(stream: Stream, held: u64) -> Self {
        let bytes = stream.volume.space.page_size() as usize;
        let (fan_out, is_log) = (stream.volume.fan_out(), stream.volume.is_log());
        Self {
            stream,
            limits: Limits { fan_out, bytes },
            root: None,
            last: Last::default(),
            records: 0,
            longest_key: 0,
            height: 0,
            version: 0,
            gone: Vec::new(),
            late: Vec::new(),
            kept: VecDeque::new(),
            kept_due: 0,
            is_due: false,
            is_unborn: false,
            pins: BTreeMap::new(),
            graves: Graves::new(held),
            removed: Vec::new(),
            horizon: 0,
            part: Vec::new(),
            cleaned_before: 0,
            pages_cleaned: 0,
            bytes_copied: 0,
            count: None,
            fresh_max: 0,
            value: Vec::new(),
            spare: Vec::new(),
            left: None,
            is_doubtful: false,
            is_log,
            entries: Entries::default(),
        }
    }

    fn look<'a>(&self, volume: &'a Volume, guard: &'a Guard) -> Look<'a> {
        Look { volume, guard, is_checked: self.is_doubtful || volume.check_reads }
    }

    fn root(&self) -> Option<LinkRef<'_>> {
        self.root.as_ref().map(Link::as_ref)
    }

    /// The root of the tree as it was at a version.
    fn root_at(&self, at: u64) -> Option<LinkRef<'_>> {
        match self.pins.get(&at) {
            Some(pin) => pin.root.map(LinkRef::Sealed),
            None => self.root(),
        }
    }

    fn find(&self, guard: &Guard, root: Option<LinkRef<'_>>, key: &[u8]) -> Result<Option<u64>> {
        self.look(&self.stream.volume, guard).find(root, key)
    }

    /// True if the pool is as full as the cleaner can cope with.
    fn is_full(&self) -> bool {
        let (total, _) = self.stream.pages.total_and_free();
        let size = u64::from(self.stream.volume.space.page_size());
        self.stream.pages.live() * 16 > u64::from(total) * size * FULL
    }

    /// The most bytes of the record of a node, when a key of `len` bytes was put, too.
    fn node_len_max(&self, len: usize) -> usize {
        let key = node::PER_ENTRY + self.longest_key.max(len);
        (HEADER + node::HEAD + 8 + self.limits.fan_out * key).min(self.limits.bytes)
    }

    /// The need of a commit if nothing more is changed.
    fn need(&self) -> Need {
        let mut need = Need::default();
        if let Some(Link::Fresh(node)) = &self.root {
            node.lengths(&mut |len| need.add(len));
        }
        need
    }

    /// Notes a record that the tree no longer leads to. The length in a damaged one is not trusted: its page stays.
    fn bury(&mut self, view: Result<View<'_>>) {
        let is_put = view.as_ref().map_or(true, |view| view.header.kind == Kind::Put);
        self.records = self.records.saturating_sub(u64::from(is_put));
        let Ok(view) = view else { return };
        self.graves.replaced(&view);
        let (offset, len, is_large) = (view.offset, view.len(), view.header.large);
        let gone = Gone { offset, len, is_large };
        self.gone.extend(self.stream.is_sound(&view).then_some(gone));
    }
}

impl Map for Tree {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    fn key_len_max(&self, page_size: usize) -> usize {
        // Four keys fit a node, so that each half of a split node has two.
        (page_size - HEADER - node::HEAD - 8) / 4 - node::PER_ENTRY
    }

    fn ends_groups(&self) -> bool {
        true
    }

    fn seal(&mut self) -> Result<()> {
        self.seal_all()
    }

    fn pages_for(&self, guard: &Guard, group: Group<'_>) -> Result<u32> {
        self.pages_beside(guard, group, self.reserve(Purpose::Insert))
    }

    fn pages_beside(&self, guard: &Guard, group: Group<'_>, reserve: u32) -> Result<u32> {
        self.pages_for_all(guard, group, reserve)
    }

    fn reserve(&self, purpose: Purpose) -> u32 {
        let (total, _) = self.stream.pages.total_and_free();
        if purpose == Purpose::Insert && self.is_full() {
            return total;
        }
        let cleaner = (total / 16).clamp(FOR_CLEANER.0, FOR_CLEANER.1);
        let (more, ways) = match purpose {
            Purpose::Insert => (cleaner + total / 16, 2),
            Purpose::Overwrite => (cleaner / 2, 2),
            Purpose::Delete => (0, 1),
            Purpose::Clear => return FOR_OPENINGS,
        };
        // Nodes of long keys fill a page each.
        let bytes = self.height as usize * self.node_len_max(0);
        let way = (bytes / self.limits.bytes) as u32;
        cleaner + more + way * ways * 2 * FOR_CLEANER.0
    }

    fn newest(&self, guard: &Guard, key: &[u8]) -> Result<Option<u64>> {
        self.find(guard, self.root(), key)
    }

    fn version_at(&self, guard: &Guard, key: &[u8], at: u64) -> Result<Option<u64>> {
        self.find(guard, self.root_at(at), key)
    }

    fn link(&mut self, guard: &Guard, key: &[u8], new: Linked) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let look = self.look(&volume, guard);
        self.fresh_max += 2 * self.height as usize + 2;
        let (limits, gone, spare) = (self.limits, &mut self.gone, &mut self.spare);
        let mut change = Change { look, limits, gone, spare };
        if let Some(offset) = change.put(&mut self.root, key, new.offset)? {
            self.bury(volume.view(guard, offset));
        }
        self.records += u64::from(new.is_put);
        self.longest_key = self.longest_key.max(key.len());
        if let Some(Link::Fresh(node)) = &self.root {
            self.height = node.level + 1;
        }
        self.version = self.version.max(new.version);
        self.cleaned_before = self.pages_cleaned;
        if !new.is_put {
            self.graves.dig(key, new.version, new.sequence);
        }
        Ok(())
    }

    fn removes(&self, sequence: u64) -> bool {
        self.stream.fences_at_once() && self.graves.may_go(sequence)
    }

    fn remove(&mut self, guard: &Guard, key: &[u8], version: u64, sequence: u64) -> Result<()> {
        let volume = Arc::clone(&self.stream.volume);
        let look = self.look(&volume, guard);
        self.fresh_max += self.height as usize;
        let (limits, gone, spare) = (self.limits, &mut self.gone, &mut self.spare);
        let mut change = Change { look, limits, gone, spare };
        if let Some(offset) = change.remove(&mut self.root, key)? {
            self.bury(volume.view(guard, offset));
        }
        self.version = self.version.max(version);
        self.horizon = self.horizon.max(sequence);
        (self.is_due, self.cleaned_before) = (true, self.pages_cleaned);
        if self.removed.len() < REMOVED {
            self.removed.push(Key::new(key));
        }
        Ok(())
    }

    fn hides_absence(&self, key: Option<&[u8]>) -> bool {
        let is_hidden = match key {
            Some(key) if self.removed.len() < REMOVED => {
                self.removed.iter().any(|it| it.bytes() == key)
            }
            _ => !self.removed.is_empty(),
        };
        is_hidden && !mutant!("mvcc.tree.absence")
    }

    fn clear(&mut self, guard: &Guard, version: u64) -> Result<()> {
        let mut gone = self.all_records(guard)?;
        self.gone.append(&mut gone);
        (self.root, self.records, self.longest_key, self.height) = (None, 0, 0, 0);
        self.graves.clear();
        self.version = self.version.max(version);
        self.horizon = self.horizon.max(version);
        self.is_due = true;
        Ok(())
    }

    fn settle(&mut self) {
        self.removed.clear();
        let _any = self.bury_graves();
    }

    fn walk(&self, guard: &Guard, way: Way<'_>, at: u64, visit: Visit<'_>) -> Result<()> {
        let look = self.look(&self.stream.volume, guard);
        let mut show = |key: &[u8], record: Record<'_>| match record {
            Ok(offset) => visit(key, Ok(&[offset])),
            Err(gap) => visit(key, Err(gap)),
        };
        self.root_at(at).map_or(Ok(()), |root| look.walk(root, way, &mut show).map(drop))
    }

    fn pin(&mut self, version: u64) {
        let (root, end) = (self.last.root, self.last.end);
        self.pins.entry(version).or_insert(Pin { count: 0, root, end }).count += 1;
    }

    fn unpin(&mut self, version: u64) {
        match self.pins.get_mut(&version) {
            Some(pin) if pin.count > 1 => pin.count -= 1,
            _ => {
                self.pins.remove(&version);
                self.cleaned_before = self.pages_cleaned;
                self.kept_due = self.kept.len();
                // Records that were not moved because of the pin may be moved now.
                self.stream.pages.release();
            }
        }
    }

    fn release_some(&mut self, guard: &Guard) -> Result<bool> {
        Ok(self.release_kept(guard))
    }

    fn is_release_due(&self) -> bool {
        self.kept_due > 0
    }

    fn hold_tombstones(&mut self, sequence: u64) -> bool {
        let is_any_left = self.graves.hold(sequence);
        let _any = self.bury_graves();
        is_any_left
    }

    fn tombstone_horizon(&self) -> u64 {
        self.horizon
    }

    fn make_space(&mut self, pages: u32, reserve: u32) -> Result<Space> {
        self.clean_for_space(pages, reserve)
    }

    fn tidy(&mut self) -> Result<()> {
        self.release_met();
        // A log has no background thread that counts.
        if self.is_log && self.count_nodes(count::STEP / 16) {
            return Ok(());
        }
        self.clean_in_time()
    }

    fn is_whole(&self) -> bool {
        self.left.is_none()
    }

    fn rest(&self) -> Result<Option<Rest>> {
        self.left.map(|left| self.find_rest(left)).transpose()
    }

    fn take_rest(&mut self, rest: Rest) -> Result<()> {
        self.take_left(rest)
    }

    fn count_some(&mut self) -> bool {
        self.count_nodes(count::STEP)
    }

    fn verify(&self, guard: &Guard, slice: &mut Slice<'_>) {
        let (look, after) = (self.look(&self.stream.volume, guard), slice.after.take());
        let root = self.root();
        if root.is_none_or(|root| look.verify(root, after.as_deref(), slice).is_continue()) {
            self.verify_pending(guard, &mut |error| (slice.damaged)(error, None));
            slice.is_last = true;
        }
    }

    fn len(&self) -> u64 {
        self.records
    }

    fn audit(&self, guard: &Guard) -> std::result::Result<u64, String> {
        self.count_again(guard)
    }

    fn cleaned(&self) -> (u64, u64) {
        (self.pages_cleaned, self.bytes_copied)
    }

    fn dram_bytes(&self) -> u64 {
        let late = (self.late.len() + self.kept.len()) * size_of::<Late>();
        let pending = self.pending_dram_bytes();
        self.need().bytes() + late as u64 + pending + self.stream.pages.dram_bytes()
    }

    fn log(&self) -> Option<&dyn Log> {
        self.is_log.then_some(self)
    }

    fn log_mut(&mut self) -> Option<&mut dyn Log> {
        self.is_log.then_some(self)
    }
}
