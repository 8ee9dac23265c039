//! Writing: the record behind the others of its leaf, one fence, then its place.
//!
//! The writer holds the lock of the leaf from the look at the old record to the new one's place, so
//! that a read-modify-write is one step and versions follow the order of publication. A leaf
//! without room is written anew first ([`rewrite`](crate::rewrite)), and the look repeated.

use crate::leaf::tag_of;
use crate::store::{Locked, Root, STEP, Standing, Store};
use coreplane_engine::{
    Error, Outcome, Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::{WriteMode, epoch, spin};
use coreplane_record::{Header, Kind, View};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

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
pub(crate) type Decide<'d, 'v> = &'d mut dyn FnMut(Option<&View<'_>>) -> Result<Plan<'v>>;

enum Attempt {
    Done(Outcome),
    /// The leaf has no room for a record so long, or no place for another key.
    NeedRoom(usize, Kind),
}

impl Store {
    /// Writes `key` as `decide` says.
    pub(crate) fn write(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        self.check_writable()?;
        self.check_key(key)?;
        if let Some(given) = options.sequence
            && given >= SEQUENCE_MAX
        {
            let operation = "a given sequence of 2^61 or more";
            return Err(Error::Unsupported { engine: crate::KIND, operation });
        }
        loop {
            match self.attempt(key, options, decide)? {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::NeedRoom(len, kind) => self.make_room(key, len, kind)?,
            }
        }
    }

    fn attempt(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: Decide<'_, '_>,
    ) -> Result<Attempt> {
        let guard = epoch::pin();
        let locked = self.lock_leaf(key);
        let standing = self.look(&guard, locked.page, locked.leaf, key)?;
        if let (Some(given), Some(old)) = (options.sequence, &standing.old)
            && given <= old.sequence()
        {
            return Ok(Attempt::Done(Outcome::NotNewer(old.sequence(), Ticket::DURABLE)));
        }
        let mut header = Header { sequence: options.sequence, ..Header::put(0) };
        let value = match decide(standing.old.as_ref().filter(|_| standing.live))? {
            Plan::Refuse(outcome) => return Ok(Attempt::Done(outcome(Ticket::DURABLE))),
            Plan::Put { value, expires_at } => {
                header.expires_at = expires_at;
                value
            }
            Plan::Delete => {
                header.kind = Kind::Delete;
                Cow::Borrowed([].as_slice())
            }
        };
        if value.len() > self.value_max() {
            return Err(Error::ValueTooLong { len: value.len(), max: self.value_max() });
        }
        let len = header.record_len(key, value.len());
        let place = standing.place.or_else(|| locked.leaf.vacancy());
        let Some(place) = place.filter(|_| len <= self.room(&locked)) else {
            return Ok(Attempt::NeedRoom(len, header.kind));
        };
        self.append(locked, (key, &value), header, &standing, place).map(Attempt::Done)
    }

    /// Appends the record, makes it durable, publishes it.
    fn append(
        &self,
        locked: Locked<'_>,
        (key, value): (&[u8], &[u8]),
        mut header: Header,
        standing: &Standing<'_>,
        place: usize,
    ) -> Result<Outcome> {
        let floor = header.sequence.map_or(0, |given| given.saturating_sub(1));
        header.version = self.draw_version(&locked, floor)?;
        let (page, held) = (locked.page, locked.held);
        let birth = held.birth();
        let past_caches = self.space.append_mode() == WriteMode::NonTemporal;
        let (offset, len) = self.append_to(page, |writer| {
            let offset = writer.next_offset();
            let encoded = self.encode(birth, offset, &header, key, value);
            let parts = [encoded.bytes(), key, value];
            if past_caches {
                writer.append_nt(&parts)?;
            } else {
                writer.append(&parts)?;
                writer.flush_from(offset);
            }
            Some((offset - self.space.start_of(page), writer.next_offset() - offset))
        })?;
        let replaced = standing.live;
        let was_record = standing.old.is_some_and(|old| old.header.kind == Kind::Put);
        let is_record = header.kind == Kind::Put;
        self.count(i64::from(is_record) - i64::from(was_record));
        let old_len = standing.old.map_or(0, |old| old.len());
        held.publish(place, (tag_of(key), offset as u32, len as u32), old_len);
        let sequence = header.sequence.unwrap_or(header.version);
        Ok(Outcome::Written(Written { sequence, ticket: Ticket::DURABLE, replaced }))
    }

    /// The version of a write: above all that its leaf has given out.
    fn draw_version(&self, locked: &Locked<'_>, floor: u64) -> Result<u64> {
        let base = self.version_base.load(Ordering::Acquire);
        let version = locked.held.give(base.max(floor));
        if version >= base + STEP / 2 {
            self.raise_version_base(version)?;
        }
        Ok(version)
    }

    /// Raises the base of versions by a step, and to `version` at least; the new base.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn raise_version_base(&self, version: u64) -> Result<u64> {
        let _changing = spin::lock(&self.root_change);
        let root = Root::from_words(self.pool.root());
        let version_base = (root.version_base + STEP).max(version);
        self.set_root(Root { version_base, ..root })?;
        self.version_base.store(version_base, Ordering::Release);
        Ok(version_base)
    }
}
