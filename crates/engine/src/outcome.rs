//! The outcome of a write, and the ticket that it depends on.

#[cfg(doc)]
use crate::{Completion, Engine};
use crate::{Result, Ticket};

/// The outcome of a write.
///
/// A refused write is not an error, and easily overlooked. So the compiler warns of an outcome that is not used:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use coreplane_engine::{Engine, Result, WriteOptions};
/// fn claim(engine: &dyn Engine) -> Result<()> {
///     engine.insert(b"owner", b"me", &WriteOptions::default())?;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a write may have been refused: `Outcome` says what came of it"]
pub enum Outcome {
    /// The write was made.
    Written(Written),
    /// `insert` found the key present; nothing changed.
    Exists(Ticket),
    /// `update` or `delete` found the key absent; nothing changed.
    Missing(Ticket),
    /// `compare_and_set` found another value or sequence; nothing changed.
    Mismatch(Ticket),
    /// The given sequence was not newer than the stored one, returned here; nothing changed.
    NotNewer(u64, Ticket),
    /// `modify` was told to keep the record as it is.
    Kept(Ticket),
}

/// A write that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its sequence.
    pub sequence: u64,
    /// The write is durable once [`Deferred::is_durable`](crate::Deferred::is_durable) holds for this ticket;
    /// [`Ticket::DURABLE`] after [`Completion::Wait`].
    pub ticket: Ticket,
    /// True if a live record was replaced or deleted.
    pub replaced: bool,
}

impl Outcome {
    /// The ticket that must be durable before the outcome may leave the process: the ticket of the
    /// write, or of the record because of which it was refused.
    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Written(written) => written.ticket,
            Self::Exists(ticket)
            | Self::Missing(ticket)
            | Self::Mismatch(ticket)
            | Self::NotNewer(_, ticket)
            | Self::Kept(ticket) => *ticket,
        }
    }

    /// The same outcome with this ticket.
    #[inline]
    pub fn resting_on(self, ticket: Ticket) -> Self {
        match self {
            Self::Written(written) => Self::Written(Written { ticket, ..written }),
            Self::Exists(_) => Self::Exists(ticket),
            Self::Missing(_) => Self::Missing(ticket),
            Self::Mismatch(_) => Self::Mismatch(ticket),
            Self::NotNewer(sequence, _) => Self::NotNewer(sequence, ticket),
            Self::Kept(_) => Self::Kept(ticket),
        }
    }

    /// True if the write was made.
    pub fn is_written(&self) -> bool {
        matches!(self, Self::Written(_))
    }

    /// The write, if it was made.
    pub fn written(&self) -> Option<Written> {
        match self {
            Self::Written(written) => Some(*written),
            _ => None,
        }
    }
}

/// A put on another engine that runs inside a put ([`Replicated::put_briefly`](crate::Replicated::put_briefly)), with
/// the same key and value, so that both share a fence.
///
/// ```text
///   this engine:  locks, room ─▶ beside ………………………………………………………………▶ publish
///   the other:                   locks, room ─▶ record, this one's ───────▶ fence ─▶ publish
/// ```
///
/// The engine calls it once, when its put has all the locks and all the room that it needs, and passes the next step:
/// append the record and flush it; it returns true if that was done. The callee calls this step once or not at all,
/// and returns whether the put goes on. If it does, the engine makes a fence, unless the thread has made one since
/// the record was flushed, and publishes. If not, the engine takes back the appended record and declines.
///
/// A locked instruction waits for all flushes of its thread, as a fence does. Hence this order: all locks
/// of both engines, both records, one fence.
pub type Beside<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> bool) -> bool;

/// The outcome of a put with a given sequence ([`Replicated::put_briefly`](crate::Replicated::put_briefly)).
///
/// It is returned in registers. A result in memory would be stored word by word and loaded several words
/// at a time, and such a load waits until all earlier stores have left the processor: here, until after
/// the fence.
#[derive(Debug)]
pub enum Brief {
    /// The put was made, and there was no live record before. It is as durable as was asked for: a
    /// put at `relaxed` may not be durable yet.
    New,
    /// The same, but a live record was replaced.
    Replaced,
    /// Nothing was written: the put needs more steps than can be done beside another put, or `beside` has stopped it.
    Declined,
    /// Any other result of [`Engine::put`](crate::Engine::put).
    Else(Box<Result<Outcome>>),
}

impl Brief {
    /// The brief form of an outcome.
    pub fn of(outcome: Result<Outcome>) -> Self {
        match outcome {
            Ok(Outcome::Written(written)) if written.ticket.is_durable() => {
                if written.replaced {
                    Self::Replaced
                } else {
                    Self::New
                }
            }
            outcome => Self::Else(Box::new(outcome)),
        }
    }
}
