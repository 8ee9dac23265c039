//! Two threads that run one loop in turn, so that a loop can sync and is never stopped by a sync.
//!
//! Where durability is a sync, a thread has to wait for the device. A thread that does nothing else has to be woken
//! for each sync, and has to wake the loop when it has ended; on a machine with few cores those wake-ups take as long
//! as the sync. So the thread that runs the loop, the *leader*, leaves the loop and syncs itself. Mostly the device
//! is quick: the loop is still free when the leader comes back, and no thread was woken in all that time. If the
//! device is slow, the other thread, the *follower*, takes over the loop after [`REST`] and goes on serving:
//!
//! ```text
//!   leader     turn │ sync ───│ turn │ sync ──────────────────────│ follows …
//!   loop            └─ rests ─┘      └─ rests ─┐
//!   follower                                   │ takes it up, leads ──▶ turn, turn …
//! ```
//!
//! The follower cannot also sync the writes of its own turns, or no thread would serve: until the other thread has
//! come back it asks the engine for the sync and is notified when that has ended.
//!
//! The follower checks the time by itself while syncs are being made, so that it need not be woken for each; when
//! there were none for a while it sleeps until the next begins. Where durability is an instruction it is never
//! started.

use crate::event_loop::EventLoop;
use crate::host::Host;
use mio::Events;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

/// The longest time that a sync may keep a loop from running.
const REST: Duration = Duration::from_micros(500);

/// After so many checks without a sync the follower goes to sleep.
const IDLE_LOOKS_MAX: u32 = 50;

/// A loop and the threads that run it.
#[derive(Debug)]
pub(crate) struct Relay {
    host: Arc<Host>,
    event_loop: Mutex<EventLoop>,
    state: Mutex<State>,
    /// The follower sleeps, and must check again.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    follower: Follower,
    /// The time at which a thread left the loop to sync.
    syncing_since: Option<Instant>,
    /// The loop has ended.
    is_over: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Follower {
    /// Not started yet, or it could not be started.
    #[default]
    None,
    Looking,
    Asleep,
}

/// Ends the relay and the other loops, however one of its threads ends.
struct Over<'a>(&'a Relay);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
        // The other thread may sleep in the loop's poll.
        self.0.host.end();
    }
}

impl Relay {
    pub(crate) fn new(event_loop: EventLoop) -> Self {
        Self {
            host: event_loop.host.clone(),
            event_loop: Mutex::new(event_loop),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Runs the loop until the server ends, first in this thread.
    pub(crate) fn run(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            let follower = Mutex::new(None);
            let led = self.lead(self.event_loop.lock(), &|| {
                let started = self.start_follower(scope);
                let is_there = started.is_some();
                *follower.lock() = started;
                is_there
            });
            let followed = follower.into_inner().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            led.and(followed.unwrap_or(Ok(())))
        })
    }

    fn start_follower<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Option<std::thread::ScopedJoinHandle<'scope, io::Result<()>>> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let follow = move || match self.follow() {
            Some(event_loop) => self.lead(event_loop, &|| false),
            None => Ok(()),
        };
        Builder::new().name(name).spawn_scoped(scope, follow).ok()
    }

    /// Runs the loop whenever it is this thread's turn, until it ends.
    fn lead<'a>(
        &'a self,
        mut event_loop: MutexGuard<'a, EventLoop>,
        start_follower: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let _over = Over(self);
        let mut events = Events::with_capacity(1024);
        loop {
            if self.host.is_ending.load(Ordering::SeqCst) {
                event_loop.end();
                return Ok(());
            }
            match event_loop.turn(&mut events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            let Some(awaited) = event_loop.awaited() else { continue };
            if !self.begin_sync(start_follower) {
                event_loop.ask_for_sync();
                continue;
            }
            drop(event_loop);
            // If it fails, the turn that depends on it finds the error again.
            let _found_later = self.host.engine.wait_durable(&awaited).is_ok();
            event_loop = match self.end_sync().or_else(|| self.follow()) {
                Some(event_loop) => event_loop,
                None => return Ok(()),
            };
            // Ends the turn: if the sync has failed, the waiting clients are told so now.
            event_loop.end_turn();
        }
    }

    /// True if the leader may sync: the follower exists, and does not sync itself.
    fn begin_sync(&self, start_follower: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        if state.syncing_since.is_some() {
            return false;
        }
        match state.follower {
            Follower::None => {
                if !start_follower() {
                    return false;
                }
                state.follower = Follower::Looking;
            }
            Follower::Looking => {}
            Follower::Asleep => {
                self.changed.notify_all();
            }
        }
        state.syncing_since = Some(Instant::now());
        true
    }

    /// The loop, if no other thread has taken it over.
    fn end_sync(&self) -> Option<MutexGuard<'_, EventLoop>> {
        let mut state = self.state.lock();
        state.syncing_since = None;
        if state.is_over { None } else { self.event_loop.try_lock() }
    }

    /// Waits until it is this thread's turn to lead; none when the loop has ended.
    fn follow(&self) -> Option<MutexGuard<'_, EventLoop>> {
        let mut state = self.state.lock();
        let mut idle_looks = 0;
        loop {
            if state.is_over {
                return None;
            }
            let rested = state.syncing_since.map(|since| since.elapsed());
            match rested {
                Some(rested) if rested >= REST => {
                    if let Some(mut event_loop) = self.event_loop.try_lock() {
                        drop(state);
                        event_loop.port().counters.handovers.add(1);
                        event_loop.await_durable();
                        return Some(event_loop);
                    }
                    // The other thread has taken it again just now.
                    self.changed.wait_for(&mut state, REST);
                }
                Some(rested) => {
                    idle_looks = 0;
                    self.changed.wait_for(&mut state, REST - rested);
                }
                None if idle_looks < IDLE_LOOKS_MAX => {
                    idle_looks += 1;
                    self.changed.wait_for(&mut state, REST);
                }
                None => {
                    state.follower = Follower::Asleep;
                    self.changed.wait(&mut state);
                    state.follower = Follower::Looking;
                    idle_looks = 0;
                }
            }
        }
    }
}
