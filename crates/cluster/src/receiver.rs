//! A connection that a peer has made, for receiving.
//!
//! A process that connects may be a stranger. Before its hello it has a small buffer and a deadline, and in a cluster
//! with a password it gets no further than the handshake.

use crate::frame::{FRAME_MAX, Frame, HELLO_MAX, PART, extent};
use crate::handshake::{Acceptor, Party};
use crate::refusal::Fault;
use crate::secret::{SEAL_LEN, Secret, Session};
use coreplane_replica::NodeId;
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A connection without a hello is closed after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection made by a peer.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) stream: TcpStream,
    pub(crate) ip: IpAddr,
    input: Vec<u8>,
    /// The bytes of the input when a part of a frame last counted as a sign of life.
    heard: usize,
    /// The sender, once it has said hello.
    pub(crate) id: Option<NodeId>,
    stage: Stage,
    since: Instant,
}

/// The proof of the password.
#[derive(Debug)]
enum Stage {
    /// There is no password.
    Plain,
    /// The peer has not proved it yet.
    Proof(Box<Acceptor>),
    /// The node with this number has proved it: frames are sealed.
    Sealed(NodeId, Session),
}

/// The node that is to be reported with a fault, if one is known; the connection has to be closed.
pub(crate) type Blame = Option<(NodeId, Fault)>;

/// The end of a piece that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    /// There may be more.
    Some,
    /// All that has arrived so far was read.
    All,
    /// Nothing more will arrive.
    End,
}

impl Receiver {
    /// A connection of a stranger.
    ///
    /// # Errors
    /// If the system has no random numbers for a handshake.
    pub(crate) fn new(
        stream: TcpStream,
        ip: IpAddr,
        secret: Option<&Secret>,
        own: Party,
    ) -> io::Result<Self> {
        let acceptor = secret.map(|secret| Acceptor::new(secret, own)).transpose()?;
        let stage = acceptor.map_or(Stage::Plain, |acceptor| Stage::Proof(Box::new(acceptor)));
        Ok(Self { stream, ip, input: Vec::new(), heard: 0, id: None, stage, since: Instant::now() })
    }

    /// True if it has taken too long to say hello.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.id.is_none() && now.saturating_duration_since(self.since) > PATIENCE
    }

    /// When it was made, if there was no hello.
    pub(crate) fn stranger_since(&self) -> Option<Instant> {
        self.id.is_none().then_some(self.since)
    }

    /// True if this may be the number of the sender: if it has proved the password, as the node with this number.
    pub(crate) fn may_be(&self, id: NodeId) -> bool {
        !matches!(self.stage, Stage::Sealed(proved, _) if proved != id)
    }

    /// True if the frames before the hello are those of a handshake.
    pub(crate) fn is_proving(&self) -> bool {
        matches!(self.stage, Stage::Proof(_))
    }

    /// Reads a piece into the input. Of a stranger, it is a small one.
    pub(crate) fn read(&mut self, piece: &mut [u8]) -> Piece {
        let most = if self.id.is_some() { piece.len() } else { HELLO_MAX.min(piece.len()) };
        let piece = piece.get_mut(..most).unwrap_or_default();
        loop {
            match self.stream.read(piece) {
                Ok(0) => return Piece::End,
                Ok(len) => {
                    self.input.extend_from_slice(piece.get(..len).unwrap_or_default());
                    return Piece::Some;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Piece::All,
                Err(_) => return Piece::End,
            }
        }
    }

    /// Takes the input out, to look at its frames.
    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Puts the input back without its first `taken` bytes.
    pub(crate) fn put_back(&mut self, mut input: Vec<u8>, taken: usize) {
        input.drain(..taken);
        self.input = input;
    }

    /// True if the input has another [`PART`] of a frame that is incomplete.
    pub(crate) fn has_part(&mut self) -> bool {
        let len = self.input.len();
        let has_part = len >= self.heard + PART;
        if has_part || len < self.heard {
            self.heard = len;
        }
        has_part
    }

    /// The length of the frame at the beginning of `bytes`, and that of its seal, which is right; none if they are
    /// incomplete.
    ///
    /// # Errors
    /// If the connection has to be closed.
    pub(crate) fn next_frame(&mut self, bytes: &[u8]) -> Result<Option<(usize, usize)>, Blame> {
        let max = if self.id.is_some() { FRAME_MAX } else { HELLO_MAX };
        let Some(len) = extent(bytes, max).map_err(|()| None)? else { return Ok(None) };
        let seal_len = if matches!(self.stage, Stage::Sealed(..)) { SEAL_LEN } else { 0 };
        let Some((frame, behind)) = bytes.split_at_checked(len) else { return Ok(None) };
        let Some(seal) = behind.get(..seal_len) else { return Ok(None) };
        if let Stage::Sealed(id, session) = &mut self.stage
            && !session.is_sealed(frame, seal)
        {
            return Err(Some((*id, Fault::Seal)));
        }
        Ok(Some((len, seal_len)))
    }

    /// Takes a frame of the handshake, and answers it; the peer's number, if it has proved the password now.
    ///
    /// # Errors
    /// If the connection has to be closed.
    pub(crate) fn prove(&mut self, frame: &Frame<'_>) -> Result<Option<NodeId>, Blame> {
        let Stage::Proof(acceptor) = &mut self.stage else { return Err(None) };
        let mut out = Vec::new();
        let proved = acceptor.take(frame, &mut out).map_err(|fault| {
            let greets = if let Frame::Hello(hello) = frame { Some(hello.id) } else { None };
            Some((greets.or(acceptor.claimed())?, fault))
        })?;
        // The socket takes these few bytes, unless the peer has not taken the earlier ones.
        match self.stream.write(&out) {
            Ok(len) if len == out.len() => {}
            _ => return Err(None),
        }
        let Some((id, session)) = proved else { return Ok(None) };
        self.stage = Stage::Sealed(id, session);
        Ok(Some(id))
    }
}
