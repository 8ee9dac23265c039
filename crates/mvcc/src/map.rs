//! What a persistent multi-version map is to the engine above it.
//!
//! A map leads from a key and a version to a record in the [`Stream`](crate::volume::stream): of a key it knows
//! the newest version and those older ones that a pinned snapshot still sees. The engine appends records, has
//! the map lead to them, and decides when what is new is made durable; so a map never waits, and is one
//! thread's at a time.

use crate::control::Control;
use crate::volume::overflow::NAME;
use crate::volume::pages::Pages;
use crate::volume::stream::Stream;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_record::HEADER;

/// What comes of a search for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// There are as many as were asked for.
    Found,
    /// There will be when this generation of syncs has ended, or (0) when readers have gone.
    Wait(u64),
    /// There may be: the map asks for the next step. It is to be let go of before, for others.
    Again,
}

/// The pages of a pool, as an opening has found them.
pub(crate) struct Rest {
    pub(crate) pages: Pages,
    /// Pages in which something may live.
    pub(crate) before: Vec<u32>,
    /// Pages in which nothing counts.
    pub(crate) voids: Vec<u32>,
}

/// Some of a map that is verified while those who write wait: all of it at once they would wait for too long.
pub(crate) struct Slice<'d> {
    /// The last key that was looked at; none at the beginning.
    pub(crate) after: Option<Vec<u8>>,
    /// Keys that are still looked at, about; one at least.
    pub(crate) left: usize,
    /// There is no more.
    pub(crate) is_last: bool,
    /// Records that were looked at.
    pub(crate) records: u64,
    /// And bytes.
    pub(crate) bytes: u64,
    /// Is told of damage, and of the key that it is of.
    pub(crate) damaged: &'d mut dyn FnMut(Error, Option<&[u8]>),
}

/// A sorted map of (key, version) → record.
pub(crate) trait Map: Send + Sync {
    /// Where its records are.
    fn stream(&self) -> &Stream;

    /// The same, to append to.
    fn stream_mut(&mut self) -> &mut Stream;

    /// Bytes of a key at most, where pages have so many.
    fn key_len_max(&self, page_size: usize) -> usize {
        page_size / 2 - HEADER - 16 - NAME
    }

    /// True if [`Map::seal`] ends each group, so that no record that is appended does.
    fn ends_groups(&self) -> bool {
        false
    }

    /// Ends what was appended as a group that counts, if the map does so. Before each commit and each cover.
    ///
    /// # Errors
    /// If the medium fails.
    fn seal(&mut self) -> Result<()> {
        Ok(())
    }

    /// Pages that a group takes at most, with what the map writes to end it.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_for(&self, guard: &Guard, group: Group<'_>) -> Result<u32>;

    /// The same for who leaves `reserve` pages to others: it may be more than that, where that makes no difference.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_beside(&self, guard: &Guard, group: Group<'_>, reserve: u32) -> Result<u32> {
        let _any = reserve;
        self.pages_for(guard, group)
    }

    /// Pages that who takes some leaves to others; more than there are if there is no room for what he wants.
    fn reserve(&self, purpose: Purpose) -> u32;

    /// What is appended next are records of these lengths, which are a group. Where a fence is a sync, a generation
    /// that has to end before.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn begin_group(&mut self, lengths: &[usize]) -> Result<Option<u64>> {
        let _any = lengths;
        Ok(None)
    }

    /// The newest version of `key`, a tombstone too.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn newest(&self, guard: &Guard, key: &[u8]) -> Result<Option<u64>>;

    /// The newest version of `key` that is not above `at`.
    ///
    /// # Errors
    /// If the records that it looks at cannot be read.
    fn version_at(&self, guard: &Guard, key: &[u8], at: u64) -> Result<Option<u64>>;

    /// Fails if a version of a key that was found may not be the newest, or, if none was, there may have been one: others
    /// were damaged, and are lost. It need not be asked unless [`Volume::damaged`](crate::volume::Volume) says so.
    ///
    /// # Errors
    /// [`Error::Corrupt`], which says so.
    fn check_sure(&self, guard: &Guard, found: Option<u64>) -> Result<()> {
        let _known = (guard, found);
        Ok(())
    }

    /// Fails if there may have been keys that are not known any more.
    ///
    /// # Errors
    /// [`Error::Corrupt`], which says so.
    fn check_complete(&self) -> Result<()> {
        Ok(())
    }

    /// A record was appended that is the newest version of `key`: leads to it. What no pin sees is superseded.
    ///
    /// # Errors
    /// If the record that it replaces cannot be read.
    fn link(&mut self, guard: &Guard, key: &[u8], new: Linked) -> Result<()>;

    /// True if a delete with this sequence needs no tombstone: it is [removed](Map::remove).
    fn removes(&self, sequence: u64) -> bool {
        let _any = sequence;
        false
    }

    /// Leads from `key` to nothing from this version on, whether it did or not, and needs no tombstone for that. What no
    /// pin sees is superseded.
    ///
    /// # Errors
    /// If the record that it replaces, or the way to it, cannot be read.
    fn remove(&mut self, guard: &Guard, key: &[u8], version: u64, sequence: u64) -> Result<()> {
        let _which = (guard, key, version, sequence);
        Err(Error::Unusable("a delete of this kind of map has a tombstone".to_owned()))
    }

    /// Where a fence is an instruction: true if it is not durable, and not to be seen, that there is no such key; of
    /// none, if that is so of any.
    fn hides_absence(&self, key: Option<&[u8]>) -> bool {
        let _any = key;
        false
    }

    /// Leads to nothing any more, but for pins, from this version on: a group of its own. There are no tombstones of
    /// that.
    ///
    /// # Errors
    /// If the records cannot be read, and if the medium fails.
    fn clear(&mut self, guard: &Guard, version: u64) -> Result<()>;

    /// What was appended before is durable as far as it will be: what was kept for that alone goes.
    fn settle(&mut self);

    /// Shows keys from `from` on, or below `below` in descending order, each with the versions of which the newest
    /// that is not above `at` may be the one, if any is, the newest last; until `visit` says no.
    ///
    /// # Errors
    /// If the map cannot be read, and what `visit` says.
    fn walk(&self, guard: &Guard, way: Way<'_>, at: u64, visit: Visit<'_>) -> Result<()>;

    /// Keeps what is visible at `version` until it is unpinned as often as it was pinned.
    fn pin(&mut self, version: u64);

    /// The opposite. What no pin sees any more is [released](Map::release_some) after that.
    ///
    /// # Errors
    /// If records that are superseded by that cannot be read.
    fn unpin(&mut self, guard: &Guard, version: u64) -> Result<()>;

    /// Supersedes some of what no pin sees since one has gone; false if there is no more.
    ///
    /// # Errors
    /// If records that are superseded by that cannot be read.
    fn release_some(&mut self, guard: &Guard) -> Result<bool> {
        let _nothing = guard;
        Ok(false)
    }

    /// Tombstones with a sequence above this stay; what is dropped raises [`Map::tombstone_horizon`].
    fn hold_tombstones(&mut self, sequence: u64);

    /// No tombstone above this was dropped.
    fn tombstone_horizon(&self) -> u64;

    /// Sees to it that `pages` are free, and `reserve` more: cleans if need be.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn make_space(&mut self, pages: u32, reserve: u32) -> Result<Space>;

    /// A step of cleaning, for who has written: before the commit or the cover of that, which is one of what is moved, too.
    ///
    /// # Errors
    /// If the medium fails.
    fn tidy(&mut self) -> Result<()>;

    /// False if an opening has left something for later.
    fn is_whole(&self) -> bool {
        true
    }

    /// What an opening has left for later, if it has. While others read, and nobody writes: before anything else is asked of
    /// the map it [takes](Map::take_rest) that.
    ///
    /// # Errors
    /// If it cannot be read.
    fn rest(&self) -> Result<Option<Rest>> {
        Ok(None)
    }

    /// Takes what was left for later; durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    fn take_rest(&mut self, rest: Rest) -> Result<()> {
        drop(rest);
        Ok(())
    }

    /// Counts some of what an opening has found and did not count; false if there is no more.
    fn count_some(&mut self) -> bool {
        false
    }

    /// Looks at some of what is there; where to go on is in `slice`.
    fn verify(&self, guard: &Guard, slice: &mut Slice<'_>);

    /// For tests: bytes of what is there, tombstones aside, after all that is counted was counted again; what is
    /// wrong if that is not the same.
    fn audit(&self, guard: &Guard) -> std::result::Result<u64, String>;

    /// Live records.
    fn len(&self) -> u64;

    /// Pages that were cleaned, and bytes that were moved for that.
    fn cleaned(&self) -> (u64, u64);

    /// Bytes of DRAM for what is in memory.
    fn dram_bytes(&self) -> u64;

    /// The log that it is, too, if its pool is one of a log.
    fn log(&self) -> Option<&dyn Log> {
        None
    }

    /// The same, to append to.
    fn log_mut(&mut self) -> Option<&mut dyn Log> {
        None
    }
}

/// A map that is a log, too: beside what is applied there are *pending* entries, which may be taken back. Whatever
/// changes it appends a control record, at once or before the next commit, for which there are pages; if it fails
/// otherwise, it is to be opened again.
pub(crate) trait Log {
    /// What the log says of itself.
    fn control(&self) -> &Control;

    /// Where the records of a pending entry are.
    ///
    /// # Errors
    /// If they cannot be found.
    fn pending(&self, guard: &Guard, timestamp: u64) -> Result<Option<Places>>;

    /// Keys for which an application of all that is pending writes pages.
    fn pending_keys(&self) -> u64;

    /// Bytes of the record that closes an entry with a header of so many.
    fn closing_len(&self, header: usize) -> usize;

    /// The changes of the next timestamp were appended as a part of a group, in the order of their keys, each key once:
    /// ends the entry. It is pending.
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

    /// Pages that it takes at most to apply the entries up to `to`, or, if that is what is applied, to say something else:
    /// of what was left to that by who has appended, what has to be there now. A control record has `record` bytes.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn pages_to_apply(&self, guard: &Guard, to: u64, record: usize) -> Result<u32>;

    /// The pending entries up to `to` are applied: the map leads to them. Where a fence is an instruction they are
    /// durable when it returns; where it is a sync, one covers them.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn apply(&mut self, guard: &Guard, to: u64) -> Result<()>;

    /// The pending entries above `to` never were.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn roll_back(&mut self, guard: &Guard, to: u64) -> Result<()>;

    /// Says something else of itself.
    ///
    /// # Errors
    /// If the medium fails.
    fn set_control(&mut self, control: Control) -> Result<()>;

    /// Nothing is there any more, but for pins: a snapshot comes, whose records are linked as others are.
    ///
    /// # Errors
    /// If records cannot be read, and if the medium fails.
    fn begin_install(&mut self, guard: &Guard) -> Result<()>;

    /// The oldest version that is pinned.
    fn oldest_pin(&self) -> Option<u64>;
}

/// What a [walk](Map::walk) shows a key and its versions to: false if it is to end.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u64]) -> Result<bool>;

/// Where the records of an entry are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// Those of its changes, in the order of their keys.
    pub(crate) changes: Vec<u64>,
    /// The one that closes it.
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

/// What pages are wanted for, the least first: each leaves some to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// That all is gone.
    Clear,
    /// Deletes, and what the caller wants to succeed before all else.
    Delete,
    Overwrite,
    Insert,
}

/// What a write is about to append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'w> {
    /// Bytes of its records.
    pub(crate) lengths: &'w [usize],
    /// Their keys.
    pub(crate) keys: &'w [&'w [u8]],
}

impl Group<'_> {
    /// No record: what is to be ended alone.
    pub(crate) const EMPTY: Self = Self { lengths: &[], keys: &[] };
}

/// A record that was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linked {
    pub(crate) offset: u64,
    pub(crate) version: u64,
    /// As callers see it.
    pub(crate) sequence: u64,
    /// Bytes in the stream.
    pub(crate) len: u32,
    /// It is no tombstone.
    pub(crate) is_put: bool,
}

/// Which way a walk goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way<'a> {
    /// Up from a key, which is shown.
    Up(&'a [u8]),
    /// Down from a bound, which is not shown; none: from the end.
    Down(Option<&'a [u8]>),
}

/// How a pool is opened.
pub(crate) struct Opening<'a> {
    pub(crate) was_closed: bool,
    /// Pages with a lesser birth were ended durably by a close.
    pub(crate) births_closed: u64,
    /// New births begin here.
    pub(crate) first_birth: u64,
    /// Tombstones with a sequence above this stay.
    pub(crate) held: u64,
    /// No tombstone above this was dropped before.
    pub(crate) horizon: u64,
    /// Says durably that the pool is open. To be called when it was found sound, and before anything is stored: a
    /// pool that was closed, and is damaged, stays one that was closed, and is refused by the next opening too.
    pub(crate) begin: &'a dyn Fn() -> Result<()>,
    pub(crate) progress: &'a (dyn Fn(Progress) + Sync),
}
