//! The baseline as the map of a node.

use super::frame::Frame;
use super::state::{Pin, Range, State};
use super::{Pending, WalBaseline, check_range, checkpoint, recover, room};
use crate::map::{MapSnapshot, ReplicaMap};
use coreplane_engine::{
    Batch, ChangeRef, Damage, DurableListener, Entry, Error, Found, KEY_LEN_MAX, Progress, Record,
    Result, Stats, Ticket, VerifyReport, Visibility,
};
use coreplane_mvcc::{Control, LogAppend, LogEntry, SnapshotRecord};
use coreplane_pmem::Medium;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Keys whose old versions are dropped with a tick.
const RELEASED: usize = 1024;

impl ReplicaMap for WalBaseline {
    fn name(&self) -> &'static str {
        self.storage.name()
    }

    fn key_len_max(&self) -> usize {
        KEY_LEN_MAX
    }

    fn medium(&self) -> Medium {
        self.storage.medium()
    }

    fn control(&self) -> Control {
        let inner = self.inner.lock();
        let is_installing = inner.installing.is_some();
        Control { purged: inner.control.applied, is_installing, ..inner.control.clone() }
    }

    fn append(&self, entries: &[LogAppend<'_>]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        entries.iter().try_for_each(|entry| inner.append(*entry))
    }

    fn check_room(&self, changes: &Batch, beside: u64) -> Result<()> {
        for change in changes.changes() {
            let len = change.key().len();
            if len > KEY_LEN_MAX {
                return Err(Error::KeyTooLong { len, max: KEY_LEN_MAX });
            }
        }
        self.inner.lock().check_room(self.storage.as_ref(), &self.state(), changes, beside)
    }

    fn has_ample_room(&self, (entries, changes, bytes): (u64, u64, u64)) -> bool {
        let Some(room) = self.storage.room() else { return true };
        self.inner.lock().has_ample_room(room, &self.state(), (entries, changes, bytes))
    }

    fn room_for_entries(&self, entries: &[Batch]) -> Result<usize> {
        let Some(room) = self.storage.room() else { return Ok(entries.len()) };
        Ok(self.inner.lock().room_for(room, &self.state(), entries))
    }

    fn may_fit(&self, bytes: u64) -> bool {
        self.storage.room().is_none_or(|room| 3 * bytes <= room.all)
    }

    fn room_at_once(&self) -> u64 {
        room::at_once(self.storage.room())
    }

    fn apply(&self, to: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        let Control { applied, newest, .. } = inner.control;
        check_range("apply a timestamp", to, (applied, newest))?;
        let state = self.state();
        let mut state = state.write();
        for timestamp in applied + 1..=to {
            let Some(entry) = inner.pending.pop_front() else { break };
            let Pending { header, changes, len } = entry;
            inner.pending_bytes -= len;
            changes.changes().for_each(|change| state.make(timestamp, change));
            (inner.control.applied, inner.control.applied_header) = (timestamp, header);
            inner.is_control_new = true;
        }
        Ok(())
    }

    fn roll_back(&self, to: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_log()?;
        check_range("roll back to a timestamp", to, (inner.control.applied, u64::MAX))?;
        if to < inner.control.newest {
            inner.log.add(&Frame::RollBack { to });
            inner.drop_pending(to);
        }
        Ok(())
    }

    fn set_vote(&self, term: u64, vote: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let (known, given) = (inner.control.term, inner.control.vote);
        check_range("a term", term, (known, u64::MAX))?;
        if term == known && given != 0 {
            check_range("a vote in the same term", vote, (given, given))?;
        }
        (inner.control.term, inner.control.vote) = (term, vote);
        inner.note_control();
        Ok(())
    }

    fn set_members(&self, members: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        inner.control.members = members.to_vec();
        inner.note_control();
        Ok(())
    }

    fn commit(&self) -> Result<Ticket> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        if inner.installing.is_none() {
            inner.make_room(&self.storage, &self.state())?;
        }
        let ticket = inner.log.commit()?;
        if inner.installing.is_none() {
            inner.tend_checkpoint(&self.storage, &self.state())?;
        }
        Ok(ticket)
    }

    fn release_in_time(&self) -> Result<()> {
        self.state().write().drop_old(RELEASED);
        Ok(())
    }

    fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        self.inner.lock().log.is_durable(ticket)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<()> {
        let sync = self.inner.lock().log.sync_state();
        sync.wait(ticket)
    }

    fn on_durable(&self, listener: DurableListener) {
        self.inner.lock().log.sync_state().listen(listener);
    }

    fn close(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Ok(());
        }
        if inner.is_control_new {
            inner.note_control();
        }
        inner.log.commit()?;
        inner.log.sync_now()?;
        inner.is_closed = true;
        inner.wait_checkpoint()
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut inner = self.inner.lock();
        if !inner.is_closed {
            inner.log.commit()?;
        }
        inner.wait_checkpoint()?;
        let mut report = VerifyReport::default();
        match recover::check(self.storage.as_ref(), (inner.log.number, inner.log.len())) {
            Ok(bytes) => report.bytes = bytes,
            Err(Error::Corrupt { offset, what }) => {
                report.damages.push(Damage::new(offset, what));
            }
            Err(error) => return Err(error),
        }
        report.records = self.len();
        progress(Progress { stage: "reading the log", done: report.bytes, total: report.bytes });
        Ok(report)
    }

    fn stats(&self) -> Stats {
        let inner = self.inner.lock();
        let bytes = self.state().read().bytes();
        let mut stats = Stats::default();
        stats.log_bytes_written = inner.log.written_in_all;
        stats.cleaner_bytes_copied = inner.checkpoint_bytes;
        stats.fences = inner.log.sync_state().count();
        stats.records = self.len();
        stats.live_bytes = bytes;
        stats.pool_bytes = inner.log.len() + bytes;
        stats.dram_bytes = self.state().read().all_bytes();
        stats
    }

    fn entries(
        &self,
        range: RangeInclusive<u64>,
        visit: &mut dyn FnMut(LogEntry<'_>) -> bool,
    ) -> Result<()> {
        let inner = self.inner.lock();
        inner.check_log()?;
        let Control { applied, newest, .. } = inner.control;
        for timestamp in range {
            if timestamp <= applied {
                return Err(Error::HistoryGone { asked: timestamp, horizon: applied });
            }
            check_range("read an entry", timestamp, (applied + 1, newest))?;
            let Some(entry) = inner.pending.get((timestamp - applied - 1) as usize) else { break };
            // In the order of keys, each key once.
            let last: BTreeMap<&[u8], ChangeRef<'_>> =
                entry.changes.changes().map(|change| (change.key(), change)).collect();
            let changes: Vec<ChangeRef<'_>> = last.into_values().collect();
            if !visit(LogEntry { timestamp, header: &entry.header, changes: &changes }) {
                break;
            }
        }
        Ok(())
    }

    fn header(&self, timestamp: u64) -> Result<Option<Vec<u8>>> {
        let inner = self.inner.lock();
        let Control { applied, applied_header, .. } = &inner.control;
        if inner.installing.is_some() {
            return Ok(None);
        }
        if timestamp == *applied && timestamp > 0 {
            return Ok(Some(applied_header.clone()));
        }
        let at = timestamp.checked_sub(applied + 1);
        Ok(at.and_then(|at| inner.pending.get(at as usize)).map(|entry| entry.header.clone()))
    }

    fn get_with(
        &self,
        key: &[u8],
        _visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        // Applied entries are durable with a majority, and were committed here before.
        let hit = self.state().read().get(key, u64::MAX, visit);
        Ok(Found { hit, ticket: Ticket::DURABLE })
    }

    fn len(&self) -> u64 {
        self.state().read().len()
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        State::scan(&self.state(), u64::MAX, (start, end), reverse, visit);
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        let inner = self.inner.lock();
        inner.check_log()?;
        let pin = State::pin(&self.state(), inner.control.applied);
        let Control { applied_header, members, .. } = inner.control.clone();
        Ok(Box::new(WalSnapshot { pin, header: applied_header, members }))
    }

    fn is_pinned(&self) -> bool {
        // Pinned states are in DRAM.
        false
    }

    fn begin_install(&self, timestamp: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let from = inner.control.applied + u64::from(inner.installing.is_none());
        check_range("install a snapshot", timestamp, (from.max(1), u64::MAX - 1))?;
        inner.installing = Some((timestamp, Arc::default()));
        Ok(())
    }

    fn install(&self, records: &mut dyn Iterator<Item = SnapshotRecord<'_>>) -> Result<()> {
        let inner = self.inner.lock();
        let (newest, state) = inner.installing.as_ref().ok_or_else(not_begun)?;
        let mut state = state.write();
        for SnapshotRecord { key, value, timestamp, expires_at } in records {
            check_range("install a record", timestamp, (1, *newest))?;
            if state.get(key, u64::MAX, &mut |_| {}) {
                return Err(Error::Unusable("a key is in the snapshot twice".to_owned()));
            }
            state.make(timestamp, ChangeRef::Put { key, value, expires_at });
        }
        Ok(())
    }

    fn end_install(&self, header: &[u8], members: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_writable()?;
        let (timestamp, state) = inner.installing.clone().ok_or_else(not_begun)?;
        inner.make_room_for(&self.storage, (&self.state(), &state))?;
        let control = Control {
            newest: timestamp,
            applied: timestamp,
            applied_header: header.to_vec(),
            members: members.to_vec(),
            ..inner.control.clone()
        };
        // An empty log first: the checkpoint makes everything before it void.
        let number = inner.log.number + 1;
        inner.log.begin(self.storage.as_ref(), number)?;
        let pin = State::pin(&state, timestamp);
        inner.checkpoint_bytes += checkpoint::write(self.storage.as_ref(), number, &control, &pin)?;
        inner.control = control;
        inner.pending.clear();
        inner.pending_bytes = 0;
        inner.installing = None;
        inner.is_control_new = false;
        *self.state.write() = state;
        Ok(())
    }
}

fn not_begun() -> Error {
    Error::Unusable("no snapshot was begun to be installed".to_owned())
}

/// The applied state of one moment.
struct WalSnapshot {
    pin: Pin,
    header: Vec<u8>,
    members: Vec<u8>,
}

impl MapSnapshot for WalSnapshot {
    fn timestamp(&self) -> u64 {
        self.pin.timestamp()
    }

    fn header(&self) -> &[u8] {
        &self.header
    }

    fn members(&self) -> &[u8] {
        &self.members
    }

    fn walk(&self, range: Range<'_>, visit: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        self.pin.walk(range, visit);
        Ok(())
    }
}
