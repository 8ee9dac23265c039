//! Durability of writes, and waiting for it.
//!
//! Where a fence is an instruction, groups are numbered as they are appended, and a commit makes all of them durable:
//! the thesis's early completion. It happens at the latest when [`GROUPS`] have been appended or after [`DELAY`] (the
//! thesis's k and its millisecond), and at once when a caller asks for one of them: by waiting, by a commit, or by
//! reading a record that is not durable. Where a fence is a sync, a ticket is the generation of the sync that covers
//! the group; no thread waits for it while it holds the map, except a batch of several pages that has waited in vain.

use super::Store;
use super::write::Standing;
use crate::map::Map;
use coreplane_engine::{
    Completion, Durability, Error, Horizon, Outcome, Result, Ticket, Visibility, WriteOptions,
};
use coreplane_pmem::mutant;
use coreplane_record::sync_failed;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most groups without a waiting caller that share a commit.
const GROUPS: u64 = 10;
/// The longest time that a group waits for others, unless its caller asks for less.
const DELAY: Duration = Duration::from_millis(1);

/// The map, held by a writer.
pub(crate) type Writing<'s> = RwLockWriteGuard<'s, Box<dyn Map>>;
/// The map, held by a reader.
pub(crate) type Reading<'s> = RwLockReadGuard<'s, Box<dyn Map>>;

impl Store {
    fn fences_at_once(&self) -> bool {
        self.volume.space.fences_at_once()
    }

    /// Where a fence is an instruction: makes all groups durable.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn commit_all(&self, map: &mut Writing<'_>) -> Result<()> {
        if map.stream().is_broken {
            return Err(Error::Unusable("the medium has failed within a batch".to_owned()));
        }
        if self.fences_at_once() {
            map.seal()?;
        }
        map.stream_mut().commit()?;
        self.durable.store(self.appended.load(Ordering::Relaxed), Ordering::Release);
        map.settle();
        Ok(())
    }

    /// The map for writing, after the work that an [open has deferred](Map::rest) was taken over; other threads may
    /// read meanwhile.
    ///
    /// # Errors
    /// If that work fails, and if the medium fails.
    pub(crate) fn writing(&self) -> Result<Writing<'_>> {
        self.make_whole()?;
        Ok(self.map.write())
    }

    /// Takes over the work that an open has deferred.
    ///
    /// # Errors
    /// As [`Store::writing`].
    pub(crate) fn make_whole(&self) -> Result<()> {
        if self.is_whole.load(Ordering::Acquire) {
            return Ok(());
        }
        let _others_wait = self.making_whole.lock();
        if self.is_whole.load(Ordering::Acquire) {
            return Ok(());
        }
        let rest = self.map.read().rest()?;
        if let Some(rest) = rest {
            self.map.write().take_rest(rest)?;
        }
        self.is_whole.store(true, Ordering::Release);
        Ok(())
    }

    /// The map for reading, with no hidden record in it: for callers that read records before they ask whether these
    /// are hidden, such as older versions, which stand behind a newer one.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn exposed(&self) -> Result<Reading<'_>> {
        self.reading(|map| map.stream().is_hiding() && !mutant!("mvcc.read.exposed"))
    }

    /// The map for reading, in which the absence of every absent key is durable.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn complete(&self) -> Result<Reading<'_>> {
        self.reading(|map| map.hides_absence(None))
    }

    /// The map for reading; committed first if it `hides` anything.
    fn reading(&self, hides: impl Fn(&dyn Map) -> bool) -> Result<Reading<'_>> {
        let map = self.map.read();
        if !hides(&**map) {
            return Ok(map);
        }
        drop(map);
        let mut map = self.writing()?;
        self.commit_all(&mut map)?;
        Ok(RwLockWriteGuard::downgrade(map))
    }

    /// The ticket of a group of so many bytes that was just appended. Where a fence is an instruction, the group is
    /// durable if the caller waits; where it is a sync, [`Store::wait`] is called after the map is released.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn end_group(
        &self,
        map: &mut Writing<'_>,
        len: usize,
        options: &WriteOptions,
    ) -> Result<Ticket> {
        let level = options.durability.unwrap_or(self.durability);
        if self.fences_at_once() {
            let group = self.appended.fetch_add(1, Ordering::Relaxed) + 1;
            let waits = options.completion == Completion::Wait;
            if waits || group - self.durable.load(Ordering::Relaxed) >= GROUPS {
                self.commit_all(map)?;
                return Ok(Ticket::DURABLE);
            }
            self.windows.opened(match level {
                Durability::Group { max_delay, .. } => max_delay.min(DELAY),
                _ => DELAY,
            });
            return Ok(Ticket::new(0, group));
        }
        map.seal()?;
        let is_relaxed = matches!(level, Durability::Relaxed { .. });
        let generation = map.stream_mut().cover(!is_relaxed);
        self.visible.fetch_max(generation, Ordering::AcqRel);
        map.settle();
        match level {
            Durability::Relaxed { window_bytes, window } => {
                let bytes = self.relaxed_bytes.fetch_add(len as u64, Ordering::AcqRel) + len as u64;
                if bytes > window_bytes {
                    self.relaxed_bytes.store(0, Ordering::Release);
                    self.volume.space.sync_request(generation);
                } else {
                    self.windows.opened(window);
                }
                Ok(Ticket::DURABLE)
            }
            Durability::Group { max_delay, .. } if options.completion == Completion::Early => {
                self.windows.opened(max_delay);
                Ok(Ticket::new(0, generation))
            }
            _ => Ok(Ticket::new(0, generation)),
        }
    }

    /// Waits for the ticket of an outcome, if the caller asked for that.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn finish(&self, outcome: Outcome, options: &WriteOptions) -> Result<Outcome> {
        let ticket = self.wait(outcome.ticket(), options)?;
        Ok(outcome.resting_on(ticket))
    }

    /// Waits for a ticket, if the caller asked for that.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn wait(&self, ticket: Ticket, options: &WriteOptions) -> Result<Ticket> {
        if ticket.is_durable() || options.completion == Completion::Early {
            return Ok(ticket);
        }
        self.wait_durable(&Horizon::from(ticket))?;
        Ok(Ticket::DURABLE)
    }

    /// The ticket that a reader of the record at `offset`, which is not hidden, depends on.
    pub(super) fn rests_on(&self, map: &dyn Map, offset: u64) -> Ticket {
        let generation = map.stream().covering(offset);
        generation.map_or(Ticket::DURABLE, |generation| Ticket::new(0, generation))
    }

    /// The ticket of a write that found nothing to do: it is as durable as if it had written the current record. So
    /// it waits for `relaxed` writes, unless it is `relaxed` itself.
    pub(super) fn refusal(
        &self,
        map: &Writing<'_>,
        standing: &Standing<'_>,
        options: &WriteOptions,
    ) -> Ticket {
        let level = options.durability.unwrap_or(self.durability);
        let is_relaxed = matches!(level, Durability::Relaxed { .. });
        if self.fences_at_once() || is_relaxed || mutant!("mvcc.write.refused") {
            return standing.ticket;
        }
        match standing.view {
            Some(view) if map.stream().is_known_durable(view.offset) => Ticket::DURABLE,
            _ => self.visible_ticket(),
        }
    }

    /// The ticket that the absence of a record depends on: after a clear that is not durable the record may come
    /// back.
    pub(super) fn rests_on_absence(&self) -> Ticket {
        match self.cleared.load(Ordering::Acquire) {
            0 => Ticket::DURABLE,
            cleared if matches!(self.volume.space.sync_is_done(cleared), Ok(true)) => {
                Ticket::DURABLE
            }
            cleared => Ticket::new(0, cleared),
        }
    }

    /// Waits for a ticket, unless the reader may pass it.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn pass(&self, ticket: Ticket, visibility: Visibility) -> Result<bool> {
        if ticket.is_durable() || visibility == Visibility::Early {
            return Ok(true);
        }
        self.volume.space.sync_wait(ticket.position()).map_err(sync_failed)?;
        Ok(false)
    }

    /// The ticket of everything that is visible now.
    pub(crate) fn visible_ticket(&self) -> Ticket {
        if self.fences_at_once() {
            let appended = self.appended.load(Ordering::Acquire);
            let is_durable = self.durable.load(Ordering::Acquire) >= appended;
            return if is_durable { Ticket::DURABLE } else { Ticket::new(0, appended) };
        }
        let visible = self.visible.load(Ordering::Acquire);
        if visible == 0 || matches!(self.volume.space.sync_is_done(visible), Ok(true)) {
            return Ticket::DURABLE;
        }
        Ticket::new(0, visible)
    }

    /// Makes durable, or requests to be made durable, the writes that open windows wait for.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn end_windows(&self) -> Result<()> {
        self.commit(&Horizon::from(self.visible_ticket())).map(drop)
    }

    pub(super) fn commit(&self, horizon: &Horizon) -> Result<bool> {
        let Some(last) = horizon.tickets().iter().map(|ticket| ticket.position()).max() else {
            return self.is_durable(horizon);
        };
        if self.fences_at_once() {
            if self.durable.load(Ordering::Acquire) < last {
                self.commit_all(&mut self.writing()?)?;
            }
        } else {
            self.volume.space.sync_request(last);
        }
        self.is_durable(horizon)
    }

    pub(crate) fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        for ticket in horizon.tickets() {
            let is_durable = if self.fences_at_once() {
                self.volume.space.check_sync().map_err(sync_failed)?;
                self.durable.load(Ordering::Acquire) >= ticket.position()
            } else {
                self.volume.space.sync_is_done(ticket.position()).map_err(sync_failed)?
            };
            if !is_durable {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        if self.fences_at_once() {
            return self.commit(horizon).map(drop);
        }
        for ticket in horizon.tickets() {
            self.volume.space.sync_wait(ticket.position()).map_err(sync_failed)?;
        }
        Ok(())
    }

    /// Makes everything that was written before durable.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.fences_at_once() {
            return self.commit_all(&mut self.writing()?);
        }
        self.volume.space.fence().map_err(sync_failed)
    }
}
