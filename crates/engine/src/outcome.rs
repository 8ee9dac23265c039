//! What came of a write, and what that rests on.

use crate::{Outcome, Ticket, Written};

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
