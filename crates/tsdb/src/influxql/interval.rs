//! Buckets of time.

use super::time::{TIME_MAX, TIME_MIN};
use crate::summary::Buckets;

/// Buckets of one width; one of them begins at the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    /// Nanoseconds; more than 0.
    pub(super) width: i64,
    /// Nanoseconds since 1970; less than the width.
    pub(super) offset: i64,
}

impl Interval {
    /// The beginning of the bucket of a time.
    pub(super) fn start(self, time: i64) -> i64 {
        let since = time.saturating_sub(self.offset).rem_euclid(self.width);
        time.checked_sub(since).map_or(TIME_MIN, |it| it.max(TIME_MIN))
    }

    /// The beginning of the bucket that follows, in this direction, the one at `start`; none at the end of time.
    pub(super) fn next(self, start: i64, is_descending: bool) -> Option<i64> {
        if is_descending {
            start.checked_sub(self.width).filter(|it| *it >= TIME_MIN)
        } else {
            start.checked_add(self.width).filter(|it| *it <= TIME_MAX)
        }
    }

    /// The number of buckets from one beginning to another.
    pub(super) fn count(self, first: i64, last: i64) -> usize {
        let distance = i128::from(last) - i128::from(first);
        let buckets = distance.div_euclid(i128::from(self.width)).saturating_add(1);
        usize::try_from(buckets.max(0)).unwrap_or(usize::MAX)
    }

    /// The buckets in the form that readers use.
    pub(super) fn buckets(self) -> Buckets {
        Buckets { width: self.width, origin: self.offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_time(
            time in -1_000_000_i64..1_000_000,
            width in 1_i64..1000,
            offset in -999_i64..1000,
        ) {
            let interval = Interval { width, offset: offset % width };
            let start = interval.start(time);
            prop_assert!(start <= time && time - start < width);
            prop_assert_eq!((start - offset).rem_euclid(width), 0);
            prop_assert_eq!(interval.start(start), start);
            prop_assert_eq!(interval.count(start, interval.start(time + 3 * width)), 4);
        }
    }

    #[test]
    fn the_ends_of_time_are_no_trap() {
        let interval = Interval { width: i64::MAX, offset: -5 };
        for time in [i64::MIN, TIME_MIN, -1, 0, TIME_MAX, i64::MAX] {
            assert!(interval.start(time) <= time.max(TIME_MIN));
            assert!(interval.count(interval.start(i64::MIN), time) <= 3);
        }
        assert_eq!(interval.next(5, false), None);
        assert_eq!(interval.next(-5, true), None);
    }
}
