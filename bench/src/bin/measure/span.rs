//! The time that the threads of a load take together.

use std::time::Instant;

/// The time of one thread. It takes both itself: the thread that starts the others may be woken up after they have
/// begun, and a clock that it starts would make the rate too high.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    begun: Instant,
    ended: Instant,
}

impl Span {
    /// From then until now.
    pub(crate) fn since(begun: Instant) -> Self {
        Self { begun, ended: Instant::now() }
    }

    /// Seconds from the first beginning to the last end.
    pub(crate) fn seconds_of(spans: impl IntoIterator<Item = Self>) -> f64 {
        let all = spans.into_iter().reduce(|all, it| Self {
            begun: all.begun.min(it.begun),
            ended: all.ended.max(it.ended),
        });
        all.map_or(0.0, |all| (all.ended - all.begun).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_that_begins_and_the_last_that_ends_count() {
        let at = Instant::now();
        let span = |begun, ended| Span {
            begun: at + Duration::from_secs(begun),
            ended: at + Duration::from_secs(ended),
        };
        assert_eq!(Span::seconds_of([span(3, 9), span(1, 4), span(2, 7)]), 8.0);
        assert_eq!(Span::seconds_of([]), 0.0);
    }
}
