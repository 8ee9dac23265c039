//! The decision about a key.

use crate::read::get::Whole;
use coreplane_engine::{Outcome, Result, Ticket, UnixMillis};
use std::borrow::Cow;

/// The decision about a key, based on its record.
pub(crate) enum Plan<'v> {
    /// Nothing is written; the outcome is made from the ticket of the state that was seen.
    Refuse(fn(Ticket) -> Outcome),
    /// Write a value.
    Put { value: Cow<'v, [u8]>, expires_at: Option<UnixMillis> },
    /// Write a tombstone.
    Delete,
}

/// Decides, given the live record.
pub(crate) type Decide<'d, 'v> = &'d mut dyn FnMut(Option<&Whole<'_>>) -> Result<Plan<'v>>;

/// The state that a write rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestsOn {
    /// The existence and version of an old record: the write is refused if they are in doubt.
    Old,
    /// Its value, too: the write is refused if the value is damaged, since a result computed from it would have a
    /// valid checksum.
    Value,
    Nothing,
}
