//! Competition: a read that several devices are asked for, of which the first answer counts.
//!
//! ```text
//!   caller ─▶ ring of one device ─ ─ ─ hedge delay ─ ─ ─▶ ring of another, if the first is late
//!      ▲                                                   │
//!      └──── answer ◀── first ────────────────────────────┘      the loser's is dropped; if it has
//!                                                                 not begun it does not begin
//! ```
//!
//! The paper sends every read to all devices of a group, which costs each of them all reads. Here
//! the second is asked when the first has taken four times as long as half of its reads do
//! ([`hedge_delay`](crate::stats::hedge_delay)): few reads are made twice, and those that meet a stall are among them.
//!
//! What is asked for is a key ([`lookup`]) or a stretch of a scan ([`stretch`]). Each device sees by
//! itself, when it begins and when it has found something, whether it may say so: so it does not
//! matter how long a read has lain in a ring.

pub(crate) mod lookup;
pub(crate) mod stretch;

use crate::device::decision::{caught, is_damage};
use crate::device::{Asked, Device, Scratch};
use crate::group::Group;
use crate::shape::position::Devices;
use crate::stats::hedge_delay::{End, Pace};
use coreplane_engine::{Error, Result};
use coreplane_pmem::spin;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks at a hedged read before its caller sleeps.
const SPINS: u32 = 50;

/// How long a caller sleeps before it looks whether anybody is left to answer.
const LOOK: Duration = Duration::from_millis(50);

/// What is asked for.
pub(crate) trait Question: Send + Sync + 'static {
    /// What is found.
    type Answer: Default + Send + 'static;

    /// Looks for it on a device; false if that has nothing to say.
    ///
    /// # Errors
    /// As the engine.
    fn look(&self, on: (&Group, &Device), answer: &mut Self::Answer) -> Result<bool>;

    /// The devices that may be asked now.
    fn candidates(&self, group: &Group) -> Devices;

    /// How long a device takes for such a thing.
    fn pace(device: &Device) -> &Pace;

    /// Where a processor finds it into.
    fn scratch(scratch: &mut Scratch) -> &mut Self::Answer;
}

/// What devices have to say.
#[derive(Debug, Default)]
struct Finish<A> {
    /// An answer has come, or nobody waits for one any more.
    is_over: bool,
    answer: A,
    /// Those who have nothing to say, and why if nobody else has either.
    void: Vec<Option<Error>>,
}

/// A read.
#[derive(Debug)]
pub(crate) struct HedgedRead<Q: Question> {
    question: Q,
    /// Weak: a hedged read that lies in a ring keeps no group, and no thread does for the next race.
    group: Weak<Group>,
    caller: Thread,
    finish: Mutex<Finish<Q::Answer>>,
    /// As in `finish`.
    is_over: AtomicBool,
    /// How often something was said.
    news: AtomicU32,
}

impl<Q: Question> HedgedRead<Q> {
    /// A race of this thread.
    pub(crate) fn new(question: Q, group: &Arc<Group>) -> Self {
        Self {
            question,
            group: Arc::downgrade(group),
            caller: std::thread::current(),
            finish: Mutex::default(),
            is_over: AtomicBool::new(false),
            news: AtomicU32::new(0),
        }
    }

    /// What was found; nobody waits for it any more.
    fn end(&self) -> MutexGuard<'_, Finish<Q::Answer>> {
        self.is_over.store(true, Ordering::Release);
        let mut finish = spin::lock(&self.finish);
        finish.is_over = true;
        finish
    }

    /// Says what was found, unless somebody else was first.
    fn win(&self, found: &mut Q::Answer) -> End {
        {
            let mut finish = spin::lock(&self.finish);
            if finish.is_over {
                return End::Lost;
            }
            finish.is_over = true;
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

impl<Q: Question> Asked for HedgedRead<Q> {
    fn run(&self, device: &Device, asked_at: Instant, scratch: &mut Scratch) {
        let begun_at = Instant::now();
        let group = self.group.upgrade().filter(|_| !self.is_over.load(Ordering::Acquire));
        let end = if let Some(group) = &group {
            let found = Q::scratch(scratch);
            match caught(|| self.question.look((group, device), found)) {
                Ok(true) => self.win(found),
                Ok(false) => self.pass(None),
                // Who asks next finds damage by himself, and deals with it.
                Err(error) if is_damage(&error) => self.pass(None),
                Err(error) => self.pass(group.go_on_without(device, error).err()),
            }
        } else {
            End::Cancelled
        };
        Q::pace(device).note(end, asked_at, begun_at);
    }
}

/// Devices that are asked.
struct Field<'g, Q: Question> {
    group: &'g Arc<Group>,
    race: &'g Arc<HedgedRead<Q>>,
    /// All that were asked, and how many of them have not passed.
    asked: u32,
    running: u32,
}

impl<Q: Question> Field<'_, Q> {
    /// Asks one more; false if it cannot be.
    fn ask(&mut self, device: &Arc<Device>) -> bool {
        self.asked |= 1 << device.number;
        let race = Arc::clone(self.race) as Arc<dyn Asked>;
        let is_asked = device.ask(self.group, race);
        self.running += u32::from(is_asked);
        is_asked
    }

    /// The one to ask next.
    fn next(&self) -> Result<Option<&Arc<Device>>> {
        let current = self.race.question.candidates(self.group) & !self.asked;
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

/// Asks `first`, and, if it is late and `is_hedged`, others, until somebody has answered; false if nobody
/// will, so that it must be decided anew whom to ask.
///
/// # Errors
/// As the engine, and if the group has no member left.
fn run<Q: Question>(
    group: &Arc<Group>,
    first: &Arc<Device>,
    race: &Arc<HedgedRead<Q>>,
    is_hedged: bool,
) -> Result<bool> {
    let mut field = Field { group, race, asked: 0, running: 0 };
    if !field.ask(first) {
        return Ok(false);
    }
    let mut late =
        is_hedged.then(|| (Arc::clone(first), Instant::now() + Q::pace(first).hedge_delay()));
    let mut known = 0;
    loop {
        let look = Instant::now() + LOOK;
        let until = late.as_ref().map_or(look, |(_, at)| (*at).min(look));
        let news = race.wait(known, until);
        if race.is_over.load(Ordering::Acquire) {
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
            let may_ask = Q::pace(device).note_late();
            let next = if may_ask { field.next()?.cloned() } else { None };
            late = next.and_then(|next| {
                Q::pace(&next).note_hedge();
                let hedge_delay = Q::pace(&next).hedge_delay();
                field.ask(&next).then(|| (next, Instant::now() + hedge_delay))
            });
        } else if field.is_abandoned() {
            return Ok(false);
        }
    }
}
