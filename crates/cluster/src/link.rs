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

/// The most addresses at which a peer is looked for.
const ADDRESSES_MAX: usize = 4;

/// The connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    /// The address in use, and others at which the peer may be: they take turns when attempts fail.
    addresses: Vec<SocketAddr>,
    token: Token,
    stream: Option<TcpStream>,
    output: Vec<u8>,
    sent: usize,
    /// When the peer last took bytes, or the attempt began.
    taken: Instant,
    /// The peer has taken bytes of this connection.
    is_reached: bool,
    next_attempt: Instant,
}

/// True for two notations of one address: an IPv4 address may be written as one of IPv6.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

impl Link {
    pub(crate) fn new(address: SocketAddr, token: Token, now: Instant) -> Self {
        Self {
            addresses: vec![address],
            token,
            stream: None,
            output: Vec::new(),
            sent: 0,
            taken: now,
            is_reached: false,
            next_attempt: now,
        }
    }

    /// The address of the connection, or of the next attempt.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }

    /// Another node names an address of the peer, which may be an old one: it is tried after the known ones.
    pub(crate) fn hear(&mut self, address: SocketAddr) {
        if !self.addresses.iter().any(|it| is_same(*it, address)) {
            self.addresses.truncate(ADDRESSES_MAX - 1);
            self.addresses.push(address);
        }
    }

    /// The peer has said hello from this address: an attempt to connect there may begin at once. An attempt at another
    /// address ends, since nobody may answer there any more. So does a connection to another address, if the peer has
    /// come back or moved (`is_news`); otherwise it stays, since a peer may have several addresses.
    pub(crate) fn greeted(
        &mut self,
        registry: &Registry,
        now: Instant,
        address: SocketAddr,
        is_news: bool,
    ) {
        if self.address().is_some_and(|own| !is_same(own, address)) {
            if self.is_reached && !is_news {
                return self.hear(address);
            }
            self.close(registry, now);
            self.addresses.retain(|it| !is_same(*it, address));
            self.addresses.insert(0, address);
            self.addresses.truncate(ADDRESSES_MAX);
        } else if !self.is_reached && now.duration_since(self.taken) > PAUSE {
            // An attempt that was not answered is repeated by the kernel after seconds.
            self.close(registry, now);
        }
        self.next_attempt = now;
    }

    /// Connects when it is time to, and sends the hello.
    pub(crate) fn keep(&mut self, registry: &Registry, now: Instant, hello: &Hello) {
        let waits = self.sent < self.output.len();
        if self.stream.is_some() && waits && now.duration_since(self.taken) > PATIENCE {
            self.fail(registry, now);
        }
        if self.stream.is_some() || now < self.next_attempt {
            return;
        }
        self.next_attempt = now + PAUSE;
        let Some(address) = self.address() else { return };
        let Ok(mut stream) = TcpStream::connect(address) else { return self.try_next() };
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
                    self.is_reached = true;
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
                Err(_) => return self.fail(registry, now),
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
            true => self.fail(registry, now),
            false => self.flush(registry, now),
        }
    }

    /// The next attempt is at the next address.
    fn try_next(&mut self) {
        if self.addresses.len() > 1 {
            self.addresses.rotate_left(1);
        }
    }

    /// The connection has failed. If the peer was never reached, it may be at another address.
    fn fail(&mut self, registry: &Registry, now: Instant) {
        if !self.is_reached {
            self.try_next();
        }
        self.close(registry, now);
    }

    pub(crate) fn close(&mut self, registry: &Registry, now: Instant) {
        if let Some(mut stream) = self.stream.take() {
            // Closing the socket deregisters it as well.
            let _closed = registry.deregister(&mut stream).is_ok();
        }
        self.output = Vec::new();
        self.sent = 0;
        self.is_reached = false;
        self.next_attempt = now + PAUSE;
    }
}
