//! One client: its socket, its unfinished input, and its pending answers.

use crate::continuation::{Continuation, Pieces};
use crate::feed::Feed;
use crate::output::Output;
use crate::resp::frame::Parser;
use crate::session::{Session, UpstreamState};
use crate::settings::Settings;
use crate::upstream::Upstream;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pending output bytes from which on nothing more is run for a client that has not given the password.
const STRANGER_OUTPUT_MAX: u64 = 16 << 10;

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum Stream {
    /// Over the network.
    Tcp(TcpStream),
    /// On this machine.
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    /// Asks for an event when the socket can be read from.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(self.source(), token, Interest::READABLE)
    }

    /// Changes whether an event is wanted when the socket can be written to.
    pub(crate) fn watch_writable(
        &mut self,
        registry: &Registry,
        token: Token,
        writable: bool,
    ) -> io::Result<()> {
        let interest =
            if writable { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        registry.reregister(self.source(), token, interest)
    }

    /// Wants no more events.
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(self.source())
    }

    /// The file descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    /// The file descriptor's number.
    pub(crate) fn fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    /// True if it came through the Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of a command that is not finished, or that may not run yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// All of it is initialised; the bytes that count are those from `start` to `end`.
    data: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    const KEPT: usize = 64 << 10;
    const ROOM_MIN: usize = 16 << 10;
    const ROOM_MAX: usize = 1 << 20;

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Appends `bytes`.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.room(bytes.len()).copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Removes the first `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if self.data.len() > Self::KEPT {
                self.data = Vec::new();
            }
        }
    }

    /// Reads once, with room for the rest of a command of `needed` bytes, within reason.
    pub(crate) fn fill(&mut self, stream: &mut Stream, needed: usize) -> io::Result<(usize, bool)> {
        let missing = needed.saturating_sub(self.bytes().len());
        let room = self.room(missing.clamp(Self::ROOM_MIN, Self::ROOM_MAX));
        let len = stream.read(room)?;
        let is_full = len == room.len();
        self.end += len;
        Ok((len, is_full))
    }

    /// The `len` bytes after those that count.
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.data.len() < self.end + len {
            if self.start > 0 {
                self.data.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.data.len() < self.end + len {
                self.data.resize(self.end + len, 0);
                // The rest of the vector's capacity costs nothing more.
                self.data.resize(self.data.capacity(), 0);
            }
        }
        &mut self.data[self.end..self.end + len]
    }
}

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub stream: Stream,
    pub parser: Parser,
    pub input: Input,
    pub output: Output,
    pub session: Session,
    /// The socket may hold bytes that were not read.
    pub is_readable: bool,
    /// The input may hold whole commands, which wait for room in the output.
    pub is_stalled: bool,
    /// It is in the list of connections to be handled at the end of the turn.
    pub is_touched: bool,
    /// It is in the list of connections to be served again in the next turn.
    pub is_queued: bool,
    /// It is in the list of connections whose answers wait for durability.
    pub is_waiting: bool,
    /// The poll reports when it can be written to.
    pub watches_writable: bool,
    /// The other end has announced that it will send no more.
    pub is_half_closed: bool,
    /// All bytes from the other end have been read.
    pub is_ended: bool,
    /// An answer of this turn depends on a write that is not durable yet.
    pub rests: bool,
    /// It is in the list of connections that watch changes.
    pub is_fed: bool,
    /// When its output exceeded the soft limit.
    pub over_soft_limit_since: Option<std::time::Instant>,
    /// The connection to the leader of the cluster, if the leader runs commands for the client.
    pub upstream: Option<Upstream>,
}

impl Connection {
    /// A connection that was just accepted.
    pub(crate) fn new(stream: Stream, session: Session) -> Self {
        Self {
            stream,
            parser: Parser::default(),
            input: Input::default(),
            output: Output::default(),
            session,
            is_readable: true,
            is_stalled: false,
            is_touched: false,
            is_queued: false,
            is_waiting: false,
            watches_writable: false,
            is_half_closed: false,
            is_ended: false,
            rests: false,
            is_fed: false,
            over_soft_limit_since: None,
            upstream: None,
        }
    }

    /// Publishes the size of the input that it keeps; the bytes of it.
    pub(crate) fn publish_input(&self) -> usize {
        let (kept, info) = (self.input.bytes().len(), &self.session.info);
        info.input.store(kept, Ordering::Relaxed);
        info.input_room.store(self.input.data.len(), Ordering::Relaxed);
        kept
    }

    /// Publishes the size of the pending output; the bytes of it.
    pub(crate) fn publish_output(&self) -> usize {
        let (left, info) = (self.output.len(), &self.session.info);
        info.output.store(self.answer_bytes(), Ordering::Relaxed);
        info.output_room.store(self.output.room(), Ordering::Relaxed);
        left
    }

    /// All commands that had arrived have been run.
    pub(crate) fn note_activity(&mut self, now: Instant) {
        self.parser.shrink();
        self.session.info.note_activity(now);
    }

    /// The number of pending output bytes from which on nothing more is run for it, where `pause` is that number in
    /// general. While a long answer is sent it is smaller, since the answer goes on when these bytes have been sent;
    /// and before a client has given the password.
    pub(crate) fn output_pause(&self, pause: u64) -> u64 {
        match self.session.continuation {
            _ if !self.session.is_authenticated => pause.min(STRANGER_OUTPUT_MAX),
            Some(_) => pause.min(Pieces::OUTPUT_MAX as u64),
            None => pause,
        }
    }

    /// True if nothing more is run for it until some of its output has been sent.
    pub(crate) fn is_paused(&self, settings: &Settings) -> bool {
        let pause = settings.output_pause_bytes.load(Ordering::Relaxed);
        self.output.len() as u64 >= self.output_pause(pause)
    }

    /// Bytes of answers that have not been sent, including the answer in the making.
    pub(crate) fn answer_bytes(&self) -> usize {
        let made = self.session.continuation.as_ref().map_or(0, Continuation::bytes);
        self.output.len().saturating_add(made)
    }

    /// True if a part of an answer, but not its end, may be in the output: nothing may be pushed behind it.
    pub(crate) fn is_within_answer(&self) -> bool {
        let begun = self.session.continuation.as_ref();
        begun.is_some_and(Continuation::has_begun_to_answer)
            || self.upstream.as_ref().is_some_and(Upstream::is_within_answer)
    }

    /// The state of its connection to the leader.
    pub(crate) fn upstream_state(&self) -> UpstreamState {
        let upstream = self.upstream.as_ref();
        UpstreamState {
            is_awaited: upstream.is_some_and(Upstream::is_awaited),
            is_in_multi: upstream.is_some_and(Upstream::is_in_multi),
            queues_writes: upstream.is_some_and(Upstream::queues_writes),
            leader: upstream.filter(|upstream| upstream.is_needed()).map(|it| it.leader),
        }
    }

    /// True if it has not received all changes of the watched keys: they are looked for again after it has received
    /// some bytes.
    pub(crate) fn is_behind(&self) -> bool {
        self.session.feed.as_ref().is_some_and(Feed::is_behind)
    }

    /// True if nothing more is read or run for it; it is closed when its output has been sent, or without that.
    pub(crate) fn is_closing(&self) -> bool {
        let waits = self.upstream.as_ref().is_some_and(Upstream::is_awaited);
        self.session.is_closing || self.session.is_dropped || self.is_ended && !waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_keeps_what_is_not_consumed() {
        let mut input = Input::default();
        input.keep(b"abc");
        input.keep(&[7; 100_000]);
        assert_eq!(input.bytes().len(), 100_003);
        input.consume(3);
        input.keep(b"xyz");
        assert_eq!(&input.bytes()[99_998..], b"\x07\x07xyz");
        input.consume(100_003);
        assert!(input.is_empty());
        assert_eq!(input.data.capacity(), 0);
    }

    /// However much memory is left from a long command.
    #[test]
    fn input_is_read_bit_by_bit() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut stream = Stream::Unix(ours);
        assert_eq!(theirs.write(&[7; 100_000]).expect("sent"), 100_000);
        let mut input = Input::default();
        input.keep(&[0; 1 << 20]);
        input.consume((1 << 20) - 1);
        let filled = input.fill(&mut stream, 0).expect("read");
        assert_eq!(filled, (Input::ROOM_MIN, true));
        assert_eq!(input.fill(&mut stream, 50_000).expect("read").0, 50_000 - 1 - Input::ROOM_MIN);
    }
}
