//! Writing: the record behind the others of its leaf, one fence, then its place. (Where a fence is a
//! sync it is waited for last of all: see [`durable`](crate::volume::durable).)
//!
//! The writer holds the lock of the leaf from the look at the old record to the new one's place, so
//! that a read-modify-write is one step and versions follow the order of publication. A leaf
//! without room is written anew first ([`rewrite`](crate::tree::rewrite)), and the look repeated.

use crate::leaf::tag_of;
use crate::read::get::Whole;
use crate::tree::image::{Counted, Item, Source, live_len};
use crate::tree::lock::Locked;
use crate::tree::look::Standing;
use crate::volume::durable::Level;
use crate::volume::keys::{Rest, tag_of_field};
use crate::volume::overflow::Overflow;
use crate::volume::pages::{Demand, Patience, RESERVE};
use crate::volume::root::STEP;
use crate::write::Writer;
use crate::write::plan::{Decide, Plan, RestsOn};
use coreplane_engine::{
    Batch, Beside, Change, Error, Outcome, Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageWriter, WriteMode, epoch, mutant};
use coreplane_record::{HEADER, Header, Kind, View};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// A large value that was decided on and written. It is what to write as long as nobody has written
/// the key since: the decision is not made twice.
struct Prepared<'s> {
    overflow: Overflow<'s>,
    seen: Option<u64>,
    expires_at: Option<UnixMillis>,
}

/// What a record takes the place of. Not the record, which is a view: what is copied as a whole right
/// behind its making waits for what was stored before it, which is what was appended.
#[derive(Debug, Clone, Copy, Default)]
struct Replaced {
    is_live: bool,
    /// Bytes of the page.
    len: u32,
    counted: Counted,
}

/// What was written ahead of a record.
#[derive(Default)]
struct Preparation<'s> {
    value: Option<Prepared<'s>>,
    /// That of the key. It stays what it is whatever is decided.
    rest: Option<Rest<'s>>,
    /// What it asks of the pages, and how many bytes of its leaf.
    demand: Demand,
    len: usize,
    /// There was no page for it, and its leaf was to share with others.
    is_spread: bool,
}

impl Preparation<'_> {
    /// True once, for what takes the place of another record.
    fn may_spread(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.is_spread, true);
        is_first && self.len > 0 && self.demand != Demand::Insert
    }
}

enum Attempt {
    Done(Outcome),
    /// A delete, of which the leaf has so little left that it could be one with another.
    LeftLittle(Outcome),
    /// The value is large and not yet in pages of its own; the version of the live record in sight
    /// of which it was decided.
    NeedOverflow(Vec<u8>, Option<u64>, Option<UnixMillis>),
    /// The key is long, the leaf does not know it, and its rest is not yet in pages of its own.
    NeedRest(Kind),
    /// The leaf has no room for a record so long, or no place for another key.
    NeedRoom(usize, Demand),
    /// The key is there, and its rest is damaged: the leaf is to be written anew with this in its place.
    InPlaceOf(Change),
}

impl Writer {
    /// Writes `key` as `decide` says.
    pub(crate) fn write(
        &self,
        key: &[u8],
        (options, rests_on): (&WriteOptions, RestsOn),
        decide: Decide<'_, '_>,
    ) -> Result<Outcome> {
        self.check_writable()?;
        self.check_key(key)?;
        self.check_sequence(options.sequence)?;
        let (mut preparation, mut patience) = (Preparation::default(), Patience::default());
        loop {
            match self.step(key, (options, rests_on), &mut preparation, decide) {
                Ok(Some(outcome)) => return self.finish(outcome, options),
                Ok(None) => {}
                // Pages that somebody may still read come back soon.
                Err(Error::NoSpace { .. })
                    if self.finds_more(preparation.demand, &mut patience)? => {}
                Err(Error::NoSpace { .. })
                    if preparation.may_spread() && self.spread(key, preparation.len)? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Tries to write, or sees to it that the next try has what it needs.
    fn step<'s>(
        &'s self,
        key: &[u8],
        (options, rests_on): (&WriteOptions, RestsOn),
        preparation: &mut Preparation<'s>,
        decide: Decide<'_, '_>,
    ) -> Result<Option<Outcome>> {
        match self.attempt(key, (options, rests_on), preparation, decide)? {
            Attempt::Done(outcome) => return Ok(Some(outcome)),
            Attempt::LeftLittle(outcome) => {
                self.merge_after(key);
                return Ok(Some(outcome));
            }
            Attempt::NeedOverflow(value, seen, expires_at) => {
                let demand = Demand::of(Kind::Put, seen.is_some());
                preparation.demand = if options.use_reserve { Demand::Reserve } else { demand };
                let overflow =
                    self.write_overflow(&value, self.pages.reserve(preparation.demand))?;
                preparation.value = Some(Prepared { overflow, seen, expires_at });
            }
            Attempt::NeedRest(kind) => {
                let use_reserve = options.use_reserve || kind == Kind::Delete;
                preparation.rest =
                    Some(self.write_rest(key, if use_reserve { 0 } else { RESERVE })?);
                self.fence()?;
            }
            Attempt::InPlaceOf(change) => {
                let mut batch = Batch::new();
                batch.push(change.as_ref());
                return Ok(Some(Outcome::Written(self.apply(&batch, options)?)));
            }
            Attempt::NeedRoom(len, demand) => {
                let demand = if options.use_reserve { Demand::Reserve } else { demand };
                (preparation.demand, preparation.len) = (demand, len);
                self.make_room(key, len, demand)?;
            }
        }
        Ok(None)
    }

    /// What is answered where the record that is there is newer than what was given.
    #[inline]
    fn not_newer(
        &self,
        locked: &Locked<'_>,
        standing: &Standing<'_>,
        options: &WriteOptions,
    ) -> Result<Option<Outcome>> {
        let newer = |old: &View<'_>| options.sequence.is_some_and(|given| given <= old.sequence());
        let Some(old) = standing.old.as_ref().filter(|old| newer(old)) else { return Ok(None) };
        let ticket = self.refused(locked, standing, options)?;
        Ok(Some(Outcome::NotNewer(old.sequence(), ticket)))
    }

    /// Nothing is written: what that rests on is as durable as the write would have been.
    ///
    /// # Errors
    /// If the medium fails.
    fn refused(
        &self,
        locked: &Locked<'_>,
        standing: &Standing<'_>,
        options: &WriteOptions,
    ) -> Result<Ticket> {
        if self.level(options) == Level::Covered
            && let Some(ticket) = self.unproven(locked.page)
        {
            return Ok(ticket);
        }
        Ok(self.rests_on_old(locked.page, standing.old.as_ref()))
    }

    fn attempt<'s>(
        &'s self,
        key: &[u8],
        (options, rests_on): (&WriteOptions, RestsOn),
        preparation: &mut Preparation<'s>,
        decide: Decide<'_, '_>,
    ) -> Result<Attempt> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, HEADER + key.len())?;
        let standing = self.look_to_write(&guard, locked.page, locked.leaf, key)?;
        if let Some(outcome) = self.not_newer(&locked, &standing, options)? {
            return Ok(Attempt::Done(outcome));
        }
        if rests_on != RestsOn::Nothing {
            self.check_old(&guard, &locked, key, &standing)?;
        }
        if standing.is_hurt {
            return self.attempt_hurt(key, decide);
        }
        let live = standing.old.filter(|_| standing.live);
        let seen = live.map(|view| view.header.version);
        // What was written for a decision that is out of date is given back.
        let ready = preparation.value.take().filter(|ready| ready.seen == seen);
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
        let field = match (&standing.old, &preparation.rest) {
            _ if !self.is_long(key) => key,
            (Some(old), _) => old.key(),
            (None, Some(rest)) => rest.field(),
            (None, None) => {
                drop(value);
                preparation.value = ready;
                return Ok(Attempt::NeedRest(header.kind));
            }
        };
        let len = header.record_len(field, value.len());
        let place = standing.place.or_else(|| locked.leaf.vacancy());
        let Some(place) = place.filter(|_| len <= self.room(&locked)) else {
            drop(value);
            preparation.value = ready;
            return Ok(Attempt::NeedRoom(len, Demand::of(header.kind, standing.live)));
        };
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

    /// The live record, as far as it is asked what was there.
    ///
    /// # Errors
    /// If its value matters and is not what was written.
    #[inline]
    fn asked<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
        (live, rests_on): (Option<View<'g>>, RestsOn),
    ) -> Result<Option<Whole<'g>>> {
        let Some(view) = live.filter(|_| rests_on != RestsOn::Nothing) else { return Ok(None) };
        if rests_on == RestsOn::Value {
            self.check(guard, &view, locked.held.birth())?;
        }
        self.whole(guard, view).map(Some)
    }

    /// # Errors
    /// If nobody can say what was there before.
    fn check_old(
        &self,
        guard: &Guard,
        locked: &Locked<'_>,
        key: &[u8],
        standing: &Standing<'_>,
    ) -> Result<()> {
        match standing.old.filter(|_| standing.is_hurt) {
            Some(old) => Err(self.damaged_key(guard, old.offset, old.key())),
            None if standing.is_doubtful => Err(self.in_doubt(guard, locked.page)),
            None if self.check_reads && standing.old.is_none() => {
                self.check_others(guard, locked.page, locked.leaf, key)
            }
            None => Ok(()),
        }
    }

    /// What comes of a write to a long key whose rest is damaged, and which does not ask what was there.
    #[cold]
    fn attempt_hurt(&self, key: &[u8], decide: Decide<'_, '_>) -> Result<Attempt> {
        let key = key.to_vec();
        Ok(match decide(None)? {
            Plan::Refuse(outcome) => Attempt::Done(outcome(self.visible_ticket())),
            Plan::Put { value, expires_at } => {
                Attempt::InPlaceOf(Change::Put { key, value: value.into_owned(), expires_at })
            }
            Plan::Delete => Attempt::InPlaceOf(Change::Delete { key }),
        })
    }

    /// Puts a value that is not large, whatever was there: the record goes ahead of the look at what
    /// it replaces, so that the medium and the look take their time side by side. None if the leaf
    /// has no room, or no place for one key more; or if its record may be newer than the sequence
    /// that is given. For what was appended is there for a recovery, whose newest would be the last. Nor
    /// is it put beside another if its fence is not an instruction and its own.
    #[inline(always)]
    pub(crate) fn put_ahead(
        &self,
        (key, value): (&[u8], &[u8]),
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Result<Option<Written>> {
        if beside.is_some() && self.early.is_some() {
            return Ok(None);
        }
        let guard = epoch::pin();
        let tag = tag_of(key);
        let locked = self.lock_to_append((key, tag), HEADER + key.len() + value.len())?;
        // No sequence in a leaf is above the versions that it has given.
        let is_older = options.sequence.is_some_and(|given| given <= locked.held.given());
        if is_older && !mutant!("bptree.put.older_ahead") {
            return Ok(None);
        }
        let (expires_at, sequence) = (options.expires_at, options.sequence);
        let follows = self.is_proven(locked.page);
        let mut header = Header { expires_at, sequence, follows, ..Header::put(0) };
        let has_room = header.record_len(key, value.len()) <= self.room(&locked);
        let Some(vacancy) = locked.leaf.vacancy().filter(|_| has_room) else { return Ok(None) };
        header.version = self.draw_version(&locked, header.sequence)?;
        let (page, leaf, birth) = (locked.page, locked.leaf, locked.held.birth());
        let (mut place, mut replaced, mut large) = (vacancy, Replaced::default(), None);
        let mut damage = None;
        let record = |writer: &mut PageWriter| {
            let appended = self.write_record(writer, birth, &header, key, value)?;
            let standing = match self.look_for(&guard, page, leaf, (key, tag, 1)) {
                Ok(standing) => standing,
                Err(error) => {
                    // With damage in sight nothing is published.
                    damage = Some(error);
                    return None;
                }
            };
            replaced = self.replaced(&standing);
            place = standing.place.unwrap_or(vacancy);
            large = standing.old.filter(|old| old.header.large);
            Some(appended)
        };
        let appended = match beside {
            None => self.append_to(page, record).map(Some),
            Some(beside) => self.append_beside(page, &mut { record }, beside),
        };
        let Some(appended) = damage.map_or(appended, Err)? else { return Ok(None) };
        let item = Item { header, key, value, source: Source::Caller };
        let written = self.publish(locked, &item, options, replaced, (place, tag, appended));
        if let Some(old) = large {
            self.retire_overflow_after(&guard, &old);
        }
        Ok(Some(written))
    }

    /// What is in sight, as far as it matters to what takes its place.
    #[inline(always)]
    fn replaced(&self, standing: &Standing<'_>) -> Replaced {
        let Some(old) = &standing.old else { return Replaced::default() };
        Replaced { is_live: standing.live, len: live_len(old), counted: self.counted(old) }
    }

    /// Appends the record in sight of what it replaces, makes it durable, publishes it.
    fn append(
        &self,
        locked: Locked<'_>,
        (key, value): (&[u8], &[u8]),
        (mut header, options): (Header, &WriteOptions),
        standing: &Standing<'_>,
        place: usize,
    ) -> Result<Attempt> {
        header.version = self.draw_version(&locked, header.sequence)?;
        header.follows = self.is_proven(locked.page) || mutant!("bptree.put.follows");
        let (leaf, birth) = (locked.leaf, locked.held.birth());
        let appended = self.append_to(locked.page, |writer| {
            self.write_record(writer, birth, &header, key, value)
        })?;
        let item = Item { header, key, value, source: Source::Caller };
        let replaced = self.replaced(standing);
        let tag = tag_of_field(key, self.field_max());
        let written = self.publish(locked, &item, options, replaced, (place, tag, appended));
        let outcome = Outcome::Written(written);
        let leaves_little = header.kind == Kind::Delete && leaf.live() < self.space.page_size() / 4;
        Ok(if leaves_little { Attempt::LeftLittle(outcome) } else { Attempt::Done(outcome) })
    }

    /// Writes a record behind the others of a page, and flushes it; where in the page.
    fn write_record(
        &self,
        writer: &mut PageWriter,
        birth: u64,
        header: &Header,
        key: &[u8],
        value: &[u8],
    ) -> Option<u32> {
        let offset = writer.next_offset();
        let encoded = self.encode(birth, offset, header, key, value);
        let parts = [encoded.bytes(), key, value];
        if self.space.append_mode() == WriteMode::NonTemporal {
            writer.append_nt(&parts)?;
        } else {
            writer.append_in_words(&parts)?;
            if !mutant!("bptree.put.flush") {
                writer.flush_from(offset);
            }
        }
        Some((offset - self.space.start_of(writer.page())) as u32)
    }

    /// Lets readers find a record that was appended.
    #[inline(always)]
    fn publish(
        &self,
        mut locked: Locked<'_>,
        item: &Item<'_>,
        options: &WriteOptions,
        replaced: Replaced,
        (place, tag, offset): (usize, u8, u32),
    ) -> Written {
        let generation = self.cover();
        // Under the lock: who has shut all leaves finds counted what is there.
        self.count_write(item, replaced.counted);
        locked.held.begin();
        self.note(locked.page, offset, generation, self.level(options));
        locked.held.set(place, (tag, offset, item.live_len()), replaced.len);
        if item.header.large {
            locked.held.note_large();
        }
        if self.is_long(item.key) {
            locked.held.note_long();
        }
        drop(locked);
        let sequence = item.header.sequence.unwrap_or(item.header.version);
        let ticket = self.written_ticket(generation, item.len(), options);
        Written { sequence, ticket, replaced: replaced.is_live }
    }

    /// The version of a write: above all that its leaf has given out, and no less than the sequence
    /// that was given. Of others it is above the base.
    fn draw_version(&self, locked: &Locked<'_>, sequence: Option<u64>) -> Result<u64> {
        let base = self.version_base.load(Ordering::Acquire);
        let version = locked.held.give(sequence.map_or(base, |given| given.saturating_sub(1)));
        if version >= base + STEP / 2 {
            self.raise_version_base(version)?;
        }
        Ok(version)
    }
}
