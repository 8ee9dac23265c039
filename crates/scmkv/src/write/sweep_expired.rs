//! The sweep of expired records.
//!
//! A record that has expired is absent to every reader, and yet it stays among the counted records,
//! in the index and in the log until the cleaner finds it, which may be never. So a background
//! thread goes through the index, group by group, and turns expired records into tombstones, as the
//! cleaner would.
//!
//! ```text
//!   soonest ≤ now? ─▶ a round: each group's slots with an expiry ─▶ expired: tombstone
//!                       └──────── the least expiry that lies ahead ─▶ soonest
//! ```
//!
//! - *No needless work.* `soonest` is never later than the first expiry in the store. Before that
//!   time no round begins; a store without expiries has none. It is not durable: the first round
//!   after an open finds it.
//! - *A tombstone, not a removal*: an older version of the key may still be in the log. The
//!   tombstone has version and sequence of the record, so that to readers, writers and followers
//!   nothing has changed; the clock's mark was raised before it was written. It is dropped like any
//!   other ([`clean`](crate::clean)).
//! - *No waiting.* A group is locked while its slots and the expiries of their records are read,
//!   and again for each tombstone, which checks once more: a record that was rewritten meanwhile
//!   stays. The sweep works for a fraction of a millisecond at a time and rests many times as long.
//!
//! Damaged records are passed over: they are for `verify` and the scrub.

use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::table::index::{Position, Slot};
use crate::table::look::Standing;
use crate::write::Writer;
use coreplane_engine::{Error, Result, UnixMillis, WriteOptions};
use coreplane_pmem::epoch;
use coreplane_record::{Header, Kind, SWEEP_SLICE, SweepRest, View};
use std::time::{Duration, Instant};

/// A round through the index.
#[derive(Debug)]
struct Round {
    /// The next group; none at the end.
    position: Option<Position>,
    /// The least expiry found that lies ahead.
    soonest: Option<UnixMillis>,
    worked: Duration,
}

/// Where the sweep is.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    round: Option<Round>,
}

impl Writer {
    /// Goes on with the sweep for a slice, if there is work; returns how long to rest then.
    pub(crate) fn sweep_on(&self, sweep: &mut Sweep) -> Duration {
        let mut round = match sweep.round.take() {
            Some(round) => round,
            None if self.expiries.is_due(self.clock.now()) => self.begin_round(),
            None => return SweepRest::Idle.into(),
        };
        let start = Instant::now();
        while let Some(here) = round.position {
            if let Err(error) = self.sweep_group(&mut round, here) {
                // A full store makes space as its writers ask for it, and they get the error.
                if !matches!(error, Error::NoSpace { .. } | Error::Closed) {
                    self.counters.add(Count::BackgroundFailures, 1);
                }
                sweep.round = Some(round);
                return SweepRest::Failure.into();
            }
            if start.elapsed() >= SWEEP_SLICE {
                break;
            }
        }
        let worked = start.elapsed();
        round.worked += worked;
        if round.position.is_some() {
            sweep.round = Some(round);
            return SweepRest::Part(worked).into();
        }
        self.expiries.note(round.soonest);
        SweepRest::Round(round.worked).into()
    }

    /// A whole round at once; returns how many expired records it found.
    ///
    /// # Errors
    /// As those of a write.
    pub(crate) fn sweep_all(&self) -> Result<u64> {
        let mut round = self.begin_round();
        let mut expired = 0;
        while let Some(here) = round.position {
            match self.sweep_group(&mut round, here) {
                Ok(more) => expired += more,
                Err(error) => {
                    self.expiries.note(Some(UnixMillis(0)));
                    return Err(error);
                }
            }
        }
        self.expiries.note(round.soonest);
        Ok(expired)
    }

    /// Later writes are noted by their writers, and earlier ones are found by the round, since a
    /// writer notes before the lock of the group is free.
    fn begin_round(&self) -> Round {
        self.expiries.begin_round();
        Round { position: Some(Position::default()), soonest: None, worked: Duration::ZERO }
    }

    /// Turns the expired records in the group at `here` into tombstones; returns how many.
    fn sweep_group(&self, round: &mut Round, here: Position) -> Result<u64> {
        let (leaf, group, next) = self.index.step(here);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        {
            let guard = epoch::pin();
            let Some(held) = self.index.lock_group(leaf, here.y, group) else { return Ok(0) };
            let expires = |slot: &Slot| slot.expires() && !slot.is_tombstone();
            let slots = self.index.slots(leaf, group)?.into_iter().map(|found| found.slot);
            let slots: Vec<Slot> = slots.filter(expires).collect();
            for slot in &slots {
                self.space.prefetch(slot.offset());
            }
            let now = self.clock.now();
            let mut passed: Vec<View<'_>> = Vec::new();
            for view in slots.iter().filter_map(|slot| self.record(&guard, *slot).ok()) {
                match view.header.expires_at {
                    Some(at) if at <= now => passed.push(view),
                    Some(at) => {
                        round.soonest = Some(round.soonest.map_or(at, |soonest| soonest.min(at)));
                    }
                    None => {}
                }
            }
            drop(held);
            keys.extend(passed.iter().map(|view| view.key().to_vec()));
        }
        let mut expired = 0;
        for key in keys {
            match self.expire(&key) {
                Ok(has_expired) => expired += u64::from(has_expired),
                Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        round.position = next;
        Ok(expired)
    }

    /// Writes the tombstone of `key` if its record has expired; false if it has not.
    fn expire(&self, key: &[u8]) -> Result<bool> {
        self.check_writable()?;
        let place = self.place(key);
        let order = self.order(&WriteOptions::default())?;
        let mut log = self.my_log()?;
        loop {
            let len = {
                let guard = epoch::pin();
                let held = self.index.lock(place);
                let Some(standing) = self.look(&guard, &held, key, place)? else {
                    return Ok(false);
                };
                let Standing { at, slot, old: Some(old), live: false } = standing else {
                    // The clock may have been set back, or the record was written anew.
                    self.expiries.note(standing.old.and_then(|old| old.header.expires_at));
                    return Ok(false);
                };
                if slot.is_tombstone() {
                    return Ok(false);
                }
                let birth = self.pages.next_birth().to_le_bytes();
                let header = Header {
                    kind: Kind::Delete,
                    large: false,
                    batched: false,
                    expires_at: None,
                    ..old.header
                };
                let len = header.record_len(key, birth.len());
                if len <= log.room_for(Demand::Reserve) {
                    // Before it leaves the records: who counts those first, misses none.
                    self.counters.add(Count::Expired, 1);
                    self.account(&held, slot, Some(&old), &header);
                    let appended = log.append(self, &header, key, &[&birth], order)?;
                    log.commit(self, appended.offset, order)?;
                    held.publish(at, held.slot_of(place, appended.offset, &header))?;
                    log.note_published(self, at);
                    self.leave_to_census(&held, appended.offset, appended.len);
                    self.count_tombstone(&held, appended.len);
                    return Ok(true);
                }
                len
            };
            self.make_room(&mut log, len, Demand::Reserve)?;
        }
    }
}
