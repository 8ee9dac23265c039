//! The interface of a persistent multi-version map to the engine above it.
//!
//! A map leads from a key and a version to a record in the [`Stream`](crate::volume::stream): of each key it knows
//! the newest version, and the older ones that a pinned snapshot still sees. The engine appends records, makes the
//! map lead to them, and decides when new records are made durable; so a map never waits, and has one writer at a
//! time.

use crate::control::Control;
use crate::volume::overflow::NAME;
use crate::volume::pages::Pages;
use crate::volume::stream::Stream;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_record::HEADER;

/// The result of a search for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// As many pages as were asked for are free.
    Found,
    /// As many will be: this generation of syncs ends next, or (0) readers go.
    Coming(u64),
    /// They may be after another call, when this generation of syncs has ended, or (0) readers have gone.
    Wait(u64),
    /// They may be after another call. The map is to be released in between, for other threads; so many pages were
    /// cleaned.
    Again(u32),
}

impl Space {
    /// The result of a search that has done what it can for these pages, of which `wanted` are to be usable.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if none is coming.
    pub(crate) fn awaited(stream: &Stream, pages: u32, wanted: u32) -> Result<Self> {
        let coming = stream.coming();
        if coming == 0 {
            return Err(stream.pages.no_space(pages));
        }
        let generation = stream.waits_for().unwrap_or(0);
        let is_enough = stream.pages_usable() + coming >= wanted;
        Ok(if is_enough { Self::Coming(generation) } else { Self::Wait(generation) })
    }
}

/// The pages of a pool, as an open has found them.
pub(crate) struct Rest {
    pub(crate) pages: Pages,
    /// Pages that may have live records.
    pub(crate) before: Vec<u32>,
    /// Pages in which no record counts.
    pub(crate) voids: Vec<u32>,
}

/// A part of the verification of a map, during which writers wait: for the whole map they would wait too long.
pub(crate) struct Slice<'d> {
    /// The last key that was verified; none at the beginning.
    pub(crate) after: Option<Vec<u8>>,
    /// How many keys this slice still verifies, about; at least one.
    pub(crate) left: usize,
    /// No keys are left.
    pub(crate) is_last: bool,
    /// Records that were verified.
    pub(crate) records: u64,
    /// Bytes that were verified.
    pub(crate) bytes: u64,
    /// Called with each damage, and with the key that it concerns.
    pub(crate) damaged: &'d mut dyn FnMut(Error, Option<&[u8]>),
}

/// A sorted map of (key, version) → record.
pub(crate) trait Map: Send + Sync {
    /// The stream that has its records.
    fn stream(&self) -> &Stream;

    /// The same, to append to.
    fn stream_mut(&mut self) -> &mut Stream;

    /// The most bytes of a key, for pages of this size.
    fn key_len_max(&self, page_size: usize) -> usize {
        page_size / 2 - HEADER - 16 - NAME
    }

    /// True if [`Map::seal`] ends each group, so that no appended record does.
    fn ends_groups(&self) -> bool {
        false
    }

    /// Ends the appended records as a group that counts, if this kind of map does so. Called before each commit and
    /// each cover.
    ///
    /// # Errors
    /// If the medium fails.
    fn seal(&mut self) -> Result<()> {
        Ok(())
    }

    /// The most pages that a group takes, including those that the map writes to end it.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_for(&self, guard: &Guard, group: Group<'_>) -> Result<u32>;

    /// The same for a caller that leaves `reserve` pages to others: it may be more than that where it makes no
    /// difference.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_beside(&self, guard: &Guard, group: Group<'_>, reserve: u32) -> Result<u32> {
        let _any = reserve;
        self.pages_for(guard, group)
    }

    /// Pages that a request for this purpose leaves to others; more than there are if there is no room for it.
    fn reserve(&self, purpose: Purpose) -> u32;

    /// Announces that the next records have these lengths and form a group. Where a fence is a sync, returns a
    /// generation that has to end first, if any.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn begin_group(&mut self, lengths: &[usize]) -> Result<Option<u64>> {
        let _any = lengths;
        Ok(None)
    }

    /// The newest version of `key`, which may be a tombstone.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn newest(&self, guard: &Guard, key: &[u8]) -> Result<Option<u64>>;

    /// The newest version of `key` that is not above `at`.
    ///
    /// # Errors
    /// If the records that are needed for it cannot be read.
    fn version_at(&self, guard: &Guard, key: &[u8], at: u64) -> Result<Option<u64>>;

    /// Fails if the version of a key that was found may not be the newest, or, if none was found, if there may have
    /// been one: damaged records were lost. It need not be called unless [`Volume::damaged`](crate::volume::Volume)
    /// is set.
    ///
    /// # Errors
    /// [`Error::Corrupt`] in that case.
    fn check_sure(&self, guard: &Guard, found: Option<u64>) -> Result<()> {
        let _known = (guard, found);
        Ok(())
    }

    /// Fails if there may have been keys that are no longer known.
    ///
    /// # Errors
    /// [`Error::Corrupt`] in that case.
    fn check_complete(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the map lead to a record that was appended as the newest version of `key`. Supersedes versions that no
    /// pin sees.
    ///
    /// # Errors
    /// If the record that it replaces cannot be read.
    fn link(&mut self, guard: &Guard, key: &[u8], new: Linked) -> Result<()>;

    /// True if a delete with this sequence needs no tombstone: then the key is [removed](Map::remove).
    fn removes(&self, sequence: u64) -> bool {
        let _any = sequence;
        false
    }

    /// Makes the map lead from `key` to no record from this version on, whether it did before or not; needs no
    /// tombstone. Supersedes versions that no pin sees.
    ///
    /// # Errors
    /// If the record that it replaces, or the way to it, cannot be read.
    fn remove(&mut self, guard: &Guard, key: &[u8], version: u64, sequence: u64) -> Result<()> {
        let _which = (guard, key, version, sequence);
        Err(Error::Unusable("a delete of this kind of map has a tombstone".to_owned()))
    }

    /// Where a fence is an instruction: true if the absence of this key is not durable, and so not to be seen;
    /// without a key, if that holds for any key.
    fn hides_absence(&self, key: Option<&[u8]>) -> bool {
        let _any = key;
        false
    }

    /// Makes the map lead to no records from this version on, except for pins: a group of its own, without
    /// tombstones.
    ///
    /// # Errors
    /// If the records cannot be read, and if the medium fails.
    fn clear(&mut self, guard: &Guard, version: u64) -> Result<()>;

    /// All appended records are as durable as they will be: drops state that was kept only until then.
    fn settle(&mut self);

    /// Shows keys from a key on, or below a bound in descending order, until `visit` returns false. Each is shown
    /// with versions, the newest last; the one visible at `at` is the newest of them that is not above `at`, if any
    /// is. Keys that cannot be found are shown as a [`Gap`].
    ///
    /// # Errors
    /// If the map cannot be read, and the error of `visit`.
    fn walk(&self, guard: &Guard, way: Way<'_>, at: u64, visit: Visit<'_>) -> Result<()>;

    /// Keeps the versions that are visible at `version` until it is unpinned as often as it was pinned.
    fn pin(&mut self, version: u64);

    /// The opposite of [`Map::pin`]. Versions that no pin sees any more are [released](Map::release_some) after that.
    fn unpin(&mut self, version: u64);

    /// Supersedes some of the versions that no pin sees since one has gone; false if none are left.
    ///
    /// # Errors
    /// If records that are superseded by that cannot be read.
    fn release_some(&mut self, guard: &Guard) -> Result<bool> {
        let _nothing = guard;
        Ok(false)
    }

    /// True if [`Map::release_some`] has something to do.
    fn is_release_due(&self) -> bool {
        false
    }

    /// Holds tombstones with a sequence above this; dropping others raises [`Map::tombstone_horizon`]. True if more
    /// have to be let go, by another call: the map is released in between.
    fn hold_tombstones(&mut self, sequence: u64) -> bool;

    /// No tombstone with a sequence above this was dropped.
    fn tombstone_horizon(&self) -> u64;

    /// Ensures that `pages` pages are free, and `reserve` more; cleans if need be.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn make_space(&mut self, pages: u32, reserve: u32) -> Result<Space>;

    /// A step of cleaning, called after a write and before its commit or cover, which covers the moved records, too.
    ///
    /// # Errors
    /// If the medium fails.
    fn tidy(&mut self) -> Result<()>;

    /// False if an open has deferred some of its work.
    fn is_whole(&self) -> bool {
        true
    }

    /// The work that an open has deferred, if any. Called while threads may read and none writes; the map has to
    /// [take](Map::take_rest) the result before any other change.
    ///
    /// # Errors
    /// If it cannot be read.
    fn rest(&self) -> Result<Option<Rest>> {
        Ok(None)
    }

    /// Takes over deferred work; durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    fn take_rest(&mut self, rest: Rest) -> Result<()> {
        drop(rest);
        Ok(())
    }

    /// Counts some of the live bytes that an open has found and not counted; false if none are left.
    fn count_some(&mut self) -> bool {
        false
    }

    /// Verifies some of the records; `slice` says where to continue.
    fn verify(&self, guard: &Guard, slice: &mut Slice<'_>);

    /// For tests: counts all live bytes again. Returns those of live records without tombstones, or a description of
    /// the difference to the counts that are kept.
    fn audit(&self, guard: &Guard) -> std::result::Result<u64, String>;

    /// The number of live records.
    fn len(&self) -> u64;

    /// Pages that were cleaned, and bytes that were moved for that.
    fn cleaned(&self) -> (u64, u64);

    /// Bytes of DRAM that the map takes.
    fn dram_bytes(&self) -> u64;

    /// The map as a log, if its pool is one of a log.
    fn log(&self) -> Option<&dyn Log> {
        None
    }

    /// The same, to append to.
    fn log_mut(&mut self) -> Option<&mut dyn Log> {
        None
    }
}

/// A map that is also a log: beside the applied entries it has *pending* ones, which may be taken back. Each change
/// appends a control record, at once or before the next commit; the caller has ensured that there are pages for it.
/// If a change fails for another reason, the map has to be opened again.
pub(crate) trait Log {
    /// The state of the log.
    fn control(&self) -> &Control;

    /// The offsets of the records of a pending entry.
    ///
    /// # Errors
    /// If they cannot be found.
    fn pending(&self, guard: &Guard, timestamp: u64) -> Result<Option<Places>>;

    /// Keys for which applying all pending entries writes pages.
    fn pending_keys(&self) -> u64;

    /// Bytes of the record that closes an entry whose header has so many bytes.
    fn closing_len(&self, header: usize) -> usize;

    /// Ends an entry, whose changes were appended as a part of a group, in the order of their keys, each key once.
    /// The entry is pending then, with the next timestamp.
    ///
    /// # Errors
    /// If the medium fails.
    fn close_entry(
        &mut self,
        timestamp: u64,
        header: &[u8],
        changes: Vec<Part>,
        keys: &[&[u8]],
    ) -> Result<()>;

    /// The most pages needed to apply the entries up to `to`, or, if `to` is applied, to write another control
    /// record: of the pages that appends have left for it, those that have to be free now. A control record has
    /// `record` bytes.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_to_apply(&self, guard: &Guard, to: u64, record: usize) -> Result<u32>;

    /// Applies the pending entries up to `to`: the map leads to them. Where a fence is an instruction, the entries
    /// are durable when it returns; where it is a sync, a sync covers them.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn apply(&mut self, guard: &Guard, to: u64) -> Result<()>;

    /// Takes back the pending entries above `to`.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn roll_back(&mut self, guard: &Guard, to: u64) -> Result<()>;

    /// Replaces the state of the log.
    ///
    /// # Errors
    /// If the medium fails.
    fn set_control(&mut self, control: Control) -> Result<()>;

    /// Empties the map, except for pins, for a snapshot whose records are linked as others are.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn begin_install(&mut self, guard: &Guard) -> Result<()>;

    /// The oldest version that is pinned.
    fn oldest_pin(&self) -> Option<u64>;
}

/// Called by a [walk](Map::walk) with a key and its versions, or with the first of the keys of a gap; returns false
/// to end the walk.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&[u8], Versions<'_>) -> Result<bool>;

/// The offsets of the versions of a key.
pub(crate) type Versions<'a> = std::result::Result<&'a [u64], Gap<'a>>;

/// Keys whose versions cannot be found, because what leads to them is damaged.
pub(crate) struct Gap<'a> {
    pub(crate) error: Error,
    /// The first key behind them; none if they are the last.
    pub(crate) end: Option<&'a [u8]>,
}

/// The offsets of the records of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// The records of its changes, in the order of their keys.
    pub(crate) changes: Vec<u64>,
    /// The record that closes it.
    pub(crate) closing: u64,
}

/// A change of a pending entry, as it was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    /// Bytes in the stream.
    pub(crate) len: u32,
    /// Its value has pages of its own.
    pub(crate) is_large: bool,
}

/// The purposes of requests for pages, the least first: each leaves some pages to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// A clear.
    Clear,
    /// Deletes, and writes that the caller wants to succeed before all others.
    Delete,
    Overwrite,
    Insert,
}

/// The records that a write is about to append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'w> {
    /// Bytes of its records.
    pub(crate) lengths: &'w [usize],
    /// Their keys.
    pub(crate) keys: &'w [&'w [u8]],
    /// Pages of large values beside them, which were not taken yet.
    pub(crate) apart: u32,
}

impl Group<'_> {
    /// No records: only the records appended before are ended.
    pub(crate) const EMPTY: Self = Self { lengths: &[], keys: &[], apart: 0 };
}

/// A record that was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linked {
    pub(crate) offset: u64,
    pub(crate) version: u64,
    /// The sequence that callers see.
    pub(crate) sequence: u64,
    /// Bytes in the stream.
    pub(crate) len: u32,
    /// It is no tombstone.
    pub(crate) is_put: bool,
}

/// The direction of a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way<'a> {
    /// Upwards from a key, which is shown.
    Up(&'a [u8]),
    /// Downwards from a bound, which is not shown; none: from the end.
    Down(Option<&'a [u8]>),
}

/// The conditions under which a pool is opened.
pub(crate) struct Opening<'a> {
    pub(crate) was_closed: bool,
    /// Pages with a lesser birth were ended durably by a close.
    pub(crate) births_closed: u64,
    /// The first birth to give out.
    pub(crate) first_birth: u64,
    /// Tombstones with a sequence above this are held.
    pub(crate) held: u64,
    /// No tombstone with a sequence above this was dropped before.
    pub(crate) horizon: u64,
    /// Marks the pool durably as open. To be called when the pool was found sound, and before anything is stored: a
    /// pool that was closed and is damaged stays closed, and the next open refuses it, too.
    pub(crate) begin: &'a dyn Fn() -> Result<()>,
    pub(crate) progress: &'a (dyn Fn(Progress) + Sync),
}
