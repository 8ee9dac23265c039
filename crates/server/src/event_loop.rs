//! One thread that serves its connections.
//!
//! A turn of the loop:
//!
//! 1. sleep until sockets are ready (or another thread wakes the loop); while requests come within
//!    microseconds of each other, look for them without sleeping;
//! 2. read each ready connection once and run the commands that have arrived, back to back, the
//!    engine's calls inline, answers into the connection's output; then the new connections
//!    ([`lifetime`](crate::lifetime));
//! 3. ask the engine once to make durable the writes that the answers of the turn depend on;
//! 4. send, with one write for each connection, the answers that may be sent;
//! 5. let the long commands that began earlier go on for a slice ([`slice`](crate::slice)), and repeat steps 3 and 4
//!    for them.
//!
//! Where durability is an instruction, step 3 is one fence for the whole turn and step 4 sends everything. Where it
//! is a sync, the answers stay in the output; the thread leaves the loop and syncs, and if that takes long another
//! thread takes over the loop ([`relay`](crate::relay)). As more becomes durable the answers are released in order.
//! So a sync never stops the loop, and all writes that arrive meanwhile share the next one.
//!
//! No connection can starve the others: a connection is read once in a turn, long commands of all connections share
//! one slice of it ([`slice`](crate::slice)), and a connection whose unsent output is large is not read at all until
//! half is sent.

use crate::Standing;
use crate::connection::Connection;
use crate::host::{Host, Message, Port};
use crate::listener::Listeners;
use crate::resp::reply::{Proto, Reply};
use crate::service::{PolledService, is_of_service};
use crate::slice::Slice;
use crate::upstream::{FIRST_UPSTREAM, standing_of};
use crate::withheld::Withheld;
use coreplane_engine::Horizon;
use coreplane_pmem::mutant;
use mio::{Events, Poll, Token};
use slab::Slab;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Tokens from here on are not connections.
pub(crate) const FIRST_LISTENER: usize = usize::MAX >> 1;
/// Tokens from here on, up to those of listeners, are the service's.
pub(crate) const FIRST_SERVICE: usize = usize::MAX >> 2;
pub(crate) const WAKE: Token = Token(usize::MAX - 1);

/// The token of listener `index`.
pub(crate) fn listener_token(index: usize) -> Token {
    Token(FIRST_LISTENER + index)
}

pub(crate) const SCRATCH_LEN: usize = 64 << 10;

/// The longest time that a loop polls for the next request before it sleeps.
const LINGER: Duration = Duration::from_micros(30);

/// The connections of one thread, and the state for serving them.
#[derive(Debug)]
pub(crate) struct EventLoop {
    pub(crate) host: Arc<Host>,
    pub(crate) member: usize,
    pub(crate) poll: Poll,
    pub(crate) connections: Slab<Connection>,
    pub(crate) listeners: Option<Listeners>,
    pub(crate) scratch: Vec<u8>,
    /// The writes that the answers of this turn depend on.
    pub(crate) horizon: Horizon,
    pub(crate) withheld: Withheld,
    /// Connections with new output in this turn.
    pub(crate) touched: Vec<usize>,
    /// Connections with work left over from the last turn.
    pub(crate) again: Vec<usize>,
    pub(crate) now: Instant,
    /// The slice for long commands in this turn.
    pub(crate) slice: Slice,
    /// The position at which the next round of long commands begins.
    round: usize,
    pub(crate) last_tick: Instant,
    /// The last wait was short.
    comes_soon: bool,
    /// The engine makes promised writes durable by itself.
    pub(crate) settles: bool,
    /// Where commands that need the records were run in the last turn.
    pub(crate) standing: Standing,
    pub(crate) service: Option<Box<dyn PolledService>>,
    /// Connections with commands for a leader that has not been reached yet, or that a pause holds.
    pub(crate) unsent: BTreeSet<usize>,
    /// All work to be repeated waits for something else.
    pub(crate) is_waiting: bool,
    /// Connections that watch changes.
    pub(crate) feeds: Vec<usize>,
}

impl EventLoop {
    /// Loop `member`; the loop with the listeners distributes connections to all.
    pub(crate) fn new(
        host: Arc<Host>,
        member: usize,
        poll: Poll,
        listeners: Option<Listeners>,
    ) -> Self {
        let settles = host.engine.settles_by_itself();
        let standing = standing_of(host.config.cluster.as_deref());
        Self {
            host,
            member,
            poll,
            connections: Slab::new(),
            listeners,
            scratch: vec![0; SCRATCH_LEN],
            horizon: Horizon::new(),
            withheld: Withheld::default(),
            touched: Vec::new(),
            again: Vec::new(),
            now: Instant::now(),
            slice: Slice::default(),
            round: 0,
            last_tick: Instant::now(),
            comes_soon: false,
            settles,
            standing,
            service: None,
            unsent: BTreeSet::new(),
            is_waiting: false,
            feeds: Vec::new(),
        }
    }

    pub(crate) fn port(&self) -> &Port {
        &self.host.ports[self.member]
    }

    /// One turn.
    pub(crate) fn turn(&mut self, events: &mut Events) -> io::Result<()> {
        self.wait(events)?;
        self.now = Instant::now();
        if let Some(service) = &mut self.service {
            for event in events.iter().filter(|event| is_of_service(event.token())) {
                service.ready(self.poll.registry(), event);
            }
            service.begin_turn(self.poll.registry(), self.now);
        }
        self.check_upstreams();
        self.is_waiting = true;
        self.slice = Slice::default();
        let long = self.serve_again();
        let mut is_woken = false;
        let mut listeners = Vec::new();
        for event in events.iter() {
            match event.token() {
                WAKE => is_woken = true,
                Token(key) if key < FIRST_UPSTREAM => self.on_event(key, event),
                Token(key) if key < FIRST_SERVICE => self.on_upstream(key - FIRST_UPSTREAM),
                token if is_of_service(token) => {}
                Token(index) => {
                    listeners.push(index - FIRST_LISTENER);
                    if mutant!("server.accept.early") {
                        self.accept(std::mem::take(&mut listeners));
                    }
                }
            }
        }
        if is_woken {
            self.read_inbox();
        }
        self.accept(listeners);
        self.push_changes();
        self.end_turn();
        self.go_on_with(&long);
        if let Some(service) = &mut self.service {
            service.end_turn(self.poll.registry());
        }
        self.tick();
        Ok(())
    }

    /// Serves connections with work left over; the keys of those that go on at the end of the turn: with long commands,
    /// and with commands of another node, whose end may be among the events of this turn.
    fn serve_again(&mut self) -> Vec<usize> {
        let mut long = Vec::new();
        for key in std::mem::take(&mut self.again) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if connection.session.continuation.is_some() || connection.session.is_forwarded {
                long.push(key);
                continue;
            }
            connection.is_queued = false;
            self.serve(key);
        }
        long
    }

    /// Lets the rest of the connections go on, after all others have been answered.
    fn go_on_with(&mut self, long: &[usize]) {
        if long.is_empty() {
            return;
        }
        // The first one may use the whole slice.
        self.round = self.round.wrapping_add(1);
        let first = self.round.checked_rem(long.len()).unwrap_or(0);
        let (last, first) = long.split_at(first);
        self.slice.grant_step();
        for key in first.iter().chain(last) {
            if let Some(connection) = self.connections.get_mut(*key) {
                connection.is_queued = false;
                self.serve(*key);
            }
        }
        self.end_turn();
    }

    /// Waits until there is work. If the last work came within [`LINGER`], it polls for that long before it sleeps:
    /// waking a sleeping thread costs the waker time, and here that delays a client's request. It does not poll while
    /// answers wait for a sync, whose thread may need the core.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        if !self.again.is_empty() || !self.unsent.is_empty() {
            self.is_waiting |= self.again.is_empty();
            let pause = if self.is_waiting { Duration::from_millis(1) } else { Duration::ZERO };
            return self.poll.poll(events, Some(pause));
        }
        let began = Instant::now();
        while self.comes_soon && !self.withheld.is_waiting() {
            self.poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(());
            }
            self.comes_soon = began.elapsed() < LINGER;
        }
        let result = self.poll.poll(events, Some(self.sleep_max()));
        self.comes_soon = began.elapsed() < LINGER;
        result
    }

    fn on_event(&mut self, key: usize, event: &mio::event::Event) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        // It may send no more, but still receive the answer to its requests; unless it cannot receive either.
        let is_gone = event.is_error() || event.is_write_closed();
        if is_gone && connection.session.continuation.is_some() {
            return self.drop_connection(key);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.is_readable = true;
            if event.is_read_closed() || is_gone {
                connection.is_half_closed = true;
                if connection.session.is_forwarded {
                    // The node has told its client that the outcome is unknown: commands that have not run yet must
                    // not run later.
                    return self.drop_connection(key);
                }
            }
            // A long command that goes on has its place in the turn.
            if !connection.is_queued || connection.session.continuation.is_none() {
                self.serve(key);
            }
        }
        if event.is_writable() {
            self.touch(key);
        }
    }

    fn read_inbox(&mut self) {
        let messages = std::mem::take(&mut *self.port().inbox.lock());
        for message in messages {
            match message {
                Message::Serve(stream) => self.add_connection(stream),
                Message::Kill(key, id) => {
                    let is_it = |connection: &Connection| connection.session.info.id == id;
                    if self.connections.get(key).is_some_and(is_it) {
                        self.drop_connection(key);
                    }
                }
                Message::Push(key, id, line) => self.push_line(key, id, &line),
            }
        }
    }

    /// Puts the connection on the list of those to be handled at the end of the turn.
    pub(crate) fn touch(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.is_touched
        {
            connection.is_touched = true;
            self.touched.push(key);
        }
    }

    /// Sends the output that may be sent.
    pub(crate) fn flush(&mut self, key: usize) {
        let pause = self.host.settings.output_pause_bytes.load(Ordering::Relaxed);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.session.is_dropped {
            return self.drop_connection(key);
        }
        let pause = connection.output_pause(pause);
        let was_paused = connection.output.len() as u64 >= pause;
        let mut sent = 0;
        let mut is_blocked = false;
        while !connection.output.ready().is_empty() {
            match connection.stream.write(connection.output.ready()) {
                Ok(len) => {
                    connection.output.sent(len);
                    sent += len as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_blocked = true;
                    break;
                }
                Err(_) => return self.drop_connection(key),
            }
        }
        self.host.ports[self.member].counters.bytes_out.add(sent);
        if sent > 0 {
            connection.session.info.note_activity(self.now);
        }
        if connection.watches_writable != is_blocked {
            connection.watches_writable = is_blocked;
            let registry = self.poll.registry();
            let result = connection.stream.watch_writable(registry, Token(key), is_blocked);
            if result.is_err() {
                return self.drop_connection(key);
            }
        }
        let left = connection.publish_output();
        if connection.is_closing() && left == 0 {
            return self.drop_connection(key);
        }
        let is_behind = sent > 0 && connection.is_behind();
        let may_go_on = connection.is_stalled || connection.is_readable || was_paused || is_behind;
        if may_go_on && left as u64 <= pause / 2 && !connection.is_queued {
            connection.is_queued = true;
            self.again.push(key);
        }
        if left as u64 <= pause / 2 {
            self.resume_upstream(key);
        }
        if self.host.settings.limits_output.load(Ordering::Relaxed) {
            self.check_output_limit(key);
        }
    }

    /// True if it is time for the periodic work.
    pub(crate) fn is_tick_due(&self) -> bool {
        self.now.duration_since(self.last_tick) >= self.tick_length()
    }

    /// Periodic work.
    fn tick(&mut self) {
        if !self.is_tick_due() {
            return;
        }
        self.last_tick = self.now;
        if self.member == 0 {
            self.host.sample_rate(self.now);
        }
        self.check_ages();
    }

    /// Sends the output that can still be sent, when the server ends.
    pub(crate) fn end(&mut self) {
        self.wait_for_withheld();
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.flush(key);
            self.drop_connection(key);
        }
    }
}

pub(crate) fn write_error(connection: &mut Connection, text: &str) {
    let mut reply = Reply { out: connection.output.buffer(), proto: Proto::Two };
    reply.error(text.as_bytes());
}
