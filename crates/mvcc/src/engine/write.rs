//! A write of one key.
//!
//! ```text
//!   look at the newest version ─▶ decide ─▶ pages ─▶ append ─▶ link ─▶ durable ─▶ (without the map) wait
//! ```
//!
//! Anything that has to be waited for, or takes long, is done without holding the map, and the write looks again:
//! pages that readers hold or that a sync will free, a large value that is written to pages of its own, an expiry
//! that has to be made known durably.

use super::durable::Writing;
use super::patience::Patience;
use super::{Count, Store};
use crate::map::{Group, Linked, Purpose, Space};
use crate::volume::Volume;
use crate::volume::overflow::NAME;
use coreplane_engine::{Error, Outcome, Record, Result, Ticket, UnixMillis, WriteOptions, Written};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{HEADER, Header, Kind, View, sync_failed};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// The decision of a write about the record that it has seen.
pub(super) enum Plan<'v> {
    /// Write nothing, and return this outcome.
    Refuse(fn(Ticket) -> Outcome),
    /// Write this value.
    Put { value: Cow<'v, [u8]>, expires_at: Option<UnixMillis> },
    /// Write a tombstone.
    Delete,
}

/// The kind of a write.
pub(super) enum Change<'d, 'v> {
    /// An unconditional put: the record that it replaces is not read, and may be damaged.
    Put { value: &'v [u8], expires_at: Option<UnixMillis> },
    /// An unconditional delete. It deletes a key that is known to be absent only if `always`.
    Delete { always: bool },
    /// A decision based on the live record. It may be asked for more than once.
    Decide(&'d mut dyn FnMut(Option<&Record<'_>>) -> Result<Plan<'v>>),
}

/// The result of one attempt.
enum Attempt {
    Done(Outcome),
    /// The expiry has passed, which has to be made known.
    Expired(UnixMillis),
    /// Pages have to be waited for.
    Wait(Space),
    /// The value has to be written to pages of its own; and the version that was seen.
    Large(Vec<u8>, Option<u64>),
}

/// A large value that was written, and that no record names yet.
pub(crate) struct Prepared {
    pub(crate) name: [u8; NAME],
    pub(crate) pages: Vec<u32>,
    /// The version that was seen when the write was decided.
    seen: Option<u64>,
}

/// The newest version of a key, as a write finds it.
pub(super) struct Standing<'g> {
    /// None if there is none, or if it cannot be read.
    pub(super) view: Option<View<'g>>,
    /// The offset of the record, if it cannot be read.
    unreadable: Option<u64>,
    pub(super) is_live: bool,
    /// An error if it may not be the newest or cannot be read, or if it is unknown whether there is one.
    pub(super) sure: Result<()>,
    pub(super) ticket: Ticket,
}

impl Store {
    /// The longest key.
    pub(crate) fn key_len_max(&self) -> usize {
        self.key_len_max
    }

    /// The longest value that is stored in its record.
    pub(crate) fn inline_max(&self, key: &[u8]) -> usize {
        (self.volume.space.page_size() as usize / 2 - HEADER - 16)
            .saturating_sub(key.len())
            .max(NAME)
    }

    /// # Errors
    /// If key or value are too long.
    pub(crate) fn check_lengths(&self, key: &[u8], value_len: usize) -> Result<()> {
        if key.len() > self.key_len_max() {
            return Err(Error::KeyTooLong { len: key.len(), max: self.key_len_max() });
        }
        if value_len > super::face::VALUE_LEN_MAX {
            return Err(Error::ValueTooLong { len: value_len, max: super::face::VALUE_LEN_MAX });
        }
        Ok(())
    }

    /// Writes `key` according to `change`.
    pub(super) fn write(
        &self,
        key: &[u8],
        options: &WriteOptions,
        mut change: Change<'_, '_>,
    ) -> Result<Outcome> {
        self.check_lengths(key, 0)?;
        Volume::check_sequence(options.sequence)?;
        let mut prepared: Option<Prepared> = None;
        let mut patience = Patience::default();
        let outcome = loop {
            match self.attempt(key, options, &mut prepared, &mut change) {
                Ok(Attempt::Done(outcome)) => break Ok(outcome),
                Ok(Attempt::Expired(at)) => drop(self.volume.has_passed(at)?),
                Ok(Attempt::Wait(space)) => match patience.wait(self, space) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Ok(Attempt::Large(value, seen)) => {
                    self.drop_prepared(&mut prepared);
                    let purpose = purpose_of(Kind::Put, seen.is_some(), options.use_reserve);
                    prepared = Some(Prepared { seen, ..self.prepare(&value, purpose)? });
                }
                Err(error) => break Err(error),
            }
        };
        self.drop_prepared(&mut prepared);
        self.finish(outcome?, options)
    }

    /// One attempt: the write, if nothing is missing.
    fn attempt(
        &self,
        key: &[u8],
        options: &WriteOptions,
        prepared: &mut Option<Prepared>,
        change: &mut Change<'_, '_>,
    ) -> Result<Attempt> {
        let mut map = self.writing()?;
        self.check_writable()?;
        let guard = epoch::pin();
        let mut standing = match self.look(&mut map, &guard, key)? {
            Ok(standing) => standing,
            Err(at) => return Ok(Attempt::Expired(at)),
        };
        if let Some(newer) = self.newer(&guard, &standing, key, options.sequence) {
            let ticket = self.refusal(&map, &standing, options);
            return Ok(Attempt::Done(Outcome::NotNewer(newer, ticket)));
        }
        let live = standing.view.filter(|_| standing.is_live);
        let seen = live.map(|view| view.header.version);
        if let Err(error) = std::mem::replace(&mut standing.sure, Ok(())) {
            Self::be_unsure(error, change)?;
        }
        let plan = self.plan(&guard, live, standing.ticket, change)?;
        let (value, expires_at, kind) = match plan {
            Plan::Refuse(outcome) => {
                return Ok(Attempt::Done(outcome(self.refusal(&map, &standing, options))));
            }
            Plan::Put { value, expires_at } => (value, expires_at, Kind::Put),
            Plan::Delete => (Cow::Borrowed([].as_slice()), None, Kind::Delete),
        };
        self.check_lengths(key, value.len())?;
        let is_large = value.len() > self.inline_max(key);
        // An unconditional put is right whatever the current record is.
        let depends = !matches!(change, Change::Put { .. });
        if is_large && prepared.as_ref().is_none_or(|it| depends && it.seen != seen) {
            return Ok(Attempt::Large(value.into_owned(), seen));
        }
        let purpose = purpose_of(kind, standing.is_live, options.use_reserve);
        let header = Header {
            kind,
            large: is_large,
            expires_at,
            sequence: options.sequence,
            ..Header::put(0)
        };
        let value_len = if is_large { NAME } else { value.len().max(8) };
        let len = self.len_of(&map, &header, key, value_len);
        let lengths = if len > 0 { &[len][..] } else { &[] };
        let group = Group { lengths, keys: &[key], apart: 0 };
        let space = self.space_for(&mut map, &guard, group, purpose)?;
        if space != Space::Found {
            return Ok(Attempt::Wait(space));
        }
        let version = self.draw_version(options.sequence)?;
        // A value that a later decision does not use is dropped at the end.
        let name = prepared.take_if(|_| is_large);
        let body = name.as_ref().filter(|_| is_large).map_or(&*value, |it| &it.name);
        let header = Header { version, ..header };
        let sequence = if len == 0 {
            self.remove(&mut map, &guard, &header, key)?
        } else {
            let new = self.append(&mut map, &guard, header, key, body)?;
            if let Some(it) = name {
                map.stream_mut().adopt_chain(&it.pages);
            }
            map.link(&guard, key, new)?;
            new.sequence
        };
        self.count(kind, key.len() + value.len());
        map.tidy()?;
        let ticket = self.end_group(&mut map, len, options)?;
        let replaced = standing.is_live;
        Ok(Attempt::Done(Outcome::Written(Written { sequence, ticket, replaced })))
    }

    /// Changes a key whose newest record is not known for sure: an unconditional change goes on, and a delete deletes
    /// the record that may exist.
    #[cold]
    fn be_unsure(error: Error, change: &mut Change<'_, '_>) -> Result<()> {
        match change {
            Change::Put { .. } => Ok(()),
            Change::Delete { always } => {
                *always = true;
                Ok(())
            }
            Change::Decide(_) => Err(error),
        }
    }

    fn plan<'v>(
        &self,
        guard: &Guard,
        live: Option<View<'_>>,
        ticket: Ticket,
        change: &mut Change<'_, 'v>,
    ) -> Result<Plan<'v>> {
        let decide = match change {
            Change::Put { value, expires_at } => {
                return Ok(Plan::Put { value: Cow::Borrowed(value), expires_at: *expires_at });
            }
            Change::Delete { always } if *always || live.is_some() => return Ok(Plan::Delete),
            Change::Delete { .. } => return Ok(Plan::Refuse(Outcome::Missing)),
            Change::Decide(decide) => decide,
        };
        match live {
            None => decide(None),
            Some(view) => {
                let mut plan = None;
                self.show(guard, &view, ticket, true, &mut |record| {
                    plan = Some(decide(Some(&record)));
                })?;
                plan.unwrap_or_else(|| decide(None))
            }
        }
    }

    /// The newest version of a key. An inner `Err` is no failure: it is an expiry that has to be made known first.
    pub(super) fn look<'g>(
        &'g self,
        map: &mut Writing<'_>,
        guard: &'g Guard,
        key: &[u8],
    ) -> Result<std::result::Result<Standing<'g>, UnixMillis>> {
        let Some(offset) = map.newest(guard, key)? else {
            if map.hides_absence(Some(key)) {
                self.commit_all(map)?;
            }
            let ticket = self.rests_on_absence();
            let sure = self.check_sure(&***map, guard, None);
            let (view, unreadable, is_live) = (None, None, false);
            return Ok(Ok(Standing { view, unreadable, is_live, sure, ticket }));
        };
        if map.stream().is_hidden(offset) {
            self.commit_all(map)?;
            // A tombstone may have been forgotten by that.
            if map.newest(guard, key)? != Some(offset) {
                let ticket = Ticket::DURABLE;
                let sure = self.check_sure(&***map, guard, None);
                let (view, unreadable, is_live) = (None, None, false);
                return Ok(Ok(Standing { view, unreadable, is_live, sure, ticket }));
            }
        }
        let ticket = self.rests_on(&***map, offset);
        let view = match self.view_to_replace(guard, offset) {
            Ok(view) => view,
            Err(error) => {
                let (view, unreadable, is_live) = (None, Some(offset), false);
                return Ok(Ok(Standing { view, unreadable, is_live, sure: Err(error), ticket }));
            }
        };
        let sure = self.check_sure(&***map, guard, Some(offset));
        let is_put = view.header.kind == Kind::Put;
        let passed = view.header.expires_at.filter(|at| is_put && *at <= self.volume.now());
        let is_live = is_put && passed.is_none();
        if !is_live && let Err(error) = self.check_gone(&view) {
            let (view, sure) = (Some(view), Err(error));
            return Ok(Ok(Standing { view, unreadable: None, is_live, sure, ticket }));
        }
        match passed {
            Some(at) if !self.volume.is_told_expired(at) => Ok(Err(at)),
            _ => Ok(Ok(Standing { view: Some(view), unreadable: None, is_live, sure, ticket })),
        }
    }

    /// The sequence of the record that keeps a write with a `given` sequence from being made, if one does. An unreadable
    /// record may be newer; one with the same sequence is replaced by its copy.
    pub(super) fn newer(
        &self,
        guard: &Guard,
        standing: &Standing<'_>,
        key: &[u8],
        given: Option<u64>,
    ) -> Option<u64> {
        let given = given?;
        match (standing.view, standing.unreadable) {
            (Some(view), _) => Some(view.sequence()).filter(|its| given <= *its),
            (None, Some(offset)) => {
                Some(self.sequence_of_damaged(guard, key, offset)).filter(|its| given < *its)
            }
            (None, None) => None,
        }
    }

    /// The record that a write may replace. One from the future is damaged: no sequence would be newer.
    fn view_to_replace<'g>(&'g self, guard: &'g Guard, offset: u64) -> Result<View<'g>> {
        let view = self.volume.view(guard, offset)?;
        if view.header.version.max(view.sequence()) >= self.next_version.load(Ordering::Relaxed) {
            self.volume.check(&view)?;
        }
        Ok(view)
    }

    /// Appends a record that ends its group, unless it is `batched`.
    pub(crate) fn append(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        header: Header,
        key: &[u8],
        value: &[u8],
    ) -> Result<Linked> {
        let _pinned = guard;
        let header = Header { batched: header.batched || map.ends_groups(), ..header };
        let stream = map.stream_mut();
        let is_put = header.kind == Kind::Put;
        let birth;
        let value = if is_put {
            value
        } else {
            birth = stream.birth_for(header.record_len(key, 8)).to_le_bytes();
            &birth
        };
        let len = header.record_len(key, value.len()) as u32;
        self.expiries.note(header.expires_at);
        let offset = stream.append(header, key, &[value])?;
        let (version, sequence) = (header.version, header.sequence.unwrap_or(header.version));
        Ok(Linked { offset, version, sequence, len, is_put })
    }

    /// Bytes of the record of a change in the stream; 0 if it needs none.
    pub(super) fn len_of(
        &self,
        map: &Writing<'_>,
        header: &Header,
        key: &[u8],
        value_len: usize,
    ) -> usize {
        let version = self.next_version.load(Ordering::Relaxed);
        let is_removed =
            header.kind == Kind::Delete && map.removes(header.sequence.unwrap_or(version));
        if is_removed { 0 } else { header.record_len(key, value_len) }
    }

    /// Makes a delete that needs no record; returns its sequence.
    pub(super) fn remove(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        header: &Header,
        key: &[u8],
    ) -> Result<u64> {
        let sequence = header.sequence.unwrap_or(header.version);
        map.remove(guard, key, header.version, sequence).map(|()| sequence)
    }

    /// The next version, which is also at least `given`.
    pub(super) fn draw_version(&self, given: Option<u64>) -> Result<u64> {
        let version = self.next_version.load(Ordering::Relaxed).max(given.unwrap_or(0));
        self.volume.allow_version(version + 1)?;
        self.next_version.store(version + 1, Ordering::Relaxed);
        Ok(version)
    }

    /// Ensures that there are pages for a group, and those that are left to others.
    pub(crate) fn space_for(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        group: Group<'_>,
        purpose: Purpose,
    ) -> Result<Space> {
        let Group { lengths, keys, apart } = group;
        if keys.is_empty() && lengths.is_empty() && apart == 0 {
            return Ok(Space::Found);
        }
        let mut reserve = map.reserve(purpose);
        if apart > 0 {
            // Pages ahead belong to the stream.
            reserve += map.stream().pages_ahead();
        }
        let pages = apart + map.pages_beside(guard, group, reserve)?;
        if pages == 0 || map.stream().pages_usable() >= pages + reserve {
            return Ok(Space::Found);
        }
        let found = map.make_space(pages, reserve);
        let is_durable =
            map.stream().is_durable() && !map.hides_absence(None) || mutant!("mvcc.write.durable");
        if self.volume.space.fences_at_once() && is_durable {
            // Searching for pages has committed.
            self.durable.store(self.appended.load(Ordering::Relaxed), Ordering::Release);
        }
        found
    }

    /// Writes a large value to pages of its own; durable when it returns.
    pub(crate) fn prepare(&self, value: &[u8], purpose: Purpose) -> Result<Prepared> {
        let prepared = self.write_large(value, purpose)?;
        self.fence_large()?;
        Ok(prepared)
    }

    /// Writes a large value to pages of its own; [`Store::fence_large`] makes it durable, before a record names it.
    pub(crate) fn write_large(&self, value: &[u8], purpose: Purpose) -> Result<Prepared> {
        let apart = self.volume.chain_pages(value.len());
        let group = Group { apart, ..Group::EMPTY };
        let chain = self.with_space(
            |map, guard| self.space_for(map, guard, group, purpose),
            |map, _| map.stream_mut().take_chain(value.len()),
        )?;
        let (name, pages) = self.volume.write_chain(chain, value)?;
        Ok(Prepared { name, pages, seen: None })
    }

    /// Makes values that were [written](Store::write_large) before durable.
    pub(crate) fn fence_large(&self) -> Result<()> {
        if mutant!("mvcc.chain.fence") {
            return Ok(());
        }
        self.volume.space.fence().map_err(sync_failed)
    }

    pub(crate) fn drop_prepared(&self, prepared: &mut Option<Prepared>) {
        if let Some(it) = prepared.take() {
            self.map.write().stream_mut().drop_chain(&it.pages);
        }
    }

    pub(crate) fn count(&self, kind: Kind, bytes: usize) {
        let count = if kind == Kind::Put { Count::Puts } else { Count::Deletes };
        self.add(count, 1);
        self.add(Count::UserBytes, bytes as i64);
    }

    /// Shows a live record.
    pub(crate) fn show(
        &self,
        guard: &Guard,
        view: &View<'_>,
        ticket: Ticket,
        is_checked: bool,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<()> {
        use coreplane_engine::Value;
        let is_checked = is_checked || self.check_reads;
        if is_checked {
            self.volume.check(view)?;
        }
        let (sequence, expires_at) = (view.sequence(), view.header.expires_at);
        let mut record = |value| visit(Record { value, sequence, expires_at, ticket });
        if view.header.large {
            let parts = self.volume.chain(guard, view.value(), is_checked)?;
            let parts: Vec<&[u8]> = parts.into_iter().map(|(_, part)| part).collect();
            record(Value::Pieces(&parts));
        } else {
            record(Value::Whole(view.value()));
        }
        Ok(())
    }
}

/// The purpose for which a write needs pages.
pub(super) fn purpose_of(kind: Kind, is_overwrite: bool, use_reserve: bool) -> Purpose {
    match kind {
        Kind::Put if use_reserve => Purpose::Delete,
        Kind::Put if is_overwrite => Purpose::Overwrite,
        Kind::Put => Purpose::Insert,
        _ => Purpose::Delete,
    }
}
