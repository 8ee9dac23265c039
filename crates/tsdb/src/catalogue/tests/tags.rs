//! Tags, which are stored in the keys of series, and the postings of many series.

use super::{put_measurement, put_series, with_database};
use crate::catalogue::{Catalogue, Change, Limits, SeriesId, TagFilter};
use crate::point::SeriesKey;
use proptest::prelude::*;

fn equal(key: &str, value: &str) -> TagFilter {
    TagFilter::Equal(key.to_owned(), value.to_owned())
}

/// Consecutive drops, however many, cause one pass; only the impossible ones among them are refused.
#[test]
fn series_that_are_dropped_in_a_row_are_taken_away_in_one_pass() {
    let made = || {
        let (mut catalogue, db) = with_database(Limits::default());
        let m = put_measurement(&mut catalogue, db, "m");
        let keys = (0..1000).map(|at| format!("m,all=x,host={at},rack={}", at % 7));
        let ids: Vec<u32> = keys.map(|key| put_series(&mut catalogue, m, &key)).collect();
        (catalogue, m, ids)
    };
    let (mut one, _, _) = made();
    let (mut all, m, ids) = made();
    let passes = |of: &Catalogue| of.measurement_by_id(m).unwrap().postings.passes;
    let drop = |ids: &[u32]| Change::SeriesDropped { ids: ids.to_vec() };
    // One of the changes names a series that is gone by then, and one names a series twice.
    let mut changes: Vec<Change> = ids[..900].chunks(50).map(drop).collect();
    changes.insert(9, drop(&[ids[3], ids[950]]));
    changes.push(drop(&[ids[960], ids[960]]));
    let mut refused = 0;
    all.apply_all(changes.clone(), &mut |_| refused += 1);
    let each = changes.into_iter().filter_map(|change| one.apply(change).err()).count();
    assert_eq!((refused, each), (2, 2));
    assert_eq!((passes(&all), passes(&one)), (1, 18));
    assert!(all.changes().eq(one.changes()));
    assert_eq!(all.memory_bytes(), one.memory_bytes());
    assert_eq!(all.garbage_bytes(), one.garbage_bytes());
    // A change between two drops is applied in its place.
    let (last, there) = (drop(&ids[990..]), Change::Next(all.next()));
    all.apply_all([drop(&ids[900..950]), there, last], &mut |error| panic!("{error}"));
    assert_eq!((passes(&all), all.series_count()), (3, 40));
}

#[test]
fn tags_are_read_out_of_the_text_of_a_key() {
    let (mut catalogue, db) = with_database(Limits::default());
    let mut put = |measurement: &str, key: &str| {
        let m = put_measurement(&mut catalogue, db, measurement);
        let id = put_series(&mut catalogue, m, key);
        let series = catalogue.series(id).unwrap();
        assert!(series.tags().all(|(key, value)| series.tag(key) == value));
        series.tags().map(|(key, value)| format!("{key} is {value}")).collect::<Vec<_>>()
    };
    assert_eq!(put("m", "m"), [""; 0]);
    assert_eq!(put("a=b", "a=b,c=d"), ["c is d"]);
    assert_eq!(put("a,b c", r"a\,b\ c,d=e,f=g"), ["d is e", "f is g"]);
    assert_eq!(put(r"a\,b", r"a\\,b,d=\e"), [r"d is \e"]);
    assert_eq!(put(r"\=", r"\\=,d=e"), ["d is e"], "an equals sign behind a backslash");
    assert_eq!(put("n", r"n,a\=b=c\,\ d,e=f"), ["a=b is c, d", "e is f"]);
    assert_eq!(put("o", r"o,a=\\=,b=\x\"), [r"a is \=", r"b is \x\"]);
}

#[test]
fn a_value_under_several_keys_has_a_list_under_each() {
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m");
    for key in ["m,a=x,b=x", "m,a=x,b=y", "m,b=x", "m,a=b,b=x", "m,x=b"] {
        put_series(&mut catalogue, m, key);
    }
    let empty = catalogue.memory_bytes();
    let last = put_series(&mut catalogue, m, "m,a=x,b=x,x=x");
    let ids =
        |catalogue: &super::Catalogue, key, value| catalogue.series_ids_that(m, &equal(key, value));
    assert_eq!(ids(&catalogue, "a", "x"), [0, 1, 5]);
    assert_eq!(ids(&catalogue, "b", "x"), [0, 2, 3, 5]);
    assert_eq!(ids(&catalogue, "x", "x"), [5]);
    catalogue.apply(Change::SeriesDropped { ids: vec![last] }).unwrap();
    assert_eq!(catalogue.memory_bytes(), empty);
    catalogue.apply(Change::SeriesDropped { ids: vec![0] }).unwrap();
    assert_eq!(ids(&catalogue, "a", "x"), [1]);
    assert_eq!(ids(&catalogue, "b", "x"), [2, 3]);
    assert_eq!(ids(&catalogue, "a", "b"), [3]);
    assert_eq!(ids(&catalogue, "x", "b"), [4]);
    assert_eq!(ids(&catalogue, "x", "x"), [0; 0]);
    assert_eq!(catalogue.measurement_by_id(m).unwrap().tag_values("x"), ["b".into()]);
}

#[test]
fn series_that_are_dropped_give_their_memory_back_and_come_again() {
    const COUNT: u32 = 10_000;
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m o");
    let key = |at: u32| format!(r"m\ o,host={at},rack=r\ {},region=eu", at % 10);
    let empty = catalogue.memory_bytes();
    let mut full = 0;
    for round in 0..3 {
        let ids: Vec<SeriesId> =
            (0..COUNT).map(|at| put_series(&mut catalogue, m, &key(at))).collect();
        assert_eq!(ids.first().copied(), Some(round * COUNT), "no number is given twice");
        assert_eq!(catalogue.series_ids_that(m, &equal("region", "eu")), ids);
        let of_rack: Vec<SeriesId> = ids.iter().copied().skip(3).step_by(10).collect();
        assert_eq!(catalogue.series_ids_that(m, &equal("rack", "r 3")), of_rack);
        if round == 0 {
            full = catalogue.memory_bytes();
        }
        assert_eq!(catalogue.memory_bytes(), full);
        let text = (0..COUNT).map(|at| key(at).len()).sum::<usize>();
        assert!(full - empty > text + 4 * 4 * COUNT as usize, "{full}");
        let (few, most): (Vec<SeriesId>, Vec<SeriesId>) = ids.iter().partition(|id| *id % 100 == 0);
        catalogue.apply(Change::SeriesDropped { ids: most }).unwrap();
        assert_eq!(catalogue.series_ids_that(m, &equal("region", "eu")), few);
        assert_eq!(catalogue.series_ids_that(m, &equal("rack", "r 3")), [0; 0]);
        for at in [0, 100, 1] {
            let id = catalogue.series_of(db, &key(at)).map(|it| it.id);
            assert_eq!(id, (at != 1).then_some(round * COUNT + at));
        }
        catalogue.apply(Change::SeriesDropped { ids: few }).unwrap();
        assert_eq!(catalogue.memory_bytes(), empty);
        assert!(catalogue.measurement_by_id(m).unwrap().tag_keys().is_empty());
    }
}

/// The lists of many terms are not held side by side.
#[test]
fn a_union_of_many_lists_takes_little_memory() {
    const COUNT: usize = 1000;
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m");
    for at in 0..COUNT {
        put_series(&mut catalogue, m, &format!("m,host={at}"));
    }
    let term = |at: usize| TagFilter::NotEqual("host".into(), at.to_string());
    let filter = (1..200).fold(term(0), |all, at| TagFilter::Or(all.into(), term(at).into()));
    let found = catalogue.series_ids_that(m, &filter);
    assert_eq!(found.len(), COUNT);
    assert!(found.capacity() <= 4 * COUNT, "{}", found.capacity());
}

/// Each step of a search is asked for before it is taken.
#[test]
fn a_search_that_may_not_go_on_ends() {
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m");
    for at in 0..100 {
        put_series(&mut catalogue, m, &format!("m,host={at:02},kind={}", at % 2));
    }
    let long = "x".repeat(5000);
    let n = put_measurement(&mut catalogue, db, "n");
    put_series(&mut catalogue, n, &format!("n,host={long},kind=1"));
    let regex = |text: &str| regex::Regex::new(text).unwrap();
    let found = |text: &str| TagFilter::Match("host".into(), regex(text));
    let steps = |of, filter: &TagFilter, max: usize| {
        let asked = std::cell::RefCell::new(Vec::new());
        let outcome = super::super::select(|| &catalogue, (of, filter), &|work| {
            let mut asked = asked.borrow_mut();
            asked.push(work);
            if asked.len() > max { Err(()) } else { Ok(()) }
        });
        (outcome.map(|it| it.len()), asked.into_inner())
    };
    use super::super::Work::{List, Look, Match};
    let nothing = found("x");
    let other = TagFilter::NotEqual("host".into(), "07".into());
    let odd = TagFilter::Equal("kind".into(), "1".into());
    let (either, both) = (
        TagFilter::Or(nothing.clone().into(), other.clone().into()),
        TagFilter::And(nothing.clone().into(), odd.clone().into()),
    );
    for (of, filter, found, expected) in [
        (m, &nothing, 0, vec![Look(100), Match(1026), List(0)]),
        // A long text is looked at after a question.
        (n, &nothing, 1, vec![Look(1), Match(5016), List(1), List(1)]),
        (n, &both, 1, vec![List(1), List(1), Match(5016), List(1)]),
        (m, &other, 99, vec![List(100), List(99)]),
        (m, &odd, 50, vec![List(50), List(50)]),
        (
            m,
            &TagFilter::NotEqual("kind".into(), String::new()),
            100,
            vec![Look(2), List(50), List(100), List(100)],
        ),
        // So few are looked at one by one, and of the series of a value there is one copy.
        (
            m,
            &TagFilter::And(odd.clone().into(), TagFilter::Match("kind".into(), regex("1")).into()),
            50,
            vec![List(50), List(50), List(50)],
        ),
        (m, &TagFilter::Match("kind".into(), regex("0")), 50, vec![Look(2), List(50), List(50)]),
        (m, &either, 99, vec![Look(100), Match(1026), List(100), List(99)]),
        (m, &both, 0, vec![List(50), List(50), List(0)]),
    ] {
        assert_eq!(steps(of, filter, 10), (Ok(found), expected.clone()), "{filter:?}");
        for max in 0..expected.len() {
            assert_eq!(steps(of, filter, max), (Err(()), expected[..=max].to_vec()), "{filter:?}");
        }
    }
}

proptest! {
    #[test]
    fn tags_of_a_series_are_those_of_its_key(
        measurement in r"[a, =\\]{1,4}",
        tags in prop::collection::btree_map(r"[a-c, =\\]{1,3}", r"[a, =\\é]{1,4}", 0..4),
    ) {
        let pairs = tags.iter().map(|(key, value)| (&**key, &**value));
        let Ok(key) = SeriesKey::new(&measurement, pairs.clone()) else { return Ok(()) };
        let (mut catalogue, db) = with_database(Limits::default());
        let m = put_measurement(&mut catalogue, db, &measurement);
        let id = put_series(&mut catalogue, m, key.as_str());
        prop_assert!(catalogue.series(id).unwrap().tags().eq(pairs));
    }
}
