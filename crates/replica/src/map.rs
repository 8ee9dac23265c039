//! The storage of a node: a log, and the map that it makes.
//!
//! A [`LogMap`] is both at once. A node uses it through this trait, so that the thesis's baseline, a log beside a map
//! ([`WalBaseline`](crate::WalBaseline)), is served, tested and measured in the same way.

use coreplane_engine::{
    Batch, DurableListener, Entry, Found, Progress, Record, Result, Snapshot, Stats, Ticket,
    VerifyReport, Visibility,
};
use coreplane_mvcc::{Control, LogAppend, LogEntry, LogMap, LogSnapshot, SnapshotRecord};
use coreplane_pmem::Medium;
use std::ops::RangeInclusive;

/// A log and the map that it makes. One thread writes, any thread may read. Everything is as [`LogMap`] says.
pub trait ReplicaMap: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The longest key, in bytes.
    fn key_len_max(&self) -> usize;

    /// The medium below.
    fn medium(&self) -> Medium;

    /// The control record of the log as of now; durable after a [`ReplicaMap::commit`].
    fn control(&self) -> Control;

    /// Appends entries, for which perhaps only another node had room; durable after a [`ReplicaMap::commit`].
    ///
    /// # Errors
    /// As [`LogMap::append_entries`].
    fn append(&self, entries: &[LogAppend<'_>]) -> Result<()>;

    /// Succeeds if there is room for an entry with these changes, and for so many bytes `beside`.
    ///
    /// # Errors
    /// As [`LogMap::check_room`].
    fn check_room(&self, changes: &Batch, beside: u64) -> Result<()>;

    /// True if so many entries certainly fit, with so many changes and bytes of keys and values.
    fn has_ample_room(&self, entries_changes_bytes: (u64, u64, u64)) -> bool;

    /// How many of these entries fit, from the first on.
    ///
    /// # Errors
    /// As [`LogMap::room_for_entries`].
    fn room_for_entries(&self, entries: &[Batch]) -> Result<usize>;

    /// False if a snapshot with so many bytes of records certainly does not fit.
    fn may_fit(&self, bytes: u64) -> bool;

    /// The most bytes that are checked for room one by one before they are appended.
    fn room_at_once(&self) -> u64;

    /// Applies all entries up to `to`: readers see them.
    ///
    /// # Errors
    /// As [`LogMap::apply`].
    fn apply(&self, to: u64) -> Result<()>;

    /// Rolls back all entries above `to`.
    ///
    /// # Errors
    /// As [`LogMap::roll_back`].
    fn roll_back(&self, to: u64) -> Result<()>;

    /// Notes the newest term, and the vote in it.
    ///
    /// # Errors
    /// As [`LogMap::set_vote`].
    fn set_vote(&self, term: u64, vote: u64) -> Result<()>;

    /// Notes the members.
    ///
    /// # Errors
    /// As [`LogMap::set_members`].
    fn set_members(&self, members: &[u8]) -> Result<()>;

    /// Starts to make all earlier calls durable; the ticket to wait for.
    ///
    /// # Errors
    /// If the medium fails.
    fn commit(&self) -> Result<Ticket>;

    /// True if the writes behind a ticket are durable.
    ///
    /// # Errors
    /// If the medium fails.
    fn is_durable(&self, ticket: Ticket) -> Result<bool>;

    /// Waits until the writes behind a ticket are durable.
    ///
    /// # Errors
    /// If the medium fails.
    fn wait_durable(&self, ticket: Ticket) -> Result<()>;

    /// Calls `listener` whenever more has become durable.
    fn on_durable(&self, listener: DurableListener);

    /// Makes all writes durable. From now on everything but reads fails.
    ///
    /// # Errors
    /// If the medium fails.
    fn close(&self) -> Result<()>;

    /// Reads everything and compares it with its checksums.
    ///
    /// # Errors
    /// Only if it could not continue.
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport>;

    /// The counters.
    fn stats(&self) -> Stats;

    /// Shows pending entries, in order, until `visit` says no.
    ///
    /// # Errors
    /// As [`LogMap::entries`].
    fn entries(
        &self,
        range: RangeInclusive<u64>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<()>;

    /// The header of an entry that is pending, or of the last applied one.
    ///
    /// # Errors
    /// As [`LogMap::header`].
    fn header(&self, timestamp: u64) -> Result<Option<Vec<u8>>>;

    /// Shows the applied record of a key.
    ///
    /// # Errors
    /// As [`LogMap::get_with`].
    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found>;

    /// The applied value of a key, once it is durable here.
    ///
    /// # Errors
    /// As [`LogMap::get_with`].
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        let mut take = |record: Record<'_>| value = Some(record.value.to_vec());
        let found = self.get_with(key, Visibility::Durable, &mut take)?;
        Ok(value.filter(|_| found.hit))
    }

    /// The number of applied records.
    fn len(&self) -> u64;

    /// True if there is no record.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shows the applied records of a range in order, until `visit` says no.
    ///
    /// # Errors
    /// As [`LogMap::scan`].
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()>;

    /// Pins the state that is applied now.
    ///
    /// # Errors
    /// As [`LogMap::snapshot`].
    fn snapshot(&self) -> Result<Box<dyn MapSnapshot>>;

    /// True if a pinned state keeps pages of the pool.
    fn is_pinned(&self) -> bool;

    /// Gives up the whole state for a snapshot of this timestamp.
    ///
    /// # Errors
    /// As [`LogMap::begin_install`].
    fn begin_install(&self, timestamp: u64) -> Result<()>;

    /// Adds records of the snapshot, each key once.
    ///
    /// # Errors
    /// As [`LogMap::install`].
    fn install(&self, records: &mut dyn Iterator<Item = SnapshotRecord<'_>>) -> Result<()>;

    /// The snapshot is complete; durable when this returns.
    ///
    /// # Errors
    /// As [`LogMap::end_install`].
    fn end_install(&self, header: &[u8], members: &[u8]) -> Result<()>;
}

/// The applied state of one moment. Dropping it releases its pages.
pub trait MapSnapshot: Send + Sync {
    /// The timestamp of the last applied entry.
    fn timestamp(&self) -> u64;

    /// The header of that entry.
    fn header(&self) -> &[u8];

    /// The members at that time.
    fn members(&self) -> &[u8];

    /// Its records.
    fn records(&self) -> &dyn Snapshot;
}

impl ReplicaMap for LogMap {
    fn name(&self) -> &'static str {
        self.kind().name()
    }

    fn key_len_max(&self) -> usize {
        self.key_len_max()
    }

    fn medium(&self) -> Medium {
        self.medium()
    }

    fn control(&self) -> Control {
        self.control()
    }

    fn append(&self, entries: &[LogAppend<'_>]) -> Result<()> {
        self.append_entries(entries, true)
    }

    fn check_room(&self, changes: &Batch, beside: u64) -> Result<()> {
        self.check_room(changes, beside)
    }

    fn has_ample_room(&self, entries_changes_bytes: (u64, u64, u64)) -> bool {
        self.has_ample_room(entries_changes_bytes)
    }

    fn room_for_entries(&self, entries: &[Batch]) -> Result<usize> {
        self.room_for_entries(entries)
    }

    fn may_fit(&self, bytes: u64) -> bool {
        bytes <= self.stats().pool_bytes
    }

    fn room_at_once(&self) -> u64 {
        self.room_at_once()
    }

    fn apply(&self, to: u64) -> Result<()> {
        self.apply(to)
    }

    fn roll_back(&self, to: u64) -> Result<()> {
        self.roll_back(to)
    }

    fn set_vote(&self, term: u64, vote: u64) -> Result<()> {
        self.set_vote(term, vote)
    }

    fn set_members(&self, members: &[u8]) -> Result<()> {
        self.set_members(members)
    }

    fn commit(&self) -> Result<Ticket> {
        self.commit()
    }

    fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        self.is_durable(ticket)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<()> {
        self.wait_durable(ticket)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.on_durable(listener);
    }

    fn close(&self) -> Result<()> {
        self.close()
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.verify(progress)
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn entries(
        &self,
        range: RangeInclusive<u64>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<()> {
        self.entries(range, visit)
    }

    fn header(&self, timestamp: u64) -> Result<Option<Vec<u8>>> {
        self.header(timestamp)
    }

    fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.get_with(key, visibility, visit)
    }

    fn len(&self) -> u64 {
        self.len()
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.scan(start, end, reverse, usize::MAX, visit)
    }

    fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        Ok(Box::new(self.snapshot()?))
    }

    fn is_pinned(&self) -> bool {
        self.is_pinned()
    }

    fn begin_install(&self, timestamp: u64) -> Result<()> {
        self.begin_install(timestamp)
    }

    fn install(&self, records: &mut dyn Iterator<Item = SnapshotRecord<'_>>) -> Result<()> {
        self.install(records)
    }

    fn end_install(&self, header: &[u8], members: &[u8]) -> Result<()> {
        self.end_install(header, members)
    }
}

impl MapSnapshot for LogSnapshot {
    fn timestamp(&self) -> u64 {
        self.timestamp()
    }

    fn header(&self) -> &[u8] {
        self.header()
    }

    fn members(&self) -> &[u8] {
        self.members()
    }

    fn records(&self) -> &dyn Snapshot {
        self.records()
    }
}
