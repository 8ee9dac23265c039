//! A connection without its socket: bytes in, bytes out.
//!
//! All that the protocol asks for happens here and below, where tests and fuzzers can come
//! with any bytes in any pieces; the socket and its thread are in `connection`.

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

/// A conversation with a client. When it is dropped the disk is told that the client has gone; before
/// that, [`Conversation::wait`] for what is under way.
pub struct Conversation {
    disk: Arc<dyn Disk>,
    export: Export,
    connection: u64,
    phase: Phase,
    /// The handshake's answers.
    out: Vec<u8>,
    /// Nothing more is to be received.
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
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Conversation")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Conversation {
    /// Begins one, by the greeting, which is there to send.
    pub fn new(export: Export, disk: Arc<dyn Disk>, connection: u64) -> Self {
        let mut out = Vec::new();
        let handshake = Handshake::new(export.clone(), disk.len(), &mut out);
        let phase = Phase::Handshake(handshake);
        Self { disk, export, connection, phase, out, is_over: false }
    }

    /// Takes messages from the front of `input`, does what they ask for, and has the replies ready to be
    /// sent, before it may be called again. How many bytes it took: fewer than there are if it had
    /// enough for a turn; zero if it needs more. More than [`Conversation::INPUT_MAX`] it never needs.
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
                let Transmission { source, intake, turn, flushes } = &mut **transmission;
                let fed = intake.feed(input, turn);
                self.is_over = fed.is_err() || intake.is_over();
                // What came before the nonsense is done all the same.
                turn.run(&*self.disk, source, flushes);
                Ok(fed.unwrap_or(0))
            }
        }
    }

    /// The longest input that it may need to have at once, in bytes.
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
        }));
        Ok(())
    }

    /// Sends what is there to send.
    ///
    /// # Errors
    /// Those of `out`, after which the conversation is of no use.
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

    /// True if nothing more is to be received.
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
    /// Those of `out`; it has waited all the same.
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

    /// Flushes, if some are under way or done.
    pub(crate) fn flushes(&self) -> Option<Arc<Flushes>> {
        match &self.phase {
            Phase::Transmission(it) if it.flushes.are_some() => Some(it.flushes.clone()),
            _ => None,
        }
    }

    /// Makes the replies of flushes that are done.
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
        if let Phase::Transmission(transmission) = &self.phase {
            self.disk.leave(&transmission.source);
        }
    }
}
