//! A clock that is cheap enough to spin on, and the pauses between two looks at it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds from some start, and a way to let them pass.
pub(super) trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> u64;

    /// Returns at `time`, as seen by the caller, or later.
    fn wait_until(&self, time: u64, wait: Wait);
}

/// How a thread uses its core while it waits for the medium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wait {
    /// It keeps the core, like a processor that waits for memory.
    #[default]
    Spin,
    /// It yields the core to other threads.
    Yield,
}

impl Wait {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Yield => "yield",
        }
    }

    /// The variant with that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Spin, Self::Yield].into_iter().find(|it| it.name() == name)
    }

    /// Waits until the clock reaches `time`, with pauses between the looks.
    #[inline]
    fn until(self, time: u64, now: impl Fn() -> u64, mut pause: impl FnMut(Pause)) {
        loop {
            let now = now();
            if now >= time {
                return;
            }
            pause(self.pause(time - now));
        }
    }

    /// The pause while `rest` nanoseconds are left.
    #[inline]
    fn pause(self, rest: u64) -> Pause {
        /// For longer waits the thread sleeps, in both modes, to leave the processor to others.
        const SLEEP_NS: u64 = 200_000;
        match self {
            _ if rest > SLEEP_NS => Pause::Sleep(rest - SLEEP_NS / 2),
            Self::Spin => Pause::Spin,
            Self::Yield => Pause::Yield,
        }
    }
}

/// A pause between two looks at the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    /// For this many nanoseconds.
    Sleep(u64),
}

impl Pause {
    #[inline]
    fn make(self) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Sleep(ns) => std::thread::sleep(Duration::from_nanos(ns)),
        }
    }
}

/// The processor's counter where its rate is constant, else the system's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Processor {
    start: Instant,
    /// The counter at `start`, and nanoseconds a tick times 2^32; none: the system's clock.
    counter: Option<(u64, u64)>,
    /// The nanoseconds that reading the clock and noticing the end of a wait add to the wait.
    overhead: u64,
}

impl Processor {
    /// The clock of this process; calibrated once, which takes 10 ms.
    pub(super) fn calibrated() -> Self {
        static CLOCK: OnceLock<Processor> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let start = Instant::now();
            let Some(first) = counter() else {
                return Self { start, counter: None, overhead: 0 };
            };
            while start.elapsed() < Duration::from_millis(10) {
                std::hint::spin_loop();
            }
            let (elapsed, last) = (start.elapsed().as_nanos(), counter().unwrap_or(first));
            let ticks = u128::from(last.saturating_sub(first));
            let scale = (elapsed << 32).checked_div(ticks).and_then(|it| u64::try_from(it).ok());
            let counter = scale.map(|scale| (first, scale));
            let clock = Self { start, counter, overhead: 0 };
            clock.hurried(clock.excess(200, |_| clock.wait_until(clock.now() + 200, Wait::Spin)))
        })
    }
}

impl Processor {
    /// By how many nanoseconds successive calls of `action` each take longer than `promised`: the
    /// median of some runs.
    pub(super) fn excess(&self, promised: u64, action: impl Fn(u64)) -> u64 {
        const RUN: u64 = 100;
        let mut runs = [0; 31];
        for run in &mut runs {
            let start = self.now();
            for number in 0..RUN {
                action(number);
            }
            *run = ((self.now() - start) / RUN).saturating_sub(promised);
        }
        runs.sort_unstable();
        runs[runs.len() / 2].min(promised / 2)
    }

    /// This clock with waits that end `more` nanoseconds earlier.
    pub(super) fn hurried(self, more: u64) -> Self {
        Self { overhead: self.overhead + more, ..self }
    }
}

impl Clock for Processor {
    #[inline]
    fn now(&self) -> u64 {
        if let (Some((first, scale)), Some(ticks)) = (self.counter, counter()) {
            let ticks = u128::from(ticks.saturating_sub(first));
            return ((ticks * u128::from(scale)) >> 32) as u64 + 1;
        }
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait_until(&self, time: u64, wait: Wait) {
        wait.until(time.saturating_sub(self.overhead), || self.now(), Pause::make);
    }
}

/// The time-stamp counter, if its rate is constant in all states (CPUID 8000_0007, bit 8).
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> Option<u64> {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    static INVARIANT: OnceLock<bool> = OnceLock::new();
    let invariant = *INVARIANT.get_or_init(|| {
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    });
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    invariant.then(|| unsafe { _rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_wait_ends_early_by_its_overhead_at_most_and_the_clock_never_runs_backwards() {
        let clock = Processor::calibrated();
        let mut last = clock.now();
        for wait in [Wait::Spin, Wait::Yield] {
            for ns in [0, 1, 500, 20_000, 500_000] {
                clock.wait_until(last + ns, wait);
                let now = clock.now();
                assert!(now >= last && now + clock.overhead >= last + ns);
                last = now;
            }
        }
    }

    /// The pauses of a wait from 1,000 to `time`, and the time when it ended, on a clock that advances
    /// with each look and each sleep.
    fn pauses(wait: Wait, time: u64) -> (Vec<Pause>, u64) {
        let clock = Cell::new(1_000);
        let now = || clock.replace(clock.get() + 300);
        let mut made = Vec::new();
        wait.until(time, now, |pause| {
            if let Pause::Sleep(ns) = pause {
                clock.set(clock.get() + ns);
            }
            made.push(pause);
        });
        (made, clock.get() - 300)
    }

    #[test]
    fn a_thread_that_waits_keeps_its_core_or_gives_it_away_and_sleeps_where_it_is_long() {
        for (wait, each) in [(Wait::Spin, Pause::Spin), (Wait::Yield, Pause::Yield)] {
            assert_eq!(pauses(wait, 1_000), (vec![], 1_000));
            assert_eq!(pauses(wait, 900), (vec![], 1_000), "it is over");
            assert_eq!(pauses(wait, 2_000), (vec![each; 4], 2_200), "never before its time");
            let (short, _) = pauses(wait, 201_000);
            assert!(short.iter().all(|pause| *pause == each));
            let (long, end) = pauses(wait, 1_001_000);
            assert_eq!(long[0], Pause::Sleep(900_000));
            assert!(long.len() > 300 && long[1..].iter().all(|pause| *pause == each));
            assert!((1_001_000..1_001_300).contains(&end), "{end}");
        }
    }
}
