//! Competition: a read that several devices are asked for, of which the first answer counts.
//!
//! ```text
//!   caller ─▶ ring of one device ─ ─ ─ patience ─ ─ ─▶ ring of another, if the first is late
//!      ▲                                                   │
//!      └──── answer ◀── first ────────────────────────────┘      the loser's is dropped; if it has
//!                                                                 not begun it does not begin
//! ```
//!
//! The paper sends every read to all devices of a group, which costs each of them all reads. Here
//! the second is asked when the first has taken four times as long as half of its reads do
//! ([`pace`](crate::pace)): few reads are made twice, and those that meet a stall are among them.
//!
//! Only devices that have the newest of the key take part, and each looks by itself, when it begins
//! and when it has found something, whether it still is one ([`pending`](crate::pending)): so it
//! does not matter how long a read has lain in a ring.
//!
//! A caller's races are used again, unless a device that is late still has one: then it lies with
//! that device until it comes to it.

use crate::decided::{caught, is_damage};
use crate::device::Device;
use crate::group::Group;
use crate::pace::End;
use coreplane_engine::{Error, Found, Record, Result, Ticket, UnixMillis, Value};
use coreplane_pmem::spin;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks at a race before its caller sleeps.
const SPINS: u32 = 50;

/// Races that a thread keeps.
const KEPT: usize = 8;

/// How long a caller sleeps before it looks whether anybody is left to answer.
const LOOK: Duration = Duration::from_millis(50);

/// A record as a device has found it, in buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
    is_hit: bool,
}

impl Scratch {
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

/// What devices have to say.
#[derive(Debug, Default)]
struct Finish {
    /// An answer has come, or nobody waits for one any more.
    is_over: bool,
    answer: Scratch,
    /// Those who have nothing to say, and why if nobody else has either.
    void: Vec<Option<Error>>,
}

/// A read.
#[derive(Debug)]
pub(crate) struct Race {
    hash: u64,
    key: Vec<u8>,
    caller: Thread,
    finish: Mutex<Finish>,
    /// As in `finish`.
    is_over: AtomicBool,
    /// How often something was said.
    news: AtomicU32,
}

thread_local! {
    static RACES: RefCell<Vec<Arc<Race>>> = const { RefCell::new(Vec::new()) };
}

impl Race {
    /// A race of this thread, for a key.
    fn begin(hash: u64, key: &[u8]) -> Arc<Self> {
        let mut race = RACES.with_borrow_mut(|races| {
            let at = races.iter_mut().position(|race| Arc::get_mut(race).is_some());
            at.map(|at| races.swap_remove(at))
        });
        match race.as_mut().and_then(Arc::get_mut) {
            Some(free) => {
                free.hash = hash;
                free.key.clear();
                free.key.extend_from_slice(key);
                let finish = free.finish.get_mut();
                (finish.is_over, finish.answer.is_hit) = (false, false);
                finish.void.clear();
                (*free.is_over.get_mut(), *free.news.get_mut()) = (false, 0);
            }
            None => race = None,
        }
        race.unwrap_or_else(|| {
            Arc::new(Self {
                hash,
                key: key.to_vec(),
                caller: std::thread::current(),
                finish: Mutex::default(),
                is_over: AtomicBool::new(false),
                news: AtomicU32::new(0),
            })
        })
    }

    /// Nobody waits for it any more.
    fn end(self: Arc<Self>) {
        self.is_over.store(true, Ordering::Release);
        spin::lock(&self.finish).is_over = true;
        RACES.with_borrow_mut(|races| {
            if races.len() < KEPT {
                races.push(self);
            }
        });
    }

    /// Takes part, in a device's processor.
    pub(crate) fn run(
        &self,
        device: &Device,
        group: &Group,
        asked_at: Instant,
        scratch: &mut Scratch,
    ) {
        let begun_at = Instant::now();
        let end = if self.is_over.load(Ordering::Acquire) {
            End::Cancelled
        } else {
            scratch.is_hit = false;
            let visit = &mut |record: Record<'_>| scratch.keep(&record);
            match caught(|| group.read_if_current(device, (self.hash, &self.key), visit)) {
                Ok(Some(_)) => self.win(scratch),
                Ok(None) => self.pass(None),
                // Who asks next finds damage by himself, and deals with it.
                Err(error) if is_damage(&error) => self.pass(None),
                Err(error) => self.pass(group.go_on_without(device, error).err()),
            }
        };
        device.pace.note(end, asked_at, begun_at);
    }

    /// Says what was found, unless somebody else was first.
    fn win(&self, scratch: &mut Scratch) -> End {
        {
            let mut finish = spin::lock(&self.finish);
            if finish.is_over {
                return End::Lost;
            }
            finish.is_over = true;
            std::mem::swap(&mut finish.answer, scratch);
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

    /// Waits until something was said since `known`, or it is `until`; how much was said by then.
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

/// Devices that are asked.
struct Field<'g> {
    group: &'g Arc<Group>,
    race: Arc<Race>,
    /// All that were asked, and how many of them have not passed.
    asked: u32,
    running: u32,
}

impl Field<'_> {
    /// Asks one more; false if it cannot be.
    fn ask(&mut self, device: &Arc<Device>) -> bool {
        self.asked |= 1 << device.number;
        let is_asked = device.ask(self.group, &self.race);
        self.running += u32::from(is_asked);
        is_asked
    }

    /// The one to ask next.
    fn next(&self) -> Result<Option<&Arc<Device>>> {
        let current = self.group.current_now(self.race.hash) & !self.asked;
        self.group.fastest(current).map(|number| self.group.device(number)).transpose()
    }

    /// Deals with who has passed. True if that was all.
    fn has_passed(&mut self) -> Result<bool> {
        let void = std::mem::take(&mut spin::lock(&self.race.finish).void);
        for error in void {
            // One that had no time left to be asked may have been quick.
            self.running = self.running.saturating_sub(1);
            error.map_or(Ok(()), Err)?;
        }
        Ok(self.running == 0)
    }

    /// True if those who were asked will never answer.
    fn is_abandoned(&self) -> bool {
        self.group.of(self.asked).all(|device| device.is_closed())
    }
}

/// Reads a key through the rings: on `first`, and, if it is late and `is_hedged`, on others. None if
/// it must be decided anew whom to ask.
///
/// # Errors
/// As the engine, and if the group has no member left.
pub(crate) fn read(
    group: &Arc<Group>,
    first: &Arc<Device>,
    (hash, key): (u64, &[u8]),
    is_hedged: bool,
    visit: &mut dyn FnMut(Record<'_>),
) -> Result<Option<Found>> {
    let race = Race::begin(hash, key);
    let mut field = Field { group, race, asked: 0, running: 0 };
    let is_answered = if field.ask(first) { run(&mut field, first, is_hedged) } else { Ok(false) };
    let race = field.race;
    let found = is_answered.map(|is_answered| {
        is_answered.then(|| {
            let finish = spin::lock(&race.finish);
            if finish.answer.is_hit {
                visit(finish.answer.record());
            }
            Found { hit: finish.answer.is_hit, ticket: Ticket::DURABLE }
        })
    });
    race.end();
    found
}

/// Until somebody has answered; false if nobody will.
fn run(field: &mut Field<'_>, first: &Arc<Device>, is_hedged: bool) -> Result<bool> {
    let mut late = is_hedged.then(|| (Arc::clone(first), Instant::now() + first.pace.patience()));
    let mut known = 0;
    loop {
        let look = Instant::now() + LOOK;
        let until = late.as_ref().map_or(look, |(_, at)| (*at).min(look));
        let news = field.race.wait(known, until);
        if field.race.is_over.load(Ordering::Acquire) {
            return Ok(true);
        }
        if news != known {
            known = news;
            if field.has_passed()? {
                return Ok(false);
            }
        } else if let Some((device, at)) = &late
            && *at <= Instant::now()
        {
            let may_ask = device.pace.note_late();
            let next = if may_ask { field.next()?.cloned() } else { None };
            late = next.and_then(|next| {
                next.pace.note_hedge();
                let patience = next.pace.patience();
                field.ask(&next).then(|| (next, Instant::now() + patience))
            });
        } else if field.is_abandoned() {
            return Ok(false);
        }
    }
}
