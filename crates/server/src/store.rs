//! How commands reach the engine, directly or through the pending changes of an `EXEC`.
//!
//! Outside a transaction every call goes straight to the engine: writes return at once
//! ([`Completion::Early`]), reads see what is not durable yet ([`Visibility::Early`]), and the
//! tickets of both are gathered in the turn's horizon, for which the answers wait.
//!
//! Inside `EXEC` the writes go to an [`Overlay`] which later reads of the same transaction see;
//! at the end it is one [`Batch`], so that a crash keeps all of the transaction or
//! nothing. `EXEC` is alone among the event loops, so what it read is still true when it writes.

use crate::overlay::{Look, Overlay};
use crate::watch::WatchedAbsences;
use coreplane_engine::{
    Batch, Clear, Completion, Deferred, Entry, Error, Horizon, Limits, Mutation, Outcome, Record,
    Result, Ticket, UnixMillis, Visibility, WriteOptions,
};

/// How commands reach the engine.
pub(crate) struct Store<'a> {
    engine: &'a dyn Deferred,
    watched: &'a WatchedAbsences,
    horizon: &'a mut Horizon,
    overlay: Option<Overlay>,
    /// The engine's leaderships when the changes began to be kept back.
    leadership: u64,
    /// Answers wait for durability.
    withholds: bool,
    /// Something that was read or written is not durable yet.
    pub rests: bool,
    /// Something was written.
    pub has_written: bool,
    /// The time of the turn.
    pub now: UnixMillis,
}

impl<'a> Store<'a> {
    /// Straight to `engine`; what answers rest on is added to `horizon` if they have to wait.
    pub(crate) fn new(
        engine: &'a dyn Deferred,
        watched: &'a WatchedAbsences,
        horizon: &'a mut Horizon,
        withholds: bool,
        now: UnixMillis,
    ) -> Self {
        Self {
            engine,
            watched,
            horizon,
            overlay: None,
            leadership: 0,
            withholds,
            rests: false,
            has_written: false,
            now,
        }
    }

    /// Keeps changes back from now on, until [`Store::finish`]: of so many commands, whose words have
    /// so many bytes.
    pub(crate) fn begin(&mut self, commands: usize, bytes: usize) {
        self.leadership = self.engine.leaderships();
        self.overlay = Some(Overlay::with_capacity(commands, bytes));
    }

    /// True if changes are kept back.
    pub(crate) fn keeps_back(&self) -> bool {
        self.overlay.is_some()
    }

    /// True if every record is removed by the changes that are kept back.
    pub(crate) fn clears(&self) -> bool {
        self.overlay.as_ref().is_some_and(Overlay::clears)
    }

    /// Makes the changes that were kept back, all or none: none, too, if another node may have written since they began
    /// to be.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let Some(mut overlay) = self.overlay.take() else {
            return Ok(());
        };
        overlay.check()?;
        // Where a clear is made in steps, which others see, that of a transaction is a batch.
        if overlay.clears() && overlay.is_empty() && !self.engine.settles_by_itself() {
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

    /// Drops the changes that were kept back.
    pub(crate) fn discard(&mut self) {
        self.overlay = None;
    }

    fn apply_kept(&mut self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
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

    /// Adds a delete of every record to `batch`, unless that is over the limits.
    fn keys_to_clear(&self, limits: &Limits, batch: &mut Batch) -> Result<()> {
        let mut cursor = 0;
        loop {
            cursor = self.engine.iterate(cursor, 1024, &mut |entry| {
                batch.delete(entry.key);
            })?;
            batch.check(limits)?;
            if cursor == 0 {
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
            match overlay.look(key, self.now) {
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
        if let Some(overlay) = &mut self.overlay {
            overlay.put(key, value, expires_at);
            return Ok(());
        }
        let outcome = self.engine.put(key, value, &Self::options(expires_at))?;
        self.done(key, outcome);
        Ok(())
    }

    /// Writes `value` if `key` is absent (`present` false) or there (`present` true); false if it
    /// is not so.
    pub(crate) fn put_if(
        &mut self,
        key: &[u8],
        present: bool,
        value: &[u8],
        expires_at: Option<UnixMillis>,
    ) -> Result<bool> {
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
            if let Some(overlay) = &mut self.overlay {
                overlay.delete(key);
            }
            return Ok(was_there);
        }
        let outcome = self.engine.delete(key, &Self::options(None))?;
        Ok(self.done(key, outcome))
    }

    /// Reads, decides, writes; nothing comes between. `decide` may run more than once. True if
    /// something was written.
    pub(crate) fn modify(
        &mut self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<bool> {
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
        if batch.is_empty() {
            return Ok(());
        }
        if let Some(overlay) = &mut self.overlay {
            overlay.add(&batch);
            return Ok(());
        }
        let written = self.engine.apply(&batch, &Self::options(None))?;
        self.note(&batch, written.ticket);
        Ok(())
    }

    /// Takes note of a write; true if something was written.
    fn done(&mut self, key: &[u8], outcome: Outcome) -> bool {
        self.rest_on(outcome.ticket());
        let is_written = outcome.written().is_some();
        if is_written {
            self.has_written = true;
            self.watched.written(key);
        }
        is_written
    }

    /// Iterates as [`Engine::iterate`] does. What was not met was perhaps deleted a moment ago: the answer rests on
    /// [`Store::rest_on_all`], too.
    pub(crate) fn iterate(
        &mut self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let now = self.now;
        let mut tickets = Horizon::new();
        if let Some(overlay) = &mut self.overlay {
            if cursor == 0 {
                overlay.live(now, visit);
            }
            if overlay.clears() {
                return Ok(0);
            }
        }
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

    /// Goes through the records from a key to another in the order of keys, as
    /// [`Ordered::scan`](coreplane_engine::Ordered::scan) does; not within a transaction. As for [`Store::iterate`], the
    /// answer rests on [`Store::rest_on_all`].
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

    /// True if [`Store::range`] is there for it.
    pub(crate) fn is_ordered(&self) -> bool {
        self.overlay.is_none() && self.engine.ordered().is_some()
    }

    /// The first key of a range that is not empty, or the last; the answer rests on [`Store::rest_on_all`].
    pub(crate) fn end_of_range(
        &mut self,
        range: (&[u8], Option<&[u8]>),
        is_last: bool,
    ) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.range(range, is_last, 1, &mut |entry| {
            found = entry.record.is_some().then(|| entry.key.to_vec());
            found.is_none()
        })?;
        Ok(found)
    }

    /// The number of records.
    pub(crate) fn len(&mut self) -> Result<u64> {
        let Some(mut overlay) = self.overlay.take() else {
            let len = self.engine.len()?;
            self.rest_on(self.engine.visible_ticket());
            return Ok(len);
        };
        // Beside the changes, since what is asked for is what the engine has.
        let len = self.len_with(&mut overlay);
        self.overlay = Some(overlay);
        len
    }

    /// The number of records once the changes of a transaction are made.
    fn len_with(&mut self, overlay: &mut Overlay) -> Result<u64> {
        let mut added: u64 = 0;
        overlay.live(self.now, &mut |_| added += 1);
        let mut kept = 0;
        if !overlay.clears() {
            kept = self.engine.len()?;
            self.rest_on(self.engine.visible_ticket());
            for change in overlay.last_changes() {
                kept = kept.saturating_sub(u64::from(self.contains(change.key())?));
            }
        }
        Ok(kept + added)
    }

    /// Deletes those of `keys` that are there, each of which is named once, as a part of what more steps do; how many they
    /// were. The answer to all steps rests on [`Store::rest_on_all`]; not within a transaction.
    pub(crate) fn delete_step(&mut self, keys: &[&[u8]]) -> Result<usize> {
        let mut batch = Batch::new();
        self.engine.multi_get(keys, Visibility::Early, &mut |index, record| {
            if let Some(key) = keys.get(index).filter(|_| record.is_some()) {
                batch.delete(key);
            }
        })?;
        if !batch.is_empty() {
            self.engine.apply(&batch, &Self::options(None))?;
            batch.changes().for_each(|change| self.watched.written(change.key()));
        }
        Ok(batch.len())
    }

    /// The engine's leaderships.
    pub(crate) fn leaderships(&self) -> u64 {
        self.engine.leaderships()
    }

    /// The time that expiries are held against.
    pub(crate) fn engine_now(&self) -> UnixMillis {
        self.engine.now()
    }

    /// The answer rests on all that was written before, and so on all that was read before.
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
        // Whatever came of it.
        self.watched.cleared();
        let Some(ticket) = step? else { return Ok(false) };
        self.rest_on(ticket);
        Ok(true)
    }
}
