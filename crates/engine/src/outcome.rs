//! What came of a write, and what that rests on.

use crate::{Outcome, Result, Ticket, Written};

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
    #[must_use]
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

    /// What was written, if anything was.
    pub fn written(&self) -> Option<Written> {
        match self {
            Self::Written(written) => Some(*written),
            _ => None,
        }
    }
}

/// What came of a put to which the sequence was given ([`Engine::put_briefly`](crate::Engine::put_briefly)).
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
