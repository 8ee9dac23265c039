//! How long commands take, without a look at the clock for each of them.
//!
//! The exact clock costs a tenth of a read. So of the commands that come together each 16th is timed, for itself and those
//! before it, and one that was seldom run is timed always. In between it is enough to look at the coarse clock, which the
//! kernel sets every few milliseconds:
//!
//! ```text
//!   exact clock     |a|                                   |b|
//!   commands        |a| GET SET SET … DEL   …   … MGET … |b|
//!   coarse clock       ·   ·   ·         tick: the exact clock says how long it was, give or take the few
//!                                        microseconds since its last look
//! ```
//!
//! So a command of two ticks or more is timed always. Where the slow log wants shorter ones, all are.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::{Duration, Instant};

/// Commands in a row of which one is timed.
const ROW: u32 = 16;
/// Two ticks of the coarse clock of a kernel that sets it 250 times a second, as most do; at 100 times a second a command
/// may be missed that takes less than 20 ms.
pub(crate) const SLOW: Duration = Duration::from_millis(8);

/// Times the commands of one connection.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// When the exact clock was looked at last, if that was for a command of this turn.
    last: Option<Instant>,
    /// What the coarse clock said then.
    tick: Timespec,
    /// Commands since.
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
    /// Commands come after something else was done.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    /// A command begins; when, if it is to be timed.
    pub(crate) fn begin(&mut self, is_wanted: bool) -> Option<Instant> {
        match self.last {
            Some(last) if is_wanted && self.untimed == 0 => Some(last),
            Some(_) if !is_wanted && self.untimed + 1 < ROW => None,
            _ => Some(Instant::now()),
        }
    }

    /// It ends; how long it took, if it was timed or was slow.
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
        // The first; then one in each row at least: a tick begins a new one.
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
