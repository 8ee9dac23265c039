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
//! A read is of one key, and only devices that have its newest record take part ([`in_flight`](crate::in_flight)).
//! Each device checks that by itself, when it begins and when it has a result: so it does not matter how long a read
//! has waited in a ring.

use crate::device::{Asked, Device, RecordCopy, is_damage};
use crate::group::Group;
use crate::stats::End;
use coreplane_engine::{Error, Found, Record, Result};
use coreplane_pmem::spin;
use parking_lot::Mutex;
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
    /// The first answer: what was found, on which device, and the record.
    answer: Option<(Found, u8, RecordCopy)>,
    /// An entry for each device that has no answer, with the error if that ends the read.
    void: Vec<Option<Error>>,
}

/// A read that several devices may be asked for.
#[derive(Debug)]
struct HedgedRead {
    hash: u64,
    key: Vec<u8>,
    /// Weak: a hedged read in a ring does not keep the group alive.
    group: Weak<Group>,
    caller: Thread,
    finish: Mutex<Finish>,
    /// An answer has come, or the caller no longer waits for one. Changed under the lock of `finish`.
    is_over: AtomicBool,
    /// How often devices have answered or passed.
    news: AtomicU32,
}

impl HedgedRead {
    /// Gives the answer, unless another device was first.
    fn win(&self, answer: (Found, u8, RecordCopy)) -> End {
        {
            let mut finish = spin::lock(&self.finish);
            if self.is_over.load(Ordering::Acquire) {
                return End::Lost;
            }
            finish.answer = Some(answer);
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
    fn run(&self, device: &Device, asked_at: Instant) {
        let begun_at = Instant::now();
        let group = self.group.upgrade().filter(|_| !self.is_over.load(Ordering::Acquire));
        let end = if let Some(group) = group {
            let mut copy = RecordCopy::default();
            let visit = &mut |record: Record<'_>| copy.keep(&record);
            match group.read_if_current(device, (self.hash, &self.key), visit) {
                Ok(Some(found)) => self.win((found, device.number, copy)),
                Ok(None) => self.pass(None),
                // The caller finds the damage itself at its next try, and deals with it.
                Err(error) if is_damage(&error) => self.pass(None),
                Err(error) => self.pass(group.go_on_without(device, error).err()),
            }
        } else {
            End::Cancelled
        };
        device.pace.note(end, asked_at, begun_at);
    }
}

/// Reads a key through the rings: on `first`, and, if it is late and `is_hedged`, on others; returns the result and
/// the number of the device. None if the device must be chosen anew.
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
    let race = Arc::new(HedgedRead {
        hash,
        key: key.to_vec(),
        group: Arc::downgrade(group),
        caller: std::thread::current(),
        finish: Mutex::default(),
        is_over: AtomicBool::new(false),
        news: AtomicU32::new(0),
    });
    let asked = compete(group, first, &race, is_hedged);
    // Shown without the lock: a processor that comes second takes it.
    let answer = {
        let mut finish = spin::lock(&race.finish);
        race.is_over.store(true, Ordering::Release);
        finish.answer.take()
    };
    asked?;
    Ok(answer.map(|(found, device, copy)| {
        if found.hit {
            visit(copy.record());
        }
        (found, device)
    }))
}

/// Asks `first`, and, if it is late and `is_hedged`, others, until a device has answered, or none will.
fn compete(
    group: &Arc<Group>,
    first: &Arc<Device>,
    race: &Arc<HedgedRead>,
    is_hedged: bool,
) -> Result<()> {
    // All that were asked, and how many of them have not passed.
    let (mut asked, mut running) = (SmallVec::<[_; 2]>::new(), 0_u32);
    let (mut next, mut late, mut known) = (Some(first), None, 0);
    loop {
        if let Some(device) = next.take() {
            asked.push(device);
            let is_asked = device.ask(group, Arc::clone(race) as Arc<dyn Asked>);
            running += u32::from(is_asked);
            let late_at = || (device, Instant::now() + device.pace.hedge_delay());
            late = (is_asked && is_hedged).then(late_at);
        }
        if running == 0 {
            return Ok(());
        }
        let look = Instant::now() + LOOK;
        let news = race.wait(known, late.map_or(look, |(_, at)| at.min(look)));
        if race.is_over.load(Ordering::Acquire) {
            return Ok(());
        }
        if news != known {
            known = news;
            let void = std::mem::take(&mut spin::lock(&race.finish).void);
            for error in void {
                // A device that closed while it was asked is not counted, and may have passed nevertheless.
                running = running.saturating_sub(1);
                error.map_or(Ok(()), Err)?;
            }
        } else if let Some((device, _)) = late.take_if(|(_, at)| *at <= Instant::now()) {
            if device.pace.note_late() {
                let before = asked.iter().fold(0, |set, device| set | 1 << device.number);
                let current = group.current_now((race.hash, &race.key)) & !before;
                next = group.fastest(current).map(|number| group.device(number)).transpose()?;
                next.iter().for_each(|next| next.pace.note_hedge());
            }
        } else if asked.iter().all(|device| device.is_closed()) {
            // None will ever answer. Others may be in their places by now.
            return Ok(());
        }
    }
}
