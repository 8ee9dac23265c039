//! Readers of a series: they end early, and list few stretches at a time; merges beside sealing; the room of what was
//! dropped.

use super::{Options, Store};
use crate::catalogue::{Policy, Series, TagFilter};
use crate::error::{Error, Result};
use crate::pace::Ends;
use crate::point::{FieldValue, Point, SeriesKey};
use crate::set::Extent;
use crate::summary::{Buckets, Most};
use crate::value::{Block, Column, Value};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::spin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ends a reader at the check with a given number.
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

/// A store without a background thread, with four segments of a shard to be merged, and points that are not sealed.
fn unmerged(sim: &Sim) -> Store {
    let options = Options { head_bytes: 1 << 20, ..Options::default() };
    let store = Store::simulated_create(sim.spaces(), &options).expect("a store");
    store.create_database("d").expect("a database");
    for round in 0..5 {
        let texts: Vec<String> = (0..20).map(|at| format!("m,host={at}")).collect();
        let points: Vec<Point<'_>> = texts
            .iter()
            .map(|text| Point {
                series: SeriesKey::of_text(text).expect("a key"),
                fields: [("f".into(), FieldValue::Integer(round))].into_iter().collect(),
                time: round,
            })
            .collect();
        store.write("d", None, &points).expect("written");
        if round < 4 {
            let set = &store.shared.sets[0];
            assert!(store.shared.seal(set, 0).expect("sealed"));
        }
    }
    store
}

/// The number of points.
fn count(store: &Store) -> u64 {
    let reader = store.reader("d", None).expect("a reader");
    let field = reader.fields("m").pop().expect("a field");
    let of = |it: &Arc<Series>| reader.summaries(it, &field, 0..=i64::MAX, None).expect("sums");
    let all = reader.series("m", &TagFilter::All);
    all.iter().flat_map(of).map(|(_, it)| it.count).sum()
}

fn sim() -> Sim {
    let len = 4 << 20;
    let (page_size, own_epochs) = (16 << 10, true);
    let options =
        SimOptions { spaces: 1, len, max_len: len, page_size, own_epochs, ..SimOptions::default() };
    Sim::new(&options).expect("memory")
}

/// Two late points in one chunk, which overlaps all others of the shard.
#[test]
fn a_chunk_that_overlaps_all_others_is_merged_in_parts() {
    const PART: i64 = 10 * 2048;
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, size: 32 << 20, upkeep: false, ..Options::default() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("d").expect("a database");
    let seal = |points: &[(i64, i64)]| {
        let point = |(time, value): &(i64, i64)| Point {
            series: SeriesKey::of_text("m,host=a").expect("a key"),
            fields: [("f".into(), FieldValue::Integer(*value))].into_iter().collect(),
            time: time * 1_000_000_000,
        };
        store.write("d", None, &points.iter().map(point).collect::<Vec<_>>()).expect("written");
        assert!(store.shared.seal(&store.shared.sets[0], 0).expect("sealed"));
    };
    let part = |at: i64| (at * PART..(at + 1) * PART).map(|time| (time, time)).collect::<Vec<_>>();
    (0..3).for_each(|at| seal(&part(at)));
    // Both times are there already; the second one is written once more.
    seal(&[(7, -7), (4 * PART - 7, -8)]);
    seal(&part(3));
    store.merge().expect("merged");
    assert_eq!((store.stats().segments, store.stats().sealed_points), (1, 4 * PART as u64));
    let reader = store.reader("d", None).expect("a reader");
    let series = reader.series("m", &TagFilter::All).pop().expect("a series");
    let field = reader.fields("m").pop().expect("a field");
    let all: Vec<(i64, i64)> = reader
        .points(&series, &field, 0..=i64::MAX, false)
        .flat_map(|it| {
            let Block { times, values: Column::Integer(values) } = it.expect("a block") else {
                panic!("the type");
            };
            times.into_iter().map(|time| time / 1_000_000_000).zip(values)
        })
        .collect();
    let mut expected: Vec<(i64, i64)> = (0..4 * PART).map(|time| (time, time)).collect();
    expected[7].1 = -7;
    assert!(all == expected, "{} points", all.len());
    let verified = store.verify(&mut |_, _| {}).expect("findings");
    // Chunks are as long as they are without the late points.
    assert!(verified.is_sound() && verified.chunks <= 4 * PART as u64 / 1024, "{verified:?}");
}

/// A copy of pools that is older than its policies.
#[test]
fn a_store_without_upkeep_is_read_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let point = |at: i64| Point {
        series: SeriesKey::of_text("m,host=a").expect("a key"),
        fields: [("f".into(), FieldValue::Integer(at))].into_iter().collect(),
        time: at,
    };
    let options = Options { sets: 1, size: 1 << 20, page_len: 4096, ..Options::default() };
    {
        let store = Store::open(&path, &options).expect("a store");
        store.set_clock(1);
        store.create_database("d").expect("a database");
        let (name, hour) = ("autogen".to_owned(), 3_600_000_000_000);
        let policy = Policy { name, duration_ns: hour, shard_ns: hour, is_default: true };
        store.put_policy("d", &policy).expect("a policy");
        store.write("d", None, &[1, 2, 3].map(point)).expect("written");
    }
    let quiet = Options { upkeep: false, ..options.clone() };
    let store = Store::open(&path, &quiet).expect("opened");
    assert!(store.upkeep.is_none());
    store.shared.note_dropped_series();
    assert_eq!((count(&store), store.stats().series), (3, 1));
    drop(store);
    let store = Store::open(&path, &options).expect("opened");
    assert!(store.upkeep.is_some());
    store.expire().expect("dropped");
    assert_eq!(store.stats().series, 0, "the policy is over");
}

/// Points are sealed during the merge, while the lock of merges is held.
#[test]
fn points_are_sealed_within_a_merge() {
    let sim = sim();
    let store = unmerged(&sim);
    let (shared, calls) = (&store.shared, AtomicUsize::new(0));
    let set = &shared.sets[0];
    let breath = || {
        if calls.fetch_add(1, Ordering::Relaxed) == 7 {
            assert!(shared.seal(set, 0).expect("sealed"));
        }
        Ok(())
    };
    assert!(set.merge(&|_| true, &|_| Extent::Tier, &|_, _| true, &breath).expect("merged"));
    assert!(calls.load(Ordering::Relaxed) > 20);
    let after = store.stats();
    assert_eq!((after.segments, after.head_points, count(&store)), (2, 0, 100));
    assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
    store.check_pages().expect("pages");
    drop(store);
    let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let store = Store::simulated_open(cut.spaces(), &Options::default()).expect("opened");
    assert_eq!((store.damage().next(), count(&store)), (None, 100));
}

#[test]
fn a_merge_seals_what_is_due_and_ends_with_the_store() {
    let sim = sim();
    let mut store = unmerged(&sim);
    Arc::get_mut(&mut store.shared).expect("no other").options.head_bytes = 1;
    let shared = &store.shared;
    // After a failure for lack of room, sealing is not tried again and again.
    *spin::lock(&shared.bell.trouble) = Some("no room".to_owned());
    shared.breathe().expect("nothing to do");
    assert_eq!(store.stats().head_points, 20);
    *spin::lock(&shared.bell.trouble) = None;
    shared.breathe().expect("sealed");
    let before = store.stats();
    assert_eq!((before.segments, before.head_points, count(&store)), (5, 0, 100));
    // The store is closed during the merge.
    let calls = AtomicUsize::new(0);
    let breath = || {
        let is_over = calls.fetch_add(1, Ordering::Relaxed) == 7;
        spin::lock(&shared.bell.state).is_over |= is_over;
        shared.breathe()
    };
    let merged = shared.sets[0].merge(&|_| true, &|_| Extent::Tier, &|_, _| true, &breath);
    assert!(matches!(merged, Err(Error::Ended(_))), "{merged:?}");
    let after = store.stats();
    assert_eq!((after.segments, after.sealed_points), (before.segments, before.sealed_points));
    assert_eq!((calls.load(Ordering::Relaxed), count(&store)), (8, 100));
    assert!(matches!(shared.tidy_all(0, i64::MIN), Err(Error::Ended(_))));
    store.check_pages().expect("pages");
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
        let along = (Some(looks as &dyn Ends), &mut Most::new(&|_, _| Ok(())));
        reader.scope().summaries(along, &series, &[field.id], &everything, buckets)
    };
    let all = Looks::until(usize::MAX);
    let count: u64 = sums(&all).expect("sums")[0].iter().map(|(_, it)| it.count).sum();
    assert_eq!(count, POINTS as u64);
    let looks = all.count.load(Ordering::Relaxed);
    // The sealed half is checked every few thousand points, the other half at once.
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
    // While buckets are made, their number is checked, for sealed points and for others: the thousandth is one too
    // many.
    let asked = std::cell::Cell::new(0);
    let few = |count: usize| {
        if count < 1_000 {
            asked.set(count);
            return Ok(());
        }
        Err(Error::Limit("many".to_owned()))
    };
    let single = Some(Buckets { width: 1, origin: 0 });
    for range in [0..=i64::MAX, POINTS / 2 * 1_000_000_000..=i64::MAX] {
        asked.set(0);
        let many = reader.summaries_within(&series, &field, range, single, &few);
        assert!(matches!(many, Err(Error::Limit(_))) && asked.get() > 900, "{}", asked.get());
    }
    // Few points cause no check.
    let few = Looks::until(1);
    let last = reader.points(&series, &field, 0..=100_000_000_000, false).ended_by(&few);
    assert!(last.collect::<Result<Vec<Block>>>().is_ok());
}

/// Fields without a point are looked for in each shard.
#[test]
fn a_search_for_last_points_ends_within_it() {
    const HOUR: i64 = 3_600_000_000_000;
    let directory = tempfile::tempdir().expect("a directory");
    let (sets, size, page_len) = (1, 64 << 20, 4096);
    let options = Options { sets, size, page_len, upkeep: false, ..Options::default() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("d").expect("a database");
    let (name, shard_ns) = ("hours".to_owned(), HOUR.cast_unsigned());
    let policy = Policy { name, duration_ns: 0, shard_ns, is_default: true };
    store.put_policy("d", &policy).expect("a policy");
    let names: Vec<String> = (0..20).map(|at| format!("f{at:02}")).collect();
    let point = |key, names: &[String], time| Point {
        series: SeriesKey::of_text(key).expect("a key"),
        fields: names.iter().map(|it| (it.clone().into(), FieldValue::Integer(1))).collect(),
        time,
    };
    let others: Vec<Point<'_>> = (0..600).map(|at| point("m,host=b", &names, at * HOUR)).collect();
    store.write("d", None, &others).expect("written");
    store.write("d", None, &[point("m,host=a", &names[..1], 5)]).expect("written");
    let reader = store.reader("d", None).expect("a reader");
    let series = reader.series("m", &TagFilter::All).swap_remove(0);
    let fields: Vec<u32> = reader.fields("m").iter().map(|it| it.id).collect();
    let lasts =
        |looks: &Looks| reader.scope().lasts(Some(looks), &series, &fields, &(0..=i64::MAX));
    let all = Looks::until(usize::MAX);
    let found = lasts(&all).expect("last points");
    assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&(5, Value::Integer(1))]);
    let looks = all.count.load(Ordering::Relaxed);
    assert!((20..200).contains(&looks), "{looks}");
    for last in 1..=looks {
        assert!(
            matches!(lasts(&Looks::until(last)), Err(Error::Ended("enough"))),
            "at look {last}"
        );
    }
}

/// Points of three fields in many segments, some of which overlap, and points that are not sealed.
#[test]
fn a_reader_lists_few_stretches_at_a_time() {
    let sim = sim();
    let store = Store::simulated_create(sim.spaces(), &Options::default()).expect("a store");
    store.create_database("d").expect("a database");
    let point = |time: i64| Point {
        series: SeriesKey::new("m", [("host", "a")]).expect("a key"),
        fields: ["a", "b", "c"]
            .map(|it| (it.into(), FieldValue::Integer(time)))
            .into_iter()
            .collect(),
        time,
    };
    let mut expected = Vec::new();
    for round in 0..40 {
        let late = (round % 5 == 4).then_some(round * 10 - 15);
        let times: Vec<i64> = [0, 3, 6].map(|it| round * 10 + it).into_iter().chain(late).collect();
        let points: Vec<Point<'_>> = times.iter().map(|time| point(*time)).collect();
        store.write("d", None, &points).expect("written");
        assert!(store.shared.seal(&store.shared.sets[0], 0).expect("sealed"));
        expected.extend(times);
    }
    store.write("d", None, &[8, 38, 208].map(point)).expect("written");
    expected.extend([8, 38, 208]);
    expected.retain(|time| (5..=390).contains(time));
    expected.sort_unstable();
    let reader = store.reader("d", None).expect("a reader");
    let series = reader.series("m", &TagFilter::All).pop().expect("a series");
    for is_descending in [false, true] {
        let field = reader.fields("m").pop().expect("a field");
        let mut points = reader.points(&series, &field, 5..=390, is_descending);
        let (mut found, mut held): (Vec<i64>, Vec<usize>) = Default::default();
        while let Some(block) = points.next() {
            let block = block.expect("a block");
            held.push(points.held_bytes());
            match is_descending {
                true => found.extend(block.times.iter().rev()),
                false => found.extend(&block.times),
            }
        }
        if is_descending {
            found.reverse();
        }
        assert_eq!(found, expected, "descending {is_descending}");
        assert!(held.iter().any(|it| *it > held[0]) && held[0] < 8 * 700, "{held:?}");
    }
    // The fields are summed up some at a time.
    let fields: Vec<u32> = reader.fields("m").iter().map(|it| it.id).collect();
    let along = (None, &mut Most::new(&|_, _| Ok(())));
    let sums = reader.scope().summaries(along, &series, &fields, &(5..=390), None).expect("sums");
    let sums: Vec<(u64, Value)> =
        sums.iter().map(|it| (it[0].1.count, it[0].1.sum.clone())).collect();
    let sum = (expected.len() as u64, Value::Integer(expected.iter().sum()));
    assert_eq!(sums, vec![sum; 3]);
}

/// Without a number for another segment, as without a page for it.
#[test]
fn what_needs_no_room_is_given_back_though_a_merge_has_none() {
    let sim = sim();
    let store = unmerged(&sim);
    let (shared, far) = (&store.shared, 1 << 60);
    let set = &shared.sets[0];
    let gone = Point {
        series: SeriesKey::of_text("gone,host=a").expect("a key"),
        fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
        time: far,
    };
    store.write("d", None, &[gone]).expect("written");
    assert!(shared.seal(set, 0).expect("sealed"));
    store.drop_measurement("d", "gone").expect("dropped");
    set.next_segment.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(store.stats().segments, 6);
    assert!(shared.merge(set, None).expect("given back"));
    let refused = shared.merge(set, None);
    assert!(matches!(refused, Err(Error::Limit(_))), "{refused:?}");
    assert_eq!((store.stats().segments, count(&store)), (5, 100));
    store.check_pages().expect("pages");
}

/// Few long strings, which take nearly all of the room, and many numbers.
fn mixed(path: &std::path::Path) -> Store {
    let options = Options {
        sets: 1,
        size: 1 << 20,
        page_len: 4096,
        head_bytes: 1 << 30,
        ..Options::default()
    };
    let store = Store::open(path, &options).expect("a store");
    store.create_database("d").expect("a database");
    let word = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 % 64);
    let text = |at: i64| -> String {
        let words = (0..70).map(|it| word(at.cast_unsigned() * 70 + it));
        words.map(|it| format!("{:015x}", it >> 4)).collect()
    };
    let point = |measurement, at: i64, value| Point {
        series: SeriesKey::new(measurement, [("host", "a")]).expect("a key"),
        fields: [("f".into(), value)].into_iter().collect(),
        time: at,
    };
    let texts = (0..TEXTS).map(|at| point("texts", at, FieldValue::String(text(at).into())));
    let numbers = (0..NUMBERS).map(|at| point("numbers", at, FieldValue::Float(at as f64)));
    // Nothing is sealed before all is there.
    let held = store.hold_upkeep();
    store.write("d", None, &texts.chain(numbers).collect::<Vec<_>>()).expect("written");
    drop(held);
    store.seal().expect("sealed");
    let stats = store.stats();
    assert_eq!((stats.segments, stats.head_points), (1, 0));
    // More of the strings, in other shards.
    for shard in 1.. {
        let texts = (0..60).map(|at| (at, text(shard * 1000 + at)));
        let texts =
            texts.map(|(at, it)| point("texts", shard << 54 | at, FieldValue::String(it.into())));
        store.write("d", None, &texts.collect::<Vec<_>>()).expect("written");
        store.seal().expect("sealed");
        let stats = store.stats();
        if stats.used_bytes > stats.total_bytes / 4 * 3 {
            break;
        }
    }
    store
}

const TEXTS: i64 = 220;
const NUMBERS: i64 = 2000;

#[test]
fn the_few_points_that_take_the_room_are_given_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = mixed(&directory.path().join("ts"));
    let before = store.stats();
    store.drop_measurement("d", "texts").expect("dropped");
    store.seal().expect("sealed");
    let after = store.stats();
    assert_eq!(after.sealed_points, NUMBERS.cast_unsigned());
    assert!(after.used_bytes < before.used_bytes / 4, "{before:?} {after:?}");
    store.check_pages().expect("pages");
}

/// There is no room for the others, which stay as they are.
#[test]
fn many_points_that_take_little_room_are_no_reason_to_write_the_others_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = mixed(&directory.path().join("ts"));
    let next = store.shared.sets[0].next_segment();
    store.drop_measurement("d", "numbers").expect("dropped");
    for _ in 0..3 {
        store.seal().expect("sealed");
    }
    assert_eq!(store.shared.sets[0].next_segment(), next);
}
