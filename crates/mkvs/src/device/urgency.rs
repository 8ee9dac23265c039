//! Whether a device's processor may interrupt other threads as it wakes up: for callers that wait for its answers it
//! may, for writes that follow it need not ([`background`]).

use coreplane_pmem::background;

/// Turns without an answer after which no caller is expected.
const QUIET: u32 = 256;

/// The urgency of a processor, whose thread was started in the background.
#[derive(Debug, Default)]
pub(super) struct Urgency {
    /// Turns that it may interrupt others for, unless it answers another caller.
    left: u32,
}

impl Urgency {
    /// The processor has done some work, and has answered callers or not: gives its thread the policy for that.
    pub(super) fn note(&mut self, has_answered: bool) {
        if let Some(is_batch) = self.change(has_answered) {
            background::set_batch(is_batch);
        }
    }

    /// True if the thread should have the batch policy from now on, false if it should not; none if that stays.
    fn change(&mut self, has_answered: bool) -> Option<bool> {
        let before = self.left;
        self.left = if has_answered { QUIET } else { before.saturating_sub(1) };
        ((before == 0) != (self.left == 0)).then_some(self.left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_urgent_from_the_first_answer_until_long_after_the_last() {
        let mut urgency = Urgency::default();
        assert_eq!([false, true, true].map(|it| urgency.change(it)), [None, Some(false), None]);
        for _ in 0..3 {
            assert!((1..QUIET).all(|_| urgency.change(false).is_none()));
            assert_eq!(urgency.change(true), None, "another answer");
        }
        assert!((1..QUIET).all(|_| urgency.change(false).is_none()));
        assert_eq!(
            [false, false, true].map(|it| urgency.change(it)),
            [Some(true), None, Some(false)]
        );
    }
}
