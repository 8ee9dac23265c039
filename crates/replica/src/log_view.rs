//! The map as consensus sees it: a log of entries, the last of which are in DRAM.
//!
//! ```text
//!                  first                       applied                 newest
//!   ring (DRAM)      [── entries for followers that lag a little ─────────]
//!   map                                            [── pending entries ───]
//! ```
//!
//! There is no second log. An appended entry goes to the map, where it is pending until it is applied, and to a ring
//! in DRAM, which is bounded in bytes ([`Ring`]). Entries for a follower are read from the ring, or, if they are
//! pending, from the map. A follower that lags behind both is sent a snapshot. After a start the ring is empty.

use crate::codec::to_members_entry;
use crate::entry::{Header, Kind, count_changes, decode_changes, encode_changes};
use crate::map::ReplicaMap;
use crate::members::{Members, NODES_MAX, NodeId, Notes};
use crate::ring::{Ring, bytes_of};
use bytes::Bytes;
use coreplane_engine::{Batch, Error, Result, Ticket};
use coreplane_mvcc::{Control, LogAppend};
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use raft::eraftpb::{Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The changes of an entry; empty for a change of members.
fn changes_of(entry: &Entry) -> Result<Batch> {
    match entry.get_entry_type() {
        EntryType::EntryNormal => decode_changes(&entry.data).ok_or_else(no_entry),
        _ => Ok(Batch::new()),
    }
}

/// Which of the sent entries fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    All,
    /// So many of them, from the first.
    First(usize),
    /// They do not follow an entry of this log.
    Unknown,
}

fn has_no_changes(entry: &Entry) -> bool {
    entry.data.is_empty() || entry.get_entry_type() != EntryType::EntryNormal
}

/// The map and the ring before it.
pub(crate) struct LogView {
    pub(crate) map: Box<dyn ReplicaMap>,
    ring: Ring,
    /// The entry before the first readable one, and its term; the last entry that the ring has dropped.
    base: (u64, u64),
    gone: (u64, u64),
    control: Control,
    notes: Notes,
    /// How often entries were requested for sending since the last tick, by the index of the first.
    sent: BTreeMap<u64, usize>,
    /// Pending entries cannot be read.
    pub(crate) is_damaged: bool,
    /// Why the map could not be read, until the error is taken.
    pub(crate) failed: RefCell<Option<Error>>,
}

impl LogView {
    /// The view of a map, with an empty ring.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the map's control record was not written by a node.
    pub(crate) fn new(map: Box<dyn ReplicaMap>, ring: Ring) -> Result<Self> {
        let control = map.control();
        let mut view = Self {
            map,
            ring,
            base: (0, 0),
            gone: (0, 0),
            sent: BTreeMap::new(),
            control: Control::default(),
            notes: notes_of(&control)?,
            is_damaged: false,
            failed: RefCell::default(),
        };
        if control.newest > 0 && !control.is_installing {
            view.base = (control.applied, term_of(&control.applied_header)?);
            // Pending entries are not in the ring.
            view.gone = match view.read_pending(&control) {
                Ok(term) => (control.newest, term),
                Err(_) if mutant!("replica.damage.dropped") => {
                    view.map.roll_back(control.applied)?;
                    return Self::new(view.map, view.ring);
                }
                Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }) => {
                    view.is_damaged = true;
                    (control.newest, control.term)
                }
                Err(error) => return Err(error),
            };
        }
        view.control = control;
        Ok(view)
    }

    /// A tick of time has passed: entries may be sent again.
    pub(crate) fn tick(&mut self) {
        self.sent.clear();
    }

    /// True if these entries were sent to every node since the last tick. Consensus would send them again with each
    /// answer to a heartbeat, as long as the follower lacks them; and when a network is whole again after a cut,
    /// there is one answer for each read that the leader was asked for meanwhile.
    fn was_sent(&mut self, low: u64) -> bool {
        let count = self.sent.entry(low).or_default();
        *count += 1;
        *count > NODES_MAX && !mutant!("replica.entries.again")
    }

    /// Reads all pending entries; the term of the newest one.
    fn read_pending(&self, control: &Control) -> Result<u64> {
        let mut last = term_of(&control.applied_header)?;
        for index in control.applied + 1..=control.newest {
            last = self.read(index)?.term;
        }
        Ok(last)
    }

    /// The control record of the map.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// The members.
    pub(crate) fn members(&self) -> &Members {
        &self.notes.members
    }

    /// The notes of the node.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    fn note(&mut self) -> Result<()> {
        let control = self.map.control();
        if control.members != self.control.members {
            self.notes = notes_of(&control)?;
        }
        self.control = control;
        Ok(())
    }

    /// Appends entries, in place of earlier ones with their indices. Durable after a commit.
    ///
    /// # Errors
    /// As [`ReplicaMap::append`].
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> Result<()> {
        let Some(first) = entries.first().map(|entry| entry.index) else { return Ok(()) };
        if first <= self.control.newest {
            if self.gone.0 >= first {
                let last = first.saturating_sub(1);
                self.gone = (last, self.term_at(last).ok_or_else(no_entry)?);
            }
            self.map.roll_back(first - 1)?;
            self.ring.cut(first);
        }
        let mut parts = Vec::with_capacity(entries.len());
        for entry in &entries {
            let is_members = entry.get_entry_type() != EntryType::EntryNormal;
            let kind = if is_members { Kind::Members } else { Kind::Changes };
            let header = Header { kind, term: entry.term, context: entry.context.clone() };
            parts.push((entry.index, header.encode(), changes_of(entry)?));
        }
        let appends = parts.iter().map(|(timestamp, header, changes)| LogAppend {
            timestamp: *timestamp,
            header,
            changes,
        });
        self.map.append(&appends.collect::<Vec<_>>())?;
        entries.into_iter().for_each(|entry| self.ring.push(entry));
        self.note()?;
        self.shorten_ring();
        Ok(())
    }

    /// How many of the entries that a leader sends behind `place` (an index and its term) fit, from the first on. If
    /// it `is_asked_again` and nothing has changed, only entries without changes count, which always fit.
    ///
    /// # Errors
    /// As [`ReplicaMap::room_for_entries`].
    pub(crate) fn room_for(
        &self,
        place: (u64, u64),
        entries: &[Entry],
        is_asked_again: bool,
    ) -> Result<Room> {
        if self.term_at(place.0) != Some(place.1) {
            return Ok(Room::Unknown);
        }
        let is_there = |entry: &&Entry| {
            entry.index <= self.control.applied || self.term_at(entry.index) == Some(entry.term)
        };
        let known = entries.iter().take_while(is_there).count();
        let new = entries.get(known..).unwrap_or_default();
        let changes = new.iter().map(|entry| count_changes(&entry.data)).sum();
        let bytes = new.iter().map(|entry| entry.data.len() as u64).sum();
        if new.is_empty() || self.map.has_ample_room((new.len() as u64, changes, bytes)) {
            return Ok(Room::All);
        }
        let fits = if is_asked_again {
            new.iter().take_while(|entry| has_no_changes(entry)).count()
        } else {
            let batches: Vec<Batch> = new.iter().map(changes_of).collect::<Result<_>>()?;
            self.map.room_for_entries(&batches)?
        };
        Ok(if fits < new.len() { Room::First(known + fits) } else { Room::All })
    }

    /// Notes the term and the vote. Durable after a commit.
    ///
    /// # Errors
    /// As [`ReplicaMap::set_vote`].
    pub(crate) fn set_vote(&mut self, term: u64, vote: NodeId) -> Result<()> {
        if (self.control.term, self.control.vote) != (term, vote) {
            self.map.set_vote(term, vote)?;
            self.note()?;
        }
        Ok(())
    }

    /// Changes the notes. Durable after a commit.
    ///
    /// # Errors
    /// As [`ReplicaMap::set_members`].
    pub(crate) fn change_notes(&mut self, change: impl FnOnce(&mut Notes)) -> Result<()> {
        let mut notes = self.notes.clone();
        change(&mut notes);
        self.map.set_members(&notes.encode()?)?;
        self.note()
    }

    /// Applies entries: readers see all up to this one.
    ///
    /// # Errors
    /// As [`ReplicaMap::apply`].
    pub(crate) fn apply(&mut self, to: u64) -> Result<()> {
        self.map.apply(to)?;
        self.note()?;
        self.shorten_ring();
        Ok(())
    }

    /// Commits: all earlier calls are durable, or will be when the ticket is.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn commit(&self) -> Result<Ticket> {
        self.map.commit()
    }

    /// Begins again over the map, after a snapshot was installed.
    ///
    /// # Errors
    /// As [`LogView::new`].
    pub(crate) fn begin_again(&mut self) -> Result<()> {
        self.note()?;
        self.ring.cut(0);
        self.base = (self.control.applied, term_of(&self.control.applied_header)?);
        self.gone = self.base;
        Ok(())
    }

    /// Holds the entries behind this one in the ring, as long as there is room. Pending ones that it has dropped are
    /// read back from the map, which will not have them once they are applied.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub(crate) fn hold(&mut self, behind: Option<u64>) -> Result<()> {
        if (behind, self.ring.held_behind) == (None, None) {
            return Ok(());
        }
        self.ring.held_behind = behind;
        let applied = self.control.applied;
        while behind.is_some_and(|behind| self.gone.0 > behind.max(applied))
            && !mutant!("replica.ring.pending")
        {
            let (entry, last) = (self.read(self.gone.0)?, self.gone.0 - 1);
            self.gone = (last, self.term_at(last).ok_or_else(no_entry)?);
            self.ring.push_oldest(entry);
        }
        self.shorten_ring();
        Ok(())
    }

    /// True if the ring has the entries behind this one without a hold.
    pub(crate) fn keeps_all_behind(&self, index: u64) -> bool {
        self.ring.keeps_all_behind(index)
    }

    /// True if all entries behind this one can be read.
    pub(crate) fn has_all_behind(&self, index: u64) -> bool {
        index >= self.base.0
    }

    /// Drops the oldest entries of a ring that is too long. Pending ones can be read from the map.
    fn shorten_ring(&mut self) {
        if let Some(gone) = self.ring.shorten() {
            self.gone = gone;
        }
        if self.gone.0 <= self.control.applied {
            if self.gone.0 > self.base.0 {
                self.base = self.gone;
            }
        } else if let Ok(term) = term_of(&self.control.applied_header) {
            // Entries between the two can be read from the map.
            self.base = (self.control.applied, term);
        }
    }

    fn read(&self, index: u64) -> Result<Entry> {
        let mut read = None;
        self.map.entries(index..=index, &mut |entry| {
            read = Header::decode(entry.header).and_then(|header| {
                let Header { kind, term, context } = header;
                let mut made = Entry { index, term, ..Entry::default() };
                match kind {
                    Kind::Changes => {
                        made.data = Bytes::from(encode_changes(entry.changes.iter().copied()));
                    }
                    Kind::Members => to_members_entry(&mut made, &context)?,
                }
                made.context = context;
                Some(made)
            });
            true
        })?;
        read.ok_or_else(no_entry)
    }

    fn entry(&self, index: u64) -> Result<Entry> {
        match self.ring.get(index) {
            Some(entry) => Ok(entry.clone()),
            None => self.read(index),
        }
    }

    /// Applied entries behind this index, up to so many bytes, but at least one.
    ///
    /// # Errors
    /// [`Error::HistoryGone`] if the ring has dropped the first.
    pub(crate) fn applied_since(&self, index: u64, bytes_max: usize) -> Result<Vec<Entry>> {
        let applied = self.control.applied;
        let horizon = applied.min(self.ring.first() - 1);
        if index < horizon && !mutant!("replica.feed.gap") {
            return Err(Error::HistoryGone { asked: index, horizon });
        }
        if self.control.is_installing {
            return Ok(Vec::new());
        }
        let mut bytes = 0;
        let is_shown = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += bytes_of(entry);
            let is_applied = entry.index <= applied || mutant!("replica.feed.early");
            is_applied && (is_first || bytes <= bytes_max)
        };
        Ok(self.ring.behind(index).take_while(is_shown).cloned().collect())
    }

    /// The term of an entry, if it is known.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        if index < self.base.0 || index > self.control.newest {
            return None;
        }
        match self.ring.get(index) {
            Some(entry) => Some(entry.term),
            None => term_of(&self.map.header(index).ok()??).ok(),
        }
    }

    /// The term of an entry of the map, if its header can be read.
    pub(crate) fn header_term(&self, index: u64) -> Option<u64> {
        term_of(&self.map.header(index).ok()??).ok()
    }

    /// The term of the last applied entry; 0 if there is none.
    pub(crate) fn applied_term(&self) -> u64 {
        term_of(&self.control.applied_header).unwrap_or(0)
    }

    /// The map could not be read: consensus gets an error, and the node stops.
    fn fail(&self, error: Error) -> raft::Error {
        let source = std::io::Error::other(error.to_string());
        self.failed.borrow_mut().get_or_insert(error);
        raft::Error::Store(StorageError::Other(Box::new(source)))
    }
}

fn no_entry() -> Error {
    Error::Corrupt { offset: 0, what: "no entry of a node is where one should be".to_owned() }
}

fn notes_of(control: &Control) -> Result<Notes> {
    if control.members.is_empty() {
        return Ok(Notes::default());
    }
    let what = "no members are where they should be".to_owned();
    Notes::decode(&control.members).ok_or(Error::Corrupt { offset: 0, what })
}

fn term_of(header: &[u8]) -> Result<u64> {
    Header::decode(header).map(|header| header.term).ok_or_else(no_entry)
}

/// The view that consensus and the node share.
#[derive(Clone)]
pub(crate) struct SharedView(pub(crate) Arc<Mutex<LogView>>);

impl Storage for SharedView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let view = self.0.lock();
        let members = view.members();
        let Control { term, vote, applied, .. } = view.control;
        let hard_state = HardState { term, vote, commit: applied, ..HardState::default() };
        Ok(RaftState::new(hard_state, members.to_state()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let mut view = self.0.lock();
        if low <= view.base.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > view.control.newest + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        if context.can_async() && view.was_sent(low) {
            // The next tick asks again.
            return Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        let (most, mut bytes) = (max_size.into().unwrap_or(u64::MAX), 0);
        let mut entries = Vec::new();
        for index in low..high {
            let entry = view.entry(index).map_err(|error| view.fail(error))?;
            bytes += bytes_of(&entry) as u64;
            if !entries.is_empty() && bytes > most {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let view = self.0.lock();
        match view.term_at(index) {
            Some(term) => Ok(term),
            None if index < view.base.0 => Err(raft::Error::Store(StorageError::Compacted)),
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.lock().base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.lock().control.newest)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        // The records go in pages of their own; consensus only needs the index of the snapshot.
        let view = self.0.lock();
        let applied = view.control.applied;
        if applied < request_index.max(1) {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let members = view.members();
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = applied;
        metadata.term = term_of(&view.control.applied_header).map_err(|error| view.fail(error))?;
        metadata.set_conf_state(members.to_state());
        Ok(snapshot)
    }
}
