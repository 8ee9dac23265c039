//! Writing: the record behind the others of its leaf, one fence, then its place.
//!
//! The writer holds the lock of the leaf from the look at the old record to the new one's place, so
//! that a read-modify-write is one step and versions follow the order of publication. A leaf
//! without room is written anew first ([`rewrite`](crate::rewrite)), and the look repeated.

use crate::counters::Count;
use crate::pages::RESERVE;
use crate::pieces::Pieces;
use crate::get::Whole;
use crate::leaf::tag_of;
use crate::rewrite::live_len;
use crate::store::{Locked, Root, STEP, Standing, Store};
use coreplane_engine::{
    Error, Outcome, Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::{WriteMode, epoch, spin};
use coreplane_record::{Header, Kind};
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
pub(crate) type Decide<'d, 'v> = &'d mut dyn FnMut(Option<&Whole<'_>>) -> Result<Plan<'v>>;

/// A large value that was decided on and written. It is what to write as long as nobody has written
/// the key since: the decision is not made twice.
struct Prepared<'s> {
    pieces: Pieces<'s>,
    seen: Option<u64>,
    expires_at: Option<UnixMillis>,
}

enum Attempt {
    Done(Outcome),
    /// A delete, of which the leaf has so little left that it could be one with another.
    LeftLittle(Outcome),
    /// The value is large and not yet in pages of its own; the version of the live record in sight
    /// of which it was decided.
    NeedPieces(Vec<u8>, Option<u64>, Option<UnixMillis>),
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
        let mut prepared = None;
        loop {
            match self.attempt(key, options, &mut prepared, decide)? {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::LeftLittle(outcome) => {
                    self.merge_at(key)?;
                    return Ok(outcome);
                }
                Attempt::NeedPieces(value, seen, expires_at) => {
                    let pieces = self.write_pieces(&value, RESERVE)?;
                    prepared = Some(Prepared { pieces, seen, expires_at });
                }
                Attempt::NeedRoom(len, kind) => self.make_room(key, len, kind)?,
            }
        }
    }

    fn attempt<'s>(
        &'s self,
        key: &[u8],
        options: &WriteOptions,
        prepared: &mut Option<Prepared<'s>>,
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
        let live = standing.old.filter(|_| standing.live);
        let seen = live.map(|view| view.header.version);
        // What was written for a decision that is out of date is given back.
        let ready = prepared.take().filter(|ready| ready.seen == seen);
        let mut header = Header { sequence: options.sequence, ..Header::put(0) };
        let value = match &ready {
            Some(Prepared { pieces, expires_at, .. }) => {
                (header.large, header.expires_at) = (true, *expires_at);
                Cow::Borrowed(pieces.name())
            }
            None => {
                let live = live.map(|view| self.whole(&guard, view)).transpose()?;
                match decide(live.as_ref())? {
                    Plan::Refuse(outcome) => return Ok(Attempt::Done(outcome(Ticket::DURABLE))),
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
            return Ok(Attempt::NeedPieces(value.into_owned(), seen, header.expires_at));
        }
        let len = header.record_len(key, value.len());
        let place = standing.place.or_else(|| locked.leaf.vacancy());
        let Some(place) = place.filter(|_| len <= self.room(&locked)) else {
            drop(value);
            *prepared = ready;
            return Ok(Attempt::NeedRoom(len, header.kind));
        };
        let attempt = self.append(locked, (key, &value), header, &standing, place)?;
        drop(value);
        if let Some(ready) = ready {
            ready.pieces.own();
        }
        if let Some(old) = standing.old.filter(|old| old.header.large) {
            self.retire_pieces(&guard, &old)?;
        }
        Ok(attempt)
    }

    /// Appends the record, makes it durable, publishes it.
    fn append(
        &self,
        locked: Locked<'_>,
        (key, value): (&[u8], &[u8]),
        mut header: Header,
        standing: &Standing<'_>,
        place: usize,
    ) -> Result<Attempt> {
        let floor = header.sequence.map_or(0, |given| given.saturating_sub(1));
        header.version = self.draw_version(&locked, floor)?;
        let (page, leaf, held) = (locked.page, locked.leaf, locked.held);
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
        let old_len = standing.old.as_ref().map_or(0, live_len);
        let is_record = header.kind == Kind::Put;
        let counters = &self.counters;
        counters.add(Count::Records, i64::from(is_record) - i64::from(old_len > 0));
        counters.add(if is_record { Count::Puts } else { Count::Deletes }, 1);
        counters.add(Count::UserBytes, (key.len() + value.len()) as i64);
        counters.add(Count::LogBytes, len as i64);
        let live_len = if is_record { len as u32 } else { 0 };
        held.publish(place, (tag_of(key), offset as u32, live_len), old_len);
        let sequence = header.sequence.unwrap_or(header.version);
        let outcome = Outcome::Written(Written { sequence, ticket: Ticket::DURABLE, replaced });
        let leaves_little = !is_record && leaf.live() < self.space.page_size() / 4;
        Ok(if leaves_little { Attempt::LeftLittle(outcome) } else { Attempt::Done(outcome) })
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
