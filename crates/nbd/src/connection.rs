//! The thread of a connection: it waits for bytes, passes them to the conversation, and sends the
//! replies.
//!
//! Only this thread uses the socket. While no flush is under way it waits in a plain read; otherwise
//! it waits for the socket and the bell of `flush`.
//!
//! A client that has one request under way sends the next as soon as it has the reply. Sleeping and waking takes
//! longer than that, so while requests follow this quickly the thread polls for the next some microseconds before it
//! sleeps, unless another connection's thread is awake, whose processor it might take.

use crate::conversation::Conversation;
use crate::stream::Stream;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one read: nearly a turn of 4 KiB writes.
const BUFFER: usize = 256 << 10;
const _: () = assert!(BUFFER > Conversation::INPUT_MAX);

/// A connection.
pub(crate) struct Connection<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) conversation: Conversation,
    /// True when the server is shutting down.
    pub(crate) is_ending: &'a AtomicBool,
    /// The number of connections whose threads are awake.
    pub(crate) awake: &'a AtomicUsize,
    /// The last request came within [`SOON`].
    pub(crate) comes_soon: bool,
}

/// How long a connection polls for its next request before it sleeps.
const LINGER: Duration = Duration::from_micros(50);
/// If a request has come within this time, which includes two wake-ups, the next one is expected as soon.
const SOON: Duration = Duration::from_micros(100);

impl Connection<'_> {
    /// Serves until the client disconnects or misbehaves, or the server ends; requests under way
    /// are then finished.
    ///
    /// # Errors
    /// Of the socket.
    pub(crate) fn run(mut self, handshake_timeout: Duration) -> io::Result<()> {
        self.stream.prepare()?;
        self.awake.fetch_add(1, Ordering::Relaxed);
        let served = self.serve(Instant::now() + handshake_timeout);
        self.awake.fetch_sub(1, Ordering::Relaxed);
        let mut stream = self.stream;
        let finished = self.conversation.wait(&mut stream);
        served.and(finished)
    }

    fn serve(&mut self, deadline: Instant) -> io::Result<()> {
        let mut stream = self.stream;
        let mut buffer = vec![0; BUFFER];
        let (mut begin, mut end) = (0, 0);
        let mut deadline = Some(deadline);
        self.limit(&mut deadline)?;
        self.conversation.send(&mut stream)?;
        loop {
            self.wait_for_flushes()?;
            let taken = self.conversation.receive(&buffer[begin..end])?;
            begin += taken;
            self.limit(&mut deadline)?;
            self.conversation.send(&mut stream)?;
            if self.conversation.is_over() || self.is_ending.load(Ordering::SeqCst) {
                return Ok(());
            }
            if taken > 0 && begin < end {
                continue;
            }
            buffer.copy_within(begin..end, 0);
            (begin, end) = (0, end - begin);
            let more = self.read(&mut buffer[end..])?;
            if more == 0 {
                return Ok(());
            }
            end += more;
        }
    }

    /// Until the export is chosen, limits the next call of the socket to the remaining time.
    fn limit(&self, deadline: &mut Option<Instant>) -> io::Result<()> {
        let Some(end) = *deadline else { return Ok(()) };
        if self.conversation.is_chosen() {
            *deadline = None;
            return self.stream.set_timeout(None);
        }
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => self.stream.set_timeout(Some(left)),
        }
    }

    /// Waits while too many flushes are under way, and sends the replies of finished ones.
    fn wait_for_flushes(&mut self) -> io::Result<()> {
        while let Some(flushes) = self.conversation.flushes().filter(|flushes| flushes.are_many()) {
            flushes.wait(&[])?;
            self.send_flushes()?;
        }
        Ok(())
    }

    fn send_flushes(&mut self) -> io::Result<()> {
        let mut stream = self.stream;
        self.conversation.take_flushes();
        self.conversation.send(&mut stream)
    }

    /// Reads, and sends the replies of flushes that finish meanwhile.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        while let Some(flushes) = self.conversation.flushes() {
            let is_readable = flushes.wait(&[stream.as_fd()])?;
            self.send_flushes()?;
            if is_readable {
                break;
            }
        }
        let began = Instant::now();
        if let Some(outcome) = self.linger(buffer, began) {
            return outcome;
        }
        self.awake.fetch_sub(1, Ordering::Relaxed);
        let outcome = loop {
            match stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.awake.fetch_add(1, Ordering::Relaxed);
        self.comes_soon = began.elapsed() < SOON;
        outcome
    }

    /// Polls for bytes for a while, if they are expected soon and no other connection's thread is awake.
    fn linger(&self, buffer: &mut [u8], began: Instant) -> Option<io::Result<usize>> {
        let is_alone = || self.awake.load(Ordering::Relaxed) <= 1;
        let mut outcome = None;
        while outcome.is_none() && self.comes_soon && is_alone() && began.elapsed() < LINGER {
            outcome = match recv(self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((read, _)) => Some(Ok(read)),
                Err(Errno::AGAIN | Errno::INTR) => None,
                Err(error) => Some(Err(error.into())),
            };
        }
        outcome
    }
}
