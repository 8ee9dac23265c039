//! The time limits of a connection, enforced below hyper, at the socket.
//!
//! ```text
//!            first byte          whole head             answer taken
//!     idle ─────────────► head ─────────────► busy ──────────────────► idle
//!      │ idle_timeout      │ head_timeout       reads have no limit here: `body` has
//! ```
//!
//! A write that makes no progress for `stall_timeout` ends the connection in every phase. Timers are created when a
//! connection has to wait for the first time.

use crate::limits::Options;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// The phase of a connection.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Idle(Instant),
    Head(Instant),
    Busy,
}

/// The phase of a connection, which socket and service share.
#[derive(Debug, Clone)]
pub(crate) struct Pace(Arc<Mutex<Phase>>);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Phase::Idle(Instant::now()))))
    }

    /// Notes that the head of a request is complete.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Phase::Busy;
    }

    /// Notes that the answer was passed to the socket.
    fn end(&self) {
        *self.0.lock() = Phase::Idle(Instant::now());
    }

    /// Notes that bytes have arrived.
    fn receive(&self) {
        let mut phase = self.0.lock();
        if matches!(*phase, Phase::Idle(_)) {
            *phase = Phase::Head(Instant::now());
        }
    }
}

/// A timer that is created when it is needed.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready once this moment has passed.
    fn poll(&mut self, cx: &mut Context<'_>, at: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}

/// A socket with time limits for its reads and writes.
pub(crate) struct Paced {
    stream: TcpStream,
    pace: Pace,
    head: Duration,
    idle: Duration,
    stall: Duration,
    reads: Timer,
    writes: Timer,
    /// The time since which a write waits.
    stalled: Option<Instant>,
}

impl Paced {
    pub(crate) fn new(stream: TcpStream, pace: Pace, options: &Options) -> Self {
        Self {
            stream,
            pace,
            head: options.head_timeout,
            idle: options.idle_timeout,
            stall: options.stall_timeout,
            reads: Timer::default(),
            writes: Timer::default(),
            stalled: None,
        }
    }

    /// The result of a write: progress, or a wait that ends with an error.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        ready!(self.writes.poll(cx, since + self.stall));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if let Poll::Ready(outcome) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            if buffer.filled().len() > before {
                this.pace.receive();
            }
            return Poll::Ready(outcome);
        }
        let phase = *this.pace.0.lock();
        let until = match phase {
            Phase::Idle(since) => since + this.idle,
            Phase::Head(since) => since + this.head,
            Phase::Busy => return Poll::Pending,
        };
        ready!(this.reads.poll(cx, until));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(cx, outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_flush(cx);
        this.written(cx, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.written(cx, outcome)
    }
}

/// The body of an answer; when it is dropped the connection is idle.
pub(crate) struct Answer<B> {
    body: B,
    pace: Pace,
}

impl<B> Answer<B> {
    pub(crate) fn new(body: B, pace: Pace) -> Self {
        Self { body, pace }
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        self.pace.end();
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
