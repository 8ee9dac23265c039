//! The connection to a peer, for sending.
//!
//! In a cluster with a password nothing but the handshake is sent before the peer has proved that it has the
//! password. Messages wait meanwhile, each with an empty place for its seal, whose key is not known yet.

use crate::frame::{self, Hello};
use crate::handshake::{Dialler, Party};
use crate::refusal::Fault;
use crate::secret::{SEAL_LEN, Secret, Session};
use coreplane_replica::{Envelope, NodeId};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The most bytes that wait. More are dropped, which consensus repairs.
const WAITING_MAX: usize = 256 << 20;
/// The most bytes that were sent and stay in front of them.
const SENT_MAX: usize = 32 << 20;
/// A peer that takes no bytes for this long is connected to anew.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after a peer was refused.
const PAUSE_REFUSED: Duration = Duration::from_secs(1);
/// The most addresses at which a peer is looked for.
const ADDRESSES_MAX: usize = 4;

/// The connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    peer: NodeId,
    /// The address in use, and others at which the peer may be: they take turns when attempts fail.
    addresses: Vec<SocketAddr>,
    token: Token,
    stream: Option<TcpStream>,
    stage: Stage,
    /// The bytes of the handshake to be sent.
    greeting: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// When the peer last took bytes, or the attempt began.
    taken: Instant,
    /// The peer has taken bytes of this connection.
    is_reached: bool,
    next_attempt: Instant,
}

/// The proof of the password, on the present connection.
#[derive(Debug)]
enum Stage {
    /// There is no password.
    Plain,
    /// The peer has not proved it yet.
    Proof(Box<Dialler>),
    /// Frames are sealed.
    Sealed(Session),
}

/// True for two notations of one address: an IPv4 address may be written as one of IPv6.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

/// True if the socket has to become ready first.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

impl Link {
    pub(crate) fn new(peer: NodeId, address: SocketAddr, token: Token, now: Instant) -> Self {
        Self {
            peer,
            addresses: vec![address],
            token,
            stream: None,
            stage: Stage::Plain,
            greeting: Vec::new(),
            output: Vec::new(),
            sent: 0,
            taken: now,
            is_reached: false,
            next_attempt: now,
        }
    }

    /// True if the peer has taken bytes, and has proved the password if there is one.
    fn is_settled(&self) -> bool {
        self.is_reached && !matches!(self.stage, Stage::Proof(_))
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

    /// The peer has said hello from this address: an attempt to connect there may begin at once. An attempt at
    /// another address ends, since nobody may answer there any more. So does a connection to another address, if the
    /// peer has come back or moved (`is_news`); otherwise it stays, since a peer may have several addresses.
    pub(crate) fn greeted(
        &mut self,
        registry: &Registry,
        now: Instant,
        address: SocketAddr,
        is_news: bool,
    ) {
        if self.address().is_some_and(|own| !is_same(own, address)) {
            if self.is_settled() && !is_news {
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

    /// Connects when it is time to, and begins with the handshake if there is a password, and with the hello.
    pub(crate) fn keep(
        &mut self,
        registry: &Registry,
        now: Instant,
        hello: &Hello,
        secret: Option<&Secret>,
    ) {
        let waits = self.sent < self.output.len();
        if self.stream.is_some() && waits && now.duration_since(self.taken) > PATIENCE {
            self.fail(registry, now);
        }
        if self.stream.is_some() || now < self.next_attempt {
            return;
        }
        self.next_attempt = now + PAUSE;
        let Some(address) = self.address() else { return };
        self.greeting.clear();
        let own = Party { id: hello.id, cluster: hello.cluster };
        let begin = |secret| Dialler::new(secret, own, self.peer, &mut self.greeting);
        let stage = match secret.map(begin).transpose() {
            Ok(dialler) => dialler.map_or(Stage::Plain, |dialler| Stage::Proof(Box::new(dialler))),
            // Without random numbers there is no proof.
            Err(_) => return,
        };
        let Ok(mut stream) = TcpStream::connect(address) else { return self.try_next() };
        let interest = Interest::READABLE | Interest::WRITABLE;
        if registry.register(&mut stream, self.token, interest).is_err() {
            return;
        }
        self.stream = Some(stream);
        self.stage = stage;
        self.taken = now;
        self.output.clear();
        self.sent = 0;
        hello.encode(&mut self.output);
        self.seal(0);
    }

    /// Seals the last frame of the output, which begins at `start`.
    fn seal(&mut self, start: usize) {
        let seal = match &mut self.stage {
            Stage::Plain => return,
            Stage::Proof(_) => [0; SEAL_LEN],
            Stage::Sealed(session) => session.seal(self.output.get(start..).unwrap_or_default()),
        };
        self.output.extend_from_slice(&seal);
    }

    /// The peer has proved the password: seals the frames that have waited for it.
    fn begin(&mut self, mut session: Session) {
        let mut rest = self.output.as_mut_slice();
        while let Ok(Some(len)) = frame::extent(rest, usize::MAX) {
            let Some((frame, behind)) = rest.split_at_mut_checked(len) else { break };
            let Some((seal, next)) = behind.split_first_chunk_mut() else { break };
            *seal = session.seal(frame);
            rest = next;
        }
        self.stage = Stage::Sealed(session);
    }

    /// Queues a message, if there is a connection and room.
    pub(crate) fn push(&mut self, envelope: &Envelope) {
        if self.stream.is_some() && self.output.len() - self.sent < WAITING_MAX {
            let start = self.output.len();
            frame::envelope(&mut self.output, envelope);
            self.seal(start);
        }
    }

    /// The next bytes to be sent.
    fn next_bytes(&self) -> &[u8] {
        match &self.stage {
            _ if !self.greeting.is_empty() => &self.greeting,
            Stage::Proof(_) => &[],
            Stage::Plain | Stage::Sealed(_) => self.output.get(self.sent..).unwrap_or_default(),
        }
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self, registry: &Registry, now: Instant) {
        while !self.next_bytes().is_empty() {
            let Some(mut stream) = self.stream.as_ref() else { return };
            match stream.write(self.next_bytes()) {
                Ok(len) => {
                    match self.greeting.is_empty() {
                        true => self.sent += len,
                        false => drop(self.greeting.drain(..len)),
                    }
                    self.taken = now;
                    self.is_reached = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_early(&error) => break,
                Err(_) => return self.fail(registry, now),
            }
        }
        self.drop_sent();
    }

    /// Drops the sent bytes when they are more than the others, so that no more bytes are moved than were sent; of a
    /// long queue earlier, so that the memory keeps its bound, and about eight are moved for each at most.
    fn drop_sent(&mut self) {
        if self.sent > (self.output.len() / 2).min(SENT_MAX) {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        if self.output.is_empty() && self.output.capacity() > 1 << 20 {
            self.output = Vec::new();
        }
    }

    /// The socket is ready: it is writable, or has bytes of the handshake, or was closed, since the peer sends
    /// nothing else. The result of the handshake, if it ends now.
    pub(crate) fn ready(&mut self, registry: &Registry, now: Instant) -> Option<Result<(), Fault>> {
        let stream = self.stream.as_ref()?;
        // The connection works without these options, too.
        let _set = stream.set_nodelay(true).is_ok();
        let millis = PATIENCE.as_millis() as u32;
        let _bounded = sockopt::set_tcp_user_timeout(stream, millis).is_ok();
        let (mut result, mut piece) = (None, [0; 64]);
        while let Some(mut stream) = self.stream.as_ref() {
            let is_proving = matches!(self.stage, Stage::Proof(_));
            match stream.read(&mut piece) {
                Ok(len) if len > 0 => match self.receive(piece.get(..len).unwrap_or_default()) {
                    Ok(true) => result = Some(Ok(())),
                    Ok(false) => {}
                    Err(fault) => return Some(Err(self.refuse(registry, now, fault))),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_early(&error) => break,
                // If it ends the connection before it has proved the password, it refuses this node.
                Ok(_) | Err(_) if is_proving && self.is_reached => {
                    return Some(Err(self.refuse(registry, now, Fault::Ended)));
                }
                Ok(_) | Err(_) => self.fail(registry, now),
            }
            if !is_proving {
                break;
            }
        }
        self.flush(registry, now);
        result
    }

    /// Takes bytes of the peer; true if they end the handshake.
    fn receive(&mut self, bytes: &[u8]) -> Result<bool, Fault> {
        let Stage::Proof(dialler) = &mut self.stage else { return Ok(false) };
        let Some(session) = dialler.receive(bytes, &mut self.greeting)? else { return Ok(false) };
        self.begin(session);
        Ok(true)
    }

    /// Closes the connection to a peer that is refused, and tries again later.
    fn refuse(&mut self, registry: &Registry, now: Instant, fault: Fault) -> Fault {
        self.fail(registry, now);
        self.next_attempt = now + PAUSE_REFUSED;
        fault
    }

    /// The next attempt is at the next address.
    fn try_next(&mut self) {
        if self.addresses.len() > 1 {
            self.addresses.rotate_left(1);
        }
    }

    /// The connection has failed. If the peer was never reached, it may be at another address.
    fn fail(&mut self, registry: &Registry, now: Instant) {
        if !self.is_settled() {
            self.try_next();
        }
        self.close(registry, now);
    }

    pub(crate) fn close(&mut self, registry: &Registry, now: Instant) {
        if let Some(mut stream) = self.stream.take() {
            // Closing the socket deregisters it as well.
            let _closed = registry.deregister(&mut stream).is_ok();
        }
        self.stage = Stage::Plain;
        self.greeting.clear();
        self.output = Vec::new();
        self.sent = 0;
        self.is_reached = false;
        self.next_attempt = now + PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 1 << 20;

    /// Sends a queue of so many pieces: the bytes that were moved, and the most that were kept after they were sent.
    fn sending(pieces: usize) -> (usize, usize) {
        let address = "127.0.0.1:1".parse().expect("an address");
        let mut link = Link::new(2, address, Token(0), Instant::now());
        link.output = vec![0; pieces * PIECE];
        let (mut left, mut moved, mut kept) = (link.output.len(), 0, 0);
        while left > 0 {
            let before = link.output.len();
            link.sent += PIECE;
            left -= PIECE;
            link.drop_sent();
            assert_eq!(link.output.len() - link.sent, left);
            moved += if link.output.len() < before { link.output.len() } else { 0 };
            kept = kept.max(link.sent);
        }
        assert!(link.output.capacity() <= PIECE);
        (moved, kept)
    }

    #[test]
    fn no_more_bytes_of_a_queue_are_moved_than_were_sent() {
        let (moved, _) = sending(64);
        assert!(moved <= 64 * PIECE, "{moved} bytes were moved");
    }

    #[test]
    fn few_bytes_of_a_long_queue_stay_when_they_were_sent() {
        let (moved, kept) = sending(128);
        assert!(kept <= SENT_MAX, "{kept} bytes were kept");
        assert!(moved <= 2 * 128 * PIECE, "{moved} bytes were moved");
    }
}
