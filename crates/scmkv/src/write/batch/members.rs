//! The changes of a batch to its keys, in the order of their groups.
//!
//! ```text
//!   changes ─▶ hash each key once ─▶ sort by group ─▶ the last of each key ─▶ members
//! ```
//!
//! Groups are locked in the order of their numbers, and so the members are sorted by that: each
//! group is locked once, its lines of the index are read and written one after the other, and the
//! lines for the next members are prefetched. A split gives groups other numbers; then the members
//! are sorted again.

use super::Full;
use crate::table::demand::Demand;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Slot};
use crate::table::log::{Log, Order};
use crate::table::look::Standing;
use crate::table::overflow::Overflow;
use crate::write::Writer;
use crate::write::overflow::Large;
use coreplane_engine::{Batch, ChangeRef, Result};
use coreplane_pmem::arch;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};

/// How many members ahead their locks and lines of the index are prefetched.
pub(super) const AHEAD: usize = 16;

/// How many members ahead the records of those lines, or the bytes to be written, are prefetched.
const NEAR: usize = 8;

/// Bytes of a value that are prefetched; the processor prefetches the rest of a long copy itself.
const VALUE_AHEAD: usize = 256;

/// The value of a tombstone: the birth of the next page.
pub(super) type Birth = [u8; 8];

/// A change with its place, the state that it finds there and, once it is in the log, its record.
pub(super) struct Member<'b> {
    pub(super) key: &'b [u8],
    value: &'b [u8],
    /// The overflow records of a large value.
    pub(super) overflow: Option<Box<Overflow<'b>>>,
    pub(super) header: Header,
    pub(super) place: Place,
    /// Its record's length in the log.
    pub(super) len: u32,
    /// The number of its group's lock among those that are held.
    pub(super) lock: u32,
    /// Nothing is written for it: a delete of an absent key, or a change that is not newer than the
    /// record that is there.
    pub(super) is_idle: bool,
    /// A live record is there.
    pub(super) replaces: bool,
    /// Where its slot is or will be, and the slot that is there.
    pub(super) at: u64,
    pub(super) slot: Slot,
    pub(super) old: Option<Old>,
    /// Its record's offset; 0 before it is appended.
    pub(super) offset: u64,
}

/// The state of the record that a member replaces.
#[derive(Clone, Copy)]
pub(super) struct Old {
    pub(super) len: u32,
    pub(super) is_large: bool,
    pub(super) is_tombstone: bool,
}

impl Member<'_> {
    pub(super) fn is_delete(&self) -> bool {
        self.header.kind == Kind::Delete
    }

    /// Its demand for free pages, once it has its slot.
    pub(super) fn demand(&self) -> Demand {
        Demand::of(self.header.kind, self.slot.is_used() && !self.slot.is_tombstone())
    }

    /// The value of its record.
    pub(super) fn value<'m>(&'m self, birth: &'m Birth) -> &'m [u8] {
        match &self.overflow {
            _ if self.is_delete() => birth,
            Some(overflow) => overflow.list(),
            None => self.value,
        }
    }

    /// Bytes of key and value, as its caller gave them.
    pub(super) fn user_len(&self) -> usize {
        self.key.len() + self.value.len()
    }

    fn note(&mut self, standing: &Standing<'_>) {
        self.is_idle = match self.header.sequence {
            Some(given) => standing.old.as_ref().is_some_and(|old| old.sequence() >= given),
            None => self.is_delete() && !standing.live,
        };
        self.replaces = standing.live;
        (self.at, self.slot) = (standing.at, standing.slot);
        self.old = standing.old.as_ref().map(|old| Old {
            len: old.len(),
            is_large: old.header.large,
            is_tombstone: old.header.kind == Kind::Delete,
        });
    }

    /// Prefetches key and value before they are copied to the log.
    fn prefetch(&self) {
        self.key.first().into_iter().for_each(arch::prefetch);
        self.value.iter().take(VALUE_AHEAD).step_by(64).for_each(arch::prefetch);
    }
}

/// A change in the order of groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    group: u64,
    y: u32,
    /// Its number in the batch.
    at: u32,
}

impl Rank {
    fn place(self) -> Place {
        Place { y: self.y, tag: self.group as u16, group_bits: (self.group >> 16) as u32 & 0xff }
    }
}

/// The result of locking all groups and looking all keys up.
pub(super) enum Stood<'a> {
    /// All members have their slots, in groups that are locked.
    Ready(Vec<GroupLock<'a>>),
    /// These segments have groups without room.
    Full(Full),
}

impl Writer {
    /// The last change of each key in the order of groups, large values in the log.
    ///
    /// # Errors
    /// If a key or a value is too long, or there is no space for a large value.
    pub(super) fn members<'b>(
        &'b self,
        log: &mut Log,
        batch: &'b Batch,
        sequence: Option<u64>,
        order: Order,
    ) -> Result<Vec<Member<'b>>> {
        let mut ranks = Vec::with_capacity(batch.len());
        for (at, change) in batch.changes().enumerate() {
            self.check_key(change.key())?;
            if let Some(value) = change.value() {
                self.check_value(value.len())?;
            }
            let place = self.place(change.key());
            ranks.push(Rank { group: self.rank(place), y: place.y, at: at as u32 });
        }
        ranks.sort_unstable();
        // A split meanwhile may have separated two changes of one key.
        while ranks.iter().any(|rank| rank.group != self.rank(rank.place())) {
            ranks.iter_mut().for_each(|rank| rank.group = self.rank(rank.place()));
            ranks.sort_unstable();
        }
        let mut members = Vec::with_capacity(ranks.len());
        for (number, rank) in ranks.iter().enumerate() {
            let Some(change) = batch.get(rank.at as usize) else { continue };
            let mut later = ranks[number + 1..]
                .iter()
                .take_while(|later| (later.group, later.y) == (rank.group, rank.y));
            let is_last = mutant!("scmkv.batch.last")
                || !later.any(|later| {
                    batch.get(later.at as usize).is_some_and(|later| later.key() == change.key())
                });
            if is_last {
                members.push(self.member(log, change, rank.place(), (sequence, order))?);
            }
        }
        Ok(members)
    }

    fn member<'b>(
        &'b self,
        log: &mut Log,
        change: ChangeRef<'b>,
        place: Place,
        (sequence, order): (Option<u64>, Order),
    ) -> Result<Member<'b>> {
        let key = change.key();
        let mut header = Header { batched: true, sequence, ..Header::put(0) };
        let (mut value, mut overflow): (&[u8], _) = (&[], None);
        match change {
            ChangeRef::Put { value: given, expires_at, .. } => {
                header.expires_at = expires_at;
                header.large = given.len() > self.geometry.inline_max();
                value = given;
                if header.large {
                    let demand = Demand::of(Kind::Put, self.has(key, place));
                    let large = Large { key, len: given.len(), header, demand };
                    overflow = Some(Box::new(self.write_overflow(log, &large, given, order)?));
                }
            }
            ChangeRef::Delete { .. } => header.kind = Kind::Delete,
        }
        let mut member = Member {
            key,
            value,
            overflow,
            header,
            place,
            len: 0,
            lock: 0,
            is_idle: false,
            replaces: false,
            at: 0,
            slot: Slot::EMPTY,
            old: None,
            offset: 0,
        };
        member.len = header.record_len(key, member.value(&Birth::default()).len()) as u32;
        Ok(member)
    }

    /// True if a key has a record, as far as that can be told without the lock of its group.
    fn has(&self, key: &[u8], place: Place) -> bool {
        let guard = epoch::pin();
        self.find(&guard, key, place).is_ok_and(|found| found.is_some())
    }

    /// Members of one group have neighbouring ranks, and groups are locked in the order of their
    /// ranks.
    fn rank(&self, place: Place) -> u64 {
        let group = u64::from(self.index.group_of(place)) << 24;
        let within = u64::from(place.group_bits & 0xff) << 16 | u64::from(place.tag);
        u64::from(self.index.leaf(place).number()) << 32 | group | within
    }

    /// Locks the groups of all members, in one order for all batches, and finds where their slots
    /// are or will be.
    ///
    /// # Errors
    /// If the index is damaged, or a record that is replaced.
    pub(super) fn stand_all<'a>(
        &'a self,
        guard: &Guard,
        members: &mut [Member<'_>],
    ) -> Result<Stood<'a>> {
        loop {
            if let Some(stood) = self.try_stand_all(guard, members)? {
                return Ok(stood);
            }
            // A segment was split meanwhile.
            members.sort_by_cached_key(|member| self.rank(member.place));
        }
    }

    /// As [`Writer::stand_all`]; none if the groups have other numbers than when they were sorted.
    fn try_stand_all<'a>(
        &'a self,
        guard: &Guard,
        members: &mut [Member<'_>],
    ) -> Result<Option<Stood<'a>>> {
        let mut held: Vec<GroupLock<'_>> = Vec::new();
        let (mut last, mut taken) = (None, 0);
        let mut full = Full::new();
        members.iter().take(AHEAD).for_each(|it| self.index.prefetch_to_write(it.place));
        members.iter().take(NEAR).for_each(|it| self.prefetch_to_look(it));
        for number in 0..members.len() {
            if let Some(next) = members.get(number + AHEAD) {
                self.index.prefetch_to_write(next.place);
            }
            if let Some(next) = members.get(number + NEAR) {
                self.prefetch_to_look(next);
            }
            let member = &mut members[number];
            let (leaf, group) = (self.index.leaf(member.place), self.index.group_of(member.place));
            let this = Some((leaf.number(), group));
            if this != last {
                // Not `lock`: it would go on to another segment, out of order.
                let lock =
                    (this > last).then(|| self.index.lock_group(leaf, member.place.y, group));
                let Some(lock) = lock.flatten() else { return Ok(None) };
                held.push(lock);
                (last, taken) = (this, 0);
            }
            let Some(lock) = held.last_mut() else { return Ok(None) };
            if full.contains_key(&leaf.number()) {
                continue;
            }
            if !self.stand(guard, lock, member, &mut taken)? {
                full.insert(leaf.number(), (leaf, member.place));
            }
            member.lock = held.len() as u32 - 1;
        }
        Ok(Some(if full.is_empty() { Stood::Ready(held) } else { Stood::Full(full) }))
    }

    /// Prefetches the key and the record that its slot points at, whose key will be compared.
    #[inline]
    fn prefetch_to_look(&self, member: &Member<'_>) {
        member.key.first().into_iter().for_each(arch::prefetch);
        self.prefetch_replaced_at(member.place);
    }

    /// Finds where a member's slot is or will be, and draws its version; false if its group is
    /// full. `taken` has a bit for each slot of the group that another member fills.
    fn stand(
        &self,
        guard: &Guard,
        lock: &mut GroupLock<'_>,
        member: &mut Member<'_>,
        taken: &mut u128,
    ) -> Result<bool> {
        let Some(standing) = self.look(guard, lock, member.key, member.place)? else {
            return Ok(false);
        };
        member.note(&standing);
        // A member that writes nothing must not hold a slot: the next one would pass it, and a
        // probe would end at the slot that stayed empty.
        if member.slot == Slot::EMPTY && !member.is_idle {
            let bit = |at: u64| 1_u128 << (at % self.geometry.group_bytes() / 8);
            if *taken & bit(member.at) != 0 && !mutant!("scmkv.batch.taken") {
                match lock.vacancy(member.place, &|at| *taken & bit(at) != 0)? {
                    Some(at) => member.at = at,
                    None => return Ok(false),
                }
            }
            *taken |= bit(member.at);
        }
        member.header.version = self.draw_version(lock, &standing, member.header.sequence)?;
        Ok(true)
    }
}

/// Prefetches key and value of a member that will be written soon after member `number`.
#[inline]
pub(super) fn prefetch_payload(members: &[Member<'_>], number: usize) {
    if let Some(next) = members.get(number + NEAR) {
        next.prefetch();
    }
}
