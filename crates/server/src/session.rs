//! What a connection has agreed upon with its client.

use crate::clients::ClientInfo;
use crate::continuation::Continuation;
use crate::feed::Feed;
use crate::resp::frame::{Span, Words};
use crate::resp::reply::Proto;
use crate::stopwatch::Stopwatch;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a watched key was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A record with this sequence.
    Present(u64),
    /// Absent; so many writes had been seen by the list of watched absences, and so many leaderships by the engine.
    Absent(u64, u64),
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Where in `spans` each command ends, and its index in the table.
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

    /// Takes all of them out, and keeps their memory unless that is much.
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
    fn memory(&self) -> usize {
        let (spans, commands) = (size_of::<Span>(), size_of::<(usize, usize)>());
        self.bytes.len() + self.spans.len() * spans + self.commands.len() * commands
    }

    /// True if one of them is such a command of the table.
    pub(crate) fn any(&self, is_such: impl Fn(usize) -> bool) -> bool {
        self.commands.iter().any(|(_, index)| is_such(*index))
    }

    /// How many there are.
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

/// How a connection stands with the leader that runs its commands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UpstreamState {
    /// Commands are under way.
    pub is_awaited: bool,
    /// They are part of a transaction.
    pub is_in_multi: bool,
    /// The leader with whom something is agreed upon, or under way.
    pub leader: Option<SocketAddr>,
}

/// What a connection has agreed upon with its client.
#[derive(Debug)]
pub(crate) struct Session {
    pub proto: Proto,
    pub is_authenticated: bool,
    pub queue: Option<Queue>,
    /// For the next transaction: the memory of the last.
    pub spare_queue: Queue,
    pub watches: HashMap<Vec<u8>, Seen>,
    pub answers: Answers,
    pub is_closing: bool,
    /// Drop it without an answer.
    pub is_dropped: bool,
    /// The command that came last was not run: it will be in a later turn.
    pub is_postponed: bool,
    /// Since when it is.
    pub postponed_since: Option<Instant>,
    /// How far the command has come that was begun and is not finished.
    pub continuation: Option<Continuation>,
    /// The last slice of it has come further: it waits for nothing but its next one.
    pub has_progressed: bool,
    /// Its last `MGET` was of very much.
    pub reads_much: bool,
    /// Its answers are more than may wait: they are no longer kept, and the connection ends.
    pub exceeds_output_limit: bool,
    /// The command that came last, by its name, is the leader's to run.
    pub forwards: Option<(&'static str, SocketAddr)>,
    /// It is a node of the cluster, which passes a client's commands on.
    pub is_forwarded: bool,
    /// `READONLY`: of a follower it reads what that has.
    pub is_read_only: bool,
    /// The command that is run is such a read.
    pub shows_follower: bool,
    /// Times its commands.
    pub stopwatch: Stopwatch,
    /// How long its command took in earlier turns, if that is known.
    pub took_before: Duration,
    /// It is told of every command.
    pub is_monitor: bool,
    /// Lines for it, which wait for the end of an answer that is half there.
    pub monitor_lines: Vec<u8>,
    /// Its command waits for the end of a pause.
    pub is_paused: bool,
    /// The changes that it watches.
    pub feed: Option<Feed>,
    /// How it stands with the leader.
    pub upstream: UpstreamState,
    /// What it has agreed upon is other: so is that with the leader.
    pub begins_anew: bool,
    pub info: Arc<ClientInfo>,
}

impl Session {
    /// Of a client that just came.
    pub(crate) fn new(info: Arc<ClientInfo>, is_authenticated: bool) -> Self {
        Self {
            proto: Proto::default(),
            is_authenticated,
            queue: None,
            spare_queue: Queue::default(),
            watches: HashMap::new(),
            answers: Answers::default(),
            is_closing: false,
            is_dropped: false,
            is_postponed: false,
            postponed_since: None,
            continuation: None,
            has_progressed: false,
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

    /// True if the command that is run gets no answer.
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

    /// Its command waits for the end of a pause, or does no longer.
    pub(crate) fn set_paused(&mut self, is_paused: bool) {
        if self.is_paused != is_paused {
            self.is_paused = is_paused;
            self.info.is_paused.store(is_paused, Ordering::Relaxed);
        }
    }

    /// Tells others how much is queued and watched.
    pub(crate) fn publish(&self) {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.len() + 1);
        let queued_bytes = self.queue.as_ref().map_or(0, Queue::memory);
        self.info.queued.store(queued, Ordering::Relaxed);
        self.info.queued_bytes.store(queued_bytes, Ordering::Relaxed);
        self.info.watched.store(self.watches.len(), Ordering::Relaxed);
    }
}
