//! Answers that wait for durability: the end of a turn.
//!
//! All answers of a turn share one [`Horizon`]. If it is durable at once, they are sent at once. Otherwise the turn
//! is queued behind those that already wait, and whenever the engine reports progress the turns at the front are
//! checked, in order: a turn is released only after all before it, so one number tells up to where each connection's
//! output is free ([`Output::release`](crate::output::Output::release)).
//!
//! The listener of the engine wakes a loop only if the loop has set a flag; the loop sets it *before* it checks the
//! horizon for the last time, so no wake-up is lost.

use crate::command::engine_error_text;
use crate::event_loop::{EventLoop, write_error};
use coreplane_engine::{Error, Horizon};
use coreplane_pmem::mutant;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A turn whose answers wait.
#[derive(Debug)]
struct WaitingTurn {
    turn: u64,
    horizon: Horizon,
    since: Instant,
}

/// The answers that a loop holds back.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    /// The number of the last turn that had to be checked.
    last: u64,
    turns: VecDeque<WaitingTurn>,
    /// No sync was requested for the last turn yet.
    is_due: bool,
    /// The engine has shown that durability is a sync.
    syncs: bool,
    /// Connections with held answers.
    connections: Vec<usize>,
}

impl Withheld {
    /// Adds the horizon of the last turn, if no sync was requested for it yet: the next turn, which is sent after it,
    /// requests both. A turn has two ends where long commands go on.
    fn include_unasked(&self, horizon: &mut Horizon) {
        if let Some(last) = self.turns.back().filter(|_| self.is_due)
            && !mutant!("server.turn.unasked")
        {
            horizon.merge(&last.horizon);
        }
    }

    /// True if answers wait.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.turns.is_empty()
    }
}

impl EventLoop {
    /// Makes the answered writes durable, and sends the answers that may be sent.
    pub(crate) fn end_turn(&mut self) {
        self.release_durable();
        if self.touched.is_empty() {
            return;
        }
        let turn = self.commit_turn();
        let touched = std::mem::take(&mut self.touched);
        for &key in &touched {
            let Some(connection) = self.connections.get_mut(key) else {
                continue;
            };
            connection.is_touched = false;
            let rests = std::mem::take(&mut connection.rests);
            connection.output.seal(turn.filter(|_| rests));
            if connection.output.is_held() && !connection.is_waiting {
                connection.is_waiting = true;
                self.withheld.connections.push(key);
            }
            self.flush_upstream(key);
            self.flush(key);
        }
        // The list keeps its memory.
        if self.touched.is_empty() {
            self.touched = touched;
            self.touched.clear();
        }
        let took = self.now.elapsed();
        self.port().counters.turn_time.record(took);
    }

    /// Requests durability of all writes that this turn's answers depend on. If that has to be waited for, returns
    /// the number of the turn.
    fn commit_turn(&mut self) -> Option<u64> {
        if self.horizon.is_empty() {
            return None;
        }
        self.withheld.include_unasked(&mut self.horizon);
        self.withheld.last += 1;
        let port = &self.host.ports[self.member];
        port.counters.commits.add(1);
        let engine = &self.host.engine;
        let state = if self.withheld.syncs {
            engine.is_durable(&self.horizon)
        } else {
            engine.commit(&self.horizon)
        };
        match state {
            Ok(true) => {
                self.horizon.clear();
                return None;
            }
            Ok(false) if self.settles => {
                port.counters.waits.add(1);
                // It may settle before the listener knows that the loop waits.
                port.awaits_durable.store(true, Ordering::SeqCst);
                if !matches!(engine.is_durable(&self.horizon), Ok(false)) {
                    port.wake();
                }
            }
            Ok(false) => {
                port.counters.waits.add(1);
                self.withheld.syncs = true;
                self.withheld.is_due = true;
            }
            // The error is found again when the turn is checked, and is handled there.
            Err(_) => port.wake(),
        }
        self.withheld.turns.push_back(WaitingTurn {
            turn: self.withheld.last,
            horizon: std::mem::take(&mut self.horizon),
            since: Instant::now(),
        });
        Some(self.withheld.last)
    }

    /// The horizon of the last turn, if no sync was requested for it yet: the caller either syncs, or calls
    /// [`EventLoop::ask_for_sync`].
    pub(crate) fn awaited(&mut self) -> Option<Horizon> {
        let is_due = std::mem::take(&mut self.withheld.is_due);
        self.withheld.turns.back().filter(|_| is_due).map(|last| last.horizon.clone())
    }

    /// Requests from the engine the sync that the last turn waits for; its listener wakes the loop.
    pub(crate) fn ask_for_sync(&mut self) {
        let port = &self.host.ports[self.member];
        // It may become durable before the listener knows that the loop waits.
        port.awaits_durable.store(true, Ordering::SeqCst);
        let asked = self.withheld.turns.back().map(|last| self.host.engine.commit(&last.horizon));
        if !matches!(asked, Some(Ok(false))) {
            port.wake();
        }
    }

    /// Another thread syncs for the waiting turns, and will not return to this loop: the listener must wake the loop.
    pub(crate) fn await_durable(&mut self) {
        if self.withheld.is_waiting() {
            self.port().awaits_durable.store(true, Ordering::SeqCst);
            self.end_turn();
        }
    }

    /// Releases the answers of turns that are durable by now.
    fn release_durable(&mut self) {
        let (mut durable, mut failed) = (None, None);
        while let Some(waiting) = self.withheld.turns.front() {
            match self.host.engine.is_durable(&waiting.horizon) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            let counters = &self.host.ports[self.member].counters;
            counters.wait_time.record(waiting.since.elapsed());
            durable = Some(waiting.turn);
            self.withheld.turns.pop_front();
        }
        if let Some(durable) = durable {
            self.release(durable);
        }
        if let Some(error) = failed {
            self.fail_held(&error);
        }
    }

    /// Releases the answers of turns up to this one.
    fn release(&mut self, durable: u64) {
        if self.withheld.turns.is_empty() {
            self.port().awaits_durable.store(false, Ordering::SeqCst);
        }
        let held = std::mem::take(&mut self.withheld.connections);
        for key in held {
            let connection = self.connections.get_mut(key).filter(|it| it.is_waiting);
            let Some(connection) = connection else { continue };
            connection.output.release(durable);
            if connection.output.is_held() {
                self.withheld.connections.push(key);
            } else {
                connection.is_waiting = false;
            }
            if !connection.is_touched {
                self.flush(key);
            }
        }
    }

    /// The writes of the held answers will never be durable: no client may be told that they were made.
    fn fail_held(&mut self, error: &Error) {
        self.withheld.turns.clear();
        self.port().awaits_durable.store(false, Ordering::SeqCst);
        for key in std::mem::take(&mut self.withheld.connections) {
            // Another connection may have taken its place meanwhile.
            let connection = self.connections.get_mut(key).filter(|it| it.is_waiting);
            let Some(connection) = connection else { continue };
            connection.is_waiting = false;
            connection.rests = false;
            connection.output.discard_held();
            // Also drop the leader's answers, a part of which may be among them.
            connection.upstream = None;
            // Pushes behind those answers, too.
            connection.session.feed = None;
            let text = engine_error_text(error);
            write_error(connection, &text);
            connection.session.is_closing = true;
            self.touch(key);
        }
    }

    /// Waits until no answer is held, or until the held ones can never be released.
    pub(crate) fn wait_for_withheld(&mut self) {
        // No thread is left that would make them settle.
        if self.settles && self.withheld.is_waiting() {
            self.release_durable();
            return self.fail_held(&Error::Indeterminate);
        }
        while let Some(waiting) = self.withheld.turns.front() {
            match self.host.engine.wait_durable(&waiting.horizon) {
                Ok(()) => self.release_durable(),
                Err(error) => self.fail_held(&error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Completion, Deferred, Engine, WriteOptions};

    /// Two writes whose syncs are separate: a request for the second one's requests the first one's, too.
    #[test]
    fn what_nobody_has_asked_for_is_asked_for_by_the_next() {
        let engine = ModelEngine::with_manual_commit();
        let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
        let written = || {
            let outcome = engine.put(b"k", b"v", &options).expect("put");
            assert!(outcome.is_written());
            Horizon::from(engine.visible_ticket())
        };
        let (first, second) = (written(), written());
        let waiting = WaitingTurn { turn: 1, horizon: second.clone(), since: Instant::now() };
        for (is_due, expected) in [(true, &second), (false, &first)] {
            let withheld =
                Withheld { turns: [waiting_like(&waiting)].into(), is_due, ..Withheld::default() };
            let mut horizon = first.clone();
            withheld.include_unasked(&mut horizon);
            assert_eq!(horizon.tickets(), expected.tickets(), "{is_due}");
        }
    }

    fn waiting_like(turn: &WaitingTurn) -> WaitingTurn {
        WaitingTurn { turn: turn.turn, horizon: turn.horizon.clone(), since: turn.since }
    }
}
