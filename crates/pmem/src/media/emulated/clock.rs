//! A clock that is cheap enough to spin on.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds from some start, and a way to let them pass.
pub(super) trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> u64;

    /// Returns at `time`, as seen by the caller.
    fn wait_until(&self, time: u64);
}

/// The processor's own counter where it is known to run evenly, else the system's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Processor {
    start: Instant,
    /// The counter at `start`, and nanoseconds a tick times 2^32; none: the system's clock.
    counter: Option<(u64, u64)>,
    /// Nanoseconds that reading the clock and noticing the end of a wait take beside it.
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
            clock.hurried(clock.excess(200, |_| clock.wait_until(clock.now() + 200)))
        })
    }
}

impl Processor {
    /// By how many nanoseconds calls of `action` in a row take longer than the `promised` each:
    /// the median of some runs.
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

    /// This clock, whose waits end by `more` nanoseconds earlier.
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

    fn wait_until(&self, time: u64) {
        /// Beyond this much, the processor is better given to others.
        const SLEEP_NS: u64 = 200_000;
        let time = time.saturating_sub(self.overhead);
        loop {
            let now = self.now();
            if now >= time {
                return;
            }
            if time - now > SLEEP_NS {
                std::thread::sleep(Duration::from_nanos(time - now - SLEEP_NS / 2));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// The time-stamp counter, if it runs evenly in all states (CPUID 8000_0007, bit 8).
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

    #[test]
    fn a_wait_ends_early_by_its_overhead_at_most_and_the_clock_never_runs_backwards() {
        let clock = Processor::calibrated();
        let mut last = clock.now();
        for wait in [0, 1, 500, 20_000, 500_000] {
            clock.wait_until(last + wait);
            let now = clock.now();
            assert!(now >= last && now + clock.overhead >= last + wait);
            last = now;
        }
    }
}
