//! Waiting for another thread: spin a little, then let it run.

/// How long this wait has lasted.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    /// A wait that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits a little, longer each time; gives the processor away after a few turns.
    pub fn wait(&mut self) {
        if self.turns < 6 {
            for _ in 0..1 << self.turns {
                std::hint::spin_loop();
            }
            self.turns += 1;
        } else {
            std::thread::yield_now();
        }
    }
}
