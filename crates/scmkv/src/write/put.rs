//! Writing: the record, one fence, then the slot.
//!
//! The writer holds its log for the whole write and its key's group from the look at the old
//! record to the new slot, so that a read-modify-write is one step and versions follow the order
//! of publication. Whatever needs another page (a full log, a full group, a large value) is done
//! without the group's lock, and the look repeated.

use crate::clean::reserve::{Demand, Room};
use crate::store::Store;
use crate::table::counters::Count;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Probe, Slot, VERSION_STEP};
use crate::table::log::{Appended, Log, Order};
use crate::write::overflow::{Overflow, overflow_offsets};
use coreplane_engine::{
    Completion, Durability, Error, Horizon, Outcome, Result, Ticket, UnixMillis, WriteOptions,
    Written,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_pmem::{spin, thread_number};
use coreplane_record::{Header, Kind, View};
use std::borrow::Cow;

/// Sequences that callers give are below this.
const SEQUENCE_MAX: u64 = 1 << 61;

/// What to do with a key, decided in sight of its record.
pub(crate) enum Plan<'v> {
    /// Nothing; the outcome is made of the ticket of what was seen.
    Refuse(fn(Ticket) -> Outcome),
    /// Write a value.
    Put { value: Cow<'v, [u8]>, expires_at: Option<UnixMillis> },
    /// Write a tombstone.
    Delete,
}

/// Decides in sight of the live record.
pub(crate) type Decide<'d, 'v> =
    &'d mut dyn FnMut(&Store, &Guard, Option<&View<'_>>) -> Result<Plan<'v>>;

/// A large value that was decided on and is in the log, its record not yet. It is what to write
/// as long as nobody has written the key since: the decision is not made twice.
struct Prepared<'s> {
    overflow: Overflow<'s>,
    plan: LargePut,
}

struct LargePut {
    /// The version of the live record in sight of which it was decided.
    seen: Option<u64>,
    expires_at: Option<UnixMillis>,
}

/// What the probe of a locked group found.
pub(crate) struct Standing<'g> {
    pub(crate) at: u64,
    pub(crate) slot: Slot,
    /// The record or tombstone of the key.
    pub(crate) old: Option<View<'g>>,
    /// It is a record, and has not expired.
    pub(crate) live: bool,
}

enum Attempt {
    Done(Outcome),
    /// The log needs room for a record so long.
    NeedRoom(usize, Demand),
    /// The group is full.
    NeedSplit(crate::table::index::Leaf),
    /// The value is large and not yet in the log.
    NeedOverflow(Vec<u8>, LargePut),
}

impl Store {
    /// How a write with these options becomes durable.
    pub(crate) fn order(&self, options: &WriteOptions) -> Result<Order> {
        Ok(match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => {
                // Where a fence is a sync nobody waits for it under a lock: the record is
                // published early, and whoever wants it durable waits for its ticket.
                match (self.space.fences_at_once(), options.completion) {
                    (true, Completion::Wait) => Order::Strict,
                    (true, Completion::Early) => Order::Staged,
                    (false, _) => Order::Early,
                }
            }
            // It gains nothing where a fence is an instruction.
            Durability::Relaxed { .. } if self.space.fences_at_once() => Order::Strict,
            Durability::Relaxed { window_bytes, window } => {
                self.note_non_strict()?;
                Order::Relaxed { window_bytes, window }
            }
        })
    }

    /// The log of this thread, to write to, with nothing staged in it.
    ///
    /// # Errors
    /// As [`Store::my_log_staging`], and if what was staged cannot be committed.
    #[inline]
    pub(crate) fn my_log(&self) -> Result<spin::Held<'_, Log>> {
        let mut log = self.my_log_staging()?;
        self.commit_staged(&mut log)?;
        Ok(log)
    }

    /// As [`Store::my_log`], if nobody else has it and a put of `len` bytes fits its open page.
    ///
    /// # Errors
    /// As [`Store::my_log`].
    #[inline]
    pub(crate) fn my_log_at_once(&self, len: usize) -> Result<Option<spin::Held<'_, Log>>> {
        let log = self.logs[thread_number() % self.logs.len()].try_lock();
        let Some(mut log) = log.filter(|log| log.room_for(Demand::Insert) >= len) else {
            return Ok(None);
        };
        self.check_open()?;
        self.commit_staged(&mut log)?;
        Ok(Some(log))
    }

    #[inline]
    fn check_open(&self) -> Result<()> {
        match self.closed.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// The log of this thread, to write to.
    ///
    /// # Errors
    /// If the store was closed while this thread waited for it: a closed store's logs are sealed.
    #[inline]
    pub(crate) fn my_log_staging(&self) -> Result<spin::Held<'_, Log>> {
        let log = self.logs[thread_number() % self.logs.len()].lock();
        self.check_open()?;
        Ok(log)
    }

    /// Writes `key` as `decide` says.
    pub(crate) fn write(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        let place = self.place(key);
        self.index.prefetch_to_write(place);
        let order = self.order(options)?;
        let mut log = if order == Order::Staged { self.my_log_staging()? } else { self.my_log()? };
        let mut prepared = None;
        let mut write = Write { key, place, options, order };
        loop {
            match self.attempt(&mut log, &write, &mut prepared, decide)? {
                Attempt::Done(outcome) => {
                    drop(log);
                    return self.finish(outcome, options);
                }
                Attempt::NeedRoom(len, demand) => {
                    self.commit_staged(&mut log)?;
                    self.make_room(&mut log, len, demand)?;
                }
                Attempt::NeedSplit(leaf) => {
                    self.commit_staged(&mut log)?;
                    self.split(leaf, place, Room::ByCleaning(&mut log))?;
                }
                Attempt::NeedOverflow(value, plan) => {
                    self.commit_staged(&mut log)?;
                    if order == Order::Staged {
                        // Its many records have a fence anyway.
                        write.order = Order::Strict;
                    }
                    let of = (&value[..], Demand::of(Kind::Put, plan.seen.is_some()));
                    let overflow = self.write_overflow(&mut log, key, of, order)?;
                    prepared = Some(Prepared { overflow, plan });
                }
            }
        }
    }

    fn attempt<'s>(
        &'s self,
        log: &mut Log,
        write: &Write<'_>,
        prepared: &mut Option<Prepared<'s>>,
        decide: Decide<'_, '_>,
    ) -> Result<Attempt> {
        let guard = epoch::pin();
        let mut held = self.lock_for(log, write.place)?;
        let Some(mut standing) = self.look(&guard, &held, write.key, write.place)? else {
            return Ok(Attempt::NeedSplit(held.leaf()));
        };
        if log.has_staged() && !self.avoid_staged(log, &held, write.place, &mut standing)? {
            return Ok(Attempt::NeedSplit(held.leaf()));
        }
        let seen = self.seen_ticket(standing.old.as_ref());
        if let (Some(given), Some(old)) = (write.options.sequence, &standing.old)
            && given <= old.sequence()
            && !mutant!("scmkv.put.older_sequence")
        {
            return Ok(Attempt::Done(Outcome::NotNewer(old.sequence(), seen)));
        }
        let live = standing.old.as_ref().filter(|_| standing.live);
        let version = live.map(|view| view.header.version);
        // What was written for a decision that is out of date is dead.
        let ready = prepared.take().filter(|ready| ready.plan.seen == version);
        let mut header = Header { sequence: write.options.sequence, ..Header::put(0) };
        let value = match &ready {
            Some(Prepared { overflow, plan }) => {
                (header.large, header.expires_at) = (true, plan.expires_at);
                Cow::Borrowed(overflow.list())
            }
            None => match decide(self, &guard, live)? {
                Plan::Refuse(outcome) => return Ok(Attempt::Done(outcome(seen))),
                Plan::Put { value, expires_at } => {
                    header.expires_at = expires_at;
                    value
                }
                Plan::Delete => {
                    header.kind = Kind::Delete;
                    Cow::Owned(self.pages.next_birth().to_le_bytes().to_vec())
                }
            },
        };
        if !header.large && value.len() > self.geometry.inline_max() {
            self.check_value(value.len())?;
            let plan = LargePut { seen: version, expires_at: header.expires_at };
            return Ok(Attempt::NeedOverflow(value.into_owned(), plan));
        }
        let len = header.record_len(write.key, value.len());
        let demand = Demand::of(header.kind, standing.live);
        let demand = if write.options.use_reserve { Demand::Reserve } else { demand };
        if len > log.room_for(demand) {
            *prepared = ready;
            return Ok(Attempt::NeedRoom(len, demand));
        }
        if write.order == Order::Staged {
            return self.stage(log, held, write, &standing, header, &value).map(Attempt::Done);
        }
        let outcome = self.place_record(log, &mut held, write, &standing, header, &value)?;
        if let Some(Prepared { overflow, .. }) = ready {
            overflow.own(&held, len as u32);
        }
        Ok(Attempt::Done(outcome))
    }

    /// Probes a locked group for a key; none if it is absent and the group is full.
    pub(crate) fn look<'g>(
        &'g self,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        key: &[u8],
        place: Place,
    ) -> Result<Option<Standing<'g>>> {
        let mut old = None;
        let probe = held.probe(place, &mut |slot| {
            let view = self.record(guard, slot)?;
            // What is written takes the place of one whose key is damaged, too: else the slot of that would
            // stay for ever, and lead whoever comes by all slots to damage.
            let mine = view.key() == key || self.had_key(&view, key);
            if mine {
                old = Some(view);
            }
            Ok(mine)
        })?;
        Ok(match probe {
            Probe::Full => None,
            Probe::Vacant { at } => {
                Some(Standing { at, slot: Slot::EMPTY, old: None, live: false })
            }
            Probe::Found { at, slot } => {
                let live = match &old {
                    Some(view) => !slot.is_tombstone() && !self.is_expired(view)?,
                    None => false,
                };
                Some(Standing { at, slot, old, live })
            }
        })
    }

    /// Appends the record, makes it durable, publishes it.
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
        // Ahead of the append: from there to the end no locked instruction may come between, for
        // it would wait as a fence does.
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

    /// Lets the slot at `at` point at a record that was committed.
    #[inline]
    pub(crate) fn publish_slot(
        &self,
        log: &mut Log,
        held: &GroupLock<'_>,
        write: &Write<'_>,
        at: u64,
        (header, value_len): (&Header, usize),
        appended: Appended,
    ) -> Result<()> {
        held.publish(at, held.slot_of(write.place, appended.offset, header))?;
        log.note_published(self, at);
        let value_len = if header.kind == Kind::Delete { 0 } else { value_len };
        self.count_published(held, header, appended, write.key.len() + value_len);
        Ok(())
    }

    /// A record of `user_bytes` bytes of key and value was published.
    #[inline]
    pub(crate) fn count_published(
        &self,
        held: &GroupLock<'_>,
        header: &Header,
        appended: Appended,
        user_bytes: usize,
    ) {
        self.leave_to_census(held, appended.offset, appended.len);
        let is_delete = header.kind == Kind::Delete;
        if is_delete {
            self.count_tombstone(held, appended.len);
        }
        self.counters.add(if is_delete { Count::Deletes } else { Count::Puts }, 1);
        self.counters.add(Count::UserBytes, user_bytes as i64);
    }

    /// The version of a write: above all that the group has given out, which is above the key's
    /// last one, and not below the sequence that the caller gave.
    ///
    /// # Errors
    /// If the base of versions must be raised for it and cannot be.
    #[inline]
    pub(crate) fn draw_version(
        &self,
        held: &mut GroupLock<'_>,
        standing: &Standing<'_>,
        given: Option<u64>,
    ) -> Result<u64> {
        let given = given.map_or(0, |given| given.saturating_sub(1));
        let version = self.next_version(held, given)?;
        match &standing.old {
            Some(old) if old.header.version >= version => Err(Error::Corrupt {
                offset: old.offset,
                what: format!("version {:#x}, though none was given out yet", old.header.version),
            }),
            _ => Ok(version),
        }
    }

    /// The next version of a group, above `floor` too; the durable base follows before a version
    /// comes near to what the next open begins with, however often a group was written to.
    ///
    /// # Errors
    /// If the base cannot be raised.
    #[inline]
    pub(crate) fn next_version(&self, held: &mut GroupLock<'_>, floor: u64) -> Result<u64> {
        let base = self.version_base();
        let version = held.next_version(base.max(floor));
        if version >= base + VERSION_STEP / 2 && !mutant!("scmkv.put.cover_version") {
            self.cover_version(version)?;
        }
        Ok(version)
    }

    /// # Errors
    /// If a given sequence is too great to leave room for the versions after it.
    pub(crate) fn check_sequence(&self, given: Option<u64>) -> Result<()> {
        match given {
            Some(given) if given >= SEQUENCE_MAX => Err(Error::Unsupported {
                engine: crate::KIND,
                operation: "a given sequence of 2^61 or more",
            }),
            _ => Ok(()),
        }
    }

    /// Keeps the counters in step with a slot that was replaced.
    pub(crate) fn account(
        &self,
        held: &GroupLock<'_>,
        old_slot: Slot,
        old: Option<&View<'_>>,
        new: &Header,
    ) {
        if let Some(old) = old {
            self.drop_live(held, old);
        }
        if held.has_counted_records() {
            let before = old_slot.is_used() && !old_slot.is_tombstone();
            let after = new.kind == Kind::Put;
            match (before, after) {
                (false, true) => self.counters.add(Count::Records, 1),
                (true, false) => self.counters.add(Count::Records, -1),
                _ => {}
            }
        }
    }

    /// A tombstone of `len` bytes was published.
    #[cold]
    pub(crate) fn count_tombstone(&self, held: &GroupLock<'_>, len: u32) {
        if held.is_counted() {
            self.counters.add(Count::TombstoneBytes, i64::from(len));
        }
    }

    /// A record just published in a group that is not counted yet will be counted by the census.
    pub(crate) fn leave_to_census(&self, held: &GroupLock<'_>, offset: u64, len: u32) {
        if !held.is_counted() {
            self.add_live(offset, -i64::from(len));
        }
    }

    /// The record `old` (and its overflow records) lives no more.
    pub(crate) fn drop_live(&self, held: &GroupLock<'_>, old: &View<'_>) {
        if !held.is_counted() {
            return;
        }
        self.add_live(old.offset, -i64::from(old.len()));
        if old.header.kind == Kind::Delete {
            self.counters.add(Count::TombstoneBytes, -i64::from(old.len()));
        }
        if old.header.large {
            self.charge(overflow_offsets(old), -i64::from(old.len()));
            let guard = epoch::pin();
            for offset in overflow_offsets(old) {
                if let Some(overflow) = self.reader().view(&guard, offset) {
                    self.add_live(offset, -i64::from(overflow.len()));
                }
            }
        }
    }

    pub(crate) fn erase(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let given = options.sequence.is_some();
        self.write(key, options, &mut |_, _, live| {
            Ok(if live.is_some() || given { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
        })
    }

    /// What the refusal of a write rests on.
    fn seen_ticket(&self, _old: Option<&View<'_>>) -> Ticket {
        if self.space.fences_at_once() { Ticket::DURABLE } else { self.early_ticket() }
    }

    /// Waits, if the caller does, for what an outcome rests on.
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

/// A write under way.
pub(crate) struct Write<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) place: Place,
    pub(crate) options: &'a WriteOptions,
    pub(crate) order: Order,
}
