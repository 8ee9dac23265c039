//! The time that long commands have in a turn of an event loop.
//!
//! A command that reads very many records would keep all other connections of its event loop waiting. So it runs in
//! slices: it makes steps (some hundred keys each), checks the clock between them, and when the slice is over it
//! returns [`Failure::Unfinished`](crate::command::Failure::Unfinished) and is run again in a later turn. Its results
//! so far are in its connection's [`Continuation`](crate::continuation::Continuation).
//!
//! ```text
//!   turn 1                        turn 2                        turn 3
//! ├─ GET GET KEYS ▒▒▒▒▒ ─┤├─ GET SET GET ▒▒▒▒▒ ─┤├─ GET ▒▒▒▒▒ ─ …
//!                 slice                    slice          slice
//! ```
//!
//! There is one slice in a turn for all connections of the loop, so that many long commands delay the others no
//! longer than one does; the commands take turns in using it. Commands that go on have the time that new commands
//! have left, but at least one step. A step is never cut, so a turn holds [`LENGTH`] and two steps of long commands:
//! about a millisecond at most.

use std::time::{Duration, Instant};

/// The time in a turn for long commands, up to the start of their last step.
const LENGTH: Duration = Duration::from_micros(600);

/// The slice of a turn.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    /// None before the first step.
    end: Option<Instant>,
    /// The current command, or one before it of the same connection, has used the slice.
    is_used: bool,
    /// One more step may be made, regardless of the time.
    is_step_granted: bool,
}

impl Slice {
    /// True if there is time for one more step. The first call returns true.
    pub(crate) fn has_time(&mut self) -> bool {
        let now = Instant::now();
        let end = *self.end.get_or_insert(now + LENGTH);
        let has_time = std::mem::take(&mut self.is_step_granted) || now < end;
        self.is_used |= has_time;
        has_time
    }

    /// Grants the next caller a step: so continued commands make progress, although others begin in every turn.
    pub(crate) fn grant_step(&mut self) {
        self.is_step_granted = true;
    }

    /// A command begins that may be long and cannot be cut: the following commands of its connection have the rest of
    /// the slice.
    pub(crate) fn charge(&mut self) {
        self.end.get_or_insert_with(|| Instant::now() + LENGTH);
        self.is_used = true;
    }

    /// From now on the commands of another connection are run.
    pub(crate) fn turn_to_next(&mut self) {
        self.is_used = false;
    }

    /// True if the connection has used the slice up: its next commands run in a later turn. Commands that are not
    /// long pay nothing for this.
    pub(crate) fn is_used_up(&self) -> bool {
        self.is_used && self.end.is_some_and(|end| Instant::now() >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_has_time_and_one_behind_the_end_has_none() {
        let mut slice = Slice::default();
        assert!(slice.has_time());
        slice.end = Some(Instant::now());
        assert!(!slice.has_time());
        assert!(slice.is_used_up());
        slice.grant_step();
        assert!(slice.has_time() && !slice.has_time());
        // A connection that has used no time of it is not delayed.
        slice.turn_to_next();
        assert!(!slice.is_used_up() && !slice.has_time() && !slice.is_used_up());
    }
}
