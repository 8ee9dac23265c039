//! The storage of a node: a log, and the map that it makes.
//!
//! A [`LogMap`] is both at once. A node uses it through this trait, so that the thesis's baseline, a log beside a map
//! ([`WalBaseline`](crate::WalBaseline)), is served, tested and measured in the same way.

use crate::codec;
use coreplane_engine::{
    Batch, DurableListener, Entry, Found, Progress, Record, Result, Stats, Ticket, VerifyReport,
    Visibility,
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

    /// A tick has passed: drops a few versions that only dropped snapshots have seen.
    ///
    /// # Errors
    /// If the medium fails.
    fn release_in_time(&self) -> Result<()> {
        Ok(())
    }

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

    /// Shows the keys of a range in order, until `visit` says no: each with its record of that moment, if it had one.
    ///
    /// # Errors
    /// As [`LogMap::scan`].
    fn walk(
        &self,
        range: (&[u8], Option<&[u8]>),
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()>;

    /// Its records from `start` up to `end`, which an earlier call has returned, or so many bytes of them, of which the
    /// last record may exceed them; and the first key of the next page, none after the last one. The page ends behind
    /// so many keys, too, and may have no record: many keys may have been written since in a row. How many of these
    /// there are is no part of the state: where pages have to be the same ones again, `keys_max` is none.
    ///
    /// # Errors
    /// As [`MapSnapshot::walk`].
    fn page(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        bytes_max: usize,
        keys_max: Option<usize>,
    ) -> Result<StatePage> {
        let mut page = StatePage { records: Vec::new(), next: end.map(<[u8]>::to_vec) };
        let (mut keys, mut bytes) = (0, 0);
        self.walk((start, end), &mut |entry| {
            if end.is_none() && (bytes >= bytes_max || Some(keys) == keys_max) {
                page.next = Some(entry.key.to_vec());
                return false;
            }
            keys += 1;
            let Some(record) = entry.record else { return true };
            let (key, value) = (entry.key.to_vec(), record.value.to_vec());
            bytes += key.len() + value.len();
            let (timestamp, expires_at) = (entry.sequence, record.expires_at);
            page.records.push(codec::Record { key, value, timestamp, expires_at });
            true
        })?;
        Ok(page)
    }
}

/// A part of a snapshot.
#[derive(Debug)]
pub struct StatePage {
    /// Its records, in the order of their keys.
    pub records: Vec<codec::Record>,
    /// The first key of the next page; none after the last one.
    pub next: Option<Vec<u8>>,
}

/// Calls that a log map has under the same names.
macro_rules! calls {
    ($($name:ident($($given:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, $($given: $kind),*) $(-> $result)? {
            LogMap::$name(self, $($given),*)
        })*
    };
}

impl ReplicaMap for LogMap {
    calls! {
        key_len_max() -> usize;
        medium() -> Medium;
        control() -> Control;
        check_room(changes: &Batch, beside: u64) -> Result<()>;
        has_ample_room(entries_changes_bytes: (u64, u64, u64)) -> bool;
        room_for_entries(entries: &[Batch]) -> Result<usize>;
        room_at_once() -> u64;
        apply(to: u64) -> Result<()>;
        roll_back(to: u64) -> Result<()>;
        set_vote(term: u64, vote: u64) -> Result<()>;
        set_members(members: &[u8]) -> Result<()>;
        commit() -> Result<Ticket>;
        release_in_time() -> Result<()>;
        is_durable(ticket: Ticket) -> Result<bool>;
        wait_durable(ticket: Ticket) -> Result<()>;
        on_durable(listener: DurableListener);
        close() -> Result<()>;
        verify(progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport>;
        stats() -> Stats;
        entries(
            range: RangeInclusive<u64>,
            visit: &mut dyn FnMut(LogEntry<'_>) -> bool
        ) -> Result<()>;
        header(timestamp: u64) -> Result<Option<Vec<u8>>>;
        get_with(
            key: &[u8],
            visibility: Visibility,
            visit: &mut dyn FnMut(Record<'_>)
        ) -> Result<Found>;
        len() -> u64;
        is_pinned() -> bool;
        begin_install(timestamp: u64) -> Result<()>;
        install(records: &mut dyn Iterator<Item = SnapshotRecord<'_>>) -> Result<()>;
        end_install(header: &[u8], members: &[u8]) -> Result<()>;
    }

    fn name(&self) -> &'static str {
        self.kind().name()
    }

    fn append(&self, entries: &[LogAppend<'_>]) -> Result<()> {
        self.append_entries(entries, true)
    }

    fn may_fit(&self, bytes: u64) -> bool {
        bytes <= self.stats().pool_bytes
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

    fn walk(
        &self,
        range: (&[u8], Option<&[u8]>),
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.walk(range, visit)
    }
}
