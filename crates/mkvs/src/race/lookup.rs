//! A key that devices compete for.
//!
//! Only devices that have the newest of the key take part ([`pending`](crate::pending)).
//!
//! A caller's races are used again, unless a device that is late still has one: then it lies with
//! that device until it comes to it.

use super::{Question, Race, Scratch, run};
use crate::device::Device;
use crate::group::Group;
use crate::pace::Pace;
use crate::pending::Devices;
use coreplane_engine::{Found, Record, Result, Ticket, UnixMillis, Value};
use std::cell::RefCell;
use std::sync::Arc;

/// Races that a thread keeps.
const KEPT: usize = 8;

/// A record as a device has found it, in buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
    is_hit: bool,
    /// The device that has found it, or nothing.
    device: u8,
}

impl Kept {
    /// It is kept for the next one, unless it has become large.
    pub(crate) fn is_small(&self) -> bool {
        self.value.capacity() <= 64 << 10
    }

    pub(crate) fn keep(&mut self, record: &Record<'_>) {
        self.value.clear();
        record.value.append_to(&mut self.value);
        (self.sequence, self.expires_at) = (record.sequence, record.expires_at);
        self.is_hit = true;
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            value: Value::Whole(&self.value),
            sequence: self.sequence,
            expires_at: self.expires_at,
            ticket: Ticket::DURABLE,
        }
    }
}

/// A key.
#[derive(Debug)]
struct Lookup {
    hash: u64,
    key: Vec<u8>,
}

impl Question for Lookup {
    type Answer = Kept;

    fn look(&self, (group, device): (&Group, &Device), found: &mut Kept) -> Result<bool> {
        (found.is_hit, found.device) = (false, device.number);
        let visit = &mut |record: Record<'_>| found.keep(&record);
        Ok(group.read_if_current(device, (self.hash, &self.key), visit)?.is_some())
    }

    fn candidates(&self, group: &Group) -> Devices {
        group.current_now(self.hash)
    }

    fn pace(device: &Device) -> &Pace {
        &device.pace
    }

    fn scratch(scratch: &mut Scratch) -> &mut Kept {
        &mut scratch.record
    }
}

thread_local! {
    static RACES: RefCell<Vec<Arc<Race<Lookup>>>> = const { RefCell::new(Vec::new()) };
}

/// A race of this thread, for a key.
fn begin(hash: u64, key: &[u8]) -> Arc<Race<Lookup>> {
    let mut race = RACES.with_borrow_mut(|races| {
        let at = races.iter_mut().position(|race| Arc::get_mut(race).is_some());
        at.map(|at| races.swap_remove(at))
    });
    match race.as_mut().and_then(Arc::get_mut) {
        Some(free) => {
            free.question.hash = hash;
            free.question.key.clear();
            free.question.key.extend_from_slice(key);
            let finish = free.finish.get_mut();
            (finish.is_over, finish.answer.is_hit) = (false, false);
            finish.void.clear();
            (*free.is_over.get_mut(), *free.news.get_mut()) = (false, 0);
        }
        None => race = None,
    }
    race.unwrap_or_else(|| Arc::new(Race::new(Lookup { hash, key: key.to_vec() })))
}

/// Reads a key through the rings: on `first`, and, if it is late and `is_hedged`, on others; what was
/// found, and the number of the device. None if it must be decided anew whom to ask.
///
/// # Errors
/// As the engine, and if the group has no member left.
pub(crate) fn read(
    group: &Arc<Group>,
    first: &Arc<Device>,
    (hash, key): (u64, &[u8]),
    is_hedged: bool,
    visit: &mut dyn FnMut(Record<'_>),
) -> Result<Option<(Found, u8)>> {
    let race = begin(hash, key);
    let is_answered = run(group, first, &race, is_hedged);
    let found = {
        let finish = race.end();
        is_answered.map(|is_answered| {
            is_answered.then(|| {
                if finish.answer.is_hit {
                    visit(finish.answer.record());
                }
                let found = Found { hit: finish.answer.is_hit, ticket: Ticket::DURABLE };
                (found, finish.answer.device)
            })
        })
    };
    RACES.with_borrow_mut(|races| {
        if races.len() < KEPT {
            races.push(race);
        }
    });
    found
}
