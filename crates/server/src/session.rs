//! The state of a connection as agreed with its client.

use crate::clients::ClientInfo;
use crate::continuation::Continuation;
use crate::feed::Feed;
use crate::pause::Paused;
use crate::resp::frame::{Span, Words};
use crate::resp::reply::Proto;
use crate::stopwatch::Stopwatch;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The state of a key when it was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A record with this sequence.
    Present(u64),
    /// Absent; with the number of writes in the list of watched absences, and the engine's number of leaderships.
    Absent(u64, u64),
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// The end of each command in `spans`, and its index in the table.
    commands: Vec<(usize, usize)>,
    /// One of them was refused.
    pub is_refused: bool,
}

impl Queue {
    /// Adds a command.
    pub(crate) fn push(&mut self, index: usize, words: &Words<'_>) {
        for word in words.from(0) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(word);
            self.spans.push((start, self.bytes.len()));
        }
        self.commands.push((self.spans.len(), index));
    }

    /// Removes all of them, and keeps their memory unless it is large.
    pub(crate) fn emptied(mut self) -> Self {
        const KEPT: usize = 16 << 10;
        if self.bytes.capacity() > KEPT || self.spans.capacity() * size_of::<Span>() > KEPT {
            return Self::default();
        }
        self.bytes.clear();
        self.spans.clear();
        self.commands.clear();
        self.is_refused = false;
        self
    }

    /// Bytes of all their words.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory for all of them.
    pub(crate) fn memory(&self) -> usize {
        let (spans, commands) = (size_of::<Span>(), size_of::<(usize, usize)>());
        self.bytes.len() + self.spans.len() * spans + self.commands.len() * commands
    }

    /// True if `is_such` holds for the table index of one of them.
    pub(crate) fn any(&self, is_such: impl Fn(usize) -> bool) -> bool {
        self.commands.iter().any(|(_, index)| is_such(*index))
    }

    /// The number of commands.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// All of them, in order, each with its index in the table.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (usize, Words<'_>)> {
        let mut start = 0;
        self.commands.iter().map(move |&(end, index)| {
            let spans = &self.spans[start..end];
            start = end;
            (index, Words::new(&self.bytes, spans))
        })
    }
}

/// Whether a client wants answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Answers {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this command.
    Skip,
}

/// The state of a connection with the leader that runs its commands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UpstreamState {
    /// Commands are pending.
    pub is_awaited: bool,
    /// They are part of a transaction.
    pub is_in_multi: bool,
    /// The transaction has writes.
    pub queues_writes: bool,
    /// The leader that has state of the client, or pending commands.
    pub leader: Option<SocketAddr>,
}

/// A command that a leader is to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forwarded {
    /// Empty if the command is to be refused.
    pub name: &'static str,
    pub leader: SocketAddr,
    /// The least pause that holds it, if one does.
    pub held_by: Option<Paused>,
}

/// The state of a connection as agreed with its client.
#[derive(Debug)]
pub(crate) struct Session {
    pub proto: Proto,
    pub is_authenticated: bool,
    pub queue: Option<Queue>,
    /// The memory of the last transaction, for the next one.
    pub spare_queue: Queue,
    pub watches: HashMap<Vec<u8>, Seen>,
    /// Bytes of memory for them, about.
    pub watched_bytes: usize,
    pub answers: Answers,
    pub is_closing: bool,
    /// The connection is to be closed without an answer.
    pub is_dropped: bool,
    /// The last command was not run: it will run in a later turn.
    pub is_postponed: bool,
    /// The time of its first postponement.
    pub postponed_since: Option<Instant>,
    /// The progress of the command that was begun and is not finished.
    pub continuation: Option<Continuation>,
    /// Its last slice has made progress: it waits for nothing but its next one.
    pub has_progressed: bool,
    /// Answers to its earlier commands wait for writes that are not durable yet.
    pub awaits_durable: bool,
    /// Its last `MGET` had a very long answer.
    pub reads_much: bool,
    /// Its answers exceed the output limit: they are no longer kept, and the connection is closed.
    pub exceeds_output_limit: bool,
    /// The last command is to be run by the leader.
    pub forwards: Option<Forwarded>,
    /// The other end is a node of the cluster, which forwards the commands of a client.
    pub is_forwarded: bool,
    /// `READONLY`: it reads the state of a follower.
    pub is_read_only: bool,
    /// The current command is such a read.
    pub shows_follower: bool,
    /// Times its commands.
    pub stopwatch: Stopwatch,
    /// The duration of its command in earlier turns, if known.
    pub took_before: Duration,
    /// It receives every command (`MONITOR`).
    pub is_monitor: bool,
    /// Lines for it, which wait for the end of an unfinished answer.
    pub monitor_lines: Vec<u8>,
    /// Its command waits for the end of a pause.
    pub is_paused: bool,
    /// The changes that it watches.
    pub feed: Option<Feed>,
    /// The state with the leader.
    pub upstream: UpstreamState,
    /// Its protocol has changed, or it was reset: its connection to the leader begins anew, too.
    pub begins_anew: bool,
    pub info: Arc<ClientInfo>,
}

impl Session {
    /// The session of a client that just connected.
    pub(crate) fn new(info: Arc<ClientInfo>, is_authenticated: bool) -> Self {
        Self {
            proto: Proto::default(),
            is_authenticated,
            queue: None,
            spare_queue: Queue::default(),
            watches: HashMap::new(),
            watched_bytes: 0,
            answers: Answers::default(),
            is_closing: false,
            is_dropped: false,
            is_postponed: false,
            postponed_since: None,
            continuation: None,
            has_progressed: false,
            awaits_durable: false,
            reads_much: false,
            exceeds_output_limit: false,
            forwards: None,
            is_forwarded: false,
            is_read_only: false,
            shows_follower: false,
            stopwatch: Stopwatch::default(),
            took_before: Duration::ZERO,
            is_monitor: false,
            monitor_lines: Vec::new(),
            is_paused: false,
            feed: None,
            upstream: UpstreamState::default(),
            begins_anew: false,
            info,
        }
    }

    /// True if its command has not begun, and waits for the end of a pause, for a leader, or for a busy engine.
    pub(crate) fn is_held(&self) -> bool {
        let waits = self.is_paused || self.postponed_since.is_some();
        self.is_postponed && self.continuation.is_none() && waits
    }

    /// True if another client has disconnected it: nothing more is run for it. A client that disconnects itself still
    /// gets its answer.
    pub(crate) fn is_killed(&self) -> bool {
        !self.is_closing && self.info.is_killed.load(Ordering::Relaxed)
    }

    /// True if the current command gets no answer.
    pub(crate) fn is_muted(&self) -> bool {
        matches!(self.answers, Answers::Off | Answers::Skip)
    }

    /// Changes the version of the protocol.
    pub(crate) fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        if proto == Proto::Two {
            self.feed = None;
        }
        self.info.set_proto(proto);
    }

    /// Sets whether its command waits for the end of a pause.
    pub(crate) fn set_paused(&mut self, is_paused: bool) {
        if self.is_paused != is_paused {
            self.is_paused = is_paused;
            self.info.is_paused.store(is_paused, Ordering::Relaxed);
        }
    }

    /// Publishes how many commands are queued and how many keys watched.
    pub(crate) fn publish(&self) {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.len() + 1);
        let queued_bytes = self.queue.as_ref().map_or(0, Queue::memory);
        self.info.queued.store(queued, Ordering::Relaxed);
        self.info.queued_bytes.store(queued_bytes, Ordering::Relaxed);
        self.info.watched.store(self.watches.len(), Ordering::Relaxed);
    }
}
