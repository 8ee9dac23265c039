//! Log and state in one map: the base of a crate that replicates.
//!
//! # The problem
//!
//! A replica keeps a log of entries, the last of which may still be taken back, and a state, which is the result of
//! the entries up to the applied one. The usual way writes each change twice, and keeps a file for term and vote
//! beside. In a map from (key, version) to value an entry's changes are versions that are not visible yet: they are
//! written once, applying them raises the applied timestamp, and term, vote and members are in the same record.
//!
//! # The picture
//!
//! ```text
//!                 purged      applied                    newest
//!   timestamps  ────┼───────────┼──────────────────────────┼──▶
//!                   │ snapshots │ readers   pending         │ append
//!                   │           │ ◀── apply     roll_back ──▶
//! ```
//!
//! A *timestamp* numbers the entries from 1 on, without a gap; it is the version of their records. An entry has any
//! number of changes, and a header that only its writer interprets. It is *pending* until it is applied or rolled
//! back, and until then it can be read again, to be sent on. An applied entry cannot be taken back.
//!
//! # Durability
//!
//! Nothing is durable before a [`LogMap::commit`]: where a fence is an instruction, one fence makes all of it
//! durable, entries, the applied timestamp, term and vote; where it is a sync, the commit returns its ticket. A power
//! cut leaves everything up to some point, which is not before the last commit: never an entry without the one before
//! it, or a part of one. The same holds for a killed process: a tree has not stored yet what leads to the entries
//! since the last commit.
//!
//! Readers see an entry when it is applied, and not before it is durable here. A power cut may undo its application:
//! then it is pending again, until the node that has confirmed it does so again.
//!
//! # Versions
//!
//! An older version of a key is needed while it is the newest applied one, or a snapshot that was
//! [pinned](LogMap::snapshot) sees it. So the oldest timestamp that can be read is that of the oldest snapshot, or the
//! applied one ([`Control::purged`](crate::Control)). Of the versions that only a dropped snapshot has seen each commit
//! drops a few, and more the more changes it has; [`LogMap::release_in_time`] drops a few without changes. A search for
//! room drops some, and says [`Error::Busy`] if that is not enough.
//!
//! Appends leave pages to all other changes, except pages that a snapshot keeps: while it exists, any change may fail
//! with [`Error::NoSpace`], which changes nothing, and finds room when the snapshot is gone.
//!
//! Records are shown to a reader while the map is held: a visitor must not call the log again.
//!
//! An expired record is hidden from readers by this process's clock, as in any engine; an entry has to delete it.
//!
//! # Replacing the contents
//!
//! A replica that has fallen behind is sent a snapshot. There is room for one state: so [`LogMap::begin_install`]
//! drops the contents, durably at the latest when their pages are reused, and until [`LogMap::end_install`] is
//! durable the log is empty ([`Error::Installing`]) and has to be installed again. Term and vote stay. If it voted or
//! counted for a quorum in between, it would vouch for entries that it lacks: the caller must prevent that.
//!
//! # Departures from the thesis (3.2, 3.4)
//!
//! - Its rollback record is a record of the map under a reserved key. Here it is the record that closes an entry, and
//!   the keys are those of the records of that version.
//! - Its applied timestamp is in DRAM. Here it is in the control record, or in the commit of a tree, so that it
//!   outlives a restart.
//! - Its confirmations go out when k entries were appended, or in time. Here the caller commits.

mod append;
mod commit;
mod install;
mod read;

pub use append::LogAppend;
pub use install::SnapshotRecord;
pub use read::{LogEntry, LogSnapshot};

use crate::control::{Control, check_members};
use crate::engine::MapKind;
use crate::engine::Store;
use crate::engine::durable::Writing;
use crate::engine::open::create_options;
use crate::map::{Group, Log, Purpose, Space};
use crate::volume::geometry::{Geometry, Use};
use coreplane_engine::{
    DurableListener, Error, Horizon, Progress, Result, Stats, Ticket, VerifyReport,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::{MediaChoice, Medium, OpenOptions, Pool, Space as Memory};
use coreplane_record::{Options, outlive, pool_error};
use parking_lot::RwLock;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The state of the log for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// A snapshot of this timestamp is being installed; none: it was begun in an earlier life.
    Installing(Option<u64>),
}

/// A log, and the map that it makes, in one pool. One thread changes it, any thread may read.
///
/// Dropping it without closing it is a crash: nothing that was committed is lost.
pub struct LogMap {
    store: Arc<Store>,
    gate: RwLock<Gate>,
    /// A change has failed halfway.
    is_broken: AtomicBool,
    /// Records that were installed since the map was last written.
    unsealed: AtomicUsize,
    /// Changes that were appended since the last commit.
    appended: AtomicUsize,
}

impl std::fmt::Debug for LogMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMap")
            .field("pool", &self.store.volume.pool.path())
            .finish_non_exhaustive()
    }
}

/// The map as a log.
fn log_of<'m>(map: &'m mut Writing<'_>) -> Result<&'m mut dyn Log> {
    map.log_mut().ok_or_else(no_log)
}

fn no_log() -> Error {
    Error::Unusable("this kind of map is no log".to_owned())
}

impl LogMap {
    /// Creates a pool of `size` bytes with this geometry at `path`, where nothing may exist yet, and opens it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn create(
        kind: MapKind,
        path: &Path,
        size: u64,
        geometry: Geometry,
        media: MediaChoice,
        options: &Options,
    ) -> Result<Self> {
        let create = create_options(kind, size, geometry, media, Use::Log)?;
        let pool = Pool::create(path, &create).map_err(pool_error)?;
        let made = outlive(&pool, options.outlives_medium)
            .and_then(|()| Store::format(kind, pool, options))
            .and_then(Self::of);
        if made.is_err() {
            // A pool that is no store yet. If it cannot be removed, a later open reports that.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        made
    }

    /// Opens the pool at `path`; recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Unusable`], also for a pool that is a store of its own; [`Error::Corrupt`],
    /// [`Error::ChecksumMismatch`], [`Error::Io`].
    pub fn open(
        kind: MapKind,
        path: &Path,
        media: MediaChoice,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let open = if options.is_copy { Pool::open_copy } else { Pool::open };
        let pool = open(path, &OpenOptions { media }).map_err(pool_error)?;
        outlive(&pool, options.outlives_medium)?;
        let store = Store::open(kind, Use::Log, pool, options, progress)?;
        store.volume.pool.fault_in();
        Self::of(store)
    }

    /// Creates a log in the simulator's memory.
    ///
    /// # Errors
    /// As [`LogMap::create`].
    pub fn simulated_create(kind: MapKind, space: Arc<Memory>, options: &Options) -> Result<Self> {
        let geometry = Geometry { page_size: space.page_size(), ..Geometry::default() };
        let create = create_options(kind, space.len(), geometry, MediaChoice::Auto, Use::Log)?;
        let pool = Pool::simulated_create(space, &create).map_err(pool_error)?;
        Self::of(Store::format(kind, pool, options)?)
    }

    /// Opens a log in the simulator's memory.
    ///
    /// # Errors
    /// As [`LogMap::open`].
    pub fn simulated_open(kind: MapKind, space: Arc<Memory>, options: &Options) -> Result<Self> {
        let pool = Pool::simulated_open(space).map_err(pool_error)?;
        Self::of(Store::open(kind, Use::Log, pool, options, &|_| {})?)
    }

    fn of(store: Store) -> Result<Self> {
        let is_installing = {
            let map = store.map.read();
            map.log().ok_or_else(no_log)?.control().is_installing
        };
        let gate = if is_installing { Gate::Installing(None) } else { Gate::Open };
        Ok(Self {
            store: Arc::new(store),
            gate: RwLock::new(gate),
            is_broken: AtomicBool::new(false),
            unsealed: AtomicUsize::new(0),
            appended: AtomicUsize::new(0),
        })
    }

    /// The current state of the log; durable after a [`LogMap::commit`].
    pub fn control(&self) -> Control {
        let map = self.store.map.read();
        let Some(log) = map.log() else { return Control::default() };
        let control = log.control();
        let purged = log.oldest_pin().map_or(control.applied, |pin| pin.min(control.applied));
        Control { purged, ..control.clone() }
    }

    /// Applies all entries up to `to`: readers see them. Where a fence is an instruction, they are durable when it
    /// returns. From then on the header of the last one is in [`LogMap::control`], and the entries can no longer be
    /// read as such.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a timestamp without an entry, or below the applied one; [`Error::NoSpace`];
    /// [`Error::Installing`]; if the medium fails or is damaged.
    pub fn apply(&self, to: u64) -> Result<()> {
        let may_be = |control: &Control| {
            let (from, newest) = (control.applied, control.newest);
            check_range("apply a timestamp", to, (from, newest))?;
            Ok(to > from)
        };
        self.change(to, may_be, |map, guard| {
            log_of(map)?.apply(guard, to)?;
            self.store.next_version.store(to + 1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Takes back all entries above `to`: they do not count, and their timestamps are used again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if an applied entry would have to be taken back; [`Error::NoSpace`];
    /// [`Error::Installing`]; if the medium fails or is damaged.
    pub fn roll_back(&self, to: u64) -> Result<()> {
        let may_be = |control: &Control| {
            check_range("roll back to a timestamp", to, (control.applied, u64::MAX))?;
            Ok(to < control.newest)
        };
        self.change(0, may_be, |map, guard| log_of(map)?.roll_back(guard, to))
    }

    /// Notes the newest term, and the candidate voted for in it (0: none yet).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a term older than the newest one, and for a second, different vote in the same term;
    /// [`Error::NoSpace`]; if the medium fails.
    pub fn set_vote(&self, term: u64, vote: u64) -> Result<()> {
        let change = |control: &mut Control| {
            check_range("a term", term, (control.term, u64::MAX))?;
            if term == control.term && control.vote != 0 {
                check_range("a vote in the same term", vote, (control.vote, control.vote))?;
            }
            (control.term, control.vote) = (term, vote);
            Ok(())
        };
        self.set(change)
    }

    /// Notes the members: at most [`MEMBERS_MAX`](crate::MEMBERS_MAX) bytes.
    ///
    /// # Errors
    /// [`Error::ValueTooLong`]; [`Error::NoSpace`]; if the medium fails.
    pub fn set_members(&self, members: &[u8]) -> Result<()> {
        check_members(members)?;
        self.set(|control| {
            control.members = members.to_vec();
            Ok(())
        })
    }

    /// True if the writes of a ticket are durable.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        self.store.is_durable(&Horizon::from(ticket))
    }

    /// Waits until the writes of a ticket are durable; holds no lock.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn wait_durable(&self, ticket: Ticket) -> Result<()> {
        self.store.wait_durable(&Horizon::from(ticket))
    }

    /// Calls `listener` whenever more has become durable.
    pub fn on_durable(&self, listener: DurableListener) {
        self.store.volume.space.on_synced(listener);
    }

    /// Leaves a clean pool behind, with all changes durable. Everything but reads fails from then on.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn close(&self) -> Result<()> {
        self.store.close()
    }

    /// Grows the pool to `size` bytes while it is in use; durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unusable`], [`Error::Io`].
    pub fn grow(&self, size: u64) -> Result<()> {
        self.store.grow(size)
    }

    /// Reads all records, those of pending entries too, and verifies their checksums.
    ///
    /// # Errors
    /// Only if it could not continue.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.store.verify(progress)
    }

    /// The counts and sizes of the store.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// The kind of its map.
    pub fn kind(&self) -> MapKind {
        self.store.kind
    }

    /// The longest key, in bytes.
    pub fn key_len_max(&self) -> usize {
        self.store.key_len_max()
    }

    /// The medium of the pool.
    pub fn medium(&self) -> Medium {
        self.store.volume.pool.medium()
    }

    /// For tests: counts all live bytes again; an error if the counts that are kept differ.
    ///
    /// # Errors
    /// The difference to the counts that are kept.
    #[doc(hidden)]
    pub fn audit(&self) -> std::result::Result<u64, String> {
        self.store.count_all();
        let map = self.store.exposed().map_err(|error| error.to_string())?;
        map.audit(&epoch::pin())
    }
}

impl LogMap {
    /// Changes the state in the control record, whether or not a snapshot is being installed.
    fn set(&self, change: impl Fn(&mut Control) -> Result<()>) -> Result<()> {
        let changed = |before: &Control| {
            let mut control = before.clone();
            change(&mut control).map(|()| control)
        };
        self.with_pages(
            0,
            |control| Ok((changed(control)? != *control).then_some(changed(control)?.record_len())),
            |map, _| {
                let log = log_of(map)?;
                let control = changed(log.control())?;
                log.set_control(control)
            },
        )
    }

    /// Changes entries, unless a snapshot is being installed; `to` is the last to be applied. `may_be` fails if the
    /// change is not allowed, and returns false if there is nothing to do.
    fn change(
        &self,
        to: u64,
        may_be: impl Fn(&Control) -> Result<bool>,
        change: impl FnOnce(&mut Writing<'_>, &Guard) -> Result<()>,
    ) -> Result<()> {
        let len = |control: &Control| {
            let is_due = may_be(control)?;
            if control.is_installing {
                return Err(Error::Installing);
            }
            Ok(is_due.then(|| control.record_len_max()))
        };
        self.with_pages(to, len, change)
    }

    /// Calls `change` with the map, with room for a control record of the length that `len` returns, if any, and for
    /// applying entries up to `to`.
    fn with_pages(
        &self,
        to: u64,
        len: impl Fn(&Control) -> Result<Option<usize>>,
        change: impl FnOnce(&mut Writing<'_>, &Guard) -> Result<()>,
    ) -> Result<()> {
        let is_due = Cell::new(true);
        let request = |map: &mut Writing<'_>, guard: &Guard| {
            let Some(len) = len(log_of(map)?.control())? else {
                is_due.set(false);
                return Ok(Space::Found);
            };
            // Appends leave pages for this: applying and rolling back free pages.
            match self.room_for(map, guard, (&[len], &[]), Purpose::Delete) {
                Err(Error::NoSpace { .. }) => self.last_room_for(map, guard, (to, len)),
                space => space,
            }
        };
        self.store.with_space(request, |map, guard| match is_due.get() {
            true => {
                let changed = change(map, guard);
                self.stop_if_failed(map, changed)
            }
            false => Ok(()),
        })
    }

    /// The same with fewer pages than are left to others, or than all pending entries may take.
    fn last_room_for(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        (to, len): (u64, usize),
    ) -> Result<Space> {
        let pages = log_of(map)?.pages_to_apply(guard, to, len)?;
        let reserve = map.reserve(Purpose::Clear);
        match map.make_space(pages, reserve)? {
            Space::Found => Ok(map.begin_group(&[len])?.map_or(Space::Found, Space::Wait)),
            space => Ok(space),
        }
    }

    /// Ensures room for a group of records; if there is none yet, returns what to wait for without holding the map.
    fn room_for(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        (lengths, keys): (&[usize], &[&[u8]]),
        purpose: Purpose,
    ) -> Result<Space> {
        let group = Group { lengths, keys, apart: 0 };
        match self.store.space_for(map, guard, group, purpose)? {
            Space::Found => Ok(map.begin_group(lengths)?.map_or(Space::Found, Space::Wait)),
            space => Ok(space),
        }
    }

    /// A change that has failed halfway: the pool has to be opened again. Nothing ends its group, and readers are not
    /// shown a part of it.
    fn stop_if_failed<T>(&self, map: &mut Writing<'_>, result: Result<T>) -> Result<T> {
        if result.is_err() {
            map.stream_mut().is_broken = true;
            self.is_broken.store(true, Ordering::Release);
            self.store.volume.closed.store(true, Ordering::Release);
        }
        result
    }
}

impl Drop for LogMap {
    fn drop(&mut self) {
        self.store.volume.closed.store(true, Ordering::SeqCst);
    }
}

fn check_range(what: &'static str, given: u64, (from, to): (u64, u64)) -> Result<()> {
    if given < from || given > to {
        return Err(Error::OutOfRange { what, given, from, to });
    }
    Ok(())
}
