//! Several changes at once: all of them or none, one fence.
//!
//! ```text
//!   … │ put a ∙ batched │ delete b ∙ batched │ put c ∙ batched │ commit: runs │ …
//! ```
//!
//! The members are appended one after the other and after them a commit record that names the
//! runs of bytes in which they are; one fence makes all durable together. A batched record counts
//! only if it lies in a run of a sound commit record all of whose members are sound. Where the
//! batch does not fit the rest of its page it goes on in another, as a further run, and the
//! members are fenced before the commit record is appended.
//!
//! When the cleaner moves a member it writes it as a record that stands alone; a commit record
//! with runs in other pages lives until those pages are gone ([`clean`](crate::clean)).
//!
//! **Isolation.** All groups of the batch are locked while it is published, and readers, who take
//! no lock, wait at the [`Gate`] for the moment between the first slot and the last.

use crate::counters::Count;
use crate::fragments::Fragments;
use crate::hash::Place;
use crate::index::{GroupLock, Leaf, Slot};
use crate::log::{Log, Order};
use crate::put::Standing;
use crate::reserve::Room;
use crate::store::Store;
use coreplane_engine::{
    Batch, Change, Completion, Error, Horizon, Result, Ticket, WriteOptions, Written,
};
use coreplane_pmem::epoch;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use coreplane_record::{Header, Kind};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// Keeps readers from seeing a batch in part: its count is odd while one is being published.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    count: AtomicU64,
    publishing: Mutex<()>,
}

impl Gate {
    /// Waits until no batch is being published; the count to compare with afterwards.
    #[inline]
    pub(crate) fn enter(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let count = self.count.load(Ordering::Acquire);
            if count & 1 == 0 {
                return count;
            }
            backoff.wait();
        }
    }

    /// Odd while a batch is being published.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// True if no batch was published since [`Gate::enter`] gave `before`.
    #[inline]
    pub(crate) fn is_unchanged(&self, before: u64) -> bool {
        self.count.load(Ordering::Acquire) == before
    }

    /// Runs `publish` while readers wait.
    pub(crate) fn publish<R>(&self, publish: impl FnOnce() -> R) -> R {
        let _publishing = self.publishing.lock();
        if mutant!("scmkv.batch.gate") {
            return publish();
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        let result = publish();
        self.count.fetch_add(1, Ordering::Release);
        result
    }
}

/// A run of a batch's records: where, how long, and in which generation of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) len: u32,
    pub(crate) generation: u32,
}

impl Run {
    const LEN: usize = 16;

    // media-format: begin pool
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
    }
    // media-format: end

    /// As a commit record holds it.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        self.encode(&mut bytes);
        bytes
    }

    /// The runs that the value of a commit record names.
    pub(crate) fn decode_all(value: &[u8]) -> impl Iterator<Item = Self> + '_ {
        value.chunks_exact(Self::LEN).map(|bytes| {
            let word =
                |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
            Self { start: word(0), len: word(1) as u32, generation: (word(1) >> 32) as u32 }
        })
    }
}

/// A change with its place, and, once it is in the log, its record.
struct Member<'b> {
    key: &'b [u8],
    place: Place,
    header: Header,
    value: Cow<'b, [u8]>,
    /// What a large value consists of.
    fragments: Option<Fragments<'b>>,
    offset: u64,
}

impl Member<'_> {
    fn len(&self) -> usize {
        let value = if self.header.kind == Kind::Delete { 8 } else { self.value().len() };
        self.header.record_len(self.key, value)
    }

    fn value(&self) -> &[u8] {
        self.fragments.as_ref().map_or(&self.value, Fragments::list)
    }

    /// True if nothing is written for it: a delete of nothing, or a change that is not newer than
    /// what is there.
    fn is_idle(&self, standing: &Standing<'_>) -> bool {
        match self.header.sequence {
            Some(given) => standing.old.as_ref().is_some_and(|old| old.sequence() >= given),
            None => self.header.kind == Kind::Delete && !standing.live,
        }
    }
}

/// The groups that a batch has locked.
type Held<'a> = BTreeMap<(u32, u32), GroupLock<'a>>;

/// Segments, by their numbers, in which a batch finds a group full, and a place in each.
type Full = BTreeMap<u32, (Leaf, Place)>;

impl Store {
    pub(crate) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.check_writable()?;
        let order = match self.order(options)? {
            Order::Early => Order::Early,
            Order::NoFlush => Order::NoFlush,
            Order::Strict | Order::Staged | Order::Relaxed { .. } => Order::Strict,
        };
        self.check_sequence(options.sequence)?;
        let mut log = self.my_log()?;
        let mut members = self.members(&mut log, batch, options.sequence, order)?;
        if members.is_empty() {
            let sequence = self.version_base();
            return Ok(Written { sequence, ticket: Ticket::DURABLE, replaced: false });
        }
        let written = self.apply_members(&mut log, &mut members, order);
        log.give_back(self);
        drop(log);
        let written = written?;
        self.counters.add(Count::Batches, 1);
        if options.completion == Completion::Wait && !written.ticket.is_durable() {
            self.wait_durable(&Horizon::from(written.ticket))?;
            return Ok(Written { ticket: Ticket::DURABLE, ..written });
        }
        self.bound_early(written.ticket, options);
        Ok(written)
    }

    fn apply_members(
        &self,
        log: &mut Log,
        members: &mut [Member<'_>],
        order: Order,
    ) -> Result<Written> {
        loop {
            // Each time: cleaning for a split may have sealed the page in which there was room.
            self.make_room_for(log, members)?;
            match self.attempt_batch(log, members, order)? {
                Ok(written) => return Ok(written),
                Err(full) => {
                    for (leaf, place) in full.into_values() {
                        self.split(leaf, place, Room::ByCleaning(log))?;
                    }
                }
            }
        }
    }

    /// The last change of each key, its large value already in the log.
    fn members<'b>(
        &'b self,
        log: &mut Log,
        batch: &'b Batch,
        sequence: Option<u64>,
        order: Order,
    ) -> Result<Vec<Member<'b>>> {
        let mut last = HashMap::with_capacity(batch.len());
        for (at, change) in batch.changes().iter().enumerate() {
            self.check_key(change.key())?;
            if let Change::Put { value, .. } = change {
                self.check_value(value.len())?;
            }
            last.insert(change.key(), at);
        }
        let mut members = Vec::with_capacity(last.len());
        for (at, change) in batch.changes().iter().enumerate() {
            let key = change.key();
            if last.get(key) != Some(&at) {
                continue;
            }
            let mut header = Header { batched: true, sequence, ..Header::put(0) };
            let mut value: &[u8] = &[];
            let mut fragments = None;
            match change {
                Change::Put { value: given, expires_at, .. } => {
                    header.expires_at = *expires_at;
                    header.large = given.len() > self.geometry.inline_max();
                    value = given;
                    if header.large {
                        fragments = Some(self.write_fragments(log, key, given, order)?);
                    }
                }
                Change::Delete { .. } => header.kind = Kind::Delete,
            }
            let (place, value) = (self.place(key), Cow::Borrowed(value));
            members.push(Member { key, place, header, value, fragments, offset: 0 });
        }
        Ok(members)
    }

    /// Sees to it that the batch fits the open page, or that the pages that it needs are there
    /// and nobody else can take them.
    fn make_room_for(&self, log: &mut Log, members: &[Member<'_>]) -> Result<()> {
        let deletes = members.iter().all(|member| member.header.kind == Kind::Delete);
        let kind = if deletes { Kind::Delete } else { Kind::Put };
        let page = self.geometry.page_size as usize;
        let total = batch_len(members);
        if total <= page {
            return self.make_room(log, total, kind);
        }
        loop {
            let room = log.room();
            self.set_pages_aside(log, pages_for(members, room, page), total, kind)?;
            // Unless cleaning has sealed the open page.
            if log.room() == room {
                return Ok(());
            }
        }
    }

    /// Locks, appends, fences, publishes; the segments to split, all at once, if groups have no
    /// room.
    fn attempt_batch(
        &self,
        log: &mut Log,
        members: &mut [Member<'_>],
        order: Order,
    ) -> Result<std::result::Result<Written, Full>> {
        let guard = epoch::pin();
        let mut held = self.lock_all(members);
        let mut standings = Vec::with_capacity(members.len());
        let mut taken = HashMap::new();
        let mut full = Full::new();
        for member in members.iter() {
            let lock = &held[&self.group_key(member.place)];
            match self.stand(&guard, lock, member, &mut taken)? {
                Some(standing) => standings.push(standing),
                None => drop(full.insert(lock.leaf().number(), (lock.leaf(), member.place))),
            }
        }
        if !full.is_empty() {
            return Ok(Err(full));
        }
        let birth = self.pages.next_birth();
        let mut sequence = 0;
        for (member, standing) in members.iter_mut().zip(&standings) {
            let key = self.group_key(member.place);
            let Some(lock) = held.get_mut(&key) else { continue };
            member.header.version = self.draw_version(lock, standing, member.header.sequence)?;
            sequence = sequence.max(member.header.sequence.unwrap_or(member.header.version));
            if member.header.kind == Kind::Delete {
                member.value = Cow::Owned(birth.to_le_bytes().to_vec());
            }
        }
        if let Err(error) = self.append_all(log, members, &standings, order) {
            for member in members.iter().filter(|member| member.offset != 0) {
                self.add_live(member.offset, -(member.len() as i64));
            }
            return Err(error);
        }
        let replaced = standings.iter().any(|standing| standing.live);
        self.gate.publish(|| -> Result<()> {
            for (member, standing) in members.iter_mut().zip(&standings) {
                self.publish_member(log, &held, member, standing)?;
            }
            Ok(())
        })?;
        // Of all that is visible: a change that was idle rests on what others wrote.
        let ticket = if order == Order::Early { self.early_ticket() } else { Ticket::DURABLE };
        Ok(Ok(Written { sequence, ticket, replaced }))
    }

    fn group_key(&self, place: Place) -> (u32, u32) {
        (self.index.leaf(place).number(), self.index.group_of(place))
    }

    /// Locks the groups of all members, in one order for all batches.
    fn lock_all(&self, members: &[Member<'_>]) -> Held<'_> {
        'again: loop {
            let places: BTreeMap<_, _> = members
                .iter()
                .map(|member| {
                    let leaf = self.index.leaf(member.place);
                    let group = self.index.group_of(member.place);
                    ((leaf.number(), group), (leaf, member.place.y))
                })
                .collect();
            let mut held = Held::new();
            for (key, (leaf, y)) in places {
                // Not `lock`: it would go on to another segment, out of order.
                let Some(lock) = self.index.lock_group(leaf, y, key.1) else {
                    drop(held);
                    continue 'again;
                };
                held.insert(key, lock);
            }
            return held;
        }
    }

    /// Where a member's slot is or will be; none if its group is full.
    fn stand<'g>(
        &'g self,
        guard: &'g epoch::Guard,
        lock: &GroupLock<'_>,
        member: &Member<'_>,
        taken: &mut HashMap<u64, ()>,
    ) -> Result<Option<Standing<'g>>> {
        let Some(mut standing) = self.look(guard, lock, member.key, member.place)? else {
            return Ok(None);
        };
        // A member that writes nothing must not hold a slot: the next one would pass it, and a
        // probe would end at the slot that stayed empty.
        if standing.slot == Slot::EMPTY && !member.is_idle(&standing) {
            match lock.vacancy(member.place, &|at| taken.contains_key(&at))? {
                Some(at) => standing.at = at,
                None => return Ok(None),
            }
            taken.insert(standing.at, ());
        }
        Ok(Some(standing))
    }

    /// Appends members and commit record, durable (or early, by `order`) when it returns.
    fn append_all(
        &self,
        log: &mut Log,
        members: &mut [Member<'_>],
        standings: &[Standing<'_>],
        order: Order,
    ) -> Result<()> {
        let needed = batch_len(members);
        let whole = needed <= log.room();
        let mut runs: Vec<Run> = Vec::new();
        let mut first = None;
        for (member, standing) in members.iter_mut().zip(standings) {
            if member.is_idle(standing) {
                continue;
            }
            if log.room() < member.len() {
                if let Some(start) = first.take() {
                    log.commit(self, start, Order::Strict)?;
                }
                self.open_page_aside(log, member.len())?;
            }
            let value = member.value();
            let appended = log.append(self, &member.header, member.key, &[value], order)?;
            member.offset = appended.offset;
            first.get_or_insert(appended.offset);
            match runs.last_mut() {
                Some(run) if self.goes_on(run, appended.offset) => run.len += appended.len,
                _ => runs.push(Run {
                    start: appended.offset,
                    len: appended.len,
                    generation: log.generation(),
                }),
            }
        }
        let Some(mut first) = first else { return Ok(()) };
        let mut list = Vec::with_capacity(runs.len() * Run::LEN);
        runs.iter().for_each(|run| run.encode(&mut list));
        let header = Header { kind: Kind::Commit, ..Header::put(0) };
        if !whole {
            log.commit(self, first, Order::Strict)?;
            self.open_page_aside(log, header.record_len(&[], list.len()))?;
            first = log.next_offset();
        }
        if mutant!("scmkv.batch.no_commit_record") {
            return log.commit(self, first, order);
        }
        let commit = log.append(self, &header, &[], &[&list], order)?;
        // A commit record is of use to recovery alone: nothing of it lives.
        log.forget_live(commit.len);
        log.commit(self, first, order)
    }

    /// True if a record at `offset` is of the same run. One that fills its page to the last byte ends there,
    /// even where the log goes on in the page behind it: recovery reads each run with the generation of
    /// one page.
    fn goes_on(&self, run: &Run, offset: u64) -> bool {
        let page = |offset| self.space.page_of(offset);
        run.start + u64::from(run.len) == offset
            && (page(run.start) == page(offset) || mutant!("scmkv.batch.run_over_pages"))
    }

    /// Opens the next of the pages that were set aside, if the open one has no room.
    fn open_page_aside(&self, log: &mut Log, len: usize) -> Result<()> {
        if log.make_room(self, len, self.reserve(Kind::Put))? {
            return Ok(());
        }
        self.no_space(len as u64)
    }

    fn publish_member(
        &self,
        log: &mut Log,
        held: &Held<'_>,
        member: &mut Member<'_>,
        standing: &Standing<'_>,
    ) -> Result<()> {
        let delete = member.header.kind == Kind::Delete;
        if member.is_idle(standing) {
            return Ok(());
        }
        let Some(lock) = held.get(&self.group_key(member.place)) else {
            return Err(Error::Corrupt { offset: standing.at, what: "a batch lost a lock".into() });
        };
        let signature = lock.signature(member.place);
        let expires = member.header.expires_at.is_some();
        lock.publish(standing.at, Slot::new(signature, member.offset, delete, expires))?;
        log.note_published(self, standing.at);
        self.account(lock, standing.slot, standing.old.as_ref(), &member.header);
        let len = member.len() as u32;
        self.leave_to_census(lock, member.offset, len);
        if let Some(fragments) = member.fragments.take() {
            fragments.own(lock, len);
        }
        if delete {
            self.count_tombstone(lock, len);
        }
        let count = if delete { Count::Deletes } else { Count::Puts };
        self.counters.add(count, 1);
        self.counters.add(Count::UserBytes, (member.key.len() + member.value.len()) as i64);
        Ok(())
    }
}

/// The longest that a commit record with so many runs can be.
fn commit_len(runs: usize) -> usize {
    Header::put(0).record_len(&[], runs * Run::LEN)
}

/// What a batch takes of one page, if it fits one.
fn batch_len(members: &[Member<'_>]) -> usize {
    members.iter().map(Member::len).sum::<usize>() + commit_len(1)
}

/// The pages of `page` bytes that a batch takes beside the `room` bytes of the open one.
fn pages_for(members: &[Member<'_>], mut room: usize, page: usize) -> u32 {
    let mut pages = 0;
    let mut fit = |len: usize| {
        if room < len {
            (pages, room) = (pages + 1, page);
        }
        room -= len.min(room);
        pages
    };
    let runs = members.iter().map(|member| fit(member.len())).last().unwrap_or(0) + 1;
    fit(commit_len(runs as usize))
}
