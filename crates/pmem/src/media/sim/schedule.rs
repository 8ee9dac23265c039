//! Threads of a simulated run, one at a time, in an order that a seed decides.
//!
//! They are real threads of the system that pass a baton: the holder runs, all others wait. At each
//! access to the space (a *point*) the holder may pass it on, as the seed decides. So a run is the
//! same each time, as long as the threads do not synchronise in other ways:
//!
//! - A thread that spins for another calls [`spin::Backoff`](crate::spin::Backoff), which passes
//!   the baton on; [`spin::lock`](crate::spin::lock) takes a mutex in this way.
//! - A holder that blocks in the system instead (on a plain lock, a channel) would stop all
//!   threads. So the waiting threads check every few milliseconds: if the kernel reports that the
//!   holder sleeps, or the holder has not reached a point for very long, one of them goes on. The
//!   sleeping thread, when it wakes, runs on beside the new holder up to its next point. That
//!   depends on the clock, so each such switch is counted
//!   ([`Report::forced_switches`](super::Report::forced_switches)), and a replay may differ.

use super::rng::Rng;
use crate::space::set_thread_number;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the waiting threads check the holder.
const LOOK: Duration = Duration::from_millis(2);

/// A holder that runs this long without a point is assumed to spin for another thread.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    static SEAT: RefCell<Option<(Arc<Table>, usize)>> = const { RefCell::new(None) };
}

fn seat() -> Option<(Arc<Table>, usize)> {
    SEAT.try_with(|seat| seat.borrow().clone()).ok().flatten()
}

/// A point at which another thread may run instead.
pub(super) fn point() {
    if let Some((table, me)) = seat() {
        table.pass(me, false);
    }
}

/// Lets another thread run, for which this one waits. False if the thread is not simulated.
pub(crate) fn waiting() -> bool {
    let Some((table, me)) = seat() else {
        return false;
    };
    if !table.pass(me, true) {
        std::thread::yield_now();
    }
    true
}

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Waits for the baton.
    Waiting,
    /// Has the baton.
    Holding,
    /// Had the baton and lost it to the clock.
    Stuck,
    Ended,
}

#[derive(Debug)]
struct Player {
    standing: Standing,
    /// Its thread id in the system, once it has started.
    task: Option<i32>,
}

/// The threads of one group.
#[derive(Debug)]
struct Table {
    state: Mutex<State>,
    moved: Condvar,
    /// Calls that need the state, counted before they lock it; [`State::calls`] counts them after they have locked
    /// it. While the two differ, a sleeping thread may only be waiting for that lock.
    calls: AtomicU64,
}

struct State {
    players: Vec<Player>,
    started: bool,
    rng: Rng,
    /// The holder passes the baton on once in this many points, on average.
    stays: usize,
    moves: u64,
    calls: u64,
    /// True once the holder has noticed that it holds the baton.
    awake: bool,
    forced: u64,
    panic: Option<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("players", &self.players).finish_non_exhaustive()
    }
}

impl State {
    fn holder(&self) -> Option<usize> {
        self.players.iter().position(|player| player.standing == Standing::Holding)
    }

    /// Gives the baton to a waiting thread; false if none waits.
    fn choose(&mut self) -> bool {
        let waiting = |player: &&mut Player| player.standing == Standing::Waiting;
        let count = self.players.iter_mut().filter(waiting).count();
        let chosen = self.rng.below(count);
        let Some(player) = self.players.iter_mut().filter(waiting).nth(chosen) else {
            return false;
        };
        player.standing = Standing::Holding;
        self.moves += 1;
        self.awake = false;
        true
    }
}

impl Table {
    fn call(&self) -> MutexGuard<'_, State> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        state.calls += 1;
        state
    }

    fn someone_calls(&self, state: &State) -> bool {
        self.calls.load(Ordering::SeqCst) != state.calls
    }

    /// A point of thread `me`, which has the baton when this returns. `leave`: passes it to another
    /// thread, if one waits. False if no other thread could run.
    fn pass(&self, me: usize, leave: bool) -> bool {
        let mut state = self.call();
        state.moves += 1;
        if state.players[me].standing == Standing::Holding {
            let stays = state.stays;
            if !leave && !state.rng.one_in(stays) {
                return true;
            }
            if leave {
                if !state.choose() {
                    return false;
                }
                state.players[me].standing = Standing::Waiting;
            } else {
                state.players[me].standing = Standing::Waiting;
                state.choose();
            }
            self.moved.notify_all();
        } else {
            state.players[me].standing = Standing::Waiting;
        }
        self.wait_for_baton(state, me);
        true
    }

    fn wait_for_baton(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let mut moves = state.moves;
        let mut since = Instant::now();
        loop {
            if state.players[me].standing == Standing::Holding {
                state.awake = true;
                return;
            }
            if state.started && state.holder().is_none() && state.choose() {
                self.moved.notify_all();
                continue;
            }
            let timed_out = self.moved.wait_for(&mut state, LOOK).timed_out();
            if state.moves != moves {
                moves = state.moves;
                since = Instant::now();
            } else if timed_out && state.started && state.awake {
                self.look(&mut state, since);
            }
        }
    }

    /// Takes the baton from a sleeping holder.
    fn look(&self, state: &mut State, since: Instant) {
        let Some(holder) = state.holder() else {
            return;
        };
        if self.someone_calls(state) {
            return;
        }
        let sleeps = state.players[holder].task.is_some_and(sleeps);
        if !sleeps && since.elapsed() < PATIENCE || self.someone_calls(state) {
            return;
        }
        if state.choose() {
            state.players[holder].standing = Standing::Stuck;
            state.forced += 1;
            self.moved.notify_all();
        }
    }

    fn sit(&self, me: usize) {
        let mut state = self.state.lock();
        state.players[me].task = Some(rustix::thread::gettid().as_raw_nonzero().get());
        self.wait_for_baton(state, me);
    }

    fn leave(&self, me: usize, panic: Option<Box<dyn Any + Send>>) {
        let mut state = self.call();
        let held = state.players[me].standing == Standing::Holding;
        state.players[me].standing = Standing::Ended;
        state.moves += 1;
        if held {
            state.choose();
        }
        if state.panic.is_none() {
            state.panic = panic;
        }
        drop(state);
        self.moved.notify_all();
    }

    fn start(&self) {
        let mut state = self.state.lock();
        state.started = true;
        state.choose();
        drop(state);
        self.moved.notify_all();
    }
}

/// True if the kernel reports that the thread sleeps.
fn sleeps(task: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")) else {
        return false;
    };
    // The state follows the name, which is in parentheses and may contain any characters.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}

/// Threads of a run that are about to start.
#[derive(Debug)]
pub struct Threads<'scope, 'env: 'scope> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    table: Arc<Table>,
    first_number: usize,
}

impl<'scope> Threads<'scope, '_> {
    /// Adds a thread that starts when all are there, and runs when the seed decides so.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'scope) {
        let table = Arc::clone(&self.table);
        let me = {
            let mut state = table.state.lock();
            state.players.push(Player { standing: Standing::Waiting, task: None });
            state.players.len() - 1
        };
        let number = self.first_number + me;
        self.scope.spawn(move || {
            set_thread_number(number);
            SEAT.with(|seat| *seat.borrow_mut() = Some((Arc::clone(&table), me)));
            table.sit(me);
            let panic = catch_unwind(AssertUnwindSafe(work)).err();
            SEAT.with(|seat| *seat.borrow_mut() = None);
            table.leave(me, panic);
        });
    }
}

/// Starts the threads when it is dropped, also if the spawning code panics.
struct Start<'a>(&'a Table);

impl Drop for Start<'_> {
    fn drop(&mut self) {
        self.0.start();
    }
}

/// Runs the threads that `spawns` spawns until all have ended; returns their number, and how often
/// the clock took the baton. They are numbered from `first_number` on.
pub(super) fn together<'env>(
    seed: u64,
    first_number: usize,
    spawns: impl for<'scope> FnOnce(&Threads<'scope, 'env>),
) -> (usize, u64) {
    let mut rng = Rng::of(seed, first_number as u64);
    let stays = 1 << rng.below(6);
    let state = State {
        players: Vec::new(),
        started: false,
        rng,
        stays,
        moves: 0,
        calls: 0,
        awake: false,
        forced: 0,
        panic: None,
    };
    let table = Arc::new(Table {
        state: Mutex::new(state),
        moved: Condvar::new(),
        calls: AtomicU64::new(0),
    });
    std::thread::scope(|scope| {
        let _start = Start(&table);
        spawns(&Threads { scope, table: Arc::clone(&table), first_number });
    });
    let mut state = table.state.lock();
    if let Some(panic) = state.panic.take() {
        drop(state);
        resume_unwind(panic);
    }
    (state.players.len(), state.forced)
}
