//! Where chunks are cut.
//!
//! Queries ask for minutes, hours and days. A chunk that lies inside one of them need not be decoded: its entry has
//! the summary. So where points are dense enough, chunks end with a minute, an hour or a day: the shortest of them
//! that has some hundreds of points. With fewer points the entries would cost more than they save. Correctness does
//! not depend on it.

use crate::summary::Buckets;

/// Nanoseconds of a minute, an hour and a day.
const WIDTHS: [i64; 3] = [60_000_000_000, 3_600_000_000_000, 86_400_000_000_000];
/// A chunk is cut at the end of a window that has at least so many points.
pub(crate) const DENSE: usize = 240;

/// The windows at whose ends chunks of these points are cut, given the number of points and their first and last
/// time; none if even a day has too few points.
pub(crate) fn windows(count: usize, from: i64, to: i64) -> Option<Buckets> {
    let (gaps, span) = (count.saturating_sub(1) as i128, i128::from(to) - i128::from(from));
    let is_dense = |width: &i64| gaps * i128::from(*width) >= DENSE as i128 * span.max(1);
    let width = WIDTHS.into_iter().find(is_dense).filter(|_| gaps > 0)?;
    Some(Buckets { width, origin: 0 })
}

/// The length of the chunk that begins with the first of these ascending times: it ends with a window, and has at
/// most `max` points.
pub(crate) fn chunk_len(times: &[i64], windows: Option<Buckets>, max: usize) -> usize {
    let len = times.len().min(max);
    match (windows, times.first()) {
        (Some(windows), Some(first)) => {
            let end = windows.end(*first);
            times.get(..len).map_or(len, |times| times.partition_point(|time| *time <= end))
        }
        _ => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_with_the_shortest_window_that_has_enough() {
        let every = |interval_s: i64| {
            let times: Vec<i64> = (0..5000).map(|at| at * interval_s * 1_000_000_000).collect();
            let windows = windows(times.len(), times[0], times[4999]);
            (windows.map(|it| it.width), chunk_len(&times, windows, 2048))
        };
        assert_eq!(every(10), (Some(WIDTHS[1]), 360));
        assert_eq!(every(60), (Some(WIDTHS[2]), 1440));
        assert_eq!(every(1), (Some(WIDTHS[1]), 2048), "the rest of the hour is another chunk");
        assert_eq!(every(3600), (None, 2048));
        assert_eq!(windows(1, 5, 5), None);
        assert!(windows(2, 5, 5).is_some(), "and not a division by zero");
        assert_eq!(windows(100, i64::MIN, i64::MAX), None);
    }
}
