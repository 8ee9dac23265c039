//! Readers that have to end within a series.

use super::{Options, Store};
use crate::catalogue::TagFilter;
use crate::error::{Error, Result};
use crate::pace::Ends;
use crate::point::{FieldValue, Point, SeriesKey};
use crate::summary::Buckets;
use crate::value::Block;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ends at a look.
#[derive(Debug)]
struct Looks {
    count: AtomicUsize,
    last: usize,
}

impl Looks {
    fn until(last: usize) -> Self {
        Self { count: AtomicUsize::new(0), last }
    }
}

impl Ends for Looks {
    fn look(&self, _points: usize) -> Result<()> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count >= self.last { Err(Error::Ended("enough")) } else { Ok(()) }
    }
}

const POINTS: i64 = 30_000;

/// A series, half of whose points are sealed.
fn store(path: &std::path::Path) -> Store {
    let store = Store::open(path, &Options { sets: 1, size: 32 << 20, ..Options::default() });
    let store = store.expect("a store");
    store.create_database("d").expect("a database");
    for half in 0..2 {
        let points: Vec<Point<'_>> = (0..POINTS / 2)
            .map(|at| Point {
                series: SeriesKey::new("m", [("host", "a")]).expect("a key"),
                fields: [("f".into(), FieldValue::Integer(at))].into_iter().collect(),
                time: (half * POINTS / 2 + at) * 1_000_000_000,
            })
            .collect();
        store.write("d", None, &points).expect("written");
        if half == 0 {
            store.seal().expect("sealed");
        }
    }
    store
}

#[test]
fn a_reader_of_one_long_series_ends_within_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = store(&directory.path().join("ts"));
    let reader = store.reader("d", None).expect("a reader");
    let series = reader.series("m", &TagFilter::All).pop().expect("a series");
    let field = reader.fields("m").pop().expect("a field");
    let everything = 0..=i64::MAX;
    // Buckets that cut every chunk.
    let buckets = Some(Buckets { width: 7_000_000_000, origin: 0 });
    let sums = |looks: &Looks| {
        let ends = Some(looks as &dyn Ends);
        reader.scope().summaries(ends, &series, &[field.id], &everything, buckets)
    };
    let all = Looks::until(usize::MAX);
    let count: u64 = sums(&all).expect("sums")[0].iter().map(|(_, it)| it.count).sum();
    assert_eq!(count, POINTS as u64);
    let looks = all.count.load(Ordering::Relaxed);
    // The half that is sealed, a few thousand points at a time, and the other one at once.
    assert!(looks >= 3, "{looks}");
    for last in 1..=looks {
        let ends = Looks::until(last);
        assert!(matches!(sums(&ends), Err(Error::Ended("enough"))), "at look {last}");
        assert_eq!(ends.count.load(Ordering::Relaxed), last);
    }
    let points = |looks: &Looks| {
        let points = reader.points(&series, &field, everything.clone(), true).ended_by(looks);
        points.collect::<Result<Vec<Block>>>()
    };
    let all = Looks::until(usize::MAX);
    assert_eq!(points(&all).expect("blocks").iter().map(Block::len).sum::<usize>(), count as usize);
    assert!(all.count.load(Ordering::Relaxed) >= 3);
    assert!(matches!(points(&Looks::until(2)), Err(Error::Ended("enough"))));
    // Of few points nobody looks.
    let few = Looks::until(1);
    let last = reader.points(&series, &field, 0..=100_000_000_000, false).ended_by(&few);
    assert!(last.collect::<Result<Vec<Block>>>().is_ok());
}
