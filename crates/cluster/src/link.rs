//! The connection to a peer, for sending.

use crate::frame::{self, Hello};
use coreplane_replica::Envelope;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The most bytes that wait. More are dropped, which consensus repairs.
const WAITING_MAX: usize = 256 << 20;
/// A peer that takes no bytes for this long is connected to anew.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

/// The connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    token: Token,
    stream: Option<TcpStream>,
    output: Vec<u8>,
    sent: usize,
    /// When the peer last took bytes, or the attempt began.
    taken: Instant,
    next_attempt: Instant,
}

impl Link {
    pub(crate) fn new(address: SocketAddr, token: Token, now: Instant) -> Self {
        let (output, sent) = (Vec::new(), 0);
        Self { address, token, stream: None, output, sent, taken: now, next_attempt: now }
    }

    /// True if there is a connection, or one is being made.
    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Connects when it is time to, and sends the hello.
    pub(crate) fn keep(&mut self, registry: &Registry, now: Instant, hello: &Hello) {
        let waits = self.sent < self.output.len();
        if self.stream.is_some() && waits && now.duration_since(self.taken) > PATIENCE {
            self.close(registry, now);
        }
        if self.stream.is_some() || now < self.next_attempt {
            return;
        }
        self.next_attempt = now + PAUSE;
        let Ok(mut stream) = TcpStream::connect(self.address) else { return };
        let interest = Interest::READABLE | Interest::WRITABLE;
        if registry.register(&mut stream, self.token, interest).is_err() {
            return;
        }
        self.stream = Some(stream);
        self.taken = now;
        self.output.clear();
        self.sent = 0;
        hello.encode(&mut self.output);
    }

    /// The peer is reachable: connects at once.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.next_attempt = now;
    }

    /// Queues a message, if there is a connection and room.
    pub(crate) fn push(&mut self, envelope: &Envelope) {
        if self.stream.is_some() && self.output.len() - self.sent < WAITING_MAX {
            frame::envelope(&mut self.output, envelope);
        }
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self, registry: &Registry, now: Instant) {
        let Some(stream) = &mut self.stream else { return };
        while self.sent < self.output.len() {
            match stream.write(self.output.get(self.sent..).unwrap_or_default()) {
                Ok(len) => {
                    self.sent += len;
                    self.taken = now;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    break;
                }
                Err(_) => return self.close(registry, now),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
            if self.output.capacity() > 1 << 20 {
                self.output = Vec::new();
            }
        } else if self.sent > 1 << 20 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// The socket is ready: it is writable, or was closed, since the peer sends nothing on it.
    pub(crate) fn ready(&mut self, registry: &Registry, now: Instant) {
        let Some(stream) = &mut self.stream else { return };
        // The connection works without these options, too.
        let _set = stream.set_nodelay(true).is_ok();
        let millis = PATIENCE.as_millis() as u32;
        let _bounded = sockopt::set_tcp_user_timeout(&*stream, millis).is_ok();
        let mut piece = [0; 64];
        let is_closed = match stream.read(&mut piece) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::NotConnected
            ),
        };
        match is_closed {
            true => self.close(registry, now),
            false => self.flush(registry, now),
        }
    }

    pub(crate) fn close(&mut self, registry: &Registry, now: Instant) {
        if let Some(mut stream) = self.stream.take() {
            // Closing the socket deregisters it as well.
            let _closed = registry.deregister(&mut stream).is_ok();
        }
        self.output = Vec::new();
        self.sent = 0;
        self.next_attempt = now + PAUSE;
    }
}
