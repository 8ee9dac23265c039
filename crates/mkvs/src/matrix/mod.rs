//! The matrix as an engine.

pub(crate) mod assembly;
pub(crate) mod batch;
pub(crate) mod condition;
pub(crate) mod cursor;
pub(crate) mod departure;
pub(crate) mod intent;
mod modify;
pub(crate) mod options;
mod put;
pub(crate) mod relaxed;
mod scan;
mod second_look;
pub(crate) mod stale_writes;

use crate::device::Device;
use crate::device::decision::{Write, is_damage};
use crate::device::record_copy::RecordCopy;
use crate::filter::ResizeThread;
use crate::filter::bypass;
use crate::filter::hash_of;
use crate::group::Group;
use crate::group::list::Groups;
use crate::in_flight::{InFlight, Seen};
use crate::matrix::condition::{Erased, Given, If};
use crate::matrix::cursor::Place;
use crate::matrix::intent::Intents;
use crate::matrix::relaxed::Relaxed;
use crate::membership::Membership;
use crate::membership::lost_ranges::{self, LostRange, LostRanges, just};
use crate::shape::owners::Owners;
use crate::shape::position::Devices;
use crate::shape::position::Position;
use crate::shape::position::is_reserved;
use crate::stats::counters::{Count, Counters, Said};
use crate::stats::latency;
use coreplane_engine::{
    Cursors, Error, Found, Limits, Outcome, Record, Result, Ticket, UnixMillis, WriteOptions,
};
use coreplane_pmem::isolation::Isolation;
use coreplane_pmem::spin::Backoff;
use parking_lot::{Mutex, RwLock};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Looks for a key, each at one whose writes began meanwhile, before the key lock to write it is taken.
const READS: u32 = 8;

thread_local! {
    /// What the device shows that is being read.
    static SHOWN: RefCell<RecordCopy> = RefCell::default();
}

/// An open matrix. Dropping it without [`Engine::close`](coreplane_engine::Engine::close) is a crash of its devices: nothing that was
/// acknowledged is lost.
pub struct Matrix {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matrix").field("groups", &self.shared.groups).finish_non_exhaustive()
    }
}

/// What the parts of an open matrix share.
pub(crate) struct Shared {
    /// Itself, for groups that come later.
    pub(crate) weak: Weak<Self>,
    pub(crate) groups: Groups,
    /// The group that owns each slot.
    pub(crate) owners: Arc<Owners>,
    /// Held by whoever goes through many keys, so that no slot changes hands meanwhile.
    pub(crate) moves: RwLock<()>,
    /// Groups may have records of slots that are not theirs: on the way here, or not yet removed.
    pub(crate) has_guests: AtomicBool,
    /// Held by whoever fills a device or a group: one at a time.
    pub(crate) filling: Mutex<()>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) sequence: Arc<AtomicU64>,
    /// It is being emptied: nothing is there.
    pub(crate) is_empty: AtomicBool,
    /// Filters of so many keys are kept at a close.
    pub(crate) keeps_from: u64,
    pub(crate) relaxed: Relaxed,
    pub(crate) isolation: Isolation,
    pub(crate) cursors: Mutex<Cursors<Place>>,
    pub(crate) intents: Intents,
    pub(crate) membership: Membership,
    /// The stable watermark of the record, or what it is just being raised to.
    pub(crate) watermark: AtomicU64,
    /// Held by whoever raises it.
    pub(crate) marking: Mutex<()>,
    /// The stretch of sequences in which it was last raised for its length.
    pub(crate) marked_at: AtomicU64,
    pub(crate) clock: Arc<crate::stats::clock::Clock>,
    pub(crate) closed: AtomicBool,
    /// Nothing is filled any more.
    pub(crate) interrupted: AtomicBool,
    /// Where there are devices, and which: the places that files say, and where they belong.
    pub(crate) occupied: Mutex<BTreeMap<Position, Position>>,
    /// Tombstones up to here are not on all devices.
    pub(crate) horizon: AtomicU64,
    /// Keys of which acknowledged writes may be lost.
    pub(crate) lost_ranges: LostRanges,
    /// It was closed, and that went well.
    pub(crate) is_clean: AtomicBool,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) filter_resize: ResizeThread,
    /// Places whose devices could not be opened, and why.
    pub(crate) damaged: Mutex<Vec<(Position, String)>>,
    /// Devices that went since it was opened.
    pub(crate) departures: Mutex<Vec<departure::Departure>>,
    /// What may have been lost when it was opened.
    pub(crate) losses: Mutex<Vec<crate::membership::loss::Loss>>,
    /// Why it could not be put together.
    pub(crate) failure: Mutex<Option<Error>>,
}

/// A record that was copied.
pub(crate) struct Answer {
    pub(crate) value: Vec<u8>,
    pub(crate) sequence: u64,
    pub(crate) expires_at: Option<UnixMillis>,
}

impl Shared {
    pub(crate) fn group_of(&self, hash: u64) -> &Arc<Group> {
        &self.groups[self.owners.of(hash).owner()]
    }

    /// # Errors
    /// If the key is one of the matrix's own, or the matrix is closed.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if is_reserved(key) {
            let operation = "a key that begins with the matrix's own name";
            return Err(Error::Unsupported { engine: crate::shape::NAME, operation });
        }
        let max = self.limits.key_len_max;
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        Ok(())
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    fn write(&self, key: &[u8], options: &WriteOptions, write: &mut dyn Write) -> Result<Outcome> {
        let written = self.write_in_turn(key, options, write);
        let Err(error) = &written else { return written };
        // What makes space must not fail for want of it.
        let is_vital = write.decided().put.is_none() || options.is_vital;
        if self.make_space(error, is_vital) {
            return self.write_in_turn(key, options, write);
        }
        written
    }

    fn write_in_turn(
        &self,
        key: &[u8],
        options: &WriteOptions,
        write: &mut dyn Write,
    ) -> Result<Outcome> {
        self.check_writable()?;
        self.check_key(key)?;
        if self.relaxed.is_first(options) {
            self.note_relaxed()?;
        }
        let hash = hash_of(key);
        self.group_of(hash).prefetch(key);
        let mut backoff = Backoff::new();
        let outcome = loop {
            let _turn = self.in_flight.lock_key(InFlight::stripe_of(hash));
            // Whoever closes goes round the key locks: what is made in one that comes after is not made.
            self.check_writable()?;
            self.make_way_for(options.sequence)?;
            let route = self.owners.of(hash);
            if !route.is_frozen() {
                if self.lost_ranges.is_any() && write.rests_on_old() {
                    // It is not refused if that is known.
                    self.find(hash, key, &mut |_| {})?;
                }
                if let Some(given) = options.sequence {
                    self.is_outdated(&self.groups[route.owner()], key, given)?;
                }
                let outcome = self.groups[route.owner()].write(hash, options, write);
                if outcome.is_err() {
                    self.give_anew_after_refusal(hash, key);
                }
                let outcome = outcome?;
                if self.lost_ranges.is_any() && outcome.written().is_some() {
                    self.forget_lost_key(route.owner() as u16, key);
                }
                if let (Some(to), Outcome::Written(written)) = (route.to(), &outcome) {
                    self.write_ahead(to, hash, &write.decided(), written.sequence);
                }
                break self.with_ticket(outcome, options);
            }
            drop(_turn);
            backoff.wait();
        };
        if let Outcome::Written(written) = &outcome {
            let is_put = write.decided().put.is_some();
            self.counters.add(if is_put { Count::Puts } else { Count::Deletes }, 1);
            self.in_flight.keep_tombstones(u64::from(!is_put));
            self.look_after(hash, written.sequence);
        }
        Ok(outcome)
    }

    /// A write with a value.
    pub(crate) fn write_value(
        &self,
        (key, value): (&[u8], &[u8]),
        condition: If<'_>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.write(key, options, &mut Given::new((key, value), condition, options))
    }

    pub(crate) fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        let is_given = options.sequence.is_some();
        let outcome = self.write(key, options, &mut Erased::new(key, is_given))?;
        Ok(match outcome {
            Outcome::Kept(ticket) if !is_given => Outcome::Missing(ticket),
            other => other,
        })
    }

    pub(crate) fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<Found> {
        let hash = hash_of(key);
        let (found, said, owner) = loop {
            let owner = self.owners.of(hash).owner();
            let mut said = if bypass::is_worth_it() { Said::Perhaps } else { Said::Nothing };
            if is_reserved(key)
                || self.is_empty.load(Ordering::Acquire)
                || said == Said::Perhaps
                    && self.groups[owner].denies(hash)
                    && self.lost_ranges.since(owner as u16, key).is_none()
            {
                said = Said::No;
            }
            let found = if said == Said::No {
                Found { hit: false, ticket: Ticket::DURABLE }
            } else {
                self.find_in(&self.groups[owner], (hash, key), visit)?
            };
            // What was found there was there while it was asked for. But a group that the key has
            // moved away from does not say where it is.
            if found.hit || self.owners.of(hash).owner() == owner {
                break (found, said, owner);
            }
        };
        bypass::note(found.hit);
        self.groups[owner].asked.note(found.hit, said);
        Ok(found)
    }

    /// A key was written, or found to have been: it is no lost range by itself.
    #[cold]
    pub(crate) fn forget_lost_key(&self, group: u16, key: &[u8]) {
        if self.lost_ranges.forget_key(group, key) {
            // Durably with the next record; until then it is found to be so again.
            self.membership.lock().lost_ranges.retain(|it| it.key() != Some((group, key)));
        }
    }

    /// The record of a key is about to be written anew with a later sequence. If nobody knows that what it
    /// has by now is what was written last, reads fail up to that sequence: durably so, when it returns.
    ///
    /// # Errors
    /// If the record cannot be written, or is full.
    pub(crate) fn keep_lost_range(
        &self,
        (group, key): (u16, &[u8]),
        known: u64,
        sequence: u64,
    ) -> Result<()> {
        if self.lost_ranges.since(group, key).is_none_or(|since| known > since) {
            return Ok(());
        }
        let mut it = LostRange::new(group, just(key));
        it.end(sequence);
        let mut record = self.membership.lock();
        let before = record.clone();
        record.lost_ranges.retain(|other| other.key() != it.key());
        let taken = record.take_lost_ranges(std::slice::from_ref(&it));
        if taken.is_err() {
            record.clone_from(&before);
        }
        taken?;
        self.commit(&mut record, &before)?;
        self.lost_ranges.renew(&it);
        Ok(())
    }

    /// Reads a key, of which the caller has the key lock, on a device that has the newest of it. What is
    /// shown is durable, here and elsewhere.
    pub(crate) fn find(
        &self,
        hash: u64,
        key: &[u8],
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.find_in(self.group_of(hash), (hash, key), visit)
    }

    /// As [`Shared::find`], of a device where it is not damaged.
    ///
    /// # Errors
    /// If it is wherever it is.
    pub(crate) fn find_sound(
        &self,
        hash: u64,
        key: &[u8],
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let group = self.group_of(hash);
        let (mut damaged, mut kept) = (0, RecordCopy::default());
        self.find_as((group, key), visit, |visit| {
            loop {
                let (device, seen) = group.reader(hash, damaged)?;
                let mut keep = |record: Record<'_>| kept.keep(&record);
                let here = (&**group, &**device);
                let Some(found) =
                    self.read_here(here, (hash, key), seen, &mut damaged, &mut keep)?
                else {
                    continue;
                };
                match device.engine.check(key) {
                    Err(error) if is_damage(&error) => {
                        damaged |= 1 << device.number;
                        if group.members() & !damaged == 0 {
                            return Err(error);
                        }
                        continue;
                    }
                    Err(error) => group.go_on_without(device, error)?,
                    Ok(_) => {
                        if found.hit {
                            visit(kept.record());
                        }
                        return Ok(found);
                    }
                }
            }
        })
    }

    fn find_in(
        &self,
        group: &Arc<Group>,
        (hash, key): (u64, &[u8]),
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.find_as((group, key), visit, |visit| self.find_newest(group, (hash, key), visit))
    }

    /// Finds a key, unless what was written last of it may be lost.
    #[inline]
    fn find_as(
        &self,
        (group, key): (&Arc<Group>, &[u8]),
        visit: &mut dyn FnMut(Record<'_>),
        find: impl FnOnce(&mut dyn FnMut(Record<'_>)) -> Result<Found>,
    ) -> Result<Found> {
        let Some(since) = self.lost_ranges.since(group.number, key) else {
            return find(visit);
        };
        let mut is_known = false;
        find(&mut |record| {
            is_known = record.sequence > since;
            if is_known {
                visit(record);
            }
        })
        .and_then(|found| if is_known { Ok(found) } else { Err(lost_ranges::lost()) })
    }

    /// What one device says that has the newest of a key, and its number.
    pub(crate) fn find_on_one(
        &self,
        group: &Arc<Group>,
        (hash, key): (u64, &[u8]),
        damaged: &mut Devices,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(Found, u8)> {
        let mut tries = 0;
        while tries < READS {
            let (device, seen) = group.reader(hash, *damaged)?;
            let before = (*damaged, group.members());
            let read = if tries < READS / 4 && *damaged == 0 && group.reads_by_rings(device) {
                group.compete((hash, key), visit)?
            } else {
                let read = self.read_here((group, device), (hash, key), seen, damaged, visit)?;
                read.map(|found| (found, device.number))
            };
            if let Some(found) = read {
                return Ok(found);
            }
            // One that is damaged, or has failed, is no write, and there may be as many of those.
            tries += u32::from((*damaged, group.members()) == before);
        }
        // Writers of the stripe come one after the other: no more of them for now. Whoever has the
        // turn does not come here, for then nobody writes.
        let _turn = self.in_flight.lock_key(InFlight::stripe_of(hash));
        loop {
            let (device, seen) = group.reader(hash, *damaged)?;
            let read = self.read_here((group, device), (hash, key), seen, damaged, visit)?;
            if let Some(found) = read {
                return Ok((found, device.number));
            }
        }
    }

    /// Reads a key in this thread; none if it is to be decided anew whom to ask.
    #[inline]
    pub(crate) fn read_here(
        &self,
        (group, device): (&Group, &Device),
        (hash, key): (u64, &[u8]),
        seen: Seen,
        damaged: &mut Devices,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Option<Found>> {
        let timer = latency::timer();
        // What a device shows whose medium goes meanwhile is none of what it has: it is shown on when
        // the device has answered.
        let mut shown = SHOWN.take();
        let read = group.read_on(device, (hash, key), seen, &mut |record| shown.keep(&record));
        if let Some(begun_at) = timer {
            device.pace.note_here(begun_at.elapsed(), group.is_watching());
        }
        if let Ok(Some(Found { hit: true, .. })) = read {
            visit(shown.record());
        }
        if shown.is_small() {
            SHOWN.set(shown);
        }
        match read {
            Ok(found) => Ok(found),
            // One record, of which a peer has another copy; the scrub heals it.
            Err(error) if is_damage(&error) => {
                self.counters.add(Count::DamagedReads, 1);
                *damaged |= 1 << device.number;
                let is_last = group.members() & !*damaged == 0;
                if is_last { Err(error) } else { Ok(None) }
            }
            Err(error) => group.go_on_without(device, error).map(|()| None),
        }
    }

    /// As [`Shared::get_with`], copied.
    pub(crate) fn answer(&self, key: &[u8]) -> Result<Option<Answer>> {
        let mut answer = None;
        self.get_with(key, &mut |record| {
            let (value, sequence) = (record.value.to_vec(), record.sequence);
            answer = Some(Answer { value, sequence, expires_at: record.expires_at });
        })?;
        Ok(answer)
    }
}
