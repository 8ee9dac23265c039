//! Writing, and making room for it. A write reads the record that it replaces, so that this layer is above the
//! [reader](crate::read).
//!
//! ```text
//!   check ─▶ lock the leaf ─▶ look at the old record ─▶ append the new one ─▶ fence ─▶ publish its place
//! ```
//!
//! The writer holds the lock of the leaf from the look at the old record until the place names the new one, so that
//! a read-modify-write is one step and versions follow the order of publication. (Where a fence is a sync it is
//! waited for last of all: see [`durable`](crate::volume::durable).) [`Writer::look_and_write`] does these steps;
//! beside it there are
//!
//! - [`ahead`]: a put that does not depend on the old record appends first and looks while the medium works. It
//!   declines a put that needs more than an append, which then looks at the old record first;
//! - [`sight`]: the steps of a write for which the look finds something missing: pages for its value or its key,
//!   which are written before it looks again; or room in its leaf, which is rewritten with the record in it;
//! - [`batch`]: the same steps in many leaves at once.
//!
//! If there is no page for that, it is [searched](page_search) for.

mod ahead;
mod batch;
pub(crate) mod clear;
pub(crate) mod compact;
mod merge;
mod page_search;
pub(crate) mod plan;
mod publication;
mod sight;

use crate::read::Reader;
use crate::read::get::Whole;
use crate::volume::keys::Rest;
use batch::Step;
use compact::Compaction;
use coreplane_engine::{Beside, Brief, Error, KEY_LEN_MAX, Outcome, Result, WriteOptions, Written};
use coreplane_pmem::epoch;
use coreplane_record::{HEADER, Header, Kind};
use page_search::PageSearch;
use parking_lot::Mutex;
use plan::{Decide, Plan, RestsOn};
use sight::{Attempt, Preparation, Prepared};
use std::borrow::Cow;
use std::ops::Deref;

/// The writing layer.
pub(crate) struct Writer {
    reader: Reader,
    compaction: Compaction,
    /// Held by a search for pages, for the replacement of other records.
    pub(crate) search_turn: Mutex<()>,
    /// Held by the thread that closes or empties the store, while all leaves are shut.
    pub(crate) whole: Mutex<()>,
    /// The number of runs of leaves that were read to be merged.
    #[cfg(test)]
    pub(crate) merge_tries: std::sync::atomic::AtomicU32,
}

impl Deref for Writer {
    type Target = Reader;

    #[inline(always)]
    fn deref(&self) -> &Reader {
        &self.reader
    }
}

/// Sequences that callers give are below this.
const SEQUENCE_MAX: u64 = 1 << 61;

impl Writer {
    pub(crate) fn new(reader: Reader) -> Self {
        Self {
            reader,
            compaction: Compaction::default(),
            search_turn: Mutex::new(()),
            whole: Mutex::new(()),
            #[cfg(test)]
            merge_tries: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Puts `key`, regardless of the old record.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.check_write(key, options)?;
        match self.put_ahead((key, value), options, None)? {
            // Word by word: see Volume::finish.
            Some(Written { sequence, ticket, replaced }) if self.early.is_none() => {
                Ok(Outcome::Written(Written { sequence, ticket, replaced }))
            }
            Some(written) => self.finish(Outcome::Written(written), options),
            None => self.put_in_sight(key, value, options),
        }
    }

    /// The same, with the result in two words; no more than an append with `beside`.
    pub(crate) fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        let is_alone = beside.is_none();
        if let Err(error) = self.check_write(key, options) {
            return Brief::of(Err(error));
        }
        let put = match beside {
            None => self.put_ahead((key, value), options, None),
            beside => self.put_ahead((key, value), options, beside),
        };
        match put {
            Ok(Some(written)) if self.early.is_none() => {
                if written.replaced {
                    Brief::Replaced
                } else {
                    Brief::New
                }
            }
            Ok(Some(written)) => Brief::of(self.finish(Outcome::Written(written), options)),
            Ok(None) if is_alone => Brief::of(self.put_in_sight(key, value, options)),
            Ok(None) => Brief::Declined,
            Err(error) => Brief::of(Err(error)),
        }
    }

    /// Writes `key` as `decide` decides.
    pub(crate) fn write(
        &self,
        key: &[u8],
        what: (&WriteOptions, RestsOn),
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        self.check_write(key, what.0)?;
        self.write_in_sight(key, what, decide)
    }

    /// The checks of each write, before anything else, except that of its value, which is known only when it is
    /// decided.
    ///
    /// # Errors
    /// If writes have stopped, or this one is invalid.
    #[inline(always)]
    fn check_write(&self, key: &[u8], options: &WriteOptions) -> Result<()> {
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)
    }

    /// Makes a put that [`ahead`] has declined.
    fn put_in_sight(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let expires_at = options.expires_at;
        let mut plan =
            |_: Option<&Whole<'_>>| Ok(Plan::Put { value: Cow::Borrowed(value), expires_at });
        self.write_in_sight(key, (options, RestsOn::Nothing), &mut plan)
    }

    /// Looks and writes until nothing is missing, and pays for the rewritten leaves.
    fn write_in_sight(
        &self,
        key: &[u8],
        what: (&WriteOptions, RestsOn),
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        let mut search = PageSearch::new(self);
        let outcome = self.write_at_last(key, what, &mut search, decide);
        search.pay();
        self.finish(outcome?, what.0)
    }

    /// Looks and writes until nothing is missing.
    fn write_at_last<'s>(
        &'s self,
        key: &[u8],
        (options, rests_on): (&WriteOptions, RestsOn),
        search: &mut PageSearch<'s>,
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        let mut preparation = Preparation::default();
        loop {
            let ahead = (&mut preparation, &mut *search);
            let provided = match self.look_and_write(key, (options, rests_on), ahead, decide) {
                Ok(Attempt::Done(outcome)) => return Ok(outcome),
                Ok(attempt) => self.provide(key, options, (&mut preparation, search), attempt),
                Err(error) => Err(error),
            };
            match provided {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                // A value that is written stays for the next look, unless no page is found besides its own.
                Err(refused) => search.run(refused, &mut || preparation.value.take().is_some())?,
            }
        }
    }

    /// One write, with a look at the record that it replaces: done, or what is missing.
    fn look_and_write<'s>(
        &'s self,
        key: &[u8],
        (options, rests_on): (&WriteOptions, RestsOn),
        (preparation, search): (&mut Preparation<'s>, &mut PageSearch<'s>),
        decide: Decide<'_, '_>,
    ) -> Result<Attempt> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, HEADER + key.len())?;
        // The lookup, and the check whether the write may rest on its result.
        let standing = self.look_to_write(&guard, locked.page, locked.leaf, key)?;
        if let Some(outcome) = self.not_newer(&locked, &standing, options)? {
            return Ok(Attempt::Done(outcome));
        }
        if rests_on != RestsOn::Nothing {
            self.check_old(&guard, &locked, key, &standing)?;
        }
        // The new value, decided from the live record.
        let live = standing.old.filter(|_| standing.live);
        let seen = live.map(|view| view.header.version);
        // Pages that were written for an outdated decision are given back.
        let ready = preparation.value.take().filter(|ready| ready.is_for(seen, rests_on));
        let mut header = Header { sequence: options.sequence, ..Header::put(0) };
        let value = match &ready {
            Some(Prepared { overflow, expires_at, .. }) => {
                (header.large, header.expires_at) = (true, *expires_at);
                Cow::Borrowed(overflow.name())
            }
            None => {
                let live = self.asked(&guard, &locked, (live, rests_on))?;
                match decide(live.as_ref())? {
                    Plan::Refuse(outcome) => {
                        let ticket = self.refused(&locked, &standing, options)?;
                        return Ok(Attempt::Done(outcome(ticket)));
                    }
                    Plan::Put { value, expires_at } => {
                        header.expires_at = expires_at;
                        value
                    }
                    Plan::Delete => {
                        header.kind = Kind::Delete;
                        Cow::Borrowed([].as_slice())
                    }
                }
            }
        };
        if !header.large && value.len() > self.inline_max() {
            self.check_value(value.len())?;
            return Ok(Attempt::NeedOverflow(value.into_owned(), seen, header.expires_at));
        }
        let known = standing.old.filter(|_| !standing.is_hurt);
        let field = match (&known, &preparation.rest) {
            _ if !self.is_long(key) => key,
            (Some(old), _) => old.key(),
            (None, Some(rest)) => rest.field(),
            (None, None) => {
                drop(value);
                preparation.value = ready;
                return Ok(Attempt::NeedRest(header.kind));
            }
        };
        // Room for it.
        let is_short = header.record_len(field, value.len()) > self.room(&locked);
        let place = standing.place.or_else(|| self.vacancy(&locked));
        let Some(place) = place.filter(|_| !is_short && !standing.is_hurt) else {
            let value = if header.large { Vec::new() } else { value.into_owned() };
            let known = known.filter(|_| self.is_long(key)).map(|old| old.key().into());
            let (overflow, rest) = (ready.map(|ready| ready.overflow), preparation.rest.take());
            let step = Step { key, value: &value, header, overflow, known, rest };
            let ahead = (options, preparation);
            return self.write_with_leaf(&guard, (locked, standing), (step, seen), ahead, search);
        };
        // The record, its fence, its place.
        let attempt = self.append(locked, (field, &value), (header, options), &standing, place)?;
        drop(value);
        let rest = preparation.rest.take().filter(|_| standing.old.is_none());
        rest.into_iter().for_each(Rest::own);
        ready.into_iter().for_each(|ready| ready.overflow.own());
        if let Some(old) = standing.old.filter(|old| old.header.large) {
            self.retire_overflow_after(&guard, &old);
        }
        Ok(attempt)
    }

    /// # Errors
    /// If the value is too long.
    pub(crate) fn check_value(&self, len: usize) -> Result<()> {
        let max = coreplane_engine::VALUE_LEN_MAX;
        if len > max {
            return Err(Error::ValueTooLong { len, max });
        }
        Ok(())
    }

    /// # Errors
    /// If the key is too long.
    fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = KEY_LEN_MAX;
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    /// # Errors
    /// If a sequence is given that is too great.
    fn check_sequence(&self, given: Option<u64>) -> Result<()> {
        if given.is_some_and(|given| given >= SEQUENCE_MAX) {
            let operation = "a given sequence of 2^61 or more";
            return Err(Error::Unsupported { engine: crate::volume::KIND, operation });
        }
        Ok(())
    }
}
