//! Durations of commands, without a read of the clock for each of them.
//!
//! The exact clock costs a tenth of a read. So of the commands that come together each 16th is timed, for itself and
//! those before it, and a command that was seldom run is timed always. In between it is enough to read the coarse
//! clock, which the kernel sets every few milliseconds:
//!
//! ```text
//!   exact clock     |a|                                   |b|
//!   commands        |a| GET SET SET … DEL   …   … MGET … |b|
//!   coarse clock       ·   ·   ·         tick: the exact clock tells the duration, give or take the few
//!                                        microseconds since its last read
//! ```
//!
//! So a command of two ticks or more is timed always. If the slow log wants shorter ones, all commands are timed.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::{Duration, Instant};

/// One of so many commands in a row is timed.
const ROW: u32 = 16;
/// Two ticks of the coarse clock of a kernel that sets it 250 times a second, as most do; at 100 times a second a
/// command may be missed that takes less than 20 ms.
pub(crate) const SLOW: Duration = Duration::from_millis(8);

/// Times the commands of one connection.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The last read of the exact clock, if it was for a command of this turn.
    last: Option<Instant>,
    /// The coarse clock at that time.
    tick: Timespec,
    /// The number of commands since.
    untimed: u32,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self { last: None, tick: coarse(), untimed: 0 }
    }
}

fn coarse() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

impl Stopwatch {
    /// The next commands follow other work.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    /// A command begins; the start time, if it is timed.
    pub(crate) fn begin(&mut self, is_wanted: bool) -> Option<Instant> {
        match self.last {
            Some(last) if is_wanted && self.untimed == 0 => Some(last),
            Some(_) if !is_wanted && self.untimed + 1 < ROW => None,
            _ => Some(Instant::now()),
        }
    }

    /// The command ends; its duration, if it was timed or was slow.
    pub(crate) fn end(&mut self, began: Option<Instant>) -> Option<Duration> {
        if let Some(began) = began {
            return Some(self.look().saturating_duration_since(began));
        }
        self.untimed += 1;
        if coarse() == self.tick {
            return None;
        }
        let last = self.last;
        let took = self.look().saturating_duration_since(last?);
        Some(took).filter(|took| *took >= SLOW)
    }

    fn look(&mut self) -> Instant {
        let now = Instant::now();
        (self.last, self.tick, self.untimed) = (Some(now), coarse(), 0);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_row_is_timed_and_all_that_are_wanted() {
        let mut watch = Stopwatch::default();
        let mut timed = Vec::new();
        for _ in 0..3 * ROW {
            let began = watch.begin(false);
            timed.push(began.is_some());
            watch.end(began);
        }
        // The first one, then at least one in each row: a tick begins a new row.
        assert!(timed[0]);
        for row in timed.windows(ROW as usize + 1) {
            assert!(row.contains(&false), "not all");
        }
        for _ in 0..ROW {
            let began = watch.begin(true);
            assert!(began.is_some() && watch.end(began).is_some());
        }
        watch.restart();
        assert!(watch.begin(false).is_some());
    }

    #[test]
    fn what_is_slow_is_timed_always() {
        let mut watch = Stopwatch::default();
        let began = watch.begin(true);
        watch.end(began);
        let began = watch.begin(false);
        assert_eq!(began, None);
        std::thread::sleep(SLOW * 4);
        assert!(watch.end(began).is_some_and(|took| took >= SLOW * 4));
    }
}
