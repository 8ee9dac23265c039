//! A connection without its socket: bytes in, bytes out.
//!
//! The whole protocol is implemented here and below, where tests and fuzzers can feed any bytes in
//! any pieces; the socket and its thread are in `connection`.

use crate::disk::{Disk, Source};
use crate::export::Export;
use crate::flush::Flushes;
use crate::handshake::{Agreement, Handshake, Progress};
use crate::intake::Intake;
use crate::reply::Form;
use crate::request::Bounds;
use crate::turn::Turn;
use std::io::{self, Write};
use std::sync::Arc;

/// A conversation with a client. Its drop tells the disk that the client has gone; before that,
/// [`Conversation::wait`] waits for flushes under way.
pub struct Conversation {
    disk: Arc<dyn Disk>,
    export: Export,
    connection: u64,
    phase: Phase,
    /// Answers of the handshake.
    out: Vec<u8>,
    /// True if nothing more will be received.
    is_over: bool,
}

enum Phase {
    Handshake(Handshake),
    Transmission(Box<Transmission>),
}

struct Transmission {
    source: Source,
    intake: Intake,
    turn: Turn,
    flushes: Arc<Flushes>,
    /// The disk knows the source, which has made requests.
    has_joined: bool,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Conversation")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Conversation {
    /// Begins a conversation; the greeting is ready to be sent.
    pub fn new(export: Export, disk: Arc<dyn Disk>, connection: u64) -> Self {
        let mut out = Vec::new();
        let handshake = Handshake::new(export.clone(), disk.len(), &mut out);
        let phase = Phase::Handshake(handshake);
        Self { disk, export, connection, phase, out, is_over: false }
    }

    /// Takes messages from the front of `input`, executes them, and prepares the replies, which must be
    /// sent before the next call. Returns the number of bytes taken: fewer than given if they were
    /// enough for a turn; zero if more are needed. It never needs more than [`Conversation::INPUT_MAX`].
    ///
    /// # Errors
    /// Of the operating system, when the transmission begins.
    pub fn receive(&mut self, input: &[u8]) -> io::Result<usize> {
        if self.is_over {
            return Ok(0);
        }
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                let (taken, progress) = handshake.step(input, &mut self.out);
                match progress {
                    Progress::Ongoing => {}
                    Progress::Chosen(agreement) => self.transmit(agreement)?,
                    Progress::Over => self.is_over = true,
                }
                Ok(taken)
            }
            Phase::Transmission(transmission) => {
                let Transmission { source, intake, turn, flushes, has_joined } =
                    &mut **transmission;
                let fed = intake.feed(input, turn);
                self.is_over = fed.is_err() || intake.is_over();
                if turn.has_requests() && !std::mem::replace(has_joined, true) {
                    self.disk.join(source);
                }
                // Requests before the invalid bytes are executed nevertheless.
                turn.run(&*self.disk, source, flushes);
                Ok(fed.unwrap_or(0))
            }
        }
    }

    /// The longest input that a call may need, in bytes.
    pub const INPUT_MAX: usize = crate::handshake::OPTION_MAX + 64;

    fn transmit(&mut self, agreement: Agreement) -> io::Result<()> {
        let Agreement { parameters, is_structured, has_status } = agreement;
        let bounds = Bounds {
            len: self.disk.len(),
            read_only: self.export.read_only,
            is_structured,
            has_status,
        };
        self.phase = Phase::Transmission(Box::new(Transmission {
            source: parameters.source(self.connection),
            intake: Intake::new(bounds),
            turn: Turn::new(Form { is_structured }),
            flushes: Flushes::new()?,
            has_joined: false,
        }));
        Ok(())
    }

    /// Sends the prepared replies.
    ///
    /// # Errors
    /// Those of `out`, after which the conversation cannot be used any more.
    pub fn send(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !self.out.is_empty() {
            out.write_all(&self.out)?;
            self.out = Vec::new();
        }
        match &mut self.phase {
            Phase::Handshake(_) => Ok(()),
            Phase::Transmission(transmission) => transmission.turn.send(out),
        }
    }

    /// True if nothing more will be received.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// True if the export is chosen.
    pub fn is_chosen(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// Waits until no flush is under way, and sends the replies.
    ///
    /// # Errors
    /// Those of `out`; it has waited nevertheless.
    pub fn wait(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut sent = Ok(());
        while let Some(flushes) = self.flushes() {
            flushes.wait(&[])?;
            self.take_flushes();
            let now = self.send(out);
            sent = sent.and(now);
        }
        sent
    }

    /// The flushes, if some are under way or done.
    pub(crate) fn flushes(&self) -> Option<Arc<Flushes>> {
        match &self.phase {
            Phase::Transmission(it) if it.flushes.are_some() => Some(it.flushes.clone()),
            _ => None,
        }
    }

    /// Prepares the replies of finished flushes.
    pub(crate) fn take_flushes(&mut self) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.turn.take_flushes(&transmission.flushes);
        }
    }

    /// Bytes of its buffers.
    pub fn memory(&self) -> usize {
        let out = self.out.capacity();
        match &self.phase {
            Phase::Handshake(_) => out,
            Phase::Transmission(it) => out + it.intake.memory() + it.turn.memory(),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Phase::Transmission(transmission) = &self.phase
            && transmission.has_joined
        {
            self.disk.leave(&transmission.source);
        }
    }
}
