//! Competition: a read that several devices are asked for; the first answer counts.
//!
//! ```text
//!   caller ─▶ ring of one device ─ ─ ─ hedge delay ─ ─ ─▶ ring of another, if the first is late
//!      ▲                                                   │
//!      └──── answer ◀── first ────────────────────────────┘      the loser's is dropped; if it has
//!                                                                 not begun it does not begin
//! ```
//!
//! The paper sends every read to all devices of a group, which costs each of them all reads. Here the second device
//! is asked when the first has taken four times its median read time ([`hedge_delay`](crate::stats::hedge_delay)):
//! few reads are made twice, among them those that meet a stall.
//!
//! A read is of one key ([`lookup`]). Each device checks by itself, when it begins and when it has a result, whether
//! it may answer: so it does not matter how long a read has waited in a ring.

pub(crate) mod lookup;

use crate::device::decision::is_damage;
use crate::device::record_copy::RecordCopy;
use crate::device::{Asked, Device};
use crate::group::Group;
use crate::stats::hedge_delay::End;
use coreplane_engine::{Error, Record, Result};
use coreplane_pmem::spin;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks at a hedged read before its caller sleeps.
const SPINS: u32 = 50;

/// How long a caller sleeps before it checks whether a device is left that can answer.
const LOOK: Duration = Duration::from_millis(50);

/// The answers of the devices.
#[derive(Debug, Default)]
struct Finish {
    answer: RecordCopy,
    /// An entry for each device that has no answer, with the error if that ends the read.
    void: Vec<Option<Error>>,
}

/// A read that several devices may be asked for.
#[derive(Debug)]
struct HedgedRead {
    hash: u64,
    key: Vec<u8>,
    /// Weak: neither a hedged read in a ring nor one that a thread keeps for its next read keeps the group alive.
    group: Weak<Group>,
    caller: Thread,
    finish: Mutex<Finish>,
    /// An answer has come, or the caller no longer waits for one. Changed under the lock of `finish`.
    is_over: AtomicBool,
    /// How often devices have answered or passed.
    news: AtomicU32,
}

impl HedgedRead {
    /// A hedged read of this thread.
    fn new(hash: u64, key: &[u8], group: &Arc<Group>) -> Self {
        Self {
            hash,
            key: key.to_vec(),
            group: Arc::downgrade(group),
            caller: std::thread::current(),
            finish: Mutex::default(),
            is_over: AtomicBool::new(false),
            news: AtomicU32::new(0),
        }
    }

    /// Ends the read and returns the answer; the caller no longer waits.
    fn end(&self) -> MutexGuard<'_, Finish> {
        let finish = spin::lock(&self.finish);
        self.is_over.store(true, Ordering::Release);
        finish
    }

    /// Looks for the key on a device; false if that device may not answer.
    fn look(&self, (group, device): (&Group, &Device), found: &mut RecordCopy) -> Result<bool> {
        (found.is_hit, found.device) = (false, device.number);
        let visit = &mut |record: Record<'_>| found.keep(&record);
        Ok(group.read_if_current(device, (self.hash, &self.key), visit)?.is_some())
    }

    /// Gives the answer, unless another device was first.
    fn win(&self, found: &mut RecordCopy) -> End {
        {
            let mut finish = spin::lock(&self.finish);
            if self.is_over.load(Ordering::Acquire) {
                return End::Lost;
            }
            std::mem::swap(&mut finish.answer, found);
            self.is_over.store(true, Ordering::Release);
        }
        self.tell();
        End::Won
    }

    fn pass(&self, error: Option<Error>) -> End {
        spin::lock(&self.finish).void.push(error);
        self.tell();
        End::Void
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
        self.caller.unpark();
    }

    /// Waits until `news` differs from `known`, or until the time `until`; returns `news`.
    fn wait(&self, known: u32, until: Instant) -> u32 {
        for _ in 0..SPINS {
            let news = self.news.load(Ordering::Acquire);
            if news != known {
                return news;
            }
            std::hint::spin_loop();
        }
        loop {
            let news = self.news.load(Ordering::Acquire);
            let now = Instant::now();
            if news != known || now >= until {
                return news;
            }
            std::thread::park_timeout(until - now);
        }
    }
}

impl Asked for HedgedRead {
    fn run(&self, device: &Device, asked_at: Instant, found: &mut RecordCopy) {
        let begun_at = Instant::now();
        let group = self.group.upgrade().filter(|_| !self.is_over.load(Ordering::Acquire));
        let end = if let Some(group) = &group {
            let end = match self.look((group, device), found) {
                Ok(true) => self.win(found),
                Ok(false) => self.pass(None),
                // The caller finds the damage itself at its next try, and deals with it.
                Err(error) if is_damage(&error) => self.pass(None),
                Err(error) => self.pass(group.go_on_without(device, error).err()),
            };
            found.keep_if_small();
            end
        } else {
            End::Cancelled
        };
        device.pace.note(end, asked_at, begun_at);
    }
}

/// The devices that are asked for a read.
struct Field<'g> {
    group: &'g Arc<Group>,
    race: &'g Arc<HedgedRead>,
    /// All that were asked, and how many of them have not passed.
    asked: SmallVec<[&'g Arc<Device>; 2]>,
    running: u32,
}

impl<'g> Field<'g> {
    /// Asks one more; false if it cannot be.
    fn ask(&mut self, device: &'g Arc<Device>) -> bool {
        self.asked.push(device);
        let race = Arc::clone(self.race) as Arc<dyn Asked>;
        let is_asked = device.ask(self.group, race);
        self.running += u32::from(is_asked);
        is_asked
    }

    /// The device to ask next.
    fn next(&self) -> Result<Option<&'g Arc<Device>>> {
        let asked = self.asked.iter().fold(0, |set, device| set | 1 << device.number);
        let current = self.group.current_now((self.race.hash, &self.race.key)) & !asked;
        self.group.fastest(current).map(|number| self.group.device(number)).transpose()
    }

    /// Deals with the devices that have passed. True if no asked device is left.
    fn has_passed(&mut self) -> Result<bool> {
        let void = std::mem::take(&mut spin::lock(&self.race.finish).void);
        for error in void {
            // A device that closed while it was asked is not counted, and may have passed nevertheless.
            self.running = self.running.saturating_sub(1);
            error.map_or(Ok(()), Err)?;
        }
        Ok(self.running == 0)
    }

    /// True if no asked device will ever answer. Others may be in their places by now.
    fn is_abandoned(&self) -> bool {
        self.asked.iter().all(|device| device.is_closed())
    }
}

/// Asks `first`, and, if it is late and `is_hedged`, others, until a device has answered; false if none will, so
/// that the device must be chosen anew.
///
/// # Errors
/// As the engine, and if the group has no member left.
fn run<'g>(
    group: &'g Arc<Group>,
    first: &'g Arc<Device>,
    race: &'g Arc<HedgedRead>,
    is_hedged: bool,
) -> Result<bool> {
    let mut field = Field { group, race, asked: SmallVec::new(), running: 0 };
    if !field.ask(first) {
        return Ok(false);
    }
    let mut late = is_hedged.then(|| (first, Instant::now() + first.pace.hedge_delay()));
    let mut known = 0;
    loop {
        let look = Instant::now() + LOOK;
        let until = late.map_or(look, |(_, at)| at.min(look));
        let news = race.wait(known, until);
        if race.is_over.load(Ordering::Acquire) {
            return Ok(true);
        }
        if news != known {
            known = news;
            if field.has_passed()? {
                return Ok(false);
            }
        } else if let Some((device, at)) = late
            && at <= Instant::now()
        {
            let may_ask = device.pace.note_late();
            let next = if may_ask { field.next()? } else { None };
            late = next.and_then(|next| {
                next.pace.note_hedge();
                let hedge_delay = next.pace.hedge_delay();
                field.ask(next).then(|| (next, Instant::now() + hedge_delay))
            });
        } else if field.is_abandoned() {
            return Ok(false);
        }
    }
}
