//! One write, from the check to the slot.
//!
//! ```text
//!   check ─▶ lock the log, the group ─▶ look ─▶ append ─▶ fence ─▶ publish
//!               a put that needs no look:  append ─▶ look ─▶ fence ─▶ publish     [`ahead`](ahead)
//!               one that need not wait:    append … many share one fence           [`stage`](crate::table::stage)
//! ```
//!
//! The writer holds its log for the whole write and its key's group from the look at the old record
//! to the new slot, so that a read-modify-write is one step and versions follow the order of
//! publication. Steps that need another page (for a full log, a full group, a large value) are
//! taken without the group's lock, and the look is repeated. Only a large value that was
//! [overtaken](overflow) is written under it.

pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod clear;
pub(crate) mod overflow;
pub(crate) mod sweep_expired;

use crate::clean::Cleaner;
use crate::clean::reserve::SplitPages;
use crate::read::Reader;
use crate::table::demand::Demand;
use crate::table::index::GroupLock;
use crate::table::log::{Appended, Log, Order};
use crate::table::look::{Standing, Write};
use ahead::Put;
use coreplane_engine::{
    Beside, Brief, Completion, Horizon, Outcome, Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Expiries, Header, Kind, View};
use overflow::{Large, LargePut, Progress, RestsOn};
use std::borrow::Cow;
use std::ops::Deref;

/// A table to be written to: writes that are short of pages have pages cleaned.
pub(crate) struct Writer {
    pub(crate) cleaner: Cleaner,
    pub(crate) expiries: Expiries,
}

impl Deref for Writer {
    type Target = Cleaner;

    #[inline(always)]
    fn deref(&self) -> &Cleaner {
        &self.cleaner
    }
}

/// What to do with a key, decided in sight of its record.
pub(crate) enum Plan<'v> {
    /// Nothing; the outcome is built from the ticket of the state that was seen.
    Refuse(fn(Ticket) -> Outcome),
    /// Write a value.
    Put { value: Cow<'v, [u8]>, expires_at: Option<UnixMillis> },
    /// Write a tombstone.
    Delete,
}

/// Decides in sight of the live record.
pub(crate) type Decide<'d, 'v> =
    &'d mut dyn FnMut(&Reader, &Guard, Option<&View<'_>>) -> Result<Plan<'v>>;

/// What came of an attempt at a write.
pub(crate) enum Attempt<'s, 'a> {
    Done(Outcome),
    /// The log needs room for a record of this length.
    NeedRoom(usize, Demand),
    /// The log needs room for a large value.
    NeedRoomForLarge(Large<'a>),
    /// The group is full.
    NeedSplit(crate::table::index::Leaf),
    /// The value is large and not yet in the log: it is to be written, under the lock if there is one.
    NeedOverflow(LargePut<'a>, Option<GroupLock<'s>>),
}

impl Writer {
    /// Writes `key` as `decide` says in sight of its live record.
    pub(crate) fn write<'a>(
        &self,
        key: &'a [u8],
        options: &'a WriteOptions,
        decide: Decide<'_, 'a>,
    ) -> Result<Outcome> {
        let write = self.check(key, options)?;
        self.write_in_sight(write, (RestsOn::Old, decide))
    }

    /// Puts `key`, ahead of the lookup if that is possible.
    #[inline]
    pub(crate) fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let write = self.check(key, options)?;
        match self.put_ahead(&write, value, None)? {
            Some(Put { sequence, replaced }) => {
                Ok(Outcome::Written(Written { sequence, ticket: Ticket::DURABLE, replaced }))
            }
            None => self.put_in_sight(write, value),
        }
    }

    /// As [`Writer::put`], with a result of two words; ahead of the lookup or not at all with
    /// `beside`.
    #[inline]
    pub(crate) fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        let is_alone = beside.is_none();
        let write = match self.check(key, options) {
            Ok(write) => write,
            Err(error) => return Brief::of(Err(error)),
        };
        let put = match beside {
            None => self.put_ahead(&write, value, None),
            beside => self.put_ahead(&write, value, beside),
        };
        match put {
            Ok(Some(Put { replaced: true, .. })) => Brief::Replaced,
            Ok(Some(Put { replaced: false, .. })) => Brief::New,
            Ok(None) if is_alone => Brief::of(self.put_in_sight(write, value)),
            Ok(None) => Brief::Declined,
            Err(error) => Brief::of(Err(error)),
        }
    }

    pub(crate) fn erase(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let given = options.sequence.is_some();
        self.write(key, options, &mut |_, _, live| {
            Ok(if live.is_some() || given { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
        })
    }

    /// The checks of a write that need no lock; the line of its lock is prefetched.
    ///
    /// # Errors
    /// If the write is not allowed, or the store takes none.
    #[inline(always)]
    pub(crate) fn check<'a>(&self, key: &'a [u8], options: &'a WriteOptions) -> Result<Write<'a>> {
        // Before the order is determined, which may note in the root that a write is not strict.
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        Ok(Write { key, place, options, order: self.order(options)? })
    }

    /// Puts in sight of the record that is replaced.
    #[inline(never)]
    fn put_in_sight<'a>(&self, write: Write<'a>, value: &'a [u8]) -> Result<Outcome> {
        let expires_at = write.options.expires_at;
        let mut plan = |_: &Reader, _: &Guard, _: Option<&View<'_>>| {
            Ok(Plan::Put { value: Cow::Borrowed(value), expires_at })
        };
        self.write_in_sight(write, (RestsOn::Nothing, &mut plan))
    }

    /// Locks the log, and tries until nothing is missing: room, a slot, the records of a large
    /// value.
    pub(crate) fn write_in_sight<'a>(
        &self,
        write: Write<'a>,
        (rests_on, decide): (RestsOn, Decide<'_, 'a>),
    ) -> Result<Outcome> {
        let staging = write.order == Order::Staged;
        let mut log = if staging { self.my_log_staging()? } else { self.my_log()? };
        let mut progress = Progress::new(rests_on);
        let outcome = loop {
            let attempt = self.attempt(&mut log, &write, &mut progress, decide);
            match attempt.and_then(|it| self.go_on(&mut log, &write, &mut progress, it)) {
                Ok(None) => {}
                Ok(Some(outcome)) => break Ok(outcome),
                Err(error) => break Err(error),
            }
        };
        drop(progress);
        log.give_back(self);
        drop(log);
        self.finish(outcome?, write.options)
    }

    /// Does what an attempt needs; returns its outcome if that is nothing.
    pub(crate) fn go_on<'s, 'a>(
        &'s self,
        log: &mut Log,
        write: &Write<'a>,
        progress: &mut Progress<'s, 'a>,
        attempt: Attempt<'s, 'a>,
    ) -> Result<Option<Outcome>> {
        if let Attempt::Done(outcome) = attempt {
            return Ok(Some(outcome));
        }
        self.commit_staged(log)?;
        match attempt {
            Attempt::Done(_) => {}
            Attempt::NeedRoom(len, demand) => self.make_room(log, len, demand)?,
            Attempt::NeedRoomForLarge(large) => self.make_room_for_large(log, &large)?,
            Attempt::NeedSplit(leaf) => {
                self.split(leaf, write.place, SplitPages::ByCleaning(log))?;
            }
            Attempt::NeedOverflow(put, held) => {
                self.prepare_large(log, progress, (put, held), write.order)?;
            }
        }
        Ok(None)
    }

    /// One attempt: locks the group, looks, decides, appends, fences, publishes.
    pub(crate) fn attempt<'s, 'a>(
        &'s self,
        log: &mut Log,
        write: &Write<'a>,
        progress: &mut Progress<'s, 'a>,
        decide: Decide<'_, 'a>,
    ) -> Result<Attempt<'s, 'a>> {
        let mut held = match progress.held.take() {
            Some(held) => held,
            None => self.lock_for(log, write.place)?,
        };
        // Who has the lock may write a large value, and pages must come back meanwhile.
        let guard = epoch::pin();
        let Some(mut standing) = self.look(&guard, &held, write.key, write.place)? else {
            return Ok(Attempt::NeedSplit(held.leaf()));
        };
        if log.has_staged() && !self.avoid_staged(log, &held, write.place, &mut standing)? {
            return Ok(Attempt::NeedSplit(held.leaf()));
        }
        let seen = self.visible_ticket();
        if let (Some(given), Some(old)) = (write.options.sequence, &standing.old)
            && given <= old.sequence()
            && !mutant!("scmkv.put.older_sequence")
        {
            return Ok(Attempt::Done(Outcome::NotNewer(old.sequence(), seen)));
        }
        let live = standing.old.as_ref().filter(|_| standing.live);
        let version = live.map(|view| view.header.version);
        if let Some(prepared) = progress.take_prepared(version) {
            return self.publish_large(log, held, write, &standing, (progress, prepared));
        }
        let mut header = Header { sequence: write.options.sequence, ..Header::put(0) };
        let value = match decide(self, &guard, live)? {
            Plan::Refuse(outcome) => return Ok(Attempt::Done(outcome(seen))),
            Plan::Put { value, expires_at } => {
                header.expires_at = expires_at;
                value
            }
            Plan::Delete => {
                header.kind = Kind::Delete;
                Cow::Owned(self.pages.next_birth().to_le_bytes().to_vec())
            }
        };
        let demand = Demand::of(header.kind, standing.live);
        let demand = if write.options.use_reserve { Demand::Reserve } else { demand };
        if value.len() > self.geometry.inline_max() {
            self.check_value(value.len())?;
            let header = Header { large: true, ..header };
            let large = Large { key: write.key, len: value.len(), header, demand };
            let put = LargePut { large, value, seen: version };
            return Ok(self.attempt_large(log, held, progress, put));
        }
        let len = header.record_len(write.key, value.len());
        if len > log.room_for(demand) {
            return Ok(Attempt::NeedRoom(len, demand));
        }
        // Before the lock of the group is free.
        self.expiries.note(header.expires_at);
        if write.order == Order::Staged {
            return self.stage(log, held, write, &standing, header, &value).map(Attempt::Done);
        }
        let outcome = self.place_record(log, &mut held, write, &standing, header, &value)?;
        Ok(Attempt::Done(outcome))
    }

    /// Appends the record, fences, publishes.
    fn place_record(
        &self,
        log: &mut Log,
        held: &mut GroupLock<'_>,
        write: &Write<'_>,
        standing: &Standing<'_>,
        mut header: Header,
        value: &[u8],
    ) -> Result<Outcome> {
        header.version = self.draw_version(held, standing, header.sequence)?;
        // Ahead of the append: between that and the end no locked instruction may come, for it
        // would wait as a fence does.
        self.account(held, standing.slot, standing.old.as_ref(), &header);
        let appended = log.append(self, &header, write.key, &[value], write.order)?;
        self.publish_record(log, held, write, standing.at, (&header, value.len()), appended)?;
        let sequence = header.sequence.unwrap_or(header.version);
        let ticket = self.written_ticket(write.order, log);
        Ok(Outcome::Written(Written { sequence, ticket, replaced: standing.live }))
    }

    /// Makes an appended record durable and lets the slot at `at` point at it.
    #[inline]
    pub(crate) fn publish_record(
        &self,
        log: &mut Log,
        held: &mut GroupLock<'_>,
        write: &Write<'_>,
        at: u64,
        (header, value_len): (&Header, usize),
        appended: Appended,
    ) -> Result<()> {
        if mutant!("scmkv.put.publish_first") {
            held.publish(at, held.slot_of(write.place, appended.offset, header))?;
        }
        log.commit(self, appended.offset, write.order)?;
        self.publish_slot(log, held, write, at, (header, value_len), appended)
    }

    /// Waits, if the caller does, until the outcome is durable.
    pub(crate) fn finish(&self, outcome: Outcome, options: &WriteOptions) -> Result<Outcome> {
        let ticket = outcome.ticket();
        if options.completion == Completion::Early || ticket.is_durable() {
            self.bound_early(ticket, options);
            return Ok(outcome);
        }
        self.wait_durable(&Horizon::from(ticket))?;
        Ok(outcome.resting_on(Ticket::DURABLE))
    }
}
