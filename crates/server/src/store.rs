//! The path from commands to the engine, directly or through the pending changes of an `EXEC`.
//!
//! Outside a transaction every call goes straight to the engine: writes return at once ([`Completion::Early`]), reads
//! see writes that are not durable yet ([`Visibility::Early`]), and the tickets of both are gathered in the turn's
//! horizon, for which the answers wait.
//!
//! Inside `EXEC` the writes go to an [`Overlay`], which later reads of the same transaction see; at the end it
//! becomes one [`Batch`], so that a crash keeps all of the transaction or nothing. `EXEC` is alone among the event
//! loops, so its reads are still valid when it writes.

mod draw;

pub(crate) use draw::{Drawn, Walk};

use crate::overlay::{Look, Overlay};
use crate::watch::WatchedAbsences;
use coreplane::admin::{check_batch, check_key};
use coreplane_engine::{
    Batch, Clear, Completion, Deferred, Entry, Error, Horizon, Limits, Mutation, Outcome, Record,
    Result, Ticket, UnixMillis, Visibility, WriteOptions,
};

/// A cursor among the records that a transaction has made: this bit, and a number from bit 38 on. No engine gives
/// it out, and each takes it for the beginning: a client that goes on with it behind `EXEC` is shown all.
const MADE: u64 = 1 << 62;
const MADE_SHIFT: u32 = 38;

/// The path from commands to the engine.
pub(crate) struct Store<'a> {
    engine: &'a dyn Deferred,
    watched: &'a WatchedAbsences,
    horizon: &'a mut Horizon,
    overlay: Option<Overlay>,
    /// The engine's number of leaderships when the transaction began.
    leadership: u64,
    /// The walk of the last draw, for the next one of the transaction.
    walk: Option<Walk>,
    /// The number of records of the engine, as a transaction has asked for it; the outer is none before.
    engine_len: Option<Option<u64>>,
    /// Answers wait for durability.
    withholds: bool,
    /// The results depend on a write that is not durable yet.
    pub rests: bool,
    /// Something was written.
    pub has_written: bool,
}

impl<'a> Store<'a> {
    /// Calls go straight to `engine`; the tickets that answers depend on are added to `horizon` if answers have to
    /// wait.
    pub(crate) fn new(
        engine: &'a dyn Deferred,
        watched: &'a WatchedAbsences,
        horizon: &'a mut Horizon,
        withholds: bool,
    ) -> Self {
        Self {
            engine,
            watched,
            horizon,
            overlay: None,
            leadership: 0,
            walk: None,
            engine_len: None,
            withholds,
            rests: false,
            has_written: false,
        }
    }

    /// Collects changes from now on, until [`Store::finish`]: of so many commands, whose words have so many bytes.
    pub(crate) fn begin(&mut self, commands: usize, bytes: usize) {
        self.leadership = self.engine.leaderships();
        self.overlay = Some(Overlay::with_capacity(self.engine.now(), commands, bytes));
    }

    /// True if changes are being collected.
    pub(crate) fn keeps_back(&self) -> bool {
        self.overlay.is_some()
    }

    /// True if the collected changes remove every record.
    pub(crate) fn clears(&self) -> bool {
        self.overlay.as_ref().is_some_and(Overlay::clears)
    }

    /// Makes the collected changes, all or none: none, too, if another node may have written since [`Store::begin`].
    /// That is an error even if there are no changes, since the reads may be of several moments.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let Some(mut overlay) = self.overlay.take() else {
            return Ok(());
        };
        overlay.check()?;
        // Where others can observe a part of a clear, or a crash can leave one, that of a transaction is a batch.
        let is_whole = !self.engine.settles_by_itself() && self.engine.clears_at_once();
        if overlay.clears() && overlay.is_empty() && is_whole {
            return self.clear_step(&mut Clear::default()).map(|_| ());
        }
        let limits = self.engine.limits();
        if !overlay.clears() {
            return self.apply_kept(overlay.into_batch(&limits)?);
        }
        let mut batch = Batch::new();
        let changes = overlay.last_changes();
        self.keys_to_clear(&limits, &mut batch)?;
        for change in changes {
            batch.push(change);
        }
        batch.check(&limits)?;
        self.apply_kept(batch)
    }

    /// Drops the collected changes.
    pub(crate) fn discard(&mut self) {
        self.overlay = None;
    }

    fn apply_kept(&mut self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            let is_held = self.engine.leaderships() == self.leadership;
            return is_held.then_some(()).ok_or(Error::Busy);
        }
        let options = Self::options(None);
        let written = self.engine.apply_within(self.leadership, &batch, &options)?;
        self.note(&batch, written.ticket);
        Ok(())
    }

    fn note(&mut self, batch: &Batch, ticket: Ticket) {
        self.has_written = true;
        self.rest_on(ticket);
        for change in batch.changes() {
            self.watched.written(change.key());
        }
    }

    /// Adds a delete of every record to `batch`, unless that exceeds the limits.
    fn keys_to_clear(&mut self, limits: &Limits, batch: &mut Batch) -> Result<()> {
        let mut cursor = 0;
        loop {
            cursor = self.engine.iterate(cursor, 1024, &mut |entry| {
                batch.delete(entry.key);
            })?;
            batch.check(limits)?;
            if cursor == 0 {
                // The batch may be empty, and what was not met deleted a moment ago.
                if !coreplane_pmem::mutant!("server.clear.rest") {
                    self.rest_on_all();
                }
                return Ok(());
            }
        }
    }

    fn rest_on(&mut self, ticket: Ticket) {
        if self.withholds && !ticket.is_durable() {
            self.horizon.include(ticket);
            self.rests = true;
        }
    }

    fn options(expires_at: Option<UnixMillis>) -> WriteOptions {
        WriteOptions { expires_at, completion: Completion::Early, ..WriteOptions::default() }
    }

    /// Shows the record of `key`; false if there is none.
    pub(crate) fn read(&mut self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        if let Some(overlay) = &mut self.overlay {
            match overlay.look(key) {
                Look::Present(record) => {
                    visit(record);
                    return Ok(true);
                }
                Look::Absent => return Ok(false),
                Look::Unchanged => {}
            }
        }
        let found = self.engine.get_with(key, Visibility::Early, visit)?;
        self.rest_on(found.ticket);
        Ok(found.hit)
    }

    /// True if there is a record of `key`.
    pub(crate) fn contains(&mut self, key: &[u8]) -> Result<bool> {
        self.read(key, &mut |_| {})
    }

    /// Shows the records of `keys`, each with its index, in any order, as of one moment.
    pub(crate) fn read_many(
        &mut self,
        keys: &[&[u8]],
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<()> {
        if self.overlay.is_some() {
            for (index, key) in keys.iter().enumerate() {
                if !self.read(key, &mut |record| visit(index, Some(record)))? {
                    visit(index, None);
                }
            }
            return Ok(());
        }
        let horizon = self.engine.multi_get(keys, Visibility::Early, visit)?;
        for ticket in horizon.tickets() {
            self.rest_on(*ticket);
        }
        Ok(())
    }

    /// Writes `value` for `key`.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at: Option<UnixMillis>,
    ) -> Result<()> {
        check_key(key)?;
        if let Some(overlay) = &mut self.overlay {
            overlay.put(key, value, expires_at);
            return Ok(());
        }
        let outcome = self.engine.put(key, value, &Self::options(expires_at))?;
        self.done(key, outcome);
        Ok(())
    }

    /// Writes `value` if `key` is absent (`present` false) or exists (`present` true); false if the condition does
    /// not hold.
    pub(crate) fn put_if(
        &mut self,
        key: &[u8],
        present: bool,
        value: &[u8],
        expires_at: Option<UnixMillis>,
    ) -> Result<bool> {
        check_key(key)?;
        if self.overlay.is_some() {
            let fits = self.contains(key)? == present;
            if fits {
                self.put(key, value, expires_at)?;
            }
            return Ok(fits);
        }
        let options = Self::options(expires_at);
        let outcome = if present {
            self.engine.update(key, value, &options)?
        } else {
            self.engine.insert(key, value, &options)?
        };
        Ok(self.done(key, outcome))
    }

    /// Deletes the record of `key`; false if there was none.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        if self.overlay.is_some() {
            let was_there = self.contains(key)?;
            // A delete of an absent key is no write, and changes nothing for those who watch the key.
            if was_there && let Some(overlay) = &mut self.overlay {
                overlay.delete(key);
            }
            return Ok(was_there);
        }
        let outcome = self.engine.delete(key, &Self::options(None))?;
        Ok(self.done(key, outcome))
    }

    /// Reads, decides, writes; no other write comes between. `decide` may run more than once. True if something was
    /// written.
    pub(crate) fn modify(
        &mut self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<bool> {
        check_key(key)?;
        if self.overlay.is_some() {
            return self.modify_overlay(key, decide);
        }
        let outcome = self.engine.modify(key, &Self::options(None), decide)?;
        Ok(self.done(key, outcome))
    }

    fn modify_overlay(
        &mut self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<bool> {
        let mut mutation = Mutation::Keep;
        let mut value = Vec::new();
        let was_there = self.read(key, &mut |record| {
            mutation = decide(Some(record));
            if matches!(mutation, Mutation::Expire(_)) {
                value = record.value.to_vec();
            }
        })?;
        if !was_there {
            mutation = decide(None);
        }
        let Some(overlay) = &mut self.overlay else {
            return Ok(false);
        };
        match mutation {
            Mutation::Put { value, expires_at } => overlay.put(key, &value, expires_at),
            Mutation::Expire(expires_at) if was_there => overlay.put(key, &value, expires_at),
            Mutation::Delete if was_there => overlay.delete(key),
            Mutation::Keep | Mutation::Delete | Mutation::Expire(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Makes all changes or none.
    pub(crate) fn apply(&mut self, batch: Batch) -> Result<()> {
        self.write(batch, None)
    }

    /// As [`Store::apply`], for changes that depend on reads. `leadership` is what [`Store::leaderships`] returned
    /// before those reads: if another node may have written since then, no change is made, and the error is
    /// [`Error::Busy`].
    pub(crate) fn apply_within(&mut self, leadership: u64, batch: Batch) -> Result<()> {
        self.write(batch, Some(leadership))
    }

    fn write(&mut self, batch: Batch, leadership: Option<u64>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        check_batch(&batch)?;
        if let Some(overlay) = &mut self.overlay {
            // The transaction as a whole belongs to one leadership.
            overlay.add(&batch);
            return Ok(());
        }
        let options = Self::options(None);
        let written = match leadership {
            Some(leadership) => self.engine.apply_within(leadership, &batch, &options)?,
            None => self.engine.apply(&batch, &options)?,
        };
        self.note(&batch, written.ticket);
        Ok(())
    }

    /// Notes a write; true if something was written.
    fn done(&mut self, key: &[u8], outcome: Outcome) -> bool {
        self.rest_on(outcome.ticket());
        let is_written = outcome.written().is_some();
        if is_written {
            self.has_written = true;
            self.watched.written(key);
        }
        is_written
    }

    /// Iterates as [`Engine::iterate`] does, through the records that a transaction has made first. A key that was not
    /// met may have been deleted a moment ago: so the caller must call [`Store::rest_on_all`], too.
    pub(crate) fn iterate(
        &mut self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let mut cursor = cursor;
        let is_made = cursor >> 62 == 1 && cursor.trailing_zeros() >= MADE_SHIFT;
        if let Some(overlay) = self.overlay.as_mut().filter(|_| cursor == 0 || is_made) {
            let from = (cursor & !MADE) >> MADE_SHIFT;
            // More than a cursor has room for are shown at once.
            let some = if from >> 23 == 0 { count.max(1) } else { usize::MAX };
            if let Some(next) = overlay.live(from as usize, some, visit) {
                return Ok(MADE | (next as u64) << MADE_SHIFT);
            }
            cursor = 0;
        }
        self.iterate_unchanged(cursor, count, visit)
    }

    /// As [`Store::iterate`], but shows only records of keys that a transaction has not changed.
    pub(crate) fn iterate_unchanged(
        &mut self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        if self.clears() {
            return Ok(0);
        }
        let mut tickets = Horizon::new();
        let overlay = &mut self.overlay;
        let next = self.engine.iterate(cursor, count, &mut |entry| {
            if overlay.as_mut().is_some_and(|overlay| overlay.changes(entry.key)) {
                return;
            }
            if let Some(record) = &entry.record {
                tickets.include(record.ticket);
            }
            visit(entry);
        })?;
        for ticket in tickets.tickets() {
            self.rest_on(*ticket);
        }
        Ok(next)
    }

    /// Visits the records of a range in the order of keys, as [`Ordered::scan`](coreplane_engine::Ordered::scan)
    /// does, without the changes of a transaction. As for [`Store::iterate`], the caller must call
    /// [`Store::rest_on_all`].
    pub(crate) fn range(
        &mut self,
        (start, end): (&[u8], Option<&[u8]>),
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let (engine, operation) = (self.engine.name(), "going through keys in their order");
        let ordered = self.engine.ordered().ok_or(Error::Unsupported { engine, operation })?;
        let mut tickets = Horizon::new();
        ordered.scan(start, end, reverse, limit, &mut |entry| {
            if let Some(record) = &entry.record {
                tickets.include(record.ticket);
            }
            visit(entry)
        })?;
        for ticket in tickets.tickets() {
            self.rest_on(*ticket);
        }
        Ok(())
    }

    /// The number of records.
    pub(crate) fn len(&mut self) -> Result<u64> {
        let len = if self.clears() { 0 } else { self.engine.len()? };
        let (made, replaced) = self.changed()?;
        self.rest_on_all();
        Ok(len.saturating_sub(replaced) + made)
    }

    /// The number of records that a transaction has made, and of those of the engine that it has replaced or deleted.
    fn changed(&mut self) -> Result<(u64, u64)> {
        let Some(mut overlay) = self.overlay.take() else { return Ok((0, 0)) };
        // Without the overlay, since the records of the engine are meant.
        let replaced = match overlay.clears() {
            true => Ok(0),
            false => overlay.replaced(&mut |key| self.contains(key)),
        };
        let made = overlay.live_len();
        self.overlay = Some(overlay);
        Ok((made, replaced?))
    }

    /// Deletes the existing ones of `keys`, each of which is named once, as one of several steps; returns their
    /// number. All steps belong to one leadership. The answer to all of them must wait for [`Store::rest_on_all`];
    /// not within a transaction.
    pub(crate) fn delete_step(&mut self, leadership: u64, keys: &[&[u8]]) -> Result<usize> {
        let mut batch = Batch::new();
        self.engine.multi_get(keys, Visibility::Early, &mut |index, record| {
            if let Some(key) = keys.get(index).filter(|_| record.is_some()) {
                batch.delete(key);
            }
        })?;
        if !batch.is_empty() {
            self.engine.apply_within(leadership, &batch, &Self::options(None))?;
            batch.changes().for_each(|change| self.watched.written(change.key()));
        }
        Ok(batch.len())
    }

    /// The engine's number of leaderships.
    pub(crate) fn leaderships(&self) -> u64 {
        self.engine.leaderships()
    }

    /// The time with which expiries are compared; within a transaction, the time at which it began. It is asked for
    /// when a command needs it: other loops may have held this one up since its turn began.
    pub(crate) fn now(&self) -> UnixMillis {
        self.overlay.as_ref().map_or_else(|| self.engine.now(), Overlay::began_at)
    }

    /// Makes the answer wait for all earlier writes, and so for all that was read before.
    pub(crate) fn rest_on_all(&mut self) {
        self.rest_on(self.engine.visible_ticket());
    }

    /// Removes every record, or some of them; true if none is left.
    pub(crate) fn clear_step(&mut self, clear: &mut Clear) -> Result<bool> {
        if let Some(overlay) = &mut self.overlay {
            overlay.clear();
            return Ok(true);
        }
        let step = self.engine.clear_step(clear);
        // Whether it succeeded or not.
        self.watched.cleared();
        let Some(ticket) = step? else { return Ok(false) };
        self.rest_on(ticket);
        Ok(true)
    }
}
