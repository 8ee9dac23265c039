//! Log and state in one map: what a crate that replicates stands on.
//!
//! # The problem
//!
//! A replica keeps a log of entries, the last of which may still be taken back, and a state, which the entries up to the
//! applied one have made. The classic way writes each change twice, and keeps a file for term and vote beside. In a map
//! from (key, version) to value an entry's changes are versions that nobody sees yet: they are written once, to apply them
//! is to say so, and term, vote and members are in the record that says it.
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
//! number of changes, none or many, and a header that only its writer understands. It is *pending* until it is applied or
//! rolled back, and as long it can be read again, to send it on. What is applied cannot be taken back.
//!
//! # When it is durable
//!
//! Nothing is, before a [`LogMap::commit`]: where a fence is an instruction one fence makes all of it durable, entries,
//! what is applied, term and vote; where it is a sync, it returns the ticket of one. What a power cut leaves is all up to
//! some point, which is not before the last commit: never an entry without the one before it, or a part of one. So it is
//! with what a killed process leaves: a tree has not stored yet what leads to the entries since the last commit.
//!
//! Readers see an entry when it is applied, and not before it is durable here. That it is applied may be forgotten by a
//! cut: then it is pending again, and whoever has confirmed it will say so again.
//!
//! # Versions
//!
//! An older version of a key is needed while it is the newest that is applied, or a snapshot that was
//! [pinned](LogMap::snapshot) sees it. Then it goes by itself; nobody purges. So the oldest timestamp that can be read is
//! that of the oldest snapshot, or the applied one ([`Control::purged`](crate::Control)).
//!
//! Appends leave pages to all other changes of the log. Those that a snapshot keeps are not there for that: as long as it
//! does, any change may find [`Error::NoSpace`], which changes nothing, and finds room when the snapshot is gone.
//!
//! What is shown to a reader is shown with the map in hand: a visitor must not call the log again.
//!
//! A record that has expired is hidden from readers by this process's clock, as in any engine; it is there until an entry
//! deletes it.
//!
//! # Replacing everything
//!
//! A replica that has fallen behind is sent a snapshot. There is room for one state: so [`LogMap::begin_install`] gives up
//! what is there, durably at the latest when its pages are used again, and until [`LogMap::end_install`] is durable the
//! log says that it is empty ([`Error::Installing`]) and has to be installed again. Term and vote stay. One that voted or
//! was counted for a quorum in between would speak for entries that it does not have: whoever replicates must not let it.
//!
//! # Departures from the thesis (3.2, 3.4)
//!
//! - Its rollback record is a record of the map under a reserved key. Here it is the record that closes an entry, and
//!   the keys are those of the records of that version.
//! - Its applied timestamp is in DRAM. Here it is in the control record, or in the commit of a tree, so that a restart
//!   shows what was applied.
//! - Its confirmations go out when k entries were appended, or in time. Here whoever replicates commits.

mod append;
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
use crate::engine::patience::Patience;
use crate::map::{Group, Log, Purpose, Space};
use crate::volume::geometry::{Geometry, Use};
use coreplane_engine::{
    DurableListener, Error, Horizon, Progress, Result, Stats, Ticket, VerifyReport,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::{MediaChoice, Medium, OpenOptions, Pool, Space as Memory};
use coreplane_record::{Options, outlive, pool_error};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether readers may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// A snapshot is being installed, of this timestamp; none: it was begun in an earlier life.
    Installing(Option<u64>),
}

/// A log, and the map that it makes, in one pool. One thread drives it, any may read.
///
/// Dropping it without closing it is a crash: nothing that was committed is lost.
pub struct LogMap {
    store: Arc<Store>,
    gate: RwLock<Gate>,
    /// A change has failed in between.
    is_broken: AtomicBool,
    /// Records that were installed since the map was written last.
    unsealed: AtomicUsize,
}

impl std::fmt::Debug for LogMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMap")
            .field("pool", &self.store.volume.pool.path())
            .finish_non_exhaustive()
    }
}

/// The map as the log that it is.
fn log_of<'m>(map: &'m mut Writing<'_>) -> Result<&'m mut dyn Log> {
    map.log_mut().ok_or_else(no_log)
}

fn no_log() -> Error {
    Error::Unusable("this kind of map is no log".to_owned())
}

impl LogMap {
    /// Creates a pool of `size` bytes with this geometry at `path`, where nothing may be yet, and
    /// opens it.
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
            // A pool that is no store yet. If it cannot be removed, an open says so.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        made
    }

    /// Opens the pool at `path`; recovers it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Unusable`], also of a pool that is a store of its own; [`Error::Corrupt`], [`Error::ChecksumMismatch`],
    /// [`Error::Io`].
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

    /// Creates one in the simulator's memory.
    ///
    /// # Errors
    /// As [`LogMap::create`].
    pub fn simulated_create(kind: MapKind, space: Arc<Memory>, options: &Options) -> Result<Self> {
        let geometry = Geometry { page_size: space.page_size(), ..Geometry::default() };
        let create = create_options(kind, space.len(), geometry, MediaChoice::Auto, Use::Log)?;
        let pool = Pool::simulated_create(space, &create).map_err(pool_error)?;
        Self::of(Store::format(kind, pool, options)?)
    }

    /// Opens one in the simulator's memory.
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
        })
    }

    /// What the log says of itself now; durable after a [`LogMap::commit`].
    pub fn control(&self) -> Control {
        let map = self.store.map.read();
        let Some(log) = map.log() else { return Control::default() };
        let control = log.control();
        let purged = log.oldest_pin().map_or(control.applied, |pin| pin.min(control.applied));
        Control { purged, ..control.clone() }
    }

    /// Applies all entries up to `to`: readers see them. Where a fence is an instruction, and they are not durable yet,
    /// they are when it returns. The header of the last one is in [`LogMap::control`] from then on; the entries can no
    /// longer be read as such.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] of a timestamp that is no entry's, or below what is applied; [`Error::NoSpace`];
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

    /// Takes back all entries above `to`: they never were, and their timestamps are used again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if what is applied would have to be taken back; [`Error::NoSpace`]; [`Error::Installing`]; if
    /// the medium fails or is damaged.
    pub fn roll_back(&self, to: u64) -> Result<()> {
        let may_be = |control: &Control| {
            check_range("roll back to a timestamp", to, (control.applied, u64::MAX))?;
            Ok(to < control.newest)
        };
        self.change(0, may_be, |map, guard| log_of(map)?.roll_back(guard, to))
    }

    /// Notes the newest term, and who is voted for in it (0: nobody yet).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] of a term that is older than the one that was seen, and of another vote than that which was
    /// given in it; [`Error::NoSpace`]; if the medium fails.
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

    /// Notes who the members are: at most [`MEMBERS_MAX`](crate::MEMBERS_MAX) bytes.
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

    /// Sees to it that all that was done before is durable: what to wait for, if anything.
    ///
    /// Where a fence is an instruction it is durable when this returns, by one fence, or none if nothing is new; by two if
    /// the cleaner of a tree has moved records. Where it is a sync, one is asked for.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn commit(&self) -> Result<Ticket> {
        let store = &self.store;
        let mut map = store.map.write();
        store.check_writable()?;
        // What is moved has the same fence or sync, and nothing is hidden from whoever applies next.
        map.tidy()?;
        if store.volume.space.fences_at_once() {
            store.commit_all(&mut map)?;
            return Ok(Ticket::DURABLE);
        }
        map.seal()?;
        if map.stream().is_uncovered() {
            map.stream_mut().cover(true);
        }
        let generation = map.stream().pending();
        map.settle();
        drop(map);
        let Some(generation) = generation else { return Ok(Ticket::DURABLE) };
        store.volume.space.sync_request(generation);
        Ok(Ticket::new(0, generation))
    }

    /// True if what a ticket stands for is durable.
    ///
    /// # Errors
    /// If the medium fails.
    pub fn is_durable(&self, ticket: Ticket) -> Result<bool> {
        self.store.is_durable(&Horizon::from(ticket))
    }

    /// Waits for what a ticket stands for, with nothing in hand.
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

    /// Leaves a clean pool behind, with all that was done durable. Everything but reads fails from now on.
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

    /// Reads everything, pending entries too, and holds it against its checksums.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.store.verify(progress)
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Its kind.
    pub fn kind(&self) -> MapKind {
        self.store.kind
    }

    /// The longest key, in bytes.
    pub fn key_len_max(&self) -> usize {
        self.store.key_len_max()
    }

    /// What the pool rests on.
    pub fn medium(&self) -> Medium {
        self.store.volume.pool.medium()
    }

    /// For tests: counts all that lives once more; what is wrong if the counts that are kept say otherwise.
    ///
    /// # Errors
    /// What has drifted.
    #[doc(hidden)]
    pub fn audit(&self) -> std::result::Result<u64, String> {
        self.store.count_all();
        let map = self.store.exposed().map_err(|error| error.to_string())?;
        map.audit(&epoch::pin())
    }
}

impl LogMap {
    /// Changes what the control record says of the log, whether a snapshot is being installed or not.
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

    /// Changes entries, unless a snapshot is being installed; those up to `to` are applied. False: there is nothing to do.
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

    /// Has the map, with room for a control record of the length that is asked for, if one is, and to apply entries up to
    /// `to`.
    fn with_pages(
        &self,
        to: u64,
        len: impl Fn(&Control) -> Result<Option<usize>>,
        change: impl FnOnce(&mut Writing<'_>, &Guard) -> Result<()>,
    ) -> Result<()> {
        let store = &self.store;
        let mut patience = Patience::default();
        loop {
            let mut map = store.map.write();
            store.check_writable()?;
            let Some(len) = len(log_of(&mut map)?.control())? else { return Ok(()) };
            let guard = epoch::pin();
            // Entries leave pages to it: to apply, or to roll back, is what frees some.
            let space = match self.room_for(&mut map, &guard, (&[len], &[]), Purpose::Delete) {
                Err(Error::NoSpace { .. }) => self.last_room_for(&mut map, &guard, (to, len))?,
                space => space?,
            };
            if space == Space::Found {
                let changed = change(&mut map, &guard);
                return self.stop_if_failed(&mut map, changed);
            }
            drop((map, guard));
            patience.wait(store, space)?;
        }
    }

    /// The same where there is not as much as is left to others, or as all that is pending may take.
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

    /// Room for a group of records; if there is none yet, what to wait for without the map.
    fn room_for(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        (lengths, keys): (&[usize], &[&[u8]]),
        purpose: Purpose,
    ) -> Result<Space> {
        let group = Group { lengths, keys };
        match self.store.space_for(map, guard, group, purpose)? {
            Space::Found => Ok(map.begin_group(lengths)?.map_or(Space::Found, Space::Wait)),
            space => Ok(space),
        }
    }

    /// What has failed when it was begun has left the map in between: the pool is to be opened again.
    /// Nothing ends what was begun, and readers are not shown a part of it.
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
