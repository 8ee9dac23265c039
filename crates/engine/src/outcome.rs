//! What came of a write, and what that rests on.

#[cfg(doc)]
use crate::{Completion, Engine};
use crate::{Result, Ticket};

/// What a write did.
///
/// A write that was refused is no error, and easily overlooked. So the compiler warns of an outcome that nobody looks at:
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
    /// Durable when [`Deferred::is_durable`](crate::Deferred::is_durable) says so of it; [`Ticket::DURABLE`] after
    /// [`Completion::Wait`].
    pub ticket: Ticket,
    /// True if a live record was replaced or deleted.
    pub replaced: bool,
}

impl Outcome {
    /// The ticket that must be durable before the outcome may leave the process: of the write, or
    /// of the record that the refusal speaks of.
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

    /// The same, resting on this ticket.
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

    /// What was written, if anything was.
    pub fn written(&self) -> Option<Written> {
        match self {
            Self::Written(written) => Some(*written),
            _ => None,
        }
    }
}

/// What goes on beside a put ([`Replicated::put_briefly`](crate::Replicated::put_briefly)): the same put on
/// another engine, so that both share a fence.
///
/// ```text
///   one engine:   locks, room ─▶ beside ………………………………………………………………▶ publish
///   another:                     locks, room ─▶ record, the one's record ─▶ fence ─▶ publish
/// ```
///
/// The engine calls it once, when the put has all locks and all room that it takes. It is given the next
/// step: to append the record and to flush it, true if that was done. It calls that once, or not at all,
/// and says whether the put goes on. Then the engine makes a fence, unless the thread has made one since
/// the record was flushed, and publishes; or else takes back what it has appended, and declines.
///
/// A locked instruction waits for all that its thread has flushed, as a fence does. Hence this order: all
/// locks of both engines, both records, one fence.
pub type Beside<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> bool) -> bool;

/// What came of a put to which the sequence was given ([`Replicated::put_briefly`](crate::Replicated::put_briefly)).
///
/// It is returned in registers. What is returned in memory is stored word by word and copied by several
/// words at a time, and such a load waits until everything stored before it has left the processor: here
/// that is behind the fence.
#[derive(Debug)]
pub enum Brief {
    /// It was made where no live record was, and is as durable as was asked for: one at `relaxed` may
    /// not be so yet.
    New,
    /// The same in the place of a live record.
    Replaced,
    /// Nothing was made: it takes more than can be done beside another put, or is not to go on.
    Declined,
    /// What [`Engine::put`](crate::Engine::put) says otherwise.
    Else(Box<Result<Outcome>>),
}

impl Brief {
    /// The same in brief.
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
