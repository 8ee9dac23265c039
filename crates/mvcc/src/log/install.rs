//! Replacing the contents by a snapshot.
//!
//! ```text
//!   … a₅ b₆ ✂│C installing  above 0      a₉  c₇  d₄ … │C applied 9
//!      void ─┘                           records of the snapshot, each for itself
//! ```
//!
//! The first control record makes everything before it void, and states that a snapshot is being installed; the last
//! one states that the snapshot is complete. A power cut in between leaves a log in that state, with its term and
//! vote, and nothing else. Records that were installed by then are dropped by the next attempt. In a tree commits
//! state both, and no longer lead to the former records.
//!
//! A record of a snapshot keeps the timestamp of the entry that wrote it: so readers, which may compare timestamps,
//! see the same record on every replica.

use super::{Gate, LogMap, check_range, log_of};
use crate::control::{Control, ENTRY_HEADER_MAX, check_members};
use crate::engine::durable::Writing;
use crate::engine::write::Prepared;
use crate::map::Purpose;
use crate::volume::overflow::NAME;
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use std::sync::atomic::Ordering;

/// Records after which a map writes the state that it has kept for them in DRAM.
const AT_ONCE: usize = 1024;

/// A record of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotRecord<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The timestamp of the entry that wrote it: the sequence of the record, as readers see it.
    pub timestamp: u64,
    /// Its expiry.
    pub expires_at: Option<UnixMillis>,
}

impl LogMap {
    /// Drops the contents, except term, vote, members and the versions that snapshots see, for a snapshot of
    /// `timestamp` that is to come. Reads are refused until it is installed as a whole.
    ///
    /// It may be called again, to start over.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the timestamp is above the applied one (or equal to it, after an installation
    /// that was cut off); [`Error::NoSpace`]; if the medium fails or is damaged.
    pub fn begin_install(&self, timestamp: u64) -> Result<()> {
        let mut gate = self.gate.write();
        let len = |control: &Control| {
            let from = control.applied + u64::from(!control.is_installing);
            check_range("install a snapshot", timestamp, (from.max(1), u64::MAX - 1))?;
            Ok(Some(control.record_len()))
        };
        self.with_pages(0, len, |map, guard| {
            *gate = Gate::Installing(Some(timestamp));
            log_of(map)?.begin_install(guard)
        })
    }

    /// Adds records of the snapshot, each key once.
    ///
    /// # Errors
    /// [`Error::Unusable`] if no installation was begun since the pool was opened, or if a key exists already;
    /// [`Error::OutOfRange`] for a record that is newer than the snapshot; [`Error::ValueTooLong`],
    /// [`Error::KeyTooLong`]; [`Error::NoSpace`]; if the medium fails. The records before the one with the error were
    /// added.
    pub fn install<'r>(&self, records: impl IntoIterator<Item = SnapshotRecord<'r>>) -> Result<()> {
        let newest = self.timestamp_to_install()?;
        let records: Vec<SnapshotRecord<'r>> = records.into_iter().collect();
        for records in records.chunks(AT_ONCE) {
            for record in records {
                check_range("install a record", record.timestamp, (1, newest))?;
                self.store.check_lengths(record.key, record.value.len())?;
            }
            let mut prepared: Vec<Option<Prepared>> = Vec::new();
            let added = self.install_some(records, &mut prepared);
            prepared.iter_mut().for_each(|it| self.store.drop_prepared(it));
            added?;
        }
        Ok(())
    }

    /// Adds records; their large values share one fence.
    fn install_some(
        &self,
        records: &[SnapshotRecord<'_>],
        prepared: &mut Vec<Option<Prepared>>,
    ) -> Result<()> {
        let is_large = |it: &SnapshotRecord<'_>| it.value.len() > self.store.inline_max(it.key);
        for record in records {
            prepared.push(match is_large(record) {
                true => Some(self.store.write_large(record.value, Purpose::Overwrite)?),
                false => None,
            });
        }
        if prepared.iter().any(Option::is_some) {
            self.store.fence_large()?;
        }
        for (record, prepared) in records.iter().zip(prepared) {
            self.add(record, prepared)?;
        }
        let unsealed = self.unsealed.fetch_add(records.len(), Ordering::Relaxed) + records.len();
        if unsealed < AT_ONCE {
            return Ok(());
        }
        // So that not all nodes of a tree stay in DRAM.
        self.unsealed.store(0, Ordering::Relaxed);
        let mut map = self.store.map.write();
        self.store.check_writable()?;
        match self.store.volume.space.fences_at_once() {
            true => self.store.commit_all(&mut map),
            false => map.seal(),
        }
    }

    /// Ends the installation: the timestamp of the snapshot is the newest, and applied, with the header of its entry
    /// and the members of that time. Durable when it returns; then reads are admitted.
    ///
    /// # Errors
    /// [`Error::Unusable`] if no installation was begun since the pool was opened; [`Error::ValueTooLong`];
    /// [`Error::NoSpace`]; if the medium fails.
    pub fn end_install(&self, header: &[u8], members: &[u8]) -> Result<()> {
        if header.len() > ENTRY_HEADER_MAX {
            return Err(Error::ValueTooLong { len: header.len(), max: ENTRY_HEADER_MAX });
        }
        check_members(members)?;
        let timestamp = self.timestamp_to_install()?;
        let mut gate = self.gate.write();
        self.set(|control| {
            (control.newest, control.applied) = (timestamp, timestamp);
            control.applied_header = header.to_vec();
            control.members = members.to_vec();
            control.is_installing = false;
            Ok(())
        })?;
        self.store.next_version.store(timestamp + 1, Ordering::Relaxed);
        // Readers see nothing of the snapshot before all of it is durable.
        if !mutant!("mvcc.log.unveil") {
            let ticket = self.commit()?;
            self.wait_durable(ticket)?;
        }
        *gate = Gate::Open;
        Ok(())
    }

    fn timestamp_to_install(&self) -> Result<u64> {
        match *self.gate.read() {
            Gate::Installing(Some(timestamp)) => Ok(timestamp),
            _ => Err(Error::Unusable("no snapshot was begun to be installed".to_owned())),
        }
    }

    fn add(&self, record: &SnapshotRecord<'_>, prepared: &mut Option<Prepared>) -> Result<()> {
        let header = Header {
            kind: Kind::Put,
            large: prepared.is_some(),
            expires_at: record.expires_at,
            ..Header::put(record.timestamp)
        };
        let value_len = if prepared.is_some() { NAME } else { record.value.len() };
        let len = header.record_len(record.key, value_len);
        let request = |map: &mut Writing<'_>, guard: &Guard| {
            if map.newest(guard, record.key)?.is_some() {
                return Err(Error::Unusable("a key is in the snapshot twice".to_owned()));
            }
            self.room_for(map, guard, (&[len], &[record.key]), Purpose::Overwrite)
        };
        self.store.with_space(request, |map, guard| {
            let added = self.add_with(map, guard, header, record, prepared.take());
            self.stop_if_failed(map, added)
        })
    }

    fn add_with(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        header: Header,
        record: &SnapshotRecord<'_>,
        prepared: Option<Prepared>,
    ) -> Result<()> {
        let body = prepared.as_ref().map_or(record.value, |it| &it.name);
        let new = self.store.append(map, guard, header, record.key, body)?;
        if let Some(it) = prepared {
            map.stream_mut().adopt_chain(&it.pages);
        }
        map.link(guard, record.key, new)
    }
}
