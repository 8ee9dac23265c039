//! What is to be done with a key.

use crate::read::get::Whole;
use coreplane_engine::{Outcome, Result, Ticket, UnixMillis};
use std::borrow::Cow;

/// What to do with a key, decided in sight of its record.
pub(crate) enum Plan<'v> {
    /// Nothing; the outcome is made of the ticket of what was seen.
    Refuse(fn(Ticket) -> Outcome),
    /// Write a value.
    Put { value: Cow<'v, [u8]>, expires_at: Option<UnixMillis> },
    /// Write a tombstone.
    Delete,
}

/// Decides in sight of the live record.
pub(crate) type Decide<'d, 'v> = &'d mut dyn FnMut(Option<&Whole<'_>>) -> Result<Plan<'v>>;

/// What a write rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestsOn {
    /// On whether there was a record before, and which: it is refused if that is in doubt.
    Old,
    /// On its value, too: it is refused if that is not what was written, since what is made of it
    /// would have a checksum of its own.
    Value,
    Nothing,
}
