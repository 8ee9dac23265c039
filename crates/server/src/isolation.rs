//! Commands that touch several keys, alone among all event loops.
//!
//! One loop runs its commands one after another, so they are isolated from each other for free. Between loops the
//! engine isolates a single key's read-modify-write and a whole batch. That leaves commands that read and then write
//! several keys (`EXEC`, `RENAME`, `MSETNX`…).
//!
//! The scheme is a lock that is cheap to share and expensive to own. Every loop has a flag of its own, on a cache
//! line of its own, which it raises while it runs a client's commands, or sends them to the leader of a cluster, so
//! that both end before `CLIENT KILL` and `CLIENT PAUSE`. A loop that wants to be alone lowers its own flag, takes the
//! gate, announces itself, and waits until every other flag is down; a loop that raises its flag and then sees the
//! announcement lowers it again and waits at the gate.
//!
//! ```text
//! loop 0:  ▲ get set incr ▼      ▲ get │ gate … │ get ▼
//! loop 1:        ▲ get EXEC: ▼ wait ── alone ── ▲ set ▼
//! ```
//!
//! Invariant: both sides write, then read, in one total order (`SeqCst`): of "flag up, announced?"
//! and "announce, flag up?" at least one sees the other.

use crossbeam_utils::{Backoff, CachePadded};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};

/// The lock among the event loops.
#[derive(Debug)]
pub(crate) struct Isolation {
    /// By loop: it is running commands.
    running: Box<[CachePadded<AtomicBool>]>,
    /// A loop is, or wants to be, alone.
    announced: CachePadded<AtomicBool>,
    gate: Mutex<()>,
}

/// While this lives, its loop runs commands, beside other loops. A panic in a command drops it, too: otherwise
/// another loop that wants to be alone would wait for ever.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn<'a> {
    isolation: &'a Isolation,
    member: usize,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.isolation.lower(self.member);
    }
}

/// While this lives, its loop is alone.
#[derive(Debug)]
pub(crate) struct Alone<'a> {
    isolation: &'a Isolation,
    member: usize,
    gate: Option<MutexGuard<'a, ()>>,
}

impl Isolation {
    /// For so many loops.
    pub(crate) fn new(members: usize) -> Self {
        Self {
            running: (0..members).map(|_| CachePadded::default()).collect(),
            announced: CachePadded::default(),
            gate: Mutex::new(()),
        }
    }

    /// `member` runs commands, beside others, until the result is dropped; waits while another loop is alone.
    pub(crate) fn enter(&self, member: usize) -> Turn<'_> {
        self.raise(member);
        Turn { isolation: self, member }
    }

    fn raise(&self, member: usize) {
        loop {
            self.running[member].store(true, Ordering::SeqCst);
            if !self.announced.load(Ordering::SeqCst) {
                return;
            }
            self.running[member].store(false, Ordering::SeqCst);
            drop(self.gate.lock());
        }
    }

    fn lower(&self, member: usize) {
        self.running[member].store(false, Ordering::Release);
    }

    /// `member`, which has entered, waits until no other loop runs commands, and excludes them until the result is
    /// dropped; then it runs beside others again.
    pub(crate) fn alone(&self, member: usize) -> Alone<'_> {
        self.lower(member);
        let gate = self.gate.lock();
        self.announced.store(true, Ordering::SeqCst);
        for other in &self.running {
            let backoff = Backoff::new();
            while other.load(Ordering::SeqCst) {
                // A loop that lost its core in the middle of a command gets it back sooner if this thread sleeps.
                if backoff.is_completed() {
                    std::thread::sleep(std::time::Duration::from_micros(20));
                } else {
                    backoff.snooze();
                }
            }
        }
        Alone { isolation: self, member, gate: Some(gate) }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.isolation.announced.store(false, Ordering::SeqCst);
        drop(self.gate.take());
        self.isolation.raise(self.member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_runs_beside_who_is_alone() {
        const ROUNDS: u64 = 6_000;
        let isolation = Isolation::new(3);
        let (left, right) = (AtomicU64::new(0), AtomicU64::new(0));
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for member in 0..3 {
                let (isolation, left, right, start) = (&isolation, &left, &right, &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        let beside = isolation.enter(member);
                        // Never torn for a loop that runs beside others…
                        let seen = left.load(Ordering::Relaxed);
                        assert_eq!(seen, right.load(Ordering::Relaxed));
                        if round % 3 == 0 {
                            let alone = isolation.alone(member);
                            // …and never lost by a loop that is alone.
                            let value = left.load(Ordering::Relaxed) + 1;
                            left.store(value, Ordering::Relaxed);
                            (0..100).for_each(|_| std::hint::spin_loop());
                            right.store(value, Ordering::Relaxed);
                            drop(alone);
                        }
                        drop(beside);
                    }
                });
            }
        });
        assert_eq!(left.load(Ordering::Relaxed), 3 * ROUNDS.div_ceil(3));
    }
}
